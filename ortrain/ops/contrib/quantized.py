"""Quantized operators that ONNX Runtime's quantizer and optimizer emit (domain com.microsoft), as decompositions.

QLinear operators have quantized inputs and outputs: they dequantize, compute in float and quantize. The others multiply floats by quantized weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ortrain.dtypes import NUMBERS
from ortrain.ir import Graph, Node, TensorType
from ortrain.ops.contrib.transformer import halves
from ortrain.ops.integer import exact_product, infer_matmul_shape
from ortrain.ops.linear import matmul_shape, transposed_shape
from ortrain.ops.pool import pool_windows
from ortrain.ops.quantization import broadcast_along_axis, quantized_type
from ortrain.ops.recurrent import DIRECTIONS, direction_of
from ortrain.ops.registry.node_builder import NodeBuilder
from ortrain.ops.registry.record import MICROSOFT, ORTRAIN, InferenceContext, broadcast_shapes, operator

Rule = Callable[[NodeBuilder], list[str]]
"""A decomposition that always applies."""


def dequantized(g: NodeBuilder, first: int) -> str:
    """Dequantize the inputs (value, scale, zero point) that start at `first`."""
    return g.op("DequantizeLinear", *(name for name in g.inputs[first : first + 3] if name))


def quantized(g: NodeBuilder, value: str, first: int) -> list[str]:
    """Quantize a value with the scale and zero point that start at input `first`."""
    return [g.op("QuantizeLinear", value, *(name for name in g.inputs[first : first + 2] if name))]


# ---- operators with quantized inputs and outputs


def binary(op_type: str) -> Rule:
    """Return the decomposition of an operator of two quantized inputs."""
    return lambda g: quantized(g, g.op(op_type, dequantized(g, 0), dequantized(g, 3)), 6)


def unary(op_type: str, *attributes: str) -> Rule:
    """Return the decomposition of an operator of one quantized input. attributes: the names of those to pass on."""
    def decomposition(g: NodeBuilder) -> list[str]:
        given = {name: g.attribute(name) for name in attributes if g.attribute(name) is not None}
        return quantized(g, g.op(op_type, dequantized(g, 0), **given), 3)

    return decomposition


def infer_binary(c: InferenceContext) -> list[TensorType]:
    """y = quantized f(a, b) of the dequantized inputs, with broadcasting"""
    return [TensorType(c.dtype(0), broadcast_shapes(c, c.shape(0), c.shape(3)))]


def infer_unary(c: InferenceContext) -> list[TensorType]:
    """y = quantized f(x) of the dequantized input"""
    return [c.type(0)]


for _op_type in ("Add", "Mul"):
    operator(f"QLinear{_op_type}", domain=MICROSOFT, decompose=binary(_op_type), differentiable=False)(infer_binary)
for _op_type, _attributes in (("Sigmoid", ()), ("LeakyRelu", ("alpha",)), ("Softmax", ("axis",))):
    operator(f"QLinear{_op_type}", domain=MICROSOFT, decompose=unary(_op_type, *_attributes), differentiable=False)(infer_unary)


def transpose_channels(g: NodeBuilder, value: str, to_last: bool) -> str:
    """Move the channels from axis 1 to the last axis, or back."""
    rank = g.rank(value)
    order = (0, *range(2, rank), 1) if to_last else (0, rank - 1, *range(1, rank - 1))
    return g.op("Transpose", value, perm=order)


def pooling(op_type: str) -> Rule:
    """Return the decomposition of a pooling operator, whose channels are the last axis if `channels_last` is set."""
    def decomposition(g: NodeBuilder) -> list[str]:
        last = bool(g.attribute("channels_last", 0))
        attributes = {name: value for name, value in g.node.attributes.items() if name != "channels_last"}
        x = transpose_channels(g, dequantized(g, 0), False) if last else dequantized(g, 0)
        y = g.op(op_type, x, **attributes)
        return quantized(g, transpose_channels(g, y, True) if last else y, 3)

    return decomposition


def channels_first(c: InferenceContext) -> InferenceContext:
    """Return the context with input 0 transposed to channels first, if `channels_last` is set."""
    if not c.attribute("channels_last", 0):
        return c
    n, *spatial, channels = c.shape(0)
    return InferenceContext(c.node, [TensorType(c.dtype(0), (n, channels, *spatial)), *c.types[1:]], c.values, c.opset)


@operator("QLinearAveragePool", domain=MICROSOFT, decompose=pooling("AveragePool"), differentiable=False)
def qlinear_average_pool(c: InferenceContext) -> list[TensorType]:
    """y = quantized AveragePool of the dequantized x"""
    context = channels_first(c)
    (n, channels, *_), spatial = context.shape(0), pool_windows(context).output
    return [TensorType(c.dtype(0), (n, *spatial, channels) if c.attribute("channels_last", 0) else (n, channels, *spatial))]


@operator("QLinearGlobalAveragePool", domain=MICROSOFT, decompose=pooling("GlobalAveragePool"), differentiable=False)
def qlinear_global_average_pool(c: InferenceContext) -> list[TensorType]:
    """y = quantized GlobalAveragePool of the dequantized x"""
    n, channels, *spatial = channels_first(c).shape(0)
    ones = (1,) * len(spatial)
    return [TensorType(c.dtype(0), (n, *ones, channels) if c.attribute("channels_last", 0) else (n, channels, *ones))]


def concat_decomposition(g: NodeBuilder) -> list[str]:
    parts = [dequantized(g, first) for first in range(2, len(g.inputs), 3)]
    return quantized(g, g.op("Concat", *parts, axis=int(g.attribute("axis"))), 0)


@operator("QLinearConcat", domain=MICROSOFT, decompose=concat_decomposition, differentiable=False)
def qlinear_concat(c: InferenceContext) -> list[TensorType]:
    """y = quantized Concat of dequantized values; inputs: scale and zero point of y, then (value, scale, zero point) of each part"""
    shapes = [c.shape(index) for index in range(2, len(c.node.inputs), 3)]
    if not shapes or (len(c.node.inputs) - 2) % 3 or len({len(shape) for shape in shapes}) > 1:
        raise c.error("expected a scale, a zero point, and (value, scale, zero point) for each part, with values of the same rank, got shapes "
                      f"{[list(shape) for shape in shapes]}")
    axis = int(c.attribute("axis", 0)) % len(shapes[0])
    sizes = [shape[axis] for shape in shapes]
    total = sum(size for size in sizes if isinstance(size, int)) if all(isinstance(size, int) for size in sizes) else c.new_symbol("axis")
    return [TensorType(c.dtype(2), (*shapes[0][:axis], total, *shapes[0][axis + 1 :]))]


def where_decomposition(g: NodeBuilder) -> list[str]:
    return quantized(g, g.op("Where", g.inputs[0], dequantized(g, 1), dequantized(g, 4)), 7)


@operator("QLinearWhere", domain=MICROSOFT, decompose=where_decomposition, differentiable=False)
def qlinear_where(c: InferenceContext) -> list[TensorType]:
    """y = quantized Where(condition, a, b) of the dequantized a and b"""
    return [TensorType(c.dtype(1), broadcast_shapes(c, c.shape(0), c.shape(1), c.shape(4)))]


def gemm_decomposition(g: NodeBuilder) -> list[str]:
    """Return the decomposition of QGemm; its result stays a float where the node has no scale of y.

    Inputs: (a, scale, zero point, b, scale, zero point, bias, scale of y, zero point of y); bias is int32 in units of alpha times both scales."""
    alpha = float(g.attribute("alpha", 1.0))
    a, b = (g.op("DequantizeLinear", *(n for n in g.inputs[i : i + 3] if n), axis=axis)
            for i, axis in ((0, 0), (3, 0 if g.attribute("transB", 0) else 1)))
    y = g.op("Gemm", a, b, alpha=alpha, transA=int(g.attribute("transA", 0)), transB=int(g.attribute("transB", 0)))
    if g.has(6):
        unit = g.op("Mul", g.op("Mul", g.inputs[1], g.inputs[4]), g.scalar(alpha, g.inputs[1]))
        y = g.op("Add", y, g.op("Mul", g.op("Cast", g.inputs[6], to=NUMBERS[g.type(unit).dtype]), unit))
    return quantized(g, y, 7) if g.has(7) else [y]


@operator("QGemm", domain=MICROSOFT, decompose=gemm_decomposition, differentiable=False)
def qgemm(c: InferenceContext) -> list[TensorType]:
    """y = alpha op(a) op(b) + bias of the dequantized a and b, quantized if a scale of y is given"""
    a, b = (transposed_shape(c.shape(i)) if c.attribute(name, 0) else c.shape(i) for i, name in ((0, "transA"), (3, "transB")))
    return [TensorType((c.dtype(8) if c.has(8) else "uint8") if c.has(7) else c.dtype(1), matmul_shape(c, a, b))]


# ---- ONNX's operators in ONNX Runtime's domain


def same_in_onnx(op_type: str) -> Rule:
    """Return the decomposition into ONNX's operator of the same name, inputs and attributes."""
    return lambda g: [g.op(op_type, *g.inputs, **g.node.attributes)]


