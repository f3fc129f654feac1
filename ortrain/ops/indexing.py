"""Concat, Split, Slice and their gradients, and slices that are concatenated or joined.

Gather operators are in gathering.py, scatter operators in scattering.py."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ortrain.dtypes import numpy_dtype
from ortrain.ir import Dim, Shape, TensorType
from ortrain.ops.padding import pack_pads
from ortrain.ops.registry.node_builder import GradientBuilder
from ortrain.ops.registry.record import (
    MICROSOFT,
    ORTRAIN,
    Alias,
    InferenceContext,
    KernelCall,
    LoweringContext,
    normalize_axes,
    normalize_axis,
    operator,
)
from ortrain.ops.shape import Gradients, constant_dims, first_input_gradient, shape_value
from ortrain.ops.shared.broadcasting import contiguous_strides
from ortrain.ops.shared.strides import is_full_copy, pack_strided_copy, symbolic_shape

OPEN_END = (1 << 31) - 1
"""Smallest number that counts as an open end: exporters write int32 or int64 maximum for a slice to the end of an axis."""

MAX_TILED = 1 << 20
"""Elements of the axes along which slices are joined, at most: for each of them it is found out which slices have it."""


def row_bytes(dtype: str, shapes: Sequence[Sequence[int]], axis: int) -> tuple[int, ...]:
    """Return, for each of the shapes, the bytes of one row, which spans all axes from `axis` on."""
    return tuple(numpy_dtype(dtype).itemsize * math.prod(dims[axis:]) for dims in shapes)


def concat_axis(c: InferenceContext) -> int:
    if c.attribute("axis") is None:
        raise c.error("expected an attribute axis, got none")
    return normalize_axis(c, c.attribute("axis"), len(c.shape(0)))


def concat_shape(c: InferenceContext) -> Shape:
    """Return the shape of the concatenated inputs. Raises if ranks, dtypes or the sizes along other axes differ."""
    return joined_shape(c, [c.shape(i) for i in range(len(c.node.inputs))])


def joined_shape(c: InferenceContext, shapes: Sequence[Shape]) -> Shape:
    """Return the shape of a concatenation of values of the given shapes, which have the dtypes of the inputs; raises as concat_shape."""
    axis = concat_axis(c)
    if any(len(s) != len(shapes[0]) for s in shapes) or any(c.dtype(i) != c.dtype(0) for i in range(len(shapes))):
        raise c.error(f"expected inputs of one rank and dtype, got {[(c.dtype(i), list(s)) for i, s in enumerate(shapes)]}")
    out: list[Dim] = []
    for d, sizes in enumerate(zip(*shapes, strict=True)):
        numbers = [n for n in sizes if isinstance(n, int)]
        if d == axis:
            symbols = [n for n in sizes if isinstance(n, str)]
            unknown = symbols[0] if len(symbols) == 1 and not sum(numbers) else symbolic_shape(c, len(shapes[0]))[d]
            out.append(unknown if symbols else sum(numbers))
        elif any(n != numbers[0] for n in numbers[1:]):
            raise c.error(f"expected equal sizes but along axis {axis}, got {[list(s) for s in shapes]}")
        else:
            out.append(numbers[0] if numbers else sizes[0])
    return tuple(out)


def concat_gradient(g: GradientBuilder) -> Gradients:
    """Return the outputs of SplitTraining of dY; the lengths are a constant, or the second output of ConcatTraining where they are symbolic."""
    axis = g.attribute("axis")
    shapes = [g.shape(name) for name in g.inputs]
    sizes = [s[axis] for s in shapes]
    if all(isinstance(n, int) for n in sizes):
        lengths = g.constant(sizes)
    else:
        if g.node.op_type != "ConcatTraining":
            g.replace("ConcatTraining", MICROSOFT, extra_outputs=1)
        lengths = g.output(1)
    parts: list[str] = g.ops("SplitTraining", g.dy, lengths, outputs=[True] * len(sizes), domain=MICROSOFT, axis=axis)
    for part, name in zip(parts, g.inputs, strict=True):
        g.declare(part, g.type(name))
    return parts


def lower_concat(c: LoweringContext) -> KernelCall:
    shapes = [c.dims(i) for i in range(len(c.node.inputs))]
    return KernelCall("concat", (len(shapes), *row_bytes(c.dtype(0), shapes, concat_axis(c))))


def evaluate_concat(c: InferenceContext) -> list[np.ndarray]:
    return [np.concatenate([v for v in c.values if v is not None], concat_axis(c))]


@operator("Concat", lower=lower_concat, gradient=concat_gradient, evaluate=evaluate_concat)
def concat(c: InferenceContext) -> list[TensorType]:
    """y = the inputs concatenated along `axis`"""
    return [TensorType(c.dtype(0), concat_shape(c))]


def lower_concat_training(c: LoweringContext) -> KernelCall:
    axis, shapes = concat_axis(c), [c.dims(i) for i in range(len(c.node.inputs))]
    return KernelCall("concat_training", (len(shapes), *row_bytes(c.dtype(0), shapes, axis), *(dims[axis] for dims in shapes)))


def evaluate_concat_training(c: InferenceContext) -> list[np.ndarray | None]:
    """Fold the lengths, which depend on static types only and which plans need; y is None unless all inputs are constant."""
    axis = concat_axis(c)
    lengths = np.array([c.shape(i)[axis] for i in range(len(c.node.inputs))], np.int64)
    return [evaluate_concat(c)[0] if all(v is not None for v in c.values) else None, lengths]


@operator("ConcatTraining", domain=MICROSOFT, lower=lower_concat_training, gradient=concat_gradient,
          evaluate=evaluate_concat_training)  # type: ignore[arg-type]
def concat_training(c: InferenceContext) -> list[TensorType]:
    """(y, lengths): the inputs concatenated along `axis`, and the size of each along it"""
    return [TensorType(c.dtype(0), concat_shape(c)), TensorType("int64", (len(c.node.inputs),))]


def split_lengths(c: InferenceContext, axis: int) -> list[Dim]:
    """Return the sizes of the outputs of Split along the axis."""
    size, count = c.shape(0)[axis], len(c.node.outputs)
    unknown: list[Dim] = [symbolic_shape(c, len(c.shape(0)), i)[axis] for i in range(count)]
    lengths = c.attribute("split") if c.opset < 13 and c.node.domain != MICROSOFT else constant_dims(c, 1)
    if lengths is not None:
        if len(lengths) != count or min(lengths, default=0) < 0 or (isinstance(size, int) and sum(lengths) != size):
            raise c.error(f"expected {count} lengths with the sum {size}, got {list(lengths)}")
        return [int(n) for n in lengths]
    if c.has(1) or isinstance(size, str):
        return unknown
    piece = -(-size // count)
    if size % count and c.attribute("num_outputs") is None:
        raise c.error(f"expected a size along axis {axis} that {count} divides, got {size}")
    return [max(0, min(piece, size - i * piece)) for i in range(count)]


def split_gradient(g: GradientBuilder) -> Gradients:
    """Return the Concat of the outputs' gradients, with zeros for outputs that have none."""
    dtype = numpy_dtype(g.type(g.inputs[0]).dtype)

    def part(i: int) -> str:
        return g.gradients[i] or str(g.op("ConstantOfShape", shape_value(g, g.output(i)), value=np.zeros(1, dtype)))

    dx = g.op("Concat", *[part(i) for i in range(len(g.gradients))], axis=g.attribute("axis", 0))
    g.declare(dx, g.type(g.inputs[0]))
    return first_input_gradient(g, dx)


