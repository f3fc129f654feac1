"""Train a tutorial's network with PyTorch; print one JSON line.

    python -m benchmarks.peers.run_tutorial_torch FOLDER [--threads N]

Eager mode, the fused AdamW, the samples in the order in which ortrain takes them."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks import measure, tutorial_files


def prepare(options: argparse.Namespace, settings: dict[str, Any]) -> tuple[Callable[[], Any], Callable[[], np.ndarray], str]:
    """Return what trains, what predicts, and the version."""
    import torch
    from torch.nn import functional as F

    from benchmarks.peers.torch_graph import GraphModule

    torch.manual_seed(0)
    torch.set_num_threads(options.threads)
    model = GraphModule(options.folder, settings["trainable"])
    loss_options = {name: torch.tensor(value) if isinstance(value, list) else value for name, value in settings["loss_options"].items()}
    loss_of = {"cross-entropy": F.cross_entropy, "huber": F.huber_loss}[settings["loss"]]
    optimizer = torch.optim.AdamW(model.parameters(), lr=settings["learning_rate"], eps=measure.EPSILON, weight_decay=measure.WEIGHT_DECAY, fused=True)
    inputs = {name: torch.from_numpy(array) for name, array in tutorial_files.read_data(options.folder, "inputs").items()}
    target = torch.from_numpy(tutorial_files.read_target(options.folder))
    epochs, size, samples = settings["epochs"], settings["batch_size"], len(target)
    steps = epochs * -(-samples // size)

    def train() -> None:
        model.train()
        step = 0
        for epoch in range(epochs):
            order = torch.from_numpy(np.random.default_rng([0, epoch]).permutation(samples))
            for start in range(0, samples, size):
                rows = order[start : start + size]
                optimizer.param_groups[0]["lr"] = settings["learning_rate"] * 0.5 * (1 + math.cos(math.pi * step / steps))
                loss = loss_of(model({name: array[rows] for name, array in inputs.items()}), target[rows], **loss_options)
                loss.backward()
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
                step += 1

    def predict() -> np.ndarray:
        model.eval()
        tests = tutorial_files.read_data(options.folder, "test_inputs")
        count = len(next(iter(tests.values())))
        with torch.no_grad():
            return np.concatenate([model({name: torch.from_numpy(array[start : start + 256]) for name, array in tests.items()}).numpy()
                                   for start in range(0, count, 256)])

    return train, predict, torch.__version__


if __name__ == "__main__":
    tutorial_files.run(__doc__, prepare)
