"""ScatterElements and ScatterND with their reductions, their gradients, and TensorScatter."""

from __future__ import annotations

from typing import Any

import numpy as np

from ortrain.dtypes import NUMBERS, numpy_dtype
from ortrain.ir import TensorType
from ortrain.ops.gathering import check_element_indices, check_index_tuples, check_indices, pack_elements, pack_tuples, zeros_like
from ortrain.ops.registry.node_builder import GradientBuilder, NodeBuilder
from ortrain.ops.registry.record import ORTRAIN, Guard, InferenceContext, KernelCall, LoweringContext, check_gradient, check_shape, normalize_axis, operator
from ortrain.ops.shape import Gradients

REDUCTIONS = {"mul": 0, "max": 1, "min": 2}
"""Numbers that the kernels use for the reductions which need a pass of their own; none and add have separate kernels."""


def reduction_of(c: InferenceContext | NodeBuilder) -> str:
    """Return the attribute reduction: none, add, mul, max or min."""
    name = str(c.attribute("reduction", "none"))
    if name not in ("none", "add", *REDUCTIONS):
        raise c.error(f"expected a reduction of none, add, mul, max and min, got {name!r}")
    return name


def scatter_call(kernel: str, c: LoweringContext, ints: tuple[int, ...], short: tuple[int, ...], scratch: int, guards: tuple[Guard, ...],
                 checks_indices: bool = False) -> KernelCall:
    """Return the kernel call for the node's reduction.

    ints: attributes for none and add. short: attributes for mul, max and min. checks_indices: as in KernelCall."""
    reduction = reduction_of(c)
    if reduction in REDUCTIONS:
        return KernelCall(f"{kernel}_reduce", (REDUCTIONS[reduction], *short), scratch=scratch, in_place={0: 0}, guards=guards, checks_indices=checks_indices)
    return KernelCall(f"{kernel}_add" if reduction == "add" else kernel, ints, scratch=scratch, in_place={0: 0}, guards=guards, checks_indices=checks_indices)


def lower_elements(c: LoweringContext) -> KernelCall:
    dims = c.dims(0)
    axis = check_element_indices(c, dims, c.dims(1))
    ints = pack_elements(dims, c.dims(1), axis)
    return scatter_call("scatter_elements", c, ints, ints, 0, (Guard(1, -dims[axis], dims[axis]),), checks_indices=True)


def lower_tuples(c: LoweringContext) -> KernelCall:
    ints, guards = pack_tuples(c.dims(0), c.dims(1), 0)
    return scatter_call("scatter_nd", c, ints, (ints[1], ints[2], ints[3], *ints[5:]), 8 * ints[0] * ints[2], guards)


# ---- gradients


def scatter_gradient(gather_op: str) -> Any:
    """Return the gradient rule of a scatter. gather_op: the operator that reads elements at the scatter's indices."""

    def rule(g: GradientBuilder) -> Gradients:
        axis = {"axis": g.attribute("axis", 0)} if gather_op == "GatherElements" else {}
        reduction = reduction_of(g)
        if reduction == "mul":
            data, updates = g.ops(f"{g.node.op_type}ProductGrad", g.dy, *g.inputs, outputs=[True, True], domain=ORTRAIN, **axis)
            return [data, None, updates]
        if reduction in REDUCTIONS:
            return extreme_gradient(g, gather_op, axis)
        return linear_gradient(g, gather_op, axis, reduction == "add")

    return rule


def linear_gradient(g: GradientBuilder, gather_op: str, axis: dict[str, Any], added: bool) -> Gradients:
    """Return the gradients for the reductions none and add.

    ddata is dY, except that it is 0 at updated positions unless updates were added; dupdates is dY at the updated positions."""
    data = updates = None
    if g.needs(0):
        data = g.op("Identity", g.dy) if added else g.op(g.node.op_type, g.dy, g.inputs[1], zeros_like(g, g.inputs[2]), **axis)
    if g.needs(2):
        updates = g.op(gather_op, g.dy, g.inputs[1], **axis)
    return [data, None, updates]


def extreme_gradient(g: GradientBuilder, gather_op: str, axis: dict[str, Any]) -> Gradients:
    """Return the gradients for the reductions max and min: dY flows to the operand that holds the extreme, in equal shares where several tie."""
    data, indices, updates = g.inputs
    y, to = g.outputs[0], NUMBERS[g.type(data).dtype]
    is_from_data = g.op("Cast", g.op("Equal", data, y), to=to)
    is_from_updates = g.op("Cast", g.op("Equal", updates, g.op(gather_op, y, indices, **axis)), to=to)
    share = g.op("Div", g.dy, g.op(g.node.op_type, is_from_data, indices, is_from_updates, reduction="add", **axis))
    return [g.op("Mul", is_from_data, share) if g.needs(0) else None, None,
            g.op("Mul", is_from_updates, g.op(gather_op, share, indices, **axis)) if g.needs(2) else None]


def product_bytes(c: LoweringContext) -> int:
    """Return the bytes of the products of a product gradient, a tensor of the size of data."""
    return numpy_dtype(c.dtype(0)).itemsize * c.type(1).count


