"""onnxruntime-training, the discontinued package, on one workload; prints one JSON line.

    python -m benchmarks.peers.run_onnxruntime WORKLOAD FOLDER {--prepare | --threads N}

--prepare makes its own artifacts of FOLDER's forward model."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from benchmarks import measure


def prepare(folder: Path) -> dict[str, Any]:
    """The artifacts, made by the package itself."""
    import onnx
    from onnxruntime.training import artifacts

    meta = json.loads((folder / measure.META).read_text())
    model = onnx.load(folder / measure.MODEL)
    for node in model.graph.node:               # its gradient builder wants the optional outputs to be there
        if node.op_type == "LayerNormalization" and len(node.output) == 1:
            node.output.extend([f"{node.output[0]}_mean", f"{node.output[0]}_inverse_deviation"])
    made = folder / "onnxruntime"
    made.mkdir(exist_ok=True)
    try:
        artifacts.generate_artifacts(model, requires_grad=meta["requires_grad"], frozen_params=meta["frozen"],
                                     loss=artifacts.LossType.CrossEntropyLoss, optimizer=artifacts.OptimType.AdamW, artifact_directory=str(made))
    except Exception as error:
        return measure.unsupported(" ".join(str(error).split())[:200])
    return {"status": "ok"}


def train(options: argparse.Namespace) -> dict[str, Any]:
    """Times whole steps: train step, optimizer step and gradient reset."""
    from onnxruntime import SessionOptions
    from onnxruntime.training.api import CheckpointState, Module, Optimizer

    imported = measure.memory_mb() or 0.0
    made = options.folder / "onnxruntime"
    settings = SessionOptions()
    settings.intra_op_num_threads = options.threads
    settings.log_severity_level = 3
    module = Module(str(made / "training_model.onnx"), CheckpointState.load_checkpoint(str(made / "checkpoint")), session_options=settings)
    optimizer = Optimizer(str(made / "optimizer_model.onnx"), module)
    optimizer.set_learning_rate(measure.LEARNING_RATE)
    module.train()

    def step(x: Any, y: Any) -> float:
        loss = module(x, y)
        optimizer.step()
        module.lazy_reset_grad()
        return float(loss)

    return measure.timed(step, measure.batches(options.folder), options, imported)


def main() -> None:
    options = measure.arguments(__doc__).parse_args()
    measure.report(prepare(options.folder) if options.prepare else train(options))


if __name__ == "__main__":
    main()
