"""The seed of random numbers, for the whole process."""

from __future__ import annotations

_seed = 0


def set_seed(seed: int) -> None:
    """Sets the seed of the random numbers (Dropout masks) of sessions made from now on."""
    global _seed
    _seed = int(seed) & (2**64 - 1)


def current_seed() -> int:
    """The seed that a new session takes."""
    return _seed
