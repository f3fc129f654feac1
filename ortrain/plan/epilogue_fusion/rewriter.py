"""The base class of epilogue fusion passes, which replace neighboring nodes of a plan by one. Fused nodes never
appear in files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from ortrain.ir import Node
from ortrain.ops.registry.node_builder import GraphBuilder
from ortrain.ops.registry.shape_inference import ShapeInference


def without_unread(nodes: Sequence[Node], outputs: Iterable[str], may_go: Callable[[Node], bool]) -> list[Node]:
    """Return the nodes without those whose results nothing reads, as far as `may_go` holds for them. outputs: values that must still be computed."""
    needed, kept = set(outputs), []
    for node in reversed(nodes):
        if may_go(node) and needed.isdisjoint(node.outputs):
            continue
        needed.update(node.inputs)
        kept.append(node)
    return kept[::-1]


class EpilogueRewriter:
    """One pass over the nodes of a plan.

    Nodes are identified by their index. `result` has the node at each index after the pass, None where a node was
    fused away. outputs: values that must still be computed."""

    def __init__(self, nodes: Sequence[Node], inference: ShapeInference, outputs: Iterable[str]) -> None:
        self.nodes, self.values, self.types = nodes, inference.values, inference.types
        self.inference = inference
        self.result: list[Node | None] = list(nodes)
        self.producer = {name: index for index, node in enumerate(nodes) for name in node.outputs if name}
        self.readers: dict[str, list[int]] = {name: [-1] for name in outputs}
        """Value -> the indices of the nodes that read it; -1 stands for the outputs of the plan."""
        for index, node in enumerate(nodes):
            for name in dict.fromkeys(node.inputs):
                if name:
                    self.readers.setdefault(name, []).append(index)

    def remaining(self) -> list[Node]:
        """Return the nodes after the pass."""
        return [node for node in self.result if node is not None]

    def _scalar(self, name: str) -> float | None:
        """Return the element of a constant with one element; None for other values."""
        value = self.values.get(name)
        return float(value.ravel()[0]) if value is not None and value.size == 1 else None

    def _sole_reader(self, name: str, excluded: Iterable[int] = ()) -> int | None:
        """Return the index of the only reader of a value besides those in `excluded`; None if there are others or it
        was fused already."""
        others = [index for index in self.readers.get(name, ()) if index not in excluded]
        return others[0] if len(others) == 1 and others[0] >= 0 and self.result[others[0]] is self.nodes[others[0]] else None

    def _replace(self, index: int, node: Node) -> None:
        """Put a fused node at an index."""
        self.inference.visit(node)
        self.result[index] = node


class InsertingRewriter(EpilogueRewriter):
    """A pass that also inserts nodes before others. builder: adds constants and names."""

    def __init__(self, nodes: Sequence[Node], builder: GraphBuilder, outputs: Iterable[str]) -> None:
        super().__init__(nodes, builder.inference, outputs)
        self.builder = builder
        self.inserted: dict[int, list[Node]] = {}
        """Index of a node -> the nodes before it."""

    def remaining(self) -> list[Node]:
        """Return the nodes after the pass."""
        return [new for index, node in enumerate(self.result) if node is not None for new in (*self.inserted.get(index, ()), node)]

    def _insert(self, index: int, node: Node) -> None:
        """Put a node before the one at an index."""
        self.inference.visit(node)
        self.inserted.setdefault(index, []).append(node)
