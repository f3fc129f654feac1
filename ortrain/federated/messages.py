"""A client's messages: what one asks for, and the reply with results or with an error."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ortrain.errors import InvalidArgumentError, OrtrainError, ParameterNotFoundError
from ortrain.federated.flower import error_reply, flower
from ortrain.federated.round_settings import RoundSettings
from ortrain.federated.workflow_messages import CONFIGS, workflow_content

if TYPE_CHECKING:
    from flwr.app import ArrayRecord, Message, RecordDict

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
    is_of_workflow: bool = False
    """Whether a workflow of Flower has sent the message, so that arrays have no names."""

    @classmethod
    def of(cls, message: Message) -> Request:
        """Read a message. Raises InvalidArgumentError for other records than a client expects, and the errors of RoundSettings.of."""
        records, configs = dict(message.content.array_records), dict(message.content.config_records)
        control_variate = records.pop(CONTROL_VARIATES, None)
        is_of_workflow = len(records) == 1 and records.keys() <= CONFIGS.keys()
        if is_of_workflow:
            configs = {key: config for key, config in configs.items() if key in CONFIGS.values()}
        if len(records) != 1 or len(configs) > 1:
            raise InvalidArgumentError(f"expected one ArrayRecord and at most one ConfigRecord in a message, got {len(records)} and {len(configs)}")
        (key, arrays), = records.items()
        return cls(key, arrays, control_variate, RoundSettings.of(next(iter(configs.values()), {})), is_of_workflow)

    def with_names(self, names: Sequence[str]) -> Request:
        """Return the request with names for arrays that have none. Raises ParameterNotFoundError when they are not as many."""
        if not self.is_of_workflow:
            return self
        if len(names) != len(self.arrays):
            raise ParameterNotFoundError(f"expected the {len(names)} arrays that the model trains, in the order of initial_arrays, got {len(self.arrays)}")
        return replace(self, arrays=flower().ArrayRecord(dict(zip(names, self.arrays.values(), strict=True))))

    def content(self, records: Mapping[str, Any]) -> RecordDict:
        """Return the content of a reply with some records, in the form of the message."""
        if self.is_of_workflow:
            return workflow_content(self.key, records)
        content: RecordDict = flower().RecordDict(dict(records))
        return content


def answer(message: Message, work: Callable[[Request], Mapping[str, Any]]) -> Message:
    """Return the reply to a message, with the records that `work` returns by name, or with the error of ortrain that it raises."""
    try:
        request = Request.of(message)
        content = request.content(work(request))
    except OrtrainError as error:
        return error_reply(error, message)
    reply: Message = flower().Message(content, reply_to=message)
    return reply
