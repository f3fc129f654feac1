"""Softmax, LogSoftmax and Hardmax, with the gradients of the first two."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ortrain.ir import TensorType
from ortrain.ops.registry.node_builder import GradientBuilder, NodeBuilder
from ortrain.ops.registry.record import MICROSOFT, InferenceContext, KernelCall, Lowering, LoweringContext, check_inputs, normalize_axis, operator


def infer_softmax(c: InferenceContext) -> list[TensorType]:
    """y = softmax(x), or its logarithm, along `axis` (before opset 13: over all axes from `axis` on together)"""
    normalize_axis(c, c.attribute("axis", -1), max(len(c.shape(0)), 1))
    return [c.type(0)]


def infer_softmax_gradient(c: InferenceContext) -> list[TensorType]:
    """dx = y (dY - sum(dY y)) of (dY, y) for Softmax, dY - e ** y sum(dY) for LogSoftmax, sums along the axis"""
    check_inputs(c, c.shape(0), 1)
    return infer_softmax(c)


def outer_size_inner(dims: tuple[int, ...], axis: int, flattened: bool) -> tuple[int, int, int]:
    """Return (outer, size, inner), the products of the dimensions before, along and after the softmax.

    flattened: the softmax is over all axes from `axis` on, as before opset 13."""
    axis %= max(len(dims), 1)
    end = len(dims) if flattened else axis + 1
    return tuple(math.prod(part) for part in (dims[:axis], dims[axis:end], dims[end:]))  # type: ignore[return-value]


def lower_softmax(kernel: str) -> Lowering:
    def lower(c: LoweringContext) -> KernelCall:
        flattened = c.opset < 13
        return KernelCall(kernel, outer_size_inner(c.dims(0), c.attribute("axis", 1 if flattened else -1), flattened), in_place={0: 0})

    return lower


def lower_softmax_gradient(kernel: str, flattened: bool) -> Lowering:
    def lower(c: LoweringContext) -> KernelCall:
        return KernelCall(kernel, outer_size_inner(c.dims(0), c.attribute("axis", 1 if flattened else -1), flattened), in_place={0: 0})

    return lower


def softmax_gradient(name: str) -> Callable[[Any], Sequence[str | None]]:
    """Return the gradient rule that emits the operator `name` (before opset 13) or `name`_13."""

    def gradient(g: GradientBuilder) -> Sequence[str | None]:
        flattened = g.opset < 13
        return [g.op(name if flattened else f"{name}_13", g.dy, g.outputs[0], domain=MICROSOFT, axis=int(g.attribute("axis", 1 if flattened else -1)))]

    return gradient


def _register() -> None:
    # a logarithm is off by as much as its absolute error, so only a probability may be rounded
    for name, kernel, rounded in (("Softmax", "softmax", (1,)), ("LogSoftmax", "log_softmax", ())):
        operator(name, lower=lower_softmax(kernel), gradient=softmax_gradient(f"{name}Grad"))(infer_softmax)
        operator(f"{name}Grad", domain=MICROSOFT, lower=lower_softmax_gradient(f"{kernel}_grad", True), takes_rounded=rounded)(infer_softmax_gradient)
        operator(f"{name}Grad_13", domain=MICROSOFT, lower=lower_softmax_gradient(f"{kernel}_grad", False), takes_rounded=rounded)(infer_softmax_gradient)


_register()


def hardmax_decomposition(g: NodeBuilder) -> list[str] | None:
    """Return OneHot(ArgMax(x)) over the same rows as the softmax of the node's opset."""
    kind = g.type(g.inputs[0])
    if not kind.is_static:
        return None
    flattened = g.opset < 13
    outer, size, inner = outer_size_inner(kind.sizes, g.attribute("axis", 1 if flattened else -1), flattened)
    rows = g.op("Reshape", g.inputs[0], g.constant([outer, size, inner]))
    values = g.constant(np.array([0, 1]), g.inputs[0])
    one_hot = g.op("OneHot", g.op("ArgMax", rows, axis=1, keepdims=0), g.constant([size]), values, axis=1)
    return [g.op("Reshape", one_hot, g.constant(list(kind.sizes)))]


@operator("Hardmax", decompose=hardmax_decomposition, differentiable=False)
def hardmax(c: InferenceContext) -> list[TensorType]:
    """y = 1 at the first of the largest elements along `axis` (before opset 13: over all axes from `axis` on together), else 0"""
    return infer_softmax(c)
