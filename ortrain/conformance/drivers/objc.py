"""The driver of the Objective-C facade."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ortrain.conformance.drivers.base import WARNING, Driver, Failure, scaled_by
from ortrain.conformance.drivers.swift import apple_type, element_type_of
from ortrain.enums import AppleElementType, ElementType
from ortrain.objc import (
    Box,
    NSError,
    ORTCheckpoint,
    ORTEnv,
    ORTFlatBuffer,
    ORTSessionOptions,
    ORTSetSeed,
    ORTTensorTypeAndShapeInfo,
    ORTTrainingSession,
    ORTValue,
)

NO_RESULT = (None, False, 0, 0.0)
"""The results of failed calls: nil, NO or 0."""


def send(call: Callable[..., Any], *arguments: Any) -> Any:
    """Return the result of a message with an error box. Raises Failure when the box was filled; the result must then be nil, NO or 0."""
    error = Box()
    result = call(*arguments, error)
    if error.value is None:
        return result
    assert isinstance(error.value, NSError) and result in NO_RESULT, f"expected nil, NO or 0 beside an error, got {result!r}"
    shown = {"NoneType": "nil", "bool": "NO"}.get(type(result).__name__, "0")
    failure: NSError = error.value
    raise Failure(failure.error_name, failure.code, failure.localizedDescription,
                  f"returns {shown}, error is NSError(domain: {failure.domain}, code: {failure.code}): {failure.localizedDescription}")


def ort_value(array: np.ndarray) -> ORTValue:
    """Return an ORTValue over the memory of an array."""
    value: ORTValue = send(ORTValue.alloc().initWithTensorData_elementType_shape_error_, array.reshape(-1), element_type_of(array), array.shape)
    return value


def array_of(value: ORTValue) -> np.ndarray:
    """Return a copy of the tensor of an ORTValue."""
    data: np.ndarray = send(value.tensorDataWithError_)
    return data.reshape(send(value.tensorTypeAndShapeInfoWithError_).shape).copy()


def written(value: ORTValue, write: np.ndarray | None) -> np.ndarray:
    """Write into the memory of an ORTValue, if there is something to write; return a copy of its tensor."""
    if write is not None:
        send(value.tensorDataWithError_)[:] = write.reshape(-1)
    return array_of(value)


class ObjectiveCDriver(Driver):
    """Calls ortrain.objc."""

    language = "objc"
    shown = r"returns (nil|NO|0), error is NSError\(domain: onnxruntime, code: \d+\): .+"

    def guarded(self, call: Callable[[], Any]) -> Any:
        return call()

    # ---- options, tensors

    def environment__create(self, logging_level: int, identifier: str = "") -> ORTEnv:
        environment: ORTEnv = send(ORTEnv.alloc().initWithLoggingLevel_error_, logging_level)
        return environment

    def session_options__create(self) -> ORTSessionOptions:
        options: ORTSessionOptions = send(ORTSessionOptions.alloc().initWithError_)
        return options

    def session_options__set_intra_op_num_threads(self, options: ORTSessionOptions, threads: int) -> None:
        send(options.setIntraOpNumThreads_error_, threads)

    def session_options__set_log_severity_level(self, options: ORTSessionOptions, level: int) -> None:
        send(options.setLogSeverityLevel_error_, level)

    def session_options__add_config_entry(self, options: ORTSessionOptions, key: str, value: str) -> None:
        send(options.addConfigEntryWithKey_value_error_, key, value)

    def session_options__append_execution_provider(self, options: ORTSessionOptions, provider: str) -> None:
        send(options.appendExecutionProvider_providerOptions_error_, provider, {})

    def session_options__register_custom_ops_library(self, options: ORTSessionOptions, path: str) -> None:
        send(options.registerCustomOpsWithLibraryPath_error_, path)

    def tensor__create(self, memory: np.ndarray, shape: Sequence[int], element_type: int | None = None) -> Any:
        wanted = element_type_of(memory) if element_type is None else apple_type(element_type)
        return send(ORTValue.alloc().initWithTensorData_elementType_shape_error_, memory, wanted, shape)

    def tensor__allocate(self, shape: Sequence[int], element_type: int) -> Any:
        return send(ORTValue.alloc().initWithElementType_shape_error_, apple_type(element_type), shape)

    def tensor__mutable_data(self, tensor: ORTValue, write: np.ndarray | None = None) -> Any:
        data = send(tensor.tensorDataWithError_)
        if write is not None:
            data[:] = write
        return data

    def tensor__type_and_shape(self, tensor: ORTValue) -> Any:
        return send(tensor.tensorTypeAndShapeInfoWithError_)

    def type_and_shape__element_type(self, info: ORTTensorTypeAndShapeInfo) -> int:
        return ElementType[AppleElementType(info.elementType).name]

    def type_and_shape__shape(self, info: ORTTensorTypeAndShapeInfo) -> list[int]:
        return info.shape

    # ---- checkpoints

    def checkpoint_state__load(self, path: str) -> Any:
        return send(ORTCheckpoint.alloc().initWithPath_error_, path)

    def checkpoint_state__load_from_buffer(self, data: bytes) -> Any:
        return send(ORTCheckpoint.alloc().initWithBuffer_error_, data)

    def checkpoint_state__save(self, state: ORTCheckpoint, path: str, include_optimizer_state: bool) -> None:
        send(state.saveCheckpointToPath_withOptimizerState_error_, path, include_optimizer_state)

    def checkpoint_state__save_to_buffer(self, state: ORTCheckpoint, include_optimizer_state: bool) -> Any:
        return send(state.toBufferWithOptimizerState_error_, include_optimizer_state)

    def checkpoint_state__set_property(self, state: ORTCheckpoint, name: str, value: Any) -> None:
        if isinstance(value, float):
            send(state.addFloatPropertyWithName_value_error_, name, value)
        elif isinstance(value, str):
            send(state.addStringPropertyWithName_value_error_, name, value)
        else:
            send(state.addIntPropertyWithName_value_error_, name, value)

    def checkpoint_state__get_property(self, state: ORTCheckpoint, name: str, type: str) -> Any:
        getters: dict[str, Callable[..., Any]] = {
            "int": state.getIntPropertyWithName_error_, "float": state.getFloatPropertyWithName_error_, "str": state.getStringPropertyWithName_error_}
        return send(getters[type], name)

    def checkpoint_state__property_names(self, state: ORTCheckpoint) -> Any:
        return send(state.propertyNamesWithError_)

    def checkpoint_state__parameter_names(self, state: ORTCheckpoint) -> Any:
        return send(state.parameterNamesWithError_)

    def checkpoint_state__get_parameter(self, state: ORTCheckpoint, name: str) -> np.ndarray:
        return array_of(send(state.getParameterWithName_error_, name))

    def checkpoint_state__set_parameter(self, state: ORTCheckpoint, name: str, value: np.ndarray) -> None:
        send(state.updateParameterWithName_value_error_, name, ort_value(value))

    def checkpoint_state__parameter_type_and_shape(self, state: ORTCheckpoint, name: str) -> Any:
        return send(state.getParameterTypeAndShapeInfoWithName_error_, name)

    def checkpoint_state__gradient(self, state: ORTCheckpoint, name: str) -> np.ndarray:
        return array_of(send(state.getGradientWithName_error_, name))

    def checkpoint_state__requires_grad(self, state: ORTCheckpoint, name: str) -> Any:
        return send(state.requiresGradWithName_error_, name)

    # ---- sessions

    def training_session__create(self, state: ORTCheckpoint, train_model: str, eval_model: str | None = None, optimizer_model: str | None = None,
                                 options: ORTSessionOptions | None = None, environment: ORTEnv | None = None) -> Any:
        init = ORTTrainingSession.alloc().initWithEnv_sessionOptions_checkpoint_trainModelPath_evalModelPath_optimizerModelPath_error_
        return send(init, environment or self.environment__create(WARNING), options or self.session_options__create(), state, train_model, eval_model,
                    optimizer_model)

    def training_session__create_from_buffers(self, state: ORTCheckpoint, train_model: bytes, eval_model: bytes | None = None,
                                              optimizer_model: bytes | None = None, options: ORTSessionOptions | None = None,
                                              environment: ORTEnv | None = None) -> Any:
        init = ORTTrainingSession.alloc().initWithEnv_sessionOptions_checkpoint_trainModelData_evalModelData_optimizerModelData_error_
        return send(init, environment or self.environment__create(WARNING), options or self.session_options__create(), state, train_model, eval_model,
                    optimizer_model)

    def training_session__train_step(self, session: ORTTrainingSession, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        return [array_of(value) for value in send(session.trainStepWithInputValues_error_, [ort_value(array) for array in inputs])]

    def training_session__eval_step(self, session: ORTTrainingSession, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        return [array_of(value) for value in send(session.evalStepWithInputValues_error_, [ort_value(array) for array in inputs])]

    def training_session__optimizer_step(self, session: ORTTrainingSession) -> None:
        send(session.optimizerStepWithError_)

    def training_session__lazy_reset_grad(self, session: ORTTrainingSession) -> None:
        send(session.lazyResetGradWithError_)

    def training_session__set_learning_rate(self, session: ORTTrainingSession, learning_rate: float) -> None:
        send(session.setLearningRate_error_, learning_rate)

    def training_session__get_learning_rate(self, session: ORTTrainingSession) -> Any:
        return send(session.getLearningRateWithError_)

    def training_session__register_linear_lr_scheduler(self, session: ORTTrainingSession, warmup_step_count: int, total_step_count: int,
                                                       initial_lr: float) -> None:
        send(session.registerLinearLRSchedulerWithWarmupStepCount_totalStepCount_initialLr_error_, warmup_step_count, total_step_count, initial_lr)

    def training_session__scheduler_step(self, session: ORTTrainingSession) -> None:
        send(session.schedulerStepWithError_)

    def training_session__input_names(self, session: ORTTrainingSession, training: bool) -> Any:
        return send(session.getTrainInputNamesWithError_ if training else session.getEvalInputNamesWithError_)

    def training_session__output_names(self, session: ORTTrainingSession, training: bool) -> Any:
        return send(session.getTrainOutputNamesWithError_ if training else session.getEvalOutputNamesWithError_)

    def training_session__to_buffer(self, session: ORTTrainingSession, trainable_only: bool) -> np.ndarray:
        return array_of(send(session.toBufferWithTrainable_error_, trainable_only))

    def training_session__from_buffer(self, session: ORTTrainingSession, buffer: np.ndarray, trainable_only: bool) -> None:
        send(session.fromBufferWithValue_error_, ort_value(buffer))

    def training_session__gradient_buffers(self, session: ORTTrainingSession) -> Any:
        return send(session.gradientBuffersWithError_)

    def training_session__parameter_buffers(self, session: ORTTrainingSession) -> Any:
        return send(session.parameterBuffersWithError_)

    def training_session__moment_names(self, session: ORTTrainingSession) -> Any:
        return send(session.momentNamesWithError_)

    def training_session__moment_buffers(self, session: ORTTrainingSession, name: str) -> Any:
        return send(session.momentBuffersWithName_error_, name)

    def training_session__running_statistics_buffers(self, session: ORTTrainingSession) -> Any:
        return send(session.runningStatisticsBuffersWithError_)

    def training_session__freeze(self, session: ORTTrainingSession, names: Sequence[str]) -> None:
        send(session.freezeParameterNames_error_, names)

    def training_session__unfreeze(self, session: ORTTrainingSession, names: Sequence[str]) -> None:
        send(session.unfreezeParameterNames_error_, names)

    def training_session__export_model_for_inferencing(self, session: ORTTrainingSession, path: str, output_names: Sequence[str]) -> None:
        send(session.exportModelForInferenceWithOutputPath_graphOutputNames_error_, path, output_names)

    def training_session__on_gradients_ready(self, session: ORTTrainingSession, factor: float | None, bucket_bytes: int) -> None:
        scale = scaled_by(factor)
        block = None if scale is None else lambda bucket: scale(send(send(bucket.valueWithError_).tensorDataWithError_))
        send(session.onGradientsReadyWithBucketBytes_handler_error_, bucket_bytes, block)

    # ---- flat buffers

    def flat_buffer__value(self, buffer: ORTFlatBuffer, write: np.ndarray | None = None) -> np.ndarray:
        return written(send(buffer.valueWithError_), write)

    def flat_buffer__parameter_names(self, buffer: ORTFlatBuffer) -> Any:
        return send(buffer.parameterNamesWithError_)

    def flat_buffer__offset(self, buffer: ORTFlatBuffer, name: str) -> Any:
        return send(buffer.offsetOfParameter_error_, name)

    def flat_buffer__view(self, buffer: ORTFlatBuffer, name: str, write: np.ndarray | None = None) -> np.ndarray:
        return written(send(buffer.viewOfParameter_error_, name), write)

    # ---- functions

    def training__set_seed(self, seed: int) -> None:
        ORTSetSeed(seed)


DRIVER = ObjectiveCDriver
