"""A read-only view of a graph for fusion rules: producers, consumers, constants and shapes of values."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import numpy as np

from ortrain.ir import Graph, Node, Shape
from ortrain.ops.registry.record import canonical_domain


class GraphView:
    """Answers queries about a graph, which must not change meanwhile. trained: values whose gradients will be
    computed."""

    def __init__(self, graph: Graph, trained: Collection[str]) -> None:
        self.graph = graph
        self._producers = graph.producers()
        self._consumers = graph.consumers()
        self._outputs = set(graph.outputs)
        self._names = graph.names()
        self._gradient_path = set(trained)
        for node in graph.nodes:
            if not self._gradient_path.isdisjoint(node.inputs):
                self._gradient_path.update(name for name in node.outputs if name)

    def nodes(self, op_type: str, domain: str = "") -> Iterator[Node]:
        """Return the nodes of an operator of a domain, in order."""
        return (node for node in self.graph.nodes if node.op_type == op_type and canonical_domain(node.domain) == domain)

    def producer(self, value: str, *op_types: str) -> Node | None:
        """Return the node whose first output is a value, if it is one of these ONNX operators; else None."""
        node = self._producers.get(value)
        is_match = node is not None and node.op_type in op_types and canonical_domain(node.domain) == "" and node.outputs[0] == value
        return node if is_match else None

    def producer_of_output(self, value: str, op_type: str) -> Node | None:
        """Return the node of which a value is any output, if it is of this ONNX operator; else None."""
        node = self._producers.get(value)
        return node if node is not None and node.op_type == op_type and canonical_domain(node.domain) == "" else None

    def sole_consumer(self, value: str, *op_types: str) -> Node | None:
        """Return the only node that reads a value if it is one of these ONNX operators; else None.

        None as well if the value is a graph output, is read twice by the node, or the node has subgraphs."""
        consumers = self._consumers.get(value, [])
        if len(consumers) != 1 or value in self._outputs:
            return None
        node = consumers[0]
        is_match = node.op_type in op_types and canonical_domain(node.domain) == "" and node.inputs.count(value) == 1 and not node.graphs
        return node if is_match else None

    def consumer_count(self, value: str) -> int:
        """Return the number of nodes that read a value, plus one for a graph output."""
        return len(self._consumers.get(value, ())) + (value in self._outputs)

    def constant(self, value: str) -> np.ndarray | None:
        """Return the array of a constant value, None for other values."""
        array = self.graph.initializers.get(value)
        if array is None:
            node = self._producers.get(value)
            value_attribute = node.attributes.get("value") if node is not None and node.op_type == "Constant" else None
            return value_attribute if isinstance(value_attribute, np.ndarray) else None
        return array

    def scalar(self, value: str) -> float | None:
        """Return the number in a float constant with one element and at most one axis, None for other values."""
        array = self.constant(value)
        return float(array.reshape(())) if array is not None and array.size == 1 and array.dtype.kind == "f" and array.ndim <= 1 else None

    def shape(self, value: str) -> Shape | None:
        """Return the shape of a value, None if its rank is unknown."""
        array = self.constant(value)
        if array is not None:
            return array.shape
        kind = self.graph.types.get(value)
        return None if kind is None else kind.shape

    def dtype(self, value: str) -> str | None:
        """Return the dtype of a value, None if it is unknown."""
        array = self.constant(value)
        if array is not None:
            return array.dtype.name
        kind = self.graph.types.get(value)
        return None if kind is None else kind.dtype

    def rank(self, value: str) -> int | None:
        """Return the rank of a value, None if it is unknown."""
        shape = self.shape(value)
        return None if shape is None else len(shape)

    def unique_name(self, prefix: str) -> str:
        """Return a name that is not in use in the graph and was not returned before."""
        name, number = prefix, 0
        while name in self._names:
            name, number = f"{prefix}_{number}", number + 1
        self._names.add(name)
        return name

    def needs_gradient(self, value: str) -> bool:
        """Return whether a gradient may have to flow through a value."""
        return value in self._gradient_path

    def operands(self, node: Node) -> Sequence[tuple[str, str]]:
        """Return the two inputs of a commutative node in both orders."""
        a, b = node.inputs[:2]
        return (a, b), (b, a)

    def factor(self, value: str) -> tuple[str, float]:
        """Return (source, number) if value = source * number by a Mul or Div with a constant; otherwise (value, 1)."""
        node = self.producer(value, "Mul", "Div")
        if node is not None:
            for source, other in self.operands(node) if node.op_type == "Mul" else (tuple(node.inputs),):
                number = self.scalar(other)
                if number:
                    return source, number if node.op_type == "Mul" else 1 / number
        return value, 1.0
