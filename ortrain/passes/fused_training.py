"""Operator fusion in whole models. For a training model the gradient of the fused forward part is derived again.

This happens only if the gradient of the unfused forward part equals, node for node, the gradient in the file: a
training model that was created or edited by other means runs as it is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ortrain.errors import OrtrainError
from ortrain.fusion import OPSETS, fuse
from ortrain.gradient import add_gradient
from ortrain.ir import Graph, Model, NameSource, Node
from ortrain.ops.registry.decomposition import decompose
from ortrain.ops.registry.node_builder import GraphBuilder
from ortrain.ops.registry.record import MICROSOFT, canonical_domain
from ortrain.ops.registry.shape_inference import infer_graph
from ortrain.ops.training import ACCUMULATOR, BUFFER_SUFFIX

ATTENTION_OPERATORS = {("", "Attention"), *((MICROSOFT, name) for name in ("Attention", "GroupQueryAttention", "MultiHeadAttention"))}
"""Operators, with their domains, whose decomposition `fusion` makes attention of."""


def fused_training_model(model: Model) -> Model:
    """Return a training model with the same inputs and outputs and fused operators.

    Returns the model itself if there is nothing to fuse or its gradient is not the one ortrain generates."""
    graph = model.graph
    accumulators = [node for node in graph.nodes if node.op_type == ACCUMULATOR]
    if any(not node.inputs[0].endswith(BUFFER_SUFFIX) for node in accumulators) or not accumulators or any(node.graphs for node in graph.nodes):
        return model
    trained = [node.inputs[0].removesuffix(BUFFER_SUFFIX) for node in accumulators]
    outputs = [name for name in graph.outputs if name not in {node.outputs[0] for node in accumulators}]
    fused = forward_part(model, outputs)
    expand_attention(fused)
    if not fuse(fused.graph, trained):
        return model
    try:
        unfused = forward_part(model, outputs)
        gradients = add_gradient(unfused, outputs[0], trained)
        numbering = ValueNumbering()
        generated, in_file = numbering.of(unfused.graph), numbering.of(graph)
        if any(generated[gradients[name]] != in_file[node.inputs[1]] for name, node in zip(trained, accumulators, strict=True)):
            return model
        fused.opsets |= {domain: version for domain, version in OPSETS.items() if domain not in fused.opsets}
        gradients = add_gradient(fused, outputs[0], trained)
    except OrtrainError:
        return model                                     # planning reports the error
    fused.graph.nodes += [Node(node.op_type, [node.inputs[0], gradients[name], *node.inputs[2:]], list(node.outputs), node.name, node.domain,
                               dict(node.attributes)) for name, node in zip(trained, accumulators, strict=True)]
    fused.graph.outputs = list(graph.outputs)
    return fused


def fused_forward_model(model: Model, outputs: Sequence[str]) -> Model:
    """Return a model with fused operators that computes the given outputs; the model itself if there is nothing to
    fuse."""
    fused = forward_part(model, outputs)
    expand_attention(fused)
    if not fuse(fused.graph):
        return model
    fused.opsets |= {domain: version for domain, version in OPSETS.items() if domain not in fused.opsets}
    return fused


def expand_attention(model: Model) -> None:
    """Replace operators of attention by the nodes that differentiation would replace them by, from which attention is fused.

    Planning would replace them only after fusion. A node that planning will refuse stays."""
    graph = model.graph
    if not any((canonical_domain(node.domain), node.op_type) in ATTENTION_OPERATORS for node in graph.nodes):
        return
    try:
        builder = GraphBuilder(infer_graph(graph, model.opsets), NameSource(graph.names()), model.opset, graph.initializers, graph.types)
        graph.nodes = [part for node in graph.nodes for part in _expanded(node, builder)]
    except OrtrainError:
        return                                           # planning reports the error


def _expanded(node: Node, builder: GraphBuilder) -> list[Node]:
    is_attention = (canonical_domain(node.domain), node.op_type) in ATTENTION_OPERATORS
    return (decompose(node, builder, lambda record: record.gradient is not None) if is_attention else None) or [node]


def forward_part(model: Model, outputs: Sequence[str]) -> Model:
    """Return a model of the nodes on which the outputs depend, with all inputs of the model."""
    part = model.copy()
    graph = part.graph
    graph.nodes, graph.outputs = graph.ancestors(outputs), list(outputs)
    read = {*graph.outputs, *(name for node in graph.nodes for name in node.inputs)}
    produced = {name for node in graph.nodes for name in node.outputs}
    graph.initializers = {name: array for name, array in graph.initializers.items() if name in read}
    graph.types = {name: kind for name, kind in graph.types.items() if name in produced or name in read or name in graph.inputs}
    return part


class ValueNumbering:
    """Global value numbering: equal numbers mean the same computation on the same inputs, regardless of value names."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[Any, ...], int] = {}

    def of(self, graph: Graph) -> dict[str, int]:
        """Return value name -> number for a graph."""
        numbers = {"": self._number(("absent",))}
        numbers |= {name: self._number(("input", name)) for name in graph.inputs}
        numbers |= {name: self._number(("constant", *_content(array))) for name, array in graph.initializers.items()}
        for node in graph.nodes:
            attributes = tuple((name, _content(value) if isinstance(value, np.ndarray) else value) for name, value in sorted(node.attributes.items()))
            key = (canonical_domain(node.domain), node.op_type, attributes, tuple(numbers[name] for name in node.inputs))
            numbers |= {name: self._number((*key, index)) for index, name in enumerate(node.outputs) if name}
        return numbers

    def _number(self, key: tuple[Any, ...]) -> int:
        return self._numbers.setdefault(key, len(self._numbers))


def _content(array: np.ndarray) -> tuple[str, tuple[int, ...], bytes]:
    """Return the content of an array in a hashable form."""
    return array.dtype.str, array.shape, array.tobytes()
