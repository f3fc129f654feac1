"""One workload in this process; prints one JSON line.

    python -m benchmarks.one WORKLOAD FOLDER {--prepare | --threads N --seconds S --born T}

--prepare writes the artifacts into FOLDER; without it they are trained."""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.workloads import LEARNING_RATE, WORKLOADS

LEAST_STEPS = 5
WARM_UP_STEPS = 3
WARM_UP_SECONDS = 0.5


def prepare(name: str, folder: Path) -> dict[str, Any]:
    """Makes the artifacts; an operator that ortrain cannot train is a result, not a failure."""
    from ortrain.artifacts import LossType, OptimType, generate_artifacts
    from ortrain.errors import MissingGradientError, MissingKernelError

    model, trained, frozen = WORKLOADS[name].make(name)
    folder.mkdir(parents=True, exist_ok=True)
    try:
        generate_artifacts(model, requires_grad=trained, frozen_params=frozen, loss=LossType.CrossEntropyLoss, optimizer=OptimType.AdamW,
                           artifact_directory=str(folder))
    except (MissingKernelError, MissingGradientError) as error:
        return {"status": "unsupported", "reason": str(error)}
    return {"status": "ok"}


def measure(name: str, folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Times whole steps: train step, optimizer step and gradient reset."""
    from ortrain import SessionOptions, TrainingSession
    from ortrain.errors import MissingGradientError, MissingKernelError

    batches = WORKLOADS[name].batches()
    try:
        session = TrainingSession.from_artifacts(folder, options=SessionOptions(intra_op_num_threads=options.threads))
        session.learning_rate = LEARNING_RATE
        first_loss = _step(session, *batches[0])
    except (MissingKernelError, MissingGradientError) as error:
        return {"status": "unsupported", "reason": str(error)}
    cold_start = time.time() - options.born
    if options.pin:
        pin_threads()
    done, until = 1, time.perf_counter() + min(WARM_UP_SECONDS, options.seconds / 3)
    while done < WARM_UP_STEPS or time.perf_counter() < until:
        _step(session, *batches[done % len(batches)])
        done += 1
    times: list[float] = []
    until = time.perf_counter() + options.seconds
    while len(times) < LEAST_STEPS or time.perf_counter() < until:
        x, y = batches[(done + len(times)) % len(batches)]
        started = time.perf_counter()
        _step(session, x, y)
        times.append((time.perf_counter() - started) * 1e3)
    return {"status": "ok", "median_ms": float(np.median(times)), "min_ms": min(times), "p90_ms": float(np.quantile(times, 0.9)),
            "steps": len(times), "cold_start_s": cold_start, "peak_rss_mb": peak_rss_mb(), "first_loss": first_loss}


def _step(session: Any, x: np.ndarray, y: np.ndarray) -> float:
    loss = session.train_step(x, y)[0]
    session.optimizer_step()
    session.lazy_reset_grad()
    return float(loss)


def peak_rss_mb() -> float | None:
    """VmHWM, not ru_maxrss: the latter counts the parent's pages before exec as well. None where there is no /proc."""
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:
        return None
    return next(int(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith("VmHWM"))


def pin_threads() -> None:
    """The calling thread on the first CPU, all others on the second: some virtual machines pack woken threads onto one for milliseconds."""
    cpus = sorted(os.sched_getaffinity(0))
    for task in map(int, os.listdir("/proc/self/task")):
        os.sched_setaffinity(task, {cpus[0] if task == os.getpid() else cpus[1 % len(cpus)]})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("workload", choices=WORKLOADS)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--prepare", action="store_true")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=1.5)
    parser.add_argument("--born", type=float, default=time.time())
    parser.add_argument("--pin", action="store_true")
    options = parser.parse_args()
    result = prepare(options.workload, options.folder) if options.prepare else measure(options.workload, options.folder, options)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
