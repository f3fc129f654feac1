"""Merging of chains of transposes and reshapes.

Where regions of two layouts meet, a value is transposed, divided into more axes and transposed again, although the result has the elements of the first
value in one other order, often the same one. Such a chain becomes one Transpose between two Reshapes, which move nothing, or none at all.

A Gather that reorders an axis as a Transpose of its factors would, as the gradient of shuffled pixels does, is a part of such a chain.

A chain that makes the parts of a Concat take turns, or undoes it before a Split (the channel shuffle of ShuffleNet and its gradient), is no copy of its own:
the Concat or Split works on smaller parts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod

from ortrain.ir import Node
from ortrain.ops.registry.constants import surely_equal
from ortrain.ops.registry.node_builder import GraphBuilder
from ortrain.ops.registry.record import MICROSOFT, canonical_domain
from ortrain.plan.element_order import Factor, exchange, is_move, order_after, order_after_exchange, static_sizes
from ortrain.plan.epilogue_fusion.rewriter import without_unread
from ortrain.plan.operator_kinds import RESHAPES

COPIES = RESHAPES | {"Transpose", "Concat", "Gather"}
"""Operators that go where nothing reads their results any more."""
MIN_RUN = 4
"""Elements of the source that a merged Transpose moves together, at least: one with fewer takes longer than several with more."""

MAX_PLACES = 16
"""Elements of the source that _core/kernels/indexing/strided_copies.h moves together, at most, where they belong to two axes of the result."""


def run_of(factors: Sequence[Factor]) -> int:
    """Return the number of elements that follow each other in the source of a chain, which has two factors at least, and are moved together.

    Those of the last two factors of the source, such as the pixels that DepthToSpace takes from the channels, are, where there is a third to move along."""
    *_, after, inner = sorted(factors, key=lambda factor: -factor.stride)
    if inner.size >= MIN_RUN or factors[-1] in (after, inner) or factors[-1].size < MIN_RUN or inner.size * after.size > MAX_PLACES:
        return inner.size
    return inner.size * after.size


def piece_of(factors: Sequence[Factor]) -> int:
    """Return the number of elements at the end of a chain's value that follow each other in its source."""
    return factors[-1].size if factors and surely_equal(factors[-1].stride, 1) else 1


def worth_turns(count: int, piece: int) -> bool:
    """Return whether `count` parts that take turns by pieces are concatenated as fast as by large parts: single elements are interleaved in pairs only."""
    return piece >= MIN_RUN or (count, piece) == (2, 1)


def merge_transposes(nodes: Sequence[Node], builder: GraphBuilder, outputs: Iterable[str]) -> list[Node]:
    """Return the nodes with each chain of transposes and reshapes that ends in a Transpose as one Transpose, or as a Reshape where it keeps the order.

    builder: adds constants to the plan. outputs: values that must still be computed. Transposes in the middle of a chain stay where others read them."""
    return TransposeMerger(nodes, builder, outputs).run()