def lower_split(c: LoweringContext) -> KernelCall:
    axis, dims = normalize_axis(c, c.attribute("axis", 0), len(c.shape(0))), c.dims(0)
    shapes = [(*dims[:axis], int(n), *dims[axis + 1:]) for n in split_lengths(c, axis)]
    return KernelCall("split", (len(shapes), *row_bytes(c.dtype(0), shapes, axis)))


def evaluate_split(c: InferenceContext) -> list[np.ndarray]:
    x, axis = c.value(0), normalize_axis(c, c.attribute("axis", 0), len(c.shape(0)))
    assert x is not None
    return list(np.split(x, np.cumsum([int(n) for n in split_lengths(c, axis)])[:-1], axis))


@operator("SplitTraining", domain=MICROSOFT, lower=lower_split, gradient=split_gradient, evaluate=evaluate_split, stop_gradient=(1,))
@operator("Split", lower=lower_split, gradient=split_gradient, evaluate=evaluate_split, stop_gradient=(1,))
def split(c: InferenceContext) -> list[TensorType]:
    """y0, y1, … = x split along `axis` into parts of the given lengths, or of equal length"""
    dims = c.shape(0)
    axis = normalize_axis(c, c.attribute("axis", 0), len(dims))
    return [TensorType(c.dtype(0), (*dims[:axis], n, *dims[axis + 1:])) for n in split_lengths(c, axis)]


