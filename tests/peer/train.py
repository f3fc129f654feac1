"""Runs training jobs with ortrain or with onnxruntime-training, which have the same API.

    python train.py {ortrain | onnxruntime.training} JOBS.json

A job: artifacts (folder), checkpoint, inputs (.npz), learning_rate, first and last train step, updates_after (train steps per optimizer step), out (.npz:
losses, evaluation, final parameters), save (checkpoint with optimizer state, written at the end), suffix (of the models: onnx or ort)."""

import importlib
import json
import sys

import numpy as np


def first_of(result):
    return float(np.ravel(result[0] if isinstance(result, tuple) else result)[0])


def run(api, job):
    data = np.load(job["inputs"])
    order = [str(name) for name in data["input_order"]]
    folder = job["artifacts"]
    state = api.CheckpointState.load_checkpoint(job["checkpoint"])
    training, evaluation, optimizing = (f"{folder}/{kind}_model.{job['suffix']}" for kind in ("training", "eval", "optimizer"))
    module = api.Module(training, state, evaluation)
    optimizer = api.Optimizer(optimizing, module)
    optimizer.set_learning_rate(job["learning_rate"])
    losses = []
    module.train()
    for k in range(job["first"], job["last"]):
        losses.append(first_of(module(*[data[f"train{k}.{name}"] for name in order])))
        if (k + 1) % job["updates_after"] == 0:
            optimizer.step()
            module.lazy_reset_grad()
    module.eval()
    evaluation = first_of(module(*[data[f"eval.{name}"] for name in order]))
    api.CheckpointState.save_checkpoint(state, job["save"], include_optimizer_state=True)
    np.savez(job["out"], losses=losses, evaluation=evaluation, **{f"param.{name}": parameter.data for name, parameter in state.parameters})


def main(package, jobs):
    api = importlib.import_module(f"{package}.api")
    with open(jobs) as file:
        for job in json.load(file):
            run(api, job)


if __name__ == "__main__":
    main(*sys.argv[1:])
