"""What differential privacy costs: steps with and without the clipping of single samples and the noise.

    python -m benchmarks privacy [--threads 1] [--seconds 5] [--only mlp-mnist ...] [--record NAME]

A step is a train step, an optimizer step of SGD and a reset of the gradients; times are the best of steps that are run in turns. "one by one" is what clipping
takes without ghost norms: a train step for each sample, whose gradients are clipped and added up in NumPy. Memory is that of activations and intermediate
results."""

from __future__ import annotations

import argparse
import json
import math
import os
import time
from collections.abc import Callable, Sequence
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.measure import MEAN_SQUARED_ERROR
from benchmarks.networks import NETWORKS
from benchmarks.run import processor_name
from benchmarks.tables import privacy_table
from benchmarks.workloads import WORKLOADS
from ortrain import DifferentialPrivacy, SessionOptions, TrainingSession
from ortrain.loading.loader import as_model
from ortrain.passes.open_batch import opened_shapes

KINDS = {"mlp-mnist": "dense layers", "cnn-lenet": "convolutions", "convnext": "depthwise convolutions, layer normalization",
         "mixer": "MLP-Mixer", "vit": "vision transformer", "text-cnn": "embedding, 1-D convolutions", "lstm": "LSTM", "bert-mini": "transformer, 128 tokens"}
"""Name of a workload or network -> what the table says of it."""
RESULTS = Path(__file__).parent / "results"
LIMIT = 1.0


def sessions(name: str, threads: int) -> tuple[TrainingSession, TrainingSession, TrainingSession, Sequence[np.ndarray]]:
    """Return two sessions without and one with differential privacy, and a batch. One whose gradients were read does not defer them any more."""
    if name in WORKLOADS:
        model, trained, frozen = WORKLOADS[name].make(name)
        batch, loss = WORKLOADS[name].batches(1)[0], "cross-entropy"
    else:
        made = NETWORKS[name].make(name)
        model, trained, frozen = made.model, made.trained, made.frozen
        batch, loss = NETWORKS[name].batches(made, 1)[0], "mse" if NETWORKS[name].loss == MEAN_SQUARED_ERROR else "cross-entropy"
    shapes: Any = opened_shapes(as_model(model))

    def session(privacy: DifferentialPrivacy | None) -> TrainingSession:
        return TrainingSession.from_model(model, loss=loss, optimizer="sgd", requires_grad=trained, frozen_params=frozen, input_shapes=shapes,
                                          options=SessionOptions(intra_op_num_threads=threads, differential_privacy=privacy))

    return session(None), session(None), session(DifferentialPrivacy(1.0, LIMIT, expected_batch_size=len(batch[0]))), batch


def step(session: TrainingSession, batch: Sequence[np.ndarray]) -> None:
    session.train_step(*batch)
    session.optimizer_step()
    session.lazy_reset_grad()


def step_one_by_one(session: TrainingSession, batch: Sequence[np.ndarray]) -> None:
    """Clip the gradients of single samples by a train step for each of them."""
    gradients = [buffer.array for buffer in session.gradient_buffers()]
    totals = [np.zeros_like(gradient) for gradient in gradients]
    for i in range(len(batch[0])):
        session.train_step(*[array[i : i + 1] for array in batch])
        norm = np.sqrt(sum(float(np.dot(gradient, gradient)) for gradient in gradients))
        for total, gradient in zip(totals, gradients, strict=True):
            total += gradient * np.float32(min(1.0, LIMIT / norm))
        session.lazy_reset_grad()
    for total, gradient in zip(totals, gradients, strict=True):
        np.divide(total, len(batch[0]), out=gradient)
    session.optimizer_step()
    session.lazy_reset_grad()


def milliseconds(runs: dict[str, Callable[[], None]], seconds: float) -> dict[str, float]:
    """Return the best time of each of several calls, which are run in turns, so that what disturbs one disturbs all."""
    for run in runs.values():
        run()                                               # plans, and is not measured
    best, end, rounds = dict.fromkeys(runs, math.inf), time.perf_counter() + seconds, 0
    while rounds < 2 or time.perf_counter() < end:
        rounds += 1
        for name, run in runs.items():
            started = time.perf_counter()
            run()
            best[name] = min(best[name], 1e3 * (time.perf_counter() - started))
    return best


def measure(name: str, threads: int, seconds: float) -> dict[str, Any]:
    """Return what the table has of a network."""
    plain, alone, private, batch = sessions(name, threads)
    runs = {"plain_ms": lambda: step(plain, batch), "private_ms": lambda: step(private, batch), "one_by_one_ms": lambda: step_one_by_one(alone, batch)}
    with plain, alone, private:
        found = {"kind": KINDS[name], "batch": len(batch[0])} | milliseconds(runs, seconds)
        return found | {f"{kind}_mb": session._train_runner.last.arena_bytes / 1e6 for kind, session in (("plain", plain), ("private", private))}


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks privacy", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=5.0, help="for the steps of a network")
    parser.add_argument("--only", nargs="+", choices=KINDS, default=list(KINDS), metavar="NAME")
    parser.add_argument("--record", metavar="NAME", help="write benchmarks/results/NAME.json, which keeps other networks that it has")
    options = parser.parse_args(arguments)
    results: dict[str, Any] = {"chip": processor_name(), "cpus": os.cpu_count(), "date": date.today().isoformat(), "threads": options.threads, "networks": {}}
    for name in options.only:
        results["networks"][name] = row = measure(name, options.threads, options.seconds)
        print(name, row, flush=True)
    print(privacy_table(results))
    if options.record:
        path = RESULTS / f"{options.record}.json"
        earlier = json.loads(path.read_text(encoding="utf-8"))["networks"] if path.exists() else {}
        measured = earlier | results["networks"]
        results["networks"] = {name: measured[name] for name in KINDS if name in measured}
        path.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
