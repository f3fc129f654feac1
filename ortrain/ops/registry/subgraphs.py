"""Subgraphs of control flow nodes: the values that they capture, renaming and inlining."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from ortrain.ir import Graph, Node
from ortrain.ops.registry.node_builder import NodeBuilder
from ortrain.ops.registry.record import canonical_domain

GRAPH_ATTRIBUTES = {"If": ("then_branch", "else_branch"), "Loop": ("body",), "Scan": ("body",), "SequenceMap": ("body",)}
"""Control flow operator -> the attributes that contain its subgraphs."""


def is_control_flow(node: Node) -> bool:
    """Return whether the node is an If, Loop, Scan or SequenceMap of ONNX."""
    return node.op_type in GRAPH_ATTRIBUTES and canonical_domain(node.domain) == ""


def captured_values(graphs: Iterable[Graph]) -> list[str]:
    """Return the values of the enclosing graph that subgraphs read, each once, in the order of their first use."""
    return list(dict.fromkeys(name for graph in graphs for name in _outer_values(graph)))


def _outer_values(graph: Graph) -> Iterator[str]:
    """Yield the values that a graph reads and does not define, in order, with repetitions."""
    inner = {*graph.inputs, *defined_values(graph)}
    for node in graph.nodes:
        yield from (name for name in node.inputs if name and name not in inner)
    yield from (name for name in graph.outputs if name not in inner)


def defined_values(graph: Graph) -> list[str]:
    """Return the values that a graph's initializers and nodes define."""
    return [*graph.initializers, *(output for node in graph.nodes for output in node.outputs if output)]


def rename_values(graph: Graph, names: Mapping[str, str]) -> Graph:
    """Return a copy of a graph, subgraphs included, with values renamed. names: old name -> new name; others keep theirs."""
    def new(name: str) -> str:
        return names.get(name, name)

    copy = Graph(graph.name, [new(name) for name in graph.inputs], [new(name) for name in graph.outputs],
                 [rename_node_values(node, names) for node in graph.nodes])
    copy.initializers = {new(name): array for name, array in graph.initializers.items()}
    copy.types = {new(name): kind for name, kind in graph.types.items()}
    return copy


def rename_node_values(node: Node, names: Mapping[str, str]) -> Node:
    """Return a copy of a node, subgraphs included, with values renamed. names: old name -> new name; others keep theirs."""
    attributes = {name: rename_values(value, names) if isinstance(value, Graph) else value for name, value in node.attributes.items()}
    return Node(node.op_type, [names.get(n, n) for n in node.inputs], [names.get(n, n) for n in node.outputs], node.name, node.domain, attributes)


def inline_graph(g: NodeBuilder, graph: Graph, inputs: Mapping[str, str] | None = None) -> list[str]:
    """Add the nodes of a subgraph to the graph being built, with unique value names; return the names of the subgraph's outputs.

    inputs: subgraph input -> the value of the enclosing graph that replaces it."""
    names = dict(inputs or {}) | {name: g.constant(array) for name, array in graph.initializers.items()}
    for node in graph.nodes:
        names |= {name: g.builder.names.unique(f"{g.node.outputs[0]}/{name}") for name in node.outputs if name}
        g.builder.emit(rename_node_values(node, names))
    return [names.get(name, name) for name in graph.outputs]
