"""The parts of the C# facade only: disposable objects and collections, pinned buffers and named outputs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Generic, Protocol, Self, TypeVar, overload

import numpy as np

from ortrain._facade_runtime.lifetime import FlatBufferHolder, Holder, RunOptionsHolder, SessionHolder, SessionOptionsHolder, StateHolder, ValueHolder
from ortrain._facade_runtime.tensors import tensor_over
from ortrain.errors import UseAfterRelease
from ortrain.runtime.values import OrtValue


class Disposes(Protocol):
    """An IDisposable."""

    def Dispose(self) -> None:
        """Release the object."""


class Disposable:
    """An object that a with-statement disposes of, as `using` does in C#."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.Dispose()

    def Dispose(self) -> None:
        """Release what the object holds. Later uses are errors; a second Dispose does nothing."""
        raise NotImplementedError


class DisposableSession(Disposable, SessionHolder):
    """Holds a training session."""


class DisposableState(Disposable, StateHolder):
    """Holds the state of a checkpoint."""


class DisposableValue(Disposable, ValueHolder):
    """Holds a tensor."""


class DisposableFlatBuffer(Disposable, FlatBufferHolder):
    """Holds a flat buffer."""


class DisposableSessionOptions(Disposable, SessionOptionsHolder):
    """Holds session options."""


class DisposableRunOptions(Disposable, RunOptionsHolder):
    """Holds run options."""


class PinnedValue(DisposableValue):
    """A tensor over the caller's memory, which a step uses without a copy."""


class NamedValue(DisposableValue):
    """An output with its name."""

    _name = ""

    @classmethod
    def _named(cls, name: str, value: OrtValue) -> Self:
        made = cls._of(value)
        made._name = name
        return made


D = TypeVar("D", bound=Disposes)


class IDisposableReadOnlyCollection(Disposable, Sequence[D], Generic[D]):
    """The results of a step, read like a list and disposed of together."""

    def __init__(self, items: Iterable[D] = ()) -> None:
        self._items: list[D] | None = list(items)

    def _open(self) -> list[D]:
        if self._items is None:
            raise UseAfterRelease("expected an open collection, this one was released")
        return self._items

    @property
    def Count(self) -> int:
        """The number of values."""
        return len(self._open())

    def Dispose(self) -> None:
        """Dispose of every value in the collection."""
        for item in self._items or ():
            item.Dispose()
        self._items = None

    def __len__(self) -> int:
        return len(self._open())

    @overload
    def __getitem__(self, index: int) -> D: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[D]: ...
    def __getitem__(self, index: int | slice) -> D | Sequence[D]:
        return self._open()[index]

    def __iter__(self) -> Iterator[D]:
        return iter(self._open())


def pinned(tensor: Any) -> OrtValue:
    """Return a tensor over the memory of an array of any shape. Raises ArgumentTypeError for memory that cannot be shared."""
    return tensor_over(tensor, np.shape(tensor))


def release_of(holder: Holder[Any]) -> None:
    """Dispose of a holder; a second call does nothing."""
    holder._dispose()
