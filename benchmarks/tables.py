"""The report of a benchmark run as markdown, and how figures are formatted in all reports."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from math import exp, log
from typing import Any

from benchmarks.peers.environments import LOWEST_MEMORY, OURS, OURS_IN_FLOAT32, OWN

Result = dict[str, Any]
Summary = dict[str, dict[str, dict[str, Result]]]
"""workload -> threads -> runtime -> result"""


RATIO_TITLES = {OURS: "ratio", LOWEST_MEMORY: "ratio, lowest-memory options", OURS_IN_FLOAT32: "ratio, float32"}


def format_number(value: float | None) -> str:
    """Format a figure: four digits after the point below 0.1, three below 10, otherwise one; `-` for None."""
    if value is None:
        return "-"
    return f"{value:.4f}" if value < 0.1 else f"{value:.3f}" if value < 10 else f"{value:.1f}"


def round_figure(value: float) -> str:
    """Format milliseconds with at most three significant digits below 1000: 0.0238, 0.42, 50.9, 189, 1351."""
    return f"{value:.3g}" if value < 0.1 else f"{value:.2f}" if value < 10 else f"{value:.1f}" if value < 100 else f"{value:.0f}"


def geometric_mean(values: list[float]) -> float:
    """Return the geometric mean of positive numbers."""
    return exp(sum(map(log, values)) / len(values))


def describe(result: Result) -> str:
    """Return the step time of a result, or why there is none."""
    return f"{format_number(result['median_ms'])} ms" if result["status"] == "ok" else f"{result['status']}: {result['reason']}"


def report(summary: Summary, machine: dict[str, Any], missing: dict[str, str], rounds: int) -> str:
    """Return the tables of step time, memory and cold start, followed by the runtimes and workloads that did not run.

    missing: runtime -> why it was left out."""
    names = list(dict.fromkeys(name for by_threads in summary.values() for row in by_threads.values() for name in row))
    threads = list(dict.fromkeys(count for by_threads in summary.values() for count in by_threads))
    lines = [f"{machine['processor']}, {machine['cpus']} CPUs, {machine['instruction set']}, Python {machine['python']}; medians of {rounds} rounds"]
    for count in threads:
        title = f"Step, {count} thread{'s' if count != '1' else ''}, ms"
        lines += ["", *table(f"{title} (ratio: ortrain to the best peer)", summary, names, count, "median_ms")]
    most = max(threads, key=int)
    lines += ["", *table("Growth after import: memory that training adds to the imported runtime, MB", summary, names, most, "growth_mb")]
    lines += ["", *table("Growth after loading: memory that steps add to the loaded artifacts, MB", summary, names, most, "loaded_growth_mb")]
    lines += ["", *table("Peak memory of the process, MB", summary, names, most, "peak_rss_mb")]
    lines += ["", *table("Cold start: from the start of the process to the end of the first step, s", summary, names, most, "cold_start_s")]
    notes = [f"- {name} is left out: {reason}" for name, reason in missing.items()]
    notes += sorted({f"- {workload}, {name}, {result['status']}: {result['reason']}" for workload, by_threads in summary.items()
                     for row in by_threads.values() for name, result in row.items() if result["status"] != "ok"})
    return "\n".join([*lines, *([""] if notes else []), *notes])


def table(title: str, summary: Summary, names: list[str], threads: str, key: str) -> Iterator[str]:
    """Yield the lines of a table with one row per workload; the last columns are the ratios of ortrain to the best peer."""
    own_names = [name for name in OWN if name in names] or [OURS]
    ratio_titles = [RATIO_TITLES[name] for name in own_names]
    yield f"### {title}"
    yield ""
    yield f"| workload | {' | '.join([*names, *ratio_titles])} |"
    yield "|---" + "|---:" * (len(names) + len(own_names)) + "|"
    for workload, by_threads in summary.items():
        row = by_threads.get(threads, {})
        value: Callable[[str], float | None] = lambda name, row=row: row.get(name, {}).get(key)  # type: ignore[misc]
        cells = [format_number(value(name)) if row.get(name, {}).get("status") == "ok" else row.get(name, {}).get("status", "-") for name in names]
        peers = [figure for name in names if name not in own_names and (figure := value(name)) is not None]
        cells += [f"{value(name) / min(peers):.2f}" if value(name) is not None and peers and min(peers) > 0 else "-" for name in own_names]
        yield f"| {' | '.join([workload, *cells])} |"


def privacy_table(results: Mapping[str, Any]) -> str:
    """Render the steps with and without differential privacy that `python -m benchmarks privacy` has recorded."""
    lines = ["| network | batch | step, ms | private, ms | factor | one by one, ms | memory, MB | private, MB |", "|---|" + "---:|" * 7]
    for name, row in results["networks"].items():
        figures = [round_figure(row[key]) for key in ("plain_ms", "private_ms", "one_by_one_ms", "plain_mb", "private_mb")]
        figures.insert(2, f"{row['private_ms'] / row['plain_ms']:.2f}")
        lines.append(f"| {name}: {row['kind']} | {row['batch']} | {' | '.join(figures)} |")
    return "\n".join(lines) + "\n"
