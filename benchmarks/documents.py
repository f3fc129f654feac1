"""The comparison tables of the documents, rendered from recorded results.

    python -m benchmarks.documents            writes the tables into README.md and docs/performance.md
    python -m benchmarks.documents --check    exits with 1 where a table differs from the results

A document marks the place of a table with `<!-- results: NAME -->` and `<!-- end of results -->`; NAME is a file in benchmarks/results, and `NAME runtimes`
shows every runtime with two threads instead of the best one with one thread and with two. `python -m benchmarks --record NAME` writes such a file.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping
from math import exp, log
from pathlib import Path
from typing import Any

from benchmarks.peers.environments import LOWEST_MEMORY, OURS

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
DOCUMENTS = (ROOT / "README.md", ROOT / "docs" / "performance.md")
BLOCK = re.compile(r"(<!-- results: (?P<name>[\w-]+)(?P<all> runtimes)? -->\n).*?(<!-- end of results -->)", re.DOTALL)
RATIOS = {"growth_after_loading": "memory growth", "growth_after_import": "growth incl. loading", "lowest_memory_options": "lowest-memory options",
          "peak_memory": "peak memory", "cold_start": "cold start"}
"""Figures over the best peer's, with their column titles; a table has those that were recorded."""
RUNTIMES = (OURS, "onnxruntime-training", "PyTorch eager", "PyTorch compiled", "JAX")
WITH_PEAK = RUNTIMES[:3]
SHORT = {"onnxruntime-training": "ort-training", "PyTorch eager": "PyTorch", "PyTorch compiled": "compiled"}
"""Column titles of the table with every runtime."""

Results = dict[str, Any]


def load(name: str) -> Results:
    """Read a file of recorded results."""
    return dict(json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8")))


def number(value: float) -> str:
    """Format milliseconds or megabytes with three significant digits, and four digits after the point for microseconds."""
    return f"{value:.4f}" if value < 0.1 else f"{value:.2f}" if value < 10 else f"{value:.1f}" if value < 100 else f"{value:.0f}"


def best_peer(times: Mapping[str, float]) -> tuple[str, float]:
    """Return the fastest runtime beside ortrain, and its time."""
    return min(((name, value) for name, value in times.items() if name != OURS), key=lambda pair: pair[1])


def geometric_mean(values: list[float]) -> float:
    """Return the geometric mean of positive numbers."""
    return exp(sum(map(log, values)) / len(values))


def comparison(results: Results) -> str:
    """Render step times with one thread and with two beside the best peer's, and the recorded ratios of memory and cold start."""
    columns = [key for key in RATIOS if any(key in row["over_best_peer"] for row in results["workloads"].values())]
    lines = ["| workload | 1 thread, ms | best peer | ratio | 2 threads, ms | best peer | ratio |" + "".join(f" {RATIOS[key]} |" for key in columns),
             "|---|" + "---:|" * (6 + len(columns))]
    ratios: dict[str, list[float]] = {"1": [], "2": []}
    for workload, row in results["workloads"].items():
        cells = [workload]
        for threads in ("1", "2"):
            times = row["step_ms"][threads]
            name, best = best_peer(times)
            ratios[threads].append(times[OURS] / best)
            cells += [number(times[OURS]), f"{number(best)} ({name})", f"{ratios[threads][-1]:.2f}"]
        cells += [f"{row['over_best_peer'][key]:.2f}" for key in columns]
        lines.append(f"| {' | '.join(cells)} |")
    means = [f"{geometric_mean(ratios[threads]):.2f}" for threads in ("1", "2")]
    lines.append(f"| geometric mean | | | {means[0]} | | | {means[1]} |" + " |" * len(columns))
    return "\n".join(lines) + "\n"


def all_runtimes(results: Results) -> str:
    """Render the step time of every runtime with two threads, and the peak memory of those that were recorded."""
    lines = ["| workload | " + " | ".join(SHORT.get(name, name) for name in RUNTIMES) + " | " + " | ".join(f"{SHORT.get(name, name)}, MB" for name in WITH_PEAK) + " |",
             "|---|" + "---:|" * (len(RUNTIMES) + len(WITH_PEAK))]
    for workload, row in results["workloads"].items():
        times, peaks = [row["step_ms"]["2"].get(name) for name in RUNTIMES], [row["peak_mb"].get(name) for name in WITH_PEAK]
        cells = [*("-" if value is None else number(value) for value in times), *("-" if value is None else f"{value:.0f}" for value in peaks)]
        lines.append(f"| {workload} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def rendered(text: str) -> str:
    """Return a document with its tables rendered anew."""
    return BLOCK.sub(lambda m: m[1] + (all_runtimes if m["all"] else comparison)(load(m["name"])) + m[4], text)


def record(path: Path, machine: Mapping[str, Any], rounds: int, summary: Mapping[str, Mapping[str, Mapping[str, Mapping[str, Any]]]]) -> None:
    """Write the summary of a run of `python -m benchmarks` as recorded results.

    summary: workload -> threads -> runtime -> figures (benchmarks.run.summarize)."""
    titles = {OURS: OURS, "onnxruntime": "onnxruntime-training", "torch-eager": "PyTorch eager", "torch-compile": "PyTorch compiled", "jax": "JAX"}
    figures = {"growth_after_loading": ("2", OURS, "loaded_growth_mb"), "growth_after_import": ("2", OURS, "growth_mb"),
               "lowest_memory_options": ("2", LOWEST_MEMORY, "growth_mb"), "peak_memory": ("2", OURS, "peak_rss_mb"), "cold_start": ("1", OURS, "cold_start_s")}
    workloads: dict[str, Any] = {}
    for workload, by_threads in summary.items():
        good = {threads: {name: row for name, row in by_runtime.items() if row["status"] == "ok"} for threads, by_runtime in by_threads.items()}
        over: dict[str, float] = {}
        for key, (threads, ours, figure) in figures.items():
            rows = good.get(threads, {})
            peers = [rows[name][figure] for name in titles if name != OURS and name in rows and rows[name].get(figure)]
            if ours in rows and rows[ours].get(figure) and peers:
                over[key] = round(rows[ours][figure] / min(peers), 2)
        workloads[workload] = {
            "step_ms": {threads: {titles[name]: row["median_ms"] for name, row in rows.items() if name in titles} for threads, rows in good.items()},
            "over_best_peer": over, "peak_mb": {titles[name]: row["peak_rss_mb"] for name, row in good.get("2", {}).items() if name in titles}}
    results = {"chip": machine["processor"], "cpus": machine["cpus"], "instruction_set": machine["instruction set"], "rounds": rounds, "workloads": workloads}
    path.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


def main() -> int:
    stale = [path for path in DOCUMENTS if rendered(path.read_text(encoding="utf-8")) != path.read_text(encoding="utf-8")]
    for path in stale:
        print(f"{path.relative_to(ROOT)}: tables differ from benchmarks/results")
        if "--check" not in sys.argv[1:]:
            path.write_text(rendered(path.read_text(encoding="utf-8")), encoding="utf-8")
    return int(bool(stale) and "--check" in sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
