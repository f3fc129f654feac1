"""Rewrite rules on forward graphs, run before the gradient is taken: many small nodes become one operator that has a kernel and a gradient of its own.

A rule looks at the graph through a View, and names the node that stands for another and what it replaces. Files keep what they have: only what runs is
fused."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from ortrain.fusion import attention, gelu, layer_norm, silu, upstream_gather
from ortrain.fusion.graph_view import View
from ortrain.ir import Graph, Node
from ortrain.ops.registry.record import MICROSOFT, ORTRAIN

RULES = (attention.find, gelu.find, layer_norm.find, silu.find)
OPSETS = {MICROSOFT: 1, ORTRAIN: 1}
"""What fused nodes need a model to import."""


def fuse(graph: Graph, trained: Collection[str] = ()) -> int:
    """Changes a forward graph; returns how many patterns were found in it. trained: values whose gradients will be taken.

    Every output of the graph is still computed, under its name."""
    found = _replace(graph, ((node, [fused]) for rule in RULES for node, fused in rule(View(graph, trained))))
    return found + _replace(graph, upstream_gather.find(View(graph, trained)))


def _replace(graph: Graph, found: Iterable[tuple[Node, list[Node]]]) -> int:
    """Puts nodes in the places of others, and drops what nothing needs any longer; returns how many were replaced."""
    instead = {id(node): nodes for node, nodes in found}
    if instead:
        graph.nodes = [new for node in graph.nodes for new in instead.get(id(node), [node])]
        graph.nodes = graph.ancestors(graph.outputs)
    return len(instead)
