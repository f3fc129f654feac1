"""Rewrite rules on forward graphs, run before the gradient is taken: many small nodes become one operator that has a kernel and a gradient of its own.

A rule looks at the graph through a View, and names the node that stands for another and what it replaces. Files keep what they have: only what runs is
fused."""

from __future__ import annotations

from collections.abc import Collection

from ortrain.fusion import attention, gelu
from ortrain.fusion.view import View
from ortrain.ir import Graph
from ortrain.ops.record import MICROSOFT, ORTRAIN

RULES = (attention.find, gelu.find)
OPSETS = {MICROSOFT: 1, ORTRAIN: 1}
"""What fused nodes need a model to import."""


def fuse(graph: Graph, trained: Collection[str] = ()) -> int:
    """Changes a forward graph; returns how many nodes became fused ones. trained: values whose gradients will be taken.

    Every output of the graph is still computed, under its name."""
    view = View(graph, trained)
    found = {id(node): fused for rule in RULES for node, fused in rule(view)}
    if found:
        graph.nodes = [found.get(id(node), node) for node in graph.nodes]
        graph.nodes = graph.ancestors(graph.outputs)
    return len(found)
