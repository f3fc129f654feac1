"""Pieces of the arena, before they have places in it (ortrain._core.placement)."""

from __future__ import annotations

from dataclasses import dataclass

ALIGNMENT = 64
"""A cache line, and the widest vector register."""


@dataclass(slots=True)
class Block:
    """A piece of memory that is in use from step `first` to step `last`, both included."""

    size: int
    first: int
    last: int


def aligned(size: int) -> int:
    """The size rounded up to the alignment; never 0, so that every block has an address of its own."""
    return max(ALIGNMENT, -(-size // ALIGNMENT) * ALIGNMENT)
