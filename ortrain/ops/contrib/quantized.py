"""What onnxruntime's quantizer and optimizer write (domain com.microsoft): operators between stored values, and products with stored weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ortrain.dtypes import NUMBERS
from ortrain.ir import Graph, Node, TensorType
from ortrain.ops.contrib.transformer import halves
from ortrain.ops.integer import exact, matmul_shape
from ortrain.ops.linear import product_shape, swapped
from ortrain.ops.pool import pool_windows
from ortrain.ops.quantization import along, quantized_type
from ortrain.ops.recurrent import DIRECTIONS, direction_of
from ortrain.ops.registry.node_builder import NodeBuilder
from ortrain.ops.registry.record import MICROSOFT, ORTRAIN, InferenceContext, broadcast_shapes, operator

Steps = Callable[[NodeBuilder], list[str]]


def real(g: NodeBuilder, first: int) -> str:
    """What inputs (value, scale, zero point) from `first` on stand for."""
    return g.op("DequantizeLinear", *(name for name in g.inputs[first : first + 3] if name))


def stored(g: NodeBuilder, value: str, first: int) -> list[str]:
    """A value as the scale and zero point from input `first` on store it."""
    return [g.op("QuantizeLinear", value, *(name for name in g.inputs[first : first + 2] if name))]


# ---- the same operators as in floats


def binary(op_type: str) -> Steps:
    return lambda g: stored(g, g.op(op_type, real(g, 0), real(g, 3)), 6)


def unary(op_type: str, *attributes: str) -> Steps:
    def steps(g: NodeBuilder) -> list[str]:
        given = {name: g.attribute(name) for name in attributes if g.attribute(name) is not None}
        return stored(g, g.op(op_type, real(g, 0), **given), 3)

    return steps


def infer_binary(c: InferenceContext) -> list[TensorType]:
    """y = the operator on what a and b stand for, stored"""
    return [TensorType(c.dtype(0), broadcast_shapes(c, c.shape(0), c.shape(3)))]


def infer_unary(c: InferenceContext) -> list[TensorType]:
    """y = the operator on what x stands for, stored"""
    return [c.type(0)]


for _op_type in ("Add", "Mul"):
    operator(f"QLinear{_op_type}", domain=MICROSOFT, decompose=binary(_op_type), differentiable=False)(infer_binary)
for _op_type, _attributes in (("Sigmoid", ()), ("LeakyRelu", ("alpha",)), ("Softmax", ("axis",))):
    operator(f"QLinear{_op_type}", domain=MICROSOFT, decompose=unary(_op_type, *_attributes), differentiable=False)(infer_unary)


def moved(g: NodeBuilder, value: str, to_last: bool) -> str:
    """Channels moved to the last axis, or from there to the second."""
    rank = g.rank(value)
    order = (0, *range(2, rank), 1) if to_last else (0, rank - 1, *range(1, rank - 1))
    return g.op("Transpose", value, perm=order)


def pooled(op_type: str) -> Steps:
    def steps(g: NodeBuilder) -> list[str]:
        last = bool(g.attribute("channels_last", 0))
        own = {name: value for name, value in g.node.attributes.items() if name != "channels_last"}
        x = moved(g, real(g, 0), False) if last else real(g, 0)
        y = g.op(op_type, x, **own)
        return stored(g, moved(g, y, True) if last else y, 3)

    return steps


def channels_first(c: InferenceContext) -> InferenceContext:
    """The node as if its channels were the second axis."""
    if not c.attribute("channels_last", 0):
        return c
    n, *places, channels = c.shape(0)
    return InferenceContext(c.node, [TensorType(c.dtype(0), (n, channels, *places)), *c.types[1:]], c.values, c.opset)


@operator("QLinearAveragePool", domain=MICROSOFT, decompose=pooled("AveragePool"), differentiable=False)
def stored_average_pool(c: InferenceContext) -> list[TensorType]:
    """y = AveragePool of what x stands for, stored"""
    there = channels_first(c)
    (n, channels, *_), places = there.shape(0), pool_windows(there).output
    return [TensorType(c.dtype(0), (n, *places, channels) if c.attribute("channels_last", 0) else (n, channels, *places))]


@operator("QLinearGlobalAveragePool", domain=MICROSOFT, decompose=pooled("GlobalAveragePool"), differentiable=False)
def stored_global_average_pool(c: InferenceContext) -> list[TensorType]:
    """y = GlobalAveragePool of what x stands for, stored"""
    n, channels, *places = channels_first(c).shape(0)
    ones = (1,) * len(places)
    return [TensorType(c.dtype(0), (n, *ones, channels) if c.attribute("channels_last", 0) else (n, channels, *ones))]


def concat_decomposition(g: NodeBuilder) -> list[str]:
    parts = [real(g, first) for first in range(2, len(g.inputs), 3)]
    return stored(g, g.op("Concat", *parts, axis=int(g.attribute("axis"))), 0)


@operator("QLinearConcat", domain=MICROSOFT, decompose=concat_decomposition, differentiable=False)
def stored_concat(c: InferenceContext) -> list[TensorType]:
    """y = Concat of what the values after (scale, zero point) stand for, each with its own, stored"""
    shapes = [c.shape(index) for index in range(2, len(c.node.inputs), 3)]
    if not shapes or (len(c.node.inputs) - 2) % 3 or len({len(shape) for shape in shapes}) > 1:
        raise c.error(f"expected a scale, a zero point and threes of value, scale and zero point of one rank, got shapes {[list(s) for s in shapes]}")
    axis = int(c.attribute("axis", 0)) % len(shapes[0])
    sizes = [shape[axis] for shape in shapes]
    whole = sum(size for size in sizes if isinstance(size, int)) if all(isinstance(size, int) for size in sizes) else c.fresh("axis")
    return [TensorType(c.dtype(2), (*shapes[0][:axis], whole, *shapes[0][axis + 1 :]))]


def where_decomposition(g: NodeBuilder) -> list[str]:
    return stored(g, g.op("Where", g.inputs[0], real(g, 1), real(g, 4)), 7)


@operator("QLinearWhere", domain=MICROSOFT, decompose=where_decomposition, differentiable=False)
def stored_where(c: InferenceContext) -> list[TensorType]:
    """y = what x or y stand for, as a condition has it, stored"""
    return [TensorType(c.dtype(1), broadcast_shapes(c, c.shape(0), c.shape(1), c.shape(4)))]


def gemm_decomposition(g: NodeBuilder) -> list[str]:
    """(a, scale, zero, b, scale, zero, bias of int32 in units of both scales and alpha, scale and zero of y): a float where those are not given."""
    alpha = float(g.attribute("alpha", 1.0))
    a, b = (g.op("DequantizeLinear", *(n for n in g.inputs[i : i + 3] if n), axis=axis)
            for i, axis in ((0, 0), (3, 0 if g.attribute("transB", 0) else 1)))
    y = g.op("Gemm", a, b, alpha=alpha, transA=int(g.attribute("transA", 0)), transB=int(g.attribute("transB", 0)))
    if g.has(6):
        unit = g.op("Mul", g.op("Mul", g.inputs[1], g.inputs[4]), g.scalar(alpha, g.inputs[1]))
        y = g.op("Add", y, g.op("Mul", g.op("Cast", g.inputs[6], to=NUMBERS[g.type(unit).dtype]), unit))
    return stored(g, y, 7) if g.has(7) else [y]


@operator("QGemm", domain=MICROSOFT, decompose=gemm_decomposition, differentiable=False)
def stored_gemm(c: InferenceContext) -> list[TensorType]:
    """y = alpha op(a) op(b) + bias of what a and b stand for, stored if a scale is given"""
    a, b = (swapped(c.shape(i)) if c.attribute(name, 0) else c.shape(i) for i, name in ((0, "transA"), (3, "transB")))
    return [TensorType((c.dtype(8) if c.has(8) else "uint8") if c.has(7) else c.dtype(1), product_shape(c, a, b))]


# ---- onnxruntime's names for ONNX's own


def same_in_onnx(op_type: str) -> Steps:
    return lambda g: [g.op(op_type, *g.inputs, **g.node.attributes)]


@operator("QuantizeLinear", domain=MICROSOFT, decompose=same_in_onnx("QuantizeLinear"), differentiable=False)
def quantize(c: InferenceContext) -> list[TensorType]:
    """ONNX's QuantizeLinear"""
    return [TensorType(quantized_type(c), c.type(0).shape)]


