"""The HTML representation of histories, for notebooks. The HTML needs no script, style sheet or file beside it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

from ortrain.ir.html import MAX_ROWS, more, table

if TYPE_CHECKING:
    from ortrain.trainer.records import EpochRecord

Points = list[tuple[int, float]]

MAX_POINTS = 400
"""Points of a curve: longer ones are thinned out, which the eye does not see."""
WIDTH, HEIGHT, MARGIN = 340, 180, 60
"""Pixels of a panel, and of the space for its axes."""
COLORS = {"training": "#4477aa", "validation": "#ee6677"}
"""Blue and red of a palette that color-blind people can tell apart (Paul Tol, bright)."""


def figure_text(value: float) -> str:
    """Return a figure with four digits: as 0.1234 where that shows it well, else as 1.234e-05."""
    return f"{value:.4f}" if value == 0 or 1e-3 <= abs(value) < 1e4 or not math.isfinite(value) else f"{value:.3e}"


def panels(history: Sequence[EpochRecord]) -> dict[str, dict[str, Points]]:
    """Return figure name -> {"training": points, "validation": points}, points being (epoch, value). Values that are not finite are left out, and so are
    curves without a point."""
    found: dict[str, dict[str, Points]] = {}
    for record in history:
        for part, figures in (("training", record.training), ("validation", record.validation)):
            for name, value in figures.items():
                if math.isfinite(value):
                    found.setdefault(name, {}).setdefault(part, []).append((record.epoch, value))
    return found


# ---- histories


def history_html(history: Sequence[EpochRecord]) -> str:
    """Return a table of all epochs and the curves of all figures."""
    if not history:
        return "<div>no epochs yet</div>"
    names = list(dict.fromkeys(name for record in history for name in record.figures))
    header = ["epoch", *(name.replace("_", " ") for name in names), "learning rate", "seconds"]
    rows = [[record.epoch, *(figure_text(record.figures[name]) if name in record.figures else "" for name in names), f"{record.learning_rate:.3g}",
             f"{record.seconds:.1f}"] for record in history]
    curves = "".join(_panel(name, curves) for name, curves in panels(history).items())
    hidden = max(0, len(rows) - MAX_ROWS)
    return f"<div>{curves}{table(header, rows[hidden:])}{more(hidden, 'earlier epochs')}</div>"


def _panel(name: str, curves: dict[str, Points]) -> str:
    points = [point for curve in curves.values() for point in curve]
    first, last = min(x for x, _ in points), max(x for x, _ in points)
    low, high = min(y for _, y in points), max(y for _, y in points)

    def place(x: int, y: float) -> tuple[float, float]:
        # halved before they are subtracted: the range of float64 is exceeded otherwise
        across = (x - first) / (last - first) if last > first else 0.5
        up = (y / 2 - low / 2) / (high / 2 - low / 2) if high / 2 > low / 2 else 0.5
        return MARGIN + across * (WIDTH - MARGIN - 12), HEIGHT - 24 - up * (HEIGHT - 48)

    drawn = []
    for number, (part, curve) in enumerate(curves.items()):
        color, thinned = COLORS[part], _thinned(curve)
        placed = " ".join(f"{x:.1f},{y:.1f}" for x, y in (place(*point) for point in thinned))
        end_x, end_y = place(*thinned[-1])
        drawn.append(f'<polyline points="{placed}" fill="none" stroke="{color}" stroke-width="1.5"/><circle cx="{end_x:.1f}" cy="{end_y:.1f}" r="2.5" '
                     f'fill="{color}"/>{_label(WIDTH - 12 - 70 * number, 14, part, "end", color)}')
    axes = (f'<path d="M{MARGIN} 20V{HEIGHT - 24}H{WIDTH - 12}" fill="none" stroke="#999"/>'
            + _label(4, 14, name, "start", "currentColor") + _label(MARGIN - 4, 28, f"{high:.3g}", "end", "#888")
            + _label(MARGIN - 4, HEIGHT - 24, f"{low:.3g}", "end", "#888") + _label(MARGIN, HEIGHT - 8, str(first), "start", "#888")
            + _label(WIDTH - 12, HEIGHT - 8, f"epoch {last}", "end", "#888"))
    return f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}">{axes}{"".join(drawn)}</svg>'


def _label(x: float, y: float, text: str, anchor: str, color: str) -> str:
    return f'<text x="{x}" y="{y}" text-anchor="{anchor}" font-size="11" font-family="sans-serif" fill="{color}">{escape(text)}</text>'


def _thinned(curve: Points) -> Points:
    step = -(-len(curve) // MAX_POINTS)
    return curve if step == 1 else [*curve[:-1:step], curve[-1]]
