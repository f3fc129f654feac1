"""Workers that are threads of one process, so that what workers do is tested without a transport."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

TIMEOUT = 60
"""Seconds after which a worker that waits for the others gives up."""


class Meeting:
    """Where the threads exchange arrays."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.barrier = threading.Barrier(size, timeout=TIMEOUT)
        self.arrays: list[Any] = [None] * size


class Threads:
    """The strategy of one of the threads."""

    def __init__(self, meeting: Meeting, rank: int) -> None:
        self.meeting, self.rank, self.size = meeting, rank, meeting.size
        self.reduced = 0
        """Elements of all arrays that were reduced, to see what is communicated."""
        self.sent = 0
        """Bytes that went to other workers by all_gather and all_to_all."""
        self.scattered = 0
        """Elements of the sums that reduce_scatter has returned."""

    def all_reduce(self, array: np.ndarray) -> None:
        self.reduced += array.size
        arrays = self._exchange(array)
        total = arrays[0].copy()
        for other in arrays[1:]:
            assert other.dtype == array.dtype and other.shape == array.shape
            total += other
        self.meeting.barrier.wait()
        array[...] = total

    def broadcast(self, array: np.ndarray, root: int) -> None:
        arrays = self._exchange(array)
        assert arrays[root].dtype == array.dtype and arrays[root].shape == array.shape
        copy = arrays[root].copy()
        self.meeting.barrier.wait()
        array[...] = copy

    def barrier(self) -> None:
        self.meeting.barrier.wait()

    def all_gather(self, array: np.ndarray) -> np.ndarray:
        gathered = np.stack(self._exchange(array))
        self.sent += array.nbytes * (self.size - 1)
        self.meeting.barrier.wait()
        return gathered

    def all_to_all(self, array: np.ndarray) -> np.ndarray:
        exchanged = np.stack([other[self.rank] for other in self._exchange(array)])
        self.sent += array.nbytes * (self.size - 1) // self.size
        self.meeting.barrier.wait()
        return exchanged

    def reduce_scatter(self, array: np.ndarray, bounds: Sequence[int]) -> None:
        own = slice(bounds[self.rank], bounds[self.rank + 1])
        arrays = self._exchange(array)
        total = arrays[0][own].copy()
        for other in arrays[1:]:
            total += other[own]
        self.scattered += total.size
        self.meeting.barrier.wait()
        array *= 3                                          # to see that nobody uses the rest
        array[own] = total

    def all_gather_in_place(self, array: np.ndarray, bounds: Sequence[int]) -> None:
        arrays = self._exchange(array)
        gathered = [other[start:end].copy() for other, (start, end) in zip(arrays, pairwise(bounds), strict=True)]
        self.meeting.barrier.wait()
        array[: bounds[-1]] = np.concatenate(gathered)

    def _exchange(self, array: np.ndarray) -> list[np.ndarray]:
        assert array.flags.c_contiguous and array.flags.writeable and array.dtype.name in ("float32", "float64", "int64", "uint8")
        self.meeting.arrays[self.rank] = array
        self.meeting.barrier.wait()
        return list(self.meeting.arrays)


def run(size: int, work: Callable[[Threads], Any]) -> list[Any]:
    """Call `work` in `size` threads, each with its strategy; return what each has returned or raised, by rank."""
    meeting = Meeting(size)
    results: list[Any] = [None] * size

    def call(rank: int) -> None:
        try:
            results[rank] = work(Threads(meeting, rank))
        except BaseException as error:
            results[rank] = error

    threads = [threading.Thread(target=call, args=[rank]) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def results(size: int, work: Callable[[Threads], Any]) -> list[Any]:
    """As run(), where no worker raises."""
    found = run(size, work)
    for result in found:
        if isinstance(result, BaseException):
            raise result
    return found
