"""Gather, GatherElements, GatherND, OneHot and their gradients (part of the indexing family)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ortrain.dtypes import NUMBERS, numpy_dtype
from ortrain.ir import Dim, Shape, TensorType
from ortrain.ops.registry.node_builder import GradientBuilder
from ortrain.ops.registry.record import MICROSOFT, Guard, InferenceContext, KernelCall, LoweringContext, check_inputs, check_shape, normalize_axis, operator
from ortrain.ops.registry.sample_gradients import LookupGradient, SampleGradient, SampleGradientBuilder
from ortrain.ops.shape import Gradients, constant_dims, shape_value
from ortrain.ops.shared.broadcasting import contiguous_strides
from ortrain.ops.shared.strides import length_of, symbolic_shape


def check_indices(c: InferenceContext, index: int) -> None:
    """Raise unless input `index` is int32 or int64."""
    if c.dtype(index) not in ("int32", "int64"):
        raise c.error(f"expected indices of int32 or int64, got {c.dtype(index)}")


def zeros_like(g: GradientBuilder, value: str) -> str:
    """Return zeros with the shape and dtype of a value."""
    return str(g.op("ConstantOfShape", shape_value(g, value), value=np.zeros(1, numpy_dtype(g.type(value).dtype))))


def shape_from_input(c: InferenceContext, index: int, rank: int | None) -> Shape | None:
    """Return the shape that input `index` holds: its constant elements, or symbols. None when neither the elements nor the rank are known.

    rank: the rank of that shape, or None to take the input's length."""
    known = constant_dims(c, index)
    if known is not None:
        return tuple(known)
    rank = rank if rank is not None else length_of(c, index)
    return None if rank is None else symbolic_shape(c, rank)


def pack_rows(dims: tuple[int, ...], indices: tuple[int, ...], axis: int) -> tuple[int, ...]:
    """Pack (outer, size, n, inner, stride of the indices over outer) for the kernels that move whole rows; the stride is 0, as all share the indices."""
    return (math.prod(dims[:axis]), dims[axis], math.prod(indices), math.prod(dims[axis + 1:]), 0)


def lower_gather(c: LoweringContext) -> KernelCall:
    dims = c.dims(0)
    ints = pack_rows(dims, c.dims(1), normalize_axis(c, c.attribute("axis", 0), len(dims)))
    return KernelCall("gather", ints, scratch=8 * ints[2], guards=(Guard(1, -ints[1], ints[1]),))


def gather_gradient(g: GradientBuilder) -> Gradients:
    dx = g.op("GatherGrad", shape_value(g, g.inputs[0]), g.inputs[1], g.dy, domain=MICROSOFT, axis=g.attribute("axis", 0))
    g.declare(dx, g.type(g.inputs[0]))
    return [dx, None]


def gather_sample_gradients(g: SampleGradientBuilder) -> list[SampleGradient | None]:
    """The gradient of a table whose rows the samples look up."""
    shape, indices = g.shape(g.inputs[0]), g.inputs[1]
    if int(g.attribute("axis", 0)) % len(shape) or len(shape) != 2 or not isinstance(shape[0], int) or not g.has_samples(1):
        raise g.refusal("looks up weights other than by the rows of one matrix")
    wide = indices if g.type(indices).dtype == "int64" else g.op("Cast", indices, to=NUMBERS["int64"])
    rows = g.rows(g.dy, g.outputs[0])
    positive = g.op("Mod", g.op("Reshape", g.samples_first(wide, indices), g.op("Concat", g.count, g.constant([-1]), axis=0)), g.constant([shape[0]]))
    return [LookupGradient(positive, rows, shape[0]), None]


def evaluate_gather(c: InferenceContext) -> list[np.ndarray]:
    x, indices = c.value(0), c.value(1)
    assert x is not None and indices is not None
    size = x.shape[normalize_axis(c, c.attribute("axis", 0), x.ndim)]
    if indices.size and not -size <= indices.min() <= indices.max() < size:
        raise c.error(f"expected indices in [{-size}, {size}), got {indices.min()} to {indices.max()}")
    return [np.asarray(np.take(x, indices.astype(np.intp), c.attribute("axis", 0)))]


@operator("Gather", lower=lower_gather, gradient=gather_gradient, evaluate=evaluate_gather, stop_gradient=(1,),
          sample_gradients=gather_sample_gradients)
def gather(c: InferenceContext) -> list[TensorType]:
    """y = the slices of x at the given indices along `axis`; negative indices count from the end"""
    check_indices(c, 1)
    dims = c.shape(0)
    axis = normalize_axis(c, c.attribute("axis", 0), len(dims))
    return [TensorType(c.dtype(0), (*dims[:axis], *c.shape(1), *dims[axis + 1:]))]


