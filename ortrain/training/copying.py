"""Pickling and copying of training sessions: their models, their state, and the settings that neither of them holds."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, Self, cast

from ortrain.errors import InvalidStateError, UseAfterRelease

if TYPE_CHECKING:
    from ortrain.training.session import TrainingSession


class CopyableSession:
    """The base of TrainingSession that lets pickle and copy work; every copy has its own state.

    Programs, threads and gradients are not copied. Both raise UseAfterRelease for a closed session, InvalidStateError between a train step and the next
    reset of the gradients, which would be lost."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _session_parts(cast("TrainingSession", self))

    def __copy__(self) -> Self:
        return copy.deepcopy(self)


def _session_parts(session: TrainingSession) -> tuple[Any, ...]:
    """Return the function that restores a session, and its arguments."""
    if session._closed:
        raise UseAfterRelease("expected an open session to copy, this one was closed: copy its state, or load a checkpoint")
    if not session.steps.overwrite or session.steps.awaits_optimizer:
        raise InvalidStateError("expected a session without gradients to copy, this one has run a train step: call optimizer_step and lazy_reset_grad first, "
                                "or save_checkpoint and from_artifacts")
    handle = session._handle
    settings = {"seed": handle.seed, "run_index": handle.run_index, "schedule": session._schedule, "forward_outputs": session._forward_outputs,
                "learning_rate": session.steps.learning_rate}
    return restore_session, (type(session), session.training_model, session.state, session.eval_model, session.optimizer_model, session.options, settings)


def restore_session(kind: type[TrainingSession], training_model: Any, state: Any, eval_model: Any, optimizer_model: Any, options: Any,
                    settings: dict[str, Any]) -> TrainingSession:
    """Return the session that _session_parts described."""
    step, rate = state.optimizer_step, state.initial_learning_rate
    session = kind(training_model, state, eval_model, optimizer_model, options=options)
    state.optimizer_step, state.initial_learning_rate = step, rate
    session._handle.seed, session._handle.run_index = settings["seed"], settings["run_index"]
    session._schedule, session._forward_outputs = settings["schedule"], settings["forward_outputs"]
    session.steps.learning_rate = settings["learning_rate"]
    return session
