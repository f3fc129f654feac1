"""SCAFFOLD on the client: the control variates of a message, and the client's own, which its context keeps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from ortrain.errors import InvalidArgumentError, InvalidStateError
from ortrain.federated.arrays import checked_arrays, non_finite, record_of_arrays, values_of
from ortrain.federated.gradient_terms import ControlVariateTerm
from ortrain.federated.messages import Request
from ortrain.federated.workspace import Workspace

if TYPE_CHECKING:
    from flwr.app import ArrayRecord, Context

OWN = "ortrain.control-variate."
"""What the names of records of a client's state with its control variates begin with; the number of the variate follows."""


class ControlVariates:
    """The control variates with which a client trains in a round, in a session that has the arrays of the message.

    A client's variate of a round counts only when the server has received it. Until the server acknowledges it, in the next message to the client, the
    client keeps the one before as well, so that the server's variate stays the mean of those of all clients when a reply is lost, late or refused.

    Raises InvalidArgumentError without control variates in the message and the errors of load_arrays for wrong ones, InvalidStateError when the client does not
    have the variate that the server has from it."""

    def __init__(self, workspace: Workspace, request: Request, context: Context) -> None:
        if request.control_variate is None:
            raise InvalidArgumentError("expected control variates in a message of SCAFFOLD, got none")
        self._number, acknowledged = request.settings.control_variate, request.settings.acknowledged_control_variate
        expected = values_of(workspace.session, workspace.shared)
        self._own = self._kept(acknowledged, expected, context)
        self.term = ControlVariateTerm(workspace.session, checked_arrays(request.control_variate, expected), self._own, workspace.personal)
        for name in [name for name in context.state if name.startswith(OWN) and name != f"{OWN}{acknowledged}"]:
            del context.state[name]

    @staticmethod
    def _kept(number: int, expected: Mapping[str, np.ndarray], context: Context) -> dict[str, np.ndarray]:
        """Return the client's own variate of a number; all zeros for 0."""
        if number == 0:
            return {name: np.zeros_like(array) for name, array in expected.items()}
        record = context.state.get(f"{OWN}{number}")
        if record is None:
            raise InvalidStateError(f"expected control variate {number} in the state of this client, as the server has it, got "
                                    f"{[name.removeprefix(OWN) for name in context.state if name.startswith(OWN)]}: the client has lost its state")
        return checked_arrays(record, expected)

    def leave(self, context: Context) -> ArrayRecord:
        """Return the change of the client's variate after training, which goes to the server, and keep the new one in the client's state.

        Raises InvalidStateError for numbers that are not finite, after which nothing has been kept."""
        new = {name: np.zeros_like(array) for name, array in self._own.items()} | self.term.mean_gradients()
        for name, array in new.items():
            if found := non_finite(array):
                raise InvalidStateError(f"expected finite gradients in local training, got {found} in the mean of {name!r}")
        context.state[f"{OWN}{self._number}"] = record_of_arrays(new)
        return record_of_arrays({name: array - self._own[name] for name, array in new.items()})
