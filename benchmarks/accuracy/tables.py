"""The tables of docs/accuracy.md, from recorded results."""

from __future__ import annotations

from collections.abc import Mapping
from math import floor, log10
from statistics import mean, stdev
from typing import Any

from benchmarks.measure import BFLOAT16, FLOAT32

TITLES = {"accuracy": "accuracy", "r2": "R²", "perplexity": "perplexity"}
"""Metric -> how people call it."""


def figures(task: Mapping[str, Any], precision: str, figure: str) -> list[float]:
    """Return a figure of the trainings with each seed."""
    return [run[figure] for run in task["runs"][precision]]


def is_within(task: Mapping[str, Any], figure: str) -> bool:
    """Return whether the mean in bfloat16 lies within the spread of the seeds in float32."""
    exact = figures(task, FLOAT32, figure)
    return min(exact) <= mean(figures(task, BFLOAT16, figure)) <= max(exact)


def accuracy_table(results: Mapping[str, Any]) -> str:
    """Render the held-out loss and metric of each task in both precisions, mean ± standard deviation, lowest to highest, and how far trainings with the same
    seed are from each other."""
    lines = ["| training | held out | float32 | bfloat16 | within | same seed |", "|---|---|---|---|---|---:|"]
    for name, task in results["tasks"].items():
        for figure in ("loss", task["metric"]):
            exact, narrow = (figures(task, precision, figure) for precision in (FLOAT32, BFLOAT16))
            apart = mean(abs(first - second) for first, second in zip(exact, narrow, strict=True))
            title = f"{name}: {task['title']}" if figure == "loss" else ""
            digits = _digits(mean(exact))
            cells = [title, TITLES.get(figure, figure), _spread(exact, digits), _spread(narrow, digits), "yes" if is_within(task, figure) else "no",
                     f"{apart:.{digits}f}"]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _digits(value: float) -> int:
    """Return how many digits after the point show four significant digits of a number."""
    return max(0, 3 - floor(log10(abs(value)))) if value else 3


def _spread(values: list[float], digits: int) -> str:
    deviation = stdev(values) if len(values) > 1 else 0.0
    shown = [f"{value:.{digits}f}" for value in (mean(values), deviation, min(values), max(values))]
    return "{} ± {} ({} to {})".format(*shown)


def gradients_table(results: Mapping[str, Any]) -> str:
    """Render the cosines of the float32 gradient with the one in bfloat16, of all parameters and of the layer with the lowest one, and with the float32
    gradient of another batch. All are means over the seeds."""
    moments = {"start": "at the start", "end": "at the end"}
    columns = [column for title in moments.values() for column in (title, "lowest layer", "another batch")]
    lines = [f"| training | products in bfloat16 | {' | '.join(columns)} |", "|---|---:|" + "---:|---|---:|" * len(moments)]
    for name, task in results["tasks"].items():
        products = task["products"]
        cells = [name, f"{products['in_bfloat16']} of {products['nodes']}, {products['share']:.0%}"]
        for moment in moments:
            found = task["cosines"][moment]
            lowest, layer = min((mean(values), layer) for layer, values in found["layers"].items())
            cells += [_cosine(mean(found["bfloat16"])), f"{_cosine(lowest)} (`{layer}`)", f"{mean(found['other_batch']):.2f}"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _cosine(value: float) -> str:
    """Format a cosine near 1 with as many digits as its distance from 1 needs."""
    return f"{value:.6f}" if value > 0.9999 else f"{value:.5f}" if value > 0.999 else f"{value:.4f}"
