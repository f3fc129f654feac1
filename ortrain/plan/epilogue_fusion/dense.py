"""Merges what follows a product of a dense layer into it, and the gradient of a loss into the loss.

A bias and a rectifier cost nothing while a tile of the product is in registers; a loss that also gives its gradient reads its scores once, and takes every
exponential once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ortrain.ir import Node
from ortrain.ops.registry.record import MICROSOFT, ORTRAIN, canonical_domain
from ortrain.ops.registry.shape_inference import Inference
from ortrain.plan.epilogue_fusion.rewriter import Merging

PRODUCTS, LOSS, LOSS_GRADIENT = ("MatMul", "Gemm"), "SoftmaxCrossEntropyLoss", "SoftmaxCrossEntropyLossGrad"
OPTIONS = {"reduction": "mean", "ignore_index": None}
"""What a loss and its gradient have to agree on."""


def merge_dense(nodes: Sequence[Node], inference: Inference, wanted: Iterable[str]) -> list[Node]:
    """The nodes with dense layers and losses merged; `wanted` names values that must be there afterwards."""
    if not any(node.op_type in (*PRODUCTS, LOSS_GRADIENT) for node in nodes):
        return list(nodes)
    return Dense(nodes, inference, wanted).run()


class Dense(Merging):
    """The work of one merging."""

    def run(self) -> list[Node]:
        for number, node in enumerate(self.nodes):
            if node.op_type in PRODUCTS and canonical_domain(node.domain) == "":
                self._after_product(number, node)
            elif node.op_type == LOSS_GRADIENT and node.domain == MICROSOFT:
                self._into_loss(number, node)
        return self.left()

    def _after_product(self, number: int, product: Node) -> None:
        """A bias of the columns, then Relu."""
        output, bias, merged = product.outputs[0], next(iter(product.inputs[2:]), ""), [number]
        if not self._is_plain(product) or bias and not self._is_bias(bias, output):
            return
        reader = self._sole_reader(output)
        if reader is not None and not bias and self.nodes[reader].op_type == "Add":
            bias = next((name for name in self.nodes[reader].inputs if name != output and self._is_bias(name, output)), "")
            if not bias:
                return
            merged.append(reader)
            output = self.nodes[reader].outputs[0]
            reader = self._sole_reader(output)
        rectified = reader is not None and self.nodes[reader].op_type == "Relu"
        if reader is not None and rectified:
            merged.append(reader)
        if len(merged) > 1:
            for old in merged:
                self.result[old] = None
            attributes = {"transB": int(product.attributes.get("transB", 0)), "relu": int(rectified)}
            outputs = self.nodes[merged[-1]].outputs
            self._replace(merged[-1], Node("Dense", [*product.inputs[:2], bias], outputs, product.name, ORTRAIN, attributes))

    def _is_plain(self, product: Node) -> bool:
        """Whether all rows of the first operand are multiplied with one matrix, and nothing is scaled."""
        x, weights = (self.types[name].shape or () for name in product.inputs[:2])
        scaled = any(product.attributes.get(name, 1.0) != 1.0 for name in ("alpha", "beta"))
        return len(x) > 1 and len(weights) == 2 and not scaled and not product.attributes.get("transA", 0)

    def _is_bias(self, name: str, of: str) -> bool:
        """Whether a value is one row, to be added to each of another's."""
        return self.types[name].shape == (self.types[of].shape or ())[-1:]

    def _into_loss(self, number: int, grad: Node) -> None:
        """The gradient of a loss that itself is the end: its own gradient is a constant, and nothing else reads the log probabilities."""
        dloss, log_probabilities, labels, *weight = grad.inputs
        made = self.producer.get(log_probabilities)
        scale = self._scalar(dloss)
        if made is None or scale is None or self._sole_reader(log_probabilities) != number:
            return
        loss = self.nodes[made]
        said, asked = ([node.attributes.get(name, default) for name, default in OPTIONS.items()] for node in (loss, grad))
        if loss.op_type == LOSS and said == asked and loss.inputs[1:] == [labels, *weight] and loss.attributes.get("reduction", "mean") != "none":
            self.result[number] = None
            attributes = loss.attributes | {"dloss": scale}
            self._replace(made, Node("LossAndGradient", loss.inputs, [loss.outputs[0], grad.outputs[0]], loss.name, ORTRAIN, attributes))
