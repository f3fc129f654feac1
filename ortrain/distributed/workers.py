"""The workers of a run: what they do together, on a strategy, and how all of them end when one fails."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from ortrain.distributed.mpi import MPI
from ortrain.distributed.strategy import SingleProcess, Strategy
from ortrain.dtypes import BFLOAT16
from ortrain.errors import ArgumentTypeError, InvalidArgumentError, WorkerFailedError

STRATEGIES = {"mpi": MPI}
"""Name -> the strategy that it stands for."""
FIGURES = 7
"""The most numbers that sum() adds up. Its messages all have the same size, so that a worker that has failed can answer any of them."""


def strategy_of(value: Any) -> Strategy:
    """Return the strategy that a name stands for, a strategy as it is, and SingleProcess for None.

    Raises InvalidArgumentError for an unknown name, ArgumentTypeError for an object that is no strategy, MissingPackageError."""
    if value is None:
        return SingleProcess()
    if isinstance(value, str):
        if value == "ray":
            raise InvalidArgumentError("expected ortrain.distributed.Ray(workers=...), which needs to know how many, got 'ray'")
        if value not in STRATEGIES:
            raise InvalidArgumentError(f"expected a strategy out of {', '.join(STRATEGIES)}, got {value!r}")
        return STRATEGIES[value]()
    missing = [name for name in ("rank", "size", "all_reduce", "broadcast", "barrier") if not hasattr(value, name)]
    if missing:
        raise ArgumentTypeError(f"expected a strategy (see ortrain.distributed.Strategy), got a {type(value).__name__} without {', '.join(missing)}")
    return value  # type: ignore[no-any-return]


def as_exchanged(array: np.ndarray) -> np.ndarray:
    """Return a contiguous array as strategies exchange it: itself, or one of bfloat16, which they need not know, as a view of its bytes."""
    return array.view(np.uint8) if array.dtype.name == BFLOAT16 else array


class Workers:
    """The processes of a run, as one of them sees them. All call the methods together, in the same order.

    strategy: connects them. Whatever the workers do together begins with sum() or one of the methods that call it, so that one which has failed, and calls
    nothing else, is noticed by the others.

    Raises InvalidArgumentError for a strategy whose rank is not below its size."""

    def __init__(self, strategy: Strategy) -> None:
        self.strategy = strategy
        self.rank, self.size = int(strategy.rank), int(strategy.size)
        if not 0 <= self.rank < self.size:
            raise InvalidArgumentError(f"expected a strategy with a rank from 0 to size - 1, got rank {self.rank} and size {self.size}")

    @property
    def are_several(self) -> bool:
        """Whether there are other workers."""
        return self.size > 1

    # ---- failures

    @contextmanager
    def together(self) -> Iterator[None]:
        """A block that ends for all workers alike: with an exception for all when one of them has one.

        Raises WorkerFailedError, which names the rank and its exception, on all workers; where all have an exception, such as one for a wrong argument, that
        one. At its end all workers wait for each other."""
        if not self.are_several:
            yield
            return
        try:
            yield
        except WorkerFailedError:
            raise                                           # the others have it too
        except (Exception, SystemExit) as error:
            failure = self._tell(error)
            if failure is None:
                raise
            raise failure from error
        self.sum()

    def _tell(self, error: BaseException) -> WorkerFailedError | None:
        """Tell the others that this worker has failed, in answer to their next sum(). Return the error of the run; None if all workers have failed."""
        return self._failure(self._exchange(1.0), f"{type(error).__name__}: {error}")

    def _failure(self, failed: float, message: str) -> WorkerFailedError | None:
        """Exchange the messages of the workers that have failed, "" for others."""
        messages = self.gather(message.encode())
        if failed == self.size:
            return None
        rank, text = next((rank, text) for rank, text in enumerate(messages) if text)
        return WorkerFailedError(f"rank {rank} of {self.size} failed: {text.decode()}")

    def _exchange(self, failed: float, figures: Sequence[float] = ()) -> float:
        """Return how many workers have failed, after replacing `_sums` by the sums of the figures."""
        self._sums = np.zeros(1 + FIGURES)
        self._sums[0] = failed
        self._sums[1 : 1 + len(figures)] = figures
        self.strategy.all_reduce(self._sums)
        return float(self._sums[0])

    # ---- what workers do together

    def sum(self, *figures: float) -> list[float]:
        """Return the sums of up to FIGURES numbers over all workers. Raises WorkerFailedError when another worker has failed."""
        failed = self._exchange(0.0, figures)
        if failed:
            failure = self._failure(failed, "")
            assert failure is not None
            raise failure
        sums: list[float] = self._sums[1 : 1 + len(figures)].tolist()
        return sums

    def agree(self, reason: str | None) -> str | None:
        """Return the reason that the lowest rank has, None where no worker has one. Raises WorkerFailedError."""
        if not self.are_several:
            return reason
        count, = self.sum(float(reason is not None))
        return self.first(reason) if count else None

    def first(self, reason: str | None) -> str | None:
        """Return the reason of the lowest rank that has one, of which there is at least one. Follows sum() without a call in between."""
        reasons = self.gather(b"" if reason is None else b"." + reason.encode())
        return next(text[1:].decode() for text in reasons if text)

    def average(self, arrays: Sequence[np.ndarray]) -> None:
        """Replace arrays of floats by their means over all workers, element by element. Raises WorkerFailedError."""
        self.sum()
        for array in arrays:
            self.strategy.all_reduce(array)
            array /= self.size

    def broadcast(self, arrays: Sequence[np.ndarray]) -> None:
        """Replace arrays by those of rank 0. Raises WorkerFailedError."""
        self.sum()
        for array in arrays:
            self.strategy.broadcast(as_exchanged(array), 0)

    def check_same(self, **values: Any) -> None:
        """Raise InvalidArgumentError on all workers where one has other values than rank 0. Raises WorkerFailedError."""
        self.sum()
        texts = {name: repr(value) for name, value in values.items()}
        found = self.gather(b"".join(hashlib.sha256(text.encode()).digest() for text in texts.values()))
        for number, (name, text) in enumerate(texts.items()):
            digests = [digest[32 * number : 32 * number + 32] for digest in found]
            for rank, digest in enumerate(digests):
                if digest != digests[0]:
                    raise InvalidArgumentError(f"expected the same {name.replace('_', ' ')} on every worker, got others on rank {rank} than on rank 0 "
                                               f"(here, on rank {self.rank}: {text[:200]})")

    def gather(self, data: bytes) -> list[bytes]:
        """Return what each worker has given, by rank. Follows sum() without a call in between that may fail."""
        lengths = np.zeros(self.size, np.int64)
        lengths[self.rank] = len(data)
        self.strategy.all_reduce(lengths)
        found = []
        for rank, length in enumerate(lengths.tolist()):
            part = np.frombuffer(data, np.uint8).copy() if rank == self.rank else np.empty(length, np.uint8)
            if length:
                self.strategy.broadcast(part, rank)
            found.append(part.tobytes())
        return found

    def gather_arrays(self, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Return the arrays of all workers, those of rank 0 first; they may differ in number, shape and dtype. Raises WorkerFailedError."""
        content = io.BytesIO()
        for array in arrays:
            np.save(content, array, allow_pickle=False)
        self.sum()
        found = []
        for data in self.gather(content.getvalue()):
            stream = io.BytesIO(data)
            while stream.tell() < len(data):
                found.append(np.load(stream, allow_pickle=False))
        return found
