"""Packing of broadcast shapes for kernels, with axes merged where possible."""

from __future__ import annotations

from collections.abc import Sequence

from ortrain.ops.registry.constants import is_one, is_broadcast


def contiguous_strides(dims: Sequence[int]) -> list[int]:
    """Return the strides in elements of a C-contiguous tensor."""
    strides = [1] * len(dims)
    for axis in range(len(dims) - 2, -1, -1):
        strides[axis] = strides[axis + 1] * dims[axis + 1]
    return strides


def broadcast_strides(shape: Sequence[int], dims: Sequence[int]) -> list[int]:
    """Return the strides of a tensor of `shape` read as a tensor of `dims`; 0 along broadcast axes."""
    padded = [1] * (len(dims) - len(shape)) + list(shape)
    return [0 if is_broadcast(size, want) else stride for size, want, stride in zip(padded, dims, contiguous_strides(padded), strict=True)]


def merged(dims: Sequence[int], *strides: Sequence[int]) -> tuple[list[int], list[list[int]]]:
    """Return dims and strides with neighboring axes merged where all tensors traverse them as one. Axes of size 1 are dropped; at least one axis
    remains."""
    axes: list[tuple[int, list[int]]] = []
    for axis, size in enumerate(dims):
        if is_one(size):
            continue
        steps = [s[axis] for s in strides]
        if axes and all(previous == step * size for previous, step in zip(axes[-1][1], steps, strict=True)):
            axes[-1] = (axes[-1][0] * size, steps)
        else:
            axes.append((size, steps))
    if not axes:
        axes = [(1, [1] * len(strides))]
    return [size for size, _ in axes], [[steps[i] for _, steps in axes] for i in range(len(strides))]


def packed(dims: Sequence[int], *shapes: Sequence[int]) -> tuple[int, ...]:
    """Return the ints of a broadcasting kernel: rank, merged dims, then the strides of each input."""
    sizes, strides = merged(dims, *(broadcast_strides(shape, dims) for shape in shapes))
    return (len(sizes), *sizes, *(stride for steps in strides for stride in steps))
