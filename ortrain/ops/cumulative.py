"""Running sums and products along an axis."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ortrain.ir import TensorType
from ortrain.ops.elementwise import same_as_input
from ortrain.ops.registry.node_builder import GradientBuilder, NodeBuilder
from ortrain.ops.registry.record import ORTRAIN, InferenceContext, KernelCall, Lowering, LoweringContext, check_inputs, normalize_axis, operator


def packed_axis(c: LoweringContext, axis: int) -> tuple[int, ...]:
    """outer, size, inner, exclusive, reverse"""
    dims = c.dims(0)
    axis = normalize_axis(c, axis, len(dims))
    return (math.prod(dims[:axis]), dims[axis], math.prod(dims[axis + 1 :]), int(c.attribute("exclusive", 0)),
            int(c.attribute("reverse", 0)))


def lower_sum(c: LoweringContext) -> KernelCall:
    axis = c.value(1)
    if axis is None:
        raise c.error("expected an axis that is known before running, got one that is computed")
    return KernelCall("running_sum", packed_axis(c, int(axis.reshape(-1)[0])))


def sum_gradient(g: GradientBuilder) -> Sequence[str | None]:
    return [g.op("CumSum", g.dy, g.inputs[1], exclusive=int(g.attribute("exclusive", 0)), reverse=1 - int(g.attribute("reverse", 0))), None]


@operator("CumSum", lower=lower_sum, gradient=sum_gradient, stop_gradient=(1,))
def cumulative_sum(c: InferenceContext) -> list[TensorType]:
    """y = the sum of x up to each element along an axis; without the element itself if exclusive, from the end if reverse"""
    return same_as_input(c)


def product_decomposition(g: NodeBuilder) -> list[str] | None:
    """The same with the axis as an attribute."""
    axis = g.value(g.inputs[1])
    if axis is None or g.type(g.inputs[0]).dtype not in ("float32", "float64", "int64", "int32"):
        return None
    return [g.op("CumulativeProduct", g.inputs[0], domain=ORTRAIN, axis=int(axis.reshape(-1)[0]), **g.node.attributes)]


@operator("CumProd", decompose=product_decomposition, stop_gradient=(1,))
def cum_prod(c: InferenceContext) -> list[TensorType]:
    """y = the product of x up to each element along an axis; without the element itself if exclusive, from the end if reverse"""
    axis = c.value(1)
    if axis is not None:
        normalize_axis(c, int(axis.reshape(-1)[0]), len(c.shape(0)))
    return same_as_input(c)


def product_gradient(g: GradientBuilder) -> Sequence[str | None]:
    return [g.op("CumulativeProductGrad", g.dy, g.inputs[0], domain=ORTRAIN, **g.node.attributes)]


def lower_product(kernel: str) -> Lowering:
    return lambda c: KernelCall(kernel, packed_axis(c, int(c.attribute("axis"))))


@operator("CumulativeProduct", domain=ORTRAIN, lower=lower_product("running_product"), gradient=product_gradient)
def cumulative_product(c: InferenceContext) -> list[TensorType]:
    """CumProd along the axis that an attribute names"""
    return same_as_input(c)


@operator("CumulativeProductGrad", domain=ORTRAIN, lower=lower_product("running_product_grad"))
def cumulative_product_grad(c: InferenceContext) -> list[TensorType]:
    """dx of (dY, x) without a division: what comes before an element times what dY and the elements after it add up to"""
    check_inputs(c, c.shape(0), 1)
    return same_as_input(c)
