"""Products of small integers: exact, by way of float64, whose sums of them are exact; and training through activations that are quantized as they come."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ortrain.dtypes import NUMBERS
from ortrain.ir import Node, Shape, TensorType
from ortrain.ops.conv import conv_windows
from ortrain.ops.linear import product_shape
from ortrain.ops.quantization import along
from ortrain.ops.registry.node_builder import GradientBuilder, NodeBuilder
from ortrain.ops.registry.record import MICROSOFT, ORTRAIN, InferenceContext, operator
from ortrain.ops.shared.windows import explicit

PRODUCTS = {"MatMulInteger": "MatMul", "ConvInteger": "Conv"}
"""An integer product -> the float one."""


def shifted(g: NodeBuilder, value: str, zero: str, dtype: str, axis: int) -> str:
    """A stored value without its zero point, which belongs to the whole or to the positions along `axis`."""
    y = g.op("Cast", value, to=NUMBERS[dtype])
    if not zero:
        return y
    point = g.op("Cast", zero, to=NUMBERS[dtype])
    return g.op("Sub", y, along(g, point, g.rank(value), axis))


def exact(g: NodeBuilder, op_type: str, a: str, b: str, a_zero: str, b_zero: str) -> str:
    """The product of two stored values, in float64: sums of up to 2 ** 37 products of bytes are exact there."""
    rows, columns = (-2, -1) if op_type == "MatMul" else (1, 0)
    attributes = {name: value for name, value in g.node.attributes.items() if op_type == "Conv"}
    product = g.op(op_type, shifted(g, a, a_zero, "float64", rows), shifted(g, b, b_zero, "float64", columns), **attributes)
    # Winograd's method comes some 1e-10 away from the integer
    return g.op("Round", product) if op_type == "Conv" else product


def as_integers(op_type: str) -> Callable[[NodeBuilder], list[str]]:
    def steps(g: NodeBuilder) -> list[str]:
        return [g.op("Cast", exact(g, op_type, g.inputs[0], g.inputs[1], g.optional(2), g.optional(3)), to=NUMBERS["int32"])]

    return steps


def quantized_again(g: NodeBuilder, product: str, ratio: str, zero: str, stored: str) -> str:
    """round(product times ratio) plus the zero point, cut to the range of its type."""
    limits = np.iinfo(stored)
    value = g.op("Add", g.op("Round", g.op("Mul", product, ratio)), g.op("Cast", zero, to=NUMBERS["float64"]))
    cut = g.op("Min", g.op("Max", value, g.scalar(float(limits.min), value)), g.scalar(float(limits.max), value))
    return g.op("Cast", cut, to=NUMBERS[stored])


def requantized(op_type: str) -> Callable[[NodeBuilder], list[str]]:
    """QLinearMatMul and QLinearConv: (a, scale, zero, b, scale, zero, scale of y, zero of y, bias)."""

    def steps(g: NodeBuilder) -> list[str]:
        a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero = g.inputs[:8]
        product = exact(g, op_type, a, b, a_zero, b_zero)
        rank = g.rank(product)
        if g.has(8):
            product = g.op("Add", product, along(g, g.op("Cast", g.inputs[8], to=NUMBERS["float64"]), rank, 1))
        # the ratio is rounded as the scales are: in their own type
        ratio = g.op("Div", g.op("Mul", along(g, a_scale, rank, -2), along(g, b_scale, rank, -1 if op_type == "MatMul" else 1)), y_scale)
        return [quantized_again(g, product, g.op("Cast", ratio, to=NUMBERS["float64"]), y_zero, g.type(y_zero).dtype)]

    return steps


def matmul_shape(c: InferenceContext, a: int, b: int) -> Shape:
    return product_shape(c, c.shape(a), c.shape(b))


def conv_shape(c: InferenceContext, x: int, w: int) -> Shape:
    return (c.shape(x)[0], c.shape(w)[0], *conv_windows(c, x, w).output)


@operator("MatMulInteger", decompose=as_integers("MatMul"), differentiable=False)
def matmul_integer(c: InferenceContext) -> list[TensorType]:
    """y = (a - zero of a) (b - zero of b), in int32"""
    return [TensorType("int32", matmul_shape(c, 0, 1))]


@operator("ConvInteger", decompose=as_integers("Conv"), differentiable=False)
def conv_integer(c: InferenceContext) -> list[TensorType]:
    """y = the convolution of x - zero of x with w - zero of w, in int32"""
    return [TensorType("int32", conv_shape(c, 0, 1))]


@operator("QLinearMatMul", decompose=requantized("MatMul"), differentiable=False)
def quantized_matmul(c: InferenceContext) -> list[TensorType]:
    """y = the product of what a and b stand for, quantized"""
    return [TensorType(c.dtype(7), matmul_shape(c, 0, 3))]


@operator("QLinearConv", decompose=requantized("Conv"), differentiable=False)
def quantized_conv(c: InferenceContext) -> list[TensorType]:
    """y = the convolution of what x and w stand for, plus bias, quantized"""
    return [TensorType(c.dtype(7), conv_shape(c, 0, 3))]


# ---- quantized as they come


def dynamically_quantized(g: NodeBuilder) -> list[str]:
    x, axes = g.inputs[0], list(range(g.rank(g.inputs[0])))
    zero, steps = g.scalar(0.0, x), g.scalar(255.0, x)
    low = g.op("Min", g.reduce("ReduceMin", x, axes, keepdims=False), zero)
    high = g.op("Max", g.reduce("ReduceMax", x, axes, keepdims=False), zero)
    span = g.op("Div", g.op("Sub", high, low), steps)
    scale = g.op("Where", g.op("Equal", span, zero), g.scalar(1.0, x), span)
    point = g.op("Cast", g.op("Round", g.op("Div", g.op("Sub", zero, low), scale)), to=NUMBERS["uint8"])
    return [g.op("QuantizeLinear", x, scale, point), scale, point]


@operator("DynamicQuantizeLinear", decompose=dynamically_quantized, differentiable=False)
def dynamic_quantize_linear(c: InferenceContext) -> list[TensorType]:
    """x in bytes, with the scale and zero point that its least and greatest element ask for"""
    return [TensorType("uint8", c.shape(0)), TensorType(c.dtype(0), ()), TensorType("uint8", ())]


def through_products(nodes: Sequence[Node]) -> list[Node]:
    """The nodes, with every Cast to float of a MatMulInteger or ConvInteger of what was quantized as it came as one DynamicProduct, which has a gradient."""
    producers = {name: node for node in nodes for name in node.outputs}
    return [_dynamic(node, producers) if node.op_type == "Cast" and not node.domain else node for node in nodes]


def _dynamic(node: Node, producers: dict[str, Node]) -> Node:
    product = producers.get(node.inputs[0])
    if product is None or product.op_type not in PRODUCTS or product.domain or node.attributes.get("to") != NUMBERS["float32"]:
        return node
    a, b, *zeros = [*product.inputs, "", ""][:4]
    sources = [_source(producers.get(name), name, zero) for name, zero in ((a, zeros[0]), (b, zeros[1]))]
    if not any(sources):
        return node
    floats = [name for source in sources for name in (source if source else ("", ""))]
    return Node("DynamicProduct", [*floats, a, b, *zeros], node.outputs, node.name, ORTRAIN, {**product.attributes, "product": PRODUCTS[product.op_type]})


def _source(node: Node | None, value: str, zero: str) -> tuple[str, str] | None:
    """What a DynamicQuantizeLinear quantized and its scale, if it made a value and its zero point."""
    if node is None or node.op_type != "DynamicQuantizeLinear" or node.outputs[0] != value or [*node.outputs, "", ""][2] != zero:
        return None
    return node.inputs[0], node.outputs[1]


def dynamic_decomposition(g: NodeBuilder) -> list[str]:
    a, b, a_zero, b_zero = [*g.inputs, "", ""][4:8]
    dtype = g.type(g.inputs[0] or g.inputs[2]).dtype
    return [g.op("Cast", exact(g, g.attribute("product"), a, b, a_zero, b_zero), to=NUMBERS[dtype])]


def dynamic_gradient(g: GradientBuilder) -> Sequence[str | None]:
    """Rounding counts as no change, as in FakeQuantize: what was multiplied is a over its scale, and b over its own; scales get nothing this way."""
    a, b, a_zero, b_zero = [*g.inputs, "", ""][4:8]
    rows, columns = (-2, -1) if g.attribute("product") == "MatMul" else (1, 0)
    dtype = g.type(g.dy).dtype
    left, right = shifted(g, a, a_zero, dtype, rows), shifted(g, b, b_zero, dtype, columns)
    if g.attribute("product") == "MatMul":
        found = [g.op("FusedMatMul", g.dy, right, domain=MICROSOFT, transB=1) if g.needs(0) else "",
                 g.op("FusedMatMul", left, g.dy, domain=MICROSOFT, transA=1) if g.needs(2) else ""]
    else:
        own = {name: value for name, value in g.node.attributes.items() if name != "product"}
        attributes: dict[str, Any] = explicit(own, conv_windows(g.context(), 4, 5))
        found = g.ops("ConvGrad", g.dy, left, right, outputs=[g.needs(0), g.needs(2), False], domain=MICROSOFT, **attributes)
    da, db = (g.op("Div", name, g.inputs[scale]) if name else None for name, scale in zip(found, (1, 3), strict=False))
    return [da, None, db, *[None] * (len(g.inputs) - 3)]


@operator("DynamicProduct", domain=ORTRAIN, decompose=dynamic_decomposition, gradient=dynamic_gradient, stop_gradient=(1, 3, 4, 5, 6, 7))
def dynamic_product(c: InferenceContext) -> list[TensorType]:
    """y = (a - zero of a) times (b - zero of b) as a float, of (what a was quantized from, its scale, the same of b, a, b, zero of a, zero of b)"""
    product = c.attribute("product")
    return [TensorType(c.dtype(0 if c.has(0) else 2), matmul_shape(c, 4, 5) if product == "MatMul" else conv_shape(c, 4, 5))]
