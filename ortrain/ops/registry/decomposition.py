"""Decompositions: operators replaced by others before lowering, and before differentiation where they have no gradient rule."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from ortrain.ir import Node
from ortrain.ops.registry.node_builder import GraphBuilder, NodeBuilder
from ortrain.ops.registry.record import OpRecord, apply_rule, record_of


def decompose(node: Node, builder: GraphBuilder, whole: Callable[[OpRecord], bool] = lambda record: False) -> list[Node] | None:
    """Return the nodes that replace `node`, which has been visited; None when it is not decomposed.

    Their final outputs carry the node's own output names. They are decomposed further, except for operators that are to stay `whole`."""
    record = record_of(node)
    if record is None or record.decompose is None:
        return None
    before, builder.added = builder.added, []
    try:
        results = apply_rule(node, record.decompose, NodeBuilder(builder, node))
        if results is None:
            return None
        made = [piece for added in builder.added for piece in (_unless(whole, added, builder) or [added])]
    finally:
        builder.added = before
    return list(named_as(made, node, results, builder))


def _unless(whole: Callable[[OpRecord], bool], node: Node, builder: GraphBuilder) -> list[Node] | None:
    record = record_of(node)
    return None if record is not None and whole(record) else decompose(node, builder, whole)


def named_as(made: Sequence[Node], node: Node, results: Sequence[str], builder: GraphBuilder) -> Iterator[Node]:
    """Yield the nodes of a decomposition, their results renamed to the outputs of the decomposed node."""
    produced = {name for piece in made for name in piece.outputs}
    wanted = [(result, own) for result, own in zip(results, node.outputs, strict=False) if own]
    if not all(result for result, _ in wanted):
        raise builder.inference.context(node).error(f"expected inputs and attributes that something can be computed of, got {node}")
    final: dict[str, str] = {}
    copies: list[tuple[str, str]] = []
    for result, own in wanted:
        if result in produced and result not in final:
            final[result] = own
        else:
            copies.append((final.get(result, result), own))
    types, values = builder.inference.types, builder.inference.values
    for result, own in wanted:
        said, found = types.get(own), types[result]
        if said is not None and said.is_static and found.is_static and said.shape != found.shape:
            raise builder.inference.context(node).error(
                f"expected inputs that fit each other, got some of which output {own!r} would be {list(said.sizes)} and {list(found.sizes)}")
    for result, own in final.items():
        types[own] = types[result]
        if result in values:
            values[own] = values[result]
    for piece in made:
        piece.inputs = [final.get(name, name) for name in piece.inputs]
        piece.outputs = [final.get(name, name) for name in piece.outputs]
        yield piece
    for result, own in copies:
        yield Node("Identity", [result], [own], builder.names.unique(f"{node.name or own}_Expanded/Identity"))
