"""Runs the workloads, each in fresh processes, and prints a markdown table and JSON.

    python -m benchmarks [--workloads mlp-mnist ...] [--threads 1 2] [--seconds 1.5] [--out results.json]
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
from pathlib import Path
from typing import Any

from benchmarks.workloads import WORKLOADS

ROOT = Path(__file__).resolve().parent.parent
CHANGES_BLAS = ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE")
"""Some environments set them, and they halve the speed of SciPy's products."""

Result = dict[str, Any]


def call(workload: str, folder: Path, limit: float, *options: str) -> Result:
    """One fresh process; its JSON line, or what went wrong."""
    environment = {name: value for name, value in os.environ.items() if name not in CHANGES_BLAS}
    command = [sys.executable, "-m", "benchmarks.one", workload, str(folder), *options, "--born", repr(time.time())]
    try:
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=limit, check=False)
    except subprocess.TimeoutExpired:
        return {"status": "failed", "reason": f"no result within {limit:g} s"}
    if done.returncode == 0:
        return dict(json.loads(done.stdout.splitlines()[-1]))
    lines = done.stderr.strip().splitlines()
    return {"status": "failed", "reason": lines[-1] if lines else f"exit status {done.returncode}"}


def run(workload: str, cache: Path, options: argparse.Namespace) -> dict[str, Result]:
    """Thread count -> result; the artifacts are made once, outside what is measured."""
    folder = cache / workload
    made = call(workload, folder, options.limit, "--prepare")
    results = {}
    for threads in options.threads:
        pin = ["--pin"] if options.pin and threads == 2 else []
        results[str(threads)] = made if made["status"] != "ok" else call(
            workload, folder, options.limit, "--threads", str(threads), "--seconds", str(options.seconds), *pin)
        print(f"{workload}, {threads} threads: {describe(results[str(threads)])}", file=sys.stderr, flush=True)
    return results


def describe(result: Result) -> str:
    return f"{number(result['median_ms'])} ms" if result["status"] == "ok" else f"{result['status']}: {result['reason']}"


def number(value: float | None) -> str:
    """Three or four significant digits, as far as they mean something."""
    if value is None:
        return "-"
    return f"{value:.4f}" if value < 0.1 else f"{value:.3f}" if value < 10 else f"{value:.1f}"


def table(results: dict[str, dict[str, Result]], threads: list[int]) -> str:
    """The results as markdown: median step by thread count, then memory and cold start at the highest count."""
    most = str(max(threads))
    steps = [f"step, {n} thread{'s' if n > 1 else ''}, ms" for n in threads]
    header = ["workload", *steps, "p90, ms", "peak RSS, MB", "cold start, s", "first loss"]
    lines = [f"| {' | '.join(header)} |", "|---" + "|---:" * (len(header) - 1) + "|"]
    notes = []
    for workload, by_threads in results.items():
        ran = [by_threads[str(n)] for n in threads]
        steps = [number(r["median_ms"]) if r["status"] == "ok" else r["status"] for r in ran]
        last = by_threads[most]
        rest = [number(last.get(key)) for key in ("p90_ms", "peak_rss_mb", "cold_start_s")]
        loss = f"{last['first_loss']:.5f}" if last["status"] == "ok" else "-"
        lines.append(f"| {' | '.join([workload, *steps, *rest, loss])} |")
        notes += sorted({f"- {workload} {r['status']}: {r['reason']}" for r in by_threads.values() if r["status"] != "ok"})
    return "\n".join([*lines, *([""] if notes else []), *notes])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--workloads", nargs="+", choices=WORKLOADS, default=list(WORKLOADS), metavar="NAME", help=", ".join(WORKLOADS))
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--seconds", type=float, default=1.5, help="time spent in timed steps")
    parser.add_argument("--limit", type=float, default=300, help="seconds after which a process is given up")
    parser.add_argument("--pin", action="store_true", help="with two threads: one CPU for each")
    parser.add_argument("--out", type=Path, help="write the JSON here rather than to the standard output")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ortrain_bench_") as cache:
        results = {workload: run(workload, Path(cache), options) for workload in options.workloads}
    print(table(results, options.threads))
    text = json.dumps({"machine": {"processor": platform.machine(), "cpus": os.cpu_count(), "python": platform.python_version()},
                       "seconds": options.seconds, "runs": results}, indent=1)
    if options.out is None:
        print(f"\n{text}")
    else:
        options.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
