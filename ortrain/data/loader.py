"""The loader: epochs of batches in a reproducible order, in the order and dtypes of the session's inputs."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import numpy as np

from ortrain.data.conversion import Conversion, as_array
from ortrain.data.prefetch import Batch, Channel, PrefetchIterator, stale
from ortrain.data.recognition import source_of
from ortrain.data.sources import Blocks, RandomAccess, Source, Stream, check_lengths, rebatched
from ortrain.dtypes import NUMBERS
from ortrain.errors import ArgumentTypeError, InvalidArgumentError, InvalidStateError

CHEAP_BATCH = 4 << 20
"""Bytes of a batch from arrays in memory up to which no thread is ever started: up to there none was faster in any measurement."""
WINDOW_ROWS, WINDOW_BYTES = 65536, 32 << 20
"""How many rows of a source in blocks are in memory to be shuffled among each other, at most, but one batch in any case."""


class BatchShard(Batch):
    """One worker's part of a batch that several workers share; without arrays where the batch has too few samples.

    samples: how many the whole batch has."""

    def __init__(self, arrays: Batch, samples: int) -> None:
        super().__init__(arrays)
        self.samples = samples


class DataLoader:
    """Batches of samples, epoch by epoch. `as_loader` makes one and describes the parameters; `shard` says what that of a loader is."""

    def __init__(self, source: Source, conversions: Sequence[Conversion], *, batch_size: int = 32, shuffle: bool = True, seed: int = 0,
                 drop_last: bool = False, steps_per_epoch: int | None = None, prefetch: int = 2, shard: tuple[int, int] = (0, 1)) -> None:
        _check_counts(batch_size=(batch_size, 1), seed=(seed, 0), prefetch=(prefetch, 0))
        if steps_per_epoch is not None:
            _check_counts(steps_per_epoch=(steps_per_epoch, 1))
        self.source = source
        """What the batches are made of."""
        self.conversions = list(conversions)
        self.batch_size, self.shuffle, self.seed, self.drop_last, self.prefetch = batch_size, shuffle, seed, drop_last, prefetch
        self.steps_per_epoch = steps_per_epoch
        self.rank, self.workers = shard
        """Which part of each batch this loader yields, and of how many."""
        self.batches_per_epoch = self._count_batches()
        """The number of batches of an epoch, None where it is not known beforehand."""
        self._checked = self._check_once()
        self._once = _OneShot(source) if isinstance(source, Stream) and source.once else None

    @property
    def names(self) -> list[str]:
        """The session's inputs, in the order of a batch."""
        return [conversion.name for conversion in self.conversions]

    @property
    def samples(self) -> int | None:
        """The number of samples of the data, None where it is not known beforehand."""
        return self.source.samples

    def describe(self) -> str:
        """Say in one line what the data are and how they become batches."""
        order = "in their own order" if isinstance(self.source, Stream) else "shuffled" if self.shuffle else "in order"
        batches = "an unknown number of batches" if self.batches_per_epoch is None else f"{self.batches_per_epoch} batches"
        size = "" if isinstance(self.source, Stream) else f" of {self.batch_size}"
        thread = f", up to {self.prefetch} prepared ahead" if self._may_use_thread() else ""
        shard = f", of each the part of rank {self.rank} of {self.workers}" if self.workers > 1 else ""
        return f"{self.source.describe()}; {batches}{size} per epoch, {order}{shard}{thread}"

    def __repr__(self) -> str:
        return f"DataLoader({self.describe()})"

    def shard(self, rank: int, workers: int) -> DataLoader:
        """Return a loader for one of several workers that train together: each of its batches is the worker's part of a batch that is `workers` times as large.

        The parts of all ranks, in their order, are the batches of a loader with `workers` times the batch size, or, of a stream of batches, the stream's own,
        each divided evenly. Batches are BatchShard; rows of other workers are read only where they come in blocks or in a stream.

        Raises InvalidArgumentError for a rank that is not one of the workers, for data that can be iterated once, and with drop_last or steps_per_epoch for
        data with too few samples."""
        _check_counts(rank=(rank, 0), workers=(workers, 1))
        if rank >= workers:
            raise InvalidArgumentError(f"expected a rank below the number of workers, {workers}, got {rank}")
        if self._once is not None:
            raise InvalidArgumentError(f"expected data that every worker can iterate again, got {self.source.describe()}: give a list, a DataLoader or another "
                                       "object that starts anew")
        return DataLoader(self.source, self.conversions, batch_size=self.batch_size * workers, shuffle=self.shuffle, seed=self.seed, drop_last=self.drop_last,
                          steps_per_epoch=self.steps_per_epoch, prefetch=self.prefetch, shard=(rank, workers))

    def _own(self, start: int, stop: int) -> tuple[int, int]:
        """Return the rows of a batch [start, stop) that are this loader's."""
        count = stop - start
        return start + count * self.rank // self.workers, start + count * (self.rank + 1) // self.workers

    def _made(self, arrays: Batch, samples: int) -> Batch:
        return BatchShard(arrays, samples) if self.workers > 1 else arrays

    # ---- what is known and checked beforehand

    def batch_sizes(self) -> set[int]:
        """Return how many samples the batches of data with numbered samples have: the first, and the last one if it is smaller."""
        count, size = self.source.samples, self.batch_size
        assert count is not None
        whole = self.drop_last or self.steps_per_epoch is not None
        found = [self._own(0, samples) for samples in (min(size, count), size if whole else count % size or size)]
        return {stop - start for start, stop in found if stop > start}

    def _count_batches(self) -> int | None:
        source, steps = self.source, self.steps_per_epoch
        if isinstance(source, Stream):
            if source.once and steps is None:
                raise InvalidArgumentError(f"expected steps_per_epoch for data that can be iterated once, got None ({source.describe()})")
            available = source.length
        else:
            assert source.samples is not None
            available = source.samples // self.batch_size if self.drop_last else -(-source.samples // self.batch_size)
            if not available:
                raise InvalidArgumentError(f"expected at least one whole batch of {self.batch_size} with drop_last, got {source.samples} samples")
        if steps is not None and available is not None and steps > available:
            raise InvalidArgumentError(f"expected steps_per_epoch up to {available}, the batches that the data have, got {steps}")
        return available if steps is None else steps

    def _check_once(self) -> bool:
        """Check arrays in memory, so that their batches need no check."""
        arrays = self.source.in_memory if isinstance(self.source, RandomAccess) else None
        if arrays is None:
            return False
        for conversion, array in zip(self.conversions, arrays, strict=True):
            conversion.check(array)
        return True

    def _may_use_thread(self) -> bool:
        if not self.prefetch:
            return False
        arrays = self.source.in_memory if isinstance(self.source, RandomAccess) else None
        if arrays is None:
            return True
        return sum(array.nbytes // max(1, len(array)) for array in arrays) * self.batch_size > CHEAP_BATCH * self.workers

    # ---- epochs

    def epoch(self, number: int, first_batch: int = 0) -> Iterator[Batch]:
        """Iterate over the batches of epoch `number`, counted from 0, each a list of arrays [samples, ...] in the order of names.

        first_batch: begin with this batch, with the same batches as an iteration from the start; batches before it are read only where the data are a
        stream. The order depends on (seed, number) only. An iterator with a thread has a method close, as generators have.

        Raises InvalidArgumentError for numbers out of range. While iterating: InvalidStateError when a stream ends too early, and the errors of conversion,
        see ortrain.data."""
        _check_counts(number=(number, 0), first_batch=(first_batch, 0))
        total = self.batches_per_epoch
        if total is not None and first_batch > total:
            raise InvalidArgumentError(f"expected first_batch up to {total}, the batches of an epoch, got {first_batch}")
        if self._once is not None:
            assert total is not None
            return self._once.epoch(self, number * total + first_batch, total - first_batch)
        batches: Iterator[Batch]
        if isinstance(self.source, RandomAccess):
            batches = self._random_access(self.source, number, first_batch)
        elif isinstance(self.source, Blocks):
            batches = self._blocks(self.source, number, first_batch)
        else:
            assert isinstance(self.source, Stream)
            batches = self._stream(self.source, first_batch)
        return PrefetchIterator(batches, self.prefetch) if self._may_use_thread() else batches

    def _random_access(self, source: RandomAccess, number: int, first: int) -> Iterator[Batch]:
        count, size, key, checked = source.samples, self.batch_size, (self.seed, number), self._checked
        order = np.random.default_rng(key).permutation(count) if self.shuffle else None
        assert self.batches_per_epoch is not None
        for start in range(first * size, self.batches_per_epoch * size, size):
            stop = min(start + size, count)
            low, high = self._own(start, stop)
            rows = slice(low, high) if order is None else order[low:high]
            values = source.read(rows, key) if high > low else None
            arrays = [] if values is None else [conversion(array, rows, checked) for conversion, array in zip(self.conversions, values, strict=True)]
            yield self._made(arrays, stop - start)

    def _blocks(self, source: Blocks, number: int, first: int) -> Iterator[Batch]:
        """Blocks in random order, and rows in random order within windows that hold whole batches, so that a batch's window follows from its number."""
        size = self.batch_size
        window = max(1, min(WINDOW_ROWS, WINDOW_BYTES // source.row_bytes) // size) * size
        order = np.random.default_rng((self.seed, number)).permutation(len(source.rows)) if self.shuffle else np.arange(len(source.rows))
        assert self.batches_per_epoch is not None
        last = self.batches_per_epoch * size
        index = first * size // window
        windows = rebatched(_rows_from(source, order, index * window), window)
        while (rows := next(windows, None)) is not None:
            count = len(rows[0])
            within = np.random.default_rng((self.seed, number, index)).permutation(count) if self.shuffle else np.arange(count)
            for start in range(0, count, size):
                position = index * window + start
                if position >= last:
                    return
                if position >= first * size:
                    low, high = self._own(start, min(start + size, count))
                    where = f"batch {position // size} (shuffled within blocks)" if self.shuffle else slice(position + low - start, None)
                    arrays = [conversion(array[within[low:high]], where) for conversion, array in zip(self.conversions, rows, strict=True)]
                    yield self._made(arrays if high > low else [], min(size, count - start))
            index += 1
            del rows                                        # before the next window is read

    def _stream(self, source: Stream, first: int) -> Iterator[Batch]:
        steps, number = self.steps_per_epoch, -1
        for number, batch in enumerate(islice(source.batches(self.batch_size), steps)):
            if number >= first:
                yield self._converted(batch, number)
        if steps is not None and number + 1 < steps:
            raise InvalidStateError(f"expected {steps} batches (steps_per_epoch), got {number + 1} ({source.describe()})")
        if number < 0:
            raise InvalidStateError(f"expected at least one batch, got none ({source.describe()}): give an object that can be iterated again, or "
                                    "steps_per_epoch with an iterator")

    def _converted(self, batch: Sequence[Any], number: int) -> Batch:
        """A batch of a stream, with its values in the order of names."""
        names = self.names
        arrays = [as_array(value, name) for name, value in zip(names, batch, strict=True)]
        try:
            check_lengths(names, arrays)
        except InvalidArgumentError as error:
            raise InvalidArgumentError(f"{error}, in batch {number}") from None
        samples = len(arrays[0])
        start, stop = self._own(0, samples)
        parts = [array[start:stop] for array in arrays] if self.workers > 1 else arrays
        return self._made([conversion(array, f"batch {number}") for conversion, array in zip(self.conversions, parts, strict=True) if stop > start], samples)


class _OneShot:
    """A stream that can be iterated once: knows how many batches were taken, and keeps those that a thread read ahead of an iteration that ended early."""

    def __init__(self, source: Stream) -> None:
        self._source = source
        self._position = 0
        """The number of the next batch that an epoch will be given."""
        self._waiting: deque[Batch] = deque()
        self._last: Channel | None = None
        self._error: BaseException | None = None
        """The exception that a thread met behind the waiting batches."""
        self._epochs = 0
        """Epochs that have begun; an iterator of an earlier one than the last may not go on."""

    def epoch(self, loader: DataLoader, start: int, count: int) -> Iterator[Batch]:
        """Iterate over `count` batches from number `start` on; batches before it are read and dropped."""
        if self._last is not None:
            left, self._error = self._last.join()
            self._waiting.extendleft(reversed(left))
            self._position -= len(left)
            self._last = None
        if start < self._position:
            raise InvalidStateError(f"expected data that can be iterated again, to go back to batch {start}, got {self._source.describe()}, of which "
                                    f"{self._position} batches are used: give a list, a DataLoader or another object that starts anew")
        self._epochs += 1
        batches = self._read(loader, start, count, self._epochs)
        if not loader.prefetch:
            return batches
        iterator = PrefetchIterator(batches, loader.prefetch)
        self._last = iterator.channel
        return iterator

    def _read(self, loader: DataLoader, start: int, count: int, epoch: int) -> Iterator[Batch]:
        iterator, end = self._source.batches(loader.batch_size), start + count
        while True:
            if epoch != self._epochs:
                raise stale()
            number = self._position
            if number >= end:
                return
            if self._waiting:
                batch = self._waiting.popleft()
            elif self._error is not None:
                raise self._error
            else:
                try:
                    raw = next(iterator)
                except StopIteration:
                    raise InvalidStateError(f"expected {loader.steps_per_epoch} batches in every epoch (steps_per_epoch), got {number} batches in all, the "
                                            f"last in epoch {max(0, number - 1) // (loader.steps_per_epoch or 1)} ({self._source.describe()})") from None
                if number < start:
                    self._position += 1
                    continue
                batch = loader._converted(raw, number)
            self._position += 1
            if number >= start:
                yield batch


def _rows_from(source: Blocks, order: np.ndarray, start: int) -> Iterator[list[np.ndarray]]:
    """Yield pieces of the blocks in the given order, from row number `start` of this order on. Blocks before it are not read."""
    for number in order:
        count = source.rows[number]
        if start >= count:
            start -= count
            continue
        for piece in source.read_block(int(number)):
            length = len(piece[0])
            if start < length:
                yield [array[start:] for array in piece] if start else piece
            start = max(0, start - length)


def _check_counts(**counts: tuple[Any, int]) -> None:
    for name, (value, low) in counts.items():
        if isinstance(value, bool) or not isinstance(value, int | np.integer):
            raise ArgumentTypeError(f"expected {name} as an integer, got {value!r}")
        if value < low:
            raise InvalidArgumentError(f"expected {name} >= {low}, got {value}")


def as_loader(data: Any, targets: Any = None, *, names: Sequence[str], dtypes: Mapping[str, Any] | None = None, batch_size: int = 32, shuffle: bool = True,
              seed: int = 0, drop_last: bool = False, steps_per_epoch: int | None = None, prefetch: int = 2, sample_weight: Any = None,
              check_finite: bool = True) -> DataLoader:
    """Return a DataLoader over data of any of the kinds that ortrain.data lists.

    data: all inputs, or those that are no targets; a DataLoader for the same names is returned as it is.
    targets: the other inputs, in the same forms, or names of columns of `data`; None where data bring them.
    names: the session's inputs in its order, targets last. dtypes: the dtype of each input, as a name or np.dtype;
    an input without one keeps the dtype of its data. batch_size: samples in a batch; data that come in batches keep theirs. shuffle: a new order in every
    epoch, which depends on (seed, epoch) only; streams keep their own order. drop_last: leave out a last batch that is smaller; not for streams.
    steps_per_epoch: batches in an epoch, required for one-shot iterators, whose epochs continue where the last one ended; others may have fewer than all.
    prefetch: batches that a background thread prepares ahead; 0 for no thread. There is none either where preparing a batch is faster than a thread.
    sample_weight: one weight per sample, for the input "sample_weight", or the last one. check_finite: refuse NaN and infinity in floats.

    Raises ArtifactNotFoundError for a path without a file, ArgumentTypeError for data of an unknown kind, InputTypeError for text and other values that an
    input cannot take, InvalidArgumentError for data that do not fit the names or each other, and for values out of range."""
    if isinstance(names, str):
        raise ArgumentTypeError(f"expected names as a sequence of the inputs' names, got the string {names!r}")
    if isinstance(data, DataLoader):
        if targets is not None or sample_weight is not None or data.names != list(names):
            raise InvalidArgumentError(f"expected a DataLoader for the inputs {list(names)}, without targets and sample_weight beside it, got one for "
                                       f"{data.names}")
        return data
    source = source_of(data, targets, names, sample_weight)
    dtype_names = {name: str(dtype) for name, dtype in (dtypes or {}).items()}
    if unknown := sorted(set(dtype_names) - set(names)):
        raise InvalidArgumentError(f"expected dtypes of the inputs {list(names)}, got one for {unknown}")
    if invalid := sorted(set(dtype_names.values()) - set(NUMBERS)):
        raise InvalidArgumentError(f"expected dtypes out of {list(NUMBERS)}, got {invalid}")
    conversions = [Conversion(name, dtype_names.get(name), check_finite) for name in names]
    return DataLoader(source, conversions, batch_size=batch_size, shuffle=shuffle, seed=seed, drop_last=drop_last, steps_per_epoch=steps_per_epoch,
                      prefetch=prefetch)

