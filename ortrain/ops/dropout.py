"""Dropout, its gradient, and the forms of them that do something more."""

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
    check_numbers,
    check_shape,
    operator,
)


def is_inference(c: InferenceContext) -> bool:
    """True when Dropout is known to change nothing: no training_mode (opset 12 has the first), or one that is a constant False."""
    if c.opset < 12 or not c.has(2):
        return True
    mode = c.value(2)
    return mode is not None and not mode.any()


def lower_dropout(c: LoweringContext) -> KernelCall | Alias:
    if is_inference(c) and not c.wants(1):
        return Alias(0)
    stream = zlib.crc32(next(name for name in c.node.outputs if name).encode())
    return KernelCall("dropout", ints=(stream,), in_place={0: 0})


def dropout_gradient(g: GradientBuilder) -> Sequence[str | None]:
    rest: list[str | None] = [None] * (len(g.inputs) - 1)
    mode = g.inputs[2] if g.opset >= 12 and len(g.inputs) > 2 else ""
    known = g.value(mode) if mode else None
    if not mode or (known is not None and not known.any()):
        return [g.op("Identity", g.dy), *rest]
    ratio = g.inputs[1]
    if known is None:                        # DropoutGrad does not look at training_mode, and a ratio of 0 drops nothing
        half = ratio or g.scalar(0.5, g.dy)
        ratio = g.op("Where", mode, half, g.scalar(0.0, half))
    return [g.op("DropoutGrad", g.dy, g.output(1), ratio, mode, domain=MICROSOFT), *rest]


@operator("Dropout", lower=lower_dropout, gradient=dropout_gradient, stop_gradient=(1, 2), random=True, written=1)
def dropout(c: InferenceContext) -> list[TensorType]:
    """y = x · mask / (1 - ratio), the mask true with probability 1 - ratio; y = x when not training"""
    check_numbers(c, 1, 2)
    kind, ratio = c.type(0), c.attribute("ratio") if c.opset < 12 else c.value(1)
    if ratio is not None and not 0 <= float(np.asarray(ratio).reshape(-1)[0]) < 1:
        raise c.error(f"expected a ratio in [0, 1), got {np.asarray(ratio)}")
    return [kind, TensorType("bool", kind.shape)]


@operator("DropoutGrad", domain=MICROSOFT, lower=lambda c: KernelCall("dropout_grad", in_place={0: 0}), differentiable=False)
def dropout_grad(c: InferenceContext) -> list[TensorType]:
    """dx = dy / (1 - ratio) where the mask is true, else 0, of (dy, mask, ratio 0.5, training_mode); dy when ratio is 0"""
    if c.dtype(1) != "bool":
        raise c.error(f"expected a mask of bool, got {c.dtype(1)}")
    check_numbers(c, 2, 3)
    return [c.type(0)]


# ---- masks of bits, 32 to a uint32 from the lowest up

BITS = 32


def powers(g: NodeBuilder) -> str:
    """2^0 … 2^31: in float64, where their sums are exact, as bits are shifted by no kernel."""
    return g.constant(2.0 ** np.arange(BITS))


def packed(g: NodeBuilder, mask: str) -> str:
    """The bits of a mask; the last word is filled up with zeros."""
    last = g.constant([BITS - 1])
    count = g.op("Reshape", g.op("Size", mask), g.constant([1]))
    whole = g.op("Mul", g.op("Div", g.op("Add", count, last), g.constant([BITS])), g.constant([BITS]))
    rest = g.op("ConstantOfShape", g.op("Sub", whole, count), value=np.zeros(1))
    flat = g.op("Concat", g.op("Cast", g.op("Reshape", mask, g.constant([-1])), to=NUMBERS["float64"]), rest, axis=0)
    return g.op("Cast", g.reduce_sum(g.op("Mul", g.op("Reshape", flat, g.constant([-1, BITS])), powers(g)), [1], keepdims=False), to=NUMBERS["uint32"])


def unpacked(g: NodeBuilder, words: str, like: str) -> str:
    """The mask of bits, in the shape of a value."""
    shifted = g.op("Floor", g.op("Div", g.unsqueeze(g.op("Cast", words, to=NUMBERS["float64"]), [1]), powers(g)))
    halves = g.op("Floor", g.op("Mul", shifted, g.constant(np.array(0.5))))
    bits = g.op("Reshape", g.op("Sub", shifted, g.op("Add", halves, halves)), g.constant([-1]))
    count = g.op("Reshape", g.op("Size", like), g.constant([1]))
    rest = g.op("Sub", g.op("Reshape", g.op("Size", bits), g.constant([1])), count)
    kept = g.ops("SplitTraining", bits, g.op("Concat", count, rest, axis=0), outputs=[True, True], domain=MICROSOFT, axis=0)[0]
    return g.op("Cast", g.op("Reshape", kept, g.shape_of(like)), to=NUMBERS["bool"])


