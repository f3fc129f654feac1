"""User-defined operators as Python callables, which run as steps of a program."""

from __future__ import annotations

import json
import os
import runpy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ortrain.errors import ArgumentTypeError, ArtifactNotFoundError, InvalidArgumentError
from ortrain.ir import Shape, TensorType
from ortrain.ops.registry.node_builder import GradientBuilder
from ortrain.ops.registry.record import REGISTRY, InferenceContext, KernelCall, LoweringContext, OpRecord, canonical_domain, operator

DOMAIN = "ortrain"
GRADIENT = "CustomGradient"
"""The node that calls a custom operator's gradient: (gradients of the outputs, inputs, outputs) -> gradients of the inputs."""

Arrays = Sequence[np.ndarray | None]


@dataclass(frozen=True, slots=True)
class CustomOperator:
    """A registered operator."""

    forward: Callable[..., Any]
    infer: Callable[..., Any] | None
    gradient: Callable[..., Any] | None


_operators: dict[tuple[str, str], CustomOperator] = {}


def register_operator(domain: str, op_type: str, forward: Callable[..., Any], *, gradient: Callable[..., Any] | None = None,
                      infer: Callable[..., Any] | None = None) -> None:
    """Register a custom operator; a later registration of the same name replaces an earlier one.

    domain, op_type: as the model's nodes name the operator. The default domain "" and operators that ortrain has are refused.
    forward(*inputs, **attributes): takes arrays (None where an optional input is absent), returns one array, or a tuple with one per output.
    gradient(output_gradients, inputs, outputs, **attributes): takes lists of arrays (None where there is no gradient), returns one array or None per
    input, each with its input's shape. None: no gradient flows through the operator.
    infer(inputs, **attributes): takes (dtype name, shape) per input, returns the same per output; a dynamic size is a string. None: every output is
    like input 0.

    Callables receive copies and hold the interpreter's lock; in half-precision models they receive float32. They must not use the session that runs
    them: its calls raise InvalidStateError meanwhile.

    Raises InvalidArgumentError or ArgumentTypeError."""
    key = (canonical_domain(domain), op_type)
    if not key[0] or key[0] == DOMAIN or (key in REGISTRY and key not in _operators):
        raise InvalidArgumentError(f"expected a domain and a name that ortrain does not use itself, got {domain!r} and {op_type!r}")
    for role, function in (("forward", forward), ("gradient", gradient), ("infer", infer)):
        if function is not None and not callable(function) or function is None and role == "forward":
            raise ArgumentTypeError(f"expected a callable for {role}, got {type(function).__name__}")
    _operators[key] = CustomOperator(forward, infer, gradient)
    REGISTRY[key] = OpRecord(op_type, key[0], _infer, _lower, _gradient if gradient is not None else None, gradient is not None,
                             random=True, is_custom=True, summary=(forward.__doc__ or f"{op_type}, registered by the user").strip())


def load_operators(path: str | os.PathLike[str]) -> None:
    """Run a Python file that registers operators.

    Raises ArtifactNotFoundError when it does not exist, InvalidArgumentError for anything but a .py file: shared libraries of operators are built
    against onnxruntime's own interface, which ortrain does not have."""
    if not Path(path).exists():
        raise ArtifactNotFoundError(f"Custom op library path {path} does not exist.")
    if Path(path).suffix != ".py":
        raise InvalidArgumentError(f"expected a Python file that calls ortrain.register_operator, got {str(path)!r}: shared libraries made for onnxruntime "
                                   "cannot be loaded")
    runpy.run_path(str(path))


def _custom(c: InferenceContext | GradientBuilder) -> CustomOperator:
    return _operators[canonical_domain(c.node.domain), c.node.op_type]


def _infer(c: InferenceContext) -> list[TensorType]:
    """Infer types with the user's function, or else take the type of input 0."""
    user = _custom(c).infer
    if user is None:
        return [c.type(0)] * len(c.node.outputs)
    given = [None if kind is None else (kind.dtype, _plain(kind.shape)) for kind in c.types]
    found = [TensorType(str(dtype), None if shape is None else tuple(shape)) for dtype, shape in user(given, **c.node.attributes)]
    if len(found) < len(c.node.outputs):
        raise c.error(f"expected infer to give {len(c.node.outputs)} outputs, got {len(found)}")
    return found


def _plain(shape: Shape | None) -> Shape | None:
    """Return a shape with the symbolic sizes of a plan as plain numbers."""
    return None if shape is None else tuple(int(size) if isinstance(size, int) else size for size in shape)


def _lower(c: LoweringContext) -> KernelCall:
    forward, attributes = _custom(c).forward, c.node.attributes
    return KernelCall("python", function=lambda *inputs: _as_tuple(forward(*inputs, **attributes)))


def _as_tuple(results: Any) -> tuple[Any, ...]:
    return tuple(results) if isinstance(results, tuple | list) else (results,)


def _gradient(g: GradientBuilder) -> list[str | None]:
    wanted = [g.needs(i) for i in range(len(g.inputs))]
    values = [gradient or "" for gradient in g.gradients]
    outputs = g.ops(GRADIENT, *values, *g.inputs, *g.outputs, domain=DOMAIN, outputs=wanted, operator=g.node.op_type, operator_domain=g.node.domain,
                    outputs_of_operator=len(g.outputs), **_packed_attributes(g.node.attributes))
    return [name or None for name in outputs]


def _packed_attributes(attributes: dict[str, Any]) -> dict[str, Any]:
    """Pack the forward node's attributes beside the gradient node's own: tensors under a prefix, the rest as JSON."""
    tensors = {f"attribute.{name}": value for name, value in attributes.items() if isinstance(value, np.ndarray)}
    return {"attributes": json.dumps({name: value for name, value in attributes.items() if not isinstance(value, np.ndarray)}), **tensors}


def _unpacked_attributes(attributes: dict[str, Any]) -> dict[str, Any]:
    tensors = {name.removeprefix("attribute."): value for name, value in attributes.items() if name.startswith("attribute.")}
    plain = {name: tuple(value) if isinstance(value, list) else value for name, value in json.loads(attributes["attributes"]).items()}
    return {**plain, **tensors}


def lower_gradient(c: LoweringContext) -> KernelCall:
    key = (canonical_domain(c.attribute("operator_domain", "")), c.attribute("operator", ""))
    user = _operators.get(key)
    if user is None or user.gradient is None:
        raise c.error(f"expected the operator {key[0]}::{key[1]} with its gradient to be registered (ortrain.register_operator), found none")
    gradient, attributes = user.gradient, _unpacked_attributes(c.node.attributes)
    n = int(c.attribute("outputs_of_operator", 1))

    def run(*values: np.ndarray | None) -> tuple[Any, ...]:
        inputs = len(values) - 2 * n
        return _as_tuple(gradient(list(values[:n]), list(values[n : n + inputs]), list(values[n + inputs :]), **attributes))

    return KernelCall("python", function=run)


@operator(GRADIENT, domain=DOMAIN, lower=lower_gradient, differentiable=False, random=True, is_custom=True)
def custom_gradient(c: InferenceContext) -> list[TensorType]:
    """The gradients of a registered operator's inputs, computed by its own callable"""
    n = int(c.attribute("outputs_of_operator", 1))
    return [c.type(n + i) for i in range(len(c.node.outputs))]
