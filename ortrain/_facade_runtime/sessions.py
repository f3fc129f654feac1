"""Operations of the facades on sessions and states that take more than one call of the engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ortrain._facade_runtime.lifetime import Environment
from ortrain._facade_runtime.tensors import TypeAndShape
from ortrain.errors import InvalidArgumentError, InvalidStateError, OutputShapeError, ParameterShapeError, ParameterTypeError, UnsupportedDeviceError
from ortrain.runtime.flat_buffers import FlatBuffer
from ortrain.runtime.options import RunOptions, SessionOptions
from ortrain.runtime.seed import set_seed
from ortrain.runtime.state import TrainingState
from ortrain.runtime.values import OrtValue

if TYPE_CHECKING:
    from ortrain.training.session import TrainingSession

__all__ = ["set_seed"]


def create_session(state: TrainingState, train_model: Any, eval_model: Any = None, optimizer_model: Any = None, options: SessionOptions | None = None,
                   environment: Environment | None = None, device: str = "cpu") -> TrainingSession:
    """Create a session over a state; models are paths or bytes. The environment is accepted and ignored."""
    from ortrain.training.session import TrainingSession  # with it come all operators and the planner: importing a facade stays quick

    return TrainingSession(train_model, state, eval_model, optimizer_model, options=options, device=device)


def new_session_options() -> SessionOptions:
    """Return options with their defaults."""
    return SessionOptions()


def new_run_options() -> RunOptions:
    """Return run options."""
    return RunOptions()


def load_optimizer(session: TrainingSession, optimizer_model: Any) -> TrainingSession:
    """Give a session its optimizer."""
    session.load_optimizer(optimizer_model)
    return session


def train_step(session: TrainingSession, inputs: Sequence[Any], outputs: Sequence[Any] | None = None,
               run_options: RunOptions | None = None) -> list[OrtValue]:
    """Run a train step; return its outputs as tensors, in the caller's own where it passed some."""
    return _given(session.train_step(*inputs, out=outputs, run_options=run_options), outputs)


def eval_step(session: TrainingSession, inputs: Sequence[Any], outputs: Sequence[Any] | None = None, run_options: RunOptions | None = None) -> list[OrtValue]:
    """Run an eval step; outputs as in train_step."""
    return _given(session.eval_step(*inputs, out=outputs, run_options=run_options), outputs)


def _given(arrays: Sequence[np.ndarray], outputs: Sequence[Any] | None) -> list[OrtValue]:
    if outputs is None:
        return [OrtValue(array) for array in arrays]
    return [OrtValue(array) if own is None else own for array, own in zip(arrays, outputs, strict=True)]


def set_learning_rate(session: TrainingSession, learning_rate: float) -> None:
    """Set the learning rate of the next optimizer steps."""
    session.learning_rate = learning_rate


def register_linear_lr_scheduler(session: TrainingSession, warmup_step_count: int, total_step_count: int, initial_lr: float) -> TrainingSession:
    """Register the linear schedule and apply it at once. Raises InvalidArgumentError for negative counts."""
    from ortrain.training.schedules import LinearSchedule

    for name, count in (("warm-up", warmup_step_count), ("total", total_step_count)):
        if count < 0:
            raise InvalidArgumentError(f"expected a {name} step count of at least 0, got {count}")
    session.register_schedule(LinearSchedule(warmup_step_count, total_step_count, initial_lr))
    return session


def parameters_buffer(session: TrainingSession, trainable_only: bool) -> OrtValue:
    """Return a copy of the parameters as one tensor, float32 [n]."""
    return OrtValue(session.to_buffer(trainable_only))


def copy_parameters_to(session: TrainingSession, buffer: OrtValue, trainable_only: bool) -> None:
    """Copy the parameters into the caller's buffer. Raises ParameterShapeError or ParameterTypeError when it does not fit."""
    target = buffer.numpy()
    size = session.parameters_size(trainable_only)
    if target.dtype != np.float32:
        raise ParameterTypeError(f"Tensor type mismatch. Expected: float32, Got: {target.dtype}")
    if target.size != size:
        raise ParameterShapeError(f"Parameters buffer size incorrect. Expected:{size}, Actual:{target.size}")
    if not target.flags.writeable:
        raise OutputShapeError("expected a buffer that can be written, this one is read-only")
    target.reshape(-1)[:] = session.to_buffer(trainable_only)


def copy_buffer_by_size(session: TrainingSession, buffer: OrtValue) -> None:
    """Copy a buffer into the parameters; its size selects the trainable ones or all. Raises ParameterShapeError for any other size."""
    session.from_buffer(buffer.numpy())


def moment_buffers(session: TrainingSession, name: str) -> list[FlatBuffer]:
    """Return the flat buffers of one of the optimizer's moments. Raises InvalidArgumentError for a name that is not a moment's."""
    moments = session.moment_buffers()
    if name not in moments:
        raise InvalidArgumentError(f"expected the name of one of the optimizer's moments, {list(moments)}, got {name!r}")
    return moments[name]


def set_option(options: Any, name: str, value: Any) -> None:
    """Set an attribute of session or run options."""
    setattr(options, name, value)


def append_execution_provider(options: SessionOptions, provider: str) -> None:
    """Accept the CPU provider. Raises UnsupportedDeviceError for any other provider."""
    if provider.removesuffix("ExecutionProvider").upper() != "CPU":
        raise UnsupportedDeviceError(f"Unsupported device type: expected the execution provider 'CPU', got {provider!r}")


def thread_count(value: int) -> int:
    """Return a number of threads; 0 means the physical cores. Raises InvalidArgumentError below 0."""
    if value < 0:
        raise InvalidArgumentError(f"expected intra_op_num_threads >= 0, got {value}")
    return value


def set_property(state: TrainingState, name: str, value: Any) -> None:
    """Add or replace a property."""
    state.set_property(name, value)


def parameter(state: TrainingState, name: str) -> OrtValue:
    """Return a copy of a parameter's value."""
    return OrtValue(state.array(name).copy())


def parameter_info(state: TrainingState, name: str) -> TypeAndShape:
    """Return a parameter's type and shape."""
    return TypeAndShape.of(state.array(name))


def gradient(state: TrainingState, name: str) -> OrtValue:
    """Return a copy of a parameter's gradient. Raises InvalidStateError for a frozen parameter, without an open session, and with optimizer_in_backward."""
    state.array(name)
    found = state.gradients.get(name)
    if found is None:
        why = ("it is frozen" if name in state.frozen else "no session has been made with the state" if state.keeps_gradients
               else "its session uses each gradient at once (optimizer_in_backward) or was closed")
        raise InvalidStateError(f"expected a parameter with a gradient, {name!r} has none: {why}")
    return OrtValue(found.copy())


def requires_grad(state: TrainingState, name: str) -> bool:
    """Return whether the optimizer trains the parameter."""
    state.array(name)
    return name in state.trainable and name not in state.masked
