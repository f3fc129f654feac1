"""What a forked child has to renew: threads and locks of its parent's, of which it has none."""

from __future__ import annotations

import os
import weakref
from typing import Protocol


class Renewed(Protocol):
    """Has something that does not survive a fork."""

    def after_fork(self) -> None:
        """In a forked child: makes it anew."""


_alive: weakref.WeakSet[Renewed] = weakref.WeakSet()


def renew_in_children(what: Renewed) -> None:
    """Has `what` renewed in every child that is forked from now on, for as long as it lives."""
    _alive.add(what)


def _renew() -> None:
    for each in _alive:
        each.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew)
