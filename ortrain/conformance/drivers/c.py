"""The driver of the C facade."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ortrain.capi import (
    Box,
    OrtAllocator,
    OrtApi,
    OrtCheckpointState,
    OrtEnv,
    OrtErrorCode,
    OrtFlatBuffer,
    OrtGetApiBase,
    OrtGetTrainingExtensions,
    OrtMemoryInfo,
    OrtPropertyType,
    OrtRunOptions,
    OrtSessionOptions,
    OrtStatus,
    OrtTensorTypeAndShapeInfo,
    OrtTrainingApi,
    OrtTrainingExtensions,
    OrtTrainingSession,
    OrtValue,
)
from ortrain.conformance.drivers.base import WARNING, Driver, Failure, failure_of, scaled_by
from ortrain.errors import OrtrainError, UseAfterRelease
from ortrain.runtime.values import OrtValue as CoreValue

VERSION, EXTENSIONS_VERSION = 19, 1


def tables() -> tuple[OrtApi, OrtTrainingApi, OrtTrainingExtensions]:
    """Return the function tables, in the way a C program gets them."""
    api = OrtGetApiBase().GetApi(VERSION)
    assert api is not None
    training = api.GetTrainingApi(VERSION)
    assert training is not None
    extensions = OrtGetTrainingExtensions(EXTENSIONS_VERSION)
    assert extensions is not None
    return api, training, extensions


ORT, TRAINING, EXTENSIONS = tables()


def checked(status: OrtStatus | None) -> None:
    """Release the status of a failed call and raise it as a Failure; do nothing for success."""
    if status is None:
        return
    code, message, name = ORT.GetErrorCode(status), ORT.GetErrorMessage(status), status.error_name
    ORT.ReleaseStatus(status)
    raise Failure(name, int(code), message, f"returns OrtStatus {OrtErrorCode(code).name}: {message}")


def out(function: Callable[..., OrtStatus | None], *arguments: Any) -> Any:
    """Call a function whose last parameter is an out-parameter, and return its value. Raises Failure."""
    box = Box()
    checked(function(*arguments, box))
    return box.value


def default_allocator() -> OrtAllocator:
    """Return the default allocator."""
    allocator: OrtAllocator = out(ORT.GetAllocatorWithDefaultOptions)
    return allocator


def string(function: Callable[..., OrtStatus | None], *arguments: Any) -> str:
    """Return a copy of the string that a function allocates, and free the string."""
    allocator = default_allocator()
    found = out(function, *arguments, allocator)
    copy = str(found)
    checked(ORT.AllocatorFree(allocator, found))
    return copy


def buffers(function: Callable[..., OrtStatus | None], *arguments: Any) -> list[OrtFlatBuffer]:
    """Return the flat buffers that a function returns in an array, and free the array."""
    allocator, array, length = default_allocator(), Box(), Box()
    checked(function(*arguments, allocator, array, length))
    found = list(array.value[: length.value])
    checked(ORT.AllocatorFree(allocator, array.value))
    return found


def ort_value(array: np.ndarray) -> OrtValue:
    """Return an OrtValue over the memory of an array."""
    info = out(ORT.CreateCpuMemoryInfo, 0, 0)
    value: OrtValue = out(ORT.CreateTensorWithDataAsOrtValue, info, array, array.nbytes, array.shape, array.ndim, CoreValue(array).element_type())
    ORT.ReleaseMemoryInfo(info)
    return value


def array_of(value: OrtValue) -> np.ndarray:
    """Return a copy of the tensor of an OrtValue, and release the value."""
    info = out(ORT.GetTensorTypeAndShape, value)
    rank = out(ORT.GetDimensionsCount, info)
    sizes = Box()
    checked(ORT.GetDimensions(info, sizes, rank))
    copy: np.ndarray = out(ORT.GetTensorMutableData, value).reshape(sizes.value).copy()
    ORT.ReleaseTensorTypeAndShapeInfo(info)
    ORT.ReleaseValue(value)
    return copy


def written(value: OrtValue, write: np.ndarray | None) -> np.ndarray:
    """Write into the memory of an OrtValue, if there is something to write; return a copy of its tensor, and release it."""
    if write is not None:
        out(ORT.GetTensorMutableData, value)[:] = write.reshape(-1)
    return array_of(value)


def scale_bucket(scale: Callable[[np.ndarray], None], bucket: OrtFlatBuffer) -> None:
    """Change the gradients in a bucket, and release it: a function for SetGradientsReadyFunction."""
    value = out(EXTENSIONS.FlatBufferGetValue, bucket)
    scale(out(ORT.GetTensorMutableData, value))
    ORT.ReleaseValue(value)
    EXTENSIONS.ReleaseFlatBuffer(bucket)


class CDriver(Driver):
    """Calls ortrain.capi."""

    language = "c"
    shown = r"(returns OrtStatus ORT_\w+|is undefined in C; raises UseAfterRelease): .+"

    def guarded(self, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except UseAfterRelease as error:
            raise failure_of(error, f"is undefined in C; raises UseAfterRelease: {error}") from error
        except OrtrainError as error:
            raise failure_of(error, f"raises {type(error).__name__}: {error}") from error

    # ---- tables, statuses, allocator

    def api_base__get(self) -> bool:
        return OrtGetApiBase() is not None

    def api_base__api(self, version: int) -> bool:
        return OrtGetApiBase().GetApi(version) is not None

    def api_base__version(self) -> bool:
        return OrtGetApiBase().GetVersionString() != ""

    def api_base__training_extensions(self, version: int) -> bool:
        return OrtGetTrainingExtensions(version) is not None

    def api__training_api(self, version: int) -> bool:
        return ORT.GetTrainingApi(version) is not None

    def status__create(self, code: int, message: str) -> OrtStatus:
        return ORT.CreateStatus(OrtErrorCode(code), message)

    def status__get_error_code(self, status: OrtStatus) -> int:
        return ORT.GetErrorCode(status)

    def status__get_error_message(self, status: OrtStatus) -> str:
        return ORT.GetErrorMessage(status)

    def status__release(self, status: OrtStatus) -> None:
        ORT.ReleaseStatus(status)

    def allocator__create_memory_info(self, allocator_type: int, memory_type: int) -> Any:
        return out(ORT.CreateCpuMemoryInfo, allocator_type, memory_type)

    def allocator__release_memory_info(self, info: OrtMemoryInfo) -> None:
        ORT.ReleaseMemoryInfo(info)

    def allocator__get_default(self) -> OrtAllocator:
        return default_allocator()

    def allocator__allocate(self, allocator: OrtAllocator, size: int) -> Any:
        return out(ORT.AllocatorAlloc, allocator, size)

    def allocator__free(self, allocator: OrtAllocator, memory: Any) -> None:
        checked(ORT.AllocatorFree(allocator, memory))

    # ---- options, tensors

    def environment__create(self, logging_level: int, identifier: str = "ortrain") -> Any:
        return out(ORT.CreateEnv, logging_level, identifier)

    def environment__release(self, environment: OrtEnv) -> None:
        ORT.ReleaseEnv(environment)

    def session_options__create(self) -> Any:
        return out(ORT.CreateSessionOptions)

    def session_options__set_intra_op_num_threads(self, options: OrtSessionOptions, threads: int) -> None:
        checked(ORT.SetIntraOpNumThreads(options, threads))

    def session_options__set_log_severity_level(self, options: OrtSessionOptions, level: int) -> None:
        checked(ORT.SetSessionLogSeverityLevel(options, level))

    def session_options__add_config_entry(self, options: OrtSessionOptions, key: str, value: str) -> None:
        checked(ORT.AddSessionConfigEntry(options, key, value))

    def session_options__append_execution_provider(self, options: OrtSessionOptions, provider: str) -> None:
        checked(ORT.SessionOptionsAppendExecutionProvider(options, provider, [], [], 0))

    def session_options__register_custom_ops_library(self, options: OrtSessionOptions, path: str) -> None:
        checked(ORT.RegisterCustomOpsLibrary_V2(options, path))

    def session_options__release(self, options: OrtSessionOptions) -> None:
        ORT.ReleaseSessionOptions(options)

    def run_options__create(self) -> Any:
        return out(ORT.CreateRunOptions)

    def run_options__set_terminate(self, options: OrtRunOptions, value: bool) -> None:
        checked(ORT.RunOptionsSetTerminate(options) if value else ORT.RunOptionsUnsetTerminate(options))

    def run_options__release(self, options: OrtRunOptions) -> None:
        ORT.ReleaseRunOptions(options)

    def tensor__create(self, memory: np.ndarray, shape: Sequence[int], element_type: int | None = None) -> Any:
        info = out(ORT.CreateCpuMemoryInfo, 0, 0)
        return out(ORT.CreateTensorWithDataAsOrtValue, info, memory, memory.nbytes, shape, len(shape),
                   CoreValue(memory).element_type() if element_type is None else element_type)

    def tensor__allocate(self, shape: Sequence[int], element_type: int) -> Any:
        return out(ORT.CreateTensorAsOrtValue, default_allocator(), shape, len(shape), element_type)

    def tensor__mutable_data(self, tensor: OrtValue, write: np.ndarray | None = None) -> Any:
        data = out(ORT.GetTensorMutableData, tensor)
        if write is not None:
            data[:] = write
        return data

    def tensor__type_and_shape(self, tensor: OrtValue) -> Any:
        return out(ORT.GetTensorTypeAndShape, tensor)

    def tensor__is_tensor(self, tensor: OrtValue) -> Any:
        return out(ORT.IsTensor, tensor)

    def tensor__fill_strings(self, tensor: OrtValue, strings: Sequence[str]) -> None:
        checked(ORT.FillStringTensor(tensor, strings, len(strings)))

    def tensor__release(self, tensor: OrtValue) -> None:
        ORT.ReleaseValue(tensor)

    def type_and_shape__element_type(self, info: OrtTensorTypeAndShapeInfo) -> Any:
        return out(ORT.GetTensorElementType, info)

    def type_and_shape__shape(self, info: OrtTensorTypeAndShapeInfo) -> Any:
        sizes = Box()
        checked(ORT.GetDimensions(info, sizes, out(ORT.GetDimensionsCount, info)))
        return sizes.value

    def type_and_shape__dimensions_count(self, info: OrtTensorTypeAndShapeInfo) -> Any:
        return out(ORT.GetDimensionsCount, info)

    def type_and_shape__element_count(self, info: OrtTensorTypeAndShapeInfo) -> Any:
        return out(ORT.GetTensorShapeElementCount, info)

    def type_and_shape__release(self, info: OrtTensorTypeAndShapeInfo) -> None:
        ORT.ReleaseTensorTypeAndShapeInfo(info)

    # ---- checkpoints

    def checkpoint_state__load(self, path: str) -> Any:
        return out(TRAINING.LoadCheckpoint, path)

    def checkpoint_state__load_from_buffer(self, data: bytes) -> Any:
        return out(TRAINING.LoadCheckpointFromBuffer, data, len(data))

    def checkpoint_state__save(self, state: OrtCheckpointState, path: str, include_optimizer_state: bool) -> None:
        checked(TRAINING.SaveCheckpoint(state, path, include_optimizer_state))

    def checkpoint_state__save_to_buffer(self, state: OrtCheckpointState, include_optimizer_state: bool) -> bytes:
        allocator, buffer, length = default_allocator(), Box(), Box()
        checked(TRAINING.SaveCheckpointToBuffer(state, include_optimizer_state, allocator, buffer, length))
        data = bytes(buffer.value[: length.value])
        checked(ORT.AllocatorFree(allocator, buffer.value))
        return data

    def checkpoint_state__set_property(self, state: OrtCheckpointState, name: str, value: Any) -> None:
        kind = {float: OrtPropertyType.OrtFloatProperty, str: OrtPropertyType.OrtStringProperty}.get(type(value), OrtPropertyType.OrtIntProperty)
        checked(TRAINING.AddProperty(state, name, kind, value))

    def checkpoint_state__get_property(self, state: OrtCheckpointState, name: str, type: str | None = None) -> int | float | str:
        allocator, kind, found = default_allocator(), Box(), Box()
        checked(TRAINING.GetProperty(state, name, allocator, kind, found))
        copy: int | float | str = (int, float, str)[kind.value](found.value)
        checked(ORT.AllocatorFree(allocator, found.value))
        return copy

    def checkpoint_state__parameter_count(self, state: OrtCheckpointState) -> Any:
        return out(TRAINING.GetParameterCount, state)

    def checkpoint_state__parameter_name(self, state: OrtCheckpointState, index: int) -> str:
        return string(TRAINING.GetParameterName, state, index)

    def checkpoint_state__parameter_names(self, state: OrtCheckpointState) -> list[str]:
        return [string(TRAINING.GetParameterName, state, index) for index in range(out(TRAINING.GetParameterCount, state))]

    def checkpoint_state__get_parameter(self, state: OrtCheckpointState, name: str) -> np.ndarray:
        return array_of(out(TRAINING.GetParameter, state, name, default_allocator()))

    def checkpoint_state__set_parameter(self, state: OrtCheckpointState, name: str, value: np.ndarray) -> None:
        checked(TRAINING.UpdateParameter(state, name, ort_value(value)))

    def checkpoint_state__parameter_type_and_shape(self, state: OrtCheckpointState, name: str) -> Any:
        return out(TRAINING.GetParameterTypeAndShape, state, name)

    def checkpoint_state__gradient(self, state: OrtCheckpointState, name: str) -> np.ndarray:
        return array_of(out(TRAINING.GetParameterGradient, state, name, default_allocator()))

    def checkpoint_state__requires_grad(self, state: OrtCheckpointState, name: str) -> Any:
        return out(TRAINING.ParameterRequiresGrad, state, name)

    def checkpoint_state__release(self, state: OrtCheckpointState) -> None:
        TRAINING.ReleaseCheckpointState(state)

    # ---- sessions

    def training_session__create(self, state: OrtCheckpointState, train_model: str, eval_model: str | None = None, optimizer_model: str | None = None,
                                 options: OrtSessionOptions | None = None, environment: OrtEnv | None = None) -> Any:
        return out(TRAINING.CreateTrainingSession, environment or self.environment__create(WARNING), options, state, train_model, eval_model,
                   optimizer_model)

    def training_session__create_from_buffers(self, state: OrtCheckpointState, train_model: bytes, eval_model: bytes | None = None,
                                              optimizer_model: bytes | None = None, options: OrtSessionOptions | None = None,
                                              environment: OrtEnv | None = None) -> Any:
        return out(TRAINING.CreateTrainingSessionFromBuffer, environment or self.environment__create(WARNING), options, state,
                   train_model, len(train_model), eval_model, len(eval_model or b""), optimizer_model, len(optimizer_model or b""))

    def _step(self, function: Callable[..., OrtStatus | None], count: int, session: OrtTrainingSession, inputs: Sequence[np.ndarray],
              outputs: Sequence[np.ndarray] | None, run_options: OrtRunOptions | None) -> list[np.ndarray]:
        given = [ort_value(array) for array in inputs]
        slots: list[OrtValue | None] = [None] * count if outputs is None else [ort_value(array) for array in outputs]
        try:
            checked(function(session, run_options, len(given), given, len(slots), slots))
        finally:
            for value in given:
                ORT.ReleaseValue(value)
        return [array_of(slot) for slot in slots if slot is not None]

    def training_session__train_step(self, session: OrtTrainingSession, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray] | None = None,
                                     run_options: OrtRunOptions | None = None) -> list[np.ndarray]:
        count = out(TRAINING.TrainingSessionGetTrainingModelOutputCount, session)
        return self._step(TRAINING.TrainStep, count, session, inputs, outputs, run_options)

    def training_session__eval_step(self, session: OrtTrainingSession, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray] | None = None,
                                    run_options: OrtRunOptions | None = None) -> list[np.ndarray]:
        count = out(TRAINING.TrainingSessionGetEvalModelOutputCount, session)
        return self._step(TRAINING.EvalStep, count, session, inputs, outputs, run_options)

    def training_session__optimizer_step(self, session: OrtTrainingSession, run_options: OrtRunOptions | None = None) -> None:
        checked(TRAINING.OptimizerStep(session, run_options))

    def training_session__lazy_reset_grad(self, session: OrtTrainingSession) -> None:
        checked(TRAINING.LazyResetGrad(session))

    def training_session__set_learning_rate(self, session: OrtTrainingSession, learning_rate: float) -> None:
        checked(TRAINING.SetLearningRate(session, learning_rate))

    def training_session__get_learning_rate(self, session: OrtTrainingSession) -> Any:
        return out(TRAINING.GetLearningRate, session)

    def training_session__register_linear_lr_scheduler(self, session: OrtTrainingSession, warmup_step_count: int, total_step_count: int,
                                                       initial_lr: float) -> None:
        checked(TRAINING.RegisterLinearLRScheduler(session, warmup_step_count, total_step_count, initial_lr))

    def training_session__scheduler_step(self, session: OrtTrainingSession) -> None:
        checked(TRAINING.SchedulerStep(session))

    def training_session__input_count(self, session: OrtTrainingSession, training: bool) -> Any:
        return out(TRAINING.TrainingSessionGetTrainingModelInputCount if training else TRAINING.TrainingSessionGetEvalModelInputCount, session)

    def training_session__input_name(self, session: OrtTrainingSession, training: bool, index: int) -> str:
        return string(TRAINING.TrainingSessionGetTrainingModelInputName if training else TRAINING.TrainingSessionGetEvalModelInputName, session, index)

    def training_session__output_count(self, session: OrtTrainingSession, training: bool) -> Any:
        return out(TRAINING.TrainingSessionGetTrainingModelOutputCount if training else TRAINING.TrainingSessionGetEvalModelOutputCount, session)

    def training_session__output_name(self, session: OrtTrainingSession, training: bool, index: int) -> str:
        return string(TRAINING.TrainingSessionGetTrainingModelOutputName if training else TRAINING.TrainingSessionGetEvalModelOutputName, session, index)

    def training_session__input_names(self, session: OrtTrainingSession, training: bool) -> list[str]:
        count = self.training_session__input_count(session, training)
        return [self.training_session__input_name(session, training, index) for index in range(count)]

    def training_session__output_names(self, session: OrtTrainingSession, training: bool) -> list[str]:
        count = self.training_session__output_count(session, training)
        return [self.training_session__output_name(session, training, index) for index in range(count)]

    def training_session__parameters_size(self, session: OrtTrainingSession, trainable_only: bool) -> Any:
        box = Box()
        checked(TRAINING.GetParametersSize(session, box, trainable_only))
        return box.value

    def training_session__copy_to_buffer(self, session: OrtTrainingSession, buffer: np.ndarray, trainable_only: bool) -> np.ndarray:
        value = ort_value(buffer)
        checked(TRAINING.CopyParametersToBuffer(session, value, trainable_only))
        ORT.ReleaseValue(value)
        return buffer

    def training_session__to_buffer(self, session: OrtTrainingSession, trainable_only: bool) -> np.ndarray:
        size = self.training_session__parameters_size(session, trainable_only)
        return self.training_session__copy_to_buffer(session, np.empty(size, np.float32), trainable_only)

    def training_session__from_buffer(self, session: OrtTrainingSession, buffer: np.ndarray, trainable_only: bool) -> None:
        checked(TRAINING.CopyBufferToParameters(session, ort_value(buffer), trainable_only))

    def training_session__gradient_buffers(self, session: OrtTrainingSession) -> list[OrtFlatBuffer]:
        return buffers(EXTENSIONS.GetGradientBuffers, session)

    def training_session__parameter_buffers(self, session: OrtTrainingSession) -> list[OrtFlatBuffer]:
        return buffers(EXTENSIONS.GetParameterBuffers, session)

    def training_session__moment_count(self, session: OrtTrainingSession) -> Any:
        return out(EXTENSIONS.GetMomentCount, session)

    def training_session__moment_name(self, session: OrtTrainingSession, index: int) -> str:
        return string(EXTENSIONS.GetMomentName, session, index)

    def training_session__moment_names(self, session: OrtTrainingSession) -> list[str]:
        return [string(EXTENSIONS.GetMomentName, session, index) for index in range(out(EXTENSIONS.GetMomentCount, session))]

    def training_session__moment_buffers(self, session: OrtTrainingSession, name: str) -> list[OrtFlatBuffer]:
        return buffers(EXTENSIONS.GetMomentBuffers, session, name)

    def training_session__running_statistics_buffers(self, session: OrtTrainingSession) -> list[OrtFlatBuffer]:
        return buffers(EXTENSIONS.GetRunningStatisticsBuffers, session)

    def training_session__freeze(self, session: OrtTrainingSession, names: Sequence[str]) -> None:
        checked(TRAINING.FreezeParameters(session, len(names), names))

    def training_session__unfreeze(self, session: OrtTrainingSession, names: Sequence[str]) -> None:
        checked(TRAINING.UnfreezeParameters(session, len(names), names))

    def training_session__export_model_for_inferencing(self, session: OrtTrainingSession, path: str, output_names: Sequence[str]) -> None:
        checked(TRAINING.ExportModelForInferencing(session, path, len(output_names), output_names))

    def training_session__release(self, session: OrtTrainingSession) -> None:
        TRAINING.ReleaseTrainingSession(session)

    def training_session__on_gradients_ready(self, session: OrtTrainingSession, factor: float | None, bucket_bytes: int) -> None:
        scale = scaled_by(factor)
        checked(EXTENSIONS.SetGradientsReadyFunction(session, None if scale is None else scale_bucket, scale, bucket_bytes))

    # ---- flat buffers

    def flat_buffer__value(self, buffer: OrtFlatBuffer, write: np.ndarray | None = None) -> np.ndarray:
        return written(out(EXTENSIONS.FlatBufferGetValue, buffer), write)

    def flat_buffer__parameter_count(self, buffer: OrtFlatBuffer) -> Any:
        return out(EXTENSIONS.FlatBufferGetParameterCount, buffer)

    def flat_buffer__parameter_name(self, buffer: OrtFlatBuffer, index: int) -> str:
        return string(EXTENSIONS.FlatBufferGetParameterName, buffer, index)

    def flat_buffer__parameter_names(self, buffer: OrtFlatBuffer) -> list[str]:
        return [string(EXTENSIONS.FlatBufferGetParameterName, buffer, index) for index in range(out(EXTENSIONS.FlatBufferGetParameterCount, buffer))]

    def flat_buffer__offset(self, buffer: OrtFlatBuffer, name: str) -> Any:
        return out(EXTENSIONS.FlatBufferGetOffset, buffer, name)

    def flat_buffer__view(self, buffer: OrtFlatBuffer, name: str, write: np.ndarray | None = None) -> np.ndarray:
        return written(out(EXTENSIONS.FlatBufferGetView, buffer, name), write)

    def flat_buffer__release(self, buffer: OrtFlatBuffer) -> None:
        EXTENSIONS.ReleaseFlatBuffer(buffer)

    # ---- functions

    def training__set_seed(self, seed: int) -> None:
        checked(TRAINING.SetSeed(seed))


DRIVER = CDriver
