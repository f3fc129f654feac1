"""CumSum, CumProd and the product's gradient."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ortrain.ir import TensorType
from ortrain.ops.elementwise import same_as_input
from ortrain.ops.registry.node_builder import GradientBuilder, NodeBuilder
from ortrain.ops.registry.record import ORTRAIN, InferenceContext, KernelCall, Lowering, LoweringContext, check_inputs, normalize_axis, operator


def pack_axis(c: LoweringContext, axis: int) -> tuple[int, ...]:
    """Pack (outer, size, inner, exclusive, reverse) for an operator along `axis`."""
    dims = c.dims(0)
    axis = normalize_axis(c, axis, len(dims))
    return (math.prod(dims[:axis]), dims[axis], math.prod(dims[axis + 1 :]), int(c.attribute("exclusive", 0)),
            int(c.attribute("reverse", 0)))


def lower_cumsum(c: LoweringContext) -> KernelCall:
    axis = c.value(1)
    if axis is None:
        raise c.error("expected an axis that is known before running, got one that is computed")
    return KernelCall("running_sum", pack_axis(c, int(axis.reshape(-1)[0])))


def cumsum_gradient(g: GradientBuilder) -> Sequence[str | None]:
    return [g.op("CumSum", g.dy, g.inputs[1], exclusive=int(g.attribute("exclusive", 0)), reverse=1 - int(g.attribute("reverse", 0))), None]


@operator("CumSum", lower=lower_cumsum, gradient=cumsum_gradient, stop_gradient=(1,))
def cumsum(c: InferenceContext) -> list[TensorType]:
    """y[i] = x[0] + … + x[i] along an axis; without x[i] if `exclusive` is set, from the end if `reverse` is set"""
    return same_as_input(c)


def cumprod_decomposition(g: NodeBuilder) -> list[str] | None:
    """Return CumulativeProduct, which has the axis as an attribute, for a constant axis."""
    axis = g.value(g.inputs[1])
    if axis is None or g.type(g.inputs[0]).dtype not in ("float32", "float64", "int64", "int32"):
        return None
    return [g.op("CumulativeProduct", g.inputs[0], domain=ORTRAIN, axis=int(axis.reshape(-1)[0]), **g.node.attributes)]


@operator("CumProd", decompose=cumprod_decomposition, stop_gradient=(1,))
def cumprod(c: InferenceContext) -> list[TensorType]:
    """y[i] = x[0] · … · x[i] along an axis; without x[i] if `exclusive` is set, from the end if `reverse` is set"""
    axis = c.value(1)
    if axis is not None:
        normalize_axis(c, int(axis.reshape(-1)[0]), len(c.shape(0)))
    return same_as_input(c)


def cumulative_product_gradient(g: GradientBuilder) -> Sequence[str | None]:
    return [g.op("CumulativeProductGrad", g.dy, g.inputs[0], domain=ORTRAIN, **g.node.attributes)]


def lower_cumulative_product(kernel: str) -> Lowering:
    return lambda c: KernelCall(kernel, pack_axis(c, int(c.attribute("axis"))))


@operator("CumulativeProduct", domain=ORTRAIN, lower=lower_cumulative_product("running_product"), gradient=cumulative_product_gradient)
def cumulative_product(c: InferenceContext) -> list[TensorType]:
    """y[i] = x[0] · … · x[i] along the attribute `axis`, otherwise as CumProd"""
    return same_as_input(c)


@operator("CumulativeProductGrad", domain=ORTRAIN, lower=lower_cumulative_product("running_product_grad"))
def cumulative_product_grad(c: InferenceContext) -> list[TensorType]:
    """dx[i] = sum over j >= i of dY[j] · (product of x[0] … x[j] without x[i]), of (dY, x); without division, so zeros in x are exact"""
    check_inputs(c, c.shape(0), 1)
    return same_as_input(c)
