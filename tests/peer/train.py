"""Runs with the old package: trains artifacts on recorded batches and writes losses and parameters to an .npz file.

    python train.py ARTIFACTS INPUTS.npz LEARNING_RATE OUT.npz
"""

import sys

import numpy as np
from onnxruntime.training.api import CheckpointState, Module, Optimizer


def main(folder, inputs, learning_rate, out):
    data = np.load(inputs)
    order = [str(name) for name in data["input_order"]]
    steps = sum(1 for name in data.files if name.startswith("train") and name.endswith("." + order[0]))
    state = CheckpointState.load_checkpoint(f"{folder}/checkpoint")
    module = Module(f"{folder}/training_model.onnx", state, f"{folder}/eval_model.onnx")
    optimizer = Optimizer(f"{folder}/optimizer_model.onnx", module)
    optimizer.set_learning_rate(float(learning_rate))
    losses = []
    for k in range(steps):
        module.train()
        result = module(*[data[f"train{k}.{name}"] for name in order])
        losses.append(float(np.ravel(result[0] if isinstance(result, tuple) else result)[0]))
        optimizer.step()
        module.lazy_reset_grad()
    module.eval()
    evaluation = module(*[data[f"eval.{name}"] for name in order])
    found = {f"param.{name}": parameter.data for name, parameter in state.parameters}
    CheckpointState.save_checkpoint(state, out + ".checkpoint", include_optimizer_state=True)
    np.savez(out, losses=losses, evaluation=np.ravel(evaluation[0] if isinstance(evaluation, tuple) else evaluation)[0], **found)


if __name__ == "__main__":
    main(*sys.argv[1:])
