"""What all losses share: targets, reductions, weights of samples, and nodes whose form depends on the opset."""

from __future__ import annotations

import inspect
import math
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from ortrain.errors import InvalidArgumentError, InvalidModelError
from ortrain.onnxblock import blocks
from ortrain.onnxblock.building import add_initializer, add_input, add_node, dtype_of, has_input, type_of
from ortrain.onnxblock.model_accessor import current_model
from ortrain.ops.registry.record import ORTRAIN
from ortrain.packages import onnx

REDUCTIONS = ("mean", "sum", "none")
SAMPLE_WEIGHT = "sample_weight"
"""The graph input with the weights of the samples."""


class Loss(blocks.Block):
    """A loss. Subclasses implement `build(*predictions, target)`, which takes names of values and returns the name of the loss.

    reduction: "mean", "sum" or "none". sample_weight: add a graph input `sample_weight`, float32 [n], with one factor per sample; losses that share a
    model share the input. With it, "mean" is sum(weight · loss) / sum(weight), where the loss of a sample with several elements is their mean, and 0 if
    all weights are 0.

    Raises InvalidArgumentError for an unknown reduction."""

    predictions: ClassVar[tuple[str, ...]] = ("prediction",)
    """What the loss is called with before the targets: outputs of the model."""
    targets: ClassVar[tuple[str, ...]] = ("target",)
    """The names of the inputs that it adds for its targets, unless it is called with others."""
    reductions: ClassVar[tuple[str, ...]] = REDUCTIONS

    def __init__(self, reduction: str = "mean", sample_weight: bool = False) -> None:
        super().__init__()
        if reduction not in self.reductions:
            raise InvalidArgumentError(f"Reduction {reduction} not supported. Expected one of {', '.join(self.reductions)}.")
        self.reduction = reduction
        self.has_sample_weight = bool(sample_weight)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Build the loss; the outermost block then checks the model.

        Raises InvalidArgumentError for too few or too many names, OutputNotFoundError for an unknown one, InvalidModelError when the result is not a
        valid model."""
        try:
            inspect.signature(self.build).bind(*args, **kwargs)
        except TypeError as error:
            raise InvalidArgumentError(f"expected {type(self).__name__} to be called with {' and '.join(self.predictions)}, outputs of the model, then names "
                                       f"of the targets, got {args} ({error}): loss_input_names chooses among several outputs") from error
        return super().__call__(*args, **kwargs)

    def reduce(self, value: str) -> str:
        """Reduce an elementwise loss [n, …] to what the reduction and the sample weights make of it."""
        operator = "ReduceMean" if self.reduction == "mean" else "ReduceSum"
        if not self.has_sample_weight:
            return value if self.reduction == "none" else add_node(operator, [value], keepdims=0)[0]
        weight = sample_weight_input(value)
        rows = add_node("Flatten", [value], axis=1)[0]
        if self.reduction == "none":
            weighted = add_node("Mul", [rows, unsqueeze(weight, [1])])[0]
            return add_node("Reshape", [weighted, add_node("Shape", [value])[0]])[0]
        return self.weighted(reduce_axes(operator, rows, [1]), weight)

    def weighted(self, per_sample: str, weight: str) -> str:
        """Return the weighted sum of losses [n], or their weighted mean. A product of vectors, since it refuses weights of another length."""
        total = add_node("MatMul", [per_sample, weight])[0]
        return total if self.reduction == "sum" else quotient(total, add_node("ReduceSum", [weight], keepdims=0)[0])


# ---- inputs


def target_input(name: str, kind: onnx.TypeProto) -> str:
    """Return the graph input `name`, created with that type unless the model has it already. Raises InvalidModelError for the name of a node's output."""
    if any(name in node.output for node in current_model().graph.node):
        raise InvalidModelError(f"expected the name of an input for the target, got {name!r}, which the model computes: loss_input_names chooses the outputs "
                                "that the loss is called with")
    return name if has_input(name) else add_input(name, kind)


