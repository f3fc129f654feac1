"""Model, Graph, Node and TensorType."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ortrain.dtypes import name_of

Dim = int | str
"""A dimension: its size, or a symbol for one that is known only at run time."""

Shape = tuple[Dim, ...]

Attribute = Any
"""int, float, str, bytes, np.ndarray, Graph, or a tuple of ints, floats or strings."""


@dataclass(frozen=True, slots=True)
class TensorType:
    """The type of a value: its dtype (a NumPy name) and shape, None for unknown rank.

    sequence: an ONNX sequence of such tensors. optional: an ONNX optional, which may be absent."""

    dtype: str
    shape: Shape | None
    sequence: bool = False
    optional: bool = False

    @property
    def is_object(self) -> bool:
        """True for text, sequences and optionals. They are Python objects outside of programs, passed between the
        partitions of a run."""
        return self.sequence or self.optional or self.dtype == "string"

    @property
    def is_static(self) -> bool:
        """True if every dimension is a number."""
        # called hundreds of times per plan; a generator expression takes three times as long
        return self.shape is not None and str not in map(type, self.shape)

    @property
    def sizes(self) -> tuple[int, ...]:
        """The shape of a static type."""
        assert self.is_static and self.shape is not None, f"expected a static shape, got {self.shape}"
        return self.shape  # type: ignore[return-value]

    @property
    def count(self) -> int:
        """The number of elements of a static type."""
        return math.prod(self.sizes)

    @classmethod
    def of(cls, array: np.ndarray) -> TensorType:
        """Return the type of a NumPy array."""
        return cls(name_of(array.dtype), tuple(array.shape))


@dataclass(slots=True)
class Node:
    """One operator call. Inputs and outputs are value names; "" stands for an absent optional input or output."""

    op_type: str
    inputs: list[str]
    outputs: list[str]
    name: str = ""
    domain: str = ""
    attributes: dict[str, Attribute] = field(default_factory=dict)

    @property
    def graphs(self) -> dict[str, Graph]:
        """The subgraphs by attribute name: the branches of an If, the body of a Loop or Scan."""
        return {name: value for name, value in self.attributes.items() if isinstance(value, Graph)}

    @property
    def own_inputs(self) -> list[str]:
        """The inputs in the model file. The IR appends the outer values that subgraphs read to the inputs of their
        node."""
        if self.domain or self.op_type not in ("If", "Loop", "Scan") or not self.graphs:
            return self.inputs
        return self.inputs[:1] if self.op_type == "If" else self.inputs[: len(self.graphs["body"].inputs)]

    def copy(self) -> Node:
        return replace(self, inputs=list(self.inputs), outputs=list(self.outputs), attributes=dict(self.attributes))

    def __str__(self) -> str:
        domain = f"{self.domain}::" if self.domain else ""
        attributes = ", ".join(f"{k}={v}" for k, v in self.attributes.items() if not isinstance(v, np.ndarray | Graph))
        return f"{', '.join(self.outputs)} = {domain}{self.op_type}({', '.join(self.inputs)}{'; ' + attributes if attributes else ''})"


@dataclass(slots=True)
class Graph:
    """Nodes in topological order, with graph inputs and outputs, constants, and known types of values.

    `inputs` never contains an initializer (loading ensures that); `types` has inputs, outputs and any other value of
    known type."""

    name: str = "graph"
    inputs: list[str] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)
    initializers: dict[str, np.ndarray] = field(default_factory=dict)
    types: dict[str, TensorType] = field(default_factory=dict)

    def copy(self) -> Graph:
        """Return a copy that shares only the arrays."""
        return Graph(self.name, list(self.inputs), list(self.outputs), [n.copy() for n in self.nodes], dict(self.initializers), dict(self.types))

    def producers(self) -> dict[str, Node]:
        """Return value name -> the node that computes it."""
        return {output: node for node in self.nodes for output in node.outputs if output}

    def consumers(self) -> dict[str, list[Node]]:
        """Return value name -> the nodes that read it, in order."""
        consumers: dict[str, list[Node]] = {}
        for node in self.nodes:
            for value in dict.fromkeys(node.inputs):
                if value:
                    consumers.setdefault(value, []).append(node)
        return consumers

    def names(self) -> set[str]:
        """Return all value and node names in use."""
        used = {*self.inputs, *self.outputs, *self.initializers, *self.types}
        for node in self.nodes:
            used.update(node.inputs, node.outputs, (node.name,))
        return used - {""}

    def all_nodes(self) -> Iterator[Node]:
        """Yield the nodes of this graph and of its subgraphs."""
        for node in self.nodes:
            yield node
            for inner in node.graphs.values():
                yield from inner.all_nodes()

    def ancestors(self, outputs: Iterable[str]) -> list[Node]:
        """Return the nodes on which the given values depend, in graph order."""
        wanted, kept = set(outputs), []
        for node in reversed(self.nodes):
            if wanted.intersection(node.outputs):
                kept.append(node)
                wanted.update(node.inputs)
        return kept[::-1]

    def __str__(self) -> str:
        def typed(value: str) -> str:
            kind = self.types.get(value)
            return f"{value}: {kind.dtype}{list(kind.shape) if kind.shape is not None else '[?]'}" if kind else value

        lines = [f"graph {self.name}({', '.join(map(typed, self.inputs))})"]
        lines += [f"  {name} = constant {array.dtype}{list(array.shape)}" for name, array in self.initializers.items()]
        lines += [f"  {node}" for node in self.nodes]
        return "\n".join([*lines, f"  return {', '.join(map(typed, self.outputs))}"])


@dataclass(slots=True)
class Model:
    """A graph with the opset imports (domain -> version) that define its operators."""

    graph: Graph
    opsets: dict[str, int]
    ir_version: int = 9
    producer: str = "ortrain"
    metadata: dict[str, str] = field(default_factory=dict)
    """The metadata properties of the file, including those that ortrain adds."""

    def copy(self) -> Model:
        return replace(self, graph=self.graph.copy(), opsets=dict(self.opsets), metadata=dict(self.metadata))

    def _repr_html_(self) -> str:
        from ortrain.ir.html import model_html

        return model_html(self)

    @property
    def opset(self) -> int:
        """The version of the default ONNX domain."""
        return self.opsets.get("", 17)
