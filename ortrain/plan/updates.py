"""Merges the product that gives a large weight matrix its gradient into the matrix's update: the gradient is spent piece by piece, as its rows are there."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ortrain.ir import Node
from ortrain.ops.inference import Inference
from ortrain.ops.record import ORTRAIN, canonical_domain
from ortrain.ops.training import rows_of_piece
from ortrain.plan.merging import Merging


def merge_updates(nodes: Sequence[Node], inference: Inference, wanted: Iterable[str]) -> list[Node]:
    """The nodes with products merged into updates; `wanted` names values that must be there afterwards."""
    if not any(node.op_type in ("AdamWUpdate", "SGDUpdate") for node in nodes):
        return list(nodes)
    return Updates(nodes, inference, wanted).run()


class Updates(Merging):
    """The work of one merging."""

    def run(self) -> list[Node]:
        for number, node in enumerate(self.nodes):
            if node.op_type in ("AdamWUpdate", "SGDUpdate") and node.domain == ORTRAIN:
                self._after_product(number, node)
        return self.left()

    def _after_product(self, number: int, update: Node) -> None:
        weights, gradient, *rest = update.inputs
        made, kind = self.producer.get(gradient), self.types[weights]
        if made is None or self._sole_reader(gradient) != number or len(kind.sizes) != 2 or rows_of_piece(kind) == kind.sizes[0]:
            return
        product = self.nodes[made]
        if product.op_type == "Gemm" and canonical_domain(product.domain) == "" and self._is_plain(product):
            attributes = update.attributes | {name: int(product.attributes.get(name, 0)) for name in ("transA", "transB")}
            self.result[made] = None
            self._replace(number, Node("GemmUpdate", [*product.inputs[:2], weights, "", *rest], update.outputs, update.name, ORTRAIN, attributes))

    @staticmethod
    def _is_plain(product: Node) -> bool:
        """Whether nothing is scaled or added."""
        alpha, beta = (product.attributes.get(name, 1.0) for name in ("alpha", "beta"))
        return alpha == 1.0 and (beta == 0.0 or not any(product.inputs[2:]))
