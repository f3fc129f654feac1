"""A background thread that prepares batches ahead of their use."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any

import numpy as np

from ortrain.errors import InvalidStateError

Batch = list[np.ndarray]

WORTHWHILE = 200e-6
"""Seconds that preparing a batch takes, on average, from which on a thread is started. Handing over a batch costs 10 to 50 microseconds, the more of them the
busier the engine keeps all cores, so that a thread slows the training on small batches down."""


def stale() -> InvalidStateError:
    """Return the error for an iterator over data that can be iterated once, after another epoch has begun."""
    return InvalidStateError("expected the iterator of the latest epoch, got an earlier one: its batches went to the later")


class _Failure:
    def __init__(self, error: BaseException) -> None:
        self.error = error


class Channel:
    """What the thread and its iterator share: the batches that are ready, and the leave to prepare more.

    Waking a thread takes longer than most of what else happens for a small batch. A thread that has prepared `depth` batches therefore sleeps until no more
    than `low` of them are left, and is then woken for several at once. It knows the channel but not the iterator, so that an abandoned iterator is collected
    and closes the channel."""

    def __init__(self, depth: int) -> None:
        self.ready: SimpleQueue[Any] = SimpleQueue()
        self.depth, self.low = depth, (depth - 1) // 2
        self.made = 0
        """Batches that were prepared; only the thread changes it."""
        self.taken = 0
        """Batches that were taken; only the iterator changes it."""
        self.closed = False
        self.thread: threading.Thread | None = None
        self._sleep = threading.Lock()
        """Held while there is nothing to wake the thread for."""
        self._sleep.acquire()

    def produce(self, source: Iterator[Batch]) -> None:
        """Run in the thread: prepare batches until the source ends or fails or the channel is closed."""
        last: Any = None
        try:
            while True:
                while self.made - self.taken >= self.depth and not self.closed:
                    self._sleep.acquire()
                if self.closed:
                    return
                batch = next(source)
                self.made += 1
                self.ready.put(batch)
                del batch                                   # or a sleeping thread would keep it alive
        except StopIteration:
            pass
        except BaseException as error:                      # every error belongs to the thread that asks for the batch
            last = _Failure(error)
        finally:
            close: Callable[[], None] | None = getattr(source, "close", None)
            try:
                if close is not None:
                    close()
            finally:
                self.ready.put(last)

    def wake(self) -> None:
        """Let the thread look again whether it may prepare a batch."""
        if self._sleep.locked():
            with suppress(RuntimeError):                    # another thread was faster
                self._sleep.release()

    def close(self) -> None:
        """Ask the thread to end after the batch that it is preparing. Does not wait, and may be called at any time, also by the garbage collector."""
        self.closed = True
        self.wake()

    def join(self) -> tuple[list[Batch], BaseException | None]:
        """Close, wait for the thread, and return the batches and the exception that nobody has taken."""
        self.close()
        if self.thread is not None:
            self.thread.join()
        left: list[Batch] = []
        error: BaseException | None = None
        while True:
            try:
                item = self.ready.get_nowait()
            except Empty:
                # whoever still holds the iterator would wait for ever
                self.ready.put(_Failure(stale()))
                return left, error
            if isinstance(item, list):
                left.append(item)
            elif isinstance(item, _Failure):
                error = item.error


class PrefetchIterator:
    """Iterates over batches that a thread prepares, once it is known that a thread is worth its while.

    source: prepares a batch at every next(). depth: how many batches are prepared ahead. at_once: start the thread before the first batch is asked for;
    otherwise batches are prepared when they are asked for, and timed, until those after the first took more than WORTHWHILE on average.
    An exception of the source is raised here with its traceback. The thread ends when the source does, at close(), and when the iterator is
    garbage-collected; none of these waits for it."""

    def __init__(self, source: Iterator[Batch], depth: int, at_once: bool = False) -> None:
        self._finished = False
        self._source: Iterator[Batch] | None = source
        """None from when on the thread has it."""
        self._count, self._seconds = -1, 0.0
        self.channel = Channel(depth)
        self._get, self._left = self.channel.ready.get, self.channel.ready.qsize
        if at_once:
            self._start(source)

    def __iter__(self) -> PrefetchIterator:
        return self

    def __next__(self) -> Batch:
        if self._source is not None:
            return self._prepared(self._source)
        if self._finished:
            raise StopIteration
        item = self._get()
        if isinstance(item, list):
            channel = self.channel
            channel.taken += 1
            if self._left() <= channel.low:
                channel.wake()
            return item
        self._finished = True
        if isinstance(item, _Failure):
            raise item.error
        raise StopIteration

    def _prepared(self, source: Iterator[Batch]) -> Batch:
        """Prepare a batch in the caller's thread, and start another one if that takes long."""
        started = time.perf_counter()
        try:
            batch = next(source)
        except BaseException:
            self._finished, self._source = True, None
            raise
        self._count += 1
        if self._count:                                     # the first batch often includes what is done once
            self._seconds += time.perf_counter() - started
            if self._seconds > WORTHWHILE * self._count:
                self._start(source)
        return batch

    def _start(self, source: Iterator[Batch]) -> None:
        self._source = None
        self.channel.thread = threading.Thread(target=self.channel.produce, args=(source,), name="ortrain-prefetch", daemon=True)
        self.channel.thread.start()

    def close(self) -> None:
        """End the iteration and the thread."""
        if not self._finished:
            self._finished = True
            source, self._source = self._source, None
            self.channel.close()
            close = getattr(source, "close", None)
            if close is not None:
                close()

    def __del__(self) -> None:
        self.close()
