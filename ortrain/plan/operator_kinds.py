"""Kinds of operators by which it is decided which passes a plan needs."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from ortrain.ir import Node
from ortrain.ops.registry.record import DOMAINS, ORTRAIN, canonical_domain

CONVOLUTIONS = frozenset({"Conv", "ConvGrad", "ConvInputGrad"})
COPIES = frozenset({"Transpose", "Split", "Slice", "Gather"})
"""Operators that move elements, and whose result can be a view that a product reads."""
PARTITIONS = frozenset({"Slice", "Split", "SplitTraining"})
"""Operators that take parts of a value."""
RESHAPES = frozenset({"Reshape", "Squeeze", "Unsqueeze", "Flatten", "Identity"})
"""Operators that keep the order of elements."""
RECURRENT_LAYERS = frozenset({"LSTM", "GRU", "RNN", "LSTMTraining", "GRUTraining"})
LOSSES = {"SoftmaxCrossEntropyLoss": "", "LossAndGradient": ORTRAIN}
"""Softmax cross entropy without and with its gradient, and the domains of the operators."""


def has_any(op_types: Collection[str], nodes: Iterable[Node]) -> bool:
    """Return whether a graph has an operator of one of these names in a domain of ONNX or ortrain."""
    return any(node.op_type in op_types and canonical_domain(node.domain) in DOMAINS for node in nodes)
