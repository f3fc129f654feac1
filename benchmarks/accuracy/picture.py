"""The picture of held-out losses in docs/accuracy.svg, drawn from recorded results.

    python -m benchmarks.accuracy.picture NAME        draw it from benchmarks/results/NAME.json
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.documents import ROOT
from benchmarks.documents import load as load_results
from benchmarks.measure import BFLOAT16, FLOAT32

PICTURE = ROOT / "docs" / "accuracy.svg"
COLUMNS, PANEL_WIDTH, PANEL_HEIGHT = 3, 3.0, 2.2
"""Panels of a row, and inches of a panel."""
COLORS = {FLOAT32: "#009688", BFLOAT16: "#e65100"}


def curves(results: Mapping[str, Any]) -> dict[str, dict[str, list[list[float]]]]:
    """Return what is drawn: task -> precision -> the held-out losses after each epoch, by seed."""
    return {name: {precision: [run["held_out_losses"] for run in runs] for precision, runs in task["runs"].items()} for name, task in results["tasks"].items()}


def fingerprint(results: Mapping[str, Any]) -> str:
    """Return a digest of what is drawn. The picture holds it, so that a test can tell whether the picture is that of the recorded results."""
    return hashlib.sha256(json.dumps(curves(results), sort_keys=True).encode()).hexdigest()


def draw(results: Mapping[str, Any], path: Path) -> None:
    """Draw a panel for each task: in both precisions the mean of the seeds as a line, and from the lowest to the highest as an area."""
    import matplotlib
    from matplotlib import ticker
    from matplotlib.figure import Figure

    drawn = curves(results)
    rows = -(-len(drawn) // COLUMNS)
    with matplotlib.rc_context({"svg.hashsalt": "ortrain", "svg.fonttype": "none", "font.size": 8}):
        picture = Figure(figsize=(COLUMNS * PANEL_WIDTH, rows * PANEL_HEIGHT), layout="constrained", facecolor="white")
        panels = picture.subplots(rows, COLUMNS, squeeze=False).ravel()
        for panel, (name, by_precision) in zip(panels, drawn.items(), strict=False):
            for precision, losses in by_precision.items():
                values = np.array(losses)
                epochs = np.arange(1, values.shape[1] + 1)
                panel.fill_between(epochs, values.min(axis=0), values.max(axis=0), color=COLORS[precision], alpha=0.2, linewidth=0)
                panel.plot(epochs, values.mean(axis=0), color=COLORS[precision], linestyle="-" if precision == FLOAT32 else "--", label=precision)
            panel.set(title=name, yscale="log", xlabel="epoch", ylabel="held-out loss")
            panel.xaxis.set_major_locator(ticker.MaxNLocator(5, integer=True))
            panel.yaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
            panel.yaxis.set_major_formatter(ticker.StrMethodFormatter("{x:g}"))
            panel.yaxis.set_minor_formatter(ticker.NullFormatter())
        panels[0].legend(frameon=False)
        for panel in panels[len(drawn):]:
            panel.set_axis_off()
        picture.savefig(path, format="svg", metadata={"Date": None, "Description": fingerprint(results)})


if __name__ == "__main__":
    draw(load_results(sys.argv[1]), PICTURE)
