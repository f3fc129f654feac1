"""Broadcasting for kernels: shapes and strides packed as integers, with neighboring axes merged into as few loops as possible."""

from __future__ import annotations

from collections.abc import Sequence

from ortrain.ops.registry.constants import is_broadcast, is_one, surely_equal


def contiguous_strides(dims: Sequence[int]) -> list[int]:
    """Return the strides of a C-contiguous tensor, in elements."""
    strides = [1] * len(dims)
    for axis in range(len(dims) - 2, -1, -1):
        strides[axis] = strides[axis + 1] * dims[axis + 1]
    return strides


def broadcast_dims(a: Sequence[int], b: Sequence[int]) -> tuple[int, ...]:
    """Return the dimensions of two shapes that are broadcast with each other, which shape inference has checked."""
    rank = max(len(a), len(b))
    padded = ((1,) * (rank - len(shape)) + tuple(shape) for shape in (a, b))
    return tuple(other if is_broadcast(size, other) else size for size, other in zip(*padded, strict=True))


def broadcast_strides(shape: Sequence[int], dims: Sequence[int]) -> list[int]:
    """Return the strides, in elements, with which a contiguous tensor of `shape` is read as one of `dims`: 0 along broadcast axes."""
    padded = [1] * (len(dims) - len(shape)) + list(shape)
    return [0 if is_broadcast(size, target) else stride for size, target, stride in zip(padded, dims, contiguous_strides(padded), strict=True)]


def merge_axes(dims: Sequence[int], *strides: Sequence[int]) -> tuple[list[int], list[list[int]]]:
    """Return dims and strides with fewer axes that describe the same iteration.

    Axes of size 1 are dropped, and neighboring axes merged where every tensor steps through them with one stride. At least one axis remains."""
    axes: list[tuple[int, list[int]]] = []
    for axis, size in enumerate(dims):
        if is_one(size):
            continue
        steps = [s[axis] for s in strides]
        if axes and all(surely_equal(previous, step * size) for previous, step in zip(axes[-1][1], steps, strict=True)):
            axes[-1] = (axes[-1][0] * size, steps)
        else:
            axes.append((size, steps))
    if not axes:
        axes = [(1, [1] * len(strides))]
    return [size for size, _ in axes], [[steps[i] for _, steps in axes] for i in range(len(strides))]


def pack_broadcast(dims: Sequence[int], *shapes: Sequence[int]) -> tuple[int, ...]:
    """Return the ints of a broadcasting kernel: rank, merged dims, then the strides of each input.

    dims: shape of the output. shapes: those of the inputs."""
    sizes, strides = merge_axes(dims, *(broadcast_strides(shape, dims) for shape in shapes))
    return (len(sizes), *sizes, *(stride for steps in strides for stride in steps))
