"""Dropout and its gradient."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import numpy as np

from ortrain.ir import TensorType
from ortrain.ops.building import GradientBuilder
from ortrain.ops.record import MICROSOFT, Alias, InferenceContext, KernelCall, LoweringContext, operator


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
    return [g.op("DropoutGrad", g.dy, g.output(1), g.inputs[1], mode, domain=MICROSOFT), *rest]


@operator("Dropout", lower=lower_dropout, gradient=dropout_gradient, stop=(1, 2), random=True)
def dropout(c: InferenceContext) -> list[TensorType]:
    """y = x · mask / (1 - ratio), the mask true with probability 1 - ratio; y = x when not training"""
    kind, ratio = c.type(0), c.attribute("ratio") if c.opset < 12 else c.value(1)
    if ratio is not None and not 0 <= float(np.asarray(ratio).reshape(-1)[0]) < 1:
        raise c.error(f"expected a ratio in [0, 1), got {np.asarray(ratio)}")
    return [kind, TensorType("bool", kind.shape)]


@operator("DropoutGrad", domain=MICROSOFT, lower=lambda c: KernelCall("dropout_grad", in_place={0: 0}), differentiable=False)
def dropout_grad(c: InferenceContext) -> list[TensorType]:
    """dx = dy / (1 - ratio) where the mask is true, else 0, of (dy, mask, ratio 0.5, training_mode); dy when ratio is 0"""
    if c.dtype(1) != "bool":
        raise c.error(f"expected a mask of bool, got {c.dtype(1)}")
    return [c.type(0)]
