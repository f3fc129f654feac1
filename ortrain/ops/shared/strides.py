"""Strided copies: the packed form in which Transpose, Expand, Tile, Slice and Pad describe their moves to _core/kernels/common/memory.h."""

from collections.abc import Sequence

from ortrain.ir import Shape
from ortrain.ops.registry.constants import is_one
from ortrain.ops.registry.record import InferenceContext


def strides_of(dims: Sequence[int]) -> list[int]:
    """Return the C-order strides of a contiguous tensor, in elements."""
    strides = [1] * len(dims)
    for axis in range(len(dims) - 2, -1, -1):
        strides[axis] = strides[axis + 1] * dims[axis + 1]
    return strides


def pack_box(dims: Sequence[int], to_strides: Sequence[int], from_strides: Sequence[int], to_at: int = 0,
             from_at: int = 0) -> tuple[int, ...]:
    """Return the ints of a strided copy with the fewest dimensions that describe it: axes of size 1 dropped, adjacent ones merged."""
    if 0 in dims:
        return (1, to_at, from_at, 0, 1, 1)
    kept: list[tuple[int, int, int]] = []
    for n, to, source in zip(dims, to_strides, from_strides, strict=True):
        if is_one(n):
            continue
        if kept and kept[-1][1] == to * n and kept[-1][2] == source * n:
            kept[-1] = (kept[-1][0] * n, to, source)
        else:
            kept.append((n, to, source))
    sizes, tos, froms = zip(*(kept or [(1, 1, 1)]), strict=True)
    return (len(sizes), to_at, from_at, *sizes, *tos, *froms)


def is_whole_copy(ints: tuple[int, ...]) -> bool:
    """Whether a packed copy moves the whole tensor in order, so that it is an alias with another shape. An empty copy says nothing about the tensor's
    size."""
    return ints[:3] == (1, 0, 0) and ints[3] > 0 and ints[4:] == (1, 1)


def fresh_shape(c: InferenceContext, rank: int, output: int = 0) -> Shape:
    """Return the shape of an output that is unknown until run time: the declared one if its rank fits, else new symbols."""
    declared = getattr(c, "declared", None)
    kind = declared[output] if declared and output < len(declared) else None
    if kind is not None and kind.shape is not None and len(kind.shape) == rank:
        known: Shape = kind.shape
        return known
    return tuple(c.fresh(f"{output}.{axis}") for axis in range(rank))


def length_of(c: InferenceContext, index: int) -> int | None:
    """Return the number of elements of a 1-D input (a shape, axes) if it is known."""
    shape = c.type(index).shape
    return shape[0] if shape is not None and len(shape) == 1 and isinstance(shape[0], int) else None
