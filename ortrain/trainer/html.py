"""HTML representations for notebooks: sessions, models and histories. The HTML needs no script, style sheet or file beside it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from ortrain.ir import Graph, Model
from ortrain.loading.loader import ModelSource, as_model

if TYPE_CHECKING:
    from ortrain.trainer.records import EpochRecord

Points = list[tuple[int, float]]

MAX_ROWS = 200
"""Rows of a table; the others are counted in a line below it."""
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
    return f"<div>{curves}{_table(header, rows[hidden:])}{_more(hidden, 'earlier epochs')}</div>"


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


# ---- models and sessions


def model_html(model: ModelSource) -> str:
    """Return the inputs, outputs, parameters and operators of a model: an ortrain.ir.Model, an onnx.ModelProto, a path or bytes.

    Raises the errors of loading: ArtifactNotFoundError, InvalidModelError."""
    read = as_model(model)
    graph = read.graph
    size = sum(array.size for array in graph.initializers.values())
    imported = ", ".join(f"{domain or 'ai.onnx'} {version}" for domain, version in sorted(read.opsets.items()))
    title = f"Model {graph.name}: {_count(len(graph.nodes), 'node')}, {size:,} numbers in {_count(len(graph.initializers), 'initializer')}, opset {imported}"
    weights = [[name, array.dtype.name, _shape(array.shape), f"{array.size:,}"] for name, array in graph.initializers.items()]
    return (f"<div><b>{escape(title)}</b>{_signature(graph)}"
            f"{_details('operators', ['operator', 'nodes'], _operators(read))}{_details('initializers', ['name', 'dtype', 'shape', 'numbers'], weights)}</div>")


def session_html(session: Any) -> str:
    """Return the state of a TrainingSession: inputs, outputs, parameters, optimizer and learning rate. Closed sessions and nominal states are shown too."""
    state, graph = session.state, session.training_model.graph
    rows, trained = [], 0
    for name in state.names():
        array = state.trainable.get(name, state.frozen.get(name))
        role = "frozen" if name in state.frozen else "frozen for now" if name in state.masked else "trained"
        trained += array.size if role == "trained" else 0
        rows.append([name, "string" if array.dtype == object else array.dtype.name, _shape(array.shape), f"{array.size:,}", role])
    optimizer = "none"
    if session.has_optimizer:
        nodes = ", ".join(dict.fromkeys(node.op_type for node in session.optimizer_model.graph.nodes))
        optimizer = f"{nodes}, learning rate {session.learning_rate:.3g}, {_count(state.optimizer_step, 'completed step')}"
    facts = [["parameters", f"{trained:,} numbers in training, in {_count(len(rows), 'tensor')} in all" + (" (nominal: no values)" if state.nominal else "")],
             ["optimizer", optimizer], ["eval model", "none" if session.eval_model is None else "present"]]
    own = Graph(graph.name, session.input_names(), session.output_names(), types=graph.types)
    return (f"<div><b>{escape(type(session).__name__)}</b>{_table(['', ''], facts)}{_signature(own)}"
            f"{_details('parameters', ['name', 'dtype', 'shape', 'numbers', 'role'], rows)}</div>")


def _operators(model: Model) -> list[list[Any]]:
    counted = Counter(f"{node.domain}::{node.op_type}" if node.domain else node.op_type for node in model.graph.all_nodes())
    return [[name, number] for name, number in counted.most_common()]


def _signature(graph: Graph) -> str:
    rows = []
    for kind, names in (("input", graph.inputs), ("output", graph.outputs)):
        for name in names:
            found = graph.types.get(name)
            rows.append([kind, name, found.dtype if found else "?", _shape(found.shape) if found and found.shape is not None else "?"])
    return _table(["", "name", "dtype", "shape"], rows[:MAX_ROWS]) + _more(len(rows) - MAX_ROWS, "values")


# ---- pieces


def _shape(shape: Iterable[Any]) -> str:
    return f"[{', '.join(map(str, shape))}]"


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def _details(title: str, header: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    return (f"<details><summary>{escape(title)} ({len(rows):,})</summary>{_table(header, rows[:MAX_ROWS])}{_more(len(rows) - MAX_ROWS, title)}</details>")


def _more(number: int, what: str) -> str:
    return f"<div>and {number:,} more {escape(what)}</div>" if number > 0 else ""


def _table(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    head = "".join(f'<th style="text-align:left">{escape(name)}</th>' for name in header) if any(header) else ""
    body = "".join("<tr>" + "".join(f'<td style="text-align:left">{escape(str(value))}</td>' for value in row) + "</tr>" for row in rows)
    return f"<table>{f'<thead><tr>{head}</tr></thead>' if head else ''}<tbody>{body}</tbody></table>"
