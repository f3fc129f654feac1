"""Epilogue fusion of optimizer updates: fuses the GEMM that computes the gradient of a large weight into the weight's
update.

The update consumes the gradient in blocks of rows, so that the gradient never exists as a whole."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ortrain.ir import Node
from ortrain.ops.registry.optimizers import UPDATES
from ortrain.ops.registry.record import ORTRAIN, canonical_domain
from ortrain.ops.registry.shape_inference import ShapeInference
from ortrain.ops.training import rows_per_chunk
from ortrain.plan.epilogue_fusion.rewriter import EpilogueRewriter


def is_update(node: Node) -> bool:
    """Return whether a node updates a parameter from its gradient."""
    return node.op_type in UPDATES and node.domain == ORTRAIN


def fuse_updates(nodes: Sequence[Node], inference: ShapeInference, outputs: Iterable[str]) -> list[Node]:
    """Return the nodes with gradient computations fused into updates. outputs: values that must still be computed."""
    if not any(map(is_update, nodes)):
        return list(nodes)
    return UpdateRewriter(nodes, inference, outputs).run()


class UpdateRewriter(EpilogueRewriter):
    """Fuses Gemm nodes into the updates that read their results."""

    def __init__(self, nodes: Sequence[Node], inference: ShapeInference, outputs: Iterable[str]) -> None:
        super().__init__(nodes, inference, outputs)
        self.parameters = {node.inputs[0] for node in nodes if is_update(node)}

    def run(self) -> list[Node]:
        for index, node in enumerate(self.nodes):
            if is_update(node) and UPDATES[node.op_type].gemm_update is not None:
                self._fuse_gradient(index, node)
        return self.remaining()

    def _fuse_gradient(self, index: int, update: Node) -> None:
        weights, gradient, *rest = update.inputs
        gemm_index, kind = self.producer.get(gradient), self.types[weights]
        if gemm_index is None or self._sole_reader(gradient) != index or len(kind.sizes) != 2 or rows_per_chunk(kind) == kind.sizes[0]:
            return
        gemm = self.nodes[gemm_index]
        if gemm.op_type != "Gemm" or canonical_domain(gemm.domain) or any(map(self._may_be_updated, gemm.inputs[:2])):
            return
        if self._is_unscaled(gemm):
            attributes = update.attributes | {name: int(gemm.attributes.get(name, 0)) for name in ("transA", "transB")} | {"update": update.op_type}
            self.result[gemm_index] = None
            self._replace(index, Node("GemmUpdate", [*gemm.inputs[:2], weights, "", *rest], update.outputs, gemm.name, ORTRAIN, attributes))

    def _may_be_updated(self, name: str) -> bool:
        """Return whether a value is a parameter or a view of one: the fused update must not read a parameter that it
        or another update has partly overwritten."""
        count = self.types[name].count
        while name not in self.parameters:
            producer = self.producer.get(name)
            name = next(filter(None, self.nodes[producer].inputs), "") if producer is not None else ""
            if not name or self.types[name].count != count:
                return False
        return True

    @staticmethod
    def _is_unscaled(gemm: Node) -> bool:
        """Return whether a Gemm neither scales its result nor adds to it."""
        alpha, beta = (gemm.attributes.get(name, 1.0) for name in ("alpha", "beta"))
        return alpha == 1.0 and (beta == 0.0 or not any(gemm.inputs[2:]))
