"""Operator fusion: rewrite rules that replace patterns of nodes in forward graphs by one operator with its own kernel
and gradient.

Rules run before the gradient is taken. A rule queries the graph through a GraphView and yields the last node of each
match with its replacement. Only the executed graph changes, never model files."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from itertools import chain

from ortrain.fusion import attention, gelu, group_norm, layer_norm, packed_attention, silu, upstream_gather
from ortrain.fusion.graph_view import GraphView
from ortrain.ir import Graph, Node
from ortrain.ops.registry.record import MICROSOFT, ORTRAIN

RULES = (gelu.find, layer_norm.find, silu.find)
OPSETS = {MICROSOFT: 1, ORTRAIN: 1}
"""Opset imports that models with fused nodes need."""


def fuse(graph: Graph, trained: Collection[str] = ()) -> int:
    """Fuse operators of a forward graph in place; return the number of matches. trained: values whose gradients will
    be computed.

    All outputs of the graph keep their names."""
    matches = ((node, [fused]) for rule in RULES for node, fused in rule(GraphView(graph, trained)))
    count = _replace(graph, chain(attention.find(GraphView(graph, trained)), group_norm.find(GraphView(graph, trained)), matches))
    count += _replace(graph, upstream_gather.find(GraphView(graph, trained)))
    return count + _replace(graph, packed_attention.find(GraphView(graph, trained)))


def _replace(graph: Graph, matches: Iterable[tuple[Node, list[Node]]]) -> int:
    """Replace each node by the nodes given for it and remove dead nodes; return the number of replaced nodes."""
    replacements = {id(node): nodes for node, nodes in matches}
    if replacements:
        graph.nodes = [new for node in graph.nodes for new in replacements.get(id(node), [node])]
        graph.nodes = graph.ancestors(graph.outputs)
    return len(replacements)
