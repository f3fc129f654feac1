"""The wire format of Protocol Buffers (https://protobuf.dev/programming-guides/encoding/): messages read strictly, and written.

A class of messages names its fields with their numbers and kinds, and has what reading and writing need from that:

    class TensorProto(Message):
        dims: Sequence[int] = repeated(1, "int64")
        data_type: int = single(2, "int32")

The kinds are "int32", "int64", "uint64", "enum", "float", "double", "string", "bytes" and the names of messages. The attributes of a message are those of the
classes that protobuf's compiler generates, with HasField and WhichOneof: code that reads one kind of message reads both."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, ClassVar, TypeVar

import numpy as np

VARINT, FIXED64, DELIMITED, FIXED32 = 0, 1, 2, 5
WIRE_TYPES = {"int32": VARINT, "int64": VARINT, "uint64": VARINT, "enum": VARINT, "double": FIXED64, "float": FIXED32}
"""The wire types of single numbers; texts, bytes, messages and packed numbers are delimited."""
DTYPES = {"int32": "<i4", "int64": "<i8", "uint64": "<u8", "enum": "<i4", "float": "<f4", "double": "<f8"}
DEFAULTS: dict[str, Any] = {"int32": 0, "int64": 0, "uint64": 0, "enum": 0, "float": 0.0, "double": 0.0, "string": "", "bytes": b""}
MAX_FIELD = 2**29 - 1

SINGLE, REPEATED, PACKED = "single", "repeated", "packed"
M = TypeVar("M", bound="Message")


@dataclass(slots=True)
class Field:
    """A field of a message: its number, kind, whether it occurs once, repeatedly or packed, and the name of the oneof that it belongs to."""

    number: int
    kind: str
    label: str
    oneof: str = ""
    name: str = ""
    others: tuple[str, ...] = ()
    """The other fields of its oneof, which it replaces."""
    is_message: bool = field(init=False)
    wire_type: int = field(init=False)
    tag: bytes = field(init=False)
    """What precedes the field when it is written."""

    def __post_init__(self) -> None:
        self.is_message = self.kind not in DEFAULTS
        self.wire_type = DELIMITED if self.label == PACKED else WIRE_TYPES.get(self.kind, DELIMITED)
        self.tag = encoded_varint(self.number << 3 | self.wire_type)

    @property
    def wire_types(self) -> set[int]:
        """The wire types that the field may have: numbers that repeat may be packed or not."""
        return {self.wire_type, WIRE_TYPES.get(self.kind, DELIMITED), *([] if self.label == SINGLE else [DELIMITED])}

    @property
    def default(self) -> Any:
        """The value of the field where it is absent; single messages have theirs from Message.__getattr__."""
        return np.empty(0, DTYPES[self.kind]) if self.label == PACKED else () if self.label == REPEATED else DEFAULTS[self.kind]


def single(number: int, kind: str, oneof: str = "") -> Any:
    """Declare a field that occurs once at most."""
    return Field(number, kind, SINGLE, oneof)


def repeated(number: int, kind: str) -> Any:
    """Declare a field whose values are a list."""
    return Field(number, kind, REPEATED)


def packed(number: int, kind: str) -> Any:
    """Declare a field whose numbers are an array, written as one value."""
    return Field(number, kind, PACKED)


class Message:
    """Base of messages. An instance holds the fields that are present; the others have their defaults.

    The constructor takes the values of fields by name and leaves out those that are None."""

    fields: ClassVar[dict[str, Field]] = {}
    by_tag: ClassVar[dict[int, tuple[Field, int]]] = {}
    """Tag (number and wire type) -> field and wire type."""
    classes: ClassVar[dict[str, type[Message]]] = {}
    """All classes of messages by their qualified names, which are the kinds of fields."""

    def __init_subclass__(cls) -> None:
        cls.fields = {name: value for name, value in vars(cls).items() if isinstance(value, Field)}
        Message.classes[cls.__qualname__] = cls
        for name, declared in cls.fields.items():
            declared.name = name
            declared.others = tuple(other for other, value in cls.fields.items() if declared.oneof and value.oneof == declared.oneof and other != name)
            if declared.is_message and declared.label == SINGLE:
                delattr(cls, name)
            else:
                setattr(cls, name, declared.default)
        cls.by_tag = {declared.number << 3 | wire_type: (declared, wire_type) for declared in cls.fields.values() for wire_type in declared.wire_types}

    def __init__(self, **values: Any) -> None:
        for name, value in values.items():
            assert name in self.fields, f"{type(self).__qualname__} has no field {name}"
            if value is not None:
                self.__dict__[name] = value

    def __getattr__(self, name: str) -> Any:
        # called for what neither the instance nor its class has: a message that is absent reads as an empty one
        declared = type(self).fields.get(name)
        if declared is None:
            raise AttributeError(f"{type(self).__qualname__} has no field {name!r}")
        return Message.classes[declared.kind]()

    def __repr__(self) -> str:
        return f"{type(self).__qualname__}({', '.join(f'{name}={value!r}' for name, value in self.__dict__.items())})"

    def HasField(self, name: str) -> bool:
        """Return whether a single field is present."""
        return name in self.__dict__

    def WhichOneof(self, name: str) -> str | None:
        """Return the field that is present among those of a oneof."""
        return next((member for member, declared in self.fields.items() if declared.oneof == name and member in self.__dict__), None)


# ---- writing


def serialize(message: Message) -> list[bytes | memoryview]:
    """Return the chunks of a message's encoding, fields by ascending numbers; long values are not copied."""
    chunks: list[bytes | memoryview] = []
    _append(message, chunks)
    return chunks


def encoded_varint(value: int) -> bytes:
    """Return the encoding of an integer, negative ones as two's complement of 64 bits."""
    value &= 2**64 - 1
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def _append(message: Message, chunks: list[bytes | memoryview]) -> int:
    """Append the encoding of a message to the chunks; return its size."""
    size = 0
    for declared in sorted(map(message.fields.__getitem__, message.__dict__), key=attrgetter("number")):
        found = message.__dict__[declared.name]
        values = (found,) if declared.label == SINGLE else _packed_values(declared, found) if declared.label == PACKED else found
        for value in values:
            size += _append_value(declared, value, chunks)
    return size


def _packed_values(declared: Field, numbers: Any) -> Iterator[bytes]:
    """Yield the encoding of all numbers of a packed field, nothing where there are none."""
    array = np.asarray(numbers, DTYPES[declared.kind])
    if array.size:
        yield array.tobytes() if array.dtype.kind == "f" else b"".join(map(encoded_varint, array.tolist()))


def _append_value(declared: Field, value: Any, chunks: list[bytes | memoryview]) -> int:
    """Append one value of a field with its tag; return the size of both."""
    if declared.wire_type == VARINT:
        encoded = declared.tag + encoded_varint(value)
    elif declared.wire_type != DELIMITED:
        encoded = declared.tag + np.asarray(value, DTYPES[declared.kind]).tobytes()
    elif declared.is_message:
        inner: list[bytes | memoryview] = []
        size = _append(value, inner)
        head = declared.tag + encoded_varint(size)
        chunks += [head, *inner]
        return len(head) + size
    else:
        content = value.encode() if isinstance(value, str) else value
        head = declared.tag + encoded_varint(len(content))
        chunks += [head, content]
        return len(head) + len(content)
    chunks.append(encoded)
    return len(encoded)
