"""Which convolutions work on planes [n, c, h, w]: those of regions that would gain nothing by channels-last data, only pay for transposes at their borders."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from ortrain.ir import Node
from ortrain.ops.planes import suits_planes
from ortrain.ops.registry.record import is_elementwise
from ortrain.ops.registry.shape_inference import ShapeInference
from ortrain.plan.promotion import REDUCTIONS

NEUTRAL = frozenset({"Conv", "ConvGrad", "Identity", "Dropout", "DropoutGrad", "GlobalAveragePool", "Expand", *REDUCTIONS})
"""Operators that run as well on planes, besides elementwise ones. A Transpose of images may become superfluous by channels-last data."""


def convolutions_of_planes(nodes: Sequence[Node], inference: ShapeInference, is_image: Callable[[str], bool], rules: Collection[str]) -> set[str]:
    """Return the first outputs of the Conv and ConvGrad nodes that work on planes.

    A region is everything that layout conversion could reach from a convolution. is_image: whether a value has the shape of images. rules: the operators that
    layout conversion knows, besides elementwise ones."""
    regions, members = Regions(), [node for node in nodes if node.op_type in rules or is_elementwise(node)]
    for node in members:
        regions.unite([name for name in (*node.inputs, *node.outputs) if is_image(name)])
    kept = {regions.find(name) for node in members if not _suits_planes(node, inference, is_image)
            for name in (*node.inputs, *node.outputs) if is_image(name)}
    return {name for node in members if node.op_type in ("Conv", "ConvGrad") and is_image(node.inputs[0]) and regions.find(node.inputs[0]) not in kept
            for name in node.outputs if name}


def _suits_planes(node: Node, inference: ShapeInference, is_image: Callable[[str], bool]) -> bool:
    """Return whether a node runs as well on planes as on channels-last data. A Reshape does that ends the region, or begins it."""
    if node.op_type in ("Conv", "ConvGrad"):
        x, w = (0, 1) if node.op_type == "Conv" else (1, 2)
        kinds = [inference.types.get(name) for name in (node.inputs[x], node.inputs[w])]
        return all(kind is not None and kind.is_static for kind in kinds) and suits_planes(inference.context(node), x, w)
    if node.op_type == "Reshape":
        return not (is_image(node.inputs[0]) and is_image(node.outputs[0]))
    return node.op_type in NEUTRAL or is_elementwise(node)


class Regions:
    """Disjoint sets of values, found by their names (union-find)."""

    def __init__(self) -> None:
        self.parents: dict[str, str] = {}

    def find(self, name: str) -> str:
        """Return the value that stands for the region of a value."""
        while (parent := self.parents.get(name, name)) != name:
            self.parents[name] = self.parents.get(parent, parent)
            name = parent
        return name

    def unite(self, names: Sequence[str]) -> None:
        """Make the regions of the values one."""
        for name in names[1:]:
            self.parents[self.find(name)] = self.find(names[0])
