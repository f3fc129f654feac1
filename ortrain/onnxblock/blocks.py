"""Blocks: functions that build pieces of graph. A call adds nodes to the model being edited and returns value names."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextvars import ContextVar
from typing import Any

import numpy as np

from ortrain.errors import InvalidArgumentError
from ortrain.onnxblock.building import (
    MICROSOFT,
    add_initializer,
    add_input,
    add_node,
    check,
    dtype_of,
    generate_name,
    infer_types,
    type_of,
)
from ortrain.onnxblock.model_accessor import current_model
from ortrain.packages import onnx

_depth: ContextVar[int] = ContextVar("ortrain.onnxblock.depth", default=0)


class Block(ABC):
    """A piece of graph. Subclasses implement `build(*value_names)`, which adds nodes and returns the name or names of its outputs."""

    def __init__(self, temp_file_name: str = "temp.onnx") -> None:
        if os.path.isabs(temp_file_name):
            raise InvalidArgumentError(f"Please pass in a relative path for the temp_file_name. Got {temp_file_name!r}.")
        self.base: onnx.ModelProto | None = None

    @abstractmethod
    def build(self, *args: Any, **kwargs: Any) -> Any:
        """Add the block to the model being edited; return the name of its output, or a tuple of names."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Build the block; the outermost block then checks the model. Raises InvalidModelError when the result is not a valid model."""
        self.base = current_model()
        token = _depth.set(_depth.get() + 1)
        try:
            output = self.build(*args, **kwargs)
        finally:
            _depth.reset(token)
        if _depth.get() == 0:
            check(self.base)
        return output

    def infer_shapes_on_base(self) -> None:
        """Add the types that onnx infers to the model's value_info."""
        model = current_model()
        known = {v.name for v in (*model.graph.input, *model.graph.output, *model.graph.value_info, *model.graph.initializer)}
        found = infer_types(model)
        model.graph.value_info.extend(onnx.ValueInfoProto(name=name, type=kind) for name, kind in found.items() if name not in known)


class _Binary(Block):
    operator = ""

    def build(self, left: str, right: str) -> str:
        return add_node(self.operator, [left, right])[0]


class Add(_Binary):
    """a + b."""

    operator = "Add"


class Sub(_Binary):
    """a - b."""

    operator = "Sub"


class Mul(_Binary):
    """a * b."""

    operator = "Mul"


class Div(_Binary):
    """a / b."""

    operator = "Div"


class _Unary(Block):
    operator = ""

    def build(self, x: str) -> str:
        return add_node(self.operator, [x])[0]


class Sigmoid(_Unary):
    """1 / (1 + exp(-x))."""

    operator = "Sigmoid"


class Log(_Unary):
    """The natural logarithm."""

    operator = "Log"


class Neg(_Unary):
    """-x."""

    operator = "Neg"


class Abs(_Unary):
    """|x|."""

    operator = "Abs"


class Exp(_Unary):
    """exp(x)."""

    operator = "Exp"


class Pow(Block):
    """x to the power of a constant."""

    def __init__(self, exponent: float) -> None:
        super().__init__()
        self._exponent = exponent

    def build(self, x: str) -> str:
        dtype = np.dtype(dtype_of(x))
        if dtype.hasobject:
            raise InvalidArgumentError(f"expected numbers to raise to a power, got text ({x!r})")
        exponent = add_initializer(np.array([self._exponent], dtype), "pow_exponent")
        return add_node("Pow", [x, exponent])[0]


class _Reduce(Block):
    operator = ""

    def __init__(self, keepdims: bool = True) -> None:
        super().__init__()
        self._keepdims = keepdims

    def build(self, x: str) -> str:
        # without axes, all opsets agree: every axis is reduced
        return add_node(self.operator, [x], keepdims=int(self._keepdims))[0]


class ReduceMean(_Reduce):
    """The mean over all axes."""

    operator = "ReduceMean"


class ReduceSum(_Reduce):
    """The sum over all axes."""

    operator = "ReduceSum"


