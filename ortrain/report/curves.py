"""Curves of a run's figures as inline SVG."""

from __future__ import annotations

import math
from html import escape

from ortrain.trainer import History
from ortrain.trainer.html import Points, figure_text, panels

WIDTH, HEIGHT = 480, 240
LEFT, RIGHT, TOP, BOTTOM = 58, 14, 16, 34
"""Pixels of a panel, and of its margins."""


def curves(history: History) -> dict[str, str]:
    """Return figure name -> its curves on training and validation data, as an SVG element. Colors are those of the page's style sheet."""
    return {name: _panel(parts) for name, parts in panels(history).items()}


def ticks(low: float, high: float, most: int = 5) -> list[float]:
    """Return round numbers that cover a range, at most `most` of them within it."""
    if not high > low:
        return [low]
    rough = (high - low) / most
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= rough * (1 - 1e-9))
    return [number * step for number in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]


def _digits(step: float) -> int:
    """Return the decimal places that a step has, at most 6."""
    return next((digits for digits in range(6) if abs(step * 10**digits - round(step * 10**digits)) < 1e-6 * step * 10**digits), 6)


def _panel(parts: dict[str, Points]) -> str:
    points = [point for curve in parts.values() for point in curve]
    first, last = min(x for x, _ in points), max(x for x, _ in points)
    low, high = min(y for _, y in points), max(y for _, y in points)
    room = (high / 2 - low / 2) * 0.12 or abs(high) * 0.1 or 0.5
    low, high = low - room, high + room

    def place(x: float, y: float) -> tuple[float, float]:
        across = (x - first) / (last - first) if last > first else 0.5
        up = (y / 2 - low / 2) / (high / 2 - low / 2)       # halved: the range of float64 is exceeded otherwise
        return LEFT + across * (WIDTH - LEFT - RIGHT), HEIGHT - BOTTOM - up * (HEIGHT - TOP - BOTTOM)

    drawn = []
    marks = ticks(low, high) if math.isfinite(high - low) else []
    digits = _digits(marks[1] - marks[0]) if len(marks) > 1 else 4
    for value in marks:
        y = place(first, value)[1]
        label = f"{value:.{digits}f}" if digits <= 5 and abs(value) < 1e5 else f"{value:.2g}"
        drawn.append(f'<path class="grid" d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}"/><text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{escape(label)}</text>')
    for epoch in sorted({round(value) for value in ticks(first, last, 8) if first <= round(value) <= last} | {first}):
        x = place(epoch, low)[0]
        drawn.append(f'<text x="{x:.1f}" y="{HEIGHT - BOTTOM + 17}" text-anchor="middle">{epoch}</text>')
    drawn.append(f'<path class="axis" d="M{LEFT} {HEIGHT - BOTTOM}H{WIDTH - RIGHT}"/>')
    drawn.append(f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 3}" text-anchor="middle">epoch</text>')
    for part, curve in parts.items():
        placed = [place(*point) for point in curve]
        drawn.append(f'<polyline class="{part}" points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in placed)}"/>')
        if len(curve) <= 30:
            drawn += [f'<circle class="{part}" cx="{x:.1f}" cy="{y:.1f}" r="3"><title>{part}, epoch {epoch}: {figure_text(value)}</title></circle>'
                      for (x, y), (epoch, value) in zip(placed, curve, strict=True)]
    return f'<svg class="curves" role="img" viewBox="0 0 {WIDTH} {HEIGHT}">{"".join(drawn)}</svg>'
