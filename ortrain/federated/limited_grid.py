"""A grid for many clients: few messages are out at any time."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from ortrain.runtime.numbers import check_count

if TYPE_CHECKING:
    from flwr.app import Message
    from flwr.serverapp import Grid

PAUSE = 0.05
"""Seconds between two looks for replies when there were none."""


class LimitedGrid:
    """A Flower Grid that has at most so many messages out at a time: `strategy.start(LimitedGrid(grid), ...)`. The next ones go out as replies come in.

    Flower 1.42's simulation looks for the messages of each node among all that are out. With all of a round, the time for it grows with the square of the
    clients, and where it has no processor to itself, the clients wait: on one processor a round of 1000 took 35 seconds instead of 10.

    grid: the one that Flower passes to the function of a ServerApp; everything else is as in it. messages: at least 1; enough to keep all processes of the
    simulation busy. A client that does not answer keeps its place until the timeout of the round. Raises ArgumentTypeError or InvalidArgumentError."""

    def __init__(self, grid: Grid, messages: int = 32) -> None:
        self._grid = grid
        self._limit = check_count(messages, "messages", 1)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._grid, name)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        """Send messages, and return the replies that have come within the timeout, in seconds for all of them."""
        end = None if timeout is None else time.monotonic() + timeout
        waiting, all_sent = iter(messages), False
        out: set[str] = set()
        replies: list[Message] = []
        while True:
            room = self._limit - len(out)
            sent = list(itertools.islice(waiting, room))
            all_sent = all_sent or len(sent) < room
            out.update(filter(None, self._grid.push_messages(sent) if sent else ()))
            found = list(self._grid.pull_messages(out)) if out else []
            out.difference_update(reply.metadata.reply_to_message_id for reply in found)
            replies += found
            if all_sent and not out or end is not None and time.monotonic() >= end:
                return replies
            if not found:
                time.sleep(PAUSE)
