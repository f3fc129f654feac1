"""Graphs inside nodes: the outer values that they read, renamed copies, and inlining."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from ortrain.ir import Graph, Node
from ortrain.ops.registry.node_builder import NodeBuilder
from ortrain.ops.registry.record import canonical_domain

CONTROL = {"If": ("then_branch", "else_branch"), "Loop": ("body",), "Scan": ("body",), "SequenceMap": ("body",)}
"""The operators with graphs inside that have records, and the attributes that hold the graphs."""


def has_graphs(node: Node) -> bool:
    """Whether the node is an If, Loop, Scan or SequenceMap with graphs."""
    return node.op_type in CONTROL and canonical_domain(node.domain) == ""


def outer_reads(graph: Graph) -> Iterator[str]:
    """Yield the values that a graph reads from outside, in order, with repetitions."""
    inner = {*graph.inputs, *made(graph)}
    for node in graph.nodes:
        yield from (name for name in node.inputs if name and name not in inner)
    yield from (name for name in graph.outputs if name not in inner)


def captured(graphs: Iterable[Graph]) -> list[str]:
    """Return the outer values that graphs read."""
    return list(dict.fromkeys(name for graph in graphs for name in outer_reads(graph)))


def made(graph: Graph) -> list[str]:
    """Return the values that a graph's constants and nodes define."""
    return [*graph.initializers, *(output for node in graph.nodes for output in node.outputs if output)]


def renamed(graph: Graph, names: Mapping[str, str]) -> Graph:
    """Return a copy with other names for values, graphs inside included."""
    def new(name: str) -> str:
        return names.get(name, name)

    copy = Graph(graph.name, [new(name) for name in graph.inputs], [new(name) for name in graph.outputs],
                 [renamed_node(node, names) for node in graph.nodes])
    copy.initializers = {new(name): array for name, array in graph.initializers.items()}
    copy.types = {new(name): kind for name, kind in graph.types.items()}
    return copy


def renamed_node(node: Node, names: Mapping[str, str]) -> Node:
    """Return a copy of a node with other names for values."""
    attributes = {name: renamed(value, names) if isinstance(value, Graph) else value for name, value in node.attributes.items()}
    return Node(node.op_type, [names.get(n, n) for n in node.inputs], [names.get(n, n) for n in node.outputs], node.name, node.domain, attributes)


def place(g: NodeBuilder, graph: Graph, inputs: Mapping[str, str] | None = None) -> list[str]:
    """Add a graph's nodes to the graph being built, under new names; return the names of its outputs.

    inputs: the values that replace the graph's own inputs."""
    names = dict(inputs or {}) | {name: g.constant(array) for name, array in graph.initializers.items()}
    for node in graph.nodes:
        names |= {name: g.builder.names.unique(f"{g.node.outputs[0]}/{name}") for name in node.outputs if name}
        g.builder.emit(renamed_node(node, names))
    return [names.get(name, name) for name in graph.outputs]