@operator("DequantizeLinear", domain=MICROSOFT, decompose=same_in_onnx("DequantizeLinear"), stop_gradient=(0, 2))
def dequantize(c: InferenceContext) -> list[TensorType]:
    """ONNX's DequantizeLinear"""
    return [TensorType(c.dtype(1), c.type(0).shape)]


# ---- what the old package trains with: rounding in floats


def rounded_decomposition(g: NodeBuilder) -> list[str]:
    x, scale, zero = g.inputs
    low, high = (g.scalar(float(g.attribute(name, default)), x) for name, default in (("quant_min", 0), ("quant_max", 255)))
    place = g.op("Add", g.op("Round", g.op("Div", x, scale)), zero)
    y = g.op("Mul", g.op("Sub", g.op("Min", g.op("Max", place, low), high), zero), scale)
    return [y, g.op("Not", g.op("Or", g.op("Less", place, low), g.op("Greater", place, high)))]


@operator("FakeQuant", domain=MICROSOFT, decompose=rounded_decomposition, stop_gradient=(1, 2),
          gradient=lambda g: [g.op("FakeQuantGrad", g.dy, g.output(1), domain=MICROSOFT), None, None])
def fake_quant(c: InferenceContext) -> list[TensorType]:
    """y = x as quant_min … quant_max store it with a scale and a zero point; then where it was not cut off"""
    return [c.type(0), TensorType("bool", c.type(0).shape)]


