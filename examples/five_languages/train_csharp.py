"""The program with the C# facade: `with` replaces `using`, and `new` is omitted."""

from ortrain.csharp import CheckpointState, FixedBufferOnnxValue, OrtValue, TrainingSession


def train(checkpoint, training_model, eval_model, optimizer_model, points, labels, steps):
    losses = []
    with CheckpointState.LoadCheckpoint(checkpoint) as state, TrainingSession(state, training_model, eval_model, optimizer_model) as session:
        session.RegisterLinearLRScheduler(warmupStepCount=5, totalStepCount=steps, initialLearningRate=0.1)

        inputValues = [FixedBufferOnnxValue.CreateFromTensor(points), FixedBufferOnnxValue.CreateFromTensor(labels)]
        for _ in range(steps):
            with session.TrainStep(inputValues) as outputs:
                losses.append(float(outputs[0].AsTensor()))
            session.OptimizerStep()
            session.SchedulerStep()
            session.LazyResetGrad()

        with (
            OrtValue.CreateTensorValueFromMemory(points, points.shape) as x,
            OrtValue.CreateTensorValueFromMemory(labels, labels.shape) as y,
            session.EvalStep([x, y]) as outputs,
        ):
            losses.append(float(outputs[0].GetTensorDataAsSpan()[0]))
        state.AddProperty("steps", steps)
        CheckpointState.SaveCheckpoint(state, f"{checkpoint}.csharp", includeOptimizerState=True)
    return losses
