"""Epilogue fusion of dense layers and losses.

A bias and a ReLU cost nothing while a tile of the matrix multiplication is in registers. A loss that also computes
its gradient reads its scores once and evaluates every exponential once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ortrain.ir import Node
from ortrain.ops.registry.record import MICROSOFT, ORTRAIN, canonical_domain
from ortrain.ops.registry.shape_inference import ShapeInference
from ortrain.plan.epilogue_fusion.products import PRODUCTS
from ortrain.plan.epilogue_fusion.rewriter import EpilogueRewriter

LOSS, LOSS_GRADIENT = "SoftmaxCrossEntropyLoss", "SoftmaxCrossEntropyLossGrad"
LOSS_OPTIONS = {"reduction": "mean", "ignore_index": None}
"""Attributes on which a loss and its gradient must agree, with their defaults."""


def fuse_dense(nodes: Sequence[Node], inference: ShapeInference, outputs: Iterable[str]) -> list[Node]:
    """Return the nodes with dense layers and losses fused. outputs: values that must still be computed."""
    if not any(node.op_type in (*PRODUCTS, LOSS_GRADIENT) for node in nodes):
        return list(nodes)
    return DenseRewriter(nodes, inference, outputs).run()


class DenseRewriter(EpilogueRewriter):
    """Fuses MatMul or Gemm with bias and ReLU, and a loss with its gradient."""

    def run(self) -> list[Node]:
        for index, node in enumerate(self.nodes):
            if canonical_domain(node.domain) == PRODUCTS.get(node.op_type):
                self._fuse_bias_and_relu(index, node)
            elif node.op_type == LOSS_GRADIENT and node.domain == MICROSOFT:
                self._fuse_loss_gradient(index, node)
        return self.remaining()

    def _fuse_bias_and_relu(self, index: int, matmul: Node) -> None:
        """Fuse a bias of the columns and a ReLU into a matrix multiplication."""
        output, bias, fused = matmul.outputs[0], next(iter(matmul.inputs[2:]), ""), [index]
        if not self._is_linear_layer(matmul) or bias and not self._is_bias(bias, output):
            return
        reader = self._sole_reader(output)
        if reader is not None and not bias and self.nodes[reader].op_type == "Add":
            bias = next((name for name in self.nodes[reader].inputs if name != output and self._is_bias(name, output)), "")
            if not bias:
                return
            fused.append(reader)
            output = self.nodes[reader].outputs[0]
            reader = self._sole_reader(output)
        has_relu = reader is not None and self.nodes[reader].op_type == "Relu"
        if reader is not None and has_relu:
            fused.append(reader)
        if len(fused) > 1:
            for old in fused:
                self.result[old] = None
            attributes = {"transB": int(matmul.attributes.get("transB", 0)), "relu": int(has_relu)}
            outputs = self.nodes[fused[-1]].outputs
            self._replace(fused[-1], Node("Dense", [*matmul.inputs[:2], bias], outputs, matmul.name, ORTRAIN, attributes))

    def _is_linear_layer(self, matmul: Node) -> bool:
        """Return whether all rows of the first operand are multiplied by one matrix, without scaling."""
        x, weights = (self.types[name].shape or () for name in matmul.inputs[:2])
        is_scaled = any(matmul.attributes.get(name, 1.0) != 1.0 for name in ("alpha", "beta"))
        return len(x) > 1 and len(weights) == 2 and not is_scaled and not matmul.attributes.get("transA", 0)

    def _is_bias(self, name: str, matrix: str) -> bool:
        """Return whether a value has the shape of one row of a matrix."""
        shape = self.types[name].shape or ()
        return len(shape) == 1 and shape == (self.types[matrix].shape or ())[-1:]

    def _fuse_loss_gradient(self, index: int, grad: Node) -> None:
        """Fuse the gradient of the final loss into the loss, if the loss's own gradient is constant and nothing else
        reads its log probabilities."""
        dloss, log_probabilities, labels, *weight = grad.inputs
        loss_index = self.producer.get(log_probabilities)
        scale = self._scalar(dloss)
        if loss_index is None or scale is None or self._sole_reader(log_probabilities) != index:
            return
        loss = self.nodes[loss_index]
        loss_options, gradient_options = ([node.attributes.get(name, default) for name, default in LOSS_OPTIONS.items()] for node in (loss, grad))
        has_same_options = loss_options == gradient_options and loss.inputs[1:] == [labels, *weight]
        if loss.op_type == LOSS and has_same_options and loss.attributes.get("reduction", "mean") != "none":
            self.result[index] = None
            attributes = loss.attributes | {"dloss": scale}
            self._replace(loss_index, Node("LossAndGradient", loss.inputs, [loss.outputs[0], grad.outputs[0]], loss.name, ORTRAIN, attributes))
