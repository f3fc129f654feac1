"""Matrix multiplication and convolution of 8-bit integers, and training through dynamically quantized activations.

The integer operators are computed in float64, in which sums of products of bytes are exact."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ortrain.dtypes import NUMBERS
from ortrain.ir import Node, Shape, TensorType
from ortrain.ops.conv import conv_windows
from ortrain.ops.linear import matmul_shape
from ortrain.ops.quantization import broadcast_along_axis
from ortrain.ops.registry.node_builder import GradientBuilder, NodeBuilder
from ortrain.ops.registry.record import MICROSOFT, ORTRAIN, InferenceContext, operator
from ortrain.ops.shared.windows import explicit

FLOAT_OPERATORS = {"MatMulInteger": "MatMul", "ConvInteger": "Conv"}
"""Integer operator -> the operator that computes it in floating point."""


def subtract_zero_point(g: NodeBuilder, value: str, zero: str, dtype: str, axis: int) -> str:
    """Return a quantized value minus its zero point, as `dtype`.

    zero: a scalar, a vector along `axis`, or "" for none."""
    y = g.op("Cast", value, to=NUMBERS[dtype])
    if not zero:
        return y
    point = g.op("Cast", zero, to=NUMBERS[dtype])
    return g.op("Sub", y, broadcast_along_axis(g, point, g.rank(value), axis))


def exact_product(g: NodeBuilder, op_type: str, a: str, b: str, a_zero: str, b_zero: str) -> str:
    """Return MatMul or Conv of two quantized values minus their zero points ("" for none), as float64.

    float64 is exact for sums of up to 2 ** 37 products of bytes."""
    rows, columns = (-2, -1) if op_type == "MatMul" else (1, 0)
    attributes = {name: value for name, value in g.node.attributes.items() if op_type == "Conv"}
    product = g.op(op_type, subtract_zero_point(g, a, a_zero, "float64", rows), subtract_zero_point(g, b, b_zero, "float64", columns), **attributes)
    # Winograd convolution is off from the integer by about 1e-10
    return g.op("Round", product) if op_type == "Conv" else product


def integer_product_decomposition(op_type: str) -> Callable[[NodeBuilder], list[str]]:
    """Return the decomposition of MatMulInteger or ConvInteger, whose inputs are (a, b, zero of a, zero of b)."""

    def decomposition(g: NodeBuilder) -> list[str]:
        return [g.op("Cast", exact_product(g, op_type, g.inputs[0], g.inputs[1], g.optional(2), g.optional(3)), to=NUMBERS["int32"])]

    return decomposition


def requantize(g: NodeBuilder, product: str, ratio: str, zero: str, stored: str) -> str:
    """Return round(product ratio) + zero, clipped to the range of the dtype `stored` and cast to it."""
    limits = np.iinfo(stored)
    value = g.op("Add", g.op("Round", g.op("Mul", product, ratio)), g.op("Cast", zero, to=NUMBERS["float64"]))
    cut = g.op("Min", g.op("Max", value, g.scalar(float(limits.min), value)), g.scalar(float(limits.max), value))
    return g.op("Cast", cut, to=NUMBERS[stored])


def quantized_product_decomposition(op_type: str) -> Callable[[NodeBuilder], list[str]]:
    """Return the decomposition of QLinearMatMul or QLinearConv, whose inputs are a, b and y with scale and zero point each (y without a value), and bias."""

    def decomposition(g: NodeBuilder) -> list[str]:
        a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero = g.inputs[:8]
        product = exact_product(g, op_type, a, b, a_zero, b_zero)
        rank = g.rank(product)
        if g.has(8):
            product = g.op("Add", product, broadcast_along_axis(g, g.op("Cast", g.inputs[8], to=NUMBERS["float64"]), rank, 1))
        # in the dtype of the scales, like onnx's reference implementation, so that it is rounded equally
        b_scale = broadcast_along_axis(g, b_scale, rank, -1 if op_type == "MatMul" else 1)
        ratio = g.op("Div", g.op("Mul", broadcast_along_axis(g, a_scale, rank, -2), b_scale), y_scale)
        return [requantize(g, product, g.op("Cast", ratio, to=NUMBERS["float64"]), y_zero, g.type(y_zero).dtype)]

    return decomposition


def infer_matmul_shape(c: InferenceContext, a: int, b: int) -> Shape:
    return matmul_shape(c, c.shape(a), c.shape(b))


def infer_conv_shape(c: InferenceContext, x: int, w: int) -> Shape:
    return (c.shape(x)[0], c.shape(w)[0], *conv_windows(c, x, w).output)


@operator("MatMulInteger", decompose=integer_product_decomposition("MatMul"), differentiable=False)
def matmul_integer(c: InferenceContext) -> list[TensorType]:
    """y = (a - zero of a) @ (b - zero of b), in int32"""
    return [TensorType("int32", infer_matmul_shape(c, 0, 1))]


@operator("ConvInteger", decompose=integer_product_decomposition("Conv"), differentiable=False)
def conv_integer(c: InferenceContext) -> list[TensorType]:
    """y = conv(x - zero of x, w - zero of w), in int32"""
    return [TensorType("int32", infer_conv_shape(c, 0, 1))]


@operator("QLinearMatMul", decompose=quantized_product_decomposition("MatMul"), differentiable=False)
def quantized_matmul(c: InferenceContext) -> list[TensorType]:
    """y = quantize(dequantize(a) @ dequantize(b))"""
    return [TensorType(c.dtype(7), infer_matmul_shape(c, 0, 3))]


@operator("QLinearConv", decompose=quantized_product_decomposition("Conv"), differentiable=False)
def quantized_conv(c: InferenceContext) -> list[TensorType]:
    """y = quantize(conv(dequantize(x), dequantize(w)) + dequantize(bias))"""
    return [TensorType(c.dtype(7), infer_conv_shape(c, 0, 3))]


# ---- dynamic quantization


def dynamic_quantize_decomposition(g: NodeBuilder) -> list[str]:
    """Return (y, scale, zero point): scale = (max(x, 0) - min(x, 0)) / 255, or 1 where that is 0."""
    x, axes = g.inputs[0], list(range(g.rank(g.inputs[0])))
    zero, steps = g.scalar(0.0, x), g.scalar(255.0, x)
    low = g.op("Min", g.reduce("ReduceMin", x, axes, keepdims=False), zero)
    high = g.op("Max", g.reduce("ReduceMax", x, axes, keepdims=False), zero)
    span = g.op("Div", g.op("Sub", high, low), steps)
    scale = g.op("Where", g.op("Equal", span, zero), g.scalar(1.0, x), span)
    point = g.op("Cast", g.op("Round", g.op("Div", g.op("Sub", zero, low), scale)), to=NUMBERS["uint8"])
    return [g.op("QuantizeLinear", x, scale, point), scale, point]


@operator("DynamicQuantizeLinear", decompose=dynamic_quantize_decomposition, differentiable=False)
def dynamic_quantize_linear(c: InferenceContext) -> list[TensorType]:
    """(y, scale, zero point): x quantized to uint8 with the scale and zero point that cover the range of x and 0"""
    return [TensorType("uint8", c.shape(0)), TensorType(c.dtype(0), ()), TensorType("uint8", ())]


def fuse_dynamic_products(nodes: Sequence[Node]) -> list[Node]:
    """Return the nodes with each Cast(MatMulInteger or ConvInteger(DynamicQuantizeLinear(x), …)) to float32 replaced by a DynamicProduct.

    The integer operators have no gradient, DynamicProduct has one."""
    producers = {name: node for node in nodes for name in node.outputs}
    return [_as_dynamic_product(node, producers) if node.op_type == "Cast" and not node.domain else node for node in nodes]


def _as_dynamic_product(node: Node, producers: dict[str, Node]) -> Node:
    product = producers.get(node.inputs[0])
    if product is None or product.op_type not in FLOAT_OPERATORS or product.domain or node.attributes.get("to") != NUMBERS["float32"]:
        return node
    a, b, *zeros = [*product.inputs, "", ""][:4]
    sources = [_quantization_source(producers.get(name), name, zero) for name, zero in ((a, zeros[0]), (b, zeros[1]))]
    if not any(sources):
        return node
    floats = [name for source in sources for name in (source if source else ("", ""))]
    attributes = {**product.attributes, "product": FLOAT_OPERATORS[product.op_type]}
    return Node("DynamicProduct", [*floats, a, b, *zeros], node.outputs, node.name, ORTRAIN, attributes)


def _quantization_source(node: Node | None, value: str, zero: str) -> tuple[str, str] | None:
    """Return the input and the scale of a DynamicQuantizeLinear, if `node` is one and its outputs are this value and zero point."""
    if node is None or node.op_type != "DynamicQuantizeLinear" or node.outputs[0] != value or [*node.outputs, "", ""][2] != zero:
        return None
    return node.inputs[0], node.outputs[1]


def dynamic_product_decomposition(g: NodeBuilder) -> list[str]:
    a, b, a_zero, b_zero = [*g.inputs, "", ""][4:8]
    dtype = g.type(g.inputs[0] or g.inputs[2]).dtype
    return [g.op("Cast", exact_product(g, g.attribute("product"), a, b, a_zero, b_zero), to=NUMBERS[dtype])]


def dynamic_product_gradient(g: GradientBuilder) -> Sequence[str | None]:
    """Return the straight-through gradients of a and b, as in FakeQuantize: rounding counts as the identity, and the product is of a / scale and b / scale.

    The scales get no gradient."""
    a, b, a_zero, b_zero = [*g.inputs, "", ""][4:8]
    rows, columns = (-2, -1) if g.attribute("product") == "MatMul" else (1, 0)
    dtype = g.type(g.dy).dtype
    left, right = subtract_zero_point(g, a, a_zero, dtype, rows), subtract_zero_point(g, b, b_zero, dtype, columns)
    if g.attribute("product") == "MatMul":
        gradients = [g.op("FusedMatMul", g.dy, right, domain=MICROSOFT, transB=1) if g.needs(0) else "",
                     g.op("FusedMatMul", left, g.dy, domain=MICROSOFT, transA=1) if g.needs(2) else ""]
    else:
        conv_attributes = {name: value for name, value in g.node.attributes.items() if name != "product"}
        attributes: dict[str, Any] = explicit(conv_attributes, conv_windows(g.context(), 4, 5))
        gradients = g.ops("ConvGrad", g.dy, left, right, outputs=[g.needs(0), g.needs(2), False], domain=MICROSOFT, **attributes)
    da, db = (g.op("Div", name, g.inputs[scale]) if name else None for name, scale in zip(gradients, (1, 3), strict=False))
    return [da, None, db, *[None] * (len(g.inputs) - 3)]


@operator("DynamicProduct", domain=ORTRAIN, decompose=dynamic_product_decomposition, gradient=dynamic_product_gradient, stop_gradient=(1, 3, 4, 5, 6, 7))
def dynamic_product(c: InferenceContext) -> list[TensorType]:
    """y = MatMul or Conv of (a - zero of a, b - zero of b), of (float a, scale of a, float b, scale of b, a, b, zero of a, zero of b)"""
    product = c.attribute("product")
    return [TensorType(c.dtype(0 if c.has(0) else 2), infer_matmul_shape(c, 4, 5) if product == "MatMul" else infer_conv_shape(c, 4, 5))]
