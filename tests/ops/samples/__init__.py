"""One sample list per operator family; every operator test runs from them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx.reference
from onnx import helper

from ortrain.ops.registry.operator_modules import OPERATOR_MODULES

FAMILIES = tuple(name for name in OPERATOR_MODULES if name not in ("custom", "gathering"))
"""The modules of operators, each with samples in the module of the same name here. Those of gathering are in indexing; custom operators have their own tests."""


@dataclass(frozen=True)
class Sample:
    """One operator on one set of inputs.

    inputs: arrays (float64 for float tensors; the tests cast to float32 where they need it), None for an absent optional input.
    oracle: the same arrays -> expected outputs (a tuple, or one array), in NumPy; an entry None is not compared.
    gradient: False for operators that carry none; indices: the float inputs whose gradient is checked (default: all float inputs).
    """

    op_type: str
    inputs: Sequence[np.ndarray | None]
    oracle: Callable[..., Any]
    attributes: dict[str, Any] = field(default_factory=dict)
    domain: str = ""
    outputs: int = 1
    opset: int = 17
    gradient: bool = True
    indices: Sequence[int] | None = None
    constants: Sequence[int] = ()
    """Inputs given as initializers (shapes, axes)."""
    label: str = ""


@dataclass(frozen=True)
class Refusal:
    """Inputs that inference must refuse with ShapeInferenceError (or the named error)."""

    op_type: str
    inputs: Sequence[np.ndarray | None]
    attributes: dict[str, Any] = field(default_factory=dict)
    domain: str = ""
    opset: int = 17
    constants: Sequence[int] = ()
    match: str = "expected"


def by_reference(op_type: str, attributes: dict[str, Any] | None = None, opset: int = 17) -> Callable[..., Any]:
    """An oracle: output 0 of onnx's reference implementation."""

    def run(*arrays: np.ndarray | None) -> np.ndarray:
        names = [f"x{i}" if array is not None else "" for i, array in enumerate(arrays)]
        given = {name: array for name, array in zip(names, arrays, strict=True) if array is not None}
        kinds = [helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape) for name, array in given.items()]
        graph = helper.make_graph([helper.make_node(op_type, names, ["y"], **(attributes or {}))], "g", kinds, [helper.make_tensor_value_info("y", 1, None)])
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
        return onnx.reference.ReferenceEvaluator(model).run(None, given)[0]

    return run