def lower_gather_grad(c: LoweringContext) -> KernelCall:
    dims = c.output_dims(0)
    ints = pack_rows(dims, c.dims(1), normalize_axis(c, c.attribute("axis", 0), len(dims)))
    return KernelCall("gather_grad", ints, scratch=8 * ints[2], guards=(Guard(1, -ints[1], ints[1]),))


@operator("GatherGrad", domain=MICROSOFT, lower=lower_gather_grad, differentiable=False)
def gather_grad(c: InferenceContext) -> list[TensorType]:
    """dx = zeros plus each slice of dY at the index that Gather read it from, of (shape of x, indices, dY)"""
    check_indices(c, 1)
    known, dy, indices = constant_dims(c, 0), c.shape(2), c.shape(1)
    rank = len(dy) - len(indices) + 1
    axis = normalize_axis(c, c.attribute("axis", 0), rank)
    check_shape(c, "dy", dy, (*dy[:axis], *indices, *dy[axis + len(indices):]))
    size: Dim = symbolic_shape(c, rank)[axis] if known is None else known[axis] if len(known) == rank else -1
    out = (*dy[:axis], size, *dy[axis + len(indices):])
    if known is not None and (len(known) != rank or any(isinstance(d, int) and d != k for d, k in zip(out, known, strict=True))):
        raise c.error(f"expected dy with the shape that Gather gives for x {known} and indices {list(indices)}, got {list(dy)}")
    return [TensorType(c.dtype(2), out if known is None else tuple(known))]


def pack_elements(dims: tuple[int, ...], indices: tuple[int, ...], axis: int) -> tuple[int, ...]:
    """Pack (rank, axis, size of data along the axis, index dims, data strides, whether to check indices) for the kernels with one index per element."""
    return (len(dims), axis, dims[axis], *indices, *contiguous_strides(dims), 0)


def check_element_indices(c: InferenceContext, dims: Shape, indices: Shape) -> int:
    """Return the normalized attribute axis. Raises if the indices' shape does not fit into data of shape `dims`."""
    if len(dims) != len(indices):
        raise c.error(f"expected indices of rank {len(dims)}, got shape {list(indices)}")
    axis = normalize_axis(c, c.attribute("axis", 0), len(dims))
    if any(i != axis and isinstance(d, int) and isinstance(n, int) and n > d for i, (d, n) in enumerate(zip(dims, indices, strict=True))):
        raise c.error(f"expected indices that fit into {list(dims)} but along axis {axis}, got shape {list(indices)}")
    return axis


def lower_elements(kernel: str, indices: int) -> Any:
    """Return the lowering of a kernel with one index per element.

    indices: the number of the index input. Data is input 0 for gather_elements, output 0 for its gradient."""

    def lower(c: LoweringContext) -> KernelCall:
        dims = c.dims(0) if kernel == "gather_elements" else c.output_dims(0)
        axis = check_element_indices(c, dims, c.dims(indices))
        return KernelCall(kernel, pack_elements(dims, c.dims(indices), axis), guards=(Guard(indices, -dims[axis], dims[axis]),), checks_indices=True)

    return lower


def gather_elements_gradient(g: GradientBuilder) -> Gradients:
    dx = g.op("GatherElementsGrad", g.dy, shape_value(g, g.inputs[0]), g.inputs[1], domain=MICROSOFT, axis=g.attribute("axis", 0))
    g.declare(dx, g.type(g.inputs[0]))
    return [dx, None]


@operator("GatherElements", lower=lower_elements("gather_elements", 1), gradient=gather_elements_gradient, stop_gradient=(1,))
def gather_elements(c: InferenceContext) -> list[TensorType]:
    """y[i] = x[i with the coordinate along `axis` replaced by indices[i]]"""
    check_indices(c, 1)
    check_element_indices(c, c.shape(0), c.shape(1))
    return [TensorType(c.dtype(0), c.shape(1))]


@operator("GatherElementsGrad", domain=MICROSOFT, lower=lower_elements("gather_elements_grad", 2), differentiable=False)
def gather_elements_grad(c: InferenceContext) -> list[TensorType]:
    """dx = zeros plus each dY[i] at the position that GatherElements read it from, of (dY, shape of x, indices)"""
    check_indices(c, 2)
    check_inputs(c, c.shape(2), 0)
    return [TensorType(c.dtype(0), shape_from_input(c, 1, len(c.shape(2))))]


def pack_tuples(dims: tuple[int, ...], indices: tuple[int, ...], batch: int) -> tuple[tuple[int, ...], tuple[Guard, ...]]:
    """Pack (batches, size, n, inner, n, k, k indexed dims, their k strides) for the row kernels with index tuples of length k, and return the guards.

    A guard has one range, so there is one only where all indexed dimensions are equal; otherwise the kernel checks the tuples before it writes."""
    k = indices[-1]
    indexed, n = dims[batch:batch + k], math.prod(indices[batch:-1])
    ints = (math.prod(dims[:batch]), math.prod(indexed), n, math.prod(dims[batch + k:]), n, k, *indexed, *contiguous_strides(indexed))
    return ints, (Guard(1, -indexed[0], indexed[0]),) if len(set(indexed)) == 1 else ()


