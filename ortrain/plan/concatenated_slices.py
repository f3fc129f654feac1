"""Slices that a Concat reads where they are, instead of copies of them.

Exporters write a rolled image as two slices that change places, and merged patches as even and odd rows and columns beside each other. What only a Concat
reads is moved once, to its place there. The gradients of rolled images, a Split whose parts change places, are the same."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from ortrain.ir import Node
from ortrain.ops.indexing import Bounds, slice_bounds, split_lengths
from ortrain.ops.registry.record import MICROSOFT, ORTRAIN, canonical_domain
from ortrain.ops.registry.shape_inference import ShapeInference
from ortrain.plan.epilogue_fusion.rewriter import EpilogueRewriter, without_unread
from ortrain.plan.operator_kinds import PARTITIONS


def read_slices_in_place(nodes: Sequence[Node], inference: ShapeInference, outputs: Iterable[str]) -> list[Node]:
    """Return the nodes with ConcatSlices instead of Concats of slices. outputs: values that must still be computed."""
    return ConcatenatedSlices(nodes, inference, outputs).run()


class ConcatenatedSlices(EpilogueRewriter):
    """One pass over the nodes of a plan; parameters as in EpilogueRewriter."""

    def run(self) -> list[Node]:
        """Return the nodes after the pass."""
        for index, node in enumerate(self.nodes):
            if self._is_concat(index):
                self._convert(index, node)
        outputs = [name for name, readers in self.readers.items() if -1 in readers]
        return without_unread(self.remaining(), outputs, self._is_partition)

    def _is_concat(self, index: int | None) -> bool:
        return index is not None and self.nodes[index].op_type == "Concat" and canonical_domain(self.nodes[index].domain) == ""

    def _is_partition(self, node: Node) -> bool:
        return node.op_type in PARTITIONS and canonical_domain(node.domain) in ("", MICROSOFT)

    def _convert(self, index: int, concat: Node) -> None:
        """Let a Concat read the sources of those of its inputs that are slices which nothing else reads."""
        parts = [self._traced(name) if self._sole_reader(name) == index else (name, []) for name in concat.inputs]
        if any(bounds for _, bounds in parts):
            flat = tuple(number for position, (_, bounds) in enumerate(parts) for bound in bounds for number in (position, *bound))
            rank = len(self.types[concat.inputs[0]].shape or ())
            attributes = {"axis": int(concat.attributes["axis"]) % rank, "bounds": flat}
            self._replace(index, replace(concat, op_type="ConcatSlices", domain=ORTRAIN, inputs=[source for source, _ in parts], attributes=attributes))

    def _traced(self, name: str) -> tuple[str, Bounds]:
        """Return the value that a value is a slice of, and the bounds. Slices of slices are those of the first value, where they are along other axes."""
        bounds: Bounds = []
        while (found := self._sliced(name)) is not None and {axis for axis, *_ in bounds}.isdisjoint(axis for axis, *_ in found[1]):
            name, bounds = found[0], [*found[1], *bounds]
        return name, bounds

    def _sliced(self, name: str) -> tuple[str, Bounds] | None:
        """Return the value that the operator before a value takes a part of, and the bounds of that part; None for other operators and unknown sizes."""
        index = self.producer.get(name)
        node = None if index is None else self.nodes[index]
        if node is None or not self._is_partition(node):
            return None
        context = self.inference.context(node)
        shape = self.types[node.inputs[0]].shape or ()
        if node.op_type == "Slice":
            bounds = slice_bounds(context, 1, len(shape))
        else:
            bounds = self._split_bounds(node, name)
        if bounds is None or any(not isinstance(shape[axis], int) for axis, *_ in bounds) or len({axis for axis, *_ in bounds}) < len(bounds):
            return None
        return node.inputs[0], bounds

    def _split_bounds(self, node: Node, name: str) -> Bounds | None:
        """Return the bounds of one output of a Split; None where something else than one Concat reads another of its outputs."""
        shape = self.types[node.inputs[0]].shape or ()
        axis = int(node.attributes.get("axis", 0)) % len(shape)
        lengths = split_lengths(self.inference.context(node), axis)
        if any(not isinstance(length, int) for length in lengths) or not all(self._is_read_by_concat(output) for output in node.outputs):
            return None
        position = node.outputs.index(name)
        start = sum(int(length) for length in lengths[:position])
        return [(axis, start, start + int(lengths[position]), 1)]

    def _is_read_by_concat(self, name: str) -> bool:
        readers = self.readers.get(name, ())
        return len(readers) == 1 and readers[0] >= 0 and self._is_concat(readers[0])
