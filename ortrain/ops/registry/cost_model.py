"""The cost model: floating-point operations of nodes, for profiles and for rematerialization.

An addition, a multiplication, a comparison and a call of a function such as exp count one each. Operators that the model does not cover have no
count; profiles then show bytes only."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

from ortrain.dtypes import numpy_dtype
from ortrain.ir import TensorType
from ortrain.ops.registry.optimizers import ADAMW, SGD, UPDATES

Types = Sequence[TensorType | None]
Cost = Callable[[Mapping[str, Any], Types, Types], int]
"""Attributes, types of the inputs, types of the outputs (static; None: absent) -> operations."""


def sizes(types: Types, index: int) -> tuple[int, ...]:
    """Return the shape of a value that is given."""
    kind = types[index]
    assert kind is not None
    return kind.sizes


def product(attributes: Mapping[str, Any], inputs: Types, outputs: Types) -> int:
    """Count two operations for every multiplication of y = op(a) op(b)."""
    a = sizes(inputs, 0)
    depth = a[-2] if len(a) > 1 and attributes.get("transA", 0) else a[-1]
    return 2 * prod(sizes(outputs, 0)) * depth


def convolution(attributes: Mapping[str, Any], inputs: Types, outputs: Types) -> int:
    """Count a convolution: y [n, filters, ...] from windows of w [filters, channels per group, ...]."""
    return 2 * prod(sizes(outputs, 0)) * prod(sizes(inputs, 1)[1:])


def transposed_convolution(attributes: Mapping[str, Any], inputs: Types, outputs: Types) -> int:
    """Count a transposed convolution, which costs as much as the convolution that it transposes."""
    return 2 * prod(sizes(inputs, 0)) * prod(sizes(inputs, 1)[1:])


def convolution_gradient(attributes: Mapping[str, Any], inputs: Types, outputs: Types) -> int:
    """Count (dy, x, w) -> dx and dw, each as much as the forward convolution."""
    wanted = sum(kind is not None for kind in outputs[:2])
    return wanted * 2 * prod(sizes(inputs, 0)) * prod(sizes(inputs, 2)[1:])


def recurrence(times: int) -> Cost:
    """Count the products of x [steps, rows, inputs] with W and of the states with R, multiplied by `times`."""

    def cost(attributes: Mapping[str, Any], inputs: Types, outputs: Types) -> int:
        steps, rows, width = sizes(inputs, 0)
        directions, gates, _ = sizes(inputs, 1)
        return times * 2 * steps * rows * directions * gates * (width + sizes(inputs, 2)[-1])

    return cost


def attention(first: int, products: int) -> Cost:
    """Count `products` products of all rows with all keys; q [n, rows, heads, size] and v [n, keys, heads, width] are inputs from `first` on."""

    def cost(attributes: Mapping[str, Any], inputs: Types, outputs: Types) -> int:
        n, rows, heads, size = sizes(inputs, first)
        keys, width = sizes(inputs, first + 2)[1::2]
        return products * n * heads * rows * keys * (size + width)

    return cost


def per_element(count: int, of: int = 0) -> Cost:
    """Count `count` operations per element of output `of`; negative numbers are inputs counted from the end: -1, -2, ..."""

    def cost(attributes: Mapping[str, Any], inputs: Types, outputs: Types) -> int:
        return count * prod(sizes(outputs, of) if of >= 0 else sizes(inputs, -1 - of))

    return cost


def spent_product(attributes: Mapping[str, Any], inputs: Types, outputs: Types) -> int:
    """Count a product and an update for each of its elements."""
    moments = inputs[6:]
    return product(attributes, inputs, [inputs[2]]) + (ADAMW if any(moments) else SGD).operations * prod(sizes(inputs, 2))


FIRST_INPUT = -1
KERNEL_COSTS = {"squared_norm": 2, "scale_in_place": 1, **{algorithm.kernel: algorithm.operations for algorithm in UPDATES.values()}}
"""Kernel of an optimizer update -> operations per parameter."""

COSTS: dict[str, Cost] = {
    "MatMul": product, "Gemm": product, "FusedMatMul": product, "Dense": product,
    "Conv": convolution, "ConvTranspose": transposed_convolution, "ConvGrad": convolution_gradient,
    "ChannelsLastConv": convolution, "ChannelsLastConvGrad": convolution_gradient,
    "Attention": attention(0, 2), "AttentionGrad": attention(1, 5),
    **{f"{name}Training": recurrence(1) for name in ("LSTM", "GRU")},
    **{name: recurrence(1) for name in ("LSTM", "GRU", "RNN")},
    **{f"{name}Grad": recurrence(2) for name in ("LSTM", "GRU", "RNN")},
    **{name: per_element(1) for name in ("Add", "Sub", "Mul", "Div", "Neg", "Abs", "Relu", "ReluGrad", "Exp", "Log", "Sqrt", "Erf", "Tanh", "Sigmoid",
                                         "Clip", "Max", "Min", "Pow", "Where", "Scale", "Reciprocal", "Sin", "Cos", "ThresholdedRelu")},
    **{name: per_element(2) for name in ("LeakyRelu", "PRelu", "LeakyReluGrad")},
    **{name: per_element(4) for name in ("HardSigmoid", "Elu", "Celu", "Selu", "Softplus", "Softsign")},
    **{name: per_element(1, FIRST_INPUT) for name in ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "GlobalAveragePool", "InPlaceAccumulatorV2")},
    **{name: per_element(algorithm.operations, FIRST_INPUT) for name, algorithm in UPDATES.items()}, "GemmUpdate": spent_product,
    "TanhGrad": per_element(3), "SigmoidGrad": per_element(3),
    "Gelu": per_element(5), "GeluGrad": per_element(9), "FastGelu": per_element(8), "QuickGelu": per_element(5),
    "Swish": per_element(5), "HardSwish": per_element(5), "Mish": per_element(6), "Softmax": per_element(4),
    "SoftmaxGrad": per_element(4), "SoftmaxGrad_13": per_element(4), "LogSoftmax": per_element(4), "LayerNormalization": per_element(8),
    "LayerNormalizationGrad": per_element(13), "BatchNormalization": per_element(7), "BatchNormInternal": per_element(7),
    "BatchNormalizationGrad": per_element(11), "ChannelsLastBatchNormalization": per_element(7), "ChannelsLastBatchNormalizationAgain": per_element(2),
    "ChannelsLastBatchNormalizationGrad": per_element(11),
    "SoftmaxCrossEntropyLoss": per_element(4, FIRST_INPUT), "SoftmaxCrossEntropyLossGrad": per_element(3),
    "LossAndGradient": per_element(6, FIRST_INPUT),
}
"""Operator -> cost, the same in every domain that has the operator."""
MOVING = frozenset({"Cast", "Concat", "ConcatTraining", "Expand", "Gather", "Pad", "Slice", "Tile", "Transpose"})
"""Operators that move numbers and compute nothing: their time is their memory traffic."""


def operations(op_type: str, attributes: Mapping[str, Any], inputs: Types, outputs: Types) -> int | None:
    """Return the floating-point operations of one run of a node, None where the model does not cover the operator."""
    cost = COSTS.get(op_type)
    return None if cost is None else cost(attributes, inputs, outputs)


def is_known(op_type: str) -> bool:
    """Whether operations and memory traffic tell how long a node takes."""
    return op_type in COSTS or op_type in MOVING


def traffic(types: Types) -> int:
    """Return the bytes that a node moves at least: every input and output once."""
    return sum(prod(kind.sizes) * numpy_dtype(kind.dtype).itemsize for kind in types if kind is not None and kind.dtype != "string")