def sample_weight_input(batch: str, axis: int = 0) -> str:
    """Return the weights of the samples in the dtype of `batch`, a value whose axis `axis` is the batch."""
    dims = type_of(batch).tensor_type.shape.dim
    kind = tensor_type(np.dtype(np.float32), list(dims)[axis : axis + 1] or [None])
    name = target_input(SAMPLE_WEIGHT, kind)
    return name if dtype_of(name) == dtype_of(batch) else add_node("Cast", [name], to=onnx.helper.np_dtype_to_tensor_dtype(dtype_of(batch)))[0]


def tensor_type(dtype: np.dtype, dims: Sequence[onnx.TensorShapeProto.Dimension | str | int | None] | None) -> onnx.TypeProto:
    """Return the type of a tensor; dims None: of unknown rank."""
    kind = onnx.helper.make_tensor_type_proto(onnx.helper.np_dtype_to_tensor_dtype(dtype), None if dims is None else [None] * len(dims))
    for made, dim in zip(kind.tensor_type.shape.dim, dims or (), strict=True):
        if isinstance(dim, str):
            made.dim_param = dim
        elif isinstance(dim, int):
            made.dim_value = dim
        elif dim is not None:
            made.CopyFrom(dim)
    return kind


def rank_of(name: str) -> int | None:
    """Return the rank of a value, None where it is unknown."""
    kind = type_of(name).tensor_type
    return len(kind.shape.dim) if kind.HasField("shape") else None


def check_number(what: str, value: float, low: float, high: float = math.inf, strict: bool = False) -> float:
    """Return a number. Raises InvalidArgumentError unless it is finite and in [low, high]; strict: greater than low."""
    number = float(value)
    if not (low < number if strict else low <= number) or not number <= high or math.isinf(number):
        raise InvalidArgumentError(f"expected {what} {'greater than' if strict else 'of at least'} {low:g}"
                                   f"{'' if math.isinf(high) else f' and at most {high:g}'}, got {value}")
    return number


# ---- nodes


def opset() -> int:
    """Return the opset of the model being edited."""
    return int(next((o.version for o in current_model().opset_import if o.domain in ("", "ai.onnx")), onnx.defs.onnx_opset_version()))


def scalar(value: float, like: str, token: str = "constant") -> str:
    """Add a scalar constant of the dtype of `like`."""
    return add_initializer(np.array(value, dtype_of(like)), token)


def reduce_axes(operator: str, x: str, axes: Sequence[int], keepdims: bool = False) -> str:
    """Add a reduction over some axes: an input from opset 13 (ReduceSum) or 18 (others) on, an attribute before."""
    if opset() < (13 if operator == "ReduceSum" else 18):
        return add_node(operator, [x], axes=list(axes), keepdims=int(keepdims))[0]
    return add_node(operator, [x, add_initializer(np.array(axes, np.int64), "axes")], keepdims=int(keepdims))[0]


def unsqueeze(x: str, axes: Sequence[int]) -> str:
    """Add axes of size 1: an input from opset 13 on, an attribute before."""
    if opset() < 13:
        return add_node("Unsqueeze", [x], axes=list(axes))[0]
    return add_node("Unsqueeze", [x, add_initializer(np.array(axes, np.int64), "axes")])[0]


def quotient(total: str, divisor: str) -> str:
    """Return total / divisor, and total itself, which is then 0, where the divisor is 0."""
    is_zero = add_node("Equal", [divisor, scalar(0.0, divisor)])[0]
    return add_node("Div", [total, add_node("Where", [is_zero, scalar(1.0, divisor), divisor])[0]])[0]


def own_operator(operator: str, inputs: Sequence[str], kind: onnx.TypeProto, **attributes: Any) -> str:
    """Add an operator of ortrain's own domain with one output of a given type, which onnx cannot infer."""
    given = list(inputs)
    while not given[-1]:
        given.pop()
    output = add_node(operator, given, ["loss"], domain=ORTRAIN, **attributes)[0]
    current_model().graph.value_info.append(onnx.ValueInfoProto(name=output, type=kind))
    return output
