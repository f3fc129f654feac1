"""Scatters: ScatterElements, ScatterND with their reductions, TensorScatter."""

from __future__ import annotations

from typing import Any

import numpy as np

from ortrain.dtypes import NUMBERS, numpy_dtype
from ortrain.ir import TensorType
from ortrain.ops.gathering import check_elements, check_indices, check_tuples, element_ints, tuple_ints, zeros_like
from ortrain.ops.registry.node_builder import GradientBuilder, NodeBuilder
from ortrain.ops.registry.record import ORTRAIN, Guard, InferenceContext, KernelCall, LoweringContext, check_gradient, check_shape, normalize_axis, operator
from ortrain.ops.shape import Gradients

REDUCTIONS = {"mul": 0, "max": 1, "min": 2}
"""As the kernels number them; beside them none and add."""


def reduction_of(c: InferenceContext | NodeBuilder) -> str:
    """The attribute reduction."""
    name = str(c.attribute("reduction", "none"))
    if name not in ("none", "add", *REDUCTIONS):
        raise c.error(f"expected a reduction of none, add, mul, max and min, got {name!r}")
    return name


def called(kernel: str, c: LoweringContext, ints: tuple[int, ...], short: tuple[int, ...], scratch: int, guards: tuple[Guard, ...]) -> KernelCall:
    """The kernel of the node's reduction; `short` are the ints of those that multiply or keep an extreme, which need a row number per update."""
    how = reduction_of(c)
    if how in REDUCTIONS:
        return KernelCall(f"{kernel}_reduce", (REDUCTIONS[how], *short), scratch=scratch, in_place={0: 0}, guards=guards)
    return KernelCall(f"{kernel}_add" if how == "add" else kernel, ints, scratch=scratch, in_place={0: 0}, guards=guards)


def lower_elements(c: LoweringContext) -> KernelCall:
    dims = c.dims(0)
    axis = check_elements(c, dims, c.dims(1))
    ints = element_ints(dims, c.dims(1), axis)
    return called("scatter_elements", c, ints, ints, 8 * c.type(1).count if reduction_of(c) in REDUCTIONS else 0, (Guard(1, -dims[axis], dims[axis]),))


def lower_tuples(c: LoweringContext) -> KernelCall:
    ints, guards = tuple_ints(c.dims(0), c.dims(1), 0)
    return called("scatter_nd", c, ints, (ints[1], ints[2], ints[3], *ints[5:]), 8 * ints[0] * ints[2], guards)


# ---- gradients


def scatter_gradient(take: str) -> Any:
    """The rule of a scatter whose updates `take` reads back."""

    def rule(g: GradientBuilder) -> Gradients:
        axis = {"axis": g.attribute("axis", 0)} if take == "GatherElements" else {}
        how = reduction_of(g)
        if how == "mul":
            data, updates = g.ops(f"{g.node.op_type}ProductGrad", g.dy, *g.inputs, outputs=[True, True], domain=ORTRAIN, **axis)
            return [data, None, updates]
        if how in REDUCTIONS:
            return extreme_gradient(g, take, axis)
        return put_gradient(g, take, axis, how == "add")

    return rule


def put_gradient(g: GradientBuilder, take: str, axis: dict[str, Any], added: bool) -> Gradients:
    """data: dy where nothing was put (all of it where updates were added); updates: dy where they went."""
    data = updates = None
    if g.needs(0):
        data = g.op("Identity", g.dy) if added else g.op(g.node.op_type, g.dy, g.inputs[1], zeros_like(g, g.inputs[2]), **axis)
    if g.needs(2):
        updates = g.op(take, g.dy, g.inputs[1], **axis)
    return [data, None, updates]


def extreme_gradient(g: GradientBuilder, take: str, axis: dict[str, Any]) -> Gradients:
    """dy to what the extreme came from, in equal parts to all that tie for it, as the gradients of Max and ReduceMax."""
    data, indices, updates = g.inputs
    y, to = g.outputs[0], NUMBERS[g.type(data).dtype]
    kept = g.op("Cast", g.op("Equal", data, y), to=to)
    taken = g.op("Cast", g.op("Equal", updates, g.op(take, y, indices, **axis)), to=to)
    share = g.op("Div", g.dy, g.op(g.node.op_type, kept, indices, taken, reduction="add", **axis))
    return [g.op("Mul", kept, share) if g.needs(0) else None, None,
            g.op("Mul", taken, g.op(take, share, indices, **axis)) if g.needs(2) else None]


def product_scratch(c: LoweringContext, n: int) -> int:
    """A row number per update, then a tensor of data's size."""
    return 8 * n + numpy_dtype(c.dtype(0)).itemsize * c.type(1).count


