"""Gradients of the parts of a tensor, joined instead of filled up with zeros and added.

Where a tensor is divided by Gather or Slice, as exporters write the packed queries, keys and values of attention, the gradient of each part is as large as the
whole and zero outside the part. Parts that cover an axis without overlap become one Concat, which writes every element once. So do slices with steps, along
one axis or several, as in merged patches and interleaved halves: they become one JoinSlices."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, replace

from ortrain.ir import Node
from ortrain.ops.indexing import Bounds, are_tiles, slice_bounds
from ortrain.ops.registry.node_builder import GraphBuilder
from ortrain.ops.registry.record import MICROSOFT, ORTRAIN, canonical_domain
from ortrain.plan.epilogue_fusion.rewriter import InsertingRewriter

SUMS = frozenset({"Sum", "Add"})
PARTS = frozenset({"GatherGrad", "SliceGrad"})


def join_gradients(nodes: Sequence[Node], builder: GraphBuilder, outputs: Iterable[str]) -> list[Node]:
    """Return the nodes with sums of gradients of parts as Concat where the parts cover an axis. outputs: values that must still be computed."""
    if not any(node.op_type in PARTS for node in nodes):
        return list(nodes)
    return JoinedGradients(nodes, builder, outputs).run()


@dataclass(frozen=True)
class Part:
    """The gradient of elements [start, start + length) along an axis. node: index of the node that fills it up with zeros. missing: whether the gradient lacks
    the axis."""

    node: int
    gradient: str
    axis: int
    start: int
    length: int
    missing: bool


@dataclass(frozen=True)
class Box:
    """The gradient of a slice along one axis or several. nodes: indices of the nodes that fill it up with zeros. bounds: in the order of the axes."""

    nodes: list[int]
    gradient: str
    bounds: Bounds


class JoinedGradients(InsertingRewriter):
    """One pass over the nodes of a plan."""

    def run(self) -> list[Node]:
        """Return the nodes after the pass."""
        for index, node in enumerate(self.nodes):
            if node.op_type in SUMS and canonical_domain(node.domain) == "" and not self._join(index, node):
                self._join_slices(index, node)
        return self.remaining()

    def _join(self, index: int, node: Node) -> bool:
        """Replace the parts among the operands of a sum by one operand, if they cover an axis; return whether they do."""
        found = {name: part for name in node.inputs if (part := self._part(name)) is not None}
        parts = sorted(found.values(), key=lambda part: part.start)
        if len(parts) < 2 or len(found) != sum(name in found for name in node.inputs) or not self._cover(parts, node.outputs[0]):
            return False
        axis = parts[0].axis
        joined = [self._with_axis(index, part) for part in parts]
        for part in parts:
            self.result[part.node] = None
        self._replace_operands(index, node, found, Node("Concat", joined, [node.outputs[0]], node.name, "", {"axis": axis}))
        return True

    def _join_slices(self, index: int, node: Node) -> None:
        """Replace the gradients of slices among the operands of a sum by one operand, if each element of the whole is in one of them."""
        found = {name: box for name in node.inputs if (box := self._box(name)) is not None}
        boxes, shape = list(found.values()), self.types[node.outputs[0]].shape or ()
        if len(boxes) < 2 or len(found) != sum(name in found for name in node.inputs):
            return
        axes = [axis for axis, *_ in boxes[0].bounds]
        sizes = [size for size in (shape[axis] for axis in axes) if isinstance(size, int)]
        if len(sizes) < len(axes) or any([axis for axis, *_ in box.bounds] != axes for box in boxes):
            return
        if not are_tiles(axes, sizes, [box.bounds for box in boxes]):
            return
        for box in boxes:
            for filler in box.nodes:
                self.result[filler] = None
        flat = tuple(number for position, box in enumerate(boxes) for bound in box.bounds for number in (position, *bound))
        attributes = {"axes": tuple(axes), "shape": tuple(sizes), "bounds": flat}
        joined = Node("JoinSlices", [box.gradient for box in boxes], [node.outputs[0]], node.name, ORTRAIN, attributes)
        self._replace_operands(index, node, found, joined)

    def _replace_operands(self, index: int, node: Node, found: Container[str], joined: Node) -> None:
        """Replace the operands of a sum that are in `found` by the result of one node, which takes its place if there are no others."""
        others = [name for name in node.inputs if name not in found]
        if not others:
            self._replace(index, joined)
            return
        name = self.builder.names.unique(f"{node.outputs[0]}::joined")
        self._insert(index, replace(joined, outputs=[name]))
        self._replace(index, replace(node, inputs=[name, *others]))

    def _box(self, name: str) -> Box | None:
        """Return the slice whose gradient a value is; None for another value, and for one that other nodes read as well."""
        nodes: list[int] = []
        bounds: Bounds = []
        while (found := self._filled(name)) is not None and {axis for axis, *_ in bounds}.isdisjoint(axis for axis, *_ in found[1]):
            nodes.append(found[0])
            bounds += found[1]
            name = self.nodes[found[0]].inputs[0]
        return Box(nodes, name, sorted(bounds)) if nodes else None

    def _filled(self, name: str) -> tuple[int, Bounds] | None:
        """Return the index of the SliceGrad (gradient, shape, starts, ends, axes, steps) whose result only one node reads, and its bounds; None for others."""
        index = self.producer.get(name)
        node = None if index is None else self.result[index]
        if index is None or node is None or node.op_type != "SliceGrad" or canonical_domain(node.domain) != MICROSOFT or len(self.readers.get(name, ())) != 1:
            return None
        bounds = slice_bounds(self.inference.context(node), 2, len(self.types[name].shape or ()))
        axes = None if bounds is None else {axis for axis, *_ in bounds}
        return None if bounds is None or len(axes or ()) < len(bounds) else (index, bounds)

    def _cover(self, parts: Sequence[Part], whole: str) -> bool:
        """Return whether parts, in order, cover an axis of a value without overlap."""
        axis, end = parts[0].axis, 0
        for part in parts:
            if part.axis != axis or part.start != end:
                return False
            end += part.length
        return end == (self.types[whole].shape or ())[axis]

    def _part(self, name: str) -> Part | None:
        """Return the part whose gradient a value is; None for another value, and for one that other nodes read as well."""
        index = self.producer.get(name)
        node = None if index is None else self.result[index]
        if index is None or node is None or node.op_type not in PARTS or canonical_domain(node.domain) != MICROSOFT or len(self.readers.get(name, ())) != 1:
            return None
        return self._gathered(index, node) if node.op_type == "GatherGrad" else self._sliced(index, node)

    def _gathered(self, index: int, node: Node) -> Part | None:
        """Return the part that a GatherGrad (shape, index, gradient) of one constant index adds to zeros."""
        position, shape = self.values.get(node.inputs[1]), self.types[node.outputs[0]].shape or ()
        axis = int(node.attributes.get("axis", 0)) % len(shape)
        size = shape[axis]
        if position is None or position.size != 1 or position.ndim > 1 or not isinstance(size, int) or not -size <= int(position.ravel()[0]) < size:
            return None
        return Part(index, node.inputs[2], axis, int(position.ravel()[0]) % size, 1, position.ndim == 0)

    def _sliced(self, index: int, node: Node) -> Part | None:
        """Return the part that a SliceGrad (gradient, shape, starts, ends, axes, steps) of one axis and step 1 adds to zeros."""
        shape, gradient_shape = self.types[node.outputs[0]].shape or (), self.types[node.inputs[0]].shape or ()
        starts, axes, steps = (self.values.get(node.inputs[i]) if i < len(node.inputs) and node.inputs[i] else None for i in (2, 4, 5))
        if starts is None or axes is None or starts.size != 1 or len(node.inputs) > 5 and node.inputs[5] and (steps is None or int(steps.ravel()[0]) != 1):
            return None
        axis, start = int(axes.ravel()[0]) % len(shape), int(starts.ravel()[0])
        size, length = shape[axis], gradient_shape[axis]
        if not isinstance(size, int) or not isinstance(length, int):
            return None
        return Part(index, node.inputs[0], axis, min(max(start + size if start < 0 else start, 0), size), length, False)

    def _with_axis(self, index: int, part: Part) -> str:
        """Return the gradient of a part with the axis along which it is joined, which a node before `index` adds where it is missing."""
        if not part.missing:
            return part.gradient
        name = self.builder.names.unique(f"{part.gradient}::part")
        if self.builder.opset >= 13:
            node = Node("Unsqueeze", [part.gradient, self.builder.integer_constant([part.axis], "axes")], [name])
        else:
            node = Node("Unsqueeze", [part.gradient], [name], attributes={"axes": (part.axis,)})
        self._insert(index, node)
        return name
