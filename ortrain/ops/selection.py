"""Largest elements, chosen slices, triangles, sequences turned round."""

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


def count_of(c: InferenceContext) -> int | None:
    """k, if it is known."""
    value = c.attribute("k") if c.opset < 10 else c.value(1)
    return None if value is None else int(np.asarray(value).reshape(-1)[0])


def top_k_gradient(g: GradientBuilder) -> Gradients:
    """dY goes back to where the elements came from."""
    dy, others = g.gradients[0], g.gradients[1:]
    if dy is None or any(others):
        raise g.error("expected a gradient of the values alone")
    x = g.inputs[0]
    axis = int(g.attribute("axis", -1)) % g.rank(x)
    return [g.op("ScatterElements" if g.opset >= 11 else "Scatter", zeros_like(g, x), g.output(1), dy, axis=axis), None][: len(g.inputs)]


def around(c: LoweringContext, axis: int) -> tuple[int, int, int]:
    """The sizes before, along and after an axis of input 0."""
    dims = c.dims(0)
    axis %= len(dims)
    return prod(dims[:axis]), dims[axis], prod(dims[axis + 1 :])


def lower_top_k(c: LoweringContext) -> KernelCall:
    k = count_of(c)
    if k is None:
        raise c.error("expected k that is known before running, got one that is computed")
    axis = int(c.attribute("axis", -1))
    return KernelCall("top_k", (*around(c, axis), k, int(not c.attribute("largest", 1))))


@operator("TopK", lower=lower_top_k, gradient=top_k_gradient, stop_gradient=(1,), written=2)
def top_k(c: InferenceContext) -> list[TensorType]:
    """The k largest (or smallest) elements along an axis, and their indices; of equal ones the first"""
    shape: list[Dim] = list(c.shape(0))
    axis = normalize_axis(c, int(c.attribute("axis", -1)), len(shape))
    k = count_of(c)
    have = shape[axis]
    if k is not None and (k < 0 or isinstance(have, int) and k > have):
        raise c.error(f"expected k in [0, {have}], got {k}")
    shape[axis] = c.fresh("k") if k is None else k
    return [TensorType(c.dtype(0), tuple(shape)), TensorType("int64", tuple(shape))]


# ---- ArgMax and ArgMin: no gradient


def lower_extreme(smallest: bool) -> Callable[[LoweringContext], KernelCall]:
    def lower(c: LoweringContext) -> KernelCall:
        sizes = around(c, int(c.attribute("axis", 0)))
        if not sizes[1]:
            raise c.error("expected at least one element along the axis, got none")
        return KernelCall("arg_extreme", (*sizes, int(smallest), int(c.attribute("select_last_index", 0))))

    return lower


def infer_extreme(c: InferenceContext) -> list[TensorType]:
    """The index of the largest (or smallest) element along an axis, the first or the last of equals"""
    shape: list[Dim] = list(c.shape(0))
    axis = normalize_axis(c, int(c.attribute("axis", 0)), len(shape))
    if c.attribute("keepdims", 1):
        shape[axis] = 1
    else:
        del shape[axis]
    return [TensorType("int64", tuple(shape))]


for _name, _smallest in (("ArgMax", False), ("ArgMin", True)):
    operator(_name, lower=lower_extreme(_smallest), differentiable=False)(infer_extreme)


# ---- Compress


def choice(c: InferenceContext) -> tuple[int | None, np.ndarray | None]:
    """(axis, or None for the flat tensor; which slices are chosen, if the condition is known)."""
    axis, condition = c.attribute("axis"), c.value(1)
    axis = None if axis is None else normalize_axis(c, int(axis), len(c.shape(0)))
    return axis, None if condition is None else np.flatnonzero(condition)


def choice_decomposition(g: NodeBuilder) -> list[str] | None:
    """A Gather of the slices for which a known condition holds."""
    axis, chosen = choice(g.context())
    if chosen is None:
        return None
    x = g.op("Reshape", g.inputs[0], g.constant([-1])) if axis is None else g.inputs[0]
    return [g.op("Gather", x, g.constant(chosen), axis=axis or 0)]


def choice_gradient(g: GradientBuilder) -> Gradients:
    """For a condition that is not known: dY goes back to the rows that it chooses."""
    x = g.inputs[0]
    axis, _ = choice(g.context())
    if g.type(x).is_static:
        sizes = g.type(x).sizes if axis is not None else (g.type(x).count,)
        shape, places = g.constant(sizes), g.constant(np.arange(sizes[axis or 0]))
    elif g.opset < 11:
        raise g.error("expected a known shape where a computed condition chooses, or opset 11, got symbols")
    else:
        shape = g.shape_of(x) if axis is not None else g.op("Reshape", g.op("Size", x), g.constant([1]))
        places = g.op("Range", g.constant(np.array(0)), g.op("Gather", shape, g.constant(np.array(axis or 0))), g.constant(np.array(1)))
    rows = g.op("Compress", places, g.inputs[1], axis=0)
    dx = g.op("GatherGrad", shape, rows, g.dy, domain=MICROSOFT, axis=axis or 0)
    return [dx if axis is not None else g.reshape_like(dx, x), None]


