"""Fusion of a linear layer whose scores only a softmax cross entropy reads, such as the head of a language model, with the loss and its gradients.

Scores of a large vocabulary are the largest values of a network. Computed for a chunk of rows at a time, they never exist at once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod

from ortrain._core.symbolic import memory_at_least
from ortrain.ir import Node
from ortrain.ops.registry.record import ORTRAIN, canonical_domain
from ortrain.ops.registry.shape_inference import ShapeInference
from ortrain.plan.epilogue_fusion.products import PRODUCTS
from ortrain.plan.epilogue_fusion.rewriter import EpilogueRewriter
from ortrain.plan.operator_kinds import LOSSES, RESHAPES

LAYERS = PRODUCTS | {"Dense": ORTRAIN}
"""Operators that compute scores, and their domains."""
CHUNK_ROWS = 256
"""Rows whose scores are computed at a time: with half of them, adding up the weight's gradient takes twice as long, a tenth of the layer's time."""


def fuse_linear_cross_entropy(nodes: Sequence[Node], inference: ShapeInference, outputs: Iterable[str]) -> list[Node]:
    """Return the nodes with large linear layers before a loss fused. outputs: values that must still be computed."""
    return LinearCrossEntropyRewriter(nodes, inference, outputs).run()


@dataclass(slots=True)
class Head:
    """A linear layer and its loss.

    product, loss: their indices. scores: the names of the scores between them. x: rows of features; w: weights, [c, k] if `transposed`; bias: "" for none."""

    product: int
    loss: int
    scores: set[str]
    x: str
    w: str
    bias: str
    transposed: bool


@dataclass(slots=True)
class Backward:
    """What becomes of the gradient of the scores: the nodes that go, and the gradients, "" where there is none."""

    nodes: list[int]
    dx: str = ""
    dw: str = ""
    dbias: str = ""
    transposed_dw: bool = False


class LinearCrossEntropyRewriter(EpilogueRewriter):
    """Replaces a linear layer, the loss of its scores, and the products that read the gradient of the scores."""

    def run(self) -> list[Node]:
        for index, node in enumerate(self.nodes):
            if canonical_domain(node.domain) == LOSSES.get(node.op_type):
                head = self._head(index, node)
                backward = None if head is None else self._backward(head, node)
                if head is not None and backward is not None and self._pays(head, backward):
                    self._fuse(head, backward)
                    self._drop_unread_views()
        return self.remaining()

    # ---- finding the layer

    def _head(self, index: int, loss: Node) -> Head | None:
        """Return the layer whose scores [n, c] only a loss reads, if the loss is one number."""
        scores, name = {loss.inputs[0]}, loss.inputs[0]
        is_reduced = loss.attributes.get("reduction", "mean") != "none" and len(self.types[name].shape or ()) == 2
        while is_reduced and self._is_view(self.producer.get(name)):
            name = self.nodes[self.producer[name]].inputs[0]
            scores.add(name)
        product = self.producer.get(name)
        if not is_reduced or product is None or any(self._readers(score) - {index} - self._views(scores) for score in scores):
            return None
        node, bias = self.nodes[product], next(iter(self.nodes[product].inputs[2:]), "")
        if not self._is_layer(node, name, loss) or bias and self.types[bias].shape != self.types[loss.inputs[0]].shape[1:]:    # type: ignore[index]
            return None
        return Head(product, index, scores, node.inputs[0], node.inputs[1], bias, bool(node.attributes.get("transB", 0)))

    def _is_layer(self, node: Node, output: str, loss: Node) -> bool:
        """Return whether all rows of the first operand of a node are multiplied by one matrix, whose columns are the classes of a loss."""
        is_layer = canonical_domain(node.domain) == LAYERS.get(node.op_type)
        if not is_layer or any(node.attributes.get(name, 0) for name in ("transA", "relu", "transBatchA", "transBatchB")):
            return False
        x, w, y, scores = (self.types[name] for name in (*node.inputs[:2], output, loss.inputs[0]))
        is_scaled = any(node.attributes.get(name, 1.0) != 1.0 for name in ("alpha", "beta"))
        is_by_matrix = len(x.shape or ()) > 1 and len(w.shape or ()) == 2 and x.dtype == w.dtype and x.dtype in ("float32", "float64")
        return is_by_matrix and not is_scaled and (y.shape or ())[-1:] == (scores.shape or ())[-1:]

    def _is_view(self, index: int | None) -> bool:
        """Return whether a node keeps the order of elements, None being none."""
        return index is not None and self.nodes[index].op_type in RESHAPES and canonical_domain(self.nodes[index].domain) == ""

    def _readers(self, name: str) -> set[int]:
        return set(self.readers.get(name, ()))

    def _views(self, names: Iterable[str]) -> set[int]:
        """Return the indices of the nodes that compute one of some values as a view of another."""
        return {self.producer[name] for name in names if self._is_view(self.producer.get(name))}

    # ---- finding what reads the gradient of the scores

    def _backward(self, head: Head, loss: Node) -> Backward | None:
        """Return what reads the gradient of the scores; None if that is more than the gradients of the layer, or if something reads the log probabilities."""
        if loss.op_type != "LossAndGradient":
            return Backward([]) if not any(self._readers(name) for name in loss.outputs[1:] if name) else None
        found, names = Backward([]), [loss.outputs[1]]
        dscores = set(names)
        for name in names:
            for reader in self._readers(name):
                if reader < 0 or self.result[reader] is not self.nodes[reader]:
                    return None
                if self._is_view(reader):
                    names.append(self.nodes[reader].outputs[0])
                    dscores.add(names[-1])
                    found.nodes.append(reader)
                elif reader not in found.nodes and not self._take(self.nodes[reader], head, dscores, found):
                    return None
                else:
                    found.nodes.append(reader)
        return found

    def _take(self, node: Node, head: Head, dscores: set[str], found: Backward) -> bool:
        """Return whether a node computes a gradient of the layer, and enter that into what was found."""
        output, shape = node.outputs[0], self.types[node.outputs[0]].shape
        k, classes = (self.types[head.w].shape or ())[:: -1 if head.transposed else 1]
        if node.op_type == "ReduceSum" and not found.dbias and self._sums_rows(node) and shape == (classes,):
            found.dbias = output
            return True
        is_product = canonical_domain(node.domain) == LAYERS.get(node.op_type) and not any(node.inputs[2:]) and not node.attributes.get("relu", 0)
        if not is_product or node.attributes.get("alpha", 1.0) != 1.0:
            return False
        sides, of_scores = [bool(node.attributes.get(side, 0)) for side in ("transA", "transB")], [name in dscores for name in node.inputs[:2]]
        if of_scores == [True, False] and node.inputs[1] == head.w and sides == [False, not head.transposed] and not found.dx:
            found.dx = output
            return shape == self.types[head.x].shape
        if sum(of_scores) != 1 or sides != [True, False] or self._source(node.inputs[of_scores.index(False)]) != self._source(head.x) or found.dw:
            return False
        found.dw, found.transposed_dw = output, of_scores[0]
        return shape == ((classes, k) if of_scores[0] else (k, classes))

    def _sums_rows(self, node: Node) -> bool:
        """Return whether a ReduceSum adds up all axes but the last."""
        rank, axes = len(self.types[node.inputs[0]].shape or ()), self.values.get(node.inputs[1]) if len(node.inputs) > 1 else None
        return axes is not None and {int(axis) % rank for axis in axes.ravel()} == set(range(rank - 1)) and not node.attributes.get("keepdims", 1)

    def _source(self, name: str) -> str:
        """Return the value that a value is a view of."""
        while self._is_view(self.producer.get(name)):
            name = self.nodes[self.producer[name]].inputs[0]
        return name

    # ---- fusing

    def _pays(self, head: Head, backward: Backward) -> bool:
        """Return whether the scores take clearly more memory than a chunk of them and the gradient of the weight.

        Of few rows, the scores take less memory than that gradient, which is then computed in pieces by the optimizer step (deferred gradients)."""
        *rows, k = self.types[head.x].sizes
        return bool(memory_at_least(prod(rows), CHUNK_ROWS + max(CHUNK_ROWS, k if backward.dw else 0)))

    def _fuse(self, head: Head, backward: Backward) -> None:
        loss = self.nodes[head.loss]
        for index in (head.product, *self._views(head.scores), *backward.nodes):
            self.result[index] = None
        options = {name: loss.attributes[name] for name in ("reduction", "ignore_index", "dloss") if name in loss.attributes}
        attributes = {"dloss": 1.0, "reduction": "mean"} | options | {"transB": int(head.transposed), "transposed_dw": int(backward.transposed_dw),
                                                                      "chunk_rows": CHUNK_ROWS}
        inputs = [head.x, head.w, loss.inputs[1], head.bias, *loss.inputs[2:]]
        outputs = [loss.outputs[0], backward.dx, backward.dw, backward.dbias]
        self._replace(head.loss, Node("LinearCrossEntropy", inputs, outputs, self.nodes[head.product].name, ORTRAIN, attributes))

    def _drop_unread_views(self) -> None:
        """Drop views that only fused products read."""
        read = {name for name, readers in self.readers.items() if -1 in readers}
        for index in reversed(range(len(self.result))):
            node = self.result[index]
            if node is not None and self._is_view(index) and not read.intersection(node.outputs):
                self.result[index] = None
            elif node is not None:
                read.update(node.inputs)
