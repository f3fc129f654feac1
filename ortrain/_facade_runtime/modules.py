"""The parts of the Python facade only: a module with modes, and the optimizer and the scheduler as objects."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from ortrain._facade_runtime.lifetime import Holder, StateHolder
from ortrain.errors import ArgumentTypeError
from ortrain.runtime.state import TrainingState
from ortrain.runtime.values import OrtValue

if TYPE_CHECKING:
    from ortrain.training.session import TrainingSession


class StateBase(StateHolder):
    """The base class of CheckpointState."""

    def __init__(self, state: TrainingState) -> None:
        if not isinstance(state, TrainingState):
            raise ArgumentTypeError(f"Invalid argument for CheckpointState received {type(state)}")
        super().__init__()
        self._hold(state)


class PartOfSession(Holder["TrainingSession"]):
    """A Python object for a part of a session. The plain attribute avoids a property call in every step."""

    _session: TrainingSession

    def _hold(self, held: TrainingSession) -> Self:
        self._session = held
        return super()._hold(held)


class ModuleBase(PartOfSession):
    """The base class of Module: a session and a mode."""

    def __init__(self) -> None:
        super().__init__()
        self.training = True

    def _set_mode(self, mode: bool) -> Self:
        self.training = mode
        return self

    def _step(self, user_inputs: tuple[Any, ...]) -> Any:
        """Run a step by mode. Returns OrtValues when every input is one, arrays otherwise; a single output is returned bare, several as a tuple."""
        session = self._session
        if self.training:
            repeated = session.steps.call(user_inputs)          # the same fast path as in train_step
            if repeated is not None:
                return repeated
            results = session.train_step(*user_inputs)
        else:
            results = session.eval_step(*user_inputs)
        if user_inputs and all(hasattr(value, "data_type") for value in user_inputs):
            wrapped = tuple(OrtValue(result) for result in results)
            return wrapped[0] if len(wrapped) == 1 else wrapped
        return results[0] if len(results) == 1 else tuple(results)


def session_of(part: Any, name: str) -> TrainingSession:
    """Return the session of a module or an optimizer. Raises ArgumentTypeError for anything else."""
    if not isinstance(part, PartOfSession):
        raise ArgumentTypeError(f"expected a Module or an Optimizer for {name}, got {type(part).__name__}")
    return part._session
