"""What many workers and many clients would do: tables of a model, from times that are measured here.

    python -m benchmarks cluster [--record NAME]

measures steps of the workloads below on two threads, as of one machine of a cluster, and on one thread, as of a client of a federation, with their variation,
the share of the backward pass, and how fast a server adds up models; then prints the tables. --record writes what was measured into benchmarks/results, from
which `python -m benchmarks.documents` renders the same tables. docs/how-to/scale.md explains the model."""

from __future__ import annotations

import argparse
import json
import os
import time
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.cluster.tables import CLIENT_WORKLOADS, WORKER_WORKLOADS, clients_table, workers_table
from benchmarks.run import processor_name
from benchmarks.workloads import WORKLOADS, Workload
from ortrain import SessionOptions, TrainingSession

RESULTS = Path(__file__).resolve().parents[1] / "results"
CLIENT_STEPS = 30
SECONDS = 4.0
"""How long each workload is measured."""


def measure(workload: Workload, threads: int) -> dict[str, Any]:
    """Return what a step of a workload takes: milliseconds, their variation, the share of the backward pass, and the size of its trained parameters."""
    model, trained, frozen = workload.make("cluster")
    (x, labels), = workload.batches(1)
    with TrainingSession.from_model(model, loss="cross-entropy", optimizer="adamw", requires_grad=trained, frozen_params=frozen,
                                    options=SessionOptions(intra_op_num_threads=threads)) as session:
        session.gradient_buffers()                          # as several workers need them
        steps, evaluations = [], []
        end = time.perf_counter() + SECONDS
        while len(steps) < 8 or time.perf_counter() < end:
            started = time.perf_counter()
            session.train_step(x, labels)
            session.optimizer_step()
            session.lazy_reset_grad()
            steps.append(time.perf_counter() - started)
            started = time.perf_counter()
            session.eval_step(x, labels)
            evaluations.append(time.perf_counter() - started)
        median, upper = np.median(steps[2:]), np.quantile(steps[2:], 0.9)
        return {"step_ms": 1e3 * float(median), "variation": float((upper / median - 1) / 1.2816),
                "backward": float(1 - np.median(evaluations[2:]) / median), "gradient_mb": session.parameters_size() * 4e-6,
                "model_mb": session.parameters_size(trainable_only=False) * 4e-6}


def aggregation() -> float:
    """Return the seconds in which a server adds a gigabyte of models to their weighted sum, as FedAvg does."""
    total, array = np.zeros(10**7, np.float32), np.ones(10**7, np.float32)
    times = []
    for _ in range(10):
        started = time.perf_counter()
        total += np.float32(0.5) * array
        times.append(time.perf_counter() - started)
    return float(np.median(times)) / (array.nbytes / 1e9)


def measured() -> dict[str, Any]:
    """Return all that the tables are made from."""
    steps = {name: measure(WORKLOADS[name], threads=2) for name in WORKER_WORKLOADS}
    clients = {name: measure(WORKLOADS[name], threads=1) for name in CLIENT_WORKLOADS}
    return {"chip": processor_name(), "cpus": os.cpu_count(), "date": date.today().isoformat(), "steps": steps, "clients": clients,
            "variation": max(row["variation"] for row in steps.values()), "client_steps": CLIENT_STEPS, "aggregation_s_per_gb": aggregation()}


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks cluster", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--record", metavar="NAME", help="write what was measured into benchmarks/results/NAME.json")
    options = parser.parse_args(arguments)
    results = measured()
    if options.record:
        (RESULTS / f"{options.record}.json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    for name in WORKER_WORKLOADS:
        print(f"efficiency of workers that train {name}\n\n{workers_table(results, name)}")
    for name in CLIENT_WORKLOADS:
        print(f"rounds of clients that train {name}, the fastest 90 %\n\n{clients_table(results, name)}")
