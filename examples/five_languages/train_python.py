"""The program with the Python facade."""

from ortrain.api import CheckpointState, LinearLRScheduler, Module, Optimizer


def train(checkpoint, training_model, eval_model, optimizer_model, points, labels, steps):
    state = CheckpointState.load_checkpoint(checkpoint)
    module = Module(training_model, state, eval_model)
    optimizer = Optimizer(optimizer_model, module)
    scheduler = LinearLRScheduler(optimizer, 5, steps, 0.1)

    losses = []
    module.train()
    for _ in range(steps):
        losses.append(float(module(points, labels)))
        optimizer.step()
        scheduler.step()
        module.lazy_reset_grad()

    module.eval()
    losses.append(float(module(points, labels)))
    state.properties["steps"] = steps
    CheckpointState.save_checkpoint(state, f"{checkpoint}.python", include_optimizer_state=True)
    return losses
