"""A mod for Flower's clients: what stands between a server's messages and the client."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ortrain.federated.flower import NUMBER_OF_EXAMPLES

if TYPE_CHECKING:
    from flwr.app import Context, Message


def equal_weights_mod(message: Message, context: Context, call_next: Callable[[Message, Context], Message]) -> Message:
    """Let the client count as one with a single example when arrays are averaged, however many it has: `client_app(..., mods=[equal_weights_mod])`.

    Differential privacy at the level of clients needs it, since a client with a larger weight would change the average by more than the clipping norm says;
    Flower's accountant refuses other weights. The number of examples is not told either. Parameters and result are those of a mod of Flower."""
    reply = call_next(message, context)
    if message.metadata.message_type == "train" and reply.has_content():
        for metrics in reply.content.metric_records.values():
            if NUMBER_OF_EXAMPLES in metrics:
                metrics[NUMBER_OF_EXAMPLES] = 1
    return reply
