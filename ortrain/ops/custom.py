"""Operators that users register as Python callables; a program calls them as Python steps between its kernels."""

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
"""The operator that calls a custom operator's gradient function: (output gradients, inputs, outputs) -> input gradients."""

Arrays = Sequence[np.ndarray | None]


@dataclass(frozen=True, slots=True)
class CustomOperator:
    """The callables of one registered operator; register_operator documents them."""

    forward: Callable[..., Any]
    infer: Callable[..., Any] | None
    gradient: Callable[..., Any] | None


_operators: dict[tuple[str, str], CustomOperator] = {}


def register_operator(domain: str, op_type: str, forward: Callable[..., Any], *, gradient: Callable[..., Any] | None = None,
                      infer: Callable[..., Any] | None = None) -> None:
    """Register a custom operator; a second registration of the same operator replaces the first.

    domain, op_type: the operator's domain and name in models. The default domain "" and operators that ortrain implements are refused.
    forward(*inputs, **attributes): receives one array per input, None where an optional input is absent; returns one array, or a tuple with one per output.
    gradient(output_gradients, inputs, outputs, **attributes): receives three lists of arrays, None for an output that no gradient reaches; returns one array
    of the input's shape per input, or None for an input without gradient. If `gradient` is None, no gradient flows through the operator.
    infer(inputs, **attributes): receives (dtype name, shape) per input and returns the same per output; a dynamic size is a string. If `infer` is None,
    every output has the dtype and shape of input 0.

    The callables receive copies, run with the interpreter lock held, and get float32 in half-precision models. While one runs, calls of the session that
    runs it raise InvalidStateError.

    Raises InvalidArgumentError for a domain or name that ortrain uses itself, ArgumentTypeError for anything that is not callable."""
    key = (canonical_domain(domain), op_type)
    if not key[0] or key[0] == DOMAIN or (key in REGISTRY and key not in _operators):
        raise InvalidArgumentError(f"expected a domain and a name that ortrain does not use itself, got {domain!r} and {op_type!r}")
    for role, function in (("forward", forward), ("gradient", gradient), ("infer", infer)):
        if function is not None and not callable(function) or function is None and role == "forward":
            raise ArgumentTypeError(f"expected a callable for {role}, got {type(function).__name__}")
    _operators[key] = CustomOperator(forward, infer, gradient)
    REGISTRY.add(OpRecord(op_type, key[0], _infer, _lower, _gradient if gradient is not None else None, gradient is not None,
                          random=True, is_custom=True, summary=(forward.__doc__ or f"{op_type}, registered by the user").strip()))


def load_operators(path: str | os.PathLike[str]) -> None:
    """Run a Python file that registers operators with register_operator.

    Raises ArtifactNotFoundError when the file does not exist, InvalidArgumentError when it is not a .py file: shared libraries of custom operators are
    built against onnxruntime's C API, which ortrain does not implement."""
    if not Path(path).exists():
        raise ArtifactNotFoundError(f"Custom op library path {path} does not exist.")
    if Path(path).suffix != ".py":
        raise InvalidArgumentError(f"expected a Python file that calls ortrain.register_operator, got {str(path)!r}: shared libraries made for onnxruntime "
                                   "cannot be loaded")
    runpy.run_path(str(path))


def _callables(c: InferenceContext | GradientBuilder) -> CustomOperator:
    return _operators[canonical_domain(c.node.domain), c.node.op_type]


def _infer(c: InferenceContext) -> list[TensorType]:
    """Return the output types that the user's `infer` gives; without it, the type of input 0 for every output."""
    user = _callables(c).infer
    if user is None:
        return [c.type(0)] * len(c.node.outputs)
    inputs = [None if kind is None else (kind.dtype, _plain(kind.shape)) for kind in c.types]
    outputs = [TensorType(str(dtype), None if shape is None else tuple(shape)) for dtype, shape in user(inputs, **c.node.attributes)]
    if len(outputs) < len(c.node.outputs):
        raise c.error(f"expected infer to give {len(c.node.outputs)} outputs, got {len(outputs)}")
    return outputs


def _plain(shape: Shape | None) -> Shape | None:
    """Return a shape whose symbolic sizes, which users' code would not expect, are converted to plain integers."""
    return None if shape is None else tuple(int(size) if isinstance(size, int) else size for size in shape)


def _lower(c: LoweringContext) -> KernelCall:
    forward, attributes = _callables(c).forward, c.node.attributes
    return KernelCall("python", function=lambda *inputs: _as_tuple(forward(*inputs, **attributes)))


def _as_tuple(results: Any) -> tuple[Any, ...]:
    return tuple(results) if isinstance(results, tuple | list) else (results,)


def _gradient(g: GradientBuilder) -> list[str | None]:
    needed = [g.needs(i) for i in range(len(g.inputs))]
    values = [gradient or "" for gradient in g.gradients]
    outputs = g.ops(GRADIENT, *values, *g.inputs, *g.outputs, domain=DOMAIN, outputs=needed, operator=g.node.op_type, operator_domain=g.node.domain,
                    outputs_of_operator=len(g.outputs), **_packed_attributes(g.node.attributes))
    return [name or None for name in outputs]


def _packed_attributes(attributes: dict[str, Any]) -> dict[str, Any]:
    """Return the forward node's attributes in a form that the gradient node can hold besides its own attributes.

    Tensors get a prefix to their name, all other attributes become one JSON text."""
    tensors = {f"attribute.{name}": value for name, value in attributes.items() if isinstance(value, np.ndarray)}
    return {"attributes": json.dumps({name: value for name, value in attributes.items() if not isinstance(value, np.ndarray)}), **tensors}


def _unpacked_attributes(attributes: dict[str, Any]) -> dict[str, Any]:
    """Return the forward node's attributes from those of the gradient node."""
    tensors = {name.removeprefix("attribute."): value for name, value in attributes.items() if name.startswith("attribute.")}
    plain = {name: tuple(value) if isinstance(value, list) else value for name, value in json.loads(attributes["attributes"]).items()}
    return {**plain, **tensors}


def lower_gradient(c: LoweringContext) -> KernelCall:
    """Return the call of the gradient function of the operator that the node's attributes name."""
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
    """dx of (dy, x, y) for all inputs x and outputs y of a registered operator, computed by its gradient function"""
    n = int(c.attribute("outputs_of_operator", 1))
    return [c.type(n + i) for i in range(len(c.node.outputs))]
