"""Values that are stored as small integers."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ortrain.dtypes import NAMES, NUMBERS
from ortrain.ir import TensorType
from ortrain.ops.building import NodeBuilder
from ortrain.ops.definitions import evaluate
from ortrain.ops.definitions import lower as lower_by_definition
from ortrain.ops.record import InferenceContext, operator

STORED = ("int8", "uint8", "int32")
"""The types that have kernels; others are ONNX's reference implementation's."""


def spreading(g: NodeBuilder) -> Callable[[str], str] | None:
    """How scale and zero point are laid along their axis; None for blocks of scales, which the reference implementation takes apart."""
    x, scale = g.inputs[:2]
    if g.attribute("block_size", 0) or g.rank(scale) > 1 or g.type(scale).dtype not in ("float32", "float64"):
        return None
    if g.rank(scale) == 0 or g.shape(scale) == (1,):
        return lambda vector: vector
    axis, rank = int(g.attribute("axis", 1)) % g.rank(x), g.rank(x)
    shape = g.constant([-1 if i == axis else 1 for i in range(rank)])
    return lambda vector: g.op("Reshape", vector, shape)


def dequantize_in_steps(g: NodeBuilder) -> list[str] | None:
    """(x - zero point) scale"""
    spread, dtype = spreading(g), g.type(g.inputs[1]).dtype
    if spread is None or g.type(g.inputs[0]).dtype not in STORED:
        return None
    value = g.op("Cast", g.inputs[0], to=NUMBERS[dtype])
    if g.has(2):
        value = g.op("Sub", value, spread(g.op("Cast", g.inputs[2], to=NUMBERS[dtype])))
    return [g.op("Mul", value, spread(g.inputs[1]))]


@operator("DequantizeLinear", lower=lower_by_definition, expand=dequantize_in_steps, evaluate=evaluate, stop=(0, 2))
def dequantize_linear(c: InferenceContext) -> list[TensorType]:
    """y = (x - zero point) scale"""
    dtype = NAMES.get(int(c.attribute("output_dtype", 0)), c.dtype(1))
    return [TensorType(dtype, c.type(0).shape)]


def quantized_type(c: InferenceContext) -> str:
    """The zero point's type, or the one asked for, or uint8."""
    return c.dtype(2) if c.has(2) else NAMES.get(int(c.attribute("output_dtype", 0)), "uint8")


def quantize_in_steps(g: NodeBuilder) -> list[str] | None:
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


@operator("QuantizeLinear", lower=lower_by_definition, expand=quantize_in_steps, evaluate=evaluate, differentiable=False)
def quantize_linear(c: InferenceContext) -> list[TensorType]:
    """y = x / scale, rounded, plus the zero point, cut to the range of its type"""
    return [TensorType(quantized_type(c), c.type(0).shape)]