def lower_elements_gradient(c: LoweringContext) -> KernelCall:
    dims, axis = c.dims(1), normalize_axis(c, c.attribute("axis", 0), len(c.dims(1)))
    return KernelCall("scatter_elements_product_grad", (0, *element_ints(dims, c.dims(2), axis)), scratch=product_scratch(c, c.type(2).count),
                      guards=(Guard(2, -dims[axis], dims[axis]),))


def lower_tuples_gradient(c: LoweringContext) -> KernelCall:
    ints, _ = tuple_ints(c.dims(1), c.dims(2), 0)
    return KernelCall("scatter_nd_product_grad", (0, ints[1], ints[2], ints[3], *ints[5:]), scratch=product_scratch(c, ints[2]))


def infer_product_gradient(c: InferenceContext) -> list[TensorType]:
    """(ddata, dupdates) of (dY, data, indices, updates) where updates are multiplied; nothing is divided, so that zeros do no harm"""
    check_gradient(c, scatter_elements if c.node.op_type == "ScatterElementsProductGrad" else scatter_nd)
    return [c.type(1), c.type(3)]


operator("ScatterElementsProductGrad", domain=ORTRAIN, lower=lower_elements_gradient, written=2)(infer_product_gradient)
operator("ScatterNDProductGrad", domain=ORTRAIN, lower=lower_tuples_gradient, written=2)(infer_product_gradient)


# ---- the operators


@operator("ScatterND", lower=lower_tuples, gradient=scatter_gradient("GatherND"), stop_gradient=(1,))
def scatter_nd(c: InferenceContext) -> list[TensorType]:
    """y = data with the slices that index tuples name replaced by updates, or (reduction) increased or multiplied by them, or the larger or smaller of both"""
    dims = c.shape(0)
    reduction_of(c)
    check_shape(c, "updates", c.shape(2), (*c.shape(1)[:-1], *dims[check_tuples(c, len(dims), 0):]))
    return [c.type(0)]


@operator("ScatterElements", lower=lower_elements, gradient=scatter_gradient("GatherElements"), stop_gradient=(1,))
def scatter_elements(c: InferenceContext) -> list[TensorType]:
    """y = data with y[i with indices[i] along the axis] replaced by updates[i], or (reduction) as ScatterND"""
    reduction_of(c)
    check_indices(c, 1)
    check_elements(c, c.shape(0), c.shape(1))
    check_shape(c, "updates", c.shape(2), c.shape(1))
    return [c.type(0)]


operator("Scatter", lower=lower_elements, gradient=scatter_gradient("GatherElements"), stop_gradient=(1,))(scatter_elements)
"""What ScatterElements was called below opset 11."""


# ---- TensorScatter: a cache that sequences are written into


def cache_decomposition(g: NodeBuilder) -> list[str] | None:
    """ScatterElements at the indices that each sequence of the batch starts from."""
    c = g.context()
    axis, mode = cache_axis(c)
    length, size = c.shape(1)[axis], c.shape(0)[axis]
    if not isinstance(length, int) or not isinstance(size, int):
        return None
    rank = len(c.shape(0))
    at = g.constant(np.arange(int(length)).reshape([-1 if i == axis else 1 for i in range(rank)]))
    if g.has(2):
        at = g.op("Add", at, g.op("Reshape", g.inputs[2], g.constant([-1, *[1] * (rank - 1)])))
    if mode == "circular":
        at = g.op("Mod", at, g.constant(np.array(int(size))))
    return [g.op("ScatterElements", g.inputs[0], g.op("Expand", at, g.shape_of(g.inputs[1])), g.inputs[1], axis=axis)]


def cache_axis(c: InferenceContext) -> tuple[int, str]:
    """(axis, mode)"""
    mode, rank = str(c.attribute("mode", "linear")), len(c.shape(0))
    axis = normalize_axis(c, int(c.attribute("axis", -2)), rank)
    if mode not in ("linear", "circular") or axis == 0:
        raise c.error(f"expected the mode linear or circular and an axis that is not the batch's, got {mode!r} and {axis}")
    return axis, mode


@operator("TensorScatter", decompose=cache_decomposition, stop_gradient=(2,))
def tensor_scatter(c: InferenceContext) -> list[TensorType]:
    """y = past_cache [batch, …] with each sequence of update put at its write index along the axis, going round at the end if circular"""
    past, update = c.shape(0), c.shape(1)
    axis, _ = cache_axis(c)
    if len(update) != len(past) or any(isinstance(a, int) and isinstance(b, int) and (b > a if i == axis else a != b)
                                       for i, (a, b) in enumerate(zip(past, update, strict=True))):
        raise c.error(f"expected an update that fits into {list(past)} along axis {axis}, got shape {list(update)}")
    if c.has(2) and (c.dtype(2) != "int64" or len(c.shape(2)) != 1):
        raise c.error(f"expected write indices int64 [batch], got {c.dtype(2)}{list(c.shape(2))}")
    return [c.type(0)]
