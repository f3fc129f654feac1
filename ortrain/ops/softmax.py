"""Softmax and log-softmax."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ortrain.ir import TensorType
from ortrain.ops.building import GradientBuilder
from ortrain.ops.record import MICROSOFT, InferenceContext, KernelCall, Lowering, LoweringContext, normalize_axis, operator


def infer_softmax(c: InferenceContext) -> list[TensorType]:
    """y = softmax(x) along an axis (below opset 13: over all axes from `axis` on)"""
    normalize_axis(c, c.attribute("axis", -1), max(len(c.shape(0)), 1))
    return [c.type(0)]


def packed(dims: tuple[int, ...], axis: int, flattened: bool) -> tuple[int, int, int]:
    """(outer, size, inner): the softmax runs over `size`."""
    axis %= max(len(dims), 1)
    end = len(dims) if flattened else axis + 1
    return tuple(int(np.prod(part, dtype=np.int64)) for part in (dims[:axis], dims[axis:end], dims[end:]))  # type: ignore[return-value]


def lower_softmax(kernel: str) -> Lowering:
    def lower(c: LoweringContext) -> KernelCall:
        old = c.opset < 13
        return KernelCall(kernel, packed(c.dims(0), c.attribute("axis", 1 if old else -1), old), in_place={0: 0})

    return lower


def lower_gradient(kernel: str, flattened: bool) -> Lowering:
    def lower(c: LoweringContext) -> KernelCall:
        return KernelCall(kernel, packed(c.dims(0), c.attribute("axis", 1 if flattened else -1), flattened), in_place={0: 0})

    return lower


def gradient_by(name: str) -> Callable[[Any], Sequence[str | None]]:
    def gradient(g: GradientBuilder) -> Sequence[str | None]:
        old = g.opset < 13
        return [g.op(name if old else f"{name}_13", g.dy, g.outputs[0], domain=MICROSOFT, axis=int(g.attribute("axis", 1 if old else -1)))]

    return gradient


def _register() -> None:
    for name, kernel in (("Softmax", "softmax"), ("LogSoftmax", "log_softmax")):
        operator(name, lower=lower_softmax(kernel), gradient=gradient_by(f"{name}Grad"))(infer_softmax)
        operator(f"{name}Grad", domain=MICROSOFT, lower=lower_gradient(f"{kernel}_grad", True))(infer_softmax)
        operator(f"{name}Grad_13", domain=MICROSOFT, lower=lower_gradient(f"{kernel}_grad", False))(infer_softmax)


_register()
