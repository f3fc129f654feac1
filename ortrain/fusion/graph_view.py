"""A graph as rewrite rules see it: who makes a value, who reads it, which values are known."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import numpy as np

from ortrain.ir import Graph, Node, Shape
from ortrain.ops.registry.record import canonical_domain


class View:
    """Questions about a graph that does not change meanwhile."""

    def __init__(self, graph: Graph, trained: Collection[str]) -> None:
        self.graph = graph
        self._producers = graph.producers()
        self._consumers = graph.consumers()
        self._outputs = set(graph.outputs)
        self._names = graph.names()
        self._moving = set(trained)
        for node in graph.nodes:
            if not self._moving.isdisjoint(node.inputs):
                self._moving.update(name for name in node.outputs if name)

    def nodes(self, op_type: str) -> Iterator[Node]:
        """The nodes of an ONNX operator, in order."""
        return (node for node in self.graph.nodes if node.op_type == op_type and canonical_domain(node.domain) == "")

    def maker(self, value: str, *op_types: str) -> Node | None:
        """The node that makes a value as its first output, if it is of one of these ONNX operators."""
        node = self._producers.get(value)
        fits = node is not None and node.op_type in op_types and canonical_domain(node.domain) == "" and node.outputs[0] == value
        return node if fits else None

    def reader(self, value: str, *op_types: str) -> Node | None:
        """The only node that reads a value, once and in no graph inside, if it is of one of these ONNX operators and the value is no output."""
        readers = self._consumers.get(value, [])
        if len(readers) != 1 or value in self._outputs:
            return None
        node = readers[0]
        fits = node.op_type in op_types and canonical_domain(node.domain) == "" and node.inputs.count(value) == 1 and not node.graphs
        return node if fits else None

    def readers(self, value: str) -> int:
        """How many nodes read a value; an output of the graph has one reader more."""
        return len(self._consumers.get(value, ())) + (value in self._outputs)

    def array(self, value: str) -> np.ndarray | None:
        """A value that is a constant."""
        found = self.graph.initializers.get(value)
        if found is None:
            node = self._producers.get(value)
            stated = node.attributes.get("value") if node is not None and node.op_type == "Constant" else None
            return stated if isinstance(stated, np.ndarray) else None
        return found

    def scalar(self, value: str) -> float | None:
        """The number that a constant of one element of a float type holds."""
        array = self.array(value)
        return float(array.reshape(())) if array is not None and array.size == 1 and array.dtype.kind == "f" and array.ndim <= 1 else None

    def shape(self, value: str) -> Shape | None:
        """The shape of a value, where its rank is known."""
        array = self.array(value)
        if array is not None:
            return array.shape
        kind = self.graph.types.get(value)
        return None if kind is None else kind.shape

    def rank(self, value: str) -> int | None:
        """The rank of a value, where it is known."""
        shape = self.shape(value)
        return None if shape is None else len(shape)

    def new_name(self, wish: str) -> str:
        """A name that nothing in the graph has, nor any that was given before."""
        name, number = wish, 0
        while name in self._names:
            name, number = f"{wish}_{number}", number + 1
        self._names.add(name)
        return name

    def moves(self, value: str) -> bool:
        """Whether a gradient may have to flow through a value."""
        return value in self._moving

    def operands(self, node: Node) -> Sequence[tuple[str, str]]:
        """Both inputs of a commutative node, each first once."""
        a, b = node.inputs[:2]
        return (a, b), (b, a)

    def factor(self, value: str) -> tuple[str, float]:
        """(source, number) where value = source * number by a multiplication or division with a constant; (value, 1) for any other."""
        node = self.maker(value, "Mul", "Div")
        if node is not None:
            for source, other in self.operands(node) if node.op_type == "Mul" else (tuple(node.inputs),):
                number = self.scalar(other)
                if number:
                    return source, number if node.op_type == "Mul" else 1 / number
        return value, 1.0
