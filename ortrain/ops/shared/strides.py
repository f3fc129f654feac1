"""Strided copies, by which Transpose, Expand, Tile, Slice and Pad run: their packed form for _core/kernels/common/memory.h, and shapes for inference."""

from collections.abc import Sequence

from ortrain.ir import Shape
from ortrain.ops.registry.constants import is_one, surely_equal
from ortrain.ops.registry.record import InferenceContext


def pack_strided_copy(dims: Sequence[int], to_strides: Sequence[int], from_strides: Sequence[int], to_offset: int = 0,
                      from_offset: int = 0) -> tuple[int, ...]:
    """Return the ints of a strided copy: rank, offsets of destination and source, dims, strides of destination, strides of source.

    dims: the block that is copied. All strides and offsets are in elements. Axes of size 1 are dropped and neighboring axes merged where possible."""
    if 0 in dims:
        return (1, to_offset, from_offset, 0, 1, 1)
    axes: list[tuple[int, int, int]] = []
    for size, to_stride, from_stride in zip(dims, to_strides, from_strides, strict=True):
        if is_one(size):
            continue
        if axes and surely_equal(axes[-1][1], to_stride * size) and surely_equal(axes[-1][2], from_stride * size):
            axes[-1] = (axes[-1][0] * size, to_stride, from_stride)
        else:
            axes.append((size, to_stride, from_stride))
    sizes, to_steps, from_steps = zip(*(axes or [(1, 1, 1)]), strict=True)
    return (len(sizes), to_offset, from_offset, *sizes, *to_steps, *from_steps)


def is_full_copy(ints: tuple[int, ...]) -> bool:
    """Return whether a packed copy moves a whole tensor in order, so that an alias with another shape can replace it.

    False for an empty copy, whose ints do not tell whether the tensors are empty."""
    return ints[:3] == (1, 0, 0) and ints[3] > 0 and ints[4:] == (1, 1)


def symbolic_shape(c: InferenceContext, rank: int, output: int = 0) -> Shape:
    """Return the shape of an output whose sizes are unknown until run time: the declared shape if it has this rank, else new symbols."""
    declared = getattr(c, "declared", None)
    kind = declared[output] if declared and output < len(declared) else None
    if kind is not None and kind.shape is not None and len(kind.shape) == rank:
        shape: Shape = kind.shape
        return shape
    return tuple(c.new_symbol(f"{output}.{axis}") for axis in range(rank))


def length_of(c: InferenceContext, index: int) -> int | None:
    """Return the number of elements of a one-dimensional input, such as a shape or a list of axes, None where it is unknown."""
    shape = c.type(index).shape
    return shape[0] if shape is not None and len(shape) == 1 and isinstance(shape[0], int) else None
