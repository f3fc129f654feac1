"""The cost model: floating-point operations of nodes, for profiles and for rematerialization.

An addition, a multiplication, a comparison and a call of a function such as exp count as one operation each. For operators that the model does not
cover, profiles show only bytes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

from ortrain.dtypes import itemsize
from ortrain.ir import TensorType
from ortrain.ops.registry.heads import ORDERS, ROWS_FIRST, by_rows
from ortrain.ops.registry.optimizers import UPDATES

Types = Sequence[TensorType | None]
Cost = Callable[[Mapping[str, Any], Types, Types], int]
"""Function of the attributes, input types and output types (all static; None where absent) that returns the number of operations."""


def sizes(types: Types, index: int) -> tuple[int, ...]:
    """Return the shape of input or output `index`, which must be present."""
    kind = types[index]
    assert kind is not None
    return kind.sizes


def matmul(attributes: Mapping[str, Any], inputs: Types, outputs: Types) -> int:
    """Count y = op(a) op(b): a multiplication and an addition for each element of y and each summand."""
    a = sizes(inputs, 0)
    depth = a[-2] if len(a) > 1 and attributes.get("transA", 0) else a[-1]
    return 2 * prod(sizes(outputs, 0)) * depth


def strided_matmul(attributes: Mapping[str, Any], inputs: Types, outputs: Types) -> int:
    """Count y = view(a) view(b), where a_axes and a_lengths say what is read of a."""
    axis = attributes["a_axes"][-1]
    length = 1 if axis < 0 else attributes["a_lengths"][axis]
    return 2 * prod(sizes(outputs, 0)) * (length if length >= 0 else sizes(inputs, 0)[axis])


def convolution(attributes: Mapping[str, Any], inputs: Types, outputs: Types) -> int:
    """Count y [n, filters, ...] = convolution of x with w [filters, channels per group, ...]."""
    return 2 * prod(sizes(outputs, 0)) * prod(sizes(inputs, 1)[1:])


def transposed_convolution(attributes: Mapping[str, Any], inputs: Types, outputs: Types) -> int:
    """Count a transposed convolution of x, which costs as much as the convolution that has x as its output."""
    return 2 * prod(sizes(inputs, 0)) * prod(sizes(inputs, 1)[1:])


def convolution_gradient(attributes: Mapping[str, Any], inputs: Types, outputs: Types) -> int:
    """Count dx and dw of (dy, x, w), each of which costs as much as the forward convolution."""
    gradients = sum(kind is not None for kind in outputs[:2])
    return gradients * 2 * prod(sizes(inputs, 0)) * prod(sizes(inputs, 2)[1:])


def recurrence(times: int) -> Cost:
    """Count the matrix multiplications of x [steps, rows, inputs] by W and of the hidden states by R, multiplied by `times`."""

    def cost(attributes: Mapping[str, Any], inputs: Types, outputs: Types) -> int:
        steps, rows, width = sizes(inputs, 0)
        directions, gates, _ = sizes(inputs, 1)
        return times * 2 * steps * rows * directions * gates * (width + sizes(inputs, 2)[-1])

    return cost


def attention(first: int, matmuls: int) -> Cost:
    """Count `matmuls` matrix multiplications of the size of q k' and as many of the size of p v.

    q [n, rows, heads, size] is input `first`, v [n, keys, heads, width] the second input after it, each possibly with heads before rows."""

    def cost(attributes: Mapping[str, Any], inputs: Types, outputs: Types) -> int:
        n, rows, heads, size = sizes(inputs, first)
        _, keys, _, width = by_rows(sizes(inputs, first + 2), attributes.get(ORDERS, ROWS_FIRST)[2])
        return matmuls * n * heads * rows * int(keys) * (size + int(width))

    return cost


def packed_attention(qkv: int, matmuls: int) -> Cost:
    """Count as attention() does, with q, k and v in input `qkv` [n, rows, 3, heads, size]."""

    def cost(attributes: Mapping[str, Any], inputs: Types, outputs: Types) -> int:
        n, rows, _, heads, size = sizes(inputs, qkv)
        return matmuls * n * heads * (int(attributes.get("query_rows", 0)) or rows) * rows * 2 * size

    return cost


def per_element(count: int, of: int = 0) -> Cost:
    """Count `count` operations per element of output `of`, or of an input for a negative `of`: -1 is input 0, -2 input 1, ..."""

    def cost(attributes: Mapping[str, Any], inputs: Types, outputs: Types) -> int:
        return count * prod(sizes(outputs, of) if of >= 0 else sizes(inputs, -1 - of))

    return cost


def ctc_loss(attributes: Mapping[str, Any], inputs: Types, outputs: Types) -> int:
    """Count 8 operations per frame and state of each sequence, forwards and, where the gradient is wanted, backwards; a label has two states."""
    shape, (n, labels) = sizes(inputs, 0), sizes(inputs, 1)
    frames = shape[1] if attributes.get("batch_first", 0) else shape[0]
    return (16 if len(outputs) > 1 and outputs[1] is not None else 8) * frames * n * (2 * labels + 1)


def gemm_update(attributes: Mapping[str, Any], inputs: Types, outputs: Types) -> int:
    """Count a matrix multiplication whose result, a weight gradient, updates the weight without being stored."""
    return matmul(attributes, inputs, [inputs[2]]) + UPDATES[attributes["update"]].operations * prod(sizes(inputs, 2))


def linear_cross_entropy(attributes: Mapping[str, Any], inputs: Types, outputs: Types) -> int:
    """Count the product of x and w and as many as there are gradients of the two, and 6 operations per score."""
    rows, weights = prod(sizes(inputs, 0)[:-1]), sizes(inputs, 1)
    gradients = sum(kind is not None for kind in outputs[1:3])
    return rows * (2 * (1 + gradients) * prod(weights) + 6 * weights[0 if attributes.get("transB", 0) else 1])


FIRST_INPUT = -1
"""Input 0 as the `of` of per_element."""
KERNEL_COSTS = {"squared_norm": 2, "scale_in_place": 1, "clip_in_place": 2, "gradient_noise": 40, "moving_average": 3,
                **{algorithm.kernel: algorithm.operations for algorithm in UPDATES.values()}}
"""Kernel that runs over flat segments -> operations per element."""

COSTS: dict[str, Cost] = {
    "MatMul": matmul, "Gemm": matmul, "FusedMatMul": matmul, "Dense": matmul, "DequantizedDense": matmul, "StridedMatMul": strided_matmul,
    "Conv": convolution, "ConvTranspose": transposed_convolution, "ConvGrad": convolution_gradient,
    "ChannelsLastConv": convolution, "ChannelsLastConvGrad": convolution_gradient,
    "PlanesConv": convolution, "PlanesConvGrad": convolution_gradient,
    "ConvInputGrad": convolution_gradient, "ChannelsLastConvInputGrad": convolution_gradient,
    "Attention": attention(0, 2), "AttentionGrad": attention(1, 5), "PackedAttention": packed_attention(0, 2), "PackedAttentionGrad": packed_attention(1, 5),
    **{f"{name}Training": recurrence(1) for name in ("LSTM", "GRU")},
    **{name: recurrence(1) for name in ("LSTM", "GRU", "RNN")},
    **{f"{name}Grad": recurrence(2) for name in ("LSTM", "GRU", "RNN")},
    **{name: per_element(1) for name in ("Add", "Sub", "Mul", "Div", "Neg", "Abs", "Relu", "ReluGrad", "Exp", "Log", "Sqrt", "Erf", "Tanh", "Sigmoid",
                                         "Clip", "Max", "Min", "Pow", "Where", "Scale", "Reciprocal", "Sin", "Cos", "ThresholdedRelu")},
    **{name: per_element(2) for name in ("LeakyRelu", "PRelu", "LeakyReluGrad")},
    **{name: per_element(4) for name in ("HardSigmoid", "Elu", "Celu", "Selu", "Softplus", "Softsign")},
    **{name: per_element(1, FIRST_INPUT) for name in ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "GlobalAveragePool", "InPlaceAccumulatorV2")},
    **{name: per_element(algorithm.operations, FIRST_INPUT) for name, algorithm in UPDATES.items()}, "GemmUpdate": gemm_update,
    "TanhGrad": per_element(3), "SigmoidGrad": per_element(3),
    "Gelu": per_element(5), "GeluGrad": per_element(9), "FastGelu": per_element(8), "QuickGelu": per_element(5),
    "Swish": per_element(5), "HardSwish": per_element(5), "Mish": per_element(6), "Softmax": per_element(4),
    "SoftmaxGrad": per_element(4), "SoftmaxGrad_13": per_element(4), "LogSoftmax": per_element(4), "LayerNormalization": per_element(8),
    "LayerNormalizationGrad": per_element(13), "SimplifiedLayerNormalization": per_element(5), "SimplifiedLayerNormalizationGrad": per_element(10),
    "BatchNormalization": per_element(7), "BatchNormInternal": per_element(7),
    "BatchNormalizationGrad": per_element(11, FIRST_INPUT), "ChannelsLastBatchNormalization": per_element(7),
    "ChannelsLastBatchNormalizationRecompute": per_element(2), "ChannelsLastBatchNormalizationGrad": per_element(11, FIRST_INPUT),
    **{f"{layout}GroupNorm": per_element(7, FIRST_INPUT) for layout in ("", "ChannelsLast")},
    **{f"{layout}GroupNormGrad": per_element(11, FIRST_INPUT) for layout in ("", "ChannelsLast")}, "ChannelsLastGroupNormRecompute": per_element(2),
    "SoftmaxCrossEntropyLoss": per_element(4, FIRST_INPUT), "SoftmaxCrossEntropyLossGrad": per_element(3),
    "LinearCrossEntropy": linear_cross_entropy,
    "LossAndGradient": per_element(6, FIRST_INPUT), "SoftmaxFocalLoss": per_element(5, FIRST_INPUT), "SoftmaxFocalLossGrad": per_element(5),
    "CTCLoss": ctc_loss,
}
"""op_type -> cost; an operator has the same cost in every domain."""
MOVING = frozenset({"Cast", "Concat", "ConcatSlices", "ConcatTraining", "Expand", "Gather", "JoinSlices", "Pad", "Slice", "Tile", "Transpose"})
"""Operators that copy data and compute nothing, so that memory traffic alone determines their time."""


def count_operations(op_type: str, attributes: Mapping[str, Any], inputs: Types, outputs: Types) -> int | None:
    """Return the number of floating-point operations of one run of a node, None where the model does not cover the operator."""
    cost = COSTS.get(op_type)
    return None if cost is None else cost(attributes, inputs, outputs)


def has_cost(op_type: str) -> bool:
    """Return whether the model covers an operator, so that operations and memory traffic estimate its time."""
    return op_type in COSTS or op_type in MOVING


def memory_traffic(types: Types) -> int:
    """Return the bytes that a node reads and writes at least: each input and output once."""
    return sum(prod(kind.sizes) * itemsize(kind.dtype) for kind in types if kind is not None and kind.dtype != "string")
