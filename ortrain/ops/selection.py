"""TopK, ArgMax, ArgMin, Compress, Trilu and ReverseSequence."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np

from ortrain.dtypes import numpy_dtype
from ortrain.ir import Dim, TensorType
from ortrain.ops.elementwise import same_as_input
from ortrain.ops.gathering import zeros_like
from ortrain.ops.registry.node_builder import GradientBuilder, NodeBuilder
from ortrain.ops.registry.record import MICROSOFT, Guard, InferenceContext, KernelCall, LoweringContext, check_shape, normalize_axis, operator

Gradients = Sequence[str | None]


# ---- TopK


def constant_k(c: InferenceContext) -> int | None:
    """Return k, an attribute before opset 10 and an input since, or None if it is not constant."""
    value = c.attribute("k") if c.opset < 10 else c.value(1)
    return None if value is None else int(np.asarray(value).reshape(-1)[0])


def top_k_gradient(g: GradientBuilder) -> Gradients:
    """Return dY scattered to the indices that TopK found. Raises if the indices have a gradient."""
    dy, index_gradients = g.gradients[0], g.gradients[1:]
    if dy is None or any(index_gradients):
        raise g.error("expected a gradient of the values alone")
    x = g.inputs[0]
    axis = int(g.attribute("axis", -1)) % g.rank(x)
    return [g.op("ScatterElements" if g.opset >= 11 else "Scatter", zeros_like(g, x), g.output(1), dy, axis=axis), None][: len(g.inputs)]


def sizes_around_axis(c: LoweringContext, axis: int) -> tuple[int, int, int]:
    """Return the number of elements before, along and after an axis of input 0."""
    dims = c.dims(0)
    axis %= len(dims)
    return prod(dims[:axis]), dims[axis], prod(dims[axis + 1 :])


def lower_top_k(c: LoweringContext) -> KernelCall:
    k = constant_k(c)
    if k is None:
        raise c.error("expected k that is known before running, got one that is computed")
    axis = int(c.attribute("axis", -1))
    return KernelCall("top_k", (*sizes_around_axis(c, axis), k, int(not c.attribute("largest", 1))))


@operator("TopK", lower=lower_top_k, gradient=top_k_gradient, stop_gradient=(1,), required_outputs=2)
def top_k(c: InferenceContext) -> list[TensorType]:
    """(values, indices) of the k largest (or smallest) elements along `axis`; among equal elements the first come first"""
    shape: list[Dim] = list(c.shape(0))
    axis = normalize_axis(c, int(c.attribute("axis", -1)), len(shape))
    k = constant_k(c)
    size_along_axis = shape[axis]
    if k is not None and (k < 0 or isinstance(size_along_axis, int) and k > size_along_axis):
        raise c.error(f"expected k in [0, {size_along_axis}], got {k}")
    shape[axis] = c.new_symbol("k") if k is None else k
    return [TensorType(c.dtype(0), tuple(shape)), TensorType("int64", tuple(shape))]


# ---- ArgMax and ArgMin, which have no gradient


def lower_arg_extreme(smallest: bool) -> Callable[[LoweringContext], KernelCall]:
    def lower(c: LoweringContext) -> KernelCall:
        sizes = sizes_around_axis(c, int(c.attribute("axis", 0)))
        if not sizes[1]:
            raise c.error("expected at least one element along the axis, got none")
        return KernelCall("arg_extreme", (*sizes, int(smallest), int(c.attribute("select_last_index", 0))))

    return lower


def infer_arg_extreme(c: InferenceContext) -> list[TensorType]:
    """y = the index of the largest (or smallest) element along `axis`; among equal elements the first, or the last if `select_last_index` is set"""
    shape: list[Dim] = list(c.shape(0))
    axis = normalize_axis(c, int(c.attribute("axis", 0)), len(shape))
    if c.attribute("keepdims", 1):
        shape[axis] = 1
    else:
        del shape[axis]
    return [TensorType("int64", tuple(shape))]


for _name, _smallest in (("ArgMax", False), ("ArgMin", True)):
    operator(_name, lower=lower_arg_extreme(_smallest), differentiable=False)(infer_arg_extreme)


# ---- Compress


def axis_and_selection(c: InferenceContext) -> tuple[int | None, np.ndarray | None]:
    """Return (axis, selected indices): the axis is None where x is flattened, the indices are None unless the condition is constant."""
    axis, condition = c.attribute("axis"), c.value(1)
    axis = None if axis is None else normalize_axis(c, int(axis), len(c.shape(0)))
    return axis, None if condition is None else np.flatnonzero(condition)


def compress_decomposition(g: NodeBuilder) -> list[str] | None:
    """Return the Gather of the slices that a constant condition selects."""
    axis, selected = axis_and_selection(g.context())
    if selected is None:
        return None
    x = g.op("Reshape", g.inputs[0], g.constant([-1])) if axis is None else g.inputs[0]
    return [g.op("Gather", x, g.constant(selected), axis=axis or 0)]


def compress_gradient(g: GradientBuilder) -> Gradients:
    """Return dY scattered to the rows that a computed condition selects; Compress of 0, 1, 2, … gives their indices."""
    x = g.inputs[0]
    axis, _ = axis_and_selection(g.context())
    if g.type(x).is_static:
        sizes = g.type(x).sizes if axis is not None else (g.type(x).count,)
        shape, places = g.constant(sizes), g.constant(np.arange(sizes[axis or 0], dtype=np.int64))
    elif g.opset < 11:
        raise g.error("expected a known shape where a computed condition chooses, or opset 11, got symbols")
    else:
        shape = g.shape_of(x) if axis is not None else g.op("Reshape", g.op("Size", x), g.constant([1]))
        zero, one, counted = (g.constant(np.array(number, np.int64)) for number in (0, 1, axis or 0))
        places = g.op("Range", zero, g.op("Gather", shape, counted), one)
    rows = g.op("Compress", places, g.inputs[1], axis=0)
    dx = g.op("GatherGrad", shape, rows, g.dy, domain=MICROSOFT, axis=axis or 0)
    return [dx if axis is not None else g.reshape_like(dx, x), None]


@operator("Compress", gradient=compress_gradient, decompose=compress_decomposition, decompose_first=True, stop_gradient=(1,))
def compress(c: InferenceContext) -> list[TensorType]:
    """y = the slices of x along `axis` (the elements of flattened x without one) where the condition is true; it may be shorter than the axis"""
    shape: list[Dim] = list(c.shape(0))
    axis, selected = axis_and_selection(c)
    if c.dtype(1) != "bool" or len(c.shape(1)) != 1:
        raise c.error(f"expected a condition bool [length], got {c.dtype(1)}{list(c.shape(1))}")
    if axis is None:
        shape, axis = [prod(int(size) for size in shape) if c.type(0).is_static else c.new_symbol("count")], 0
    length, size_along_axis = c.shape(1)[0], shape[axis]
    if isinstance(length, int) and isinstance(size_along_axis, int) and length > size_along_axis:
        raise c.error(f"expected a condition of at most {size_along_axis} elements, got {length}")
    shape[axis] = c.new_symbol("chosen") if selected is None else len(selected)
    return [TensorType(c.dtype(0), tuple(shape))]


# ---- Trilu


def trilu_decomposition(g: NodeBuilder) -> list[str] | None:
    """Return Where of a constant triangular mask, x and 0."""
    kind = g.type(g.inputs[0])
    k = g.value(g.inputs[1]) if g.has(1) else np.zeros(1, np.int64)
    if not kind.is_static or k is None or kind.dtype not in ("float32", "float64"):
        return None
    ones = np.ones(kind.sizes[-2:], np.bool_)
    offset = int(k.reshape(-1)[0])
    mask = np.triu(ones, offset) if g.attribute("upper", 1) else np.tril(ones, offset)
    return [g.op("Where", g.constant(mask), g.inputs[0], g.scalar(0.0, g.inputs[0]))]


def lower_trilu(c: LoweringContext) -> KernelCall:
    triangle = np.triu if c.attribute("upper", 1) else np.tril
    return KernelCall("python", function=lambda x, k=None: [triangle(x, 0 if k is None else int(k.reshape(-1)[0]))])


def trilu_gradient(g: GradientBuilder) -> Gradients:
    return [g.op("Trilu", g.dy, *g.inputs[1:], upper=int(g.attribute("upper", 1))), None][: len(g.inputs)]


@operator("Trilu", lower=lower_trilu, gradient=trilu_gradient, decompose=trilu_decomposition, stop_gradient=(1,))
def trilu(c: InferenceContext) -> list[TensorType]:
    """y = the upper (or lower) triangle of x over the last two axes from diagonal k on, else 0"""
    if len(c.shape(0)) < 2:
        raise c.error(f"expected two axes at least, got {list(c.shape(0))}")
    return same_as_input(c)


# ---- ReverseSequence


def lower_reverse_sequence(c: LoweringContext) -> KernelCall:
    first, second, *inner_dims = c.dims(0)
    size = numpy_dtype(c.dtype(0)).itemsize
    time_first = int(c.attribute("time_axis", 0)) == 0
    guard = Guard(1, 0, (first if time_first else second) + 1)
    return KernelCall("reverse_sequence", (first, second, prod(inner_dims) * size, int(time_first)), guards=(guard,))


def reverse_sequence_gradient(g: GradientBuilder) -> Gradients:
    """Return the same reversal of dY, which is its own inverse."""
    attributes: dict[str, Any] = {"batch_axis": int(g.attribute("batch_axis", 1)), "time_axis": int(g.attribute("time_axis", 0))}
    return [g.op("ReverseSequence", g.dy, g.inputs[1], **attributes), None]


@operator("ReverseSequence", lower=lower_reverse_sequence, gradient=reverse_sequence_gradient, stop_gradient=(1,))
def reverse_sequence(c: InferenceContext) -> list[TensorType]:
    """y = x with the first sequence_lens[b] elements of each sequence b in reverse order"""
    if (c.attribute("time_axis", 0), c.attribute("batch_axis", 1)) not in ((0, 1), (1, 0)):
        raise c.error("expected a time and a batch axis, 0 and 1, got others")
    if len(c.shape(0)) < 2 or c.dtype(1) != "int64" or len(c.shape(1)) != 1:
        raise c.error(f"expected x of two axes at least and int64 lengths [batch], got {list(c.shape(0))} and {c.dtype(1)}{list(c.shape(1))}")
    check_shape(c, "lengths", c.shape(1), (c.shape(0)[int(c.attribute("batch_axis", 1))],))
    return same_as_input(c)