@operator("FakeQuantGrad", domain=MICROSOFT, decompose=lambda g: [g.op("Where", g.inputs[1], g.inputs[0], g.scalar(0.0, g.inputs[0]))])
def fake_quant_grad(c: InferenceContext) -> list[TensorType]:
    """dx = dy where x was not cut off"""
    return [c.type(0)]


# ---- products of floats with stored weights


def in_units(g: NodeBuilder, product: str, a_scale: str, b_scale: str) -> str:
    """A product of stored values times the scales of rows and columns."""
    return g.op("Mul", product, g.op("Mul", along(g, a_scale, g.rank(product), -2), along(g, b_scale, g.rank(product), -1)))


def with_bias(g: NodeBuilder, y: str, index: int) -> list[str]:
    return [g.op("Add", y, g.inputs[index]) if g.has(index) else y]


def matmul_to_float_decomposition(g: NodeBuilder) -> list[str]:
    a, b, a_scale, b_scale = g.inputs[:4]
    product = g.op("Cast", exact(g, "MatMul", a, b, g.optional(4), g.optional(5)), to=NUMBERS[g.type(a_scale).dtype])
    return with_bias(g, in_units(g, product, a_scale, b_scale), 6)


@operator("MatMulIntegerToFloat", domain=MICROSOFT, decompose=matmul_to_float_decomposition, stop_gradient=(0, 1, 4, 5))
def matmul_integer_to_float(c: InferenceContext) -> list[TensorType]:
    """y = (a - zero of a) (b - zero of b) times both scales, plus bias"""
    return [TensorType(c.dtype(2), matmul_shape(c, 0, 1))]


def through_bytes(g: NodeBuilder, a: str, b: str, b_scale: str, b_zero: str) -> str:
    """The product of a, quantized as it comes, with b, which is stored."""
    q, scale, zero = g.ops("DynamicQuantizeLinear", a, outputs=[True] * 3)
    product = g.op("DynamicProduct", a, scale, "", "", q, b, zero, b_zero, domain=ORTRAIN, product="MatMul")
    return in_units(g, product, scale, b_scale)


def dynamic_matmul_decomposition(g: NodeBuilder) -> list[str]:
    return with_bias(g, through_bytes(g, g.inputs[0], g.inputs[1], g.inputs[2], g.optional(3)), 4)


@operator("DynamicQuantizeMatMul", domain=MICROSOFT, decompose=dynamic_matmul_decomposition, stop_gradient=(1, 3))
def dynamic_quantize_matmul(c: InferenceContext) -> list[TensorType]:
    """y = a, quantized as it comes, times (b - zero of b) times the scales, plus bias"""
    return [TensorType(c.dtype(0), matmul_shape(c, 0, 1))]


def digits(g: NodeBuilder, packed: str, bits: int, dtype: str) -> str:
    """Bytes [.., b] as the numbers [.., 8 b / bits] that they hold, the low bits first, as floats."""
    each, base = 8 // bits, float(1 << bits)
    rest = g.op("Cast", packed, to=NUMBERS[dtype])
    found = []
    for _ in range(each - 1):
        higher = g.op("Floor", g.op("Div", rest, g.scalar(base, rest)))
        found.append(g.unsqueeze(g.op("Sub", rest, g.op("Mul", higher, g.scalar(base, rest))), [g.rank(packed)]))
        rest = higher
    found.append(g.unsqueeze(rest, [g.rank(packed)]))
    together = g.op("Concat", *found, axis=g.rank(packed)) if each > 1 else found[0]
    return g.op("Reshape", together, g.constant([*([0] * (g.rank(packed) - 1)), -1]))