@operator("QuantizeLinear", domain=MICROSOFT, decompose=same_in_onnx("QuantizeLinear"), differentiable=False)
def quantize(c: InferenceContext) -> list[TensorType]:
    """y = ONNX's QuantizeLinear of x"""
    return [TensorType(quantized_type(c), c.type(0).shape)]


@operator("DequantizeLinear", domain=MICROSOFT, decompose=same_in_onnx("DequantizeLinear"), stop_gradient=(0, 2))
def dequantize(c: InferenceContext) -> list[TensorType]:
    """y = ONNX's DequantizeLinear of x"""
    return [TensorType(c.dtype(1), c.type(0).shape)]


# ---- quantization-aware training, which rounds floats


def fake_quant_decomposition(g: NodeBuilder) -> list[str]:
    x, scale, zero = g.inputs
    low, high = (g.scalar(float(g.attribute(name, default)), x) for name, default in (("quant_min", 0), ("quant_max", 255)))
    level = g.op("Add", g.op("Round", g.op("Div", x, scale)), zero)
    y = g.op("Mul", g.op("Sub", g.op("Min", g.op("Max", level, low), high), zero), scale)
    return [y, g.op("Not", g.op("Or", g.op("Less", level, low), g.op("Greater", level, high)))]


@operator("FakeQuant", domain=MICROSOFT, decompose=fake_quant_decomposition, stop_gradient=(1, 2),
          gradient=lambda g: [g.op("FakeQuantGrad", g.dy, g.output(1), domain=MICROSOFT), None, None])
