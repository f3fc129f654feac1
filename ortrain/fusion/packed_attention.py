"""Attention whose queries, keys and values are the thirds of one tensor reads them there, and their gradients become one tensor as well.

A dense layer that computes all three is how vision transformers and GPT-2 are written. Its parts need no copies then."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from ortrain.fusion.graph_view import GraphView
from ortrain.ir import Node
from ortrain.ops.registry.record import ORTRAIN


def find(view: GraphView) -> Iterator[tuple[Node, list[Node]]]:
    """Yield (attention, replacing PackedAttention after the nodes of its operand)."""
    for node in view.graph.nodes:
        parts = node.inputs[:3]
        if node.op_type == "Attention" and node.domain == ORTRAIN and all(view.consumer_count(name) == 1 for name in parts):
            packed = _source_of_gathered(view, parts)
            nodes = [] if packed else _reshape_of_split(view, parts)
            if packed or nodes:
                operand = packed or nodes[-1].outputs[0]
                yield node, [*nodes, Node("PackedAttention", [operand, *node.inputs[3:]], node.outputs, node.name, ORTRAIN, node.attributes)]


def _source_of_gathered(view: GraphView, parts: Sequence[str]) -> str:
    """Return the value [n, rows, 3, heads, size] whose elements along axis 2 are the parts, in order; "" if there is none."""
    sources = set()
    for position, name in enumerate(parts):
        gather = view.producer(name, "Gather")
        index = None if gather is None else view.constant(gather.inputs[1])
        if gather is None or index is None or index.ndim or index != position or gather.attributes.get("axis", 0) != 2:
            return ""
        sources.add(gather.inputs[0])
    source = sources.pop()
    shape = view.shape(source)
    return source if not sources and shape is not None and len(shape) == 5 and shape[2] == 3 else ""


def _reshape_of_split(view: GraphView, parts: Sequence[str]) -> list[Node]:
    """Return the nodes of the value [n, rows, 3, heads, size] whose thirds a Split of the last axis makes, which are divided into heads then; none if not."""
    shapes, reshapes = [view.shape(name) for name in parts], [view.producer(name, "Reshape") for name in parts]
    shape = shapes[0]
    if shape is None or len(shape) != 4 or shapes.count(shape) != 3 or not all(isinstance(size, int) for size in shape[2:]) or None in reshapes:
        return []
    outputs = [reshape.inputs[0] for reshape in reshapes if reshape is not None]
    split = view.producer_of_output(outputs[0], "Split")
    if split is None or split.outputs != outputs or view.rank(split.inputs[0]) != 3 or split.attributes.get("axis", 0) not in (2, -1):
        return []
    if any(view.consumer_count(name) != 1 for name in outputs):
        return []
    sizes, packed = view.unique_name(f"{split.inputs[0]}_sizes"), view.unique_name(f"{split.inputs[0]}_packed")
    return [Node("Constant", [], [sizes], attributes={"value": np.array([0, 0, 3, *shape[2:]], np.int64)}), Node("Reshape", [split.inputs[0], sizes], [packed])]
