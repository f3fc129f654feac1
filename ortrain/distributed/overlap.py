"""Summing gradients while the backward pass goes on."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

from ortrain.distributed.synchronization import Synchronization
from ortrain.distributed.workers import Workers
from ortrain.runtime.flat_buffers import FlatBuffer, buckets_of
from ortrain.runtime.numbers import check_count
from ortrain.training.flat_buffers import BUCKET_BYTES
from ortrain.training.session import TrainingSession


class OverlappedSynchronization(Synchronization):
    """Sums each bucket of gradients over the workers as soon as the backward pass has completed it, in a thread beside the pass.

    It pays where a network takes a good part of the time of a step, and the processor has time left for the transfer. Sums are those of Synchronization, to
    the bit. The workers sum the buckets in the order in which the first of them has met them in the first step, in which nothing overlaps yet. The thread makes
    the calls of the strategy, one after the other, and no other thread makes one meanwhile (MPI_THREAD_SERIALIZED).

    bucket_bytes: as in TrainingSession.on_gradients_ready. Raises InvalidArgumentError for bucket_bytes below 1."""

    has_free_steps = False

    def __init__(self, bucket_bytes: int = BUCKET_BYTES) -> None:
        self.bucket_bytes = check_count(bucket_bytes, "bucket_bytes", 1)
        self._thread = ThreadPoolExecutor(1, "ortrain-gradients")
        self._order: list[str] = []
        """The names of buckets, which are those of their first parameters, in the order in which they are summed."""
        self._share: float | None = None
        """Of the running step; None where its gradients are not to be summed yet."""
        self._has_summed = False
        self._clear()

    def _clear(self) -> None:
        """Begin a step."""
        self._met: dict[str, FlatBuffer] = {}
        self._sums: list[Future[None]] = []

    def start(self, session: TrainingSession, workers: Workers) -> None:
        super().start(session, workers)
        session.on_gradients_ready(self._take, self.bucket_bytes)

    @contextmanager
    def backward(self, share: float) -> Iterator[None]:
        self._clear()
        buckets = {_name(bucket): bucket for bucket in buckets_of(self.session.gradient_buffers(), self.bucket_bytes)}
        if buckets.keys() != set(self._order):
            yield                                           # the first step, or one after parameters were frozen or unfrozen
            return
        self._share = share
        try:
            yield
            self._met |= buckets                            # a worker without samples has met none
            self._send(share)
        except BaseException:
            if self._sums:                                  # the others sum the rest of the buckets before they can notice: take part, whatever is in them
                self._met |= buckets
                self._send(share)
            raise
        finally:
            self._share = None
            for result in self._sums:
                result.result()
        self._has_summed = True

    def _take(self, bucket: FlatBuffer) -> None:
        """Receive a bucket from the backward pass."""
        self._met[_name(bucket)] = bucket
        if self._share is not None:
            self._send(self._share)

    def _send(self, share: float) -> None:
        """Let the thread sum up the buckets that have been met, as far as they are next."""
        while len(self._sums) < len(self._order) and self._order[len(self._sums)] in self._met:
            number = len(self._sums)
            self._sums.append(self._thread.submit(self._sum, self._met[self._order[number]], share, number))

    def _sum(self, bucket: FlatBuffer, share: float, number: int) -> None:
        if number == 0:
            self.workers.sum()                              # has no worker failed before it could begin?
        elif self._sums[0].exception() is not None:
            return
        super().sum_gradients([bucket], share)

    def sum_gradients(self, buffers: Sequence[FlatBuffer], share: float) -> None:
        if self._has_summed:
            self._has_summed = False
            return
        super().sum_gradients(buffers, share)
        names = {_name(bucket) for bucket in buckets_of(buffers, self.bucket_bytes)}
        if names != set(self._order):
            self._agree(names)

    def _agree(self, names: set[str]) -> None:
        """Take the order in which the first worker that had samples has met the buckets."""
        mine = list(self._met) if self._met.keys() == names else []
        orders = [json.loads(order) for order in self.workers.gather(json.dumps(mine).encode())]
        self._order = next((order for order in orders if order), [])


def _name(bucket: FlatBuffer) -> str:
    return next(iter(bucket.offsets))