def fake_quant(c: InferenceContext) -> list[TensorType]:
    """y = dequantized(quantized(x)) with levels in [quant_min, quant_max]; output 1: where x was not clipped"""
    return [c.type(0), TensorType("bool", c.type(0).shape)]


@operator("FakeQuantGrad", domain=MICROSOFT, decompose=lambda g: [g.op("Where", g.inputs[1], g.inputs[0], g.scalar(0.0, g.inputs[0]))])
def fake_quant_grad(c: InferenceContext) -> list[TensorType]:
    """dx = dy where x was not clipped, else 0, of (dy, mask)"""
    return [c.type(0)]


# ---- matrix multiplications with quantized weights


def apply_scales(g: NodeBuilder, product: str, a_scale: str, b_scale: str) -> str:
    """Multiply an integer matrix product by the scales of the rows of a and of the columns of b."""
    return g.op("Mul", product, g.op("Mul", broadcast_along_axis(g, a_scale, g.rank(product), -2), broadcast_along_axis(g, b_scale, g.rank(product), -1)))


def add_bias(g: NodeBuilder, y: str, index: int) -> list[str]:
    """Add the bias in input `index` if it is given."""
    return [g.op("Add", y, g.inputs[index]) if g.has(index) else y]


def matmul_to_float_decomposition(g: NodeBuilder) -> list[str]:
    a, b, a_scale, b_scale = g.inputs[:4]
    product = g.op("Cast", exact_product(g, "MatMul", a, b, g.optional(4), g.optional(5)), to=NUMBERS[g.type(a_scale).dtype])
    return add_bias(g, apply_scales(g, product, a_scale, b_scale), 6)


@operator("MatMulIntegerToFloat", domain=MICROSOFT, decompose=matmul_to_float_decomposition, stop_gradient=(0, 1, 4, 5))
def matmul_integer_to_float(c: InferenceContext) -> list[TensorType]:
    """y = (a - a_zero) (b - b_zero) a_scale b_scale + bias"""
    return [TensorType(c.dtype(2), infer_matmul_shape(c, 0, 1))]


