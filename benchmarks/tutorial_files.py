"""The files of a tutorial's training run, and how a process measures the run.

Needs only NumPy, because it also runs in the environment of PyTorch."""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import measure

MODEL, GRAPH, WEIGHTS, DATA, SETTINGS = "forward.onnx", "graph.json", "weights.npz", "data.npz", "settings.json"
PREDICTIONS = "predictions.npy"


def read_data(folder: Path, part: str) -> dict[str, np.ndarray]:
    """Return the arrays by input name of a part, "inputs" or "test_inputs"."""
    with np.load(folder / DATA) as stored:
        return {name.partition("/")[2]: stored[name] for name in stored.files if name.startswith(f"{part}/")}


def read_target(folder: Path) -> np.ndarray:
    """Return the target of the training samples."""
    with np.load(folder / DATA) as stored:
        return stored["target"]


def run(description: str | None, prepare: Callable[[argparse.Namespace, dict[str, Any]], tuple[Callable[[], Any], Callable[[], np.ndarray], str]]) -> None:
    """Measure one training run and print the figures as a JSON line; the predictions for the test samples go into a file.

    prepare: (options, settings) -> (train, predict, version of the runtime). Its own time is not part of the training time."""
    parser = argparse.ArgumentParser(description=(description or "").partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    settings = json.loads((options.folder / SETTINGS).read_text(encoding="utf-8"))
    train, predict, version = prepare(options, settings)
    started, cpu_started = time.perf_counter(), time.process_time()
    train()
    seconds, cpu_seconds = time.perf_counter() - started, time.process_time() - cpu_started
    peak = measure.memory_mb("VmHWM")
    np.save(options.folder / PREDICTIONS, predict())
    measure.print_result({"status": "ok", "seconds": seconds, "cpu_seconds": cpu_seconds, "peak_mb": peak, "version": version})
