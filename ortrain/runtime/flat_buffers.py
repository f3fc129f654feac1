"""Flat buffers: tensors side by side in a session's own memory, for all-reduce, broadcast and whatever else works on all of them at once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass

import numpy as np

from ortrain.errors import ParameterNotFoundError
from ortrain.runtime.segments import Segment


@dataclass(slots=True, eq=False)
class FlatBuffer:
    """Tensors of one dtype side by side in one piece of a session's memory; known elsewhere as a gradient bucket or a contiguous buffer.

    Writing into it changes the session. Tensors begin on cache lines; the numbers between them are zero and must stay so, as they do in sums and products of
    whole arrays. The layout follows from names, shapes and dtypes alone, so that it is the same in every process that trains the same
    model."""

    array: np.ndarray
    """[n], contiguous and writable, with the buffer protocol and DLPack, as every NumPy array."""
    offsets: Mapping[str, int]
    """Parameter -> the index of its first element, ascending."""
    shapes: Mapping[str, tuple[int, ...]]
    """Parameter -> the shape of its tensor."""

    def offset(self, name: str) -> int:
        """Return the index of a parameter's first element. Raises ParameterNotFoundError for a name that is not in `offsets`."""
        if name not in self.offsets:
            raise ParameterNotFoundError(f"expected a parameter of this buffer, one of {list(self.offsets)}, got {name!r}")
        return self.offsets[name]

    def view(self, name: str) -> np.ndarray:
        """Return the tensor of a parameter, a view in its shape. Raises ParameterNotFoundError for a name that is not in `offsets`."""
        start, shape = self.offset(name), self.shapes[name]
        return self.array[start : start + int(np.prod(shape, dtype=np.int64))].reshape(shape)


def flat_buffers_of(segments: Iterable[Segment], left_out: Set[str] = frozenset()) -> Iterator[FlatBuffer]:
    """Yield the longest pieces of flat segments that hold no tensor named in `left_out`."""
    for segment in segments:
        for start, end in segment.runs(left_out):
            offsets = {name: offset - start for name, offset in segment.offsets.items() if start <= offset < end and segment.views[name].size}
            yield FlatBuffer(segment.array[start:end], offsets, {name: segment.shapes[name] for name in offsets})


def buckets_of(buffers: Iterable[FlatBuffer], size: int) -> Iterator[FlatBuffer]:
    """Yield pieces of buffers that hold whole tensors, at least `size` bytes each but for the last one of a buffer."""
    for buffer in buffers:
        start, names = 0, []
        ends = [*list(buffer.offsets.values())[1:], len(buffer.array)]
        for name, end in zip(buffer.offsets, ends, strict=True):
            names.append(name)
            if (end - start) * buffer.array.itemsize >= size or end == len(buffer.array):
                yield FlatBuffer(buffer.array[start:end], {name: buffer.offsets[name] - start for name in names}, {name: buffer.shapes[name] for name in names})
                start, names = end, []
