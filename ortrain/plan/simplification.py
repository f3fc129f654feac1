"""Simplification of a plan's nodes: the same results in fewer passes over large values.

Gradients are rich in such nodes. The gradient of a mean expands a value that the next product would broadcast anyway, that of a square multiplies by the
first power of its input, and that of a quotient negates all elements before it adds them up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

from ortrain.ir import Node
from ortrain.ops.registry.constants import is_same_size
from ortrain.ops.registry.node_builder import GraphBuilder
from ortrain.ops.registry.record import MICROSOFT, canonical_domain

BROADCASTING = frozenset({"Add", "Sub", "Mul", "Div", "Sum", "Where"})
"""Operators that broadcast every input."""
SUMS = frozenset({"ReduceSum", "ReduceSumTraining"})


def simplify(nodes: Sequence[Node], builder: GraphBuilder, outputs: Iterable[str]) -> list[Node]:
    """Return the nodes without first powers, with negations after sums instead of before, and with operators that broadcast reading the source of an Expand
    instead of its copy. outputs: values that must still be computed."""
    return Simplification(nodes, builder, outputs).run()


class Simplification:
    """One pass over the nodes of a plan; parameters as in simplify."""

    def __init__(self, nodes: Sequence[Node], builder: GraphBuilder, outputs: Iterable[str]) -> None:
        self.nodes, self.builder, self.inference = nodes, builder, builder.inference
        self.outputs = frozenset(outputs)
        self.reads = Counter(name for node in nodes for name in node.inputs)
        self.first_powers: dict[str, str] = {}
        """First power of a value -> the value."""
        self.expanded: dict[str, str] = {}
        """Output of an Expand -> its input."""
        self.negated: dict[str, str] = {}
        """Output of a Neg that one node reads -> its input."""

    def run(self) -> list[Node]:
        """Return the simplified nodes."""
        kept: list[Node] = []
        for node in self.nodes:
            if any(name in self.first_powers for name in node.inputs):
                node = replace(node, inputs=[self.first_powers.get(name, name) for name in node.inputs])
            kept += self._simplified(node) if canonical_domain(node.domain) in ("", MICROSOFT) and not node.graphs else [node]
        read = {name for node in kept for name in node.inputs} | self.outputs
        return [node for node in kept if node.outputs[0] in read or node.outputs[0] not in self.expanded and node.outputs[0] not in self.negated]

    def _simplified(self, node: Node) -> list[Node]:
        """Return the nodes that compute what a node of ONNX or ONNX Runtime computes."""
        output = node.outputs[0]
        if self._is_first_power(node):
            self.first_powers[output] = node.inputs[0]
            return []
        if node.op_type == "Expand":
            self.expanded[output] = node.inputs[0]
        elif node.op_type == "Neg" and self.reads[output] == 1 and output not in self.outputs:
            self.negated[output] = node.inputs[0]
        elif node.op_type in SUMS and node.inputs[0] in self.negated:
            return self._negated_sum(node)
        elif node.op_type in BROADCASTING and any(name in self.expanded for name in node.inputs) and not self._is_mask(node):
            return [self._without_copies(node)]
        return [node]

    def _is_first_power(self, node: Node) -> bool:
        if node.op_type != "Pow" or node.outputs[0] in self.outputs:
            return False
        exponent = self.inference.values.get(node.inputs[1])
        return exponent is not None and exponent.size == 1 and float(exponent.ravel()[0]) == 1 and self._has_type_of(node.inputs[0], node.outputs[0])

    def _is_mask(self, node: Node) -> bool:
        """Return whether a node replaces gradients by zero. Gradients of normalizations absorb such masks where the gradient has their shape
        (epilogue_fusion/conv.py), which saves the comparisons and the selection, one pass each, for the one pass of an Expand."""
        zero = self.inference.values.get(node.inputs[2]) if node.op_type == "Where" else None
        return zero is not None and not zero.any()

    def _negated_sum(self, node: Node) -> list[Node]:
        """Return the sum of the values before their negation, and the negation of the sum."""
        total = self.builder.names.unique(f"{node.outputs[0]}::before_negation")
        summed = replace(node, inputs=[self.negated[node.inputs[0]], *node.inputs[1:]], outputs=[total])
        self.inference.visit(summed)
        return [summed, Node("Neg", [total], [node.outputs[0]], f"{node.name}::negation")]

    def _without_copies(self, node: Node) -> Node:
        """Return a node that reads the sources of copies by Expand, where another input gives the output its shape."""
        inputs = list(node.inputs)
        for index, name in enumerate(inputs):
            others = (other for position, other in enumerate(inputs) if position != index)
            if name in self.expanded and any(self._has_shape_of(other, node.outputs[0]) for other in others):
                inputs[index] = self.expanded[name]
        return node if inputs == node.inputs else replace(node, inputs=inputs)

    def _has_shape_of(self, one: str, other: str) -> bool:
        """Return whether two values have the same shape in every specialization of the plan."""
        shapes = self.inference.types[one].shape, self.inference.types[other].shape
        return None not in shapes and len(shapes[0] or ()) == len(shapes[1] or ()) and all(map(is_same_size, shapes[0] or (), shapes[1] or ()))

    def _has_type_of(self, one: str, other: str) -> bool:
        return self.inference.types[one].dtype == self.inference.types[other].dtype and self._has_shape_of(one, other)
