"""Recurrent layers that write y, and read its gradient, with axes in the order in which the rest of a network needs them.

A layer computes y [steps, directions, rows, hidden]. Exported networks transpose it, so that the directions of a row are beside each other or rows come
first. Such a Transpose, with the reshapes beside it, is not computed: the layer writes its rows to their final places, and its gradient operator reads them
there."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import permutations
from math import prod

from ortrain.ir import Node
from ortrain.ops.recurrent import DY_PERM, UNCHANGED, Y_PERM
from ortrain.ops.registry.node_builder import GraphBuilder
from ortrain.ops.registry.record import DOMAINS, canonical_domain
from ortrain.plan.element_order import Factor, is_move, order_after, same_order, static_sizes, transposed_order
from ortrain.plan.epilogue_fusion.rewriter import InsertingRewriter
from ortrain.plan.operator_kinds import RECURRENT_LAYERS

GRADIENT_INPUTS = {"LSTMGrad": (6, 9), "GRUGrad": (6, 8), "RNNGrad": (5, 6)}
"""Gradient operator -> the indices of y and of its gradient among the inputs."""
PERMS = tuple((*axes, UNCHANGED[-1]) for axes in permutations(UNCHANGED[:-1]) if axes != UNCHANGED[:-1])
"""The orders of y's axes that differ from the layer's own."""


def write_y_in_place(nodes: Sequence[Node], builder: GraphBuilder, outputs: Iterable[str]) -> list[Node]:
    """Return the nodes without transposes of what recurrent layers compute and of its gradients. outputs: values that must still be computed."""
    return RecurrentLayouts(nodes, builder, outputs).run()


class RecurrentLayouts(InsertingRewriter):
    """One pass over the nodes of a plan; parameters as in InsertingRewriter."""

    def run(self) -> list[Node]:
        """Return the nodes after the pass."""
        for index, node in enumerate(self.nodes):
            if node.op_type in RECURRENT_LAYERS and canonical_domain(node.domain) in DOMAINS and node.outputs[0]:
                self._write_permuted(index, node)
        for index, node in enumerate(self.nodes):
            if self._is_gradient(node):
                self._read_permuted(index, *GRADIENT_INPUTS[node.op_type])
        return self.remaining()

    def _write_permuted(self, index: int, node: Node) -> None:
        """Let a layer write y in the order into which the only nodes that read it bring it, besides the layer's gradient operators."""
        y, sizes = node.outputs[0], static_sizes(self.inference, node.outputs[0])
        gradients = [reader for reader in self.readers.get(y, ()) if self._reads_as_y(reader, y)]
        chain = self._moves_after(y, gradients)
        perm = self._matching(chain, y, lambda perm: transposed_order(sizes, perm)) if chain and sizes else None
        if perm is None:
            return
        permuted, target = self.builder.names.unique(f"{y}::permuted"), self.nodes[chain[-1]].outputs[0]
        self._replace(index, replace(node, outputs=[permuted, *node.outputs[1:]], attributes=node.attributes | {Y_PERM: perm}))
        for reader in gradients:
            self._read_from(reader, GRADIENT_INPUTS[self.nodes[reader].op_type][0], permuted, Y_PERM, perm)
        self._remove(chain)
        self._replace(chain[-1], self._reshaped(permuted, target, static_sizes(self.inference, target) or ()))

    def _read_permuted(self, index: int, of_y: int, of_dy: int) -> None:
        """Let the gradient operator of a layer read the gradient of y as it is before moves that nothing else reads."""
        inputs = self.nodes[index].inputs
        dy = inputs[of_dy] if of_dy < len(inputs) else ""
        sizes, chain = static_sizes(self.inference, dy), self._moves_before(dy)
        if not chain or not sizes:
            return
        source = self.nodes[chain[0]].inputs[0]
        perm = self._matching(chain, source, lambda perm: transposed_order([sizes[axis] for axis in perm], [perm.index(axis) for axis in UNCHANGED]))
        if perm is None:
            return
        permuted = self.builder.names.unique(f"{dy}::permuted")
        self._remove(chain)
        self._insert(index, self._reshaped(source, permuted, [sizes[axis] for axis in perm]))
        self._read_from(index, of_dy, permuted, DY_PERM, perm)

    # ---- chains of moves

    def _moves_after(self, name: str, excluded: Sequence[int]) -> list[int]:
        """Return the moves of a value one after the other, up to the last Transpose, where nothing reads what is between them but `excluded`."""
        chain: list[int] = []
        while (reader := self._sole_reader(name, excluded)) is not None and is_move(self.nodes[reader]) and self.nodes[reader].inputs[0] == name:
            chain.append(reader)
            name = self.nodes[reader].outputs[0]
        while chain and self.nodes[chain[-1]].op_type != "Transpose":
            chain.pop()
        return chain

    def _moves_before(self, name: str) -> list[int]:
        """Return the moves that lead to a value which one node reads, one after the other, from the first Transpose on."""
        chain: list[int] = []
        while len(self.readers.get(name, ())) == 1 and (index := self.producer.get(name, -1)) >= 0 and is_move(self.nodes[index]):
            chain.append(index)
            name = self.nodes[index].inputs[0]
        while chain and self.nodes[chain[-1]].op_type != "Transpose":
            chain.pop()
        return chain[::-1]

    def _matching(self, chain: Sequence[int], source: str, order_of: Callable[[tuple[int, ...]], list[Factor]]) -> tuple[int, ...] | None:
        """Return the one of PERMS whose order of elements is that into which a chain of moves brings the elements of its source."""
        order: list[Factor] | None = [Factor(prod(static_sizes(self.inference, source) or ()), 1)]
        for index in chain:
            before = static_sizes(self.inference, self.nodes[index].inputs[0])
            order = None if before is None or order is None else order_after(self.nodes[index], order, before)
        return next((perm for perm in PERMS if same_order(order_of(perm), order)), None) if order else None

    # ---- nodes

    def _is_gradient(self, node: Node) -> bool:
        return node.op_type in GRADIENT_INPUTS and canonical_domain(node.domain) in DOMAINS

    def _reads_as_y(self, index: int, name: str) -> bool:
        """Return whether a node is a gradient operator that reads a value as the y of its layer only."""
        node = self.nodes[index] if index >= 0 else None
        return node is not None and self._is_gradient(node) and [at for at, read in enumerate(node.inputs) if read == name] == [
            GRADIENT_INPUTS[node.op_type][0]]

    def _read_from(self, index: int, position: int, name: str, attribute: str, perm: tuple[int, ...]) -> None:
        """Replace an input of a gradient operator by the same value with its axes in another order."""
        node = self.result[index]
        assert node is not None
        inputs = [name if at == position else other for at, other in enumerate(node.inputs)]
        self._replace(index, replace(node, inputs=inputs, attributes=node.attributes | {attribute: perm}))

    def _reshaped(self, source: str, target: str, sizes: Sequence[int]) -> Node:
        return Node("Reshape", [source, self.builder.integer_constant(list(sizes), "shape")], [target], f"{target}::reshape")

    def _remove(self, chain: Iterable[int]) -> None:
        for index in chain:
            self.result[index] = None
