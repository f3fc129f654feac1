"""The driver of the Python facade."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import ortrain
from ortrain.api import CheckpointState, LinearLRScheduler, Module, Optimizer
from ortrain.api.checkpoint_state import Parameter, Parameters, Properties
from ortrain.conformance.drivers.base import Driver, NotOffered, failure_of, scaled_by
from ortrain.dtypes import NAMES, numpy_dtype
from ortrain.errors import InvalidStateError, MissingPackageError, OrtrainError
from ortrain.runtime.flat_buffers import FlatBuffer
from ortrain.runtime.options import RunOptions, SessionOptions
from ortrain.runtime.values import OrtValue


class Session:
    """The objects that together are a session of the other languages: a module, its optimizer and its scheduler."""

    def __init__(self, module: Module, optimizer: Optimizer | None) -> None:
        self.module = module
        self._optimizer = optimizer
        self._scheduler: LinearLRScheduler | None = None

    @property
    def optimizer(self) -> Optimizer:
        """The optimizer. Raises InvalidStateError when the program has created none."""
        if self._optimizer is None:
            raise InvalidStateError("expected an Optimizer, got none")
        return self._optimizer

    @property
    def scheduler(self) -> LinearLRScheduler:
        """The scheduler. Raises InvalidStateError when the program has created none."""
        if self._scheduler is None:
            raise InvalidStateError("expected a LinearLRScheduler, got none")
        return self._scheduler

    @scheduler.setter
    def scheduler(self, scheduler: LinearLRScheduler) -> None:
        self._scheduler = scheduler


def arrays(results: Any) -> list[np.ndarray]:
    """Return the results of a step, a single one or a tuple, as a list."""
    return list(results) if isinstance(results, tuple) else [results]


class PythonDriver(Driver):
    """Calls ortrain.api."""

    language = "python"
    shown = r"raises \w+: .+"

    def guarded(self, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except (OrtrainError, OSError) as error:
            raise failure_of(error, f"raises {type(error).__name__}: {error}") from error

    # ---- options, tensors

    def session_options__create(self) -> SessionOptions:
        return SessionOptions()

    def session_options__intra_op_num_threads(self, options: SessionOptions) -> int:
        return options.intra_op_num_threads

    def session_options__set_intra_op_num_threads(self, options: SessionOptions, threads: int) -> None:
        options.intra_op_num_threads = threads

    def session_options__log_severity_level(self, options: SessionOptions) -> int:
        return options.log_severity_level

    def session_options__set_log_severity_level(self, options: SessionOptions, level: int) -> None:
        options.log_severity_level = level

    def session_options__add_config_entry(self, options: SessionOptions, key: str, value: str) -> None:
        options.add_session_config_entry(key, value)

    def session_options__register_custom_ops_library(self, options: SessionOptions, path: str) -> None:
        options.register_custom_ops_library(path)

    def run_options__create(self) -> RunOptions:
        return RunOptions()

    def run_options__terminate(self, options: RunOptions) -> bool:
        return options.terminate

    def run_options__set_terminate(self, options: RunOptions, value: bool) -> None:
        options.terminate = value

    def tensor__create(self, memory: np.ndarray, shape: Sequence[int], element_type: int | None = None) -> OrtValue:
        return OrtValue.ortvalue_from_numpy(memory.reshape(shape))

    def tensor__allocate(self, shape: Sequence[int], element_type: int) -> OrtValue:
        return OrtValue.ortvalue_from_shape_and_type(shape, numpy_dtype(NAMES[element_type]))

    def tensor__data(self, tensor: OrtValue) -> np.ndarray:
        return tensor.numpy().ravel()

    def tensor__mutable_data(self, tensor: OrtValue, write: np.ndarray | None = None) -> np.ndarray:
        if write is not None:
            tensor.update_inplace(write.reshape(tensor.shape()))
        return tensor.numpy().ravel()

    def tensor__type_and_shape(self, tensor: OrtValue) -> OrtValue:
        return tensor

    def tensor__is_tensor(self, tensor: OrtValue) -> bool:
        return tensor.is_tensor()

    def type_and_shape__element_type(self, info: OrtValue) -> int:
        return info.element_type()

    def type_and_shape__shape(self, info: OrtValue) -> list[int]:
        return info.shape()

    # ---- checkpoints

    def checkpoint_state__load(self, path: str) -> CheckpointState:
        return CheckpointState.load_checkpoint(path)

    def checkpoint_state__load_from_buffer(self, data: bytes) -> CheckpointState:
        return CheckpointState.load_checkpoint_from_buffer(data)

    def checkpoint_state__save(self, state: CheckpointState, path: str, include_optimizer_state: bool) -> None:
        CheckpointState.save_checkpoint(state, path, include_optimizer_state)

    def checkpoint_state__save_to_buffer(self, state: CheckpointState, include_optimizer_state: bool) -> bytes:
        return CheckpointState.save_checkpoint_to_buffer(state, include_optimizer_state)

    def checkpoint_state__properties(self, state: CheckpointState) -> Properties:
        return state.properties

    def checkpoint_state__parameters(self, state: CheckpointState) -> Parameters:
        return state.parameters

    def checkpoint_state__set_property(self, state: CheckpointState, name: str, value: int | float | str) -> None:
        state.properties[name] = value

    def checkpoint_state__get_property(self, state: CheckpointState, name: str, type: str | None = None) -> int | float | str:
        return state.properties[name]

    def checkpoint_state__property_names(self, state: CheckpointState) -> list[str]:
        return [name for name, _ in state.properties]

    def checkpoint_state__parameter_names(self, state: CheckpointState) -> list[str]:
        return state.parameters.names()

    def _parameter(self, state: CheckpointState, name: str) -> Parameter:
        return state.parameters[name]

    def checkpoint_state__get_parameter(self, state: CheckpointState, name: str) -> np.ndarray:
        return self._parameter(state, name).data.copy()

    def checkpoint_state__set_parameter(self, state: CheckpointState, name: str, value: np.ndarray) -> None:
        state.parameters[name] = value

    def checkpoint_state__parameter_type_and_shape(self, state: CheckpointState, name: str) -> OrtValue:
        return OrtValue.ortvalue_from_numpy(self._parameter(state, name).data)

    def checkpoint_state__gradient(self, state: CheckpointState, name: str) -> np.ndarray:
        gradient = self._parameter(state, name).grad
        if gradient is None:
            raise InvalidStateError(f"expected a parameter with a gradient, {name!r} has None")
        return gradient.copy()

    def checkpoint_state__requires_grad(self, state: CheckpointState, name: str) -> bool:
        return self._parameter(state, name).requires_grad

    # ---- sessions

    def training_session__create(self, state: CheckpointState, train_model: Any, eval_model: Any = None, optimizer_model: Any = None,
                                 options: SessionOptions | None = None, environment: object = None, device: str = "cpu") -> Session:
        module = Module(train_model, state, eval_model, device, options)
        return Session(module, None if optimizer_model is None else Optimizer(optimizer_model, module))

    def training_session__create_from_buffers(self, state: CheckpointState, train_model: bytes, eval_model: bytes | None = None,
                                              optimizer_model: bytes | None = None, options: SessionOptions | None = None,
                                              environment: object = None) -> Session:
        return self.training_session__create(state, train_model, eval_model, optimizer_model, options)

    def training_session__load_optimizer(self, session: Session, optimizer_model: str) -> Session:
        return Session(session.module, Optimizer(optimizer_model, session.module))

    def training_session__train_step(self, session: Session, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        return arrays(session.module.train()(*inputs))

    def training_session__eval_step(self, session: Session, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        return arrays(session.module.eval()(*inputs))

    def training_session__set_training_mode(self, session: Session, mode: bool) -> bool:
        assert session.module.train(mode) is session.module
        return session.module.training

    def training_session__set_evaluation_mode(self, session: Session) -> bool:
        assert session.module.eval() is session.module
        return session.module.training

    def training_session__optimizer_step(self, session: Session) -> None:
        session.optimizer.step()

    def training_session__lazy_reset_grad(self, session: Session) -> None:
        session.module.lazy_reset_grad()

    def training_session__set_learning_rate(self, session: Session, learning_rate: float) -> None:
        session.optimizer.set_learning_rate(learning_rate)

    def training_session__get_learning_rate(self, session: Session) -> float:
        return session.optimizer.get_learning_rate()

    def training_session__register_linear_lr_scheduler(self, session: Session, warmup_step_count: int, total_step_count: int, initial_lr: float) -> None:
        session.scheduler = LinearLRScheduler(session.optimizer, warmup_step_count, total_step_count, initial_lr)

    def training_session__scheduler_step(self, session: Session) -> None:
        session.scheduler.step()

    def training_session__input_names(self, session: Session, training: bool) -> list[str]:
        return session.module.train(training).input_names()

    def training_session__output_names(self, session: Session, training: bool) -> list[str]:
        return session.module.train(training).output_names()

    def training_session__parameters_size(self, session: Session, trainable_only: bool) -> int:
        return session.module.get_parameters_size(trainable_only)

    def training_session__to_buffer(self, session: Session, trainable_only: bool) -> np.ndarray:
        return session.module.get_contiguous_parameters(trainable_only).numpy()

    def training_session__from_buffer(self, session: Session, buffer: np.ndarray, trainable_only: bool) -> None:
        session.module.copy_buffer_to_parameters(buffer, trainable_only)

    def training_session__gradient_buffers(self, session: Session) -> list[FlatBuffer]:
        return session.module.gradient_buffers()

    def training_session__parameter_buffers(self, session: Session) -> list[FlatBuffer]:
        return session.module.parameter_buffers()

    def training_session__moment_names(self, session: Session) -> list[str]:
        return session.optimizer.moment_names()

    def training_session__moment_buffers(self, session: Session, name: str) -> list[FlatBuffer]:
        return session.optimizer.moment_buffers(name)

    def training_session__running_statistics_buffers(self, session: Session) -> list[FlatBuffer]:
        return session.module.running_statistics_buffers()

    def training_session__freeze(self, session: Session, names: Sequence[str]) -> None:
        session.module.freeze(*names)

    def training_session__unfreeze(self, session: Session, names: Sequence[str]) -> None:
        session.module.unfreeze(*names)

    def training_session__export_model_for_inferencing(self, session: Session, path: str, output_names: Sequence[str]) -> None:
        session.module.export_model_for_inferencing(path, output_names)

    def training_session__on_gradients_ready(self, session: Session, factor: float | None, bucket_bytes: int) -> None:
        scale = scaled_by(factor)
        session.module.on_gradients_ready(None if scale is None else lambda bucket: scale(bucket.array), bucket_bytes)

    # ---- flat buffers

    def flat_buffer__value(self, buffer: FlatBuffer, write: np.ndarray | None = None) -> np.ndarray:
        if write is not None:
            buffer.array[:] = write
        return buffer.array.copy()

    def flat_buffer__parameter_names(self, buffer: FlatBuffer) -> list[str]:
        return list(buffer.offsets)

    def flat_buffer__offset(self, buffer: FlatBuffer, name: str) -> int:
        return buffer.offset(name)

    def flat_buffer__view(self, buffer: FlatBuffer, name: str, write: np.ndarray | None = None) -> np.ndarray:
        view = buffer.view(name)
        if write is not None:
            view[...] = write
        return view.copy()

    # ---- functions

    def training__set_seed(self, seed: int) -> None:
        ortrain.set_seed(seed)

    def training__generate_artifacts(self, model: str, directory: str) -> None:
        from ortrain.artifacts import LossType, OptimType, generate_artifacts

        try:
            generate_artifacts(model, loss=LossType.CrossEntropyLoss, optimizer=OptimType.AdamW, artifact_directory=directory)
        except MissingPackageError as error:                    # a device that trains from artifacts only
            raise NotOffered from error


DRIVER = PythonDriver
