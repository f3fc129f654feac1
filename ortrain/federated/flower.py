"""What the other modules need of Flower, which is imported where something needs it."""

from __future__ import annotations

from types import ModuleType
from typing import TYPE_CHECKING

from ortrain.errors import OrtrainError
from ortrain.packages import require

if TYPE_CHECKING:
    from flwr.app import Message

NUMBER_OF_EXAMPLES = "num-examples"
"""The metric by which Flower's strategies weigh replies."""


def flower(module: str = "flwr.app") -> ModuleType:
    """Import a module of Flower. Raises MissingPackageError."""
    return require(module, "flower", "federated learning")


def error_reply(error: OrtrainError, message: Message) -> Message:
    """Return the reply to a message that has led to an error: its name and its text."""
    app, code = flower(), flower("flwr.common.constant").ErrorCode.CLIENT_APP_RAISED_EXCEPTION
    reply: Message = app.Message(app.Error(code, f"{type(error).__name__}: {error}"), reply_to=message)
    return reply
