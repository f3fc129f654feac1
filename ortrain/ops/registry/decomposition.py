"""Decompositions: a node is replaced by nodes of simpler operators, before differentiation if it has no gradient rule and otherwise before lowering."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from ortrain.ir import Node
from ortrain.ops.registry.node_builder import GraphBuilder, NodeBuilder
from ortrain.ops.registry.record import OpRecord, apply_rule, record_of


def decompose(node: Node, builder: GraphBuilder, keep: Callable[[OpRecord], bool] = lambda record: False) -> list[Node] | None:
    """Return the nodes that replace `node`, in execution order, or None if it has no decomposition.

    The nodes that compute the results bear the output names of `node`, so that its readers need no change. They are decomposed further in turn, except for
    operators whose record satisfies `keep`. The inference of `builder` must have visited `node`; it then knows the types of all replacements."""
    record = record_of(node)
    if record is None or record.decompose is None:
        return None
    before, builder.added = builder.added, []
    try:
        results = apply_rule(node, record.decompose, NodeBuilder(builder, node))
        if results is None:
            return None
        replacements = [part for added in builder.added for part in (_decompose_unless(keep, added, builder) or [added])]
    finally:
        builder.added = before
    return list(rename_results(replacements, node, results, builder))


def _decompose_unless(keep: Callable[[OpRecord], bool], node: Node, builder: GraphBuilder) -> list[Node] | None:
    record = record_of(node)
    return None if record is not None and keep(record) else decompose(node, builder, keep)


def rename_results(replacements: Sequence[Node], node: Node, results: Sequence[str], builder: GraphBuilder) -> Iterator[Node]:
    """Yield the nodes of a decomposition with their results renamed to the outputs of the decomposed node.

    results: the value that replaces each output of `node`. A result that no replacement computes, such as a constant or an input, or that replaces two
    outputs, is copied by an Identity. Raises ShapeInferenceError for a missing result, or one whose static shape is not the inferred shape of its output."""
    computed = {name for part in replacements for name in part.outputs}
    pairs = [(result, output) for result, output in zip(results, node.outputs, strict=False) if output]
    if not all(result for result, _ in pairs):
        raise builder.inference.context(node).error(f"expected inputs and attributes from which every output can be computed, got {node}")
    renamed: dict[str, str] = {}
    copies: list[tuple[str, str]] = []
    for result, output in pairs:
        if result in computed and result not in renamed:
            renamed[result] = output
        else:
            copies.append((renamed.get(result, result), output))
    types, values = builder.inference.types, builder.inference.values
    for result, output in pairs:
        inferred, found = types.get(output), types[result]
        if inferred is not None and inferred.is_static and found.is_static and inferred.shape != found.shape:
            raise builder.inference.context(node).error(
                f"expected inputs whose shapes fit each other, got some that make output {output!r} both {list(inferred.sizes)} and {list(found.sizes)}")
    for result, output in renamed.items():
        types[output] = types[result]
        if result in values:
            values[output] = values[result]
    for part in replacements:
        part.inputs = [renamed.get(name, name) for name in part.inputs]
        part.outputs = [renamed.get(name, name) for name in part.outputs]
        yield part
    for result, output in copies:
        yield Node("Identity", [result], [output], builder.names.unique(f"{node.name or output}_Expanded/Identity"))
