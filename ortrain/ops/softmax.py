"""Softmax, log-softmax, and the largest element alone: Hardmax."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ortrain.ir import TensorType
from ortrain.ops.registry.node_builder import GradientBuilder, NodeBuilder
from ortrain.ops.registry.record import MICROSOFT, InferenceContext, KernelCall, Lowering, LoweringContext, check_inputs, normalize_axis, operator


def infer_softmax(c: InferenceContext) -> list[TensorType]:
    """y = softmax(x) along an axis (below opset 13: over all axes from `axis` on)"""
    normalize_axis(c, c.attribute("axis", -1), max(len(c.shape(0)), 1))
    return [c.type(0)]


def infer_gradient(c: InferenceContext) -> list[TensorType]:
    """dx of (dy, y)"""
    check_inputs(c, c.shape(0), 1)
    return infer_softmax(c)


def packed(dims: tuple[int, ...], axis: int, flattened: bool) -> tuple[int, int, int]:
    """(outer, size, inner): the softmax runs over `size`."""
    axis %= max(len(dims), 1)
    end = len(dims) if flattened else axis + 1
    return tuple(math.prod(part) for part in (dims[:axis], dims[axis:end], dims[end:]))  # type: ignore[return-value]


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
        operator(f"{name}Grad", domain=MICROSOFT, lower=lower_gradient(f"{kernel}_grad", True))(infer_gradient)
        operator(f"{name}Grad_13", domain=MICROSOFT, lower=lower_gradient(f"{kernel}_grad", False))(infer_gradient)


_register()


def hardmax_decomposition(g: NodeBuilder) -> list[str] | None:
    """A one-hot vector of ArgMax, in the rows that the softmax of the opset has."""
    kind = g.type(g.inputs[0])
    if not kind.is_static:
        return None
    old = g.opset < 13
    outer, size, inner = packed(kind.sizes, g.attribute("axis", 1 if old else -1), old)
    rows = g.op("Reshape", g.inputs[0], g.constant([outer, size, inner]))
    values = g.constant(np.array([0, 1]), g.inputs[0])
    hot = g.op("OneHot", g.op("ArgMax", rows, axis=1, keepdims=0), g.constant([size]), values, axis=1)
    return [g.op("Reshape", hot, g.constant(list(kind.sizes)))]


@operator("Hardmax", decompose=hardmax_decomposition, differentiable=False)
def hardmax(c: InferenceContext) -> list[TensorType]:
    """y = 1 at the largest element along an axis (below opset 13: of all axes from `axis` on), the first of equals, and 0 elsewhere"""
    return infer_softmax(c)
