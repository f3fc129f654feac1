"""The driver of the Swift facade."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ortrain.conformance.drivers.base import WARNING, Driver, Failure, scaled_by
from ortrain.enums import AppleElementType, ElementType
from ortrain.runtime.values import OrtValue
from ortrain.swift import (
    ORTCheckpoint,
    ORTEnv,
    ORTError,
    ORTFlatBuffer,
    ORTSessionOptions,
    ORTSetSeed,
    ORTTensorElementDataType,
    ORTTensorTypeAndShapeInfo,
    ORTTrainingSession,
    ORTValue,
)


def element_type_of(array: np.ndarray) -> ORTTensorElementDataType:
    """Return Swift's element type of an array."""
    return apple_type(OrtValue(array).element_type())


def apple_type(element_type: int) -> ORTTensorElementDataType:
    """Return Swift's element type of an ONNX element type."""
    return ORTTensorElementDataType(AppleElementType[ElementType(element_type).name])


def ort_value(array: np.ndarray) -> ORTValue:
    """Return an ORTValue over the memory of an array."""
    return ORTValue(tensorData=array.reshape(-1), elementType=element_type_of(array), shape=array.shape)


def array_of(value: ORTValue) -> np.ndarray:
    """Return a copy of the tensor of an ORTValue."""
    return value.tensorData().reshape(value.tensorTypeAndShapeInfo().shape).copy()


def written(value: ORTValue, write: np.ndarray | None) -> np.ndarray:
    """Write into the memory of an ORTValue, if there is something to write; return a copy of its tensor."""
    if write is not None:
        value.tensorData()[:] = write.reshape(-1)
    return array_of(value)


