"""A background thread that prepares batches ahead of their use."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from queue import Empty, SimpleQueue
from typing import Any

import numpy as np

from ortrain.errors import InvalidStateError

Batch = list[np.ndarray]


class _Failure:
    def __init__(self, error: BaseException) -> None:
        self.error = error


class Channel:
    """What the thread and its iterator share. `ready` brings batches; `slots` brings leave to prepare one, which bounds the number of batches in memory.

    The thread knows the channel but not the iterator, so that an abandoned iterator is collected and closes the channel."""

    def __init__(self, depth: int) -> None:
        self.ready: SimpleQueue[Any] = SimpleQueue()
        self.slots: SimpleQueue[None] = SimpleQueue()
        self.closed = False
        self.thread: threading.Thread | None = None
        for _ in range(depth):
            self.slots.put(None)

    def produce(self, source: Iterator[Batch]) -> None:
        """Run in the thread: prepare batches until the source ends or fails or the channel is closed."""
        last: Any = None
        try:
            while True:
                self.slots.get()
                if self.closed:
                    return
                self.ready.put(next(source))
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

    def close(self) -> None:
        """Ask the thread to end after the batch that it is preparing. Does not wait, and may be called at any time, also by the garbage collector."""
        self.closed = True
        self.slots.put(None)

    def join(self) -> list[Batch]:
        """Close, wait for the thread, and return the batches that nobody has taken."""
        self.close()
        if self.thread is not None:
            self.thread.join()
        left: list[Batch] = []
        while True:
            try:
                item = self.ready.get_nowait()
            except Empty:
                # whoever still holds the iterator would wait for ever
                self.ready.put(_Failure(InvalidStateError("expected the iterator of the latest epoch, got an earlier one: its batches went to the later")))
                return left
            if isinstance(item, list):
                left.append(item)


class PrefetchIterator:
    """Iterates over batches that a thread prepares.

    source: prepares a batch at every next(). depth: how many batches are prepared ahead. An exception of the source is raised here with its traceback.
    The thread ends when the source does, at close(), and when the iterator is garbage-collected; none of these waits for it."""

    def __init__(self, source: Iterator[Batch], depth: int) -> None:
        self._finished = False
        self.channel = channel = Channel(depth)
        self._get, self._allow = channel.ready.get, channel.slots.put
        channel.thread = threading.Thread(target=channel.produce, args=(source,), name="ortrain-prefetch", daemon=True)
        channel.thread.start()

    def __iter__(self) -> PrefetchIterator:
        return self

    def __next__(self) -> Batch:
        if self._finished:
            raise StopIteration
        item = self._get()
        if isinstance(item, list):
            self._allow(None)
            return item
        self._finished = True
        if isinstance(item, _Failure):
            raise item.error
        raise StopIteration

    def close(self) -> None:
        """End the iteration and the thread."""
        if not self._finished:
            self._finished = True
            self.channel.close()

    def __del__(self) -> None:
        self.close()
