"""Fusion of the conversion of weights into the products that read them.

Weights that are stored as int8 or in half precision become floats a block at a time, within the product, instead of as a whole before it, so that a frozen
network takes little more memory than what is stored."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ortrain.ir import Node
from ortrain.ops.registry.record import ORTRAIN, canonical_domain
from ortrain.ops.registry.shape_inference import ShapeInference
from ortrain.plan.epilogue_fusion.products import PRODUCTS
from ortrain.plan.epilogue_fusion.rewriter import EpilogueRewriter

LAYERS = PRODUCTS | {"Dense": ORTRAIN}
"""Operators whose weights are fused, and their domains."""
HALVES = ("float16", "bfloat16")


def read_stored_weights(nodes: Sequence[Node], inference: ShapeInference, outputs: Iterable[str]) -> list[Node]:
    """Return the nodes with products that read stored weights as they are. outputs: values that must still be computed."""
    return StoredWeightRewriter(nodes, inference, outputs).run()


@dataclass(frozen=True, slots=True)
class StoredWeight:
    """A weight as it is stored: `name`, of int8 or half precision, and the scales of the integers along `axis`; "" for no scale, None for one of all."""

    name: str
    scale: str = ""
    axis: int | None = None


class StoredWeightRewriter(EpilogueRewriter):
    """Replaces dense layers over converted weights by DequantizedDense, and drops conversions that nothing reads any more."""

    def run(self) -> list[Node]:
        for index, node in enumerate(self.nodes):
            if canonical_domain(node.domain) == LAYERS.get(node.op_type) and self._is_layer(node):
                stored = self._stored(node.inputs[1])
                if stored is not None:
                    self._fuse(index, node, stored)
        self._drop_unread()
        return self.remaining()

    def _is_layer(self, node: Node) -> bool:
        """Return whether all rows of the first operand are multiplied by one matrix, without another addend than the bias of a Dense."""
        x, weights = (self.types[name] for name in node.inputs[:2])
        has_addend = node.op_type != "Dense" and any(node.inputs[2:])
        is_by_matrix = len(x.shape or ()) > 1 and len(weights.shape or ()) == 2 and not node.attributes.get("transA", 0)
        return x.dtype in ("float32", "float64") and is_by_matrix and not has_addend

    def _stored(self, weights: str) -> StoredWeight | None:
        """Return what the weights are converted from: a Cast of halves, or the product of a Cast of integers and their scales."""
        node = self._producer(weights)
        if node is None or node.op_type not in ("Cast", "Mul"):
            return None
        if node.op_type == "Cast":
            return StoredWeight(node.inputs[0]) if self.types[node.inputs[0]].dtype in (*HALVES, "int8") else None
        for integers, scale in (node.inputs, node.inputs[::-1]):
            cast = self._producer(integers)
            if cast is not None and cast.op_type == "Cast" and self.types[cast.inputs[0]].dtype == "int8" and self.types[integers] == self.types[weights]:
                sizes, shape = self.types[weights].shape or (), self.types[scale].shape or ()
                axes = [axis for axis, size in enumerate((1,) * (2 - len(shape)) + shape) if size != 1]
                if len(axes) < 2 and all(shape[axis - 2] == sizes[axis] for axis in axes):
                    return StoredWeight(cast.inputs[0], scale, axes[0] if axes else None)
        return None

    def _producer(self, name: str) -> Node | None:
        return self.nodes[self.producer[name]] if name in self.producer else None

    def _fuse(self, index: int, node: Node, stored: StoredWeight) -> None:
        attributes = {name: value for name, value in node.attributes.items() if name in ("transB", "relu", "alpha")}
        if stored.axis is not None:
            attributes["axis"] = stored.axis
        inputs = [node.inputs[0], stored.name, stored.scale, *node.inputs[2:]]
        self._replace(index, Node("DequantizedDense", inputs, node.outputs, node.name, ORTRAIN, attributes))

    def _drop_unread(self) -> None:
        """Drop conversions that only fused products read."""
        read = {name for name, readers in self.readers.items() if -1 in readers}
        for index in reversed(range(len(self.nodes))):
            node = self.result[index]
            if node is None:
                continue
            if node.op_type in ("Cast", "Mul") and not read.intersection(node.outputs):
                self.result[index] = None
            else:
                read.update(node.inputs)
