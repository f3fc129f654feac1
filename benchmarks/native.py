"""`python -m benchmarks native`: what the C interface adds to a train step and to inference of a tiny network, and how long the library takes to start."""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

import numpy as np

import ortrain
from ortrain._native.installation import flags, install
from ortrain.runtime.inference_session import InferenceSession
from ortrain.runtime.options import SessionOptions
from ortrain.training.session import TrainingSession

ARTIFACTS = Path(ortrain.__file__).parent / "conformance" / "artifacts" / "classifier"
HERE = Path(__file__).parent
ROUNDS, STEPS = 7, 100_000


def engine_step(session: TrainingSession, values: tuple[np.ndarray, ...]) -> float:
    """Return microseconds of processor time of a train step and a reset in the engine, called from Python."""
    steps = session.steps
    start = time.thread_time()
    for _ in range(STEPS):
        steps.reset()
        steps.train(values)
    return (time.thread_time() - start) / STEPS * 1e6


def engine_run(session: InferenceSession, values: np.ndarray, out: np.ndarray | None) -> float:
    """Return microseconds of processor time of an inference run by the Python API, with an output of its own or into an array."""
    feed, places = {"x": values}, None if out is None else [out]
    session.run(["scores"], feed, out=places)
    start = time.thread_time()
    for _ in range(STEPS):
        session.run(["scores"], feed, out=places)
    return (time.thread_time() - start) / STEPS * 1e6


def build(folder: Path, name: str) -> Path:
    """Compile a program of this folder against the library in a folder."""
    program = folder / name
    subprocess.run([os.environ.get("CC", "cc"), "-O2", str(HERE / f"{name}.c"), "-o", str(program), *flags(folder).split()], check=True)
    return program


def print_runs(folder: Path) -> None:
    """Print what inference takes by the Python API and through C, the medians of rounds in which they take turns."""
    values, out = np.zeros((4, 3), np.float32), np.zeros((4, 3), np.float32)
    program, model = build(folder, "native_run"), ARTIFACTS / "forward.onnx"
    session = InferenceSession(model, SessionOptions(intra_op_num_threads=1))
    rows = []
    for _ in range(ROUNDS):
        printed = subprocess.run([str(program), str(model), str(STEPS)], check=True, capture_output=True, text=True).stdout
        rows.append((engine_run(session, values, None), engine_run(session, values, out), *map(float, printed.split())))
    engine, engine_given, made, given = (statistics.median(column) for column in zip(*rows, strict=True))
    added, added_given = (statistics.median(row[place + 2] - row[place] for row in rows) for place in (0, 1))
    print(f"inference by the Python API, outputs made / given        {engine:6.2f} µs  {engine_given:6.2f} µs")
    print(f"the same from C by Run, outputs made by each run         {made:6.2f} µs ({added:+.2f})")
    print(f"the same from C by Run, outputs of the program           {given:6.2f} µs ({added_given:+.2f})")


def main(arguments: list[str]) -> None:
    """Print the medians of rounds in which the engine and a C program take turns."""
    argparse.ArgumentParser(prog="python -m benchmarks native", description=(__doc__ or "").partition("\n")[0]).parse_args(arguments)
    values = np.zeros((4, 3), np.float32), np.array([0, 1, 2, 1])
    values[0].reshape(-1)[:4] = 1, -1, 2, 0.5
    with tempfile.TemporaryDirectory() as folder, TrainingSession.from_artifacts(ARTIFACTS, options=SessionOptions(intra_op_num_threads=1)) as session:
        install(folder)
        program = build(Path(folder), "native_step")
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
        print_runs(Path(folder))
