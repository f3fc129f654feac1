"""Handlers for forked child processes, which lack the threads of their parent and must replace its thread pools and locks."""

from __future__ import annotations

import os
import weakref
from typing import Protocol


class ForkAware(Protocol):
    """An object with state that does not survive a fork."""

    def after_fork(self) -> None:
        """Replace this state in a forked child."""


_registered: weakref.WeakSet[ForkAware] = weakref.WeakSet()


def register_after_fork(obj: ForkAware) -> None:
    """Call obj.after_fork() in every child process that is forked during the lifetime of obj."""
    _registered.add(obj)


def _run_after_fork() -> None:
    for obj in _registered:
        obj.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_run_after_fork)
