"""Nodes of a plan that become fewer: what passes that merge neighbors have in common. No file ever shows what they make."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ortrain.ir import Node
from ortrain.ops.registry.shape_inference import Inference


class Merging:
    """The work of one pass. Nodes keep their numbers; `result` holds what stands at each, None where nothing is left."""

    def __init__(self, nodes: Sequence[Node], inference: Inference, wanted: Iterable[str]) -> None:
        self.nodes, self.values, self.types = nodes, inference.values, inference.types
        self.inference = inference
        self.result: list[Node | None] = list(nodes)
        self.producer = {name: number for number, node in enumerate(nodes) for name in node.outputs if name}
        self.readers: dict[str, list[int]] = {name: [-1] for name in wanted}
        """Value -> the numbers of the nodes that read it, -1 for who asked for the plan."""
        for number, node in enumerate(nodes):
            for name in dict.fromkeys(node.inputs):
                if name:
                    self.readers.setdefault(name, []).append(number)

    def left(self) -> list[Node]:
        """The nodes that are there now."""
        return [node for node in self.result if node is not None]

    def _scalar(self, name: str) -> float | None:
        value = self.values.get(name)
        return float(value.ravel()[0]) if value is not None and value.size == 1 else None

    def _sole_reader(self, name: str, apart: Iterable[int] = ()) -> int | None:
        """The one node that reads a value, those in `apart` aside, unless it was merged already."""
        rest = [number for number in self.readers.get(name, ()) if number not in apart]
        return rest[0] if len(rest) == 1 and rest[0] >= 0 and self.result[rest[0]] is self.nodes[rest[0]] else None

    def _replace(self, at: int, node: Node) -> None:
        self.inference.visit(node)
        self.result[at] = node
