"""The tables of operators in docs/benchmarks.md, from recorded results."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from benchmarks.tables import geometric_mean

COLUMNS = ["operator", "cases", "over PyTorch, mean", "worst", "over bound, mean", "over PyTorch, 2 threads", "worst"]
VIEW_COLUMNS = ["case", "threads", "µs", "PyTorch, µs", "over bound", "slowest kernel"]
SLOWER_COLUMNS = ["case", "threads", "µs", "PyTorch, µs", "over PyTorch", "over bound", "slowest kernel"]
SLOWER = 1.1
"""Ratio to PyTorch above which a case is listed by itself. Shortest times of many differ by up to a tenth from run to run."""
PASS_TITLES = {"forward": "", "both": " + gradient"}
"""Part of a case -> what is added to its name."""

Row = dict[str, Any]


def operators_table(results: dict[str, Any]) -> str:
    """Render one row per operator: geometric means and worst cases of the ratios to PyTorch, and the distance from the bound."""
    by_threads = {threads: group_by_operator(recorded["rows"]) for threads, recorded in results["threads"].items()}
    lines = [f"| {' | '.join(COLUMNS)} |", "|---|" + "---:|" * (len(COLUMNS) - 1)]
    for operator, rows in sorted(by_threads["1"].items()):
        bound = geometric_mean([row["seconds"] / row["bound"] for row in rows])
        cells = [operator, str(len(rows)), *ratio_cells(rows), f"{bound:.1f}", *ratio_cells(by_threads.get("2", {}).get(operator, []))]
        lines.append(f"| {' | '.join(cells)} |")
    means = [f"{geometric_mean(found):.2f}" if (found := list(peer_ratios(results["threads"].get(threads, {}).get("rows", [])))) else "-" for threads in "12"]
    lines.append(f"| geometric mean of all cases | | {means[0]} | | | {means[1]} | |")
    return "\n".join(lines) + "\n"


def slower_operators_table(results: dict[str, Any]) -> str:
    """Render the cases that take more than SLOWER times as long as PyTorch's, the worst first."""
    rows = [(threads, row) for threads, recorded in results["threads"].items() for row in recorded["rows"]
            if is_comparable(row) and row["seconds"] / row["peer"] > SLOWER]
    lines = [f"| {' | '.join(SLOWER_COLUMNS)} |", "|---|" + "---:|" * (len(SLOWER_COLUMNS) - 2) + "---|"]
    for threads, row in sorted(rows, key=lambda pair: -pair[1]["seconds"] / pair[1]["peer"]):
        lines.append(f"| {row['name']}{PASS_TITLES[row['part']]} | {threads} | {row['seconds'] * 1e6:.1f} | {row['peer'] * 1e6:.1f} "
                     f"| {row['seconds'] / row['peer']:.2f} | {row['seconds'] / row['bound']:.1f} | `{row['slowest']}` |")
    return "\n".join(lines) + "\n"


def view_operators_table(results: dict[str, Any]) -> str:
    """Render the cases in which PyTorch returns a view of the incoming gradient where ours is written, in the order of the benchmark."""
    lines = [f"| {' | '.join(VIEW_COLUMNS)} |", "|---|" + "---:|" * (len(VIEW_COLUMNS) - 2) + "---|"]
    for threads, recorded in results["threads"].items():
        lines += [f"| {row['name']}{PASS_TITLES[row['part']]} | {threads} | {row['seconds'] * 1e6:.1f} | {row['peer'] * 1e6:.1f} "
                  f"| {row['seconds'] / row['bound']:.1f} | `{row['slowest']}` |" for row in recorded["rows"] if row.get("view")]
    return "\n".join(lines) + "\n"


def is_comparable(row: Row) -> bool:
    """Return whether PyTorch was measured, and does the same work. Results of before views were told apart count all cases."""
    return bool(row["peer"]) and not row.get("view")


def group_by_operator(rows: list[Row]) -> dict[str, list[Row]]:
    """Return operator -> its rows. The name of a case begins with that of its operator."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(row["name"].split()[0], []).append(row)
    return groups


def peer_ratios(rows: list[Row]) -> Iterator[float]:
    """Yield the ratios to PyTorch of the rows that have one."""
    return (row["seconds"] / row["peer"] for row in rows if is_comparable(row))


def ratio_cells(rows: list[Row]) -> list[str]:
    """Return the geometric mean and the largest of the ratios to PyTorch."""
    ratios = list(peer_ratios(rows))
    return [f"{geometric_mean(ratios):.2f}", f"{max(ratios):.2f}"] if ratios else ["-", "-"]
