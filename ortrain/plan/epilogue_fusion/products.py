"""Fusion of transposes and factors into matrix multiplications.

FusedMatMul and Gemm read their operands transposed and multiply the result by a number while a tile is in registers. Exporters write attention with a
transpose of the keys and a division of the scores, and a dense layer with a transpose of its weights; gradients have them again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from ortrain.ir import Node, TensorType
from ortrain.ops.registry.record import MICROSOFT, canonical_domain
from ortrain.ops.registry.shape_inference import ShapeInference
from ortrain.plan.epilogue_fusion.rewriter import EpilogueRewriter

PRODUCTS = {"MatMul": "", "Gemm": "", "FusedMatMul": MICROSOFT}
"""Operators that are fused, and their domains."""
SIDES = ("transA", "transB")


def fuse_products(nodes: Sequence[Node], inference: ShapeInference, outputs: Iterable[str]) -> list[Node]:
    """Return the nodes with transposes and factors fused into multiplications. outputs: values that must still be computed."""
    if not any(node.op_type in PRODUCTS for node in nodes):
        return list(nodes)
    return ProductRewriter(nodes, inference, outputs).run()


def is_batched_product(node: Node | None, types: Mapping[str, TensorType]) -> bool:
    """Return whether a node multiplies floating-point matrices with the same number of leading axes, at least one."""
    ranks = operand_ranks(node, types)
    return ranks[0] == ranks[1] > 2


def operand_ranks(node: Node | None, types: Mapping[str, TensorType]) -> tuple[int, int]:
    """Return the ranks of the operands of a product of floating-point tensors, (0, 0) for another node."""
    if node is None or canonical_domain(node.domain) != PRODUCTS.get(node.op_type) or any(node.attributes.get(f"transBatch{side}", 0) for side in "AB"):
        return 0, 0
    a, b = (types[name] for name in node.inputs[:2])
    return (len(a.shape or ()), len(b.shape or ())) if a.dtype in ("float32", "float64") else (0, 0)


class ProductRewriter(EpilogueRewriter):
    """Fuses what stands before and after multiplications of matrices."""

    def run(self) -> list[Node]:
        for index in reversed(range(len(self.nodes))):
            self._fuse_into_readers(index, self.nodes[index])
        for index in range(len(self.nodes)):
            self._fuse_into_product(index)
        return self.remaining()

    def _fuse_into_readers(self, index: int, node: Node) -> None:
        """Fuse a transpose or a factor into all nodes that read its result, if these are multiplications that can take it."""
        found = self._source_and_factor(node)
        if found is None:
            return
        source, factor = found
        y, readers = node.outputs[0], self.readers.get(node.outputs[0], [])
        if not readers or any(reader < 0 or not self._takes(self.result[reader], y, factor) for reader in readers):
            return
        self.result[index] = None
        for reader in readers:
            product = self.result[reader]
            assert product is not None
            attributes = dict(product.attributes)
            for name, side in zip(product.inputs, SIDES, strict=False):
                if name == y and factor is None:
                    attributes[side] = 1 - int(attributes.get(side, 0))
                elif name == y and factor is not None:
                    attributes["alpha"] = float(attributes.get("alpha", 1.0)) * factor
            self._put(reader, product, [source if name == y else name for name in product.inputs], product.outputs, attributes)
            self.readers.setdefault(source, []).append(reader)

    def _takes(self, product: Node | None, y: str, factor: float | None) -> bool:
        """Return whether a multiplication can read the source of a transposed or multiplied operand instead of the operand.

        A transposed left operand with more axes than a matrix on the right would have to be multiplied in parts instead of as one matrix."""
        ranks = operand_ranks(product, self.types)
        if product is None or min(ranks) < 2 or y in product.inputs[2:]:
            return False
        if factor is not None:
            return ranks[0] == ranks[1] > 2
        return product.inputs[0] != y or ranks[0] == ranks[1]

    def _fuse_into_product(self, index: int) -> None:
        """Fuse a transpose or a factor into the multiplication whose result it alone reads."""
        product = self.result[index]
        ranks = operand_ranks(product, self.types)
        if product is None or ranks[0] != ranks[1] or ranks[0] < 2 or len(product.inputs) > 2:
            return
        reader = self._sole_reader(product.outputs[0])
        found = None if reader is None else self._source_and_factor(self.nodes[reader])
        if reader is None or found is None or found[0] != product.outputs[0] or found[1] is not None and ranks[0] == 2:
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
        """Put a product with other operands at an index: a Gemm remains one, and a product of two matrices becomes one, so that it can take a bias."""
        if product.op_type != "Gemm" and operand_ranks(product, self.types) != (2, 2):
            self._replace(index, replace(product, op_type="FusedMatMul", domain=MICROSOFT, inputs=inputs, outputs=outputs, attributes=attributes))
        else:
            self._replace(index, replace(product, op_type="Gemm", domain="", inputs=inputs, outputs=outputs, attributes=attributes))

    def _source_and_factor(self, node: Node) -> tuple[str, float | None] | None:
        """Return (x, None) for a transpose of the last two axes of x, (x, factor) for a multiple of x, and None for another node."""
        if canonical_domain(node.domain) != "" or node.op_type not in ("Transpose", "Mul", "Div"):
            return None
        if node.op_type == "Transpose":
            rank = len(self.types[node.inputs[0]].shape or ())
            swapped = (*range(rank - 2), rank - 1, rank - 2)
            perm = tuple(node.attributes.get("perm") or range(rank)[::-1])
            return (node.inputs[0], None) if rank > 1 and perm == swapped else None
        for x, other in ((node.inputs, node.inputs[::-1]) if node.op_type == "Mul" else (node.inputs,)):
            factor = self._scalar(other)
            if factor and x not in self.values and self.types[x] == self.types[node.outputs[0]]:
                return x, factor if node.op_type == "Mul" else 1.0 / factor
        return None
