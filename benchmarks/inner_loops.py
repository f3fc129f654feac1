"""The table of inner loops on ARM in docs/arm.md, from recorded results of python -m tests.arm.throughput."""

from __future__ import annotations

from typing import Any

TILE_TITLES = {("float", "packed"): "product, packed", ("float", "in_place"): "product, read in place", ("float", "windows"): "direct convolution",
               ("float", "transposed"): "its weight gradient", ("float", "nn"): "other convolutions", ("float", "tn"): "their weight gradients",
               ("bfloat16", "packed"): "bfloat16 product, packed", ("bfloat16", "in_place"): "bfloat16 product, read in place"}
"""Type and kind of a tile -> its name in the table."""


def inner_loops_table(results: dict[str, Any]) -> str:
    """Render the share of possible products per cycle that tiles of each kind and width reach, from the lowest to the highest over their numbers of rows.

    A processor without products of bfloat16 has a dash there; one with them makes as many in a cycle as of float32."""
    peaks = results["possible"]["float"]
    lines = ["| tile | rows | " + " | ".join(f"{name}, {peak:.0f} a cycle" for name, peak in peaks.items()) + " |", "|---|---|" + "---:|" * len(peaks)]
    for row in results["tiles"]:
        plural = "s" if row["vectors"] > 1 else ""
        rows = f"{row['rows'][0]} to {row['rows'][-1]}" if len(row["rows"]) > 2 else " and ".join(map(str, row["rows"]))
        title = TILE_TITLES[row["dtype"], row["kind"]]
        cells = [f"{title}, {row['vectors']} vector{plural}", rows, *(share_cell(*row["share"][name]) if name in row["share"] else "–" for name in peaks)]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def share_cell(lowest: float, highest: float) -> str:
    """Render a range of shares; more than all is the rounding of a whole number of cycles."""
    low, high = (f"{min(share, 1) * 100:.0f}" for share in (lowest, highest))
    return f"{low} %" if low == high else f"{low} to {high} %"
