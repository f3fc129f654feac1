"""Running sums and products along an axis."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ortrain.ir import TensorType
from ortrain.ops.building import GradientBuilder
from ortrain.ops.elementwise import same_as_input
from ortrain.ops.record import ORTRAIN, InferenceContext, KernelCall, LoweringContext, normalize_axis, operator


def packed_axis(c: LoweringContext, axis: int) -> tuple[int, ...]:
    """outer, size, inner, exclusive, reverse"""
    dims = c.dims(0)
    axis = normalize_axis(c, axis, len(dims))
    return (int(np.prod(dims[:axis], dtype=np.int64)), dims[axis], int(np.prod(dims[axis + 1 :], dtype=np.int64)), int(c.attribute("exclusive", 0)),
            int(c.attribute("reverse", 0)))


def lower_sum(c: LoweringContext) -> KernelCall:
    axis = c.value(1)
    if axis is None:
        raise c.error("expected an axis that is known before running, got one that is computed")
    return KernelCall("running_sum", packed_axis(c, int(axis.reshape(-1)[0])))


def sum_gradient(g: GradientBuilder) -> Sequence[str | None]:
    return [g.op("CumSum", g.dy, g.inputs[1], exclusive=int(g.attribute("exclusive", 0)), reverse=1 - int(g.attribute("reverse", 0))), None]


@operator("CumSum", lower=lower_sum, gradient=sum_gradient, stop=(1,))
def cumulative_sum(c: InferenceContext) -> list[TensorType]:
    """y = the sum of x up to each element along an axis; without the element itself if exclusive, from the end if reverse"""
    return same_as_input(c)


@operator("CumulativeProduct", domain=ORTRAIN, lower=lambda c: KernelCall("running_product", packed_axis(c, int(c.attribute("axis")))), differentiable=False)
def cumulative_product(c: InferenceContext) -> list[TensorType]:
    """y = the product of x up to each element along an axis; without the element itself if exclusive, from the end if reverse"""
    return same_as_input(c)
