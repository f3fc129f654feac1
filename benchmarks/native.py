"""`python -m benchmarks native` measures what the C interface adds to a train step of a tiny network, and how long the start of the library takes."""

from __future__ import annotations

import os
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

import numpy as np

import ortrain
from ortrain._native.installation import flags, install
from ortrain.runtime.options import SessionOptions
from ortrain.training.session import TrainingSession

ARTIFACTS = Path(ortrain.__file__).parent / "conformance" / "artifacts" / "classifier"
SOURCE = Path(__file__).with_name("native_step.c")
ROUNDS, STEPS = 7, 100_000


def engine_step(session: TrainingSession, values: tuple[np.ndarray, ...]) -> float:
    """Return microseconds of processor time of a train step and a reset in the engine, called from Python."""
    steps = session.steps
    start = time.thread_time()
    for _ in range(STEPS):
        steps.reset()
        steps.train(values)
    return (time.thread_time() - start) / STEPS * 1e6


def main() -> None:
    """Print the medians of rounds in which the engine and a C program take turns."""
    values = np.zeros((4, 3), np.float32), np.array([0, 1, 2, 1])
    values[0].reshape(-1)[:4] = 1, -1, 2, 0.5
    with tempfile.TemporaryDirectory() as folder, TrainingSession.from_artifacts(ARTIFACTS, options=SessionOptions(intra_op_num_threads=1)) as session:
        install(folder)
        program = Path(folder) / "native_step"
        subprocess.run([os.environ.get("CC", "cc"), "-O2", str(SOURCE), "-o", str(program), *flags(folder).split()], check=True)
        session.train_step(*values)
        rows = []
        for _ in range(ROUNDS):
            engine = engine_step(session, values)
            printed = subprocess.run([str(program), str(ARTIFACTS), str(STEPS)], check=True, capture_output=True, text=True).stdout
            rows.append((engine, *map(float, printed.split())))
        engine, load, opened, made, given, reset = (statistics.median(column) for column in zip(*rows, strict=True))
        added, added_given = (statistics.median(row[place] - row[0] for row in rows) for place in (3, 4))
        print(f"train step and reset in the engine, called from Python   {engine:6.2f} µs")
        print(f"the same from C, outputs made by each step               {made:6.2f} µs ({added:+.2f})")
        print(f"the same from C, outputs of the program                  {given:6.2f} µs ({added_given:+.2f})")
        print(f"reset of the gradients from C                            {reset:6.2f} µs")
        print(f"loading the library, Python and the first checkpoint     {load:6.3f} s")
        print(f"the first training session                               {opened:6.3f} s")
