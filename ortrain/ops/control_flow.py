"""If, and SequenceMap, which runs outside of programs. Here an If's node lists, after the condition, the outer values that its branches read, so that
whoever walks a graph sees them; files have the condition alone. A plan that knows the condition puts the branch in the node's place; the gradient is
another If, of the branches' gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ortrain.ir import Graph, Node, TensorType
from ortrain.ops.registry.node_builder import GradientBuilder, NodeBuilder
from ortrain.ops.registry.record import InferenceContext, operator
from ortrain.ops.registry.shape_inference import Inference, common_type
from ortrain.ops.registry.subgraphs import CONTROL, captured, made, place, renamed


def branches(node: Node) -> tuple[Graph, Graph]:
    """The graphs of an If."""
    first, second = (node.attributes[name] for name in CONTROL["If"])
    assert isinstance(first, Graph) and isinstance(second, Graph)
    return first, second


# ---- types


def _inside(c: InferenceContext, graph: Graph) -> Inference:
    """What is known inside a branch."""
    scope = c.scope
    assert scope is not None, "an If is inferred as part of a graph"
    found = Inference(scope.opsets, dict(scope.types), scope.values | graph.initializers, graph.types)
    for node in graph.nodes:
        found.visit(node)
    return found


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
    pairs = zip(first[0].outputs, second[0].outputs, strict=True)
    return [common_type(c, f"output {index} of both branches", f"output{index}", first[1].types[a], second[1].types[b]) for index, (a, b) in enumerate(pairs)]


# ---- the branch in the node's place


def inline(g: NodeBuilder) -> list[str] | None:
    """The nodes of the branch that a known condition takes."""
    taken = chosen(g.value(g.inputs[0]), g.node)
    return None if taken is None else place(g, taken)


# ---- gradient


def if_gradient(g: GradientBuilder) -> Sequence[str | None]:
    """An If that runs the taken branch forward again and then backward; a plan sees that forward again is forward, and runs it once."""
    wanted = [index for index in range(1, len(g.inputs)) if g.needs(index)]
    given = [gradient for gradient in g.gradients if gradient]
    graphs: dict[str, Any] = {name: _backward(g, graph, [g.inputs[index] for index in wanted]) for name, graph in g.node.graphs.items()}
    outer = list(dict.fromkeys([*g.inputs[1:], *given, *captured(graphs.values())]))
    outputs = g.ops("If", g.inputs[0], *outer, outputs=[True] * len(wanted), **graphs)
    for index, output in zip(wanted, outputs, strict=True):
        g.declare(output, g.type(g.inputs[index]))
    found = dict(zip(wanted, outputs, strict=True))
    return [found.get(index) for index in range(len(g.inputs))]


def _backward(g: GradientBuilder, graph: Graph, wanted: Sequence[str]) -> Graph:
    """The branch's nodes and those of its gradient; its outputs are the gradients of the wanted outer values, zeros where none flows."""
    suffix = {name: g.builder.names.unique(f"{name}/again") for name in made(graph)}
    seeds: dict[str, list[str]] = {}
    for name, gradient in zip(graph.outputs, g.gradients, strict=True):
        if gradient:
            seeds.setdefault(suffix.get(name, name), []).append(gradient)
    backward = renamed(graph, suffix)
    backward.outputs = [gradient or "" for gradient in g.builder.inner_gradients(backward, {}, seeds, wanted)]
    backward.nodes = backward.ancestors(backward.outputs)
    return backward


# ---- a graph for every element of a sequence


@operator("SequenceMap")
def sequence_map(c: InferenceContext) -> list[TensorType]:
    """y[i] = body(x[i]), for every element of a sequence; inputs that are tensors go to all"""
    scope = c.scope
    assert scope is not None, "a SequenceMap is inferred as part of a graph"
    body = c.node.graphs["body"]
    kinds = [c.type(index) for index in range(len(body.inputs))]
    elements = [TensorType(kind.dtype, kind.shape) if kind.sequence else kind for kind in kinds]
    inputs = dict(zip(body.inputs, elements, strict=True))
    found = Inference(scope.opsets, {**scope.types, **inputs}, scope.values | body.initializers, body.types)
    for node in body.nodes:
        found.visit(node)
    return [TensorType(found.types[name].dtype, found.types[name].shape, sequence=True) for name in body.outputs]


operator("If", gradient=if_gradient, decompose=inline, stop_gradient=(0,))(infer_if)
