"""Workers that Ray starts: actors that exchange arrays by its object store, and that are started anew when one is lost."""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import numpy as np

from ortrain.distributed.strategy import Launcher
from ortrain.errors import WorkerFailedError
from ortrain.packages import require
from ortrain.runtime.numbers import check_count

INLINE_BYTES = 1 << 16
"""Up to this size an array is sent to all workers at once, in the calls themselves; larger ones are summed by parts, and go through the object store."""
GRACE_SECONDS = 2.0
"""How long the other workers have to end after one has failed, before they are taken to wait for it."""


class Ray(Launcher):
    """Starts workers as actors of Ray: `Trainer(..., strategy=Ray(workers=4)).fit(...)`, in a program that is itself no worker.

    workers: how many. cpus: processors of each, as many as the threads of its session unless its options say otherwise. restarts: how many times all workers
    are started anew from the last checkpoint in the folder of the run, without a folder from the beginning, after one was killed or its machine was lost.

    The workers run in the cluster to which the program is connected or which RAY_ADDRESS names; otherwise on this machine, in a Ray that ends with them. Ray
    waits until the cluster has room for all. On several machines the folder of the run must be one that all of them share.

    Raises MissingPackageError without ray, InvalidArgumentError for numbers that are too small."""

    def __init__(self, workers: int, cpus: int = 1, restarts: int = 3) -> None:
        self.workers = check_count(workers, "workers", 1)
        self.cpus = check_count(cpus, "cpus", 1)
        self.restarts = check_count(restarts, "restarts")
        require("ray", "ray", "Ray")

    def run(self, work: Callable[[RayWorker, int], Any]) -> Any:
        ray = require("ray", "ray", "Ray")
        with _cluster(ray, self.workers * self.cpus):
            shared = ray.put(work)
            for attempt in range(self.restarts + 1):
                try:
                    return self._attempt(ray, shared, attempt)
                except _LostWorkerError as error:
                    if attempt == self.restarts:
                        raise WorkerFailedError(f"{error}, and {self.restarts} restarts were allowed") from error.__cause__
                    warnings.warn(f"{error}: all workers start anew from the last checkpoint", RuntimeWarning, stacklevel=4)
        raise AssertionError

    def _attempt(self, ray: Any, work: Any, attempt: int) -> Any:
        """Start the workers and return the result of rank 0. Raises _LostWorkerError."""
        scheduling = require("ray.util.scheduling_strategies", "ray", "Ray")
        group = ray.util.placement_group([{"CPU": self.cpus}] * self.workers)
        actors: list[Any] = []
        try:
            ray.get(group.ready())
            kind = ray.remote(RayWorker)
            for rank in range(self.workers):
                place = scheduling.PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=rank)
                actors.append(kind.options(num_cpus=self.cpus, max_concurrency=2, scheduling_strategy=place).remote(rank, self.workers, self.cpus))
            runs = {actor.run.remote(actors, work, attempt): rank for rank, actor in enumerate(actors)}
            return _result(ray, runs)
        finally:
            for actor in actors:
                ray.kill(actor)
            ray.util.remove_placement_group(group)


class _LostWorkerError(Exception):
    """A worker was killed, or its machine lost."""


@contextmanager
def _cluster(ray: Any, processors: int) -> Iterator[None]:
    """Be connected to a cluster in the block; to one of this machine alone where there is no other."""
    if ray.is_initialized():
        yield
        return
    if "RAY_ADDRESS" in os.environ:
        ray.init()
    else:
        ray.init(num_cpus=max(processors, os.cpu_count() or 1), include_dashboard=False)
    try:
        yield
    finally:
        ray.shutdown()


def _result(ray: Any, runs: Mapping[Any, int]) -> Any:
    """Return what the run of rank 0 returns once all have ended. runs: reference -> rank. Raises _LostWorkerError, and the error of a run that fails."""
    waiting, result = dict(runs), None
    failed: dict[int, BaseException] = {}
    while waiting:
        done, _ = ray.wait(list(waiting), timeout=GRACE_SECONDS if failed else None)
        if not done:
            break
        rank = waiting.pop(done[0])
        try:
            value = ray.get(done[0])
        except ray.exceptions.RayTaskError as error:
            failed[rank] = getattr(error, "cause", None) or error
        except ray.exceptions.RayActorError as error:
            raise _LostWorkerError(f"rank {rank} of {len(runs)} was lost") from error
        else:
            result = value if rank == 0 else result
    if failed:
        raise _failure(failed, len(runs))
    return result


def _failure(failed: Mapping[int, BaseException], size: int) -> BaseException:
    """Return the error of a run: the one that all workers have, or that names the one that has failed."""
    told = [error for error in failed.values() if isinstance(error, WorkerFailedError)]
    if told:
        return told[0]
    rank = min(failed)
    if len(failed) == size:
        return failed[rank]
    failure = WorkerFailedError(f"rank {rank} of {size} failed: {type(failed[rank]).__name__}: {failed[rank]}")
    failure.__cause__ = failed[rank]
    return failure


class RayWorker:
    """The strategy of one of the workers, and the actor in which it runs. Arrays of up to 64 KB are summed in one round of calls, larger ones in two: each
    worker sums one part of them, and sends it to all."""

    def __init__(self, rank: int, size: int, cpus: int) -> None:
        self.rank, self.size, self._cpus = rank, size, cpus
        self._arrived = threading.Condition()
        self._mail: dict[tuple[int, int], np.ndarray] = {}
        """(number of the exchange, rank of the sender) -> what it has sent."""
        self._exchanges = 0

    def run(self, actors: Sequence[Any], work: Callable[[RayWorker, int], Any], attempt: int) -> Any:
        """Do the work of this worker. actors: all of them. Ray calls this, and deliver() in another thread beside it."""
        self._put = require("ray", "ray", "Ray").put
        self._deliver = [actor.deliver.options(num_returns=0) for actor in actors]
        return work(self, attempt)

    def deliver(self, number: int, sender: int, array: np.ndarray) -> None:
        """Receive an array for exchange `number`."""
        with self._arrived:
            self._mail[number, sender] = array
            self._arrived.notify_all()

    def threads(self) -> int:
        """Return the number of processors of each worker."""
        return self._cpus

    # ---- exchanges

    def _send(self, receiver: int, array: Any) -> None:
        self._deliver[receiver].remote(self._exchanges, self.rank, array)

    def _receive(self, sender: int) -> np.ndarray:
        with self._arrived:
            self._arrived.wait_for(lambda: (self._exchanges, sender) in self._mail)
            return self._mail.pop((self._exchanges, sender))

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
        content = array if array.nbytes <= INLINE_BYTES else self._put(array)
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
