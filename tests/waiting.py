"""Waiting in tests for what other threads, or the operating system, are about to do."""

from __future__ import annotations

import time
from collections.abc import Callable

DEADLINE = 20.0
"""Seconds after which a test fails that waits."""


def until(condition: Callable[[], bool]) -> None:
    """Wait until a condition holds, or fail when the deadline has passed."""
    end = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.001)
