"""The server's side of trust: replies that would harm the global model become errors before a strategy sees them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from ortrain.errors import InvalidArgumentError, OrtrainError
from ortrain.federated.arrays import checked_arrays
from ortrain.federated.flower import NUMBER_OF_EXAMPLES, error_reply
from ortrain.runtime.numbers import check_number

if TYPE_CHECKING:
    from flwr.app import ArrayRecord, Message, MetricRecord
    from flwr.serverapp import Grid


class GuardedGrid:
    """A Flower Grid whose replies a strategy can average without losing the global model: `strategy.start(GuardedGrid(grid), ...)`.

    Clients of ortrain send neither numbers that are not finite nor arrays of another model, but others may, and one of them is enough: Flower averages NaN
    with all other weights, and a round with arrays of different shapes ends the run. Replies with arrays of other names or shapes than were sent, with dtypes
    that are no floats, with numbers that are not finite, or with a "num-examples" that is not above 0 become replies with an error, which strategies report
    and leave out.

    grid: the one that Flower passes to the function of a ServerApp; everything else is as in it."""

    def __init__(self, grid: Grid) -> None:
        self._grid = grid

    def __getattr__(self, name: str) -> Any:
        return getattr(self._grid, name)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        """Send messages, and return the replies that have come in time, each checked against the message to its node."""
        sent = list(messages)
        by_node = {message.metadata.dst_node_id: message for message in sent}
        return [_checked(reply, by_node[reply.metadata.src_node_id]) for reply in self._grid.send_and_receive(sent, timeout=timeout)]


def _checked(reply: Message, sent: Message) -> Message:
    """Return a reply, or one with an error in its place."""
    if reply.has_error():
        return reply
    try:
        for metrics in reply.content.metric_records.values():
            _check_weight(metrics)
        for name, arrays in reply.content.array_records.items():
            checked_arrays(arrays, _values(sent, name))
    except OrtrainError as error:
        return error_reply(error, sent)
    return reply


def _check_weight(metrics: MetricRecord) -> None:
    if NUMBER_OF_EXAMPLES in metrics:
        check_number(metrics[NUMBER_OF_EXAMPLES], NUMBER_OF_EXAMPLES, positive=True)


def _values(message: Message, name: str) -> dict[str, np.ndarray]:
    """Return the arrays of a message that a record of a reply is compared with: those of the same name, or the only ones."""
    records: dict[str, ArrayRecord] = dict(message.content.array_records)
    if name not in records and len(records) != 1:
        raise InvalidArgumentError(f"expected arrays named as in the message, {sorted(records)}, got {name!r}")
    return {key: array.numpy() for key, array in (records.get(name) or next(iter(records.values()))).items()}
