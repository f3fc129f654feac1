"""The session of a process, in which one client after the other trains."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import numpy as np

from ortrain.errors import ArgumentTypeError, InvalidStateError
from ortrain.federated.arrays import checked_arrays, copy_into, non_finite, personal_names, record_of, shared_names, values_of
from ortrain.federated.round_settings import RoundSettings
from ortrain.training.session import TrainingSession

if TYPE_CHECKING:
    from flwr.app import ArrayRecord, Context

PERSONAL_ARRAYS = "ortrain.personal"
"""The record of a client's state with the arrays that stay with it."""


class Workspace:
    """A session with what is needed to hand it from client to client.

    Whatever a client has for itself is in the state of its context, which Flower keeps, so that it makes no difference which process a client's message comes
    to, and which clients the process has served before.

    Raises ArgumentTypeError when make_session returns no TrainingSession, InvalidArgumentError for one whose parameters are kept in bfloat16,
    ParameterNotFoundError for a personal name that the session does not have."""

    def __init__(self, make_session: Callable[[], TrainingSession], personal: Iterable[str]) -> None:
        session = make_session()
        if not isinstance(session, TrainingSession):
            raise ArgumentTypeError(f"expected a TrainingSession from make_session, got {type(session).__name__}")
        session.state.check_float32("federated clients, whose optimizers begin anew in every round")
        self.session = session
        self.shared, self.personal = shared_names(session, personal), personal_names(session, personal)
        self._initial = {name: array.copy() for name, array in values_of(session, self.personal).items()}
        self._learning_rate = session.learning_rate if session.has_optimizer else None

    def enter(self, arrays: ArrayRecord, context: Context) -> None:
        """Give the session the global arrays, the personal ones of a client and an optimizer without moments. Raises the errors of load_arrays."""
        kept = context.state.get(PERSONAL_ARRAYS)
        values = checked_arrays(arrays, values_of(self.session, self.shared))
        personal = self._initial if kept is None else checked_arrays(kept, self._initial)
        copy_into(self.session, values | personal)
        state = self.session.state
        for segments in state.moments:
            for segment in segments:
                segment.array.fill(0)
        state.optimizer_step = 0
        self.session.lazy_reset_grad()

    def prepare_training(self, settings: RoundSettings, seed: int, client: int) -> None:
        """Set the learning rate of a round, and random masks that depend on the seed, the round and the client alone."""
        rate = self._learning_rate if settings.learning_rate is None else settings.learning_rate
        if rate is None:
            raise InvalidStateError("expected a session with an optimizer from make_session, to train with")
        self.session.learning_rate = rate
        self.session.train_steps = int(np.random.SeedSequence((seed, settings.server_round, client)).generate_state(1)[0])

    def leave(self, order: Iterable[str], context: Context) -> ArrayRecord:
        """Return the arrays that go to the server, and keep the personal ones in the client's state.

        order: the names as they came. Raises InvalidStateError for numbers that are not finite, after which nothing has been kept."""
        for name, array in values_of(self.session, (*self.shared, *self.personal)).items():
            if found := non_finite(array):
                raise InvalidStateError(f"expected finite parameters after local training, got {found} in {name!r}: try a lower learning rate than "
                                        f"{self.session.learning_rate:g}, or clip_norm")
        if self.personal:
            context.state[PERSONAL_ARRAYS] = record_of(self.session, self.personal)
        return record_of(self.session, order)
