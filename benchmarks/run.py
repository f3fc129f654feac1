"""Compares runtimes on the workloads, side by side: fresh processes, alternating rounds, medians, and ratios to the best peer.

    python -m benchmarks [--workloads mlp-mnist ...] [--runtimes ortrain torch-eager ...] [--threads 1 2] [--rounds 3] [--avx2] [--record NAME] [--out results.json]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import documents, tables
from benchmarks.peers.environments import HELD_TO_AVX2, OURS, RUNTIMES, NotInstalled, Runtime, python_of
from benchmarks.workloads import WORKLOADS

ROOT = Path(__file__).resolve().parent.parent
UNSET = ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE", "PYTHONDONTWRITEBYTECODE")
"""Some environments set them: they halve the speed of SciPy's products, and compile ortrain's sources at every start, as no installation does."""
FIGURES = ("median_ms", "min_ms", "p90_ms", "cold_start_s", "peak_rss_mb", "growth_mb", "loaded_growth_mb", "first_loss")

Result = dict[str, Any]
Cell = tuple[str, str, int, tuple[str, ...]]
"""Workload, runtime, threads, options."""


def call(python: str, runtime: Runtime, workload: str, folder: Path, limit: float, held: Mapping[str, str], *options: str) -> Result:
    """One fresh process; its JSON line, or what went wrong. held: variables that hold it to instructions."""
    environment = {name: value for name, value in os.environ.items() if name not in UNSET} | dict(held)
    environment |= {"TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"), "PYTHONPATH": str(ROOT)}
    command = [python, "-m", runtime.module, workload, str(folder), *options, "--born", repr(time.time())]
    try:
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=limit, check=False)
    except subprocess.TimeoutExpired:
        return {"status": "failed", "reason": f"no result within {limit:g} s"}
    found = next((line for line in reversed(done.stdout.splitlines()) if line.startswith('{"status"')), None)
    if done.returncode == 0 and found:
        return dict(json.loads(found))
    lines = done.stderr.strip().splitlines()
    return {"status": "failed", "reason": lines[-1][:300] if lines else f"exit status {done.returncode}"}


def installed(names: list[str], folder: Path, held: bool) -> tuple[dict[str, str], dict[str, str]]:
    """(runtime -> its Python, runtime -> why it is left out)"""
    pythons, missing = {}, {}
    for name in names:
        try:
            if held and not RUNTIMES[name].can_be_held:
                raise NotInstalled("it has no switch for instruction sets")
            pythons[name] = python_of(RUNTIMES[name], folder)
        except NotInstalled as error:
            missing[name] = str(error)
            print(f"{name} is left out: {error}", file=sys.stderr, flush=True)
    return pythons, missing


def prepare(workload: str, pythons: dict[str, str], folder: Path, limit: float, held: Mapping[str, str]) -> dict[str, Result]:
    """What each runtime makes of the workload beforehand; ortrain first, for it writes the model and the batches."""
    ours = call(sys.executable, RUNTIMES[OURS], workload, folder, limit, held, "--prepare")
    return {name: ours if RUNTIMES[name].module == RUNTIMES[OURS].module else call(python, RUNTIMES[name], workload, folder, limit, held, "--prepare")
            for name, python in pythons.items()}


def measure(options: argparse.Namespace, pythons: dict[str, str], cache: Path) -> dict[Cell, list[Result]]:
    """Every cell, round after round; a cell that does not run is not tried again."""
    runs: dict[Cell, list[Result]] = {}
    held = HELD_TO_AVX2 if options.avx2 else {}
    for workload in options.workloads:
        prepared = prepare(workload, pythons, cache / workload, options.limit, held)
        for number in range(options.rounds):
            for threads in options.threads:
                for name, python in pythons.items():
                    for choice in RUNTIMES[name].choices(workload):
                        results = runs.setdefault((workload, name, threads, choice), [])
                        if results and results[-1]["status"] != "ok":
                            continue
                        pin = ["--pin"] if options.pin and threads == 2 and RUNTIMES[name].pin else []
                        results.append(prepared[name] if prepared[name]["status"] != "ok" else call(
                            python, RUNTIMES[name], workload, cache / workload, options.limit, held, "--threads", str(threads),
                            "--seconds", str(options.seconds), *pin, *choice))
                        print(f"round {number + 1}: {workload}, {threads} threads, {' '.join((name, *choice))}: {tables.describe(results[-1])}",
                              file=sys.stderr, flush=True)
    return runs


def summarize(runs: dict[Cell, list[Result]]) -> tables.Summary:
    """workload -> threads -> runtime -> medians over the rounds of its fastest options."""
    summary: tables.Summary = {}
    for (workload, name, threads, choice), results in runs.items():
        good = [result for result in results if result["status"] == "ok"]
        if good:
            known = {key: [r[key] for r in good if r[key] is not None] for key in FIGURES}
            row: Result = {"status": "ok", "options": list(choice), "rounds": len(good)} | {
                key: median(values) if values else None for key, values in known.items()}
        else:
            row = results[-1]
        by_runtime = summary.setdefault(workload, {}).setdefault(str(threads), {})
        best = by_runtime.get(name)
        if best is None or row["status"] == "ok" and (best["status"] != "ok" or row["median_ms"] < best["median_ms"]):
            by_runtime[name] = row
    return summary


def processor() -> str:
    """The chip's own name where the system tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    found = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    return found or platform.processor() or platform.machine()


def instruction_set(held: bool) -> str:
    """The kernels that ortrain uses here."""
    if held:
        return "avx2, peers held to it"
    from ortrain._core.kernel_table import instruction_set as chosen

    return chosen()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--workloads", nargs="+", choices=WORKLOADS, default=list(WORKLOADS), metavar="NAME", help=", ".join(WORKLOADS))
    parser.add_argument("--runtimes", nargs="+", choices=RUNTIMES, default=list(RUNTIMES), metavar="NAME", help=", ".join(RUNTIMES))
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=1.5, help="time spent in timed steps, each time")
    parser.add_argument("--limit", type=float, default=300, help="seconds after which a process is given up")
    parser.add_argument("--pin", action="store_true", help="with two threads: one CPU for each")
    parser.add_argument("--avx2", action="store_true", help="no instructions beyond AVX2, in none of them")
    parser.add_argument("--environments", type=Path, default=ROOT / ".venv-bench", help="where the peers' environments are made")
    parser.add_argument("--record", metavar="NAME", help="also write benchmarks/results/NAME.json, from which the documents' tables are rendered")
    parser.add_argument("--out", type=Path, help="write the JSON here rather than to the standard output")
    options = parser.parse_args()
    pythons, missing = installed(options.runtimes, options.environments, options.avx2)
    with tempfile.TemporaryDirectory(prefix="ortrain_bench_") as cache:
        runs = measure(options, pythons, Path(cache))
    machine = {"processor": processor(), "cpus": os.cpu_count(), "instruction set": instruction_set(options.avx2), "python": platform.python_version()}
    summary = summarize(runs)
    print(tables.report(summary, machine, missing, options.rounds))
    if options.record:
        documents.record(documents.RESULTS / f"{options.record}.json", machine, options.rounds, summary)
    text = json.dumps({"machine": machine, "seconds": options.seconds, "rounds": options.rounds, "left_out": missing, "summary": summary,
                       "runs": [{"workload": w, "runtime": r, "threads": t, "options": list(o), "results": results}
                                for (w, r, t, o), results in runs.items()]}, indent=1)
    if options.out is None:
        print(f"\n{text}")
    else:
        options.out.write_text(text + "\n")
