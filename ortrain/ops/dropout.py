"""Dropout, its gradient, and the fused variants of com.microsoft: BiasDropout, bit masks, BiasSoftmaxDropout (Srivastava et al., 2014)."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Sequence

import numpy as np

from ortrain.dtypes import NUMBERS
from ortrain.ir import Shape, TensorType
from ortrain.ops.registry.node_builder import GradientBuilder, NodeBuilder
from ortrain.ops.registry.record import (
    MICROSOFT,
    Alias,
    InferenceContext,
    KernelCall,
    LoweringContext,
    check_broadcasts,
    check_inputs,
    check_scalars,
    check_shape,
    operator,
)


def is_inference(c: InferenceContext) -> bool:
    """Return whether a Dropout is known to be the identity: training_mode is absent (as before opset 12) or constant and false."""
    if c.opset < 12 or not c.has(2):
        return True
    mode = c.value(2)
    return mode is not None and not mode.any()


def lower_dropout(c: LoweringContext) -> KernelCall | Alias:
    if is_inference(c) and not c.has_output(1):
        return Alias(0)
    stream = zlib.crc32(next(name for name in c.node.outputs if name).encode())
    return KernelCall("dropout", ints=(stream,), in_place={0: 0})


def dropout_gradient(g: GradientBuilder) -> Sequence[str | None]:
    no_gradients: list[str | None] = [None] * (len(g.inputs) - 1)
    mode = g.inputs[2] if g.opset >= 12 and len(g.inputs) > 2 else ""
    constant_mode = g.value(mode) if mode else None
    if not mode or (constant_mode is not None and not constant_mode.any()):
        return [g.op("Identity", g.dy), *no_gradients]
    ratio = g.inputs[1]
    if constant_mode is None:                        # DropoutGrad ignores training_mode; a ratio of 0 makes it the identity
        given_ratio = ratio or g.scalar(0.5, g.dy)
        ratio = g.op("Where", mode, given_ratio, g.scalar(0.0, given_ratio))
    return [g.op("DropoutGrad", g.dy, g.output(1), ratio, mode, domain=MICROSOFT), *no_gradients]


@operator("Dropout", lower=lower_dropout, gradient=dropout_gradient, stop_gradient=(1, 2), random=True, required_outputs=1)
def dropout(c: InferenceContext) -> list[TensorType]:
    """(y, mask): y = x mask / (1 - ratio), mask true with probability 1 - ratio; y = x unless training_mode is set"""
    check_scalars(c, 1, 2)
    kind, ratio = c.type(0), c.attribute("ratio") if c.opset < 12 else c.value(1)
    if ratio is not None and not 0 <= float(np.asarray(ratio).reshape(-1)[0]) < 1:
        raise c.error(f"expected a ratio in [0, 1), got {np.asarray(ratio)}")
    return [kind, TensorType("bool", kind.shape)]


@operator("DropoutGrad", domain=MICROSOFT, lower=lambda c: KernelCall("dropout_grad", in_place={0: 0}), differentiable=False)
def dropout_grad(c: InferenceContext) -> list[TensorType]:
    """dx = dY / (1 - ratio) where the mask is true, else 0, of (dY, mask, ratio = 0.5, training_mode); dx = dY if the ratio is 0"""
    if c.dtype(1) != "bool":
        raise c.error(f"expected a mask of bool, got {c.dtype(1)}")
    check_scalars(c, 2, 3)
    return [c.type(0)]


# ---- bit masks: 32 elements per uint32, lowest bit first

BITS = 32


def powers_of_two(g: NodeBuilder) -> str:
    """Return the constant 2 ** 0, …, 2 ** 31 as float64, in which sums of them are exact; there is no kernel for bit shifts."""
    return g.constant(2.0 ** np.arange(BITS))


def pack_mask(g: NodeBuilder, mask: str) -> str:
    """Return a bool mask packed into uint32 words; the last word is padded with zeros."""
    round_up = g.constant([BITS - 1])
    count = g.op("Reshape", g.op("Size", mask), g.constant([1]))
    bit_count = g.op("Mul", g.op("Div", g.op("Add", count, round_up), g.constant([BITS])), g.constant([BITS]))
    padding = g.op("ConstantOfShape", g.op("Sub", bit_count, count), value=np.zeros(1))
    flat = g.op("Concat", g.op("Cast", g.op("Reshape", mask, g.constant([-1])), to=NUMBERS["float64"]), padding, axis=0)
    return g.op("Cast", g.reduce_sum(g.op("Mul", g.op("Reshape", flat, g.constant([-1, BITS])), powers_of_two(g)), [1], keepdims=False), to=NUMBERS["uint32"])


def unpack_mask(g: NodeBuilder, words: str, like: str) -> str:
    """Return packed words as a bool mask in the shape of the value `like`: bit i is floor(word / 2 ** i) modulo 2."""
    shifted = g.op("Floor", g.op("Div", g.unsqueeze(g.op("Cast", words, to=NUMBERS["float64"]), [1]), powers_of_two(g)))
    halves = g.op("Floor", g.op("Mul", shifted, g.constant(np.array(0.5))))
    bits = g.op("Reshape", g.op("Sub", shifted, g.op("Add", halves, halves)), g.constant([-1]))
    count = g.op("Reshape", g.op("Size", like), g.constant([1]))
    padding = g.op("Sub", g.op("Reshape", g.op("Size", bits), g.constant([1])), count)
    mask = g.ops("SplitTraining", bits, g.op("Concat", count, padding, axis=0), outputs=[True, True], domain=MICROSOFT, axis=0)[0]
    return g.op("Cast", g.op("Reshape", mask, g.shape_of(like)), to=NUMBERS["bool"])


def bitmask_type(c: InferenceContext, shape: Shape) -> TensorType:
    """Return the type of the bit mask for a tensor of this shape."""
    is_static = not any(isinstance(size, str) for size in shape)
    return TensorType("uint32", (-(-math.prod(map(int, shape)) // BITS) if is_static else c.new_symbol("words"),))


# ---- Dropout fused with other operators


def dropout_node(g: NodeBuilder, value: str, ratio: str, mode: str) -> list[str]:
    """Return (y, mask) of a Dropout with its ratio and training_mode as inputs. Raises before opset 12, where they are not."""
    if g.opset < 12:
        raise g.error(f"expected opset 12 or newer, in which Dropout takes its ratio as an input, got {g.opset}")
    return g.ops("Dropout", value, ratio, mode, outputs=[True, True])


def dropout_of_inputs(g: NodeBuilder, value: str, ratio: int) -> list[str]:
    """Return (y, mask) of a Dropout of `value`; the node's input number `ratio` is its ratio, the next one its training_mode. Both are optional."""
    return dropout_node(g, value, g.optional(ratio), g.optional(ratio + 1))