def dynamic_matmul(g: NodeBuilder, a: str, b: str, b_scale: str, b_zero: str) -> str:
    """Multiply a float matrix a, dynamically quantized to uint8, by a quantized matrix b; the result is a float."""
    q, scale, zero = g.ops("DynamicQuantizeLinear", a, outputs=[True] * 3)
    product = g.op("DynamicProduct", a, scale, "", "", q, b, zero, b_zero, domain=ORTRAIN, product="MatMul")
    return apply_scales(g, product, scale, b_scale)


def dynamic_matmul_decomposition(g: NodeBuilder) -> list[str]:
    return add_bias(g, dynamic_matmul(g, g.inputs[0], g.inputs[1], g.inputs[2], g.optional(3)), 4)


@operator("DynamicQuantizeMatMul", domain=MICROSOFT, decompose=dynamic_matmul_decomposition, stop_gradient=(1, 3))
def dynamic_quantize_matmul(c: InferenceContext) -> list[TensorType]:
    """y = (q - q_zero) (b - b_zero) q_scale b_scale + bias, with q the dynamic quantization of a"""
    return [TensorType(c.dtype(0), infer_matmul_shape(c, 0, 1))]


def unpack_bits(g: NodeBuilder, packed: str, bits: int, dtype: str) -> str:
    """Unpack bytes [.., b] into unsigned numbers of `bits` bits [.., 8 b / bits], low bits first, as floats of `dtype`."""
    per_byte, base = 8 // bits, float(1 << bits)
    rest = g.op("Cast", packed, to=NUMBERS[dtype])
    columns = []
    for _ in range(per_byte - 1):
        higher = g.op("Floor", g.op("Div", rest, g.scalar(base, rest)))
        columns.append(g.unsqueeze(g.op("Sub", rest, g.op("Mul", higher, g.scalar(base, rest))), [g.rank(packed)]))
        rest = higher
    columns.append(g.unsqueeze(rest, [g.rank(packed)]))
    stacked = g.op("Concat", *columns, axis=g.rank(packed)) if per_byte > 1 else columns[0]
    return g.op("Reshape", stacked, g.constant([*([0] * (g.rank(packed) - 1)), -1]))


