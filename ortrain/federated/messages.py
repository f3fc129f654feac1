"""A client's messages: what one asks for, and the reply with results or with an error."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ortrain.errors import InvalidArgumentError, OrtrainError
from ortrain.federated.flower import error_reply, flower
from ortrain.federated.round_settings import RoundSettings

if TYPE_CHECKING:
    from flwr.app import ArrayRecord, Message

CONTROL_VARIATES = "control-variates"
"""The name of the record with SCAFFOLD's control variates, beside the one of arrays."""


@dataclass(frozen=True, slots=True)
class Request:
    """What a message holds."""

    key: str
    """The name of the record of arrays, under which a reply returns them."""
    arrays: ArrayRecord
    control_variate: ArrayRecord | None
    """The server's, in a message of SCAFFOLD."""
    settings: RoundSettings

    @classmethod
    def of(cls, message: Message) -> Request:
        """Read a message. Raises InvalidArgumentError for other records than a client expects, and the errors of RoundSettings.of."""
        records, configs = dict(message.content.array_records), list(message.content.config_records.values())
        control_variate = records.pop(CONTROL_VARIATES, None)
        if len(records) != 1 or len(configs) > 1:
            raise InvalidArgumentError(f"expected one ArrayRecord and at most one ConfigRecord in a message, got {len(records)} and {len(configs)}")
        (key, arrays), = records.items()
        return cls(key, arrays, control_variate, RoundSettings.of(configs[0] if configs else {}))


def answer(message: Message, work: Callable[[Request], Mapping[str, Any]]) -> Message:
    """Return the reply to a message, with the records that `work` returns by name, or with the error of ortrain that it raises."""
    app = flower()
    try:
        content = app.RecordDict(dict(work(Request.of(message))))
    except OrtrainError as error:
        return error_reply(error, message)
    reply: Message = app.Message(content, reply_to=message)
    return reply
