"""Measure ortrain on one workload in this process; print one JSON line.

    python -m benchmarks.one WORKLOAD FOLDER {--prepare | --threads N --seconds S [--lowest-memory] [--parameter-dtype bfloat16]}

--prepare writes the model, its batches and the artifacts into FOLDER; without it the artifacts are trained. --lowest-memory sets optimizer_in_backward and
a rematerialization of 0.1."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from benchmarks import measure

LOWEST_MEMORY_REMATERIALIZATION = 0.1


def prepare(name: str, folder: Path) -> dict[str, Any]:
    """Write the files that every runtime reads, and ortrain's artifacts."""
    import json

    import numpy as np
    import onnx

    from benchmarks.networks import ALL
    from benchmarks.workloads import WORKLOADS
    from ortrain.artifacts import LossType, OptimType, generate_artifacts
    from ortrain.errors import MissingGradientError, MissingKernelError

    folder.mkdir(parents=True, exist_ok=True)
    meta: dict[str, Any] = {"loss": measure.CROSS_ENTROPY}
    if name in ALL:
        made = ALL[name].make(name)
        model, trained, frozen, batches = made.model, made.trained, made.frozen, ALL[name].batches(made)
        meta = {"loss": ALL[name].loss, "sizes": dict(ALL[name].sizes)}
        np.savez(folder / measure.WEIGHTS, **made.torch_state)
    else:
        (model, trained, frozen), batches = WORKLOADS[name].make(name), WORKLOADS[name].batches()
    onnx.save(model, folder / measure.MODEL)
    (folder / measure.META).write_text(json.dumps(meta | {"requires_grad": trained, "frozen": frozen}))
    np.savez(folder / measure.BATCHES, **{f"{part}{i}": array for i, pair in enumerate(batches) for part, array in zip("xy", pair, strict=True)})
    loss = LossType.MSELoss if meta["loss"] == measure.MEAN_SQUARED_ERROR else LossType.CrossEntropyLoss
    try:
        generate_artifacts(model, requires_grad=trained, frozen_params=frozen, loss=loss, optimizer=OptimType.AdamW, artifact_directory=str(folder))
    except (MissingKernelError, MissingGradientError) as error:
        return measure.unsupported(str(error))
    return {"status": "ok"}


def train(options: argparse.Namespace) -> dict[str, Any]:
    """Time whole steps: train step, optimizer step and gradient reset."""
    from ortrain import SessionOptions, TrainingSession, __version__
    from ortrain.errors import MissingGradientError, MissingKernelError

    imported_mb = measure.memory_mb() or 0.0
    data = measure.load_batches(options.folder)
    settings = SessionOptions(intra_op_num_threads=options.threads, precision=options.precision, parameter_dtype=options.parameter_dtype)
    if options.lowest_memory:
        settings.optimizer_in_backward, settings.rematerialization = True, LOWEST_MEMORY_REMATERIALIZATION
    session = TrainingSession.from_artifacts(options.folder, options=settings)
    session.learning_rate = measure.LEARNING_RATE

    def step(x: Any, y: Any) -> float:
        loss = session.train_step(x, y)[0]
        session.optimizer_step()
        session.lazy_reset_grad()
        return float(loss)

    try:
        return measure.time_steps(step, data, options, imported_mb, __version__)
    except (MissingKernelError, MissingGradientError) as error:
        return measure.unsupported(str(error))


def main() -> None:
    parser = measure.argument_parser(__doc__)
    parser.add_argument("--lowest-memory", action="store_true")
    parser.add_argument("--parameter-dtype", default="float32")
    options = parser.parse_args()
    measure.print_result(prepare(options.workload, options.folder) if options.prepare else train(options))


if __name__ == "__main__":
    main()
