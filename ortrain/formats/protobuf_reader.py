"""Reading of untrusted messages (ortrain.formats.protobuf): every number and size is checked before it is used.

It is stricter than protobuf, which skips a known field of another wire type as if it were unknown, cuts numbers of more than 64 bits, and accepts groups, a
kind of field that ONNX does not have.
Values of bytes are views of the memory that was read. Long ones of a file have memory of their own, so that a weight takes no more than its size and is freed
alone."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from io import BufferedReader
from typing import Any

import numpy as np

from ortrain.errors import OrtrainError
from ortrain.formats.protobuf import DELIMITED, DTYPES, FIXED32, FIXED64, MAX_FIELD, PACKED, REPEATED, SINGLE, VARINT, Field, M, Message

MAX_DEPTH = 100
"""How deep messages may be nested, as in protobuf."""
MAX_VARINT, MAX_TAG, MAX_SIZE = 10, 5, 5
"""Bytes of a number, of a tag and of a size."""
WINDOW = 2**20
"""Bytes of a file that are read at once; longer fields are read on their own."""
UNKNOWN = Field(0, "bytes", "unknown")
"""Stands for the fields that a message does not have, which are skipped."""

Fail = Callable[[str], OrtrainError]
"""Makes the error for malformed bytes from what was expected of them."""


def parse(kind: type[M], data: bytes | memoryview, fail: Fail) -> M:
    """Read a message from its encoding. Raises what `fail` returns when the bytes are malformed."""
    message = kind()
    Reader(memoryview(data), fail).read(message, 0, len(data), 0)
    return message


def parse_file(kind: type[M], file: BufferedReader, fail: Fail) -> M:
    """Read a message from a file that contains nothing else. Raises what `fail` returns when its bytes are malformed."""
    message = kind()
    FileReader(file, fail).read(message, 0, os.fstat(file.fileno()).st_size, 0)
    return message


class Reader:
    """Reads fields from memory. base: where the memory begins in the file, for errors."""

    def __init__(self, data: memoryview, fail: Fail, base: int = 0) -> None:
        self.data, self.base = data, base
        self._fail = fail

    def fail(self, what: str, at: int) -> OrtrainError:
        return self._fail(f"{what} at byte {self.base + at}")

    def read(self, message: Message, at: int, end: int, depth: int, limit: int | None = None) -> int:
        """Read the fields between two positions into a message; return the position after them.

        limit: the message goes on after this memory. Fields that begin at the limit or later, or that exceed the memory, are left."""
        if depth > MAX_DEPTH:
            raise self.fail(f"messages nested at most {MAX_DEPTH} deep", at)
        kind, data, values = type(message), self.data, message.__dict__
        by_tag = kind.by_tag
        packed: dict[str, list[memoryview]] = {}
        last = end if limit is None else limit
        while at < last:
            start, tag = at, data[at]
            if tag in by_tag and tag < 0x80:                                           # most tags take one byte
                field, wire_type = by_tag[tag]
                at += 1
            else:
                field, wire_type, at = self.head(kind, at, end)
            if wire_type == DELIMITED and at < end and (size := data[at]) < 0x80:      # and so do most sizes
                at += 1
                stop = at + size
            elif wire_type == VARINT and at < end and data[at] < 0x80:                 # and most numbers
                stop = at + 1
            else:
                at, stop = self.extent(wire_type, at, end)
            if stop > end:
                if limit is not None:
                    at = start
                    break
                raise self.fail(f"a field that ends inside its message, by byte {self.base + end}, got one until byte {self.base + stop},", start)
            label = field.label
            if field.is_message:
                self.read(child_of(message, field), at, stop, depth + 1)
            elif label == SINGLE:
                values[field.name] = self.value(field, at, stop)
                for other in field.others:
                    values.pop(other, None)
            elif label == PACKED:
                packed.setdefault(field.name, []).append(data[at:stop])
            elif label == REPEATED and wire_type == field.wire_type:
                values.setdefault(field.name, []).append(self.value(field, at, stop))
            elif label == REPEATED:
                values.setdefault(field.name, []).extend(self.numbers(field, [data[at:stop]], at).tolist())
            at = stop
        for name, pieces in packed.items():
            numbers = self.numbers(kind.fields[name], pieces, at)
            values[name] = np.concatenate([values[name], numbers]) if name in values else numbers
        return at

    def head(self, kind: type[Message], at: int, end: int) -> tuple[Field, int, int]:
        """Return (field, wire type, position of the first byte after it) of the tag at a position."""
        start = at
        tag, at = self.varint(at, end, MAX_TAG)
        found = kind.by_tag.get(tag)
        if found is not None:
            return *found, at
        number, wire_type = tag >> 3, tag & 7
        if not 1 <= number <= MAX_FIELD or wire_type not in (VARINT, FIXED64, DELIMITED, FIXED32):
            raise self.fail("the number and wire type of a field", start)
        for field in kind.fields.values():
            if field.number == number:
                raise self.fail(f"{kind.__qualname__}.{field.name} with wire type {field.wire_type}, not {wire_type},", start)
        return UNKNOWN, wire_type, at

    def extent(self, wire_type: int, at: int, end: int) -> tuple[int, int]:
        """Return (first byte, first byte after it) of the value of a field whose tag ends at a position; the value may exceed this memory."""
        if wire_type == DELIMITED:
            size, at = self.varint(at, end, MAX_SIZE)
            return at, at + size
        if wire_type == VARINT:
            return at, self.varint(at, end)[1]
        return at, at + (8 if wire_type == FIXED64 else 4)

    def varint(self, at: int, end: int, longest: int = MAX_VARINT) -> tuple[int, int]:
        """Return (value, position of the first byte after it) of the number at a position."""
        data, value, shift = self.data, 0, 0
        for position in range(at, min(at + longest, end)):
            byte = data[position]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                if value >> 64:
                    raise self.fail("a number of at most 64 bits", at)
                return value, position + 1
            shift += 7
        raise self.fail(f"a number of at most {longest} bytes, inside its message,", at)

    def value(self, field: Field, at: int, stop: int) -> Any:
        """Return the value of a field that is no message."""
        kind = field.kind
        if kind == "string":
            try:
                return str(self.data[at:stop], "utf-8")
            except UnicodeDecodeError:
                return bytes(self.data[at:stop])                # as protobuf does: who reads the text says whether that is an error
        if kind == "bytes":
            return self.data[at:stop]
        if field.wire_type != VARINT:
            return struct.unpack("<f" if kind == "float" else "<d", self.data[at:stop])[0]
        if stop == at + 1:
            return self.data[at]
        value = self.varint(at, stop)[0]
        if kind == "uint64":
            return value
        bits = 64 if kind == "int64" else 32
        value &= (1 << bits) - 1
        return value - (1 << bits) if value >> (bits - 1) else value

    def numbers(self, field: Field, pieces: list[memoryview], at: int) -> np.ndarray:
        """Return the numbers of a field that repeats, from their encodings one after another."""
        dtype = np.dtype(DTYPES[field.kind])
        if dtype.kind == "f":
            if any(len(piece) % dtype.itemsize for piece in pieces):
                raise self.fail(f"{field.name} as numbers of {dtype.itemsize} bytes before the field that ends", at)
            return np.frombuffer(pieces[0] if len(pieces) == 1 else b"".join(pieces), dtype)
        found = None if any(len(piece) and piece[-1] >= 0x80 for piece in pieces) else decoded_varints(np.frombuffer(b"".join(pieces), np.uint8))
        if found is None:
            raise self.fail(f"{field.name} as numbers of at most 64 bits before the field that ends", at)
        return found.astype(np.uint32).view(np.int32) if dtype.itemsize == 4 else found.view(dtype)


class FileReader:
    """Reads the fields of a file, through windows and, where they are longer, on their own."""

    def __init__(self, file: BufferedReader, fail: Fail) -> None:
        self.file = file
        self.fail = fail

    def read(self, message: Message, at: int, end: int, depth: int) -> None:
        """Read the fields between two positions of the file into a message."""
        if depth > MAX_DEPTH:
            raise self.fail(f"messages nested at most {MAX_DEPTH} deep at byte {at}")
        while at < end:
            size = min(end - at, WINDOW)
            window = Reader(self.memory(at, at + size), self.fail, at)
            done = window.read(message, 0, size, depth, None if at + size == end else size - MAX_TAG - MAX_VARINT)
            at += done
            if not done:
                at = self.long_field(window, message, at, end, depth)

    def long_field(self, window: Reader, message: Message, at: int, end: int, depth: int) -> int:
        """Read the field at a position, where a window begins that is shorter; return the position after it."""
        field, wire_type, after = window.head(type(message), 0, len(window.data))
        first, stop = (at + position for position in window.extent(wire_type, after, len(window.data)))
        if stop > end:
            raise self.fail(f"a field that ends inside its message, by byte {end}, got one until byte {stop}, at byte {at}")
        if field.is_message:
            self.read(child_of(message, field), first, stop, depth + 1)
        elif field.kind != "bytes":
            Reader(self.memory(at, stop), self.fail, at).read(message, 0, stop - at, depth)
        elif field is not UNKNOWN:
            content = self.memory(first, stop)
            message.__dict__[field.name] = [*message.__dict__.get(field.name, ()), content] if field.label == REPEATED else content
        return stop

    def memory(self, at: int, stop: int) -> memoryview:
        """Read the bytes between two positions into memory of their own, which is aligned for numbers of any type."""
        self.file.seek(at)
        memory = np.empty(stop - at, np.uint8)
        if self.file.readinto(memory.data) != memory.size:
            raise self.fail(f"{stop} bytes of a file that does not shrink while it is read")
        return memory.data.toreadonly()


def child_of(message: Message, field: Field) -> Message:
    """Return the message to read a field into: a new one, or the present one where the field occurs once, for protobuf merges its occurrences."""
    values, name = message.__dict__, field.name
    if field.label == SINGLE and name in values:
        present: Message = values[name]
        return present
    child = Message.classes[field.kind]()
    if field.label == REPEATED:
        values.setdefault(name, []).append(child)
        return child
    values[name] = child
    for other in field.others:
        values.pop(other, None)
    return child


def decoded_varints(data: np.ndarray) -> np.ndarray | None:
    """Return the numbers (uint64) in bytes that end with a number's last byte, None where one has more than 64 bits."""
    last = np.flatnonzero(data < 0x80)
    first = np.concatenate([[0], last[:-1] + 1])[: last.size]
    lengths = last - first + 1
    longest = int(lengths.max(initial=0))
    if longest > MAX_VARINT or (data[last[lengths == MAX_VARINT]] > 1).any():
        return None
    values = np.zeros(last.size, np.uint64)
    for index in range(longest):
        has = lengths > index
        values[has] |= (data[first[has] + index] & np.uint8(0x7F)).astype(np.uint64) << np.uint64(7 * index)
    return values
