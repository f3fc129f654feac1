"""Fusion of transposes and factors into batched matrix multiplications.

FusedMatMul reads its operands transposed and multiplies its result by a number while a tile is in registers. Exporters write attention with a transpose of the
keys and a division of the scores, and its gradient has both again."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from ortrain.ir import Node
from ortrain.ops.registry.record import MICROSOFT, canonical_domain
from ortrain.ops.registry.shape_inference import ShapeInference
from ortrain.plan.epilogue_fusion.rewriter import EpilogueRewriter

PRODUCTS = {"MatMul": "", "FusedMatMul": MICROSOFT}
"""Operators that are fused, and their domains."""
SIDES = ("transA", "transB")


def fuse_products(nodes: Sequence[Node], inference: ShapeInference, outputs: Iterable[str]) -> list[Node]:
    """Return the nodes with transposes and factors fused into batched multiplications. outputs: values that must still be computed."""
    if not any(node.op_type in PRODUCTS for node in nodes):
        return list(nodes)
    return ProductRewriter(nodes, inference, outputs).run()


class ProductRewriter(EpilogueRewriter):
    """Fuses what stands before and after multiplications of matrices with the same leading axes."""

    def run(self) -> list[Node]:
        for index in reversed(range(len(self.nodes))):
            self._fuse_into_readers(index, self.nodes[index])
        for index in range(len(self.nodes)):
            self._fuse_into_product(index)
        return self.remaining()

    def _fuse_into_readers(self, index: int, node: Node) -> None:
        """Fuse a transpose or a factor into all nodes that read its result, if these are batched multiplications."""
        found = self._source_and_factor(node)
        if found is None:
            return
        source, factor = found
        y, readers = node.outputs[0], self.readers.get(node.outputs[0], [])
        if not readers or any(reader < 0 or not self._is_batched(self.result[reader]) for reader in readers):
            return
        self.result[index] = None
        for reader in readers:
            product = self.result[reader]
            assert product is not None
            attributes = dict(product.attributes)
            for name, side in zip(product.inputs, SIDES, strict=True):
                if name == y and factor is None:
                    attributes[side] = 1 - int(attributes.get(side, 0))
                elif name == y and factor is not None:
                    attributes["alpha"] = float(attributes.get("alpha", 1.0)) * factor
            self._put(reader, product, [source if name == y else name for name in product.inputs], product.outputs, attributes)
            self.readers.setdefault(source, []).append(reader)

    def _fuse_into_product(self, index: int) -> None:
        """Fuse a transpose or a factor into the batched multiplication whose result it alone reads."""
        product = self.result[index]
        if product is None or not self._is_batched(product):
            return
        reader = self._sole_reader(product.outputs[0])
        found = None if reader is None else self._source_and_factor(self.nodes[reader])
        if reader is None or found is None or found[0] != product.outputs[0]:
            return
        inputs, attributes = product.inputs, dict(product.attributes)
        if found[1] is not None:
            attributes["alpha"] = float(attributes.get("alpha", 1.0)) * found[1]
        else:
            inputs = inputs[::-1]
            attributes |= {side: 1 - int(product.attributes.get(other, 0)) for side, other in zip(SIDES, SIDES[::-1], strict=True)}
        self.result[index] = None
        self._put(reader, product, inputs, self.nodes[reader].outputs, attributes)

    def _put(self, index: int, product: Node, inputs: list[str], outputs: list[str], attributes: dict[str, object]) -> None:
        self._replace(index, replace(product, op_type="FusedMatMul", domain=MICROSOFT, inputs=inputs, outputs=outputs, attributes=attributes))

    def _is_batched(self, node: Node | None) -> bool:
        """Return whether a node multiplies floating-point matrices with the same number of leading axes, at least one."""
        if node is None or canonical_domain(node.domain) != PRODUCTS.get(node.op_type):
            return False
        if any(node.attributes.get(f"transBatch{side}", 0) for side in "AB"):
            return False
        kinds = [self.types[name] for name in node.inputs]
        ranks = [len(kind.shape or ()) for kind in kinds]
        return ranks[0] == ranks[1] and ranks[0] > 2 and all(kind.dtype in ("float32", "float64") for kind in kinds)

    def _source_and_factor(self, node: Node) -> tuple[str, float | None] | None:
        """Return (x, None) for a transpose of the last two axes of x, (x, factor) for a multiple of x, and None for another node."""
        if canonical_domain(node.domain) != "" or node.op_type not in ("Transpose", "Mul", "Div"):
            return None
        if node.op_type == "Transpose":
            rank = len(self.types[node.inputs[0]].shape or ())
            swapped = (*range(rank - 2), rank - 1, rank - 2)
            return (node.inputs[0], None) if rank > 2 and tuple(node.attributes.get("perm", ())) == swapped else None
        for x, other in ((node.inputs, node.inputs[::-1]) if node.op_type == "Mul" else (node.inputs,)):
            factor = self._scalar(other)
            if factor and x not in self.values and self.types[x] == self.types[node.outputs[0]]:
                return x, factor if node.op_type == "Mul" else 1.0 / factor
        return None
