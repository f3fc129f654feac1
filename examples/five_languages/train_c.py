"""The program with the C facade: function tables, statuses and handles to release. A Box is the out-parameter `&out`."""

from ortrain.capi import (
    ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT,
    ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64,
    ORT_LOGGING_LEVEL_WARNING,
    Box,
    OrtDeviceAllocator,
    OrtGetApiBase,
    OrtIntProperty,
    OrtMemTypeDefault,
)

ort = OrtGetApiBase().GetApi(19)
training = ort.GetTrainingApi(19)


def check(status):
    if status is not None:
        message = ort.GetErrorMessage(status)
        ort.ReleaseStatus(status)
        raise SystemExit(message)


def tensor(info, array, element_type):
    value = Box()
    check(ort.CreateTensorWithDataAsOrtValue(info, array, array.nbytes, array.shape, array.ndim, element_type, value))
    return value.value


def train(checkpoint, training_model, eval_model, optimizer_model, points, labels, steps):
    env, options, info, state, session = Box(), Box(), Box(), Box(), Box()
    check(ort.CreateEnv(ORT_LOGGING_LEVEL_WARNING, "example", env))
    check(ort.CreateSessionOptions(options))
    check(ort.CreateCpuMemoryInfo(OrtDeviceAllocator, OrtMemTypeDefault, info))
    check(training.LoadCheckpoint(checkpoint, state))
    check(training.CreateTrainingSession(env.value, options.value, state.value, training_model, eval_model, optimizer_model, session))
    check(training.RegisterLinearLRScheduler(session.value, 5, steps, 0.1))

    inputs = [tensor(info.value, points, ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT), tensor(info.value, labels, ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64)]
    losses = []
    for step in range(steps + 1):
        outputs, data = [None], Box()
        take_step = training.TrainStep if step < steps else training.EvalStep
        check(take_step(session.value, None, len(inputs), inputs, len(outputs), outputs))
        check(ort.GetTensorMutableData(outputs[0], data))
        losses.append(float(data.value[0]))
        ort.ReleaseValue(outputs[0])
        if step < steps:
            check(training.OptimizerStep(session.value, None))
            check(training.SchedulerStep(session.value))
            check(training.LazyResetGrad(session.value))

    check(training.AddProperty(state.value, "steps", OrtIntProperty, steps))
    check(training.SaveCheckpoint(state.value, f"{checkpoint}.c", True))
    for value in inputs:
        ort.ReleaseValue(value)
    training.ReleaseTrainingSession(session.value)
    training.ReleaseCheckpointState(state.value)
    ort.ReleaseMemoryInfo(info.value)
    ort.ReleaseSessionOptions(options.value)
    ort.ReleaseEnv(env.value)
    return losses