def few_bits_decomposition(g: NodeBuilder) -> list[str]:
    a, packed, scales = g.inputs[:3]
    k, n, bits, block = (int(g.attribute(name)) for name in ("K", "N", "bits", "block_size"))
    blocks = -(-k // block)
    if g.has(4):
        raise g.error("expected no indices of groups, got them")
    numbers = g.op("Reshape", digits(g, g.op("Reshape", packed, g.constant([n, -1])), bits, g.type(scales).dtype), g.constant([n, blocks, block]))
    if not g.has(3):
        zero = g.scalar(float(1 << (bits - 1)), numbers)
    elif g.type(g.inputs[3]).dtype == "uint8":
        rows = digits(g, g.op("Reshape", g.inputs[3], g.constant([n, -1])), bits, g.type(scales).dtype)
        zero = g.unsqueeze(g.op("Gather", rows, g.constant(np.arange(blocks)), axis=1), [2])
    else:
        zero = g.op("Reshape", g.inputs[3], g.constant([n, blocks, 1]))
    weights = g.op("Mul", g.op("Sub", numbers, zero), g.op("Reshape", scales, g.constant([n, blocks, 1])))
    rows = g.op("Reshape", weights, g.constant([n, blocks * block]))
    if blocks * block != k:
        rows = g.op("Gather", rows, g.constant(np.arange(k)), axis=1)
    return with_bias(g, g.op("MatMul", a, g.op("Transpose", rows, perm=(1, 0))), 5)


FOUR_BITS = {
    0: (0.0, 0.0052083333, 2 / 3, 1.0, 1 / 3, 0.5, 1 / 6, 0.25, 0.0, -0.0052083333, -2 / 3, -1.0, -1 / 3, -0.5, -1 / 6, -0.25),
    1: (-1.0, -0.6961928, -0.52507305, -0.3949175, -0.28444138, -0.18477343, -0.09105004, 0.0,
        0.0795803, 0.1609302, 0.2461123, 0.33791524, 0.44070983, 0.562617, 0.72295684, 1.0),
}
"""What the sixteen numbers of bitsandbytes' types FP4 and NF4 (Dettmers et al., arXiv 2305.14314) stand for, by quant_type."""


def four_bits_decomposition(g: NodeBuilder) -> list[str]:
    """Numbers lie row after row, the high half of a byte first."""
    a, packed, largest = g.inputs
    k, n, block = (int(g.attribute(name)) for name in ("K", "N", "block_size"))
    dtype = g.type(a).dtype
    byte = g.op("Cast", g.op("Reshape", packed, g.constant([-1, 1])), to=NUMBERS[dtype])
    high = g.op("Floor", g.op("Div", byte, g.scalar(16.0, byte)))
    numbers = g.op("Concat", high, g.op("Sub", byte, g.op("Mul", high, g.scalar(16.0, byte))), axis=1)
    values = g.op("Gather", g.constant(np.array(FOUR_BITS[int(g.attribute("quant_type"))]), a), g.op("Cast", numbers, to=NUMBERS["int64"]), axis=0)
    # the last block may be shorter than the others
    scales = g.op("Gather", largest, g.constant(np.arange(n * k) // block), axis=0)
    weights = g.op("Reshape", g.op("Mul", g.op("Gather", g.op("Reshape", values, g.constant([-1])), g.constant(np.arange(n * k)), axis=0), scales),
                   g.constant([n, k]))
    return [g.op("MatMul", a, g.op("Transpose", weights, perm=(1, 0)) if g.attribute("transB", 1) else weights)]


@operator("MatMulBnb4", domain=MICROSOFT, decompose=four_bits_decomposition, stop_gradient=(1,))
def matmul_four_bits(c: InferenceContext) -> list[TensorType]:
    """y = a w' (transB 1) or a w, w [n, k] stored in blocks of four-bit floats, each block with its largest magnitude"""
    k, n, block, kind = (int(c.attribute(name, 0)) for name in ("K", "N", "block_size", "quant_type"))
    depth, columns = (k, n) if c.attribute("transB", 1) else (n, k)
    shape = c.shape(0)
    if min(k, n, block) < 1 or kind not in FOUR_BITS or not shape or isinstance(shape[-1], int) and shape[-1] != depth:
        raise c.error(f"expected {shape[-1] if shape else 'a'} to be summed over, positive sizes and type 0 or 1, "
                      f"got K {k}, N {n}, blocks of {block}, type {kind}")
    return [TensorType(c.dtype(0), (*shape[:-1], columns))]


@operator("MatMulNBits", domain=MICROSOFT, decompose=few_bits_decomposition, stop_gradient=(1, 4))
def matmul_few_bits(c: InferenceContext) -> list[TensorType]:
    """y = a w' + bias, w [n, k] stored in blocks of numbers of few bits, each with its scale and zero point"""
    k, n, bits, block = (int(c.attribute(name, 0)) for name in ("K", "N", "bits", "block_size"))
    shape = c.shape(0)
    if bits not in (2, 4, 8) or min(k, n, block) < 1 or not shape or isinstance(shape[-1], int) and shape[-1] != k:
        raise c.error(f"expected K of {shape[-1] if shape else 'a'}, positive N and block_size, and 2, 4 or 8 bits, got {k}, {n}, {block} and {bits}")
    return [TensorType(c.dtype(0), (*shape[:-1], n))]


# ---- LSTM


def lstm_step(names: dict[str, str], dtype: str, parts: dict[str, Any]) -> Graph:
    """One step of an LSTM whose state is quantized as it comes; gates in the order i, o, f, c.

    names: what stands for outer values. parts: attributes of Split."""
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
    for index, what in ((4, "sequence lengths"), (7, "peepholes")):
        if g.has(index):
            raise g.error(f"expected a node without {what}, got them")
    activations = list(g.attribute("activations", ()))
    if activations[:3] not in ([], ["Sigmoid", "Tanh", "Tanh"]) or activations[3:] not in ([], ["Sigmoid", "Tanh", "Tanh"]):
        raise g.error(f"expected activations Sigmoid, Tanh and Tanh, got {activations}")
    direction, directions = direction_of(g.context())
    size = int(g.attribute("hidden_size"))
    found = [one_direction(g, k, direction == DIRECTIONS["reverse"] or k == 1, size) for k in range(directions)]
    return [g.op("Concat", *(g.unsqueeze(part[k], [axis]) for part in found), axis=axis) for k, axis in ((2, 1), (0, 0), (1, 0))]


def one_direction(g: NodeBuilder, k: int, backwards: bool, size: int) -> list[str]:
    """(last h, last c, every h) of one direction."""
    def own(index: int) -> str:
        return g.op("Gather", g.inputs[index], g.constant(np.array(k, np.int64)), axis=0)

    xw = through_bytes(g, g.inputs[0], own(1), own(8), own(9))
    if g.has(3):
        first, second = halves(g, own(3), 4 * size)
        xw = g.op("Add", xw, g.op("Add", first, second))
    images = g.op("Gather", g.shape_of(g.inputs[0]), g.constant([1]), axis=0)
    nothing = g.op("Expand", g.scalar(0.0, xw), g.op("Concat", images, g.constant([size]), axis=0))
    states = [own(index) if g.has(index) else nothing for index in (5, 6)]
    names = {"r": own(2), "r_scale": own(10), "r_zero": own(11), "sizes": g.constant([size] * 4) if g.opset >= 13 else ""}
    parts = {} if g.opset >= 13 else {"split": (size,) * 4}
    outer = [name for name in names.values() if name]
    return g.ops("Scan", *states, xw, *outer, outputs=[True] * 3, body=lstm_step(names, g.type(xw).dtype, parts), num_scan_inputs=1,
                 scan_input_directions=(int(backwards),), scan_output_directions=(int(backwards),))


@operator("DynamicQuantizeLSTM", domain=MICROSOFT, decompose=lstm_decomposition, stop_gradient=(1, 2, 4, 9, 11))
def dynamic_quantize_lstm(c: InferenceContext) -> list[TensorType]:
    """An LSTM of stored weights, w [directions, features, 4 h] and r [directions, h, 4 h], input and state quantized as they come"""
    shape, (_, directions), size = c.shape(0), direction_of(c), int(c.attribute("hidden_size", 0))
    if len(shape) != 3 or size < 1:
        raise c.error(f"expected x [steps, n, features] and a hidden_size, got {list(shape)} and {size}")
    steps, images, _ = shape
    last = TensorType(c.dtype(0), (directions, images, size))
    return [TensorType(c.dtype(0), (steps, directions, images, size)), last, last]
