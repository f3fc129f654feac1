"""Axes of an iteration space: common refinements of shapes, and the strides of operands along them.

Sizes may be symbolic; where two of them must be compared, the comparison becomes a condition of the program template."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ortrain.ops.registry.constants import is_broadcast, is_one, is_same_size, is_symbolic
from ortrain.ops.shared.broadcasting import broadcast_strides

Sizes = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Refinement:
    """Axes into which the axes of two shapes of equal element counts can be split.

    left, right: for each axis of the first and of the second shape, the number of axes it was split into."""

    axes: Sizes
    left: Sizes
    right: Sizes


def without_ones(shape: Sequence[int]) -> Sizes:
    """Return a shape without its axes of one element."""
    return tuple(size for size in shape if not is_one(size))


def refine(left: Sizes, right: Sizes, equal_counts: bool) -> Refinement | None:
    """Return the common refinement of two shapes without axes of one element; None if there is none.

    equal_counts: whether the element counts are known to be equal. Otherwise they are compared, and there is no
    refinement of different ones."""
    if not left or not right:
        return None
    axes: list[int] = []
    splits = [0] * len(left), [0] * len(right)
    i, j = len(left) - 1, len(right) - 1
    a: int | None = left[i]                     # what is left of the axis; None: the rest of the other shape
    b: int | None = right[j]
    while True:
        splits[0][i] += 1
        splits[1][j] += 1
        if i == 0 and j == 0:
            if not equal_counts and (a is None or b is None or not is_same_size(a, b)):
                return None
            axes.append(a if a is not None else b if b is not None else 1)
            return Refinement(tuple(reversed(axes)), tuple(splits[0]), tuple(splits[1]))
        if a is None or b is None:
            a, b, size = _split_rest(a, b)
        elif is_same_size(a, b):
            a, b, size = 1, 1, a
        elif not is_symbolic((a, b)):
            size = min(a, b)
            if size < 1 or a % size or b % size:
                return None
            a, b = a // size, b // size
        elif equal_counts and j == 0:
            a, b, size = 1, None, a
        elif equal_counts and i == 0:
            a, b, size = None, 1, b
        else:
            return None
        axes.append(size)
        if a is not None and is_one(a):
            i -= 1
            a = left[i] if i >= 0 else 1
        if b is not None and is_one(b):
            j -= 1
            b = right[j] if j >= 0 else 1
        if i < 0 or j < 0:
            return None


def _split_rest(a: int | None, b: int | None) -> tuple[int | None, int | None, int]:
    """Split the next axis off the rest of a shape; return what is left of both, and the axis."""
    if a is None:
        assert b is not None
        return None, 1, b
    return 1, None, a


def strides_along(shape: Sequence[int], dims: Sequence[int], axes: Sizes, splits: Sizes) -> list[int]:
    """Return the strides along `axes` of a contiguous tensor of `shape` that is read as one of `dims`.

    splits: for each axis of `dims` with more than one element, the number of axes that it was split into."""
    strides = [stride for size, stride in zip(dims, broadcast_strides(shape, dims), strict=True) if not is_one(size)]
    found: list[int] = []
    position = 0
    for stride, count in zip(strides, splits, strict=True):
        parts = axes[position : position + count]
        found += [stride * math.prod(parts[index + 1 :]) for index in range(count)]
        position += count
    return found


def broadcast_axes(shape: Sequence[int], dims: Sequence[int]) -> list[bool]:
    """Return, for each axis of `dims` with more than one element, whether a tensor of `shape` is broadcast along it."""
    padded = [1] * (len(dims) - len(shape)) + list(shape)
    return [is_broadcast(size, target) for size, target in zip(padded, dims, strict=True) if not is_one(target)]