@operator("Compress", gradient=choice_gradient, decompose=choice_decomposition, decompose_first=True, stop_gradient=(1,))
def compress(c: InferenceContext) -> list[TensorType]:
    """y = the slices along an axis (or the elements of the flat tensor) for which a condition holds, which may be shorter than the axis"""
    shape: list[Dim] = list(c.shape(0))
    axis, chosen = choice(c)
    if c.dtype(1) != "bool" or len(c.shape(1)) != 1:
        raise c.error(f"expected a condition bool [length], got {c.dtype(1)}{list(c.shape(1))}")
    if axis is None:
        shape, axis = [prod(int(size) for size in shape) if c.type(0).is_static else c.fresh("count")], 0
    length, have = c.shape(1)[0], shape[axis]
    if isinstance(length, int) and isinstance(have, int) and length > have:
        raise c.error(f"expected a condition of at most {have} elements, got {length}")
    shape[axis] = c.fresh("chosen") if chosen is None else len(chosen)
    return [TensorType(c.dtype(0), tuple(shape))]


# ---- triangles


def triangle_decomposition(g: NodeBuilder) -> list[str] | None:
    """A choice between x and 0 by a constant triangle."""
    kind = g.type(g.inputs[0])
    k = g.value(g.inputs[1]) if g.has(1) else np.zeros(1, np.int64)
    if not kind.is_static or k is None or kind.dtype not in ("float32", "float64"):
        return None
    ones = np.ones(kind.sizes[-2:], np.bool_)
    offset = int(k.reshape(-1)[0])
    triangle = np.triu(ones, offset) if g.attribute("upper", 1) else np.tril(ones, offset)
    return [g.op("Where", g.constant(triangle), g.inputs[0], g.scalar(0.0, g.inputs[0]))]


def lower_triangle(c: LoweringContext) -> KernelCall:
    cut = np.triu if c.attribute("upper", 1) else np.tril
    return KernelCall("python", function=lambda x, k=None: [cut(x, 0 if k is None else int(k.reshape(-1)[0]))])


def triangle_gradient(g: GradientBuilder) -> Gradients:
    return [g.op("Trilu", g.dy, *g.inputs[1:], upper=int(g.attribute("upper", 1))), None][: len(g.inputs)]


@operator("Trilu", lower=lower_triangle, gradient=triangle_gradient, decompose=triangle_decomposition, stop_gradient=(1,))
def triangle(c: InferenceContext) -> list[TensorType]:
    """y = the upper (or lower) triangle of the last two axes, from diagonal k, 0 elsewhere"""
    if len(c.shape(0)) < 2:
        raise c.error(f"expected two axes at least, got {list(c.shape(0))}")
    return same_as_input(c)


# ---- sequences turned round


def lower_reversal(c: LoweringContext) -> KernelCall:
    first, second, *rest = c.dims(0)
    size = numpy_dtype(c.dtype(0)).itemsize
    time_first = int(c.attribute("time_axis", 0)) == 0
    return KernelCall("reverse_sequence", (first, second, prod(rest) * size, int(time_first)), guards=(Guard(1, 0, (first if time_first else second) + 1),))


def reversal_gradient(g: GradientBuilder) -> Gradients:
    """A reversal is its own adjoint."""
    attributes: dict[str, Any] = {"batch_axis": int(g.attribute("batch_axis", 1)), "time_axis": int(g.attribute("time_axis", 0))}
    return [g.op("ReverseSequence", g.dy, g.inputs[1], **attributes), None]


@operator("ReverseSequence", lower=lower_reversal, gradient=reversal_gradient, stop_gradient=(1,))
def reverse_sequence(c: InferenceContext) -> list[TensorType]:
    """y = x with the first sequence_lens[b] elements of each sequence b turned round"""
    if (c.attribute("time_axis", 0), c.attribute("batch_axis", 1)) not in ((0, 1), (1, 0)):
        raise c.error("expected a time and a batch axis, 0 and 1, got others")
    if len(c.shape(0)) < 2 or c.dtype(1) != "int64" or len(c.shape(1)) != 1:
        raise c.error(f"expected x of two axes at least and int64 lengths [batch], got {list(c.shape(0))} and {c.dtype(1)}{list(c.shape(1))}")
    check_shape(c, "lengths", c.shape(1), (c.shape(0)[int(c.attribute("batch_axis", 1))],))
    return same_as_input(c)
