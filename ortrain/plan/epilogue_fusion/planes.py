"""Convolutions that read and write images [n, c, h, w] themselves, where nothing else needs the data channels-last.

A region of one convolution would copy whole images twice. Direct convolution, which copies padded rows in any case, transposes those rows instead, and blocks
of results while they are in the cache."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from ortrain.ir import Node
from ortrain.ops.channels_last import conv_windows
from ortrain.ops.registry.record import canonical_domain
from ortrain.ops.registry.shape_inference import ShapeInference
from ortrain.ops.shared.conv_algorithms import can_use_planes
from ortrain.ops.shared.conv_geometry import geometry_of
from ortrain.plan.epilogue_fusion.rewriter import EpilogueRewriter
from ortrain.plan.layout_values import to_first, to_last


def use_planes(nodes: Sequence[Node], inference: ShapeInference, outputs: Iterable[str]) -> list[Node]:
    """Return the nodes without transposes that the convolution after or before them computes. outputs: values that must still be computed."""
    return ConvolutionsOfPlanes(nodes, inference, outputs).run()


class ConvolutionsOfPlanes(EpilogueRewriter):
    """One pass over the nodes of a plan; parameters as in EpilogueRewriter."""

    def run(self) -> list[Node]:
        """Return the nodes after the pass."""
        for index, node in enumerate(self.nodes):
            if node.op_type == "ChannelsLastConv":
                self._convert(index, node)
        return self.remaining()

    def _convert(self, index: int, node: Node) -> None:
        """Let a convolution read or write planes where it is the only reader of a transposed value, or a transpose is the only reader of its result."""
        before, after = self.producer.get(node.inputs[0], -1), self._sole_reader(node.outputs[0])
        rank = len(self.types[node.inputs[0]].shape or ())
        reads = self._is_transpose(before, to_last(rank)) and self._sole_reader(node.inputs[0]) == index
        writes = after is not None and self._is_transpose(after, to_first(rank))
        if not (reads or writes) or not self._supports_planes(node):
            return
        found = replace(node, attributes=node.attributes | {"reads_planes": int(reads), "writes_planes": int(writes)})
        if reads:
            found, self.result[before] = replace(found, inputs=[*self.nodes[before].inputs, *node.inputs[1:]]), None
        if writes and after is not None:
            found, self.result[after] = replace(found, outputs=self.nodes[after].outputs), None
        self._replace(index, found)

    def _is_transpose(self, index: int, order: tuple[int, ...]) -> bool:
        node = self.nodes[index] if index >= 0 else None
        return node is not None and node.op_type == "Transpose" and canonical_domain(node.domain) == "" and tuple(node.attributes.get("perm", ())) == order

    def _supports_planes(self, node: Node) -> bool:
        context = self.inference.context(node)
        data, weight = context.type(0).sizes, context.type(1).sizes
        geometry = geometry_of(data, weight[0], int(node.attributes.get("group", 1)), conv_windows(context, 0, 1))
        return can_use_planes(geometry, data[0], bool(node.attributes.get("direct", 0)))
