"""Comparison tables of the documents, rendered from recorded results.

    python -m benchmarks.documents            write the tables into the documents
    python -m benchmarks.documents --check    exit with status 1 if a table differs from the results

A document marks the place of a table with `<!-- KIND: NAME -->` and `<!-- end of results -->`, where KIND is a key of TABLES and NAME a file in
benchmarks/results, which the option `--record NAME` of `python -m benchmarks` and of its `networks`, `operators`, `accuracy`, `parallel`, `privacy` and
`cluster` writes, and `--record` of `python -m tests.arm.throughput`.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Mapping
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.accuracy.tables import accuracy_table, gradients_table
from benchmarks.cluster.tables import CLIENT_WORKLOADS, WORKER_WORKLOADS, clients_table, efficiency_table, model_check_table, sharding_table, workers_table
from benchmarks.inner_loops import inner_loops_table
from benchmarks.networks.tables import bfloat16_table, instruction_sets_table, networks_table
from benchmarks.operators.tables import operators_table, slower_operators_table, view_operators_table
from benchmarks.peers.environments import LOWEST_MEMORY, OURS
from benchmarks.tables import geometric_mean, privacy_table, round_figure

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
DOCUMENTS = (ROOT / "README.md", *(ROOT / "docs" / name for name in ("performance.md", "benchmarks.md", "arm.md", "accuracy.md", "how-to/data-parallel.md",
                                                                     "how-to/differential-privacy.md", "how-to/scale.md")))
DISPLAY_NAMES = {OURS: OURS, "onnxruntime": "onnxruntime-training", "torch-eager": "PyTorch eager", "torch-compile": "PyTorch compiled", "jax": "JAX"}
"""Runtime -> its name in recorded results, in the order of the table's columns."""
COLUMN_TITLES = {"onnxruntime-training": "ort-training", "PyTorch eager": "PyTorch", "PyTorch compiled": "torch.compile"}
"""Shorter names for the table of every runtime, which README.md keeps within 120 columns."""
PEAK_MEMORY_RUNTIMES = (OURS, "onnxruntime-training", "PyTorch eager")
RATIO_TITLES = {"growth_after_loading": "growth after loading", "growth_after_import": "growth after import",
                "lowest_memory_options": "lowest-memory options", "peak_memory": "peak memory", "cold_start": "cold start"}
"""Recorded ratios to the best peer -> column titles. A table has the columns that were recorded."""
RATIO_SOURCES = {"growth_after_loading": ("2", OURS, "loaded_growth_mb"), "growth_after_import": ("2", OURS, "growth_mb"),
                 "lowest_memory_options": ("2", LOWEST_MEMORY, "growth_mb"), "peak_memory": ("2", OURS, "peak_rss_mb"),
                 "cold_start": ("1", OURS, "cold_start_s")}
"""Recorded ratio -> threads, runtime and figure of a benchmark run that it is computed from."""

Results = dict[str, Any]


