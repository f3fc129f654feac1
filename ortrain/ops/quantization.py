"""Linear quantization: QuantizeLinear, DequantizeLinear, and FakeQuantize for quantization-aware training."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ortrain.dtypes import NAMES, NUMBERS
from ortrain.ir import Node, TensorType
from ortrain.ops.registry.node_builder import GradientBuilder, NodeBuilder
from ortrain.ops.registry.onnx_definitions import evaluate
from ortrain.ops.registry.onnx_definitions import lower as lower_by_definition
from ortrain.ops.registry.record import ORTRAIN, InferenceContext, operator

STORAGE_DTYPES = ("int8", "uint8", "int32")
"""Quantized dtypes with kernels; others are computed by onnx's reference implementation."""


def broadcast_along_axis(g: NodeBuilder, vector: str, rank: int, axis: int) -> str:
    """Return a vector reshaped so that it broadcasts along `axis` of a value of this rank; a scalar or a vector of one element is returned as it is."""
    if g.rank(vector) != 1 or g.shape(vector) == (1,):
        return vector
    return g.op("Reshape", vector, g.constant([-1 if i == axis % rank else 1 for i in range(rank)]))


def parameter_broadcast(g: NodeBuilder) -> Callable[[str], str] | None:
    """Return a function that makes scale or zero point broadcast against x; None for blocked quantization, which has no decomposition."""
    x, scale = g.inputs[:2]
    if g.attribute("block_size", 0) or g.rank(scale) > 1 or g.type(scale).dtype not in ("float32", "float64"):
        return None
    return lambda vector: broadcast_along_axis(g, vector, g.rank(x), int(g.attribute("axis", 1)))


def dequantize_decomposition(g: NodeBuilder) -> list[str] | None:
    """Return (x - zero point) scale in element-wise operators."""
    broadcast, dtype = parameter_broadcast(g), g.type(g.inputs[1]).dtype
    if broadcast is None or g.type(g.inputs[0]).dtype not in STORAGE_DTYPES:
        return None
    value = g.op("Cast", g.inputs[0], to=NUMBERS[dtype])
    if g.has(2):
        value = g.op("Sub", value, broadcast(g.op("Cast", g.inputs[2], to=NUMBERS[dtype])))
    return [g.op("Mul", value, broadcast(g.inputs[1]))]


@operator("DequantizeLinear", lower=lower_by_definition, decompose=dequantize_decomposition, evaluate=evaluate, stop_gradient=(0, 2))
def dequantize_linear(c: InferenceContext) -> list[TensorType]:
    """y = (x - zero point) scale"""
    dtype = NAMES.get(int(c.attribute("output_dtype", 0)), c.dtype(1))
    return [TensorType(dtype, c.type(0).shape)]


def quantized_type(c: InferenceContext) -> str:
    """Return the dtype that a QuantizeLinear quantizes to: that of the zero point, else the attribute output_dtype, else uint8."""
    return c.dtype(2) if c.has(2) else NAMES.get(int(c.attribute("output_dtype", 0)), "uint8")


def quantize_decomposition(g: NodeBuilder) -> list[str] | None:
    """Return round(x / scale) + zero point, halves rounded to even, clipped to the range of the quantized dtype."""
    broadcast, x = parameter_broadcast(g), g.inputs[0]
    dtype, stored = g.type(x).dtype, quantized_type(g.context())
    if broadcast is None or stored not in ("int8", "uint8") or dtype != g.type(g.inputs[1]).dtype:
        return None
    value = g.op("Round", g.op("Div", x, broadcast(g.inputs[1])))
    if g.has(2):
        value = g.op("Add", value, broadcast(g.op("Cast", g.inputs[2], to=NUMBERS[dtype])))
    limits = np.iinfo(stored)
    low, high = g.scalar(float(limits.min), value), g.scalar(float(limits.max), value)
    return [g.op("Cast", g.op("Min", g.op("Max", value, low), high), to=NUMBERS[stored])]


