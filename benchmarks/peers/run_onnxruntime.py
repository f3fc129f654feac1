"""Measure onnxruntime-training on one workload; print one JSON line.

    python -m benchmarks.peers.run_onnxruntime WORKLOAD FOLDER {--prepare | --threads N}

--prepare generates artifacts from the forward model in FOLDER, with onnxruntime-training itself."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from benchmarks import measure


def prepare(folder: Path) -> dict[str, Any]:
    """Generate the artifacts in a subfolder."""
    import onnx
    from onnxruntime.training import artifacts

    meta = measure.load_meta(folder)
    model = onnx.load(folder / measure.MODEL)
    for node in model.graph.node:               # its gradient of LayerNormalization needs the optional outputs
        if node.op_type == "LayerNormalization" and len(node.output) == 1:
            node.output.extend([f"{node.output[0]}_mean", f"{node.output[0]}_inverse_deviation"])
    artifact_folder = folder / "onnxruntime"
    artifact_folder.mkdir(exist_ok=True)
    try:
        loss = artifacts.LossType.MSELoss if meta["loss"] == measure.MEAN_SQUARED_ERROR else artifacts.LossType.CrossEntropyLoss
        artifacts.generate_artifacts(model, requires_grad=meta["requires_grad"], frozen_params=meta["frozen"], loss=loss,
                                     optimizer=artifacts.OptimType.AdamW, artifact_directory=str(artifact_folder))
    except Exception as error:
        return measure.unsupported(" ".join(str(error).split())[:200])
    return {"status": "ok"}


def train(options: argparse.Namespace) -> dict[str, Any]:
    """Time whole steps: train step, optimizer step and gradient reset."""
    from onnxruntime import SessionOptions, __version__
    from onnxruntime.training.api import CheckpointState, Module, Optimizer

    imported_mb = measure.memory_mb() or 0.0
    artifact_folder = options.folder / "onnxruntime"
    settings = SessionOptions()
    settings.intra_op_num_threads = options.threads
    settings.log_severity_level = 3
    state = CheckpointState.load_checkpoint(str(artifact_folder / "checkpoint"))
    module = Module(str(artifact_folder / "training_model.onnx"), state, session_options=settings)
    optimizer = Optimizer(str(artifact_folder / "optimizer_model.onnx"), module)
    optimizer.set_learning_rate(measure.LEARNING_RATE)
    module.train()

    def step(x: Any, y: Any) -> float:
        loss = module(x, y)
        optimizer.step()
        module.lazy_reset_grad()
        return float(loss)

    return measure.time_steps(step, measure.load_batches(options.folder), options, imported_mb, __version__)


def main() -> None:
    options = measure.argument_parser(__doc__).parse_args()
    measure.print_result(prepare(options.folder) if options.prepare else train(options))


if __name__ == "__main__":
    main()
