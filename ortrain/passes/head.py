"""The head of a network: the layers behind its features, which transfer learning trains first."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ortrain.errors import InvalidArgumentError
from ortrain.ir import Model, Node

HEAD = "head"
"""The word that stands for the parameters of the head wherever parameters are named."""

POOLING = frozenset({"GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool", "Flatten"})
POINTWISE = frozenset({"Clip", "Dropout", "Identity", "Relu"})
"""Operators that may stand between a convolution that is a head and the pooling of its channels."""
DENSE = {"Gemm": (0, 1, 2), "MatMul": (0, 1), "FusedMatMul": (0, 1), "Dense": (0, 1, 2)}
"""Dense layers -> the inputs that may be weights."""

FORMS = frozenset({"Cast", "DequantizeLinear", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze"})
"""Operators whose result is another form of their first input."""


def head_parameters(model: Model, parameters: Iterable[str], output: str | None = None) -> list[str]:
    """Return the parameters of a model's head, in the order of `parameters`.

    The head is what comes after the last global pooling or Flatten, if that has parameters; otherwise the convolution whose channels are pooled at the end, or
    the last dense layer (Gemm or MatMul) with a weight, and its bias. parameters: the names to choose from. output: take only what this value depends on, such
    as the loss of a training model.

    Raises InvalidArgumentError for a model with neither."""
    known = list(parameters)
    nodes, wanted = model.graph.nodes if output is None else model.graph.ancestors([output]), set(known)
    producers = model.graph.producers()
    found = _behind_pooling(nodes, producers, wanted) or _pooled_convolution(nodes, producers, wanted) or _last_dense(nodes, producers, wanted)
    if not found:
        raise InvalidArgumentError("expected a model with parameters after its last global pooling or Flatten, or with a dense layer, to have a head, got "
                                   "neither: name the parameters")
    return [name for name in known if name in found]


def _behind_pooling(nodes: Sequence[Node], producers: Mapping[str, Node], wanted: set[str]) -> set[str]:
    """Return the parameters that nodes after the last pooling read."""
    last = max((position for position, node in enumerate(nodes) if node.op_type in POOLING), default=None)
    if last is None:
        return set()
    reached, found = set(nodes[last].outputs), set()
    for node in nodes[last + 1 :]:
        if reached.intersection(node.inputs):
            reached.update(node.outputs)
            found |= _parameters_among(node.inputs, producers, wanted)
    return found


def _pooled_convolution(nodes: Sequence[Node], producers: Mapping[str, Node], wanted: set[str]) -> set[str]:
    """Return the parameters of the convolution whose channels the last pooling averages, with at most an activation between them."""
    last = next((node for node in reversed(nodes) if node.op_type in POOLING), None)
    while last is not None and last.op_type in POOLING | POINTWISE:
        last = producers.get(last.inputs[0])
    return _parameters_among(last.inputs[1:], producers, wanted) if last is not None and last.op_type == "Conv" else set()


def _last_dense(nodes: Sequence[Node], producers: Mapping[str, Node], wanted: set[str]) -> set[str]:
    """Return the weight and the bias of the last dense layer."""
    for node in reversed(nodes):
        weights = _parameters_among([node.inputs[index] for index in DENSE.get(node.op_type, ()) if index < len(node.inputs)], producers, wanted)
        if weights:
            additions = [reader for reader in nodes if reader.op_type == "Add" and node.outputs[0] in reader.inputs]
            return weights | {name for addition in additions for name in _parameters_among(addition.inputs, producers, wanted)}
    return set()


def _parameters_among(values: Iterable[str], producers: Mapping[str, Node], wanted: set[str]) -> set[str]:
    """Return the parameters that values are, or are another form of."""
    found = set()
    for name in values:
        while name and name not in wanted:
            node = producers.get(name)
            name = node.inputs[0] if node is not None and node.op_type in FORMS else ""
        if name:
            found.add(name)
    return found
