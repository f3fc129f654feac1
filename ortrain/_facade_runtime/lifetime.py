"""The objects of a facade: each holds an object of ortrain until it is released."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Generic, Self, TypeVar

from ortrain.errors import ArgumentTypeError, InvalidStateError, UseAfterRelease
from ortrain.runtime.flat_buffers import FlatBuffer
from ortrain.runtime.options import RunOptions, SessionOptions
from ortrain.runtime.state import TrainingState
from ortrain.runtime.values import OrtValue

if TYPE_CHECKING:
    from ortrain.training.session import TrainingSession

T = TypeVar("T")


class Holder(Generic[T]):
    """A facade's object that holds an object of ortrain. It is freed with its last reference, released or not."""

    _left_behind: ClassVar[str] = ""
    """The text about what continues to exist after a release, for the error message of a later use."""

    def __init__(self) -> None:
        self._held: T | None = None
        self._released = False

    @classmethod
    def _of(cls, held: T) -> Self:
        """Return a facade object that holds `held`."""
        made = cls.__new__(cls)
        Holder.__init__(made)
        return made._hold(held)

    def _hold(self, held: T) -> Self:
        self._held, self._released = held, False
        return self

    def _open(self) -> T:
        """Return the held object. Raises UseAfterRelease after a release, InvalidStateError before construction."""
        held: T | None = getattr(self, "_held", None)
        if held is None:
            if getattr(self, "_released", False):
                raise UseAfterRelease(f"expected an open {type(self).__name__}, this one was released{self._left_behind}")
            raise InvalidStateError(f"expected a {type(self).__name__} that was initialized, this one was not")
        return held

    def _release(self) -> None:
        """Release the held object. Raises UseAfterRelease the second time."""
        self._open()
        self._held, self._released = None, True

    def _dispose(self) -> None:
        """Release the held object; a second call does nothing."""
        if self._held is not None:
            self._release()


class SessionHolder(Holder["TrainingSession"]):
    """Holds a training session, and through it the state that it trains."""

    @property
    def _session(self) -> TrainingSession:
        return self._open()

    def _release(self) -> None:
        session = self._open()
        super()._release()
        session.close()


class StateHolder(Holder[TrainingState]):
    """Holds a training state."""

    _left_behind = " (a session that was made with it keeps the parameters and goes on)"

    @property
    def _state(self) -> TrainingState:
        return self._open()


class ValueHolder(Holder[OrtValue]):
    """Holds a tensor."""

    @property
    def _value(self) -> OrtValue:
        return self._open()


class FlatBufferHolder(Holder[FlatBuffer]):
    """Holds a flat buffer of a session, whose memory it keeps alive."""

    @property
    def _buffer(self) -> FlatBuffer:
        return self._open()


class SessionOptionsHolder(Holder[SessionOptions]):
    """Holds session options."""

    @property
    def _options(self) -> SessionOptions:
        return self._open()


class RunOptionsHolder(Holder[RunOptions]):
    """Holds run options."""

    @property
    def _options(self) -> RunOptions:
        return self._open()


class Environment:
    """The environment of the other languages. It has a logging level and an identifier, and owns nothing."""

    def __init__(self, logging_level: int = 2, identifier: str = "") -> None:
        self.logging_level = logging_level
        self.identifier = identifier


class EnvironmentHolder(Holder[Environment]):
    """Holds an environment."""


def held(value: Any, kind: type[Holder[T]], name: str) -> T:
    """Return what a facade object of class `kind`, passed as the argument `name`, holds. Raises ArgumentTypeError for anything else."""
    if not isinstance(value, kind):
        raise ArgumentTypeError(f"expected an object of class {kind.__name__} for {name}, got {type(value).__name__}")
    return value._open()


def held_or_none(value: Any, kind: type[Holder[T]], name: str) -> T | None:
    """As held, but accept None."""
    return None if value is None else held(value, kind, name)