def check_index_tuples(c: InferenceContext, rank: int, batch: int) -> int:
    """Return the length of the index tuples, the last dimension of input 1. Raises if it does not fit data of this rank after `batch` dimensions."""
    check_indices(c, 1)
    k = c.shape(1)[-1] if c.shape(1) else None
    if not isinstance(k, int) or not 1 <= k <= rank - batch or len(c.shape(1)) <= batch:
        raise c.error(f"expected index tuples of 1 to {rank - batch} entries, got shape {list(c.shape(1))}")
    return k


def lower_tuples(kernel: str) -> Any:
    def lower(c: LoweringContext) -> KernelCall:
        dims = c.dims(0) if kernel == "gather_nd" else c.output_dims(0)
        ints, guards = pack_tuples(dims, c.dims(1), c.attribute("batch_dims", 0))
        return KernelCall(kernel, ints, scratch=8 * ints[0] * ints[2], guards=guards)

    return lower


def gather_nd_gradient(g: GradientBuilder) -> Gradients:
    dx = g.op("GatherNDGrad", shape_value(g, g.inputs[0]), g.inputs[1], g.dy, domain=MICROSOFT, batch_dims=g.attribute("batch_dims", 0))
    g.declare(dx, g.type(g.inputs[0]))
    return [dx, None]


@operator("GatherND", lower=lower_tuples("gather_nd"), gradient=gather_nd_gradient, stop_gradient=(1,))
def gather_nd(c: InferenceContext) -> list[TensorType]:
    """y = the slices of x at the given index tuples, within each batch of the first `batch_dims` dimensions"""
    dims, batch = c.shape(0), c.attribute("batch_dims", 0)
    k = check_index_tuples(c, len(dims), batch)
    if any(isinstance(d, int) and isinstance(n, int) and d != n for d, n in zip(dims[:batch], c.shape(1), strict=False)):
        raise c.error(f"expected equal sizes in the first {batch} dimensions, got {list(dims)} and {list(c.shape(1))}")
    return [TensorType(c.dtype(0), (*c.shape(1)[:-1], *dims[batch + k:]))]


@operator("GatherNDGrad", domain=MICROSOFT, lower=lower_tuples("gather_nd_grad"), differentiable=False)
def gather_nd_grad(c: InferenceContext) -> list[TensorType]:
    """dx = zeros plus each slice of dY at the index tuple that GatherND read it from, of (shape of x, indices, dY)"""
    dims, batch = shape_from_input(c, 0, None), int(c.attribute("batch_dims", 0))
    if dims is None:
        check_indices(c, 1)
    else:
        k = check_index_tuples(c, len(dims), batch)
        check_shape(c, "indices", c.shape(1), (*dims[:batch], *c.shape(1)[batch:]))
        check_shape(c, "dy", c.shape(2), (*c.shape(1)[:-1], *dims[batch + k:]))
    return [TensorType(c.dtype(2), dims)]


def lower_one_hot(c: LoweringContext) -> KernelCall:
    axis = normalize_axis(c, c.attribute("axis", -1), len(c.dims(0)) + 1)
    return KernelCall("one_hot", (c.output_dims(0)[axis], math.prod(c.dims(0)[axis:])))


def one_hot_gradient(g: GradientBuilder) -> Gradients:
    """Return the gradient of `values`: the sums of dY over the positions that hold the off value and over those that hold the on value."""
    axis = int(g.attribute("axis", -1))
    sums = []
    for off, on in ((1.0, 0.0), (0.0, 1.0)):
        mask = g.op("OneHot", *g.inputs[:2], g.constant(np.array([off, on]), g.inputs[2]), axis=axis)
        total = g.reduce_sum(g.op("Mul", g.dy, mask), list(range(g.rank(g.dy))), keepdims=False)
        sums.append(g.op("Reshape", total, g.constant([1])))
    return [None, None, g.op("Concat", *sums, axis=0)]


@operator("OneHot", lower=lower_one_hot, gradient=one_hot_gradient, stop_gradient=(0, 1))
def one_hot(c: InferenceContext) -> list[TensorType]:
    """y = values[1] where the position along a new axis of size `depth` equals the index, else values[0]"""
    dims, depth = c.shape(0), constant_dims(c, 1)
    axis = normalize_axis(c, c.attribute("axis", -1), len(dims) + 1)
    check_shape(c, "values", c.shape(2), (2,))
    size: Dim = symbolic_shape(c, len(dims) + 1)[axis] if depth is None else depth[0]
    return [TensorType(c.dtype(2), (*dims[:axis], size, *dims[axis:]))]
