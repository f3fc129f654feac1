"""The comparison as markdown."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from benchmarks.peers.environments import LOWEST_MEMORY, OURS

Result = dict[str, Any]
Summary = dict[str, dict[str, dict[str, Result]]]
"""workload -> threads -> runtime -> result"""
LARGE, MIDDLE = 10, 0.1
"""Numbers from here on are shown with one digit after the point, and with three."""


def number(value: float | None) -> str:
    """Three or four significant digits, as far as they mean something."""
    if value is None:
        return "-"
    return f"{value:.4f}" if value < MIDDLE else f"{value:.3f}" if value < LARGE else f"{value:.1f}"


def describe(result: Result) -> str:
    return f"{number(result['median_ms'])} ms" if result["status"] == "ok" else f"{result['status']}: {result['reason']}"


def report(summary: Summary, machine: dict[str, Any], missing: dict[str, str], rounds: int) -> str:
    """The tables of step time by threads, of memory and of cold start, and what did not run."""
    names = list(dict.fromkeys(name for by_threads in summary.values() for row in by_threads.values() for name in row))
    threads = list(dict.fromkeys(count for by_threads in summary.values() for count in by_threads))
    lines = [f"{machine['processor']}, {machine['cpus']} CPUs, {machine['instruction set']}, Python {machine['python']}; medians of {rounds} rounds"]
    for count in threads:
        title = f"Step, {count} thread{'s' if count != '1' else ''}, ms"
        lines += ["", *table(f"{title} (ortrain over the best peer)", summary, names, count, "median_ms")]
    most = max(threads, key=int)
    lines += ["", *table("Memory that training adds to the imported runtime, MB (ortrain over the best peer)", summary, names, most, "growth_mb")]
    lines += ["", *table("Memory that steps add to the loaded artifacts, MB", summary, names, most, "loaded_growth_mb")]
    lines += ["", *table("Peak memory of the process, MB", summary, names, most, "peak_rss_mb")]
    lines += ["", *table("Cold start: process start to the first finished step, s", summary, names, most, "cold_start_s")]
    notes = [f"- {name} is left out: {reason}" for name, reason in missing.items()]
    notes += sorted({f"- {workload}, {name}, {result['status']}: {result['reason']}" for workload, by_threads in summary.items()
                     for row in by_threads.values() for name, result in row.items() if result["status"] != "ok"})
    return "\n".join([*lines, *([""] if notes else []), *notes])


def table(title: str, summary: Summary, names: list[str], threads: str, key: str) -> Iterator[str]:
    """One row for each workload; the last columns are ours over the least of the peers'."""
    ours = [name for name in (OURS, LOWEST_MEMORY) if name in names] or [OURS]
    ratios = ["ratio" if name == OURS else "ratio, lowest-memory options" for name in ours]
    yield f"### {title}"
    yield ""
    yield f"| workload | {' | '.join([*names, *ratios])} |"
    yield "|---" + "|---:" * (len(names) + len(ours)) + "|"
    for workload, by_threads in summary.items():
        row = by_threads.get(threads, {})
        value: Callable[[str], float | None] = lambda name, row=row: row.get(name, {}).get(key)  # type: ignore[misc]
        cells = [number(value(name)) if row.get(name, {}).get("status") == "ok" else row.get(name, {}).get("status", "-") for name in names]
        peers = [found for name in names if name not in ours and (found := value(name)) is not None]
        cells += [f"{value(name) / min(peers):.2f}" if value(name) is not None and peers and min(peers) > 0 else "-" for name in ours]
        yield f"| {' | '.join([workload, *cells])} |"
