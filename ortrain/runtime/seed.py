"""The process-wide seed of random numbers."""

from __future__ import annotations

_seed = 0


def set_seed(seed: int) -> None:
    """Set the seed of the random numbers (dropout masks) of sessions created from now on."""
    global _seed
    _seed = int(seed) & (2**64 - 1)


def current_seed() -> int:
    """Return the seed for a new session."""
    return _seed