def load(name: str) -> Results:
    """Read a file of recorded results."""
    return dict(json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8")))


def best_peer(times: Mapping[str, float]) -> tuple[str, float]:
    """Return the fastest runtime other than ortrain, and its time."""
    return min(((name, value) for name, value in times.items() if name != OURS), key=lambda pair: pair[1])


def best_peer_table(results: Results) -> str:
    """Render the step times of ortrain and of the best peer on one thread and on two, and the recorded ratios."""
    ratio_keys = [key for key in RATIO_TITLES if any(key in row["over_best_peer"] for row in results["workloads"].values())]
    lines = ["| workload | 1 thread, ms | best peer | ratio | 2 threads, ms | best peer | ratio |" + "".join(f" {RATIO_TITLES[key]} |" for key in ratio_keys),
             "|---|" + "---:|" * (6 + len(ratio_keys))]
    time_ratios: dict[str, list[float]] = {"1": [], "2": []}
    for workload, row in results["workloads"].items():
        cells = [workload]
        for threads, ratios in time_ratios.items():
            times = row["step_ms"][threads]
            name, best = best_peer(times)
            ratios.append(times[OURS] / best)
            cells += [round_figure(times[OURS]), f"{round_figure(best)} ({name})", f"{ratios[-1]:.2f}"]
        cells += [f"{row['over_best_peer'][key]:.2f}" if key in row["over_best_peer"] else "-" for key in ratio_keys]
        lines.append(f"| {' | '.join(cells)} |")
    means = [f"{geometric_mean(ratios):.2f}" for ratios in time_ratios.values()]
    lines.append(f"| geometric mean | | | {means[0]} | | | {means[1]} |" + " |" * len(ratio_keys))
    return "\n".join(lines) + "\n"


def runtimes_table(results: Results) -> str:
    """Render the step time of every runtime on two threads, and the recorded peak memory of some."""
    def titles(names: list[str]) -> list[str]:
        return [COLUMN_TITLES.get(name, name) for name in names]

    runtimes, with_memory = list(DISPLAY_NAMES.values()), list(PEAK_MEMORY_RUNTIMES)
    columns = ["workload", *titles(runtimes), *(f"{title}, MB" for title in titles(with_memory))]
    lines = [f"| {' | '.join(columns)} |", "|---|" + "---:|" * (len(columns) - 1)]
    for workload, row in results["workloads"].items():
        times, peaks = [row["step_ms"]["2"].get(name) for name in runtimes], [row["peak_mb"].get(name) for name in with_memory]
        cells = [*("-" if value is None else round_figure(value) for value in times), *("-" if value is None else f"{value:.0f}" for value in peaks)]
        lines.append(f"| {workload} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


TABLES: dict[str, Callable[[Results], str]] = {
    "results": best_peer_table, "results of all runtimes": runtimes_table, "networks": networks_table, "networks in bfloat16": bfloat16_table,
    "instruction sets": instruction_sets_table,
    "operators": operators_table, "slower operators": slower_operators_table, "operators with views": view_operators_table, "inner loops": inner_loops_table,
    "accuracy": accuracy_table, "gradient angles": gradients_table, "efficiency of workers": efficiency_table, "sharded optimizers": sharding_table,
    "privacy": privacy_table, "model of workers": model_check_table,
    **{f"workers of {name}": partial(workers_table, workload=name) for name in WORKER_WORKLOADS},
    **{f"clients of {name}": partial(clients_table, workload=name) for name in CLIENT_WORKLOADS}}
"""Kind of a table, as it stands in a document -> what renders it."""
TABLE = re.compile(rf"(<!-- (?P<kind>{'|'.join(TABLES)}): (?P<name>[\w-]+) -->\n).*?(<!-- end of results -->)", re.DOTALL)


def render(text: str) -> str:
    """Return the text of a document with its tables replaced by freshly rendered ones."""
    return TABLE.sub(lambda match: match[1] + TABLES[match["kind"]](load(match["name"])) + match[4], text)


def record(path: Path, machine: Mapping[str, Any], rounds: int, summary: Mapping[str, Mapping[str, Mapping[str, Mapping[str, Any]]]]) -> None:
    """Write the summary of a run of `python -m benchmarks` as recorded results.

    summary: workload -> threads -> runtime -> figures, as benchmarks.run.summarize returns it. A workload that was not measured with ortrain and with a peer,
    on one thread and on two, is left out."""
    workloads: dict[str, Any] = {}
    versions: dict[str, str] = {}
    for workload, by_threads in summary.items():
        succeeded = {threads: {name: row for name, row in by_runtime.items() if row["status"] == "ok"} for threads, by_runtime in by_threads.items()}
        if not all({OURS} < DISPLAY_NAMES.keys() & succeeded.get(threads, {}).keys() for threads in ("1", "2")):
            continue
        ratios: dict[str, float] = {}
        for key, (threads, runtime, figure) in RATIO_SOURCES.items():
            rows = succeeded.get(threads, {})
            peers = [rows[name][figure] for name in DISPLAY_NAMES if name != OURS and name in rows and rows[name].get(figure)]
            if runtime in rows and rows[runtime].get(figure) and peers:
                ratios[key] = round(rows[runtime][figure] / min(peers), 2)
        workloads[workload] = {
            "step_ms": {threads: {DISPLAY_NAMES[name]: row["median_ms"] for name, row in rows.items() if name in DISPLAY_NAMES}
                        for threads, rows in succeeded.items()},
            "over_best_peer": ratios,
            "peak_mb": {DISPLAY_NAMES[name]: row["peak_rss_mb"] for name, row in succeeded.get("2", {}).items() if name in DISPLAY_NAMES}}
        versions |= {DISPLAY_NAMES[name].split()[0]: row["version"] for rows in succeeded.values() for name, row in rows.items()
                     if name in DISPLAY_NAMES and row.get("version")}
    results = {"chip": machine["processor"], "cpus": machine["cpus"], "instruction_set": machine["instruction set"], "date": date.today().isoformat(),
               "rounds": rounds, "versions": versions, "workloads": workloads}
    path.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


def main() -> int:
    """Write or check the tables of all documents; return the exit status."""
    check = "--check" in sys.argv[1:]
    stale = {path: text for path in DOCUMENTS if (text := render(path.read_text(encoding="utf-8"))) != path.read_text(encoding="utf-8")}
    for path, text in stale.items():
        print(f"{path.relative_to(ROOT)}: tables differ from benchmarks/results")
        if not check:
            path.write_text(text, encoding="utf-8")
    return int(check and bool(stale))


if __name__ == "__main__":
    sys.exit(main())
