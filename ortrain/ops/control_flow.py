"""If and SequenceMap.

In this intermediate representation, an If node lists the outer values that its branches capture as additional inputs after the condition, so that passes
see them; in ONNX it has the condition only. A plan inlines the branch of a constant condition. The gradient of an If is an If whose branches compute the
gradients. SequenceMap runs outside of programs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ortrain.ir import Graph, Node, TensorType
from ortrain.ops.registry.node_builder import GradientBuilder, NodeBuilder
from ortrain.ops.registry.record import InferenceContext, operator
from ortrain.ops.registry.shape_inference import ShapeInference, union_type
from ortrain.ops.registry.subgraphs import GRAPH_ATTRIBUTES, captured_values, defined_values, inline_graph, rename_values


def if_branches(node: Node) -> tuple[Graph, Graph]:
    """Return the then and else branch of an If."""
    first, second = (node.attributes[name] for name in GRAPH_ATTRIBUTES["If"])
    assert isinstance(first, Graph) and isinstance(second, Graph)
    return first, second


# ---- types


def _infer_branch(c: InferenceContext, graph: Graph) -> ShapeInference:
    """Return the shape inference of a branch."""
    outer = c.inference
    assert outer is not None, "an If is inferred as part of a graph"
    inference = ShapeInference(outer.opsets, dict(outer.types), outer.values | graph.initializers, graph.types)
    for node in graph.nodes:
        inference.visit(node)
    return inference


def taken_branch(condition: np.ndarray | None, node: Node) -> Graph | None:
    """Return the branch of an If that a condition selects, or None if the condition is unknown."""
    return None if condition is None else if_branches(node)[0 if bool(condition.reshape(-1)[0]) else 1]


def infer_if(c: InferenceContext) -> list[TensorType]:
    """y0, y1, … = the outputs of then_branch if the condition is true, else of else_branch"""
    branch = taken_branch(c.value(0), c.node)
    if branch is not None:
        inference = _infer_branch(c, branch)
        return [inference.types[name] for name in branch.outputs]
    first, second = ((graph, _infer_branch(c, graph)) for graph in if_branches(c.node))
    pairs = zip(first[0].outputs, second[0].outputs, strict=True)
    return [union_type(c, f"output {index} of both branches", f"output{index}", first[1].types[a], second[1].types[b]) for index, (a, b) in enumerate(pairs)]


# ---- decomposition


def if_decomposition(g: NodeBuilder) -> list[str] | None:
    """Inline the branch that a constant condition selects."""
    branch = taken_branch(g.value(g.inputs[0]), g.node)
    return None if branch is None else inline_graph(g, branch)


# ---- gradient


def if_gradient(g: GradientBuilder) -> Sequence[str | None]:
    """Return the outputs of an If whose branches recompute the forward pass and run the backward pass.

    A plan removes the recomputation as a common subexpression of the forward pass."""
    needed = [index for index in range(1, len(g.inputs)) if g.needs(index)]
    output_gradients = [gradient for gradient in g.gradients if gradient]
    graphs: dict[str, Any] = {name: _gradient_branch(g, graph, [g.inputs[index] for index in needed]) for name, graph in g.node.graphs.items()}
    outer = list(dict.fromkeys([*g.inputs[1:], *output_gradients, *captured_values(graphs.values())]))
    outputs = g.ops("If", g.inputs[0], *outer, outputs=[True] * len(needed), **graphs)
    for index, output in zip(needed, outputs, strict=True):
        g.declare(output, g.type(g.inputs[index]))
    gradient_of = dict(zip(needed, outputs, strict=True))
    return [gradient_of.get(index) for index in range(len(g.inputs))]


def _gradient_branch(g: GradientBuilder, graph: Graph, outer_values: Sequence[str]) -> Graph:
    """Return a branch that recomputes `graph` and computes the gradients of these outer values; zeros where no gradient flows."""
    recomputed = {name: g.builder.names.unique(f"{name}/again") for name in defined_values(graph)}
    seeds: dict[str, list[str]] = {}
    for name, gradient in zip(graph.outputs, g.gradients, strict=True):
        if gradient:
            seeds.setdefault(recomputed.get(name, name), []).append(gradient)
    backward = rename_values(graph, recomputed)
    backward.outputs = [gradient or "" for gradient in g.builder.inner_gradients(backward, {}, seeds, outer_values)]
    backward.nodes = backward.ancestors(backward.outputs)
    return backward


# ---- SequenceMap


@operator("SequenceMap")
def sequence_map(c: InferenceContext) -> list[TensorType]:
    """y[i] = body(x[i]) for every element of a sequence; inputs that are tensors are passed to every call"""
    outer = c.inference
    assert outer is not None, "a SequenceMap is inferred as part of a graph"
    body = c.node.graphs["body"]
    kinds = [c.type(index) for index in range(len(body.inputs))]
    elements = [TensorType(kind.dtype, kind.shape) if kind.sequence else kind for kind in kinds]
    inputs = dict(zip(body.inputs, elements, strict=True))
    inference = ShapeInference(outer.opsets, {**outer.types, **inputs}, outer.values | body.initializers, body.types)
    for node in body.nodes:
        inference.visit(node)
    return [TensorType(inference.types[name].dtype, inference.types[name].shape, sequence=True) for name in body.outputs]


operator("If", gradient=if_gradient, decompose=if_decomposition, stop_gradient=(0,))(infer_if)
