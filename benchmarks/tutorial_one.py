"""Train a tutorial's network with ortrain's Trainer; print one JSON line.

    python -m benchmarks.tutorial_one FOLDER [--threads N]
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks import tutorial_files


def prepare(options: argparse.Namespace, settings: dict[str, Any]) -> tuple[Callable[[], Any], Callable[[], np.ndarray], str]:
    """Return what trains, what predicts, and the version."""
    import ortrain

    ortrain.set_seed(0)
    folder, loss_options = options.folder, dict(settings["loss_options"])
    if "weight" in loss_options:
        loss_options["weight"] = np.array(loss_options["weight"], np.float32)
    session_options = ortrain.SessionOptions()
    session_options.intra_op_num_threads = options.threads
    trainer = ortrain.Trainer.from_model(
        folder / tutorial_files.MODEL, loss=settings["loss"], loss_options=loss_options, optimizer="adamw", learning_rate=settings["learning_rate"],
        requires_grad=settings["trainable"], schedule="cosine", metrics=None, progress=False, options=session_options)
    inputs, target = tutorial_files.read_data(folder, "inputs"), tutorial_files.read_target(folder)
    names = list(trainer.roles.forward)

    def train() -> None:
        trainer.fit([inputs[name] for name in names], target, epochs=settings["epochs"], batch_size=settings["batch_size"])

    def predict() -> np.ndarray:
        tests = tutorial_files.read_data(folder, "test_inputs")
        return np.asarray(trainer.predict([tests[name] for name in names]))

    return train, predict, ortrain.__version__


if __name__ == "__main__":
    tutorial_files.run(__doc__, prepare)
