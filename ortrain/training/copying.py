"""Pickling and copying of training sessions: their models, their state, and the settings that neither of them holds."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self, cast

from ortrain.errors import InvalidStateError, UseAfterRelease

if TYPE_CHECKING:
    from ortrain.ir import Model
    from ortrain.runtime.options import SessionOptions
    from ortrain.runtime.state import TrainingState
    from ortrain.training.schedules import Schedule
    from ortrain.training.session import TrainingSession


class CopyableSession:
    """The base of TrainingSession that lets pickle and copy work; every copy has its own state.

    Programs, threads and gradients are not copied. Both raise UseAfterRelease for a closed session, InvalidStateError between a train step and the next
    reset of the gradients, which would be lost."""

    def __reduce__(self) -> tuple[Any, ...]:
        return SessionParts.restore, (SessionParts.of(cast("TrainingSession", self)),)

    def __copy__(self) -> Self:
        return copy.deepcopy(self)


@dataclass(slots=True)
class SessionParts:
    """What a copy of a session is made from."""

    kind: type[TrainingSession]
    training_model: Model
    state: TrainingState
    eval_model: Model | None
    optimizer_model: Model | None
    options: SessionOptions
    seed: int
    run_index: int
    schedule: Schedule | None
    forward_outputs: list[str] | None
    learning_rate: float

    @classmethod
    def of(cls, session: TrainingSession) -> SessionParts:
        """Return the parts of a session, which are its own, not copied. Raises the errors of CopyableSession."""
        if session._closed:
            raise UseAfterRelease("expected an open session to copy, this one was closed: copy its state, or load a checkpoint")
        if not session.steps.overwrite or session.steps.awaits_optimizer:
            raise InvalidStateError("expected a session without gradients to copy, this one has run a train step: call optimizer_step and lazy_reset_grad "
                                    "first, or save_checkpoint and from_artifacts")
        return cls(type(session), session.training_model, session.state, session.eval_model, session.optimizer_model, session.options, session._handle.seed,
                   session._handle.run_index, session._schedule, session._forward_outputs, session.steps.learning_rate)

    def restore(self, loaded: TrainingState | None = None) -> TrainingSession:
        """Return a session on the parts, once they have been copied. loaded: a state from a checkpoint, in place of the copied one."""
        step, rate = self.state.optimizer_step, self.state.initial_learning_rate
        if loaded is not None:
            loaded.rounding_seed = self.state.rounding_seed
        session = self.kind(self.training_model, self.state if loaded is None else loaded, self.eval_model, self.optimizer_model, options=self.options)
        if loaded is None:
            self.state.optimizer_step, self.state.initial_learning_rate = step, rate
        session._handle.seed, session._handle.run_index = self.seed, self.run_index
        session._schedule, session._forward_outputs = self.schedule, self.forward_outputs
        session.steps.learning_rate = self.learning_rate
        return session
