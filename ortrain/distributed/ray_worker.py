"""What connects the workers of Ray: a register that all know, and the strategy of each, which sends arrays from worker to worker."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from ortrain.errors import WorkerFailedError
from ortrain.packages import require

INLINE_BYTES = 1 << 16
"""Up to this size an array is sent to all workers at once, in the calls themselves; larger ones are summed by parts, and go through the object store."""


class Register:
    """The actor that all workers of a run know: it tells them of each other, and remembers who has failed or was lost.

    size: the number of workers."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._attempts = 0
        self._lost: list[list[int]] = []

    async def begin(self) -> int:
        """Forget the workers that were started before; return how often that was."""
        self._actors: dict[int, Any] = {}
        self._failures: dict[int, BaseException] = {}
        self._complete = asyncio.Event()
        self._attempts += 1
        return self._attempts - 1

    async def join(self, rank: int, actor: Any) -> list[Any]:
        """Return the actors of all workers in the order of ranks, once all have joined."""
        self._actors[rank] = actor
        if len(self._actors) == self._size:
            self._complete.set()
        await self._complete.wait()
        return [self._actors[rank] for rank in range(self._size)]

    async def fail(self, rank: int, error: BaseException) -> None:
        """Remember the exception of a worker."""
        self._failures[rank] = error

    async def lose(self, ranks: Sequence[int]) -> None:
        """Remember that workers were lost."""
        self._lost.append(list(ranks))

    async def report(self) -> tuple[dict[int, BaseException], list[list[int]]]:
        """Return the errors of workers by rank, and the ranks of those that were lost, each time."""
        return self._failures, self._lost


class Mailbox:
    """What other workers have sent to the one of this process."""

    def __init__(self) -> None:
        self._arrived = threading.Condition()
        self._mail: dict[tuple[int, int], np.ndarray] = {}
        """(number of the exchange, rank of the sender) -> what it has sent."""
        self._failure = ""

    def put(self, number: int, sender: int, array: np.ndarray) -> None:
        with self._arrived:
            self._mail[number, sender] = array
            self._arrived.notify_all()

    def fail(self, message: str) -> None:
        """Let whoever waits for another worker have its error."""
        with self._arrived:
            self._failure = message
            self._arrived.notify_all()

    def take(self, number: int, sender: int) -> np.ndarray:
        """Wait for an array and return it. Raises WorkerFailedError instead when a worker has failed."""
        with self._arrived:
            self._arrived.wait_for(lambda: self._failure or (number, sender) in self._mail)
            if (number, sender) not in self._mail:
                raise WorkerFailedError(self._failure)
            return self._mail.pop((number, sender))


MAILBOX = Mailbox()
"""That of the worker in this process. Ray Train has a new process for each."""


def _deliver(actor: Any, number: int, sender: int, array: np.ndarray) -> None:
    """Receive an array. Ray calls this in the process of an actor, in another thread than the one in which the worker trains."""
    MAILBOX.put(number, sender, array)


def _deliver_failure(actor: Any, message: str) -> None:
    """Receive the error of another worker."""
    MAILBOX.fail(message)


class RayWorker:
    """The strategy of a worker in a worker group of Ray Train. Arrays of up to 64 KB are summed in one round of calls, larger ones in two: each worker sums one
    part of them, and sends it to all.

    register: tells the workers of each other. cpus: the processors of each."""

    def __init__(self, register: Any, rank: int, size: int, cpus: int) -> None:
        self.rank, self.size, self._cpus = rank, size, cpus
        self._ray = require("ray", "ray", "Ray")
        self._register = register
        # every actor of Ray runs functions that are sent to it by this method
        self._calls = [actor.__ray_call__ for actor in self._ray.get(register.join.remote(rank, self._ray.get_runtime_context().current_actor))]
        self._exchanges = 0

    def threads(self) -> int:
        """Return the number of processors of each worker."""
        return self._cpus

    def fail(self, error: BaseException) -> None:
        """Let the program that has started the workers, and those that wait for this one, have its error. Others that have one too do not wait."""
        self._ray.get(self._register.fail.remote(self.rank, error))
        message = str(error) if isinstance(error, WorkerFailedError) else f"rank {self.rank} of {self.size} failed: {type(error).__name__}: {error}"
        for other in self._others():
            self._calls[other].options(num_returns=0).remote(_deliver_failure, message)

    # ---- exchanges

    def _send(self, receiver: int, array: Any) -> None:
        self._calls[receiver].options(num_returns=0).remote(_deliver, self._exchanges, self.rank, array)

    def _receive(self, sender: int) -> np.ndarray:
        return MAILBOX.take(self._exchanges, sender)

    def _others(self) -> Iterator[int]:
        """Yield the ranks of the other workers, each worker beginning with another one."""
        return ((self.rank + number) % self.size for number in range(1, self.size))

    def _exchange(self, parts: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Send part [r] to each worker r; return what each has sent to this one. They are not to be written."""
        self._exchanges += 1
        for other in self._others():
            self._send(other, parts[other])
        return [parts[rank] if rank == self.rank else self._receive(rank) for rank in range(self.size)]

    def _send_to_all(self, array: np.ndarray) -> None:
        content = array if array.nbytes <= INLINE_BYTES else self._ray.put(array)
        for other in self._others():
            self._send(other, content)

    # ---- the strategy

    def all_reduce(self, array: np.ndarray) -> None:
        """Sum the whole array, or a part of it that all workers then gather."""
        flat = array.reshape(-1)
        if array.nbytes <= INLINE_BYTES:
            flat[...] = _sum(self._exchange([flat] * self.size))
        else:
            bounds = [flat.size * rank // self.size for rank in range(self.size + 1)]
            self.reduce_scatter(flat, bounds)
            self.all_gather_in_place(flat, bounds)

    def broadcast(self, array: np.ndarray, root: int) -> None:
        """Send the array from one worker to all."""
        self._exchanges += 1
        if self.rank == root:
            self._send_to_all(array)
        else:
            array[...] = self._receive(root)

    def barrier(self) -> None:
        """Exchange nothing with all."""
        self._exchange([np.empty(0, np.uint8)] * self.size)

    def reduce_scatter(self, array: np.ndarray, bounds: Sequence[int]) -> None:
        """Sum the own range of all workers."""
        array[bounds[self.rank] : bounds[self.rank + 1]] = _sum(self._exchange([array[start:end] for start, end in pairwise(bounds)]))

    def all_gather_in_place(self, array: np.ndarray, bounds: Sequence[int]) -> None:
        """Send the own range to all workers."""
        self._exchanges += 1
        self._send_to_all(array[bounds[self.rank] : bounds[self.rank + 1]])
        for other in self._others():
            array[bounds[other] : bounds[other + 1]] = self._receive(other)

    def all_gather(self, array: np.ndarray) -> np.ndarray:
        """Send the array to all workers."""
        gathered = np.empty((self.size, *array.shape), array.dtype)
        gathered[self.rank] = array
        self.all_gather_in_place(gathered.reshape(-1), [rank * array.size for rank in range(self.size + 1)])
        return gathered

    def all_to_all(self, array: np.ndarray) -> np.ndarray:
        """Send each row to the worker of its number."""
        return np.stack(self._exchange(list(array)))


def _sum(arrays: Sequence[np.ndarray]) -> np.ndarray:
    """Return the sum in the order of ranks, so that all workers have the same bits."""
    total = arrays[0].copy()
    for array in arrays[1:]:
        total += array
    return total
