"""Places in the arena: blocks whose lifetimes overlap never share bytes."""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence
from dataclasses import dataclass

ALIGNMENT = 64
"""A cache line, and the widest vector register."""


@dataclass(slots=True)
class Block:
    """A piece of memory that is in use from step `first` to step `last`, both included."""

    size: int
    first: int
    last: int
    offset: int = -1


def aligned(size: int) -> int:
    """The size rounded up to the alignment; never 0, so that every block has an address of its own."""
    return max(ALIGNMENT, -(-size // ALIGNMENT) * ALIGNMENT)


def place(blocks: Sequence[Block]) -> int:
    """Gives each block its offset, largest first, each at the lowest gap that fits; returns the size of the arena in bytes."""
    placed: list[tuple[int, int, int, int]] = []         # start, end, first, last, in order: a deep model has a thousand, and each is compared with most
    total = 0
    for block in sorted(blocks, key=lambda b: (-b.size, b.first)):
        size = aligned(block.size)
        offset = 0
        for start, end, first, last in placed:
            if last < block.first or block.last < first:
                continue
            if start >= offset + size:
                break
            if end > offset:
                offset = end
        block.offset = offset
        total = max(total, offset + size)
        insort(placed, (offset, offset + size, block.first, block.last))
    return total
