"""The parts of the C facade only: handles, an allocator, and the memory that it allocates."""

from __future__ import annotations

from collections.abc import Callable, MutableSequence, Sequence
from typing import Any, TypeVar

import numpy as np

from ortrain import __version__
from ortrain._facade_runtime.arguments import callback, float_property, int_property, integer, string_property, text
from ortrain._facade_runtime.lifetime import FlatBufferHolder, Holder, ValueHolder
from ortrain._facade_runtime.outcomes import BoxLike, OrtStatus, check_box, put
from ortrain.enums import ErrorCode, PropertyType
from ortrain.errors import ArgumentTypeError, InvalidArgumentError, UseAfterRelease
from ortrain.runtime.flat_buffers import FlatBuffer
from ortrain.runtime.state import PropertyValue
from ortrain.runtime.values import OrtValue

T = TypeVar("T")

API_VERSION = 19
"""The newest version of the C API that GetApi supports; all versions from 1 on have the same table."""

EXTENSIONS_VERSION = 1
"""The newest version of the table of ortrain's own functions."""


class MemoryInfo:
    """The location of memory: the CPU."""

    def __init__(self, allocator_type: int = 0, memory_type: int = 0) -> None:
        self.allocator_type, self.memory_type = allocator_type, memory_type


class Allocation:
    """Memory from an allocator, to be freed once with AllocatorFree."""

    _freed = False


class AllocatedString(str, Allocation):
    """A char*."""


class AllocatedInteger(int, Allocation):
    """An int64_t*, read as the number it points to."""


class AllocatedFloat(float, Allocation):
    """A float*, read as the number it points to."""


class AllocatedBytes(bytes, Allocation):
    """A void* with a length."""


class AllocatedArray(list[Any], Allocation):
    """An array of handles."""


class AllocatedMemory(Allocation):
    """A void*: uint8 [size] as a buffer."""

    def __init__(self, size: int) -> None:
        self.memory = np.zeros(size, np.uint8)


class Allocator:
    """The default allocator. Memory is Python's; the allocator checks that it is freed once."""

    def allocate(self, size: Any) -> AllocatedMemory:
        """Return zeroed memory of a size in bytes."""
        wanted = integer(size, "size")
        if wanted < 0:
            raise InvalidArgumentError(f"expected a size of at least 0, got {wanted}")
        return AllocatedMemory(wanted)

    def string(self, value: str) -> AllocatedString:
        """Return a string for the caller to free."""
        return AllocatedString(value)

    def property(self, value: PropertyValue) -> AllocatedString | AllocatedInteger | AllocatedFloat:
        """Return a property value for the caller to free."""
        kinds = {str: AllocatedString, int: AllocatedInteger, float: AllocatedFloat}
        return kinds[type(value)](value)  # type: ignore[no-any-return]

    def buffer(self, data: bytes) -> AllocatedBytes:
        """Return bytes for the caller to free."""
        return AllocatedBytes(data)

    def array(self, handles: Sequence[Holder[Any]]) -> AllocatedArray:
        """Return an array of handles for the caller to free, after it has released them."""
        return AllocatedArray(handles)

    def tensor(self, value: OrtValue) -> OrtValue:
        """Return a tensor for the caller to release."""
        return value

    def free(self, memory: Any) -> None:
        """Free memory; NULL is ignored. Raises UseAfterRelease the second time, ArgumentTypeError for memory that is not the allocator's."""
        if memory is None:
            return
        if not isinstance(memory, Allocation):
            raise ArgumentTypeError(f"expected memory from the allocator, got {type(memory).__name__}")
        if memory._freed:
            raise UseAfterRelease("expected memory that is still allocated, this was freed before")
        memory._freed = True


DEFAULT_ALLOCATOR = Allocator()
PROPERTY_TYPES = {int: PropertyType.INT, float: PropertyType.FLOAT, str: PropertyType.STRING}


class MemoryInfoHolder(Holder[MemoryInfo]):
    """Holds a memory info."""


class AllocatorHolder(Holder[Allocator]):
    """Holds the allocator."""


