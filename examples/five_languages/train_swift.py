"""The program with the Swift facade: argument labels are keyword arguments, and `try` is omitted."""

from ortrain.swift import ORTCheckpoint, ORTEnv, ORTLoggingLevel, ORTSessionOptions, ORTTensorElementDataType, ORTTrainingSession, ORTValue


def train(checkpoint, training_model, eval_model, optimizer_model, points, labels, steps):
    state = ORTCheckpoint(path=checkpoint)
    session = ORTTrainingSession(
        env=ORTEnv(loggingLevel=ORTLoggingLevel.warning), sessionOptions=ORTSessionOptions(), checkpoint=state,
        trainModelPath=training_model, evalModelPath=eval_model, optimizerModelPath=optimizer_model)
    session.registerLinearLRScheduler(withWarmupStepCount=5, totalStepCount=steps, initialLr=0.1)

    x = ORTValue(tensorData=points, elementType=ORTTensorElementDataType.float, shape=points.shape)
    y = ORTValue(tensorData=labels, elementType=ORTTensorElementDataType.int64, shape=labels.shape)
    losses = []
    for _ in range(steps):
        losses.append(float(session.trainStep(withInputValues=[x, y])[0].tensorData()[0]))
        session.optimizerStep()
        session.schedulerStep()
        session.lazyResetGrad()

    losses.append(float(session.evalStep(withInputValues=[x, y])[0].tensorData()[0]))
    state.addIntProperty(withName="steps", value=steps)
    state.save(toPath=f"{checkpoint}.swift", withOptimizerState=True)
    return losses