@operator("QuantizeLinear", lower=lower_by_definition, decompose=quantize_decomposition, evaluate=evaluate, differentiable=False)
def quantize_linear(c: InferenceContext) -> list[TensorType]:
    """y = clip(round(x / scale) + zero point) to the range of the quantized dtype"""
    return [TensorType(quantized_type(c), c.type(0).shape)]


# ---- quantization-aware training


def fuse_quantize_pairs(nodes: Sequence[Node]) -> list[Node]:
    """Return the nodes with each DequantizeLinear(QuantizeLinear(x)) of equal scale and zero point replaced by a FakeQuantize of x."""
    producers = {name: node for node in nodes for name in node.outputs}
    return [_as_fake_quantize(node, producers.get(node.inputs[0])) if node.op_type == "DequantizeLinear" and not node.domain else node for node in nodes]


def _as_fake_quantize(node: Node, source: Node | None) -> Node:
    """Return the FakeQuantize that replaces a DequantizeLinear, or the node itself unless `source` is a matching QuantizeLinear."""
    matches = source is not None and source.op_type == "QuantizeLinear" and not source.domain and source.inputs[1:] == node.inputs[1:]
    if source is None or not matches or source.attributes != node.attributes or "block_size" in node.attributes or "output_dtype" in node.attributes:
        return node
    return Node("FakeQuantize", list(source.inputs), node.outputs, node.name, ORTRAIN, dict(node.attributes))


def fake_quantize_decomposition(g: NodeBuilder) -> list[str]:
    attributes = dict(g.node.attributes)
    return [g.op("DequantizeLinear", g.op("QuantizeLinear", *g.inputs, **attributes), *g.inputs[1:], **attributes)]


def fake_quantize_gradient(g: GradientBuilder) -> Sequence[str | None]:
    """Return dx and dscale by the straight-through estimator (Bengio, Léonard and Courville, arXiv 1308.3432).

    Rounding counts as the identity, clipped values as constants. From both follows the gradient of the scale (LSQ, Esser et al., arXiv 1902.08153)."""
    broadcast, x, dy = parameter_broadcast(g), g.inputs[0], g.dy
    stored = g.type(g.inputs[2]).dtype if g.has(2) else "uint8"
    if broadcast is None or stored not in ("int8", "uint8"):
        raise g.error(f"expected int8 or uint8 and no blocks where a gradient is taken, got {stored}")
    scale = broadcast(g.inputs[1])
    ratio = g.op("Div", x, scale)
    rounded = g.op("Round", ratio)
    if g.has(2):
        rounded = g.op("Add", rounded, broadcast(g.op("Cast", g.inputs[2], to=NUMBERS[g.type(x).dtype])))
    limits = np.iinfo(stored)
    in_range = g.op("Not", g.op("Or", g.op("Less", rounded, g.scalar(float(limits.min), x)), g.op("Greater", rounded, g.scalar(float(limits.max), x))))
    zero = g.scalar(0.0, x)
    dx = g.op("Where", in_range, dy, zero)
    dscale = None
    if g.needs(1):
        # dy/dscale is the quantized value without its zero point, y / scale, minus x / scale where nothing was clipped
        slope = g.op("Sub", g.op("Div", g.outputs[0], scale), g.op("Where", in_range, ratio, zero))
        elementwise = g.op("Mul", dy, slope)
        rank, axis = g.rank(x), int(g.attribute("axis", 1)) % max(1, g.rank(x))
        is_scalar = g.rank(g.inputs[1]) == 0 or g.shape(g.inputs[1]) == (1,)
        dscale = elementwise if is_scalar else g.reduce_sum(elementwise, [i for i in range(rank) if i != axis], keepdims=False)
    return [dx, dscale, None][: len(g.inputs)]


@operator("FakeQuantize", domain=ORTRAIN, gradient=fake_quantize_gradient, decompose=fake_quantize_decomposition, stop_gradient=(2,))
def fake_quantize(c: InferenceContext) -> list[TensorType]:
    """y = dequantize(quantize(x)) with one scale and zero point"""
    return [c.type(0)]