def released(handle: Any, kind: type[Holder[Any]]) -> None:
    """Release a handle; NULL is ignored. Raises UseAfterRelease the second time, ArgumentTypeError for a handle of another kind."""
    if handle is None:
        return
    if not isinstance(handle, kind):
        raise ArgumentTypeError(f"expected an object of class {kind.__name__}, got {type(handle).__name__}")
    handle._release()


def released_status(status: Any) -> None:
    """Release a status; NULL is ignored. Raises UseAfterRelease the second time."""
    if status is None:
        return
    if not isinstance(status, OrtStatus):
        raise ArgumentTypeError(f"expected an OrtStatus, got {type(status).__name__}")
    status._release()


def status_from(code: Any, message: Any) -> OrtStatus:
    """Create a status."""
    return OrtStatus(ErrorCode(integer(code, "code")), text(message, "msg"))


def output_slots(outputs: Any, length: Any) -> list[OrtValue | None]:
    """Return the output array of a step: OrtValues to write into, None where an output is to be allocated."""
    if not isinstance(outputs, MutableSequence):
        raise ArgumentTypeError(f"expected a list that can be written for outputs, got {type(outputs).__name__}")
    if len(outputs) != integer(length, "outputs_len"):
        raise InvalidArgumentError(f"expected {length} elements in outputs, as outputs_len says, got {len(outputs)}")
    found = []
    for position, slot in enumerate(outputs):
        if slot is not None and not isinstance(slot, ValueHolder):
            raise ArgumentTypeError(f"expected an OrtValue or None for outputs[{position}], got {type(slot).__name__}")
        found.append(None if slot is None else slot._value)
    return found


def fill_slots(outputs: MutableSequence[Any], kind: type[ValueHolder], values: Sequence[OrtValue]) -> None:
    """Store new outputs where the caller passed none."""
    for position, value in enumerate(values):
        if outputs[position] is None:
            outputs[position] = kind._of(value)


def put_property(kind: BoxLike, kinds: Callable[[int], Any], value: BoxLike, allocator: Allocator, found: PropertyValue) -> None:
    """Set the type of a property, as the language's enumeration names it, and its value; both or neither."""
    check_box(value)
    put(kind, kinds(PROPERTY_TYPES[type(found)]))
    put(value, allocator.property(found))


def put_data(buffer: BoxLike, length: BoxLike, allocator: Allocator, found: bytes) -> None:
    """Set a buffer and its length; both or neither."""
    check_box(length)
    put(buffer, allocator.buffer(found))
    put(length, len(found))


def put_array(array: BoxLike, length: BoxLike, allocator: Allocator, found: Sequence[Holder[Any]]) -> None:
    """Set an array of handles and its length; both or neither."""
    check_box(length)
    put(array, allocator.array(found))
    put(length, len(found))


def ready_function(function: Any, parameter: Any, kind: type[FlatBufferHolder]) -> Callable[[FlatBuffer], None] | None:
    """Return a callback of the engine that calls a function of the program with the parameter that belongs to it; None for NULL."""
    called = callback(function, "ready_function")
    return None if called is None else lambda bucket: called(parameter, kind._of(bucket))


def typed_property(kind: Any, value: Any) -> PropertyValue:
    """Return a property value of a type that the caller specifies. Raises PropertyTypeError when it is not of that type."""
    number_of_kind = integer(kind, "property_type")
    if number_of_kind == PropertyType.INT:
        return int_property(value, "property_value")
    if number_of_kind == PropertyType.FLOAT:
        return float_property(value, "property_value")
    if number_of_kind == PropertyType.STRING:
        return string_property(value, "property_value")
    raise InvalidArgumentError(f"expected a property type of 0 (int), 1 (float) or 2 (string), got {number_of_kind}")


def table_of(kind: type[T], version: int) -> T | None:
    """Return the function table of a version of the C API, None for an unknown version."""
    return kind() if 1 <= version <= API_VERSION else None


def extensions_of(kind: type[T], version: int) -> T | None:
    """Return the table of ortrain's own functions of a version, None for an unknown version."""
    return kind() if 1 <= version <= EXTENSIONS_VERSION else None


def version_string() -> str:
    """Return ortrain's version."""
    return __version__
