"""How each language reports failures: a raised error (C#, Swift), an error in a box (Objective-C), a status (C)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from ortrain.enums import ErrorCode
from ortrain.errors import ArgumentTypeError, OrtrainError, UseAfterRelease

T = TypeVar("T")
N = TypeVar("N")

EXPECTED = (OrtrainError, OSError, MemoryError)
"""The errors that a call may report; anything else is a programming error and propagates unchanged."""
DOMAIN = "onnxruntime"
"""The error domain of ONNX Runtime's Swift and Objective-C API."""


def code_of(error: BaseException) -> ErrorCode:
    """Return ONNX Runtime's code of an error; FAIL for errors of the operating system."""
    return ErrorCode(getattr(type(error), "code", ErrorCode.FAIL))


def message_of(error: BaseException) -> str:
    """Return the message of an error, or its class name where it has none."""
    return str(error) or type(error).__name__


# ---- boxes


class Box:
    """An out-parameter: C's `&out` and Objective-C's `&error`. The call sets `value`; any object with a settable `value` works."""

    def __init__(self, value: Any = None) -> None:
        self.value = value

    def __repr__(self) -> str:
        return f"Box({self.value!r})"


class BoxLike(Protocol):
    """Anything whose `value` can be set."""

    value: Any


def put(box: BoxLike, value: Any) -> None:
    """Set an out-parameter. Raises ArgumentTypeError when there is none."""
    check_box(box)
    box.value = value


def check_box(box: Any) -> None:
    """Raise ArgumentTypeError unless `box` can receive a value."""
    if not hasattr(box, "value"):
        raise ArgumentTypeError(f"expected a Box to receive the result, got {type(box).__name__}")


# ---- C#


class OnnxRuntimeException(OrtrainError):
    """The C# facade's error; its cause is ortrain's own."""

    def __init__(self, error: BaseException) -> None:
        self.error_name = type(error).__name__
        """ortrain's name of the error, the same in every language."""
        self.ErrorCode = code_of(error)
        """ONNX Runtime's error code."""
        self.Message = f"[ErrorCode:{_pascal(self.ErrorCode.name)}] {message_of(error)}"
        super().__init__(self.Message)


def _pascal(name: str) -> str:
    return {"NO_SUCHFILE": "NoSuchFile", "EP_FAIL": "ExecutionProviderFail"}.get(name, name.title().replace("_", ""))


def throwing(call: Callable[[], T]) -> T:
    """Return the result of a C# call. Raises OnnxRuntimeException."""
    try:
        return call()
    except OnnxRuntimeException:
        raise
    except EXPECTED as error:
        raise OnnxRuntimeException(error) from error


# ---- Swift and Objective-C


class NSError:
    """An error as in Cocoa: domain, code, description."""

    def __init__(self, error: BaseException) -> None:
        self.domain = DOMAIN
        self.code = int(code_of(error))
        self.localizedDescription = message_of(error)
        self.userInfo = {"NSLocalizedDescription": self.localizedDescription}
        self.error_name = type(error).__name__
        """ortrain's name of the error, the same in every language."""

    def __repr__(self) -> str:
        return f"NSError(domain={self.domain!r}, code={self.code}, {self.error_name}: {self.localizedDescription})"


class ORTError(OrtrainError):
    """The Swift facade's error, with the properties of an NSError; its cause is ortrain's own."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(message_of(error))
        self._error = NSError(error)

    @property
    def domain(self) -> str:
        """The error domain, "onnxruntime"."""
        return self._error.domain

    @property
    def code(self) -> int:  # type: ignore[override]
        """ONNX Runtime's error code."""
        return self._error.code

    @property
    def localizedDescription(self) -> str:
        """The message."""
        return self._error.localizedDescription

    @property
    def error_name(self) -> str:
        """ortrain's name of the error, the same in every language."""
        return self._error.error_name


def raising(call: Callable[[], T]) -> T:
    """Return the result of a Swift call that `throws`. Raises ORTError."""
    try:
        return call()
    except ORTError:
        raise
    except EXPECTED as error:
        raise ORTError(error) from error


def boxed(error: BoxLike | None, nil: N, call: Callable[[], T]) -> T | N:
    """Return the result of an Objective-C call, or `nil` and a filled error box; never raise."""
    try:
        return call()
    except Exception as failure:
        if error is not None and hasattr(error, "value"):
            error.value = NSError(failure)
        return nil


def boxed_success(error: BoxLike | None, call: Callable[[], Any]) -> bool:
    """Return True when an Objective-C call succeeded, or False and a filled error box; never raise."""

    def succeed() -> bool:
        call()
        return True

    return boxed(error, False, succeed)


# ---- C


class OrtStatus:
    """The result of a failed C call; None is success."""

    def __init__(self, code: ErrorCode, message: str, error_name: str = "OrtrainError") -> None:
        self._code, self._message, self._released = code, message, False
        self.error_name = error_name
        """ortrain's name of the error, the same in every language."""

    def _open(self) -> OrtStatus:
        if self._released:
            raise UseAfterRelease("expected an open OrtStatus, this one was released")
        return self

    def _release(self) -> None:
        self._open()._released = True

    def __repr__(self) -> str:
        return f"OrtStatus({self._code.name}, {self.error_name}: {self._message})"


def status(call: Callable[[], Any]) -> OrtStatus | None:
    """Return None when a C call succeeded, otherwise its status. Raises UseAfterRelease, which in C would be a crash that no status could report."""
    try:
        call()
    except UseAfterRelease:
        raise
    except Exception as error:
        return OrtStatus(code_of(error), message_of(error), type(error).__name__)
    return None


def status_of(status: Any) -> OrtStatus:
    """Return a status that has not been released. Raises ArgumentTypeError for anything else, None included."""
    if not isinstance(status, OrtStatus):
        raise ArgumentTypeError(f"expected an OrtStatus, got {type(status).__name__}")
    return status._open()
