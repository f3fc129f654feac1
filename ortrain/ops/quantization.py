"""Values that are stored as small integers."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ortrain.dtypes import NAMES, NUMBERS
from ortrain.ir import Node, TensorType
from ortrain.ops.registry.node_builder import GradientBuilder, NodeBuilder
from ortrain.ops.registry.onnx_definitions import evaluate
from ortrain.ops.registry.onnx_definitions import lower as lower_by_definition
from ortrain.ops.registry.record import ORTRAIN, InferenceContext, operator

STORED = ("int8", "uint8", "int32")
"""The types that have kernels; others are ONNX's reference implementation's."""


def along(g: NodeBuilder, vector: str, rank: int, axis: int) -> str:
    """A scalar as it is, a vector laid along an axis of a value of that rank."""
    if g.rank(vector) != 1 or g.shape(vector) == (1,):
        return vector
    return g.op("Reshape", vector, g.constant([-1 if i == axis % rank else 1 for i in range(rank)]))


def spreading(g: NodeBuilder) -> Callable[[str], str] | None:
    """How scale and zero point are laid along their axis; None for blocks of scales, which the reference implementation takes apart."""
    x, scale = g.inputs[:2]
    if g.attribute("block_size", 0) or g.rank(scale) > 1 or g.type(scale).dtype not in ("float32", "float64"):
        return None
    return lambda vector: along(g, vector, g.rank(x), int(g.attribute("axis", 1)))


def dequantize_decomposition(g: NodeBuilder) -> list[str] | None:
    """(x - zero point) scale"""
    spread, dtype = spreading(g), g.type(g.inputs[1]).dtype
    if spread is None or g.type(g.inputs[0]).dtype not in STORED:
        return None
    value = g.op("Cast", g.inputs[0], to=NUMBERS[dtype])
    if g.has(2):
        value = g.op("Sub", value, spread(g.op("Cast", g.inputs[2], to=NUMBERS[dtype])))
    return [g.op("Mul", value, spread(g.inputs[1]))]


@operator("DequantizeLinear", lower=lower_by_definition, decompose=dequantize_decomposition, evaluate=evaluate, stop_gradient=(0, 2))
def dequantize_linear(c: InferenceContext) -> list[TensorType]:
    """y = (x - zero point) scale"""
    dtype = NAMES.get(int(c.attribute("output_dtype", 0)), c.dtype(1))
    return [TensorType(dtype, c.type(0).shape)]


def quantized_type(c: InferenceContext) -> str:
    """The zero point's type, or the one asked for, or uint8."""
    return c.dtype(2) if c.has(2) else NAMES.get(int(c.attribute("output_dtype", 0)), "uint8")


def quantize_decomposition(g: NodeBuilder) -> list[str] | None:
    """x / scale, rounded to even, plus the zero point, cut to the range of its type."""
    spread, x = spreading(g), g.inputs[0]
    dtype, stored = g.type(x).dtype, quantized_type(g.context())
    if spread is None or stored not in ("int8", "uint8") or dtype != g.type(g.inputs[1]).dtype:
        return None
    value = g.op("Round", g.op("Div", x, spread(g.inputs[1])))
    if g.has(2):
        value = g.op("Add", value, spread(g.op("Cast", g.inputs[2], to=NUMBERS[dtype])))
    limits = np.iinfo(stored)
    low, high = g.scalar(float(limits.min), value), g.scalar(float(limits.max), value)
    return [g.op("Cast", g.op("Min", g.op("Max", value, low), high), to=NUMBERS[stored])]


@operator("QuantizeLinear", lower=lower_by_definition, decompose=quantize_decomposition, evaluate=evaluate, differentiable=False)
def quantize_linear(c: InferenceContext) -> list[TensorType]:
    """y = x / scale, rounded, plus the zero point, cut to the range of its type"""
    return [TensorType(quantized_type(c), c.type(0).shape)]


# ---- both together: training goes straight through the rounding


def paired(nodes: Sequence[Node]) -> list[Node]:
    """The nodes, with every DequantizeLinear of a QuantizeLinear of the same scale and zero point as one FakeQuantize of what was quantized."""
    producers = {name: node for node in nodes for name in node.outputs}
    return [_fake(node, producers.get(node.inputs[0])) if node.op_type == "DequantizeLinear" and not node.domain else node for node in nodes]


def _fake(node: Node, source: Node | None) -> Node:
    """The FakeQuantize in the place of a DequantizeLinear, if `source` is the QuantizeLinear that belongs to it."""
    same = source is not None and source.op_type == "QuantizeLinear" and not source.domain and source.inputs[1:] == node.inputs[1:]
    if source is None or not same or source.attributes != node.attributes or "block_size" in node.attributes or "output_dtype" in node.attributes:
        return node
    return Node("FakeQuantize", list(source.inputs), node.outputs, node.name, ORTRAIN, dict(node.attributes))


def fake_decomposition(g: NodeBuilder) -> list[str]:
    attributes = dict(g.node.attributes)
    return [g.op("DequantizeLinear", g.op("QuantizeLinear", *g.inputs, **attributes), *g.inputs[1:], **attributes)]


def straight_through(g: GradientBuilder) -> Sequence[str | None]:
    """Rounding counts as no change (Bengio, Léonard and Courville, arXiv 1308.3432), cutting off as a constant; the scale's gradient follows from both
    (Esser et al., arXiv 1902.08153)."""
    spread, x, dy = spreading(g), g.inputs[0], g.dy
    stored = g.type(g.inputs[2]).dtype if g.has(2) else "uint8"
    if spread is None or stored not in ("int8", "uint8"):
        raise g.error(f"expected int8 or uint8 and no blocks where a gradient is taken, got {stored}")
    scale = spread(g.inputs[1])
    ratio = g.op("Div", x, scale)
    rounded = g.op("Round", ratio)
    if g.has(2):
        rounded = g.op("Add", rounded, spread(g.op("Cast", g.inputs[2], to=NUMBERS[g.type(x).dtype])))
    limits = np.iinfo(stored)
    inside = g.op("Not", g.op("Or", g.op("Less", rounded, g.scalar(float(limits.min), x)), g.op("Greater", rounded, g.scalar(float(limits.max), x))))
    zero = g.scalar(0.0, x)
    dx = g.op("Where", inside, dy, zero)
    dscale = None
    if g.needs(1):
        # y / scale is what is stored, without the zero point
        slope = g.op("Sub", g.op("Div", g.outputs[0], scale), g.op("Where", inside, ratio, zero))
        whole = g.op("Mul", dy, slope)
        rank, axis = g.rank(x), int(g.attribute("axis", 1)) % max(1, g.rank(x))
        one = g.rank(g.inputs[1]) == 0 or g.shape(g.inputs[1]) == (1,)
        dscale = whole if one else g.reduce_sum(whole, [i for i in range(rank) if i != axis], keepdims=False)
    return [dx, dscale, None][: len(g.inputs)]


@operator("FakeQuantize", domain=ORTRAIN, gradient=straight_through, decompose=fake_decomposition, stop_gradient=(2,))
def fake_quantize(c: InferenceContext) -> list[TensorType]:
    """y = x as QuantizeLinear and DequantizeLinear leave it"""
    return [c.type(0)]
