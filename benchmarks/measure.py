"""Measurement code that the processes of all runtimes share: read batches, time whole steps, report the figures as one JSON line.

Needs only NumPy, because it also runs in the peers' environments."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

BATCHES, MODEL, META, WEIGHTS = "batches.npz", "forward.onnx", "meta.json", "weights.npz"
"""Files of a prepared workload. WEIGHTS exists where a torch module takes the weights of the ONNX graph; they have the module's names and layout."""
CROSS_ENTROPY, MEAN_SQUARED_ERROR = "cross-entropy", "mse"
PRECISIONS = FLOAT32, BFLOAT16 = "float32", "bfloat16"
"""In which precision matrix multiplications run."""
LEARNING_RATE, EPSILON, WEIGHT_DECAY = 1e-4, 1e-6, 0.0
"""AdamW's settings. Epsilon and weight decay are those that generate_artifacts writes by default."""
MIN_STEPS, MAX_STEPS = 5, 50_000
WARM_UP_STEPS = 3
READY, TURN_TAKEN = "ready", "turn taken"
"""What processes that take turns (benchmarks/turns.py) report as their status before they have figures."""
WARM_UP_SECONDS = 0.5

TIMES = array("d", bytes(8 * MAX_STEPS))
"""Milliseconds of each step. Allocated before a runtime is imported, so that it does not count as memory of the runtime."""

Step = Callable[[Any, Any], float]
"""(input, labels) -> loss. Returns after the optimizer step and the gradient reset."""


def argument_parser(description: str | None) -> argparse.ArgumentParser:
    """Return the command line of a process that measures one workload."""
    parser = argparse.ArgumentParser(description=(description or "").partition("\n")[0])
    parser.add_argument("workload")
    parser.add_argument("folder", type=Path, help="holds the model, its batches, and the files that a runtime prepared from the model")
    parser.add_argument("--prepare", action="store_true", help="only write the files that the runtime trains from")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=1.5)
    parser.add_argument("--take-turns", action="store_true", help="run steps when standard input says so, until it ends, instead of for --seconds")
    parser.add_argument("--started-at", type=float, default=time.time(), help="when the process was started, in seconds since the epoch")
    parser.add_argument("--precision", choices=PRECISIONS, default=FLOAT32)
    parser.add_argument("--pin", action="store_true", help="pin each of two threads to a CPU of its own")
    return parser


def load_batches(folder: Path) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return the prepared batches (input, labels)."""
    with np.load(folder / BATCHES) as stored:
        return [(stored[f"x{i}"], stored[f"y{i}"]) for i in range(len(stored.files) // 2)]


def load_meta(folder: Path) -> dict[str, Any]:
    """Return what the workload's files do not say themselves: the loss, the names of trained and of frozen weights, and the sizes of a network."""
    return dict(json.loads((folder / META).read_text()))


def time_steps(step: Step, data: list[tuple[Any, Any]], options: argparse.Namespace, imported_mb: float, version: str) -> dict[str, Any]:
    """Run steps, for options.seconds or in turns, and return the figures of the comparison.

    imported_mb: resident memory after the import of the runtime; `growth_mb` is what training adds to it.
    version: of the runtime, reported with the figures."""
    loaded_mb = memory_mb() or 0.0
    first_loss = float(step(*data[0]))
    cold_start = time.time() - options.started_at
    if options.pin:
        pin_threads()
    done, until = 1, time.perf_counter() + min(WARM_UP_SECONDS, options.seconds / 3)
    while done < WARM_UP_STEPS or time.perf_counter() < until:
        step(*data[done % len(data)])
        done += 1
    steps = time_turns(step, data, done) if options.take_turns else time_for(options.seconds, step, data, done)
    peak, times = memory_mb("VmHWM"), TIMES[:steps]
    return {"status": "ok", "version": version, "median_ms": float(np.median(times)), "min_ms": min(times), "p90_ms": float(np.quantile(times, 0.9)),
            "steps": steps, "cold_start_s": cold_start, "peak_rss_mb": peak, "growth_mb": None if peak is None else peak - imported_mb,
            "loaded_growth_mb": None if peak is None else peak - loaded_mb,
            "first_loss": first_loss}


def time_for(seconds: float, step: Step, data: list[tuple[Any, Any]], done: int, timed: int = 0, least: int = MIN_STEPS) -> int:
    """Run at least `least` steps for some seconds, write their times behind the first `timed` ones, and return how many there are then.

    done: steps before those that are timed."""
    end, until = min(timed + least, MAX_STEPS), time.perf_counter() + seconds
    while timed < end or (timed < MAX_STEPS and time.perf_counter() < until):
        x, y = data[(done + timed) % len(data)]
        started = time.perf_counter()
        step(x, y)
        TIMES[timed] = (time.perf_counter() - started) * 1e3
        timed += 1
    return timed


def time_turns(step: Step, data: list[tuple[Any, Any]], done: int) -> int:
    """Run steps whenever standard input has a line with the seconds of a turn, and return how many were timed. The first step of a turn is not, because it
    reads everything from memory: the processes that had their turns since have evicted it from the caches."""
    timed = 0
    print_result({"status": READY})
    for line in sys.stdin:
        step(*data[(done + timed) % len(data)])
        done += 1
        timed = time_for(float(line), step, data, done, timed, least=1)
        print_result({"status": TURN_TAKEN})
    return timed


def memory_mb(field: str = "VmRSS") -> float | None:
    """Return a field of /proc/self/status in MB, None on systems without /proc.

    The peak is VmHWM, not getrusage's ru_maxrss: the latter also counts the parent's pages before exec."""
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:
        return None
    return next(int(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith(field + ":"))


def pin_threads() -> None:
    """Pin the calling thread to the first CPU and all others to the second.

    Some virtual machines otherwise run both woken threads on one CPU for milliseconds."""
    cpus = sorted(os.sched_getaffinity(0))
    for task in map(int, os.listdir("/proc/self/task")):
        os.sched_setaffinity(task, {cpus[0] if task == os.getpid() else cpus[1 % len(cpus)]})


def unsupported(reason: str) -> dict[str, Any]:
    """Return the result of a workload that a runtime cannot train, which is not a failure of the benchmark."""
    return {"status": "unsupported", "reason": reason}


def print_result(result: dict[str, Any]) -> None:
    """Print the JSON line that benchmarks.run reads."""
    print(json.dumps(result), flush=True)
