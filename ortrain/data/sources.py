"""Where samples come from. Three kinds of source: samples by number, rows in blocks that are read in sequence, and streams of batches."""

from __future__ import annotations

import mmap
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, BinaryIO

import numpy as np

from ortrain.data.conversion import as_array, is_nested_numbers
from ortrain.errors import InvalidArgumentError, InvalidStateError

Key = tuple[int, int]
"""(seed, epoch): all that random augmentation may depend on beside the number of the sample."""

RELEASE = 64 << 20
"""Bytes of a memory map that may have become resident before its pages are given back."""
FAULT = 1 << 20
"""Bytes that become resident around a single row that is read from a memory map: Linux maps what its cache holds in one piece."""


class Source(ABC):
    """Provides the session's inputs. `names`: the inputs, in the order in which values are given."""

    names: list[str]
    samples: int | None = None
    """The number of samples, None where nobody knows."""

    @abstractmethod
    def describe(self) -> str:
        """Say in a few words what the source is."""


class RandomAccess(Source):
    """Samples that can be read by number, in any order."""

    samples: int

    @abstractmethod
    def read(self, rows: np.ndarray | slice, key: Key) -> list[np.ndarray]:
        """Return the given samples, [len(rows), ...] for each input."""

    @property
    def in_memory(self) -> Sequence[np.ndarray] | None:
        """The arrays when all samples are in memory, so that they can be checked once; None otherwise."""
        return None

    def targets(self) -> np.ndarray:
        """Return the last input of all samples."""
        step = 4096
        return np.concatenate([self.read(slice(start, min(start + step, self.samples)), (0, 0))[-1] for start in range(0, self.samples, step)])

    def plain(self) -> RandomAccess:
        """Return the same samples without random augmentation."""
        return self


class Blocks(Source):
    """Rows in blocks, such as the row groups of a Parquet file: reading a block from its beginning is fast, picking single rows is not."""

    samples: int
    rows: list[int]
    """The number of rows of each block."""

    @abstractmethod
    def read_block(self, number: int) -> Iterator[list[np.ndarray]]:
        """Yield the rows of a block in order, a piece at a time."""

    @property
    @abstractmethod
    def row_bytes(self) -> int:
        """The size of a row in memory, by which windows for shuffling are bounded."""

    def targets(self) -> np.ndarray:
        """Return the last input of all rows."""
        return np.concatenate([piece[-1] for number in range(len(self.rows)) for piece in self.read_block(number)])


class Stream(Source):
    """Batches that can be had in their own order only.

    batches: called at the start of an epoch for an iterator over batches with values in the order of names; it is told the batch size, which sources that
    yield single rows use. once: the iterator is always the same one, and epochs continue where the last ended.
    length: batches that one iterator yields, None where unknown. what: describes the source."""

    def __init__(self, names: list[str], batches: Callable[[int], Iterator[Any]], *, once: bool, length: int | None, what: str) -> None:
        self.names, self.batches, self.once, self.length, self._what = names, batches, once, length, what

    def describe(self) -> str:
        return self._what


# ---- arrays

class MappedFile(np.memmap):
    """A memory map with the file it was made from. Reading rows from the file instead of the map leaves no pages resident."""

    file: BinaryIO | None = None
    """The open file; None for views, which begin elsewhere."""

    def rows(self, rows: np.ndarray | slice) -> np.ndarray:
        """Return the given rows, read from the file. Raises InvalidStateError when the file has become shorter."""
        assert self.file is not None
        start = self.offset + (rows.start * self.strides[0] if isinstance(rows, slice) else 0)
        found = np.empty((rows.stop - rows.start if isinstance(rows, slice) else len(rows), *self.shape[1:]), self.dtype)
        if not found.size:
            return found
        into, number, size = memoryview(found.reshape(-1).view(np.uint8).data), self.file.fileno(), self.strides[0]
        read = 0
        if isinstance(rows, slice):
            while read < len(into) and (more := os.preadv(number, [into[read:]], start + read)):
                read += more
        else:
            for place, row in enumerate(rows.tolist()):
                read += os.preadv(number, [into[place * size : (place + 1) * size]], start + row * size)
        if read != len(into):
            raise InvalidStateError(f"expected the file {str(self.filename)!r} as long as it was, got {read} of {len(into)} bytes")
        return found

    @property
    def is_readable(self) -> bool:
        """Whether `rows` can be called: for a whole file in C order, where the system reads at positions."""
        return self.file is not None and self.flags.c_contiguous and self.ndim > 0 and hasattr(os, "preadv")


