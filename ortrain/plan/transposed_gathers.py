"""Gathered rows in the order in which they are read: their indices are transposed instead of the rows.

A layer over sequences reads the embeddings of step after step, where the indices are given sequence by sequence. The gradient of the table adds up rows in
the order in which that layer computes them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from math import prod

from ortrain._core.symbolic import memory_at_least
from ortrain.ir import Node
from ortrain.ops.registry.node_builder import GraphBuilder
from ortrain.ops.registry.record import MICROSOFT, canonical_domain
from ortrain.plan.epilogue_fusion.rewriter import InsertingRewriter

MIN_ROW = 4
"""Elements of a row from which on its index, an int64, is smaller than the row."""


def transpose_indices(nodes: Sequence[Node], builder: GraphBuilder, outputs: Iterable[str]) -> list[Node]:
    """Return the nodes with transposed indices instead of a Transpose of what a Gather gives or of what a GatherGrad reads.

    outputs: values that must still be computed."""
    return TransposedGathers(nodes, builder, outputs).run()


class TransposedGathers(InsertingRewriter):
    """One pass over the nodes of a plan; parameters as in InsertingRewriter."""

    def run(self) -> list[Node]:
        """Return the nodes after the pass."""
        for index, node in enumerate(self.nodes):
            if node.op_type == "Transpose" and canonical_domain(node.domain) == "":
                self._move_to_gather(index, node)
                self._move_to_gradient(index, node)
        return self.remaining()

    def _move_to_gather(self, index: int, transpose: Node) -> None:
        """Let the Gather before a Transpose, which alone reads it, give its result."""
        source = transpose.inputs[0]
        gather = self.nodes[self.producer[source]] if source in self.producer else None
        if gather is None or gather.op_type != "Gather" or canonical_domain(gather.domain) != "" or self._sole_reader(source) != index:
            return
        perm = self._perm_of_indices(transpose, gather)
        if perm is not None:
            self._replace(index, self._with_indices(index, gather, perm, transpose.outputs))
            self.result[self.producer[source]] = None

    def _move_to_gradient(self, index: int, transpose: Node) -> None:
        """Let the GatherGrad that alone reads a Transpose read the source of it."""
        reader = self._sole_reader(transpose.outputs[0])
        gradient = self.nodes[reader] if reader is not None else None
        if reader is None or gradient is None or gradient.op_type != "GatherGrad" or gradient.domain != MICROSOFT or self.result[index] is not transpose:
            return
        perm = self._perm_of_indices(transpose, gradient)
        if perm is not None and gradient.inputs[2] == transpose.outputs[0]:
            moved = self._with_indices(reader, gradient, tuple(perm.index(axis) for axis in range(len(perm))), gradient.outputs)
            self._replace(reader, replace(moved, inputs=[*moved.inputs[:2], transpose.inputs[0]]))
            self.result[index] = None

    def _perm_of_indices(self, transpose: Node, node: Node) -> tuple[int, ...] | None:
        """Return the order into which a Transpose brings the axes of the indices of a Gather or GatherGrad; None where it moves axes of the rows too."""
        shape, indices = self.types[transpose.inputs[0]].shape, self.types[node.inputs[1]].shape
        if shape is None or indices is None or not indices or int(node.attributes.get("axis", 0)) != 0:
            return None
        perm, axes = tuple(transpose.attributes.get("perm") or range(len(shape))[::-1]), len(indices)
        row = prod(size if isinstance(size, int) else 1 for size in shape[axes:])
        return perm[:axes] if perm[axes:] == tuple(range(axes, len(shape))) and memory_at_least(row, MIN_ROW) else None

    def _with_indices(self, index: int, node: Node, perm: tuple[int, ...], outputs: list[str]) -> Node:
        """Return a Gather or GatherGrad at an index with transposed indices, which are computed before it."""
        indices = self.builder.names.unique(f"{node.inputs[1]}::transposed")
        self._insert(index, Node("Transpose", [node.inputs[1]], [indices], f"{node.name}::indices", "", {"perm": perm}))
        return replace(node, inputs=[node.inputs[0], indices, *node.inputs[2:]], outputs=outputs)
