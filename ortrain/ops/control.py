"""If. Here its node lists, after the condition, the outer values that its branches read, so that whoever walks a graph sees them; files have the
condition alone. A plan that knows the condition puts the branch in the node's place; the gradient is another If, of the branches' gradients."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ortrain.ir import Dim, Graph, Node, TensorType
from ortrain.ops.building import GradientBuilder, NodeBuilder
from ortrain.ops.inference import Inference
from ortrain.ops.record import InferenceContext, operator

BRANCHES = ("then_branch", "else_branch")


def branches(node: Node) -> tuple[Graph, Graph]:
    """The graphs of an If."""
    first, second = (node.attributes[name] for name in BRANCHES)
    assert isinstance(first, Graph) and isinstance(second, Graph)
    return first, second


def outer_reads(graph: Graph) -> Iterator[str]:
    """The values that a branch takes from outside, in order, again and again where it does."""
    inner = {*graph.initializers, *(output for node in graph.nodes for output in node.outputs)}
    for node in graph.nodes:
        yield from (name for name in node.inputs if name and name not in inner)
    yield from (name for name in graph.outputs if name not in inner)


def captured(node: Node) -> list[str]:
    """The outer values that the branches of an If read."""
    return list(dict.fromkeys(name for graph in branches(node) for name in outer_reads(graph)))


def renamed(graph: Graph, names: Mapping[str, str]) -> Graph:
    """A copy with other names for values, graphs inside included."""
    def new(name: str) -> str:
        return names.get(name, name)

    copy = Graph(graph.name, [], [new(name) for name in graph.outputs], [renamed_node(node, names) for node in graph.nodes])
    copy.initializers = {new(name): array for name, array in graph.initializers.items()}
    copy.types = {new(name): kind for name, kind in graph.types.items()}
    return copy


def renamed_node(node: Node, names: Mapping[str, str]) -> Node:
    """A copy of a node with other names for values."""
    attributes = {name: renamed(value, names) if isinstance(value, Graph) else value for name, value in node.attributes.items()}
    return Node(node.op_type, [names.get(n, n) for n in node.inputs], [names.get(n, n) for n in node.outputs], node.name, node.domain, attributes)


# ---- types


def _inside(c: InferenceContext, graph: Graph) -> Inference:
    """What is known inside a branch."""
    scope = c.scope
    assert scope is not None, "an If is inferred as part of a graph"
    found = Inference(scope.opsets, dict(scope.types), scope.values | graph.initializers, graph.types)
    for node in graph.nodes:
        found.visit(node)
    return found


def _merged(c: InferenceContext, index: int, first: TensorType, second: TensorType) -> TensorType:
    """What two branches' types have in common."""
    if (first.dtype, first.sequence) != (second.dtype, second.sequence):
        raise c.error(f"expected branches with one type for output {index}, got {first.dtype} and {second.dtype}")
    if first.shape is None or second.shape is None or len(first.shape) != len(second.shape):
        return TensorType(first.dtype, None, first.sequence)
    dims: list[Dim] = [a if a == b else c.fresh(f"output{index}.{axis}") for axis, (a, b) in enumerate(zip(first.shape, second.shape, strict=True))]
    return TensorType(first.dtype, tuple(dims), first.sequence)


def chosen(condition: np.ndarray | None, node: Node) -> Graph | None:
    """The branch that a known condition takes."""
    return None if condition is None else branches(node)[0 if bool(condition.reshape(-1)[0]) else 1]


def infer_if(c: InferenceContext) -> list[TensorType]:
    """The outputs of the branch that the condition takes"""
    taken = chosen(c.value(0), c.node)
    if taken is not None:
        inside = _inside(c, taken)
        return [inside.types[name] for name in taken.outputs]
    first, second = ((graph, _inside(c, graph)) for graph in branches(c.node))
    return [_merged(c, index, first[1].types[a], second[1].types[b]) for index, (a, b) in enumerate(zip(first[0].outputs, second[0].outputs, strict=True))]


# ---- the branch in the node's place


def inline(g: NodeBuilder) -> list[str] | None:
    """The nodes of the branch that a known condition takes."""
    taken = chosen(g.value(g.inputs[0]), g.node)
    return None if taken is None else place(g, taken)


def place(g: NodeBuilder, graph: Graph) -> list[str]:
    """Adds a branch's nodes to the graph under new names; gives the names of its outputs."""
    names = {name: g.constant(array) for name, array in graph.initializers.items()}
    for node in graph.nodes:
        names |= {name: g.builder.names.unique(f"{g.outputs[0]}/{name}") for name in node.outputs if name}
        g.builder.emit(renamed_node(node, names))
    return [names.get(name, name) for name in graph.outputs]


# ---- gradient


def if_gradient(g: GradientBuilder) -> Sequence[str | None]:
    """An If that runs the taken branch forward again and then backward; a plan sees that forward again is forward, and runs it once."""
    wanted = [index for index in range(1, len(g.inputs)) if g.needs(index)]
    given = [gradient for gradient in g.gradients if gradient]
    graphs: dict[str, Any] = {name: _backward(g, graph, [g.inputs[index] for index in wanted]) for name, graph in zip(BRANCHES, branches(g.node), strict=True)}
    outer = list(dict.fromkeys([*g.inputs[1:], *given, *(name for graph in graphs.values() for name in outer_reads(graph))]))
    outputs = g.ops("If", g.inputs[0], *outer, outputs=[True] * len(wanted), **graphs)
    for index, output in zip(wanted, outputs, strict=True):
        g.declare(output, g.type(g.inputs[index]))
    found = dict(zip(wanted, outputs, strict=True))
    return [found.get(index) for index in range(len(g.inputs))]


def _backward(g: GradientBuilder, graph: Graph, wanted: Sequence[str]) -> Graph:
    """The branch's nodes and those of its gradient; its outputs are the gradients of the wanted outer values, zeros where none flows."""
    suffix = {name: g.builder.names.unique(f"{name}/again") for name in _made(graph)}
    seeds = {suffix.get(name, name): gradient for name, gradient in zip(graph.outputs, g.gradients, strict=True) if gradient}
    return g.builder.branch_gradients(renamed(graph, suffix), seeds, wanted)


def _made(graph: Graph) -> Iterable[str]:
    return [*graph.initializers, *(output for node in graph.nodes for output in node.outputs if output)]


operator("If", gradient=if_gradient, expand=inline, stop=(0,))(infer_if)
