"""What models compute, with operators fused. In a training model, from the fused forward part the gradient is taken anew.

That is done only where the gradient of the unfused forward part is, node for node, what the file has: a model that was made or changed otherwise runs as it
is written."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ortrain.errors import OrtrainError
from ortrain.fusion import OPSETS, fuse
from ortrain.gradient import add_gradient
from ortrain.ir import Graph, Model, Node
from ortrain.ops.registry.record import canonical_domain
from ortrain.ops.training import ACCUMULATOR, BUFFER_SUFFIX


def fused_training_model(model: Model) -> Model:
    """A model with the same inputs and outputs, or the model itself where there is nothing to fuse or its gradients are not ours."""
    graph = model.graph
    accumulators = [node for node in graph.nodes if node.op_type == ACCUMULATOR]
    if any(not node.inputs[0].endswith(BUFFER_SUFFIX) for node in accumulators) or not accumulators or any(node.graphs for node in graph.nodes):
        return model
    trained = [node.inputs[0].removesuffix(BUFFER_SUFFIX) for node in accumulators]
    outputs = [name for name in graph.outputs if name not in {node.outputs[0] for node in accumulators}]
    fused = _forward_part(model, outputs)
    if not fuse(fused.graph, trained):
        return model
    try:
        plain = _forward_part(model, outputs)
        gradients = add_gradient(plain, outputs[0], trained)
        numbers = Numbers()
        ours, theirs = numbers.of(plain.graph), numbers.of(graph)
        if any(ours[gradients[name]] != theirs[node.inputs[1]] for name, node in zip(trained, accumulators, strict=True)):
            return model
        fused.opsets |= {domain: version for domain, version in OPSETS.items() if domain not in fused.opsets}
        gradients = add_gradient(fused, outputs[0], trained)
    except OrtrainError:
        return model                                     # whatever is wrong with it is said where it is planned
    fused.graph.nodes += [Node(node.op_type, [node.inputs[0], gradients[name], *node.inputs[2:]], list(node.outputs), node.name, node.domain,
                               dict(node.attributes)) for name, node in zip(trained, accumulators, strict=True)]
    fused.graph.outputs = list(graph.outputs)
    return fused


def fused_forward_model(model: Model, outputs: Sequence[str]) -> Model:
    """A model that computes these outputs of the model, with operators fused; the model itself where there is nothing to fuse."""
    fused = _forward_part(model, outputs)
    if not fuse(fused.graph):
        return model
    fused.opsets |= {domain: version for domain, version in OPSETS.items() if domain not in fused.opsets}
    return fused


def _forward_part(model: Model, outputs: Sequence[str]) -> Model:
    """The nodes that the outputs depend on, with all inputs of the model."""
    part = model.copy()
    graph = part.graph
    graph.nodes, graph.outputs = graph.ancestors(outputs), list(outputs)
    read = {*graph.outputs, *(name for node in graph.nodes for name in node.inputs)}
    made = {name for node in graph.nodes for name in node.outputs}
    graph.initializers = {name: array for name, array in graph.initializers.items() if name in read}
    graph.types = {name: kind for name, kind in graph.types.items() if name in made or name in read or name in graph.inputs}
    return part


class Numbers:
    """Numbers for values such that equal numbers mean the same computation on the same inputs, whatever the names in between."""

    def __init__(self) -> None:
        self._known: dict[tuple[Any, ...], int] = {}

    def of(self, graph: Graph) -> dict[str, int]:
        """Value name -> its number."""
        found = {"": self._number(("absent",))}
        found |= {name: self._number(("input", name)) for name in graph.inputs}
        found |= {name: self._number(("constant", *_content(array))) for name, array in graph.initializers.items()}
        for node in graph.nodes:
            attributes = tuple((name, _content(value) if isinstance(value, np.ndarray) else value) for name, value in sorted(node.attributes.items()))
            key = (canonical_domain(node.domain), node.op_type, attributes, tuple(found[name] for name in node.inputs))
            found |= {name: self._number((*key, index)) for index, name in enumerate(node.outputs) if name}
        return found

    def _number(self, key: tuple[Any, ...]) -> int:
        return self._known.setdefault(key, len(self._known))


def _content(array: np.ndarray) -> tuple[str, tuple[int, ...], bytes]:
    return array.dtype.str, array.shape, array.tobytes()
