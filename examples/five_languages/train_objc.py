"""The program with the Objective-C facade: selectors have underscores instead of colons, and a Box is the out-parameter `NSError **`."""

from ortrain.objc import (
    Box,
    ORTCheckpoint,
    ORTEnv,
    ORTLoggingLevelWarning,
    ORTSessionOptions,
    ORTTensorElementDataTypeFloat,
    ORTTensorElementDataTypeInt64,
    ORTTrainingSession,
    ORTValue,
)


def train(checkpoint, training_model, eval_model, optimizer_model, points, labels, steps):
    error = Box()
    env = ORTEnv.alloc().initWithLoggingLevel_error_(ORTLoggingLevelWarning, error)
    options = ORTSessionOptions.alloc().initWithError_(error)
    state = ORTCheckpoint.alloc().initWithPath_error_(checkpoint, error)
    session = ORTTrainingSession.alloc().initWithEnv_sessionOptions_checkpoint_trainModelPath_evalModelPath_optimizerModelPath_error_(
        env, options, state, training_model, eval_model, optimizer_model, error)
    if session is None:
        raise SystemExit(error.value.localizedDescription)
    session.registerLinearLRSchedulerWithWarmupStepCount_totalStepCount_initialLr_error_(5, steps, 0.1, error)

    x = ORTValue.alloc().initWithTensorData_elementType_shape_error_(points, ORTTensorElementDataTypeFloat, points.shape, error)
    y = ORTValue.alloc().initWithTensorData_elementType_shape_error_(labels, ORTTensorElementDataTypeInt64, labels.shape, error)
    losses = []
    for _ in range(steps):
        outputs = session.trainStepWithInputValues_error_([x, y], error)
        losses.append(float(outputs[0].tensorDataWithError_(error)[0]))
        session.optimizerStepWithError_(error)
        session.schedulerStepWithError_(error)
        session.lazyResetGradWithError_(error)

    outputs = session.evalStepWithInputValues_error_([x, y], error)
    losses.append(float(outputs[0].tensorDataWithError_(error)[0]))
    state.addIntPropertyWithName_value_error_("steps", steps, error)
    if not state.saveCheckpointToPath_withOptimizerState_error_(f"{checkpoint}.objc", True, error):
        raise SystemExit(error.value.localizedDescription)
    return losses
