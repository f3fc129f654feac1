"""`python -m tests.peer [case …]`: ortrain's artifacts in the real onnxruntime-training 1.19.2, step by step against ortrain itself."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from ortrain import artifacts
from ortrain.api import CheckpointState, Module, Optimizer
from tests.peer.environment import make

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / "tests" / "data" / "ort_golden"
CASES = ("mlp_ce", "cnn_bn")


def make_artifacts(case: str, folder: Path) -> dict:
    """Artifacts of a recorded case's forward model, made by ortrain."""
    meta = json.loads((DATA / case / "meta.json").read_text())
    artifacts.generate_artifacts(str(DATA / case / "forward.onnx"), requires_grad=meta["requires_grad"], frozen_params=meta["frozen_params"],
                                 loss=artifacts.LossType[meta["loss"]], optimizer=artifacts.OptimType[meta["optimizer"]],
                                 artifact_directory=str(folder))
    return meta


def train_here(folder: Path, case: str, learning_rate: float) -> tuple[list[float], dict[str, np.ndarray]]:
    """Losses and final parameters of the same steps in ortrain."""
    data = np.load(DATA / case / "inputs.npz")
    order = [str(name) for name in data["input_order"]]
    state = CheckpointState.load_checkpoint(folder / "checkpoint")
    module = Module(folder / "training_model.onnx", state, folder / "eval_model.onnx")
    optimizer = Optimizer(folder / "optimizer_model.onnx", module)
    optimizer.set_learning_rate(learning_rate)
    losses = []
    for k in range(sum(name.startswith("train") and name.endswith("." + order[0]) for name in data.files)):
        losses.append(float(np.ravel(module(*[data[f"train{k}.{name}"] for name in order]))[0]))
        optimizer.step()
        module.lazy_reset_grad()
    return losses, {name: parameter.data.copy() for name, parameter in state.parameters}


def compare(case: str, python: Path) -> float:
    """The largest relative difference of a loss; raises AssertionError when losses or parameters disagree."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        meta = make_artifacts(case, folder)
        out = folder / "peer.npz"
        subprocess.run([str(python), str(Path(__file__).with_name("train.py")), str(folder), str(DATA / case / "inputs.npz"),
                        str(meta["learning_rate"]), str(out)], check=True)
        peer = np.load(out)
        losses, parameters = train_here(folder, case, meta["learning_rate"])
        np.testing.assert_allclose(losses, peer["losses"], rtol=1e-5)
        for parameter, value in parameters.items():
            wanted = peer[f"param.{parameter}"]
            limit = 1e-4 * np.abs(wanted).max() + 1e-6 + 0.03 * meta["learning_rate"]
            assert np.abs(value - wanted).max() <= limit, f"{case}: {parameter} differs by {np.abs(value - wanted).max()}"
        CheckpointState.load_checkpoint(str(out) + ".checkpoint")
        return float(np.max(np.abs(np.array(losses) / peer["losses"] - 1)))


def main(cases: list[str]) -> None:
    python = make(ROOT / ".venv-peer")
    for case in cases or CASES:
        print(f"{case}: trained in onnxruntime-training 1.19.2 with the same losses, largest relative difference {compare(case, python):.2e}")


if __name__ == "__main__":
    main(sys.argv[1:])