class TransposeMerger:
    """One pass over the nodes."""

    def __init__(self, nodes: Sequence[Node], builder: GraphBuilder, outputs: Iterable[str]) -> None:
        self.nodes, self.builder, self.inference, self.outputs = nodes, builder, builder.inference, set(outputs)
        self.chains: dict[str, tuple[str, list[Factor], bool]] = {}
        """Value -> the source of its chain, the source's factors in the order of the value, and whether no other node reads what is between them."""
        self.readers: dict[str, int] = {}
        for node in nodes:
            for name in set(node.inputs):
                self.readers[name] = self.readers.get(name, 0) + 1
        self.concatenations = {node.outputs[0]: node for node in nodes if node.op_type == "Concat" and canonical_domain(node.domain) == ""}
        self.result: list[Node] = []

    def run(self) -> list[Node]:
        for node in self.nodes:
            chain = self._extended(node)
            if not (self._deals_out(node) if chain is None else self._takes_turns(node, *chain) or self._replaced(node, *chain)):
                self.result.append(node)
        return without_unread(self.result, self.outputs, lambda node: node.op_type in COPIES and canonical_domain(node.domain) == "")

    def _sizes(self, name: str) -> tuple[int, ...] | None:
        return static_sizes(self.inference, name)

    def _extended(self, node: Node) -> tuple[str, list[Factor], bool] | None:
        """Return and record the chain of the node's result, None where the node is neither a Transpose, nor a Gather like one, nor a reshape of static size."""
        exchanged = exchange(node, self.inference)
        if not (is_move(node) or exchanged) or node.inputs[0] in self.inference.values:
            return None
        x, y = node.inputs[0], node.outputs[0]
        before, after = self._sizes(x), self._sizes(y)
        if before is None or after is None:
            return None
        source, factors, alone = self.chains.get(x, (x, [Factor(prod(before), 1)], True))
        alone = alone and (x == source or self.readers.get(x) == 1 and x not in self.outputs)
        ordered = order_after_exchange(exchanged, factors, before) if exchanged else order_after(node, factors, before)
        if ordered is not None:
            factors = ordered
        elif node.op_type in ("Transpose", "Gather"):
            return None
        else:
            source, factors, alone = x, [Factor(prod(before), 1)], True
        self.chains[y] = source, factors, alone
        return self.chains[y]

    def _replaced(self, node: Node, source: str, factors: list[Factor], alone: bool) -> bool:
        """Add nodes from the source of a chain that replace its last Transpose; return False where this would not save a copy."""
        x, y = node.inputs[0], node.outputs[0]
        if node.op_type != "Transpose" or source == x or not self._has_transpose(x, source):
            return False
        sizes = self._sizes(y)
        assert sizes is not None
        if len(factors) == 1:
            self._emit("Reshape", [source, self._shape(*sizes)], [y], node)
            return True
        order = sorted(range(len(factors)), key=lambda position: -factors[position].stride)
        if not alone or run_of(factors) < MIN_RUN:
            return False
        divided, moved = (self.builder.names.unique(f"{y}::{part}") for part in ("divided", "transposed"))
        self._emit("Reshape", [source, self._shape(*(factors[position].size for position in order))], [divided], node)
        self._emit("Transpose", [divided], [moved], node, perm=tuple(map(order.index, range(len(factors)))))
        self._emit("Reshape", [moved, self._shape(*sizes)], [y], node)
        return True

    def _takes_turns(self, node: Node, source: str, factors: list[Factor], alone: bool) -> bool:
        """Replace a Transpose that only moves the parts of a Concat inwards by a Concat of pieces of the parts; return False for another."""
        concat = self.concatenations.get(source)
        if node.op_type != "Transpose" or concat is None or not alone or self.readers[source] != 1 or source in self.outputs:
            return False
        y, count, part = node.outputs[0], len(concat.inputs), self._part(concat.inputs, concat)
        piece = piece_of(factors)
        if not part or not worth_turns(count, piece) or factors != self._order(y, count * part, Factor(part // piece, piece), Factor(count, part), piece):
            return False
        shape, parts = self._shape(prod(self._sizes(y) or ()) // count // piece, piece), []
        for name in concat.inputs:
            parts.append(self.builder.names.unique(f"{name}::pieces"))
            self._emit("Reshape", [name, shape], [parts[-1]], concat)
        joined = self.builder.names.unique(f"{y}::pieces")
        self._emit("Concat", parts, [joined], concat, axis=1)
        self._emit("Reshape", [joined, self._shape(*(self._sizes(y) or ()))], [y], node)
        return True

    def _deals_out(self, node: Node) -> bool:
        """Replace a Split of a Transpose that gathers the pieces of parts which took turns by a Split into the pieces; return False for another."""
        if node.op_type not in ("Split", "SplitTraining") or canonical_domain(node.domain) not in ("", MICROSOFT) or node.inputs[0] not in self.chains:
            return False
        x, (source, factors, alone) = node.inputs[0], self.chains[node.inputs[0]]
        count, part, piece = len(node.outputs), self._part(node.outputs, node), piece_of(factors)
        if not alone or not part or not worth_turns(count, piece) or self.readers[x] != 1 or x in self.outputs:
            return False
        if factors != self._order(x, count * part, Factor(count, piece), Factor(part // piece, count * piece), piece):
            return False
        divided, parts = self.builder.names.unique(f"{x}::pieces"), [self.builder.names.unique(f"{name}::pieces") for name in node.outputs]
        self._emit("Reshape", [source, self._shape(prod(self._sizes(x) or ()) // count // piece, count * piece)], [divided], node)
        lengths = [self._shape(*[piece] * count)] if len(node.inputs) > 1 else []
        attributes = {key: value for key, value in node.attributes.items() if key not in ("axis", "split")}
        self._emit(node.op_type, [divided, *lengths], parts, node, node.domain, **attributes, axis=1)
        for name, found in zip(node.outputs, parts, strict=True):
            self._emit("Reshape", [found, self._shape(*(self._sizes(name) or ()))], [name], node)
        return True

    def _part(self, names: Sequence[str], node: Node) -> int:
        """Return the number of elements side by side of each of the parts of a Concat or Split; 0 where they differ or are unknown."""
        first, *others = [self._sizes(name) if name else None for name in names]
        return prod(first[int(node.attributes.get("axis", 0)):]) if first and all(sizes == first for sizes in others) else 0

    def _order(self, name: str, row: int, first: Factor, second: Factor, piece: int) -> list[Factor]:
        """Return the factors of a value that consists of rows, each of them divided into the two given factors and pieces."""
        rows = Factor(prod(self._sizes(name) or ()) // row, row)
        return [factor for factor in (rows, first, second, Factor(piece, 1)) if not surely_equal(factor.size, 1)]

    def _shape(self, *sizes: int) -> str:
        return self.builder.integer_constant(list(sizes), "shape")

    def _has_transpose(self, name: str, source: str) -> bool:
        """Return whether a value differs from the source of its chain by more than its shape."""
        return len(self.chains[name][1]) > 1 if name in self.chains else name != source

    def _emit(self, op_type: str, inputs: list[str], outputs: list[str], original: Node, domain: str = "", **attributes: object) -> None:
        node = Node(op_type, inputs, outputs, original.name, domain, attributes)
        self.inference.visit(node)
        self.result.append(node)