def bias_dropout_decomposition(g: NodeBuilder) -> list[str]:
    y, mask = dropout_of_inputs(g, g.op("Add", *g.inputs[:2]), 3)
    return [g.op("Add", y, g.inputs[2]) if g.has(2) else y, mask]


def bitmask_decomposition(dropout_and_mask: Callable[[NodeBuilder], list[str]]) -> Callable[[NodeBuilder], list[str]]:
    """Return the decomposition that packs the mask of another one, which returns (y, mask)."""

    def decomposition(g: NodeBuilder) -> list[str]:
        y, mask = dropout_and_mask(g)
        return [y, pack_mask(g, mask) if g.has_output(1) else ""]

    return decomposition


@operator("BiasDropout", domain=MICROSOFT, decompose=bias_dropout_decomposition, stop_gradient=(3, 4), random=True)
def bias_dropout(c: InferenceContext) -> list[TensorType]:
    """(y, mask): y = Dropout(x + bias) + residual, of (x, bias, residual, ratio, training_mode)"""
    return [c.type(0), TensorType("bool", c.type(0).shape)]


@operator("BitmaskDropout", domain=MICROSOFT, stop_gradient=(1, 2), random=True,
          decompose=bitmask_decomposition(lambda g: dropout_of_inputs(g, g.inputs[0], 1)))
@operator("BitmaskBiasDropout", domain=MICROSOFT, decompose=bitmask_decomposition(bias_dropout_decomposition), stop_gradient=(3, 4), random=True)
def bitmask_dropout(c: InferenceContext) -> list[TensorType]:
    """(y, mask): Dropout or BiasDropout with a bit mask, uint32 [(n + 31) / 32] for n elements"""
    return [c.type(0), bitmask_type(c, c.shape(0))]


def bitmask_dropout_grad_decomposition(g: NodeBuilder) -> list[str]:
    ratio_and_mode = [g.optional(index) for index in range(2, len(g.inputs))]
    return [g.op("DropoutGrad", g.inputs[0], unpack_mask(g, g.inputs[1], g.inputs[0]), *ratio_and_mode, domain=MICROSOFT)]


@operator("BitmaskDropoutGrad", domain=MICROSOFT, decompose=bitmask_dropout_grad_decomposition, differentiable=False)
def bitmask_dropout_grad(c: InferenceContext) -> list[TensorType]:
    """dx of DropoutGrad with a bit mask, of (dY, mask, ratio, training_mode)"""
    if c.dtype(1) != "uint32":
        raise c.error(f"expected a mask of uint32, got {c.dtype(1)}")
    check_shape(c, "a mask", c.shape(1), bitmask_type(c, c.shape(0)).shape or ())
    return [c.type(0)]


def bias_softmax_dropout_decomposition(g: NodeBuilder) -> list[str]:
    y = g.op("BiasSoftmax", *g.inputs[:2], domain=MICROSOFT, axis=int(g.attribute("axis", 1)))
    return [*dropout_node(g, y, g.optional(2), g.constant(np.array(True))), y]


@operator("BiasSoftmaxDropout", domain=MICROSOFT, decompose=bias_softmax_dropout_decomposition, stop_gradient=(2,), random=True)
def bias_softmax_dropout(c: InferenceContext) -> list[TensorType]:
    """(y, mask, s): s = softmax(x + bias), y = Dropout(s) in training mode, of (x, bias, ratio)"""
    check_broadcasts(c, 1, c.shape(0))
    return [c.type(0), TensorType("bool", c.type(0).shape), c.type(0)]


def softmax_dropout_grad_decomposition(g: NodeBuilder) -> list[str]:
    ratio = [g.inputs[3]] if g.has(3) else []
    dy = g.op("DropoutGrad", *g.inputs[:2], *ratio, domain=MICROSOFT)
    return [g.op("SoftmaxGrad", dy, g.inputs[2], domain=MICROSOFT, axis=int(g.attribute("axis", 1)))]


@operator("SoftmaxDropoutGrad", domain=MICROSOFT, decompose=softmax_dropout_grad_decomposition, differentiable=False)
def softmax_dropout_grad(c: InferenceContext) -> list[TensorType]:
    """dx of BiasSoftmaxDropout, of (dY, mask, s, ratio)"""
    check_inputs(c, c.shape(0), 1, 2)
    return [c.type(0)]