def n_bits_decomposition(g: NodeBuilder) -> list[str]:
    a, packed, scales = g.inputs[:3]
    k, n, bits, block = (int(g.attribute(name)) for name in ("K", "N", "bits", "block_size"))
    blocks = -(-k // block)
    if g.has(4):
        raise g.error("expected no group indices, got them")
    numbers = g.op("Reshape", unpack_bits(g, g.op("Reshape", packed, g.constant([n, -1])), bits, g.type(scales).dtype), g.constant([n, blocks, block]))
    if not g.has(3):
        zero = g.scalar(float(1 << (bits - 1)), numbers)
    elif g.type(g.inputs[3]).dtype == "uint8":
        rows = unpack_bits(g, g.op("Reshape", g.inputs[3], g.constant([n, -1])), bits, g.type(scales).dtype)
        zero = g.unsqueeze(g.op("Gather", rows, g.constant(np.arange(blocks, dtype=np.int64)), axis=1), [2])
    else:
        zero = g.op("Reshape", g.inputs[3], g.constant([n, blocks, 1]))
    weights = g.op("Mul", g.op("Sub", numbers, zero), g.op("Reshape", scales, g.constant([n, blocks, 1])))
    rows = g.op("Reshape", weights, g.constant([n, blocks * block]))
    if blocks * block != k:
        rows = g.op("Gather", rows, g.constant(np.arange(k, dtype=np.int64)), axis=1)
    return add_bias(g, g.op("MatMul", a, g.op("Transpose", rows, perm=(1, 0))), 5)


BNB4_VALUES = {
    0: (0.0, 0.0052083333, 2 / 3, 1.0, 1 / 3, 0.5, 1 / 6, 0.25, 0.0, -0.0052083333, -2 / 3, -1.0, -1 / 3, -0.5, -1 / 6, -0.25),
    1: (-1.0, -0.6961928, -0.52507305, -0.3949175, -0.28444138, -0.18477343, -0.09105004, 0.0,
        0.0795803, 0.1609302, 0.2461123, 0.33791524, 0.44070983, 0.562617, 0.72295684, 1.0),
}
"""quant_type -> the values of the 16 codes: 0 is FP4 and 1 NF4 of bitsandbytes (Dettmers et al., arXiv 2305.14314)."""


def bnb4_decomposition(g: NodeBuilder) -> list[str]:
    """Return the decomposition of MatMulBnb4, whose codes are packed row by row, the high half of a byte first."""
    a, packed, largest = g.inputs
    k, n, block = (int(g.attribute(name)) for name in ("K", "N", "block_size"))
    dtype = g.type(a).dtype
    byte = g.op("Cast", g.op("Reshape", packed, g.constant([-1, 1])), to=NUMBERS[dtype])
    high = g.op("Floor", g.op("Div", byte, g.scalar(16.0, byte)))
    codes = g.op("Concat", high, g.op("Sub", byte, g.op("Mul", high, g.scalar(16.0, byte))), axis=1)
    values = g.op("Gather", g.constant(np.array(BNB4_VALUES[int(g.attribute("quant_type"))]), a), g.op("Cast", codes, to=NUMBERS["int64"]), axis=0)
    # one index per weight: the last block may be shorter than the others
    places = np.arange(n * k, dtype=np.int64)
    scales = g.op("Gather", largest, g.constant(places // block), axis=0)
    weights = g.op("Reshape", g.op("Mul", g.op("Gather", g.op("Reshape", values, g.constant([-1])), g.constant(places), axis=0), scales),
                   g.constant([n, k]))
    return [g.op("MatMul", a, g.op("Transpose", weights, perm=(1, 0)) if g.attribute("transB", 1) else weights)]


@operator("MatMulBnb4", domain=MICROSOFT, decompose=bnb4_decomposition, stop_gradient=(1,))
def matmul_bnb4(c: InferenceContext) -> list[TensorType]:
    """y = a w' (transB 1) or a w, with w [n, k] in blocks of 4-bit floats, scaled by the largest magnitude of each block"""
    k, n, block, kind = (int(c.attribute(name, 0)) for name in ("K", "N", "block_size", "quant_type"))
    depth, columns = (k, n) if c.attribute("transB", 1) else (n, k)
    shape = c.shape(0)
    if min(k, n, block) < 1 or kind not in BNB4_VALUES or not shape or isinstance(shape[-1], int) and shape[-1] != depth:
        raise c.error(f"expected {shape[-1] if shape else 'a'} to be summed over, positive sizes and type 0 or 1, "
                      f"got K {k}, N {n}, blocks of {block}, type {kind}")
    return [TensorType(c.dtype(0), (*shape[:-1], columns))]


@operator("MatMulNBits", domain=MICROSOFT, decompose=n_bits_decomposition, stop_gradient=(1, 4))
def matmul_n_bits(c: InferenceContext) -> list[TensorType]:
    """y = a w' + bias, with w [n, k] in blocks of 2, 4 or 8-bit integers, each block with a scale and a zero point"""
    k, n, bits, block = (int(c.attribute(name, 0)) for name in ("K", "N", "bits", "block_size"))
    shape = c.shape(0)
    if bits not in (2, 4, 8) or min(k, n, block) < 1 or not shape or isinstance(shape[-1], int) and shape[-1] != k:
        raise c.error(f"expected K of {shape[-1] if shape else 'a'}, positive N and block_size, and 2, 4 or 8 bits, got {k}, {n}, {block} and {bits}")
    return [TensorType(c.dtype(0), (*shape[:-1], n))]


# ---- LSTM


def lstm_step(names: dict[str, str], dtype: str, parts: dict[str, Any]) -> Graph:
    """Return the Scan body of one LSTM step whose hidden state is dynamically quantized; gates in the order i, o, f, c.

    names: name in this body -> captured value of the enclosing graph, "" for an absent one. parts: attributes of Split."""
    def node(op_type: str, inputs: str, outputs: str, **attributes: Any) -> Node:
        return Node(op_type, [names.get(name, name) for name in inputs.split() if names.get(name, name)], outputs.split(), attributes=attributes)

    return Graph("step", ["h", "c", "xw"], ["h_next", "c_next", "h_out"], [
        node("DynamicQuantizeLinear", "h", "hq hs hz"), node("MatMulInteger", "hq r hz r_zero", "product"), node("Cast", "product", "float", to=NUMBERS[dtype]),
        node("Mul", "hs r_scale", "scale"), node("Mul", "float scale", "recurrent"), node("Add", "xw recurrent", "gates"),
        node("Split", "gates sizes", "i_in o_in f_in c_in", axis=1, **parts),
        node("Sigmoid", "i_in", "i"), node("Sigmoid", "o_in", "o"), node("Sigmoid", "f_in", "f"), node("Tanh", "c_in", "candidate"),
        node("Mul", "f c", "kept"), node("Mul", "i candidate", "added"), node("Add", "kept added", "c_next"), node("Tanh", "c_next", "squashed"),
        node("Mul", "o squashed", "h_next"), node("Identity", "h_next", "h_out"),
    ])


def lstm_decomposition(g: NodeBuilder) -> list[str]:
    for index, name in ((4, "sequence lengths"), (7, "peepholes")):
        if g.has(index):
            raise g.error(f"expected a node without {name}, got them")
    activations = list(g.attribute("activations", ()))
    if activations[:3] not in ([], ["Sigmoid", "Tanh", "Tanh"]) or activations[3:] not in ([], ["Sigmoid", "Tanh", "Tanh"]):
        raise g.error(f"expected activations Sigmoid, Tanh and Tanh, got {activations}")
    direction, directions = direction_of(g.context())
    size = int(g.attribute("hidden_size"))
    results = [scan_direction(g, k, direction == DIRECTIONS["reverse"] or k == 1, size) for k in range(directions)]
    return [g.op("Concat", *(g.unsqueeze(part[k], [axis]) for part in results), axis=axis) for k, axis in ((2, 1), (0, 0), (1, 0))]


def scan_direction(g: NodeBuilder, k: int, reverse: bool, size: int) -> list[str]:
    """Return (final h, final c, h of all steps) of direction k. reverse: whether it runs from the last step to the first."""
    def parameter(index: int) -> str:
        """Return the part of input `index` that belongs to direction k."""
        return g.op("Gather", g.inputs[index], g.constant(np.array(k, np.int64)), axis=0)

    xw = dynamic_matmul(g, g.inputs[0], parameter(1), parameter(8), parameter(9))
    if g.has(3):
        first, second = halves(g, parameter(3), 4 * size)
        xw = g.op("Add", xw, g.op("Add", first, second))
    rows = g.op("Gather", g.shape_of(g.inputs[0]), g.constant([1]), axis=0)
    zeros = g.op("Expand", g.scalar(0.0, xw), g.op("Concat", rows, g.constant([size]), axis=0))
    states = [parameter(index) if g.has(index) else zeros for index in (5, 6)]
    names = {"r": parameter(2), "r_scale": parameter(10), "r_zero": parameter(11), "sizes": g.constant([size] * 4) if g.opset >= 13 else ""}
    parts = {} if g.opset >= 13 else {"split": (size,) * 4}
    captured = [name for name in names.values() if name]
    return g.ops("Scan", *states, xw, *captured, outputs=[True] * 3, body=lstm_step(names, g.type(xw).dtype, parts), num_scan_inputs=1,
                 scan_input_directions=(int(reverse),), scan_output_directions=(int(reverse),))


@operator("DynamicQuantizeLSTM", domain=MICROSOFT, decompose=lstm_decomposition, stop_gradient=(1, 2, 4, 9, 11))
def dynamic_quantize_lstm(c: InferenceContext) -> list[TensorType]:
    """y, h, c = LSTM with quantized weights w [directions, features, 4 h] and r [directions, h, 4 h] and dynamically quantized x and h"""
    shape, (_, directions), size = c.shape(0), direction_of(c), int(c.attribute("hidden_size", 0))
    if len(shape) != 3 or size < 1:
        raise c.error(f"expected x [steps, n, features] and a hidden_size, got {list(shape)} and {size}")
    steps, rows, _ = shape
    state = TensorType(c.dtype(0), (directions, rows, size))
    return [TensorType(c.dtype(0), (steps, directions, rows, size)), state, state]
