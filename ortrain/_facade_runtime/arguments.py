"""Argument checks of the facades: each returns what the engine takes, or raises an error that names the argument."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence, Sized
from typing import Any, TypeVar

import numpy as np

from ortrain._facade_runtime.lifetime import FlatBufferHolder, Holder, ValueHolder, held
from ortrain.errors import ArgumentTypeError, InvalidArgumentError, PropertyTypeError
from ortrain.runtime.flat_buffers import FlatBuffer
from ortrain.runtime.state import PropertyValue
from ortrain.runtime.values import OrtValue

T = TypeVar("T")
S = TypeVar("S", bound=Sized)

INT64 = range(-(2**63), 2**63)


def _refuse(wanted: str, name: str, value: Any) -> ArgumentTypeError:
    return ArgumentTypeError(f"expected {wanted} for {name}, got {type(value).__name__}")


def path(value: Any, name: str) -> str | os.PathLike[str]:
    """Return a path: str or os.PathLike."""
    if not isinstance(value, str | os.PathLike):
        raise _refuse("a path", name, value)
    return value


def path_or_none(value: Any, name: str) -> str | os.PathLike[str] | None:
    """Return a path or None."""
    return None if value is None else path(value, name)


def text(value: Any, name: str) -> str:
    """Return a str."""
    if not isinstance(value, str):
        raise _refuse("a string", name, value)
    return value


def texts(value: Any, name: str, length: int | None = None) -> list[str]:
    """Return a list of str, of `length` elements where the language specifies it."""
    if isinstance(value, str | bytes) or not isinstance(value, Iterable):
        raise _refuse("a list of strings", name, value)
    found = [text(item, name) for item in value]
    return counted(found, length, name)


def integer(value: Any, name: str) -> int:
    """Return a 64-bit int."""
    if isinstance(value, bool | np.bool_) or not isinstance(value, int | np.integer):
        raise _refuse("an integer", name, value)
    if int(value) not in INT64:
        raise InvalidArgumentError(f"expected an integer of 64 bits for {name}, got {value}")
    return int(value)


def number(value: Any, name: str) -> float:
    """Return a float; ints are accepted."""
    if isinstance(value, bool | np.bool_) or not isinstance(value, int | float | np.integer | np.floating):
        raise _refuse("a number", name, value)
    return float(value)


def flag(value: Any, name: str) -> bool:
    """Return a bool."""
    if not isinstance(value, bool | np.bool_):
        raise _refuse("a bool", name, value)
    return bool(value)


def int_property(value: Any, name: str) -> int:
    """Return the value of an integer property. Raises PropertyTypeError for anything but an integer."""
    return integer(_property(value, int | np.integer, "an int", name), name)


def float_property(value: Any, name: str) -> float:
    """Return the value of a float property, in single precision. Raises PropertyTypeError for anything but a number."""
    with np.errstate(over="ignore"):
        return float(np.float32(_property(value, int | float | np.integer | np.floating, "a float", name)))


def string_property(value: Any, name: str) -> str:
    """Return the value of a string property. Raises PropertyTypeError for anything but a str."""
    return str(_property(value, str, "a str", name))


def _property(value: Any, kinds: Any, wanted: str, name: str) -> Any:
    if isinstance(value, bool | np.bool_) or not isinstance(value, kinds):
        raise PropertyTypeError(f"expected {wanted} for {name}, got {type(value).__name__}")
    return value


def property_value(value: Any, name: str) -> PropertyValue:
    """Return a property value: a 64-bit int, a float or a str."""
    _property(value, int | float | str | np.integer | np.floating, "an int, a float or a str", name)
    return integer(value, name) if isinstance(value, int | np.integer) else value if isinstance(value, str) else float(value)


def property_of(value: PropertyValue, kind: type[T], name: str) -> T:
    """Return a property of an expected type. Raises PropertyTypeError when it has another."""
    if not isinstance(value, kind):
        raise PropertyTypeError(f"expected property {name!r} to be {kind.__name__}, it is {type(value).__name__}")
    return value


def data(value: Any, name: str, length: int | None = None) -> bytes:
    """Return the bytes of a buffer, of `length` bytes where the language specifies it."""
    try:
        view = memoryview(value).cast("B") if not isinstance(value, bytes) else memoryview(value)
    except TypeError as error:
        raise _refuse("a buffer of bytes", name, value) from error
    return bytes(counted(view, length, name))


def data_or_none(value: Any, name: str, length: int | None = None) -> bytes | None:
    """Return the bytes of a buffer; None for None or for length 0, which is how C expresses absence."""
    if value is None:
        counted((), length, name)
        return None
    return data(value, name, length)


def counted(values: S, length: int | None, name: str) -> S:
    """Return the values if there are `length` of them (None: any number). Raises InvalidArgumentError otherwise."""
    if length is not None and len(values) != integer(length, f"the length of {name}"):
        raise InvalidArgumentError(f"expected {length} elements in {name}, as its length says, got {len(values)}")
    return values


def element(values: Sequence[str], index: Any) -> str:
    """Return values[index]. Raises InvalidArgumentError when it is out of range."""
    number = integer(index, "index")
    if not 0 <= number < len(values):
        raise InvalidArgumentError(f"expected an index in [0, {len(values)}), got {number}")
    return values[number]


def callback(function: Any, name: str) -> Callable[..., Any] | None:
    """Return a function, or None."""
    if function is not None and not callable(function):
        raise _refuse("a function or none", name, function)
    return function  # type: ignore[no-any-return]


def bucket_callback(function: Any, name: str, kind: type[FlatBufferHolder]) -> Callable[[FlatBuffer], None] | None:
    """Return a callback of the engine that calls a facade's function with the facade's own objects; None for None."""
    called = callback(function, name)
    return None if called is None else lambda bucket: called(kind._of(bucket))


def value(item: Any, name: str, kind: type[ValueHolder] = ValueHolder) -> OrtValue:
    """Return the tensor that a facade's value holds."""
    return held(item, kind, name)


def values(items: Any, name: str, kind: type[ValueHolder] = ValueHolder, length: int | None = None) -> list[OrtValue]:
    """Return the tensors that a list of a facade's values holds."""
    return [held(item, kind, f"{name}[{number}]") for number, item in enumerate(listed(items, name, length))]


def slots(items: Any, name: str, kind: type[ValueHolder] = ValueHolder, length: int | None = None) -> list[OrtValue | None]:
    """Return pre-allocated outputs: tensors, or None where an output is to be allocated."""
    return [None if item is None else held(item, kind, f"{name}[{number}]") for number, item in enumerate(listed(items, name, length))]


def listed(items: Any, name: str, length: int | None = None) -> list[Any]:
    """Return a collection as a list, of `length` elements where the language specifies it; NULL with length 0 is an empty list."""
    if items is None and length == 0:
        return []
    if isinstance(items, str | bytes | Holder) or not isinstance(items, Iterable):
        raise _refuse("a list of values", name, items)
    found = list(items)
    return counted(found, length, name)
