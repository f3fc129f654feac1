"""The rewriting of a plan's nodes before they are lowered: simplification, layout, fusion.

Small networks have few of the operators that the larger passes look for, and imported code takes memory in every process. So these passes are imported for
graphs that have such operators."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ortrain._core.symbolic import memory_at_least
from ortrain.ir import Node
from ortrain.ops.registry.node_builder import GraphBuilder
from ortrain.ops.registry.record import canonical_domain
from ortrain.plan.epilogue_fusion.dense import fuse_dense
from ortrain.plan.epilogue_fusion.optimizer_update import fuse_updates
from ortrain.plan.epilogue_fusion.products import PRODUCTS, fuse_products
from ortrain.plan.joined_gradients import join_gradients
from ortrain.plan.operator_kinds import CONVOLUTIONS, COPIES, LOSSES, PARTITIONS, RECURRENT_LAYERS, has_any
from ortrain.plan.simplification import simplify

MIN_SCORES = 1 << 20
"""Scores of a softmax cross entropy from which on a linear layer before it is fused with it."""


def rewrite(nodes: Sequence[Node], builder: GraphBuilder, outputs: Iterable[str], direct: bool) -> list[Node]:
    """Return the nodes to lower for the live nodes of a plan.

    builder: adds constants to the plan. outputs: values that must still be computed. direct: compute convolutions as direct sums (see SessionOptions)."""
    kept = tuple(outputs)
    found = join_gradients(simplify(nodes, builder, kept), builder, kept)
    if has_any(CONVOLUTIONS, found):
        from ortrain.plan.layout import convert_to_channels_last
        from ortrain.plan.promotion import promote_to_2d

        found = convert_to_channels_last(promote_to_2d(found, builder, kept), builder, kept, direct)
    if has_any(("Equal",), found):
        from ortrain.plan.epilogue_fusion.extremes import fuse_extremes

        found = fuse_extremes(found, builder.inference, kept)
    found = fuse_dense(fuse_products(found, builder.inference, kept), builder.inference, kept)
    if has_any(PRODUCTS, found) and has_any(("Cast",), found):
        from ortrain.plan.epilogue_fusion.stored_weights import read_stored_weights

        found = read_stored_weights(found, builder.inference, kept)
    if _has_many_scores(found, builder):
        from ortrain.plan.epilogue_fusion.linear_cross_entropy import fuse_linear_cross_entropy

        found = fuse_linear_cross_entropy(found, builder.inference, kept)
    if has_any(("Transpose",), found):
        from ortrain.plan.transposed_gathers import transpose_indices
        from ortrain.plan.transposes import merge_transposes

        found = transpose_indices(merge_transposes(found, builder, kept), builder, kept)
        if has_any(RECURRENT_LAYERS, found):
            from ortrain.plan.recurrent_layouts import write_y_in_place

            found = write_y_in_place(found, builder, kept)
    if has_any(("ChannelsLastConv",), found):
        from ortrain.plan.epilogue_fusion.planes import use_planes

        found = use_planes(found, builder.inference, kept)
    if has_any(PRODUCTS, found) and has_any(COPIES, found):
        from ortrain.plan.strided_products import read_views_in_products

        found = read_views_in_products(found, builder, kept)
    if has_any(("Concat",), found) and has_any(PARTITIONS, found):
        from ortrain.plan.concatenated_slices import read_slices_in_place

        found = read_slices_in_place(found, builder.inference, kept)
    return fuse_updates(found, builder.inference, kept)


def _has_many_scores(nodes: Iterable[Node], builder: GraphBuilder) -> bool:
    """Return whether a softmax cross entropy has so many scores that they are worth computing in chunks."""
    return any(memory_at_least(builder.inference.types[node.inputs[0]].count, MIN_SCORES) for node in nodes
               if canonical_domain(node.domain) == LOSSES.get(node.op_type))
