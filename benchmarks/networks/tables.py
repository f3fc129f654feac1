"""The tables of networks in docs/benchmarks.md, from recorded results."""

from __future__ import annotations

from typing import Any

from benchmarks.peers.environments import OURS, OURS_IN_FLOAT32, OWN
from benchmarks.tables import geometric_mean, round_figure

COLUMNS = ["network", "1 thread, ms", "best peer", "ratio", "over floor", "2 threads, ms", "best peer", "ratio", "over floor", "copies", "slowest kernels"]
SHORT_NAMES = {"torch-eager": "eager", "torch-compile": "compiled", "onnxruntime": "ort-training"}
"""Peer -> its name in the table."""
SLOWEST_KERNELS = 3
NATIVE = "native"
"""The instruction set that ortrain chooses on a processor."""


def networks_table(results: dict[str, Any]) -> str:
    """Render step times beside the best peer and the lower bound, the share of layout copies, and the kernels that take longest on one thread."""
    lines = [f"| {' | '.join(COLUMNS)} |", "|---|" + "---:|" * (len(COLUMNS) - 2) + "---|"]
    ratios: dict[str, list[float]] = {"1": [], "2": []}
    for name, by_threads in results["networks"].items():
        cells = [name]
        for threads, found in ratios.items():
            row = by_threads.get(threads)
            cells += threads_cells(row)
            if row and row["ratio"]:
                found.append(row["ratio"])
        floor = by_threads["1"]["floor"]
        cells += [f"{floor['strided_copy']:.0%}", ", ".join(f"`{kernel}` {share:.0%}" for kernel, share in list(floor["top"].items())[:SLOWEST_KERNELS])]
        lines.append(f"| {' | '.join(cells)} |")
    means = [f"{geometric_mean(found):.2f}" if found else "-" for found in ratios.values()]
    lines.append(f"| geometric mean | | | {means[0]} | | | | {means[1]} | | | |")
    return "\n".join(lines) + "\n"


def bfloat16_table(results: dict[str, Any]) -> str:
    """Render step times in bfloat16 beside the best peer's in bfloat16 and beside ortrain's own in float32."""
    columns = [f"{threads}, ms | best peer | ratio | over own float32" for threads in ("1 thread", "2 threads")]
    lines = [f"| network | {' | '.join(columns)} |", "|---|" + "---:|" * 8]
    figures: list[list[float]] = [[], [], [], []]
    for name, by_threads in results["networks"].items():
        cells = [name]
        for index, threads in enumerate(("1", "2")):
            row = by_threads.get(threads)
            if row is None:
                cells += ["-"] * 4
                continue
            share = row["step_ms"][OURS] / row["step_ms"][OURS_IN_FLOAT32]
            cells += [*threads_cells(row)[:3], f"{share:.2f}"]
            figures[2 * index].append(row["ratio"])
            figures[2 * index + 1].append(share)
        lines.append(f"| {' | '.join(cells)} |")
    means = [f"{geometric_mean(found):.2f}" if found else "-" for found in figures]
    lines.append(f"| geometric mean | | | {means[0]} | {means[1]} | | | {means[2]} | {means[3]} |")
    return "\n".join(lines) + "\n"


def instruction_sets_table(results: dict[str, Any]) -> str:
    """Render the step times of each instruction set, and how they relate to that of the processor."""
    names = list(next(iter(results["networks"].values())))
    titles = [results["machine"]["instruction set"], *names[1:]]
    lines = [f"| network | {' | '.join(f'{title}, ms | over floor' for title in titles)} | {' | '.join(f'{title} over {titles[0]}' for title in titles[1:])} |",
             "|---|" + "---:|" * (3 * len(titles) - 1)]
    ratios: dict[str, list[float]] = {name: [] for name in names if name != NATIVE}
    for network, rows in results["networks"].items():
        cells = [cell for name in names for cell in (round_figure(rows[name]["step_ms"]), f"{rows[name]['over_floor']:.2f}")]
        for name, found in ratios.items():
            found.append(rows[name]["step_ms"] / rows[NATIVE]["step_ms"])
            cells.append(f"{found[-1]:.2f}")
        lines.append(f"| {network} | {' | '.join(cells)} |")
    means = " | ".join(f"{geometric_mean(found):.2f}" for found in ratios.values())
    lines.append(f"| geometric mean |{' |' * (2 * len(titles))} {means} |")
    return "\n".join(lines) + "\n"


def threads_cells(row: dict[str, Any] | None) -> list[str]:
    """Return the cells of one number of threads: step time, best peer, ratio and step time over the lower bound."""
    if row is None or row["ratio"] is None:
        return ["-"] * 4
    peer = min((name for name in row["step_ms"] if name not in OWN), key=row["step_ms"].__getitem__)
    return [round_figure(row["step_ms"][OURS]), f"{round_figure(row['step_ms'][peer])} ({SHORT_NAMES.get(peer, peer)})", f"{row['ratio']:.2f}",
            f"{row['over_floor']:.2f}" if row["over_floor"] else "-"]
