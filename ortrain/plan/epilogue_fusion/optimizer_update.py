"""Merges the product that gives a large weight matrix its gradient into the matrix's update: the gradient is spent piece by piece, as its rows are there."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ortrain.ir import Node
from ortrain.ops.registry.record import ORTRAIN, canonical_domain
from ortrain.ops.registry.shape_inference import Inference
from ortrain.ops.registry.optimizers import UPDATES
from ortrain.ops.training import rows_of_piece
from ortrain.plan.epilogue_fusion.rewriter import Merging


def is_update(node: Node) -> bool:
    """Whether a node updates a parameter from its gradient."""
    return node.op_type in UPDATES and node.domain == ORTRAIN


def merge_updates(nodes: Sequence[Node], inference: Inference, wanted: Iterable[str]) -> list[Node]:
    """The nodes with products merged into updates; `wanted` names values that must be there afterwards."""
    if not any(map(is_update, nodes)):
        return list(nodes)
    return Updates(nodes, inference, wanted).run()


class Updates(Merging):
    """The work of one merging."""

    def __init__(self, nodes: Sequence[Node], inference: Inference, wanted: Iterable[str]) -> None:
        super().__init__(nodes, inference, wanted)
        self.updated = {node.inputs[0] for node in nodes if is_update(node)}

    def run(self) -> list[Node]:
        for number, node in enumerate(self.nodes):
            if is_update(node) and UPDATES[node.op_type].gemm_update is not None:
                self._after_product(number, node)
        return self.left()

    def _after_product(self, number: int, update: Node) -> None:
        weights, gradient, *rest = update.inputs
        made, kind = self.producer.get(gradient), self.types[weights]
        if made is None or self._sole_reader(gradient) != number or len(kind.sizes) != 2 or rows_of_piece(kind) == kind.sizes[0]:
            return
        product = self.nodes[made]
        if product.op_type != "Gemm" or canonical_domain(product.domain) or any(map(self._may_be_updated, product.inputs[:2])):
            return
        if self._is_plain(product):
            attributes = update.attributes | {name: int(product.attributes.get(name, 0)) for name in ("transA", "transB")}
            self.result[made] = None
            self._replace(number, Node("GemmUpdate", [*product.inputs[:2], weights, "", *rest], update.outputs, update.name, ORTRAIN, attributes))

    def _may_be_updated(self, name: str) -> bool:
        """Whether a value is a parameter, or can be one under another shape: an update must not read what another one writes, or the pieces before."""
        count = self.types[name].count
        while name not in self.updated:
            made = self.producer.get(name)
            name = next(filter(None, self.nodes[made].inputs), "") if made is not None else ""
            if not name or self.types[name].count != count:
                return False
        return True

    @staticmethod
    def _is_plain(product: Node) -> bool:
        """Whether nothing is scaled or added."""
        alpha, beta = (product.attributes.get(name, 1.0) for name in ("alpha", "beta"))
        return alpha == 1.0 and (beta == 0.0 or not any(product.inputs[2:]))
