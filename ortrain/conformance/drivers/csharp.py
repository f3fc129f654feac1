"""The driver of the C# facade."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ortrain.conformance.drivers.base import Driver, Failure, scaled_by
from ortrain.csharp import (
    CheckpointState,
    DisposableNamedOnnxValue,
    FixedBufferOnnxValue,
    FlatBuffer,
    OnnxRuntimeException,
    OrtTensorTypeAndShapeInfo,
    OrtValue,
    RunOptions,
    SessionOptions,
    TrainingSession,
    TrainingUtils,
)


def ort_value(array: np.ndarray) -> OrtValue:
    """Return an OrtValue over the memory of an array."""
    return OrtValue.CreateTensorValueFromMemory(array.reshape(-1), array.shape)


def array_of(value: OrtValue) -> np.ndarray:
    """Return a copy of the tensor of an OrtValue."""
    return value.GetTensorDataAsSpan().reshape(value.GetTensorTypeAndShape().Shape).copy()


def fixed(arrays: Sequence[np.ndarray]) -> list[FixedBufferOnnxValue]:
    """Return values pinned over the memory of arrays."""
    return [FixedBufferOnnxValue.CreateFromTensor(array) for array in arrays]


def written(value: OrtValue, write: np.ndarray | None) -> np.ndarray:
    """Write into the memory of an OrtValue, if there is something to write; return a copy of its tensor, and dispose of it."""
    with value:
        if write is not None:
            value.GetTensorMutableDataAsSpan()[:] = write.reshape(-1)
        return array_of(value)


class CSharpDriver(Driver):
    """Calls ortrain.csharp."""

    language = "csharp"
    shown = r"throws OnnxRuntimeException: \[ErrorCode:\w+\] .+"

    def guarded(self, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except OnnxRuntimeException as error:
            message = error.Message.partition("] ")[2]
            raise Failure(error.error_name, int(error.ErrorCode), message, f"throws OnnxRuntimeException: {error.Message}") from error

    # ---- options, tensors

    def session_options__create(self) -> SessionOptions:
        return SessionOptions()

    def session_options__intra_op_num_threads(self, options: SessionOptions) -> int:
        return options.IntraOpNumThreads

    def session_options__set_intra_op_num_threads(self, options: SessionOptions, threads: int) -> None:
        options.IntraOpNumThreads = threads

    def session_options__log_severity_level(self, options: SessionOptions) -> int:
        return options.LogSeverityLevel

    def session_options__set_log_severity_level(self, options: SessionOptions, level: int) -> None:
        options.LogSeverityLevel = level

    def session_options__add_config_entry(self, options: SessionOptions, key: str, value: str) -> None:
        options.AddSessionConfigEntry(key, value)

    def session_options__append_execution_provider(self, options: SessionOptions, provider: str) -> None:
        options.AppendExecutionProvider(provider)

    def session_options__register_custom_ops_library(self, options: SessionOptions, path: str) -> None:
        options.RegisterCustomOpLibrary(path)

    def session_options__release(self, options: SessionOptions) -> None:
        options.Dispose()

    def run_options__create(self) -> RunOptions:
        return RunOptions()

    def run_options__terminate(self, options: RunOptions) -> bool:
        return options.Terminate

    def run_options__set_terminate(self, options: RunOptions, value: bool) -> None:
        options.Terminate = value

    def run_options__release(self, options: RunOptions) -> None:
        options.Dispose()

    def tensor__create(self, memory: np.ndarray, shape: Sequence[int], element_type: int | None = None) -> OrtValue:
        return OrtValue.CreateTensorValueFromMemory(memory, shape)

    def tensor__data(self, tensor: OrtValue) -> np.ndarray:
        return tensor.GetTensorDataAsSpan()

    def tensor__mutable_data(self, tensor: OrtValue, write: np.ndarray | None = None) -> np.ndarray:
        span = tensor.GetTensorMutableDataAsSpan()
        if write is not None:
            span[:] = write
        return span

    def tensor__type_and_shape(self, tensor: OrtValue) -> OrtTensorTypeAndShapeInfo:
        return tensor.GetTensorTypeAndShape()

    def tensor__is_tensor(self, tensor: OrtValue) -> bool:
        return tensor.IsTensor

    def tensor__release(self, tensor: OrtValue) -> None:
        tensor.Dispose()

    def type_and_shape__element_type(self, info: OrtTensorTypeAndShapeInfo) -> int:
        return info.ElementDataType

    def type_and_shape__shape(self, info: OrtTensorTypeAndShapeInfo) -> list[int]:
        return info.Shape

    def type_and_shape__dimensions_count(self, info: OrtTensorTypeAndShapeInfo) -> int:
        return info.DimensionsCount

    def type_and_shape__element_count(self, info: OrtTensorTypeAndShapeInfo) -> int:
        return info.ElementCount

    def pinned_value__create(self, tensor: np.ndarray) -> FixedBufferOnnxValue:
        return FixedBufferOnnxValue.CreateFromTensor(tensor)

    def pinned_value__release(self, value: FixedBufferOnnxValue) -> None:
        value.Dispose()

    def named_value__name(self, value: DisposableNamedOnnxValue) -> str:
        return value.Name

    def named_value__value(self, value: DisposableNamedOnnxValue) -> np.ndarray:
        assert np.array_equal(value.Value, value.AsTensor())
        return value.AsTensor().copy()

    def named_value__release(self, value: DisposableNamedOnnxValue) -> None:
        value.Dispose()

    # ---- checkpoints

    def checkpoint_state__load(self, path: str) -> CheckpointState:
        return CheckpointState.LoadCheckpoint(path)

    def checkpoint_state__load_from_buffer(self, data: bytes) -> CheckpointState:
        return CheckpointState.LoadCheckpointFromBuffer(data)

    def checkpoint_state__save(self, state: CheckpointState, path: str, include_optimizer_state: bool) -> None:
        CheckpointState.SaveCheckpoint(state, path, includeOptimizerState=include_optimizer_state)

    def checkpoint_state__save_to_buffer(self, state: CheckpointState, include_optimizer_state: bool) -> bytes:
        return CheckpointState.SaveCheckpointToBuffer(state, include_optimizer_state)

    def checkpoint_state__set_property(self, state: CheckpointState, name: str, value: int | float | str) -> None:
        state.AddProperty(name, value)

    def checkpoint_state__get_property(self, state: CheckpointState, name: str, type: str | None = None) -> int | float | str:
        return state.GetProperty(name)

    def checkpoint_state__property_names(self, state: CheckpointState) -> list[str]:
        return state.PropertyNames()

    def checkpoint_state__parameter_names(self, state: CheckpointState) -> list[str]:
        return state.ParameterNames()

    def checkpoint_state__get_parameter(self, state: CheckpointState, name: str) -> np.ndarray:
        return array_of(state.GetParameter(name))

    def checkpoint_state__set_parameter(self, state: CheckpointState, name: str, value: np.ndarray) -> None:
        state.UpdateParameter(name, ort_value(value))

    def checkpoint_state__parameter_type_and_shape(self, state: CheckpointState, name: str) -> OrtTensorTypeAndShapeInfo:
        return state.GetParameterTypeAndShape(name)

    def checkpoint_state__gradient(self, state: CheckpointState, name: str) -> np.ndarray:
        return array_of(state.GetGradient(name))

    def checkpoint_state__requires_grad(self, state: CheckpointState, name: str) -> bool:
        return state.RequiresGrad(name)

    def checkpoint_state__release(self, state: CheckpointState) -> None:
        state.Dispose()

    # ---- sessions

    def training_session__create(self, state: CheckpointState, train_model: str, eval_model: str | None = None, optimizer_model: str | None = None,
                                 options: SessionOptions | None = None, environment: object = None) -> TrainingSession:
        if options is not None:
            return TrainingSession(options, state, train_model, eval_model, optimizer_model)
        if eval_model is not None:
            return TrainingSession(state, train_model, eval_model, optimizer_model)
        return TrainingSession(state, trainModelPath=train_model, optimizerModelPath=optimizer_model)

    def training_session__create_from_buffers(self, state: CheckpointState, train_model: bytes, eval_model: bytes | None = None,
                                              optimizer_model: bytes | None = None, options: SessionOptions | None = None,
                                              environment: object = None) -> TrainingSession:
        return TrainingSession(options or SessionOptions(), state, trainModelData=train_model, evalModelData=eval_model, optimizerModelData=optimizer_model)

    def training_session__train_step(self, session: TrainingSession, inputs: Sequence[Any], outputs: Sequence[np.ndarray] | None = None,
                                     run_options: RunOptions | None = None, named: bool = False) -> Any:
        if outputs is not None:
            given = (fixed(inputs), fixed(outputs))
            session.TrainStep(*given) if run_options is None else session.TrainStep(run_options, *given)
            return list(outputs)
        if run_options is not None or named:
            results = session.TrainStep(fixed(inputs)) if run_options is None else session.TrainStep(run_options, fixed(inputs))
            return results[0] if named else [result.AsTensor().copy() for result in results]
        with session.TrainStep([ort_value(array) for array in inputs]) as values:
            return [array_of(value) for value in values]

    def training_session__eval_step(self, session: TrainingSession, inputs: Sequence[Any], outputs: Sequence[np.ndarray] | None = None,
                                    run_options: RunOptions | None = None) -> Any:
        if outputs is not None:
            given = (fixed(inputs), fixed(outputs))
            session.EvalStep(*given) if run_options is None else session.EvalStep(run_options, *given)
            return list(outputs)
        with session.EvalStep([ort_value(array) for array in inputs]) as values:
            return [array_of(value) for value in values]

    def training_session__optimizer_step(self, session: TrainingSession, run_options: RunOptions | None = None) -> None:
        session.OptimizerStep() if run_options is None else session.OptimizerStep(run_options)

    def training_session__lazy_reset_grad(self, session: TrainingSession) -> None:
        session.LazyResetGrad()

    def training_session__set_learning_rate(self, session: TrainingSession, learning_rate: float) -> None:
        session.SetLearningRate(learning_rate)

    def training_session__get_learning_rate(self, session: TrainingSession) -> float:
        return session.GetLearningRate()

    def training_session__register_linear_lr_scheduler(self, session: TrainingSession, warmup_step_count: int, total_step_count: int,
                                                       initial_lr: float) -> None:
        session.RegisterLinearLRScheduler(warmup_step_count, total_step_count, initialLearningRate=initial_lr)

    def training_session__scheduler_step(self, session: TrainingSession) -> None:
        session.SchedulerStep()

    def training_session__input_names(self, session: TrainingSession, training: bool) -> list[str]:
        return session.InputNames(training)

    def training_session__output_names(self, session: TrainingSession, training: bool) -> list[str]:
        return session.OutputNames(training)

    def training_session__to_buffer(self, session: TrainingSession, trainable_only: bool) -> np.ndarray:
        return array_of(session.ToBuffer(trainable_only))

    def training_session__from_buffer(self, session: TrainingSession, buffer: np.ndarray, trainable_only: bool) -> None:
        session.FromBuffer(ort_value(buffer), onlyTrainable=trainable_only)

    def training_session__gradient_buffers(self, session: TrainingSession) -> list[FlatBuffer]:
        return list(session.GradientBuffers())

    def training_session__parameter_buffers(self, session: TrainingSession) -> list[FlatBuffer]:
        return list(session.ParameterBuffers())

    def training_session__moment_names(self, session: TrainingSession) -> list[str]:
        return session.MomentNames()

    def training_session__moment_buffers(self, session: TrainingSession, name: str) -> list[FlatBuffer]:
        return list(session.MomentBuffers(name))

    def training_session__running_statistics_buffers(self, session: TrainingSession) -> list[FlatBuffer]:
        return list(session.RunningStatisticsBuffers())

    def training_session__freeze(self, session: TrainingSession, names: Sequence[str]) -> None:
        session.Freeze(names)

    def training_session__unfreeze(self, session: TrainingSession, names: Sequence[str]) -> None:
        session.Unfreeze(names)

    def training_session__export_model_for_inferencing(self, session: TrainingSession, path: str, output_names: Sequence[str]) -> None:
        session.ExportModelForInferencing(path, output_names)

    def training_session__release(self, session: TrainingSession) -> None:
        session.Dispose()

    def training_session__on_gradients_ready(self, session: TrainingSession, factor: float | None, bucket_bytes: int) -> None:
        scale = scaled_by(factor)
        session.OnGradientsReady(None if scale is None else lambda bucket: scale(bucket.Value.GetTensorMutableDataAsSpan()), bucketBytes=bucket_bytes)

    # ---- flat buffers

    def flat_buffer__value(self, buffer: FlatBuffer, write: np.ndarray | None = None) -> np.ndarray:
        return written(buffer.Value, write)

    def flat_buffer__parameter_names(self, buffer: FlatBuffer) -> list[str]:
        return buffer.ParameterNames()

    def flat_buffer__offset(self, buffer: FlatBuffer, name: str) -> int:
        return buffer.Offset(name)

    def flat_buffer__view(self, buffer: FlatBuffer, name: str, write: np.ndarray | None = None) -> np.ndarray:
        return written(buffer.View(name), write)

    def flat_buffer__release(self, buffer: FlatBuffer) -> None:
        buffer.Dispose()

    # ---- functions

    def training__set_seed(self, seed: int) -> None:
        TrainingUtils.SetSeed(seed)


DRIVER = CSharpDriver