class ArraySource(RandomAccess):
    """Arrays in memory or memory-mapped, one per input, axis 0 being the sample axis."""

    def __init__(self, names: Sequence[str], arrays: Sequence[np.ndarray]) -> None:
        check_lengths(names, arrays)
        self.names = list(names)
        self.samples = len(arrays[0])
        self._files = [array if isinstance(array, MappedFile) and array.is_readable else None for array in arrays]
        self._mapped = any(_is_mapped(array) for array in arrays)
        self._maps = [found for array, file in zip(arrays, self._files, strict=True) if file is None and (found := _releasable_map(array)) is not None]
        self.arrays = [np.asarray(array) for array in arrays]
        self._resident = 0

    def read(self, rows: np.ndarray | slice, key: Key) -> list[np.ndarray]:
        if self._mapped:
            self._release(rows)
            return [_rows_of(array, rows) if file is None else file.rows(rows) for array, file in zip(self.arrays, self._files, strict=True)]
        if isinstance(rows, slice):
            return [array[rows] for array in self.arrays]
        return [array.take(rows, axis=0) for array in self.arrays]

    def _release(self, rows: np.ndarray | slice) -> None:
        """Give pages back now and then: the file stays in the system's cache, but the process does not grow to the size of the file."""
        size = sum(array.nbytes // len(array) for array in self.arrays)
        self._resident += max(size, FAULT) * len(rows) if isinstance(rows, np.ndarray) else size * (rows.stop - rows.start)
        if self._resident > RELEASE:
            self._resident = 0
            for mapped in self._maps:
                mapped.madvise(mmap.MADV_DONTNEED)

    @property
    def in_memory(self) -> Sequence[np.ndarray] | None:
        return None if self._mapped else self.arrays

    def targets(self) -> np.ndarray:
        return self.arrays[-1]

    def describe(self) -> str:
        shapes = ", ".join(f"{name} {array.dtype} {list(array.shape)}" for name, array in zip(self.names, self.arrays, strict=True))
        return f"{'memory-mapped arrays' if self._mapped else 'arrays in memory'}: {shapes}"


def check_lengths(names: Sequence[str], arrays: Sequence[np.ndarray]) -> None:
    """Check that all arrays have the same number of samples, at least one. Raises InvalidArgumentError that names two that differ."""
    for name, array in zip(names, arrays, strict=True):
        if array.ndim == 0:
            raise InvalidArgumentError(f"expected an array with a sample axis for {name!r}, got the single value {array.item()!r}")
        if len(array) != len(arrays[0]):
            raise InvalidArgumentError(f"expected as many samples in every input, got {len(arrays[0])} in {names[0]!r} (shape {list(arrays[0].shape)}) and "
                                       f"{len(array)} in {name!r} (shape {list(array.shape)})")
    if not len(arrays[0]):
        raise InvalidArgumentError(f"expected at least one sample, got none in {names[0]!r} (shape {list(arrays[0].shape)})")


def _rows_of(array: np.ndarray, rows: np.ndarray | slice) -> np.ndarray:
    return array[rows] if isinstance(rows, slice) else array.take(rows, axis=0)


def _owner(array: np.ndarray) -> Any:
    base: Any = array
    while isinstance(base, np.ndarray) and base.base is not None:
        base = base.base
    return base.obj if isinstance(base, memoryview) else base


def _is_mapped(array: np.ndarray) -> bool:
    return isinstance(_owner(array), mmap.mmap)


def _releasable_map(array: np.ndarray) -> mmap.mmap | None:
    """The map of an array whose pages can be given back; those of copy-on-write maps (mode "c") may hold changes."""
    owner = _owner(array)
    shared = isinstance(array, np.memmap) and array.mode in ("r", "r+", "w+")
    return owner if isinstance(owner, mmap.mmap) and shared and hasattr(mmap, "MADV_DONTNEED") else None


# ---- samples

class SampleSource(RandomAccess):
    """An object with __len__ and __getitem__(number) -> sample, such as a torch Dataset. A sample is laid out like a batch, without the sample axis."""

    def __init__(self, names: Sequence[str], dataset: Any) -> None:
        self.names, self.samples, self._dataset = list(names), len(dataset), dataset
        if not self.samples:
            raise InvalidArgumentError(f"expected at least one sample, got an empty {type(dataset).__name__}")

    def read(self, rows: np.ndarray | slice, key: Key) -> list[np.ndarray]:
        numbers = range(rows.start, rows.stop) if isinstance(rows, slice) else rows.tolist()
        several = getattr(self._dataset, "__getitems__", None)
        samples = several(list(numbers)) if several is not None else [self._dataset[number] for number in numbers]
        fields = [in_order(sample, self.names, "a sample") for sample in samples]
        return [as_array(list(values), name) for name, values in zip(self.names, zip(*fields, strict=True), strict=True)]

    def describe(self) -> str:
        return f"{type(self._dataset).__name__} of {self.samples} samples"


class ColumnSource(RandomAccess):
    """A Hugging Face dataset: columns by name, rows by lists of numbers."""

    def __init__(self, names: Sequence[str], dataset: Any, columns: Sequence[str]) -> None:
        self.names, self.samples, self._columns = list(names), len(dataset), list(columns)
        if not self.samples:
            raise InvalidArgumentError(f"expected at least one sample, got an empty {type(dataset).__name__}")
        # a copy: set_format would change the caller's dataset
        self._dataset = dataset.with_format("numpy", columns=self._columns) if hasattr(dataset, "with_format") else dataset

    def read(self, rows: np.ndarray | slice, key: Key) -> list[np.ndarray]:
        batch = self._dataset[rows if isinstance(rows, slice) else rows.tolist()]
        return [as_array(batch[column], name) for name, column in zip(self.names, self._columns, strict=True)]

    def describe(self) -> str:
        return f"{type(self._dataset).__name__} of {self.samples} rows, columns {', '.join(self._columns)}"


# ---- parts of sources

class RandomAccessPart(RandomAccess):
    """Some of the samples of another source, without copying them."""

    def __init__(self, source: RandomAccess, rows: np.ndarray) -> None:
        self.names, self.samples, self._source, self.rows = source.names, len(rows), source, rows
        """`rows`: the numbers of the samples in the other source."""

    def read(self, rows: np.ndarray | slice, key: Key) -> list[np.ndarray]:
        return self._source.read(self.rows[rows], key)

    @property
    def in_memory(self) -> Sequence[np.ndarray] | None:
        return self._source.in_memory

    def describe(self) -> str:
        return f"{self.samples} of the samples of {self._source.describe()}"

    def targets(self) -> np.ndarray:
        chosen: np.ndarray = self._source.targets()[self.rows]
        return chosen

    def plain(self) -> RandomAccess:
        return RandomAccessPart(self._source.plain(), self.rows)


class BlocksPart(Blocks):
    """Some of the rows of a source in blocks; rows: their numbers, ascending."""

    def __init__(self, source: Blocks, rows: np.ndarray) -> None:
        self.names, self.samples, self._source = source.names, len(rows), source
        ends = np.cumsum(source.rows)
        self._chosen = [part - start for part, start in zip(np.split(rows, np.searchsorted(rows, ends[:-1])), [0, *ends[:-1]], strict=True)]
        self.rows = [len(part) for part in self._chosen]

    @property
    def row_bytes(self) -> int:
        return self._source.row_bytes

    def read_block(self, number: int) -> Iterator[list[np.ndarray]]:
        start = 0
        chosen = self._chosen[number]
        for piece in self._source.read_block(number) if len(chosen) else ():
            stop = start + len(piece[0])
            within = chosen[np.searchsorted(chosen, start) : np.searchsorted(chosen, stop)] - start
            if len(within):
                yield [array[within] for array in piece]
            start = stop

    def describe(self) -> str:
        return f"{self.samples} of the rows of {self._source.describe()}"


# ---- batches as users lay them out

def in_order(batch: Any, names: Sequence[str], what: str) -> list[Any]:
    """Return the values of a batch or sample in the order of names: a mapping by name, a sequence in order, or nested, such as (inputs, targets).

    Tuples and mappings group values; lists do so too unless they hold numbers. what: words for errors.
    Raises InvalidArgumentError when the values do not fit the names."""
    if isinstance(batch, Mapping):
        missing = [name for name in names if name not in batch]
        if missing:
            raise InvalidArgumentError(f"expected {what} with values for {list(names)}, got {sorted(map(str, batch))}")
        return [batch[name] for name in names]
    flat = _flat(batch, names)
    if len(flat) != len(names):
        raise InvalidArgumentError(f"expected {what} with values for {list(names)}, got {len(flat)} values")
    return flat


def _flat(values: Any, names: Sequence[str]) -> list[Any]:
    if isinstance(values, Mapping):
        return [values[name] for name in names if name in values]
    if isinstance(values, tuple) or isinstance(values, list) and not all(is_nested_numbers(value) for value in values):
        return [flat for value in values for flat in _flat(value, names)]
    return [values]


def length_of(value: Any) -> int | None:
    """Return len(value), None where it has none: generators, and loaders over data of unknown length, which raise TypeError."""
    try:
        return len(value)
    except (TypeError, NotImplementedError):
        return None


def rebatched(pieces: Iterable[list[np.ndarray]], size: int) -> Iterator[list[np.ndarray]]:
    """Yield the rows of pieces in batches of `size` rows; the last may be smaller."""
    batch: list[np.ndarray] = []
    filled = 0
    for piece in pieces:
        start, count = 0, len(piece[0])
        while start < count:
            if not batch:
                batch = [np.empty((size, *array.shape[1:]), array.dtype) for array in piece]
            more = min(size - filled, count - start)
            for place, array in enumerate(piece):
                if array.dtype != batch[place].dtype:           # integers beside missing values are floats
                    batch[place] = batch[place].astype(np.promote_types(batch[place].dtype, array.dtype))
                batch[place][filled : filled + more] = array[start : start + more]
            start, filled = start + more, filled + more
            if filled == size:
                yield batch
                batch, filled = [], 0
    if filled:
        yield [array[:filled] for array in batch]
