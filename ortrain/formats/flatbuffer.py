"""Reading untrusted FlatBuffers: every offset, size and text is checked before it is used."""

from __future__ import annotations

import struct
from typing import Any

from ortrain.errors import OrtrainError

MAX_VISITS = 4
"""How often the bytes of a file may be read on average. More means that tables share contents, which multiplies the size of the decoded object."""


class Buffer:
    """Bounds-checked access to a FlatBuffer. `left` bytes may still be visited, so that a small file cannot decode to a large object.

    error, failure: the error raised for malformed bytes, and how its message begins."""

    def __init__(self, data: bytes, error: type[OrtrainError], failure: str) -> None:
        self.data = data
        self.error, self.failure = error, failure
        self.left = MAX_VISITS * len(data)
        self.external = 0

    def fail(self, what: str) -> OrtrainError:
        """Return the error that says what was expected."""
        return self.error(f"{self.failure}: expected {what} (file of {len(self.data)} bytes)")

    def number(self, form: str, at: int) -> int | float:
        """Return the number of a struct format at a position."""
        if at < 0 or at + struct.calcsize(form) > len(self.data):
            raise self.fail(f"a value at byte {at}")
        value: int | float = struct.unpack_from(form, self.data, at)[0]
        return value

    def uint32(self, at: int) -> int:
        return int(self.number("<I", at))

    def vector(self, at: int, item: int) -> tuple[int, int]:
        """Return (first byte, length) of a vector of items of a size."""
        length = self.uint32(at)
        if length * item > len(self.data) - at - 4:
            raise self.fail(f"a vector of {length} items of {item} bytes inside the file at byte {at}")
        self.visit(4 + length * item)
        return at + 4, length

    def visit_external(self, count: int, size: int) -> None:
        """Count bytes that are read from an external data file of `size` bytes. Raises the error when they are more than the file has."""
        self.external += count
        if self.external > size:
            raise self.fail(f"parameters of at most {size} bytes in all, the size of the external data file,")

    def visit(self, count: int) -> None:
        """Count bytes that are read. Raises the error when tables share so many that the decoded object could be huge."""
        self.left -= count
        if self.left < 0:
            raise self.fail("tables that do not share their contents")

    def bytes(self, at: int) -> memoryview:
        """Return the vector of bytes at a position."""
        start, length = self.vector(at, 1)
        return memoryview(self.data)[start : start + length]

    def text(self, at: int) -> str:
        """Return the text at a position."""
        try:
            return str(self.bytes(at), "utf-8")
        except UnicodeDecodeError as error:
            raise self.fail(f"UTF-8 text at byte {at}") from error


class Table:
    """One table; fields are accessed by slot number."""

    def __init__(self, buffer: Buffer, at: int) -> None:
        self.buffer, self.at = buffer, at
        self.vtable = at - int(buffer.number("<i", at))
        self.size = int(buffer.number("<H", self.vtable))
        if self.size < 4 or self.size % 2 or self.vtable + self.size > len(buffer.data):
            raise buffer.fail(f"a table at byte {at}")
        buffer.visit(4)

    def position(self, index: int) -> int | None:
        """Return the position of field `index`, None when it is absent."""
        slot = 4 + 2 * index
        if slot + 2 > self.size:
            return None
        offset = int(self.buffer.number("<H", self.vtable + slot))
        return self.at + offset if offset else None

    def number(self, index: int, form: str, default: int | float = 0) -> int | float:
        """Return the number in field `index`, of a struct format; the default when it is absent."""
        at = self.position(index)
        return default if at is None else self.buffer.number(form, at)

    def target(self, index: int) -> int | None:
        """Return the position of the object that field `index` points to."""
        at = self.position(index)
        return None if at is None else at + self.buffer.uint32(at)

    def table(self, index: int) -> Table | None:
        """Return the table in field `index`, None when it is absent."""
        at = self.target(index)
        return None if at is None else Table(self.buffer, at)

    def text(self, index: int) -> str:
        """Return the text of field `index`, which must be present."""
        at = self.target(index)
        if at is None:
            raise self.buffer.fail(f"a name in the table at byte {self.at}")
        return self.buffer.text(at)

    def text_or(self, index: int, default: str = "") -> str:
        """Return the text of field `index`, the default when it is absent."""
        return default if self.position(index) is None else self.text(index)

    def texts(self, index: int) -> list[str]:
        """Return a vector of texts."""
        return [self.buffer.text(at) for at in self.targets(index)]

    def numbers(self, index: int, form: str) -> list[Any]:
        """Return a vector of numbers of a struct format."""
        at = self.target(index)
        if at is None:
            return []
        start, length = self.buffer.vector(at, struct.calcsize(form))
        return list(struct.unpack_from(f"<{length}{form}", self.buffer.data, start))

    def tables(self, index: int) -> list[Table]:
        """Return a vector of tables."""
        return [Table(self.buffer, at) for at in self.targets(index)]

    def targets(self, index: int) -> list[int]:
        """Return the positions of the objects in the vector of field `index`."""
        at = self.target(index)
        if at is None:
            return []
        start, length = self.buffer.vector(at, 4)
        return [start + 4 * i + self.buffer.uint32(start + 4 * i) for i in range(length)]