class SwiftDriver(Driver):
    """Calls ortrain.swift."""

    language = "swift"
    shown = r"throws NSError\(domain: onnxruntime, code: \d+\): .+"

    def guarded(self, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except ORTError as error:
            shown = f"throws NSError(domain: {error.domain}, code: {error.code}): {error.localizedDescription}"
            raise Failure(error.error_name, error.code, error.localizedDescription, shown) from error

    # ---- options, tensors

    def environment__create(self, logging_level: int, identifier: str = "") -> ORTEnv:
        return ORTEnv(loggingLevel=logging_level)

    def session_options__create(self) -> ORTSessionOptions:
        return ORTSessionOptions()

    def session_options__set_intra_op_num_threads(self, options: ORTSessionOptions, threads: int) -> None:
        options.setIntraOpNumThreads(threads)

    def session_options__set_log_severity_level(self, options: ORTSessionOptions, level: int) -> None:
        options.setLogSeverityLevel(level)

    def session_options__add_config_entry(self, options: ORTSessionOptions, key: str, value: str) -> None:
        options.addConfigEntry(withKey=key, value=value)

    def session_options__append_execution_provider(self, options: ORTSessionOptions, provider: str) -> None:
        options.appendExecutionProvider(provider, providerOptions={})

    def session_options__register_custom_ops_library(self, options: ORTSessionOptions, path: str) -> None:
        options.registerCustomOps(withLibraryPath=path)

    def tensor__create(self, memory: np.ndarray, shape: Sequence[int], element_type: int | None = None) -> ORTValue:
        wanted = element_type_of(memory) if element_type is None else apple_type(element_type)
        return ORTValue(tensorData=memory, elementType=wanted, shape=shape)

    def tensor__allocate(self, shape: Sequence[int], element_type: int) -> ORTValue:
        return ORTValue(elementType=apple_type(element_type), shape=shape)

    def tensor__mutable_data(self, tensor: ORTValue, write: np.ndarray | None = None) -> np.ndarray:
        data = tensor.tensorData()
        if write is not None:
            data[:] = write
        return data

    def tensor__type_and_shape(self, tensor: ORTValue) -> ORTTensorTypeAndShapeInfo:
        return tensor.tensorTypeAndShapeInfo()

    def type_and_shape__element_type(self, info: ORTTensorTypeAndShapeInfo) -> int:
        return ElementType[AppleElementType(info.elementType).name]

    def type_and_shape__shape(self, info: ORTTensorTypeAndShapeInfo) -> list[int]:
        return info.shape

    # ---- checkpoints

    def checkpoint_state__load(self, path: str) -> ORTCheckpoint:
        return ORTCheckpoint(path=path)

    def checkpoint_state__load_from_buffer(self, data: bytes) -> ORTCheckpoint:
        return ORTCheckpoint(buffer=data)

    def checkpoint_state__save(self, state: ORTCheckpoint, path: str, include_optimizer_state: bool) -> None:
        state.save(toPath=path, withOptimizerState=include_optimizer_state)

    def checkpoint_state__save_to_buffer(self, state: ORTCheckpoint, include_optimizer_state: bool) -> bytes:
        return state.toBuffer(withOptimizerState=include_optimizer_state)

    def checkpoint_state__set_property(self, state: ORTCheckpoint, name: str, value: Any) -> None:
        if isinstance(value, float):
            state.addFloatProperty(withName=name, value=value)
        elif isinstance(value, str):
            state.addStringProperty(withName=name, value=value)
        else:
            state.addIntProperty(withName=name, value=value)

    def checkpoint_state__get_property(self, state: ORTCheckpoint, name: str, type: str) -> int | float | str:
        getters: dict[str, Callable[..., int | float | str]] = {
            "int": state.getIntProperty, "float": state.getFloatProperty, "str": state.getStringProperty}
        return getters[type](withName=name)

    def checkpoint_state__property_names(self, state: ORTCheckpoint) -> list[str]:
        return state.propertyNames()

    def checkpoint_state__parameter_names(self, state: ORTCheckpoint) -> list[str]:
        return state.parameterNames()

    def checkpoint_state__get_parameter(self, state: ORTCheckpoint, name: str) -> np.ndarray:
        return array_of(state.getParameter(withName=name))

    def checkpoint_state__set_parameter(self, state: ORTCheckpoint, name: str, value: np.ndarray) -> None:
        state.updateParameter(withName=name, value=ort_value(value))

    def checkpoint_state__parameter_type_and_shape(self, state: ORTCheckpoint, name: str) -> ORTTensorTypeAndShapeInfo:
        return state.getParameterTypeAndShapeInfo(withName=name)

    def checkpoint_state__gradient(self, state: ORTCheckpoint, name: str) -> np.ndarray:
        return array_of(state.getGradient(withName=name))

    def checkpoint_state__requires_grad(self, state: ORTCheckpoint, name: str) -> bool:
        return state.requiresGrad(withName=name)

    # ---- sessions

    def training_session__create(self, state: ORTCheckpoint, train_model: str, eval_model: str | None = None, optimizer_model: str | None = None,
                                 options: ORTSessionOptions | None = None, environment: ORTEnv | None = None) -> ORTTrainingSession:
        return ORTTrainingSession(env=environment or ORTEnv(loggingLevel=WARNING), sessionOptions=options or ORTSessionOptions(), checkpoint=state,
                                  trainModelPath=train_model, evalModelPath=eval_model, optimizerModelPath=optimizer_model)

    def training_session__create_from_buffers(self, state: ORTCheckpoint, train_model: bytes, eval_model: bytes | None = None,
                                              optimizer_model: bytes | None = None, options: ORTSessionOptions | None = None,
                                              environment: ORTEnv | None = None) -> ORTTrainingSession:
        return ORTTrainingSession(env=environment or ORTEnv(loggingLevel=WARNING), sessionOptions=options or ORTSessionOptions(), checkpoint=state,
                                  trainModelData=train_model, evalModelData=eval_model, optimizerModelData=optimizer_model)

    def training_session__train_step(self, session: ORTTrainingSession, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        return [array_of(value) for value in session.trainStep(withInputValues=[ort_value(array) for array in inputs])]

    def training_session__eval_step(self, session: ORTTrainingSession, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        return [array_of(value) for value in session.evalStep(withInputValues=[ort_value(array) for array in inputs])]

    def training_session__optimizer_step(self, session: ORTTrainingSession) -> None:
        session.optimizerStep()

    def training_session__lazy_reset_grad(self, session: ORTTrainingSession) -> None:
        session.lazyResetGrad()

    def training_session__set_learning_rate(self, session: ORTTrainingSession, learning_rate: float) -> None:
        session.setLearningRate(learning_rate)

    def training_session__get_learning_rate(self, session: ORTTrainingSession) -> float:
        return session.getLearningRate()

    def training_session__register_linear_lr_scheduler(self, session: ORTTrainingSession, warmup_step_count: int, total_step_count: int,
                                                       initial_lr: float) -> None:
        session.registerLinearLRScheduler(withWarmupStepCount=warmup_step_count, totalStepCount=total_step_count, initialLr=initial_lr)

    def training_session__scheduler_step(self, session: ORTTrainingSession) -> None:
        session.schedulerStep()

    def training_session__input_names(self, session: ORTTrainingSession, training: bool) -> list[str]:
        return session.getTrainInputNames() if training else session.getEvalInputNames()

    def training_session__output_names(self, session: ORTTrainingSession, training: bool) -> list[str]:
        return session.getTrainOutputNames() if training else session.getEvalOutputNames()

    def training_session__to_buffer(self, session: ORTTrainingSession, trainable_only: bool) -> np.ndarray:
        return array_of(session.toBuffer(withTrainable=trainable_only))

    def training_session__from_buffer(self, session: ORTTrainingSession, buffer: np.ndarray, trainable_only: bool) -> None:
        session.fromBuffer(with_=ort_value(buffer))

    def training_session__gradient_buffers(self, session: ORTTrainingSession) -> list[ORTFlatBuffer]:
        return session.gradientBuffers()

    def training_session__parameter_buffers(self, session: ORTTrainingSession) -> list[ORTFlatBuffer]:
        return session.parameterBuffers()

    def training_session__moment_names(self, session: ORTTrainingSession) -> list[str]:
        return session.momentNames()

    def training_session__moment_buffers(self, session: ORTTrainingSession, name: str) -> list[ORTFlatBuffer]:
        return session.momentBuffers(withName=name)

    def training_session__running_statistics_buffers(self, session: ORTTrainingSession) -> list[ORTFlatBuffer]:
        return session.runningStatisticsBuffers()

    def training_session__freeze(self, session: ORTTrainingSession, names: Sequence[str]) -> None:
        session.freeze(parameterNames=names)

    def training_session__unfreeze(self, session: ORTTrainingSession, names: Sequence[str]) -> None:
        session.unfreeze(parameterNames=names)

    def training_session__export_model_for_inferencing(self, session: ORTTrainingSession, path: str, output_names: Sequence[str]) -> None:
        session.exportModelForInference(withOutputPath=path, graphOutputNames=output_names)

    def training_session__on_gradients_ready(self, session: ORTTrainingSession, factor: float | None, bucket_bytes: int) -> None:
        scale = scaled_by(factor)
        session.onGradientsReady(bucketBytes=bucket_bytes, handler=None if scale is None else lambda bucket: scale(bucket.value().tensorData()))

    # ---- flat buffers

    def flat_buffer__value(self, buffer: ORTFlatBuffer, write: np.ndarray | None = None) -> np.ndarray:
        return written(buffer.value(), write)

    def flat_buffer__parameter_names(self, buffer: ORTFlatBuffer) -> list[str]:
        return buffer.parameterNames()

    def flat_buffer__offset(self, buffer: ORTFlatBuffer, name: str) -> int:
        return buffer.offset(ofParameter=name)

    def flat_buffer__view(self, buffer: ORTFlatBuffer, name: str, write: np.ndarray | None = None) -> np.ndarray:
        return written(buffer.view(ofParameter=name), write)

    # ---- functions

    def training__set_seed(self, seed: int) -> None:
        ORTSetSeed(seed)


DRIVER = SwiftDriver