class Constant(Block):
    """A float32 constant of shape [1]."""

    def __init__(self, value_float: float) -> None:
        super().__init__()
        self._value = value_float

    def build(self) -> str:
        return add_initializer(np.array([self._value], np.float32))


class SequenceConstruct(Block):
    """A sequence of tensors."""

    def build(self, *names: str) -> str:
        return add_node("SequenceConstruct", names)[0]


class ReduceAllL2(Block):
    """The square root of the sum of all squares of all inputs, a scalar."""

    def build(self, *names: str) -> str:
        output = add_node("ReduceAllL2", names, domain=MICROSOFT)[0]
        kind = onnx.helper.np_dtype_to_tensor_dtype(dtype_of(names[0]) if names else np.dtype(np.float32))
        current_model().graph.value_info.append(onnx.helper.make_tensor_value_info(output, kind, []))
        return output


class Clip(Block):
    """x limited to [clip_min, clip_max]; None is no limit."""

    def __init__(self, clip_min: float | None = None, clip_max: float | None = None) -> None:
        super().__init__()
        self._limits = {"clip_min": clip_min, "clip_max": clip_max}

    def build(self, x: str) -> str:
        dtype = dtype_of(x)
        limits = ["" if value is None else add_initializer(np.array(value, dtype), token) for token, value in self._limits.items()]
        while limits and not limits[-1]:
            limits.pop()
        return add_node("Clip", [x, *limits])[0]


class PassThrough(Block):
    """Adds nothing: its outputs are its inputs."""

    def build(self, *names: str) -> str | tuple[str, ...]:
        return names[0] if len(names) == 1 else names


class InputLike(Block):
    """A new graph input with the type and shape of the value `like`. Raises OutputNotFoundError for an unknown value."""

    def __init__(self, like: str) -> None:
        super().__init__()
        self._like = like

    def build(self, input_name: str | None = None) -> str:
        kind = type_of(self._like)
        return add_input(input_name or generate_name("input"), kind)


class LabelEncoder(Block):
    """ai.onnx.ml LabelEncoder: maps keys to values."""

    def __init__(
        self,
        default_float: float = 0.0,
        default_int64: int = -1,
        default_string: str = "_Unused",
        keys_floats: Sequence[float] | None = None,
        keys_int64s: Sequence[int] | None = None,
        keys_strings: Sequence[str] | None = None,
        values_floats: Sequence[float] | None = None,
        values_int64s: Sequence[int] | None = None,
        values_strings: Sequence[str] | None = None,
    ) -> None:
        super().__init__()
        self._attributes: dict[str, Any] = {
            "default_float": default_float, "default_int64": default_int64, "default_string": default_string,
            "keys_floats": keys_floats, "keys_int64s": keys_int64s, "keys_strings": keys_strings,
            "values_floats": values_floats, "values_int64s": values_int64s, "values_strings": values_strings,
        }

    def build(self, x: str) -> str:
        return add_node("LabelEncoder", [x], domain="ai.onnx.ml", version=2, **self._attributes)[0]


class Cast(Block):
    """x as another element type (an onnx.TensorProto.DataType)."""

    def __init__(self, to: int) -> None:
        super().__init__()
        self._to = to

    def build(self, x: str) -> str:
        return add_node("Cast", [x], to=int(self._to))[0]


class Linear(Block):
    """alpha * x @ weight + beta * bias with weight [in_features, out_features] drawn from NumPy's normal distribution."""

    def __init__(self, in_features: int, out_features: int, bias: bool = True, alpha: float = 1.0, beta: float = 1.0) -> None:
        super().__init__()
        self._features = in_features, out_features
        self._bias = bias
        self._scales: dict[str, Any] = {"alpha": float(alpha), "beta": float(beta)}

    def build(self, x: str) -> str:
        weight = add_initializer(np.random.randn(*self._features).astype(np.float32), "linear.weight")
        bias = [add_initializer(np.random.randn(self._features[1]).astype(np.float32), "linear.bias")] if self._bias else []
        return add_node("Gemm", [x, weight, *bias], **self._scales)[0]