def lower_elements_product_grad(c: LoweringContext) -> KernelCall:
    dims, axis = c.dims(1), normalize_axis(c, c.attribute("axis", 0), len(c.dims(1)))
    return KernelCall("scatter_elements_product_grad", pack_elements(dims, c.dims(2), axis), scratch=product_bytes(c),
                      guards=(Guard(2, -dims[axis], dims[axis]),))


def lower_tuples_product_grad(c: LoweringContext) -> KernelCall:
    """Lower with scratch for a row number of each update and for the products."""
    ints, _ = pack_tuples(c.dims(1), c.dims(2), 0)
    return KernelCall("scatter_nd_product_grad", (0, ints[1], ints[2], ints[3], *ints[5:]), scratch=8 * ints[2] + product_bytes(c))


def infer_product_grad(c: InferenceContext) -> list[TensorType]:
    """(ddata, dupdates) of (dY, data, indices, updates) for the reduction mul: dY times the product of all other factors, without division"""
    check_gradient(c, scatter_elements if c.node.op_type == "ScatterElementsProductGrad" else scatter_nd)
    return [c.type(1), c.type(3)]


operator("ScatterElementsProductGrad", domain=ORTRAIN, lower=lower_elements_product_grad, required_outputs=2)(infer_product_grad)
operator("ScatterNDProductGrad", domain=ORTRAIN, lower=lower_tuples_product_grad, required_outputs=2)(infer_product_grad)


# ---- the operators


@operator("ScatterND", lower=lower_tuples, gradient=scatter_gradient("GatherND"), stop_gradient=(1,))
def scatter_nd(c: InferenceContext) -> list[TensorType]:
    """y = data, its slices at the index tuples replaced by updates, or combined with them by `reduction` (add, mul, max, min)"""
    dims = c.shape(0)
    reduction_of(c)
    check_shape(c, "updates", c.shape(2), (*c.shape(1)[:-1], *dims[check_index_tuples(c, len(dims), 0):]))
    return [c.type(0)]


@operator("ScatterElements", lower=lower_elements, gradient=scatter_gradient("GatherElements"), stop_gradient=(1,))
def scatter_elements(c: InferenceContext) -> list[TensorType]:
    """y = data, y[i with indices[i] along `axis`] replaced by updates[i], or combined with it by `reduction` (add, mul, max, min)"""
    reduction_of(c)
    check_indices(c, 1)
    check_element_indices(c, c.shape(0), c.shape(1))
    check_shape(c, "updates", c.shape(2), c.shape(1))
    return [c.type(0)]


operator("Scatter", lower=lower_elements, gradient=scatter_gradient("GatherElements"), stop_gradient=(1,))(scatter_elements)
"""The name of ScatterElements before opset 11."""


# ---- TensorScatter: updates of a key-value cache


def tensor_scatter_decomposition(g: NodeBuilder) -> list[str] | None:
    """Return ScatterElements at the positions write_indices[batch] + 0, 1, …; None where the lengths are symbolic."""
    c = g.context()
    axis, mode = axis_and_mode(c)
    length, size = c.shape(1)[axis], c.shape(0)[axis]
    if not isinstance(length, int) or not isinstance(size, int):
        return None
    rank = len(c.shape(0))
    positions = g.constant(np.arange(int(length), dtype=np.int64).reshape([-1 if i == axis else 1 for i in range(rank)]))
    if g.has(2):
        positions = g.op("Add", positions, g.op("Reshape", g.inputs[2], g.constant([-1, *[1] * (rank - 1)])))
    if mode == "circular":
        positions = g.op("Mod", positions, g.constant(np.array(int(size), np.int64)))
    return [g.op("ScatterElements", g.inputs[0], g.op("Expand", positions, g.shape_of(g.inputs[1])), g.inputs[1], axis=axis)]


def axis_and_mode(c: InferenceContext) -> tuple[int, str]:
    """Return the attributes (axis, mode), the axis normalized. Raises for an unknown mode or the batch axis."""
    mode, rank = str(c.attribute("mode", "linear")), len(c.shape(0))
    axis = normalize_axis(c, int(c.attribute("axis", -2)), rank)
    if mode not in ("linear", "circular") or axis == 0:
        raise c.error(f"expected the mode linear or circular and an axis that is not the batch's, got {mode!r} and {axis}")
    return axis, mode


@operator("TensorScatter", decompose=tensor_scatter_decomposition, stop_gradient=(2,))
def tensor_scatter(c: InferenceContext) -> list[TensorType]:
    """y = past_cache [batch, …] with update[b] written from write_indices[b] on along `axis`, wrapping around at the end if circular"""
    past, update = c.shape(0), c.shape(1)
    axis, _ = axis_and_mode(c)
    if len(update) != len(past) or any(isinstance(a, int) and isinstance(b, int) and (b > a if i == axis else a != b)
                                       for i, (a, b) in enumerate(zip(past, update, strict=True))):
        raise c.error(f"expected an update that fits into {list(past)} along axis {axis}, got shape {list(update)}")
    if c.has(2) and (c.dtype(2) != "int64" or len(c.shape(2)) != 1):
        raise c.error(f"expected write indices int64 [batch], got {c.dtype(2)}{list(c.shape(2))}")
    return [c.type(0)]
