"""What workers need of the system that connects them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np


class Strategy(Protocol):
    """How the processes of a run, its workers, exchange arrays. The terms are those of MPI.

    All workers make the same calls in the same order, with arrays of the same dtype and size: contiguous, writable, of float32, float64, int64 or uint8. A call
    returns when its array holds the result. An exception ends the run of its process; the system is expected to end the other processes then."""

    @property
    def rank(self) -> int:
        """The number of this worker, from 0 to size - 1. Rank 0 writes files and shows progress."""

    @property
    def size(self) -> int:
        """The number of workers."""

    def all_reduce(self, array: np.ndarray) -> None:
        """Replace an array by the sum of the arrays of all workers, element by element; all receive the same bits."""

    def broadcast(self, array: np.ndarray, root: int) -> None:
        """Replace an array by that of the worker with the rank `root`."""

    def barrier(self) -> None:
        """Return when all workers have called it."""


class GatheringStrategy(Strategy, Protocol):
    """A strategy that also exchanges parts, which compressed gradients need."""

    def all_gather(self, array: np.ndarray) -> np.ndarray:
        """Return the arrays of all workers, [size, *array.shape]."""

    def all_to_all(self, array: np.ndarray) -> np.ndarray:
        """Return the rows [rank] of the arrays of all workers, each [size, ...], in the shape of the array."""


@runtime_checkable
class ShardingStrategy(Strategy, Protocol):
    """A strategy that also sums and gathers arrays by ranges, which a sharded optimizer saves time by.

    bounds: size + 1 ascending indices, the same on all workers: the range of rank r is [bounds[r], bounds[r + 1]), which may be empty."""

    def reduce_scatter(self, array: np.ndarray, bounds: Sequence[int]) -> None:
        """Replace the worker's own range of an array by the sum over all workers; the other ranges may hold the sums of some."""

    def all_gather_in_place(self, array: np.ndarray, bounds: Sequence[int]) -> None:
        """Replace every range of an array by that of the worker to which it belongs."""


class Launcher(ABC):
    """What starts workers by itself, from a program that is none: Trainer.fit then trains in them, and has the result of rank 0."""

    workers: int
    """How many."""
    cpus: int
    """Processors of each."""

    @abstractmethod
    def run(self, work: Callable[[Any, int], Any]) -> Any:
        """Call work(strategy, attempt) in every worker; return what it returns on rank 0.

        work: can be pickled. strategy: a Strategy that connects the workers. attempt: how often all workers were started anew because one was lost.
        Raises WorkerFailedError, which names the rank, and the error that all workers have."""


class SingleProcess:
    """The strategy of a process that trains alone."""

    rank = 0
    size = 1

    def all_reduce(self, array: np.ndarray) -> None:
        """Leave the array as it is: the sum of one."""

    def broadcast(self, array: np.ndarray, root: int) -> None:
        """Leave the array as it is."""

    def barrier(self) -> None:
        """Return at once."""
