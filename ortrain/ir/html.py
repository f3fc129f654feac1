"""HTML representations of models, and the tables that other representations are made of. The HTML needs no script, style sheet or file beside it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ortrain.ir.graph import Graph, Model

MAX_ROWS = 200
"""Rows of a table; the others are counted in a line below it."""


def model_html(model: Model) -> str:
    """Return the inputs, outputs, initializers and operators of a model."""
    graph = model.graph
    size = sum(array.size for array in graph.initializers.values())
    imported = ", ".join(f"{domain or 'ai.onnx'} {version}" for domain, version in sorted(model.opsets.items()))
    title = (f"Model {graph.name}: {count_text(len(graph.nodes), 'node')}, {size:,} numbers in "
             f"{count_text(len(graph.initializers), 'initializer')}, opset {imported}")
    weights = [[name, array.dtype.name, shape_text(array.shape), f"{array.size:,}"] for name, array in graph.initializers.items()]
    return (f"<div><b>{escape(title)}</b>{signature(graph)}"
            f"{details('operators', ['operator', 'nodes'], _operators(model))}{details('initializers', ['name', 'dtype', 'shape', 'numbers'], weights)}</div>")


def _operators(model: Model) -> list[list[Any]]:
    counted = Counter(f"{node.domain}::{node.op_type}" if node.domain else node.op_type for node in model.graph.all_nodes())
    return [[name, number] for name, number in counted.most_common()]


def signature(graph: Graph) -> str:
    """Return a table of a graph's inputs and outputs."""
    rows = []
    for kind, names in (("input", graph.inputs), ("output", graph.outputs)):
        for name in names:
            found = graph.types.get(name)
            rows.append([kind, name, found.dtype if found else "?", shape_text(found.shape) if found and found.shape is not None else "?"])
    return table(["", "name", "dtype", "shape"], rows[:MAX_ROWS]) + more(len(rows) - MAX_ROWS, "values")


def shape_text(shape: Iterable[Any]) -> str:
    """Return a shape as text: [n, 3]."""
    return f"[{', '.join(map(str, shape))}]"


def count_text(number: int, noun: str) -> str:
    """Return a number with its noun: 1 node, 1,024 nodes."""
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def details(title: str, header: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Return a table that is folded below its title and its number of rows."""
    return (f"<details><summary>{escape(title)} ({len(rows):,})</summary>{table(header, rows[:MAX_ROWS])}{more(len(rows) - MAX_ROWS, title)}</details>")


def more(number: int, what: str) -> str:
    """Return a line that counts what a table leaves out; nothing for none."""
    return f"<div>and {number:,} more {escape(what)}</div>" if number > 0 else ""


def table(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Return a table of escaped texts."""
    head = "".join(f'<th style="text-align:left">{escape(name)}</th>' for name in header) if any(header) else ""
    body = "".join("<tr>" + "".join(f'<td style="text-align:left">{escape(str(value))}</td>' for value in row) + "</tr>" for row in rows)
    return f"<table>{f'<thead><tr>{head}</tr></thead>' if head else ''}<tbody>{body}</tbody></table>"