def words_of(c: InferenceContext, shape: Shape) -> TensorType:
    """The type of a mask of bits."""
    known = not any(isinstance(size, str) for size in shape)
    return TensorType("uint32", (-(-math.prod(map(int, shape)) // BITS) if known else c.fresh("words"),))


# ---- Dropout with something before or after it


def drop(g: NodeBuilder, value: str, ratio: str, mode: str) -> list[str]:
    """(y, mask) of Dropout in its newest form."""
    if g.opset < 12:
        raise g.error(f"expected opset 12 or newer, in which Dropout takes its ratio as an input, got {g.opset}")
    return g.ops("Dropout", value, ratio, mode, outputs=[True, True])


def dropped(g: NodeBuilder, value: str, ratio: int) -> list[str]:
    """(y, mask) of Dropout, whose ratio is input `ratio` and whose training_mode the one after it."""
    return drop(g, value, g.optional(ratio), g.optional(ratio + 1))


def bias_dropout_decomposition(g: NodeBuilder) -> list[str]:
    y, mask = dropped(g, g.op("Add", *g.inputs[:2]), 3)
    return [g.op("Add", y, g.inputs[2]) if g.has(2) else y, mask]


def with_bits(found: Callable[[NodeBuilder], list[str]]) -> Callable[[NodeBuilder], list[str]]:
    def steps(g: NodeBuilder) -> list[str]:
        y, mask = found(g)
        return [y, packed(g, mask) if g.wants(1) else ""]

    return steps


@operator("BiasDropout", domain=MICROSOFT, decompose=bias_dropout_decomposition, stop_gradient=(3, 4), random=True)
def bias_dropout(c: InferenceContext) -> list[TensorType]:
    """(y, mask): Dropout of x + bias, plus a residual; of (x, bias, residual, ratio, training_mode)"""
    return [c.type(0), TensorType("bool", c.type(0).shape)]


@operator("BitmaskDropout", domain=MICROSOFT, decompose=with_bits(lambda g: dropped(g, g.inputs[0], 1)), stop_gradient=(1, 2), random=True)
@operator("BitmaskBiasDropout", domain=MICROSOFT, decompose=with_bits(bias_dropout_decomposition), stop_gradient=(3, 4), random=True)
def bitmask_dropout(c: InferenceContext) -> list[TensorType]:
    """Dropout or BiasDropout whose mask is of bits: uint32 [(n + 31) / 32]"""
    return [c.type(0), words_of(c, c.shape(0))]


def bitmask_gradient(g: NodeBuilder) -> list[str]:
    rest = [g.optional(index) for index in range(2, len(g.inputs))]
    return [g.op("DropoutGrad", g.inputs[0], unpacked(g, g.inputs[1], g.inputs[0]), *rest, domain=MICROSOFT)]


@operator("BitmaskDropoutGrad", domain=MICROSOFT, decompose=bitmask_gradient, differentiable=False)
def bitmask_dropout_grad(c: InferenceContext) -> list[TensorType]:
    """DropoutGrad whose mask is of bits"""
    if c.dtype(1) != "uint32":
        raise c.error(f"expected a mask of uint32, got {c.dtype(1)}")
    check_shape(c, "a mask", c.shape(1), words_of(c, c.shape(0)).shape or ())
    return [c.type(0)]


def bias_softmax_dropout_decomposition(g: NodeBuilder) -> list[str]:
    y = g.op("BiasSoftmax", *g.inputs[:2], domain=MICROSOFT, axis=int(g.attribute("axis", 1)))
    return [*drop(g, y, g.optional(2), g.constant(np.array(True))), y]


@operator("BiasSoftmaxDropout", domain=MICROSOFT, decompose=bias_softmax_dropout_decomposition, stop_gradient=(2,), random=True)
def bias_softmax_dropout(c: InferenceContext) -> list[TensorType]:
    """(y, mask, s): s = Softmax of x + bias, y = Dropout of s, always as in training; of (x, bias, ratio)"""
    check_broadcasts(c, 1, c.shape(0))
    return [c.type(0), TensorType("bool", c.type(0).shape), c.type(0)]


def softmax_dropout_gradient(g: NodeBuilder) -> list[str]:
    ratio = [g.inputs[3]] if g.has(3) else []
    dy = g.op("DropoutGrad", *g.inputs[:2], *ratio, domain=MICROSOFT)
    return [g.op("SoftmaxGrad", dy, g.inputs[2], domain=MICROSOFT, axis=int(g.attribute("axis", 1)))]


@operator("SoftmaxDropoutGrad", domain=MICROSOFT, decompose=softmax_dropout_gradient, differentiable=False)
def softmax_dropout_grad(c: InferenceContext) -> list[TensorType]:
    """dx of BiasSoftmaxDropout, of (dy, mask, softmax, ratio)"""
    check_inputs(c, c.shape(0), 1, 2)
    return [c.type(0)]
