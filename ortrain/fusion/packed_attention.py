"""Attention whose queries, keys and values are the thirds of one tensor reads them there, and their gradients become one tensor as well.

A dense layer that computes all three is how vision transformers and GPT-2 are written. Its parts need no copies then. In a last layer of which only the class
token is read on, the queries are some of the rows (upstream_gather.py)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from ortrain.fusion.graph_view import GraphView
from ortrain.ir import Dim, Node
from ortrain.ops.registry.heads import ORDERS
from ortrain.ops.registry.record import ORTRAIN

Rows = dict[str, int]
"""Attributes of PackedAttention that say of which rows the queries are; none if of all."""


def find(view: GraphView) -> Iterator[tuple[Node, list[Node]]]:
    """Yield (attention, replacing PackedAttention after the nodes of its operand)."""
    for node in view.graph.nodes:
        parts = node.inputs[:3]
        is_by_rows = node.op_type == "Attention" and node.domain == ORTRAIN and ORDERS not in node.attributes
        if is_by_rows and all(view.consumer_count(name) == 1 for name in parts):
            packed, rows = _source_of_gathered(view, parts)
            nodes: list[Node] = []
            if not packed:
                nodes, rows = _reshape_of_split(view, parts)
            if packed or nodes:
                operand = packed or nodes[-1].outputs[0]
                yield node, [*nodes, Node("PackedAttention", [operand, *node.inputs[3:]], node.outputs, node.name, ORTRAIN, {**node.attributes, **rows})]


def _all_rows(view: GraphView, queries: str) -> tuple[str, Rows]:
    """Return the value of which queries are adjacent rows along axis 1, and which; the queries themselves if they are not chosen from others.

    The number of rows must be known: a kernel does not check that the chosen ones exist."""
    gather = view.producer(queries, "Gather")
    rows = None if gather is None else view.constant(gather.inputs[1])
    if gather is None or rows is None or rows.ndim != 1 or not rows.size or gather.attributes.get("axis", 0) != 1:
        return queries, {}
    count = _row_count(view, gather.inputs[0])
    if not isinstance(count, int) or rows.min() < -count or rows.max() >= count or view.consumer_count(gather.inputs[0]) != 1:
        return queries, {}
    first = int(rows[0]) % count
    if not np.array_equal(rows % count, np.arange(first, first + rows.size)):
        return queries, {}
    return gather.inputs[0], {"query_rows": rows.size, "first_query": first}


def _row_count(view: GraphView, value: str) -> Dim | None:
    """Return the size of axis 1 of a value, or of the tensor of which it is an element along axis 2; None if it is unknown.

    Such a part may be a value of fusion, whose shape nothing has inferred yet."""
    shape, part = view.shape(value), view.producer(value, "Gather")
    if shape is None and part is not None and part.attributes.get("axis", 0) == 2:
        shape = view.shape(part.inputs[0])
    return shape[1] if shape is not None and len(shape) > 1 else None


def _source_of_gathered(view: GraphView, parts: Sequence[str]) -> tuple[str, Rows]:
    """Return the value [n, rows, 3, heads, size] whose elements along axis 2 are the parts, in order, and the rows of the queries; "" if there is none."""
    queries, chosen = _all_rows(view, parts[0])
    sources = set()
    for position, name in enumerate((queries, *parts[1:])):
        gather = view.producer(name, "Gather")
        index = None if gather is None else view.constant(gather.inputs[1])
        if gather is None or index is None or index.ndim or index != position or gather.attributes.get("axis", 0) != 2:
            return "", {}
        sources.add(gather.inputs[0])
    source = sources.pop()
    shape = view.shape(source)
    return (source, chosen) if not sources and shape is not None and len(shape) == 5 and shape[2] == 3 else ("", {})


def _reshape_of_split(view: GraphView, parts: Sequence[str]) -> tuple[list[Node], Rows]:
    """Return the nodes of the value [n, rows, 3, heads, size] whose thirds a Split of the last axis makes, which are divided into heads then, and the rows of
    the queries; no nodes if there is none."""
    shapes, reshapes = [view.shape(name) for name in parts], [view.producer(name, "Reshape") for name in parts]
    keys = shapes[1]
    if keys is None or len(keys) != 4 or keys != shapes[2] or not all(isinstance(size, int) for size in keys[2:]) or None in reshapes:
        return [], {}
    sources = [reshape.inputs[0] for reshape in reshapes if reshape is not None]
    queries, chosen = _all_rows(view, sources[0])
    outputs = [queries, *sources[1:]]
    split = view.producer_of_output(queries, "Split")
    if split is None or split.outputs != outputs or view.rank(split.inputs[0]) != 3 or split.attributes.get("axis", 0) not in (2, -1):
        return [], {}
    if any(view.consumer_count(name) != 1 for name in (sources[0], *outputs)) or not chosen and shapes[0] != keys:
        return [], {}
    sizes, packed = view.unique_name(f"{split.inputs[0]}_sizes"), view.unique_name(f"{split.inputs[0]}_packed")
    constant = Node("Constant", [], [sizes], attributes={"value": np.array([0, 0, 3, *keys[2:]], np.int64)})
    return [constant, Node("Reshape", [split.inputs[0], sizes], [packed])], chosen
