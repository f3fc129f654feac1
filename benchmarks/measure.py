"""What every runtime's process does alike: read the batches, time whole steps, report memory and cold start as one JSON line.

Needs NumPy alone, for it runs in the peers' environments too."""

from __future__ import annotations

import argparse
import json
import os
import time
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

BATCHES, MODEL, META = "batches.npz", "forward.onnx", "meta.json"
LEARNING_RATE, EPSILON, WEIGHT_DECAY = 1e-4, 1e-6, 0.0
"""Of AdamW as the artifacts have it by default."""
MIN_STEPS, MAX_STEPS = 5, 50_000
WARM_UP_STEPS = 3
WARM_UP_SECONDS = 0.5

TIMES = array("d", bytes(8 * MAX_STEPS))
"""Milliseconds of each step, in memory that is there before a runtime is imported: it is none of the runtime's."""

Step = Callable[[Any, Any], float]
"""(input, labels) -> loss, after the optimizer has stepped and the gradients are reset."""


def arguments(description: str | None) -> argparse.ArgumentParser:
    """The command line of a process that measures one workload."""
    parser = argparse.ArgumentParser(description=(description or "").partition("\n")[0])
    parser.add_argument("workload")
    parser.add_argument("folder", type=Path, help="with the model, its batches, and what a runtime prepared of it")
    parser.add_argument("--prepare", action="store_true", help="only make what the runtime trains from")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=1.5)
    parser.add_argument("--born", type=float, default=time.time(), help="when the process was started")
    parser.add_argument("--pin", action="store_true", help="one CPU for each of two threads")
    return parser


def batches(folder: Path) -> list[tuple[np.ndarray, np.ndarray]]:
    """The batches (input, labels) that were prepared."""
    with np.load(folder / BATCHES) as stored:
        return [(stored[f"x{i}"], stored[f"y{i}"]) for i in range(len(stored.files) // 2)]


def timed(step: Step, data: list[tuple[Any, Any]], options: argparse.Namespace, imported: float) -> dict[str, Any]:
    """Runs the steps. imported: resident memory in MB after the runtime's import; what training adds to it is `growth_mb`."""
    loaded = memory_mb() or 0.0
    first_loss = float(step(*data[0]))
    cold_start = time.time() - options.born
    if options.pin:
        pin_threads()
    done, until = 1, time.perf_counter() + min(WARM_UP_SECONDS, options.seconds / 3)
    while done < WARM_UP_STEPS or time.perf_counter() < until:
        step(*data[done % len(data)])
        done += 1
    steps, until = 0, time.perf_counter() + options.seconds
    while steps < MIN_STEPS or (steps < MAX_STEPS and time.perf_counter() < until):
        x, y = data[(done + steps) % len(data)]
        started = time.perf_counter()
        step(x, y)
        TIMES[steps] = (time.perf_counter() - started) * 1e3
        steps += 1
    peak, times = memory_mb("VmHWM"), TIMES[:steps]
    return {"status": "ok", "median_ms": float(np.median(times)), "min_ms": min(times), "p90_ms": float(np.quantile(times, 0.9)),
            "steps": steps, "cold_start_s": cold_start, "peak_rss_mb": peak, "growth_mb": None if peak is None else peak - imported,
            "loaded_growth_mb": None if peak is None else peak - loaded,
            "first_loss": first_loss}


def memory_mb(field: str = "VmRSS") -> float | None:
    """A field of /proc/self/status. VmHWM, not ru_maxrss: the latter counts the parent's pages before exec as well. None where there is no /proc."""
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:
        return None
    return next(int(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith(field + ":"))


def pin_threads() -> None:
    """The calling thread on the first CPU, all others on the second: some virtual machines pack woken threads onto one for milliseconds."""
    cpus = sorted(os.sched_getaffinity(0))
    for task in map(int, os.listdir("/proc/self/task")):
        os.sched_setaffinity(task, {cpus[0] if task == os.getpid() else cpus[1 % len(cpus)]})


def unsupported(reason: str) -> dict[str, Any]:
    """The result of a workload that a runtime cannot train: a result, not a failure."""
    return {"status": "unsupported", "reason": reason}


def report(result: dict[str, Any]) -> None:
    """The line that the comparison reads."""
    print(json.dumps(result), flush=True)
