"""Flat segments: tensors of one dtype side by side in memory, and the shards into which several processes divide them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise

import numpy as np

ALIGNMENT = 64
"""Bytes: a cache line, and the widest vector register."""

Sizes = tuple[int, ...]


def aligned_zeros(count: int, dtype: np.dtype) -> np.ndarray:
    """Return a flat array of zeros that begins on a cache line."""
    raw = np.zeros(count * dtype.itemsize + ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    return raw[start : start + count * dtype.itemsize].view(dtype)


class Segment:
    """Tensors of one dtype in one allocation. Each is 64-byte aligned; the padding between them is zero and stays zero.

    array: the memory, which is allocated by default. step: elements of which every offset is a multiple, those of a cache line by default."""

    start = 0
    """The number of the first element, in the segment of which this may be a shard."""

    def __init__(self, shapes: Mapping[str, Sizes], dtype: np.dtype, array: np.ndarray | None = None, step: int | None = None) -> None:
        self.step = step = ALIGNMENT // dtype.itemsize if step is None else step
        self.shapes = dict(shapes)
        self.dtype = dtype
        self.offsets: dict[str, int] = {}
        end = 0
        for name, shape in shapes.items():
            self.offsets[name] = end
            end += -(-int(np.prod(shape, dtype=np.int64)) // step) * step
        self.array = aligned_zeros(end, dtype) if array is None else array
        self.views = {name: self.view(name) for name in shapes}

    def view(self, name: str) -> np.ndarray:
        """Return the tensor `name` as a view of the segment."""
        shape, start = self.shapes[name], self.offsets[name]
        return self.array[start : start + int(np.prod(shape, dtype=np.int64))].reshape(shape)

    def like(self, shape_of: Callable[[Sizes], Sizes] | None = None, dtype: np.dtype | None = None) -> Segment:
        """Return a zeroed segment with the same layout; shape_of: from the shape of a tensor here to its shape there. dtype: a wider one."""
        shapes = self.shapes if shape_of is None else {name: shape_of(shape) for name, shape in self.shapes.items()}
        return Segment(shapes, self.dtype if dtype is None else dtype, step=self.step)

    def touch_pages(self) -> None:
        """Read or write every page, so that the system allocates the memory now."""
        self.array.fill(0)

    def runs(self, masked: Iterable[str] = ()) -> list[tuple[int, int]]:
        """Return the ranges [start, end) of elements that hold no tensor named in `masked`."""
        skipped = set(masked)
        names = list(self.offsets)
        ends = [*list(self.offsets.values()), self.array.size][1:]
        found: list[tuple[int, int]] = []
        for name, end in zip(names, ends, strict=True):
            start = self.offsets[name]
            if name in skipped or start == end:
                continue
            if found and found[-1][1] == start:
                found[-1] = (found[-1][0], end)
            else:
                found.append((start, end))
        return found


def segments_of(arrays: Mapping[str, np.ndarray], kept_in: Mapping[np.dtype, np.dtype] | None = None) -> list[Segment]:
    """Return one filled segment per dtype, largest tensors first: gradients of large tensors may stay untouched, and memory is allocated in pages of 2
    MiB. kept_in: dtype of arrays -> another one to convert them to."""
    by_dtype: dict[np.dtype, dict[str, tuple[int, ...]]] = {}
    for name, array in sorted(arrays.items(), key=lambda item: -item[1].nbytes):
        by_dtype.setdefault((kept_in or {}).get(array.dtype, array.dtype), {})[name] = array.shape
    made = [Segment(shapes, dtype) for dtype, shapes in by_dtype.items()]
    for segment in made:
        for name, view in segment.views.items():
            view[...] = arrays[name]
    return made


class Shard(Segment):
    """The elements from `start` to `end` of a segment, over its memory. Both are on cache lines. A tensor that reaches beyond them is cut, and flat here."""

    def __init__(self, segment: Segment, start: int, end: int) -> None:
        self.start, self.end = start, end
        self.first: dict[str, int] = {}
        """Tensor -> the index of its first element that is in the shard."""
        shapes: dict[str, Sizes] = {}
        for name, offset in segment.offsets.items():
            size = segment.views[name].size
            first, last = max(start - offset, 0), min(end - offset, size)
            if first < last:
                self.first[name] = first
                shapes[name] = segment.shapes[name] if last - first == size else (last - first,)
        super().__init__(shapes, segment.dtype, segment.array[start:end], segment.step)

    def part_of(self, name: str, tensor: np.ndarray, part: np.ndarray) -> np.ndarray:
        """Return the elements of a contiguous tensor that are to be in this shard, as a view in the shape of `part`, which has as many."""
        first = self.first[name]
        return tensor.reshape(-1)[first : first + part.size].reshape(part.shape)


class Sharding:
    """How several processes divide the segments of a state: each has one range of every segment.

    segments: the trainable parameters. rank: the number of this process, below size. whole_tensors: cut between tensors, as near to equal parts as their sizes
    allow; otherwise anywhere on a cache line."""

    def __init__(self, segments: Sequence[Segment], rank: int, size: int, whole_tensors: bool) -> None:
        self.rank, self.size = rank, size
        self.bounds = [_bounds_between_tensors(segment, size) if whole_tensors else _even_bounds(segment, size) for segment in segments]
        """For every segment, where the ranges begin and, last, where the last one ends."""

    def shards(self, segments: Sequence[Segment], rank: int | None = None) -> list[Shard]:
        """Return the shards of a process, by default this one, of segments with the layout of the parameters."""
        mine = self.rank if rank is None else rank
        return [Shard(segment, bounds[mine], bounds[mine + 1]) for segment, bounds in zip(segments, self.bounds, strict=True)]


def _even_bounds(segment: Segment, size: int) -> list[int]:
    step, count = segment.step, segment.array.size
    part = -(-count // (size * step)) * step
    return [min(number * part, count) for number in range(size + 1)]


def _bounds_between_tensors(segment: Segment, size: int) -> list[int]:
    """Return the bounds whose largest range is as small as it can be."""
    cuts = [*segment.offsets.values(), segment.array.size]

    def filled(capacity: int) -> list[int]:
        """Return the bounds of ranges that take one tensor after the other, up to a capacity."""
        bounds = [0]
        for start, end in pairwise(cuts):
            if end - bounds[-1] > capacity and start > bounds[-1]:
                bounds.append(start)
        return [*bounds, cuts[-1]]

    least = max((end - start for start, end in pairwise(cuts)), default=0)
    capacity = least + bisect_left(range(cuts[-1] - least), True, key=lambda more: len(filled(least + more)) <= size + 1)
    bounds = filled(capacity)
    return bounds + [cuts[-1]] * (size + 1 - len(bounds))
