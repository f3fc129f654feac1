"""Fusion of the gradients of maxima and minima.

Such a gradient compares x with the extreme, counts the elements that equal it and gives each of them the same share: five operators, of which three read or
write all of x. ExtremeGrad is one kernel for them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from ortrain.dtypes import DIFFERENTIABLE
from ortrain.ir import Node
from ortrain.ops.reduce import axes_of, is_one_block
from ortrain.ops.registry.record import ORTRAIN, canonical_domain
from ortrain.ops.registry.shape_inference import ShapeInference
from ortrain.plan.epilogue_fusion.rewriter import EpilogueRewriter


def fuse_extremes(nodes: Sequence[Node], inference: ShapeInference, outputs: Iterable[str]) -> list[Node]:
    """Return the nodes with each Mul(mask, Div(dy, ReduceSum(mask))), where the mask is Cast(Equal(x, y)), as one ExtremeGrad of adjacent axes.

    outputs: values that must still be computed."""
    return ExtremeRewriter(nodes, inference, outputs).run()


class ExtremeRewriter(EpilogueRewriter):
    """Fuses what follows comparisons."""

    def run(self) -> list[Node]:
        for index, node in enumerate(self.nodes):
            if self._is(node, "Equal"):
                self._fuse(index, node)
        return self.remaining()

    def _fuse(self, index: int, equal: Node) -> None:
        """Fuse the gradient that starts with a comparison, if it is one."""
        cast = self._reader_named("Cast", equal.outputs[0])
        if cast is None:
            return
        mask = self.nodes[cast].outputs[0]
        readers = {self.nodes[reader].op_type: reader for reader in self.readers.get(mask, ()) if reader >= 0}
        if len(self.readers.get(mask, ())) != len(readers) or readers.keys() != {"ReduceSum", "Mul"}:
            return
        total, product = readers["ReduceSum"], readers["Mul"]
        share = self._reader_named("Div", self.nodes[total].outputs[0])
        if share is None or self._reader_named("Mul", self.nodes[share].outputs[0]) != product or not self._is(self.nodes[total], "ReduceSum"):
            return
        dy, divisor = self.nodes[share].inputs
        x = next((name for name in equal.inputs if self.types[name].shape == self.types[mask].shape), None)
        if x is None or divisor != self.nodes[total].outputs[0]:
            return
        y = equal.inputs[1] if x == equal.inputs[0] else equal.inputs[0]
        axes = axes_of(self.inference.context(self.nodes[total]))
        if not axes or not self._fits(x, (y, dy), divisor, axes):
            return
        for fused in (index, cast, total, share):
            self.result[fused] = None
        self._replace(product, replace(self.nodes[product], op_type="ExtremeGrad", domain=ORTRAIN, inputs=[dy, x, y], attributes={"axes": axes}))

    def _fits(self, x: str, columns: Iterable[str], total: str, axes: tuple[int, ...]) -> bool:
        """Return whether x are numbers that ExtremeGrad reads, and the other tensors have one value for each column, in the shape of the total."""
        kind, shape = self.types[x], self.types[total].shape
        assert kind.shape is not None
        return (kind.dtype in DIFFERENTIABLE and self.types[total].dtype == kind.dtype and shape is not None and len(shape) == len(kind.shape)
                and all(self.types[name].shape == shape for name in columns) and is_one_block(kind.shape, axes))

    def _reader_named(self, op_type: str, name: str) -> int | None:
        """Return the index of the only reader of a value, if that is an operator of this type."""
        reader = self._sole_reader(name)
        return reader if reader is not None and self._is(self.nodes[reader], op_type) else None

    def _is(self, node: Node, op_type: str) -> bool:
        return node.op_type == op_type and canonical_domain(node.domain) == ""