Bounds = list[tuple[int, int, int, int]]
"""(axis, start, end, step) of each sliced axis."""


def slice_bounds(c: InferenceContext, first: int, rank: int) -> Bounds | None:
    """Return the bounds of Slice or SliceGrad, None when unknown. They are attributes before opset 10, since then the inputs from `first` on."""
    if c.opset < 10 and c.node.domain != MICROSOFT:
        starts, ends, axes, steps = list(c.attribute("starts")), list(c.attribute("ends")), c.attribute("axes"), None
    else:
        if any(c.has(i) and not c.is_constant(i) for i in range(first, first + 4)):
            return None
        lists = [constant_dims(c, i) for i in range(first, first + 4)]
        starts, ends, axes, steps = lists[0] or [], lists[1] or [], lists[2], lists[3]
    axes = range(len(starts)) if axes is None else axes
    steps = [1] * len(starts) if steps is None else steps
    if not len(starts) == len(ends) == len(axes) == len(steps) or 0 in steps:
        raise c.error(f"expected as many starts, ends, axes and steps that are not 0, got {starts}, {ends}, {list(axes)}, {steps}")
    return list(zip(normalize_axes(c, list(axes), rank), starts, ends, steps, strict=True))


def slice_range(size: int, start: int, end: int, step: int) -> tuple[int, int]:
    """Return (first, count) of a slice of a dimension, by the rules of Python slices.

    Written out instead of slice.indices, which would turn a symbolic size into a number."""
    low, high = (0, size) if step > 0 else (-1, size - 1)
    first, last = (min(max(limit + size if limit < 0 else limit, low), high) for limit in (start, end))
    return first, max(0, -((first - last) // step))


def sliced_dim(size: Dim, start: int, end: int, step: int, unknown: Dim) -> Dim:
    """Return the size of one sliced dimension; `unknown` for a symbolic one unless the slice takes all of it."""
    if isinstance(size, int):
        return slice_range(size, start, end, step)[1]
    takes_all = (step == 1 and start == 0 and end >= OPEN_END) or (step == -1 and (start == -1 or start >= OPEN_END) and end <= -OPEN_END)
    return size if takes_all else unknown


def sliced_shape(c: InferenceContext, dims: Shape, bounds: Bounds | None) -> Shape:
    unknown = symbolic_shape(c, len(dims))
    if bounds is None:
        return unknown
    out = list(dims)
    for axis, start, end, step in bounds:
        out[axis] = sliced_dim(dims[axis], start, end, step, unknown[axis])
    return tuple(out)


def slice_region(c: InferenceContext, dims: Sequence[int], bounds: Bounds | None) -> tuple[list[int], list[int], int]:
    """Return (sizes, strides, offset) of a slice within a contiguous tensor of shape `dims`, in elements."""
    if bounds is None:
        raise c.error("expected limits that are known before running, got values that are computed")
    sizes, strides, offset = list(dims), contiguous_strides(dims), 0
    for axis, start, end, step in bounds:
        first, sizes[axis] = slice_range(dims[axis], start, end, step)
        offset += first * strides[axis] if sizes[axis] else 0
        strides[axis] *= step
    return sizes, strides, offset


def lower_slice(c: LoweringContext) -> KernelCall | Alias:
    sizes, strides, offset = slice_region(c, c.dims(0), slice_bounds(c, 1, len(c.dims(0))))
    ints = pack_strided_copy(sizes, contiguous_strides(sizes), strides, 0, offset)
    return Alias(0) if is_full_copy(ints) and c.dims(0) == tuple(sizes) else KernelCall("strided_copy", ints)


def input_bounds(c: InferenceContext) -> list[Bounds]:
    """Return the bounds of the slice that belongs to each input of ConcatSlices or JoinSlices, each along different axes."""
    flat, count = tuple(c.attribute("bounds", ())), len(c.node.inputs)
    found: list[Bounds] = [[] for _ in range(count)]
    for group in (flat[i : i + 5] for i in range(0, len(flat), 5)):
        if len(group) < 5 or not 0 <= group[0] < count or not 0 <= group[1] < len(c.shape(group[0])) or group[4] == 0:
            raise c.error(f"expected bounds (input, axis, start, end, step) of {count} inputs and their axes, with steps that are not 0, got {flat}")
        index, axis, start, end, step = group
        if any(axis == other for other, *_ in found[index]):
            raise c.error(f"expected one slice of each axis of an input, got {flat}")
        found[index].append((axis, start, end, step))
    return found


def lower_concat_slices(c: LoweringContext) -> KernelCall:
    axis, strides, at = concat_axis(c), contiguous_strides(c.output_dims(0)), 0
    copies: tuple[int, ...] = ()
    for index, bounds in enumerate(input_bounds(c)):
        sizes, steps, offset = slice_region(c, c.dims(index), bounds)
        copies += pack_strided_copy(sizes, strides, steps, at * strides[axis], offset)
        at += sizes[axis]
    return KernelCall("strided_copies", (len(c.node.inputs), *copies))


@operator("ConcatSlices", domain=ORTRAIN, lower=lower_concat_slices, differentiable=False)
def concat_slices(c: InferenceContext) -> list[TensorType]:
    """y = slices of the inputs, or whole inputs, concatenated along `axis`; attribute bounds: (input, axis, start, end, step) of each axis that is sliced"""
    bounds = input_bounds(c)
    return [TensorType(c.dtype(0), joined_shape(c, [sliced_shape(c, c.shape(i), each) for i, each in enumerate(bounds)]))]


def are_tiles(axes: Sequence[int], sizes: Sequence[int], boxes: Sequence[Bounds]) -> bool:
    """Return whether slices along axes of the given sizes, of at most MAX_TILED elements together, have each element once."""
    if math.prod(sizes) > MAX_TILED:
        return False
    covered = np.zeros(tuple(sizes), np.bool_)
    for bounds in boxes:
        cut = [slice(None)] * len(sizes)
        for axis, start, end, step in bounds:
            cut[axes.index(axis)] = slice(start, end, step)
        if covered[tuple(cut)].any():
            return False
        covered[tuple(cut)] = True
    return bool(covered.all())


def lower_join_slices(c: LoweringContext) -> KernelCall:
    dims = c.output_dims(0)
    copies: tuple[int, ...] = ()
    for bounds in input_bounds(c):
        sizes, strides, offset = slice_region(c, dims, bounds)
        copies += pack_strided_copy(sizes, strides, contiguous_strides(sizes), offset, 0)
    return KernelCall("strided_copies", (len(c.node.inputs), *copies))


@operator("JoinSlices", domain=ORTRAIN, lower=lower_join_slices, differentiable=False)
def join_slices(c: InferenceContext) -> list[TensorType]:
    """y, of which each input is a slice; attributes axes and shape: the axes that are sliced and their sizes in y; bounds: (input, axis, start, end, step)"""
    axes, sizes, boxes = tuple(c.attribute("axes", ())), tuple(c.attribute("shape", ())), input_bounds(c)
    dims = list(c.shape(0))
    if len(axes) != len(sizes) or len(set(axes)) < len(axes) or not all(0 <= axis < len(dims) for axis in axes) or min(sizes, default=0) < 0:
        raise c.error(f"expected different axes of {len(dims)} and as many sizes, got {list(axes)} and {list(sizes)}")
    for axis, size in zip(axes, sizes, strict=True):
        dims[axis] = size
    for index, bounds in enumerate(boxes):
        have, wanted = c.shape(index), sliced_shape(c, tuple(dims), bounds)
        differ = len(have) != len(wanted) or any(isinstance(a, int) and isinstance(b, int) and a != b for a, b in zip(have, wanted, strict=True))
        if differ or c.dtype(index) != c.dtype(0):
            raise c.error(f"expected input {index} of {c.dtype(0)} and shape {list(wanted)}, got {c.dtype(index)} and {list(have)}")
    if any(axis not in axes for bounds in boxes for axis, *_ in bounds):
        raise c.error(f"expected slices along the axes {list(axes)}, got {boxes}")
    if not are_tiles(axes, sizes, boxes):
        raise c.error(f"expected slices that have each element of y once, got {boxes}")
    return [TensorType(c.dtype(0), tuple(dims))]


def slice_gradient(g: GradientBuilder) -> Gradients:
    x = g.inputs[0]
    if g.opset < 10:
        limits = [g.constant(g.attribute(name)) for name in ("starts", "ends", "axes") if g.attribute(name) is not None]
    else:
        limits = g.inputs[1:]
    dx = g.op("SliceGrad", g.dy, shape_value(g, x), *limits, domain=MICROSOFT)
    g.declare(dx, g.type(x))
    return first_input_gradient(g, dx)


def evaluate_slice(c: InferenceContext) -> list[np.ndarray]:
    x = c.value(0)
    assert x is not None
    for axis, start, end, step in slice_bounds(c, 1, x.ndim) or []:
        x = x.take(range(*slice(start, end, step).indices(x.shape[axis])), axis)
    return [x]


@operator("Slice", lower=lower_slice, gradient=slice_gradient, evaluate=evaluate_slice, stop_gradient=(1, 2, 3, 4))
def slice_(c: InferenceContext) -> list[TensorType]:
    """y = x[start:end:step] along each of the given axes"""
    dims = c.shape(0)
    return [TensorType(c.dtype(0), sliced_shape(c, dims, slice_bounds(c, 1, len(dims))))]


def lower_slice_grad(c: LoweringContext) -> KernelCall | Alias:
    """Lower to a border of zeros, which is written in one pass, where elements side by side are taken."""
    out = c.output_dims(0)
    bounds = slice_bounds(c, 2, len(out))
    sizes, strides, offset = slice_region(c, out, bounds)
    if tuple(sizes) != c.dims(0):
        raise c.error(f"expected dy with the shape {sizes} of the slice, got {list(c.dims(0))}")
    ints = pack_strided_copy(sizes, strides, contiguous_strides(sizes), offset, 0)
    if is_full_copy(ints) and out == c.dims(0):
        return Alias(0)
    if bounds is None or any(step != 1 for *_, step in bounds):
        return KernelCall("strided_place", ints)
    pads = [(0, 0)] * len(out)
    for axis, start, end, step in bounds:
        first, size = slice_range(out[axis], start, end, step)
        pads[axis] = first, out[axis] - first - size
    return KernelCall("place", pack_pads(sizes, out, pads, "constant"))


@operator("SliceGrad", domain=MICROSOFT, lower=lower_slice_grad, differentiable=False)
def slice_grad(c: InferenceContext) -> list[TensorType]:
    """dx = zeros with dY in the slice, of (dY, shape of x, starts, ends, axes, steps)"""
    dims, known = c.shape(0), constant_dims(c, 1)
    if known is not None:
        return [TensorType(c.dtype(0), tuple(known))]
    bounds, unknown = slice_bounds(c, 2, len(dims)), symbolic_shape(c, len(dims))
    cut = set(range(len(dims))) if bounds is None else {axis for axis, *_ in bounds}
    return [TensorType(c.dtype(0), tuple(unknown[i] if i in cut else d for i, d in enumerate(dims)))]
