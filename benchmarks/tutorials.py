"""Compare ortrain with PyTorch on the networks and data of the tutorials: quality, seconds of training, and peak memory (VmHWM).

    python -m benchmarks.tutorials [--tutorials tabular ...] [--rounds 3] [--environments .venv-bench] [--out FILE]

Both start from the same weights and take the same samples in the same order, with the same loss, optimizer, learning rates, epochs and batch size; what a
tutorial does beyond (augmentation, averages of weights, early stopping) is left out. Each round is a fresh process, ortrain's and PyTorch's in turn. On
a machine with other load, compare the seconds of CPU, with --threads 1."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks import tutorial_tasks
from benchmarks.peers.environments import RUNTIMES, python_for
from benchmarks.run import ROOT, UNSET_VARIABLES, processor_name
from benchmarks.tutorial_files import PREDICTIONS

MODULES = {"ortrain": "benchmarks.tutorial_one", "PyTorch": "benchmarks.peers.run_tutorial_torch"}


def run_process(python: str, module: str, folder: Path, threads: int) -> dict[str, Any]:
    """Run one measuring process and return its figures. Raises SystemExit with its last words when it fails."""
    environment = {name: value for name, value in os.environ.items() if name not in UNSET_VARIABLES}
    environment |= {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
    command = [python, "-m", module, str(folder), "--threads", str(threads)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    result = next((line for line in reversed(done.stdout.splitlines()) if line.startswith('{"status"')), None)
    if done.returncode or result is None:
        raise SystemExit(f"{module} failed: {done.stderr.strip()[-2000:]}")
    return dict(json.loads(result))


def compare(name: str, pythons: dict[str, str], folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Measure one tutorial's training in every runtime, in alternating rounds, and return its figures."""
    task = tutorial_tasks.TASKS[name](tutorial_tasks.before_training(name))
    task.write(folder)
    runs: dict[str, list[dict[str, Any]]] = {runtime: [] for runtime in MODULES}
    for number in range(options.rounds):
        for runtime, module in MODULES.items():
            result = run_process(pythons[runtime], module, folder, options.threads)
            result["figure"] = tutorial_tasks.score(task.metric, np.load(folder / PREDICTIONS), task.test_target)
            runs[runtime].append(result)
            print(f"round {number + 1}: {name}, {runtime}: {task.metric} {result['figure']:.4f}, {result['seconds']:.2f} s, "
                  f"{result['cpu_seconds']:.2f} s of CPU, {result['peak_mb']:.0f} MB", file=sys.stderr, flush=True)
    rows = {runtime: _summary(results) for runtime, results in runs.items()}
    return {"metric": task.metric, "epochs": task.epochs, "batch size": task.batch_size, "samples": len(task.target), "runtimes": rows}


def _summary(results: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the medians of the rounds; of the times the shortest, which other load disturbs least."""
    return {key: median(result[key] for result in results) for key in ("figure", "peak_mb")} | {
        key: min(result[key] for result in results) for key in ("seconds", "cpu_seconds")} | {"version": results[0]["version"]}


def report(results: dict[str, dict[str, Any]]) -> str:
    """Return the results as a table."""
    lines = ["| tutorial | figure | ortrain | PyTorch | seconds, ortrain | seconds, PyTorch | of CPU, ortrain | of CPU, PyTorch | peak MB, ortrain | PyTorch |",
             "|---|---|---|---|---|---|---|---|---|---|"]
    for name, result in results.items():
        ours, theirs = result["runtimes"]["ortrain"], result["runtimes"]["PyTorch"]
        figures = [f"{row[key]:.{digits}f}" for key, digits in (("figure", 3), ("seconds", 2), ("cpu_seconds", 2), ("peak_mb", 0)) for row in (ours, theirs)]
        lines.append(f"| {' | '.join([name, result['metric'], *figures])} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--tutorials", nargs="+", choices=tutorial_tasks.TASKS, default=list(tutorial_tasks.TASKS), metavar="NAME")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--environments", type=Path, default=ROOT / ".venv-bench", help="folder for the environment of PyTorch")
    parser.add_argument("--out", type=Path, help="also write the results to this JSON file")
    options = parser.parse_args()
    pythons = {"ortrain": sys.executable, "PyTorch": python_for(RUNTIMES["torch-eager"], options.environments)}
    with tempfile.TemporaryDirectory(prefix="ortrain_tutorials_") as folder:
        results = {name: compare(name, pythons, Path(folder) / name, options) for name in options.tutorials}
    machine = {"processor": processor_name(), "threads": options.threads}
    print(f"{report(results)}\n\n{machine['processor']}, {options.threads} threads, the fastest of {options.rounds} rounds")
    if options.out:
        options.out.write_text(json.dumps({"machine": machine, "rounds": options.rounds, "results": results}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
