"""Sequences and optionals as tensors: replaces operators on sequences whose elements are known by name, and on
optionals whose element is.

Chunks, stacks, and lists that are built and indexed at constant positions become tensor operators, which programs can
run and differentiate."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ortrain.errors import InvalidModelError
from ortrain.ir import Graph, NameSource, Node
from ortrain.ops.registry.subgraphs import defined_values, rename_node_values

TENSOR_RESULTS = frozenset({"SequenceAt", "SequenceLength", "ConcatFromSequence", "OptionalHasElement"})
"""Operators on sequences and optionals that return tensors."""

AXES_INPUT_OPSET = 13
"""The opset from which on Split, Squeeze and Unsqueeze take sizes and axes as inputs instead of attributes."""


def resolve_sequences(graph: Graph, opset: int, names: NameSource) -> None:
    """Replace operators on sequences in a graph as far as possible. Sequences with remaining readers keep the nodes
    that build them."""
    if any(node.op_type in RULES and node.op_type != "Identity" for node in graph.nodes):
        SequenceResolver(graph, opset, names).run()


class SequenceResolver:
    """One pass over one graph."""

    def __init__(self, graph: Graph, opset: int, names: NameSource) -> None:
        self.graph, self.opset, self.names = graph, opset, names
        self.elements: dict[str, list[str]] = {}
        """Sequence -> the values of its elements."""
        self.wrapped: dict[str, str] = {}
        """Optional -> the value of its element."""
        self.equal_splits: dict[str, Node] = {}
        """Sequence -> the SplitToSequence that splits into an unknown number of equal chunks."""
        self.nodes: list[Node] = []

    def run(self) -> None:
        for node in self.graph.nodes:
            self.visit(node)
        self._remove_unused_sequences()

    def visit(self, node: Node) -> None:
        """Apply the rule of a node; keep the node unless the rule replaces it."""
        rule = RULES.get(node.op_type) if not node.domain else None
        if rule is None or not rule(self, node):
            self.nodes.append(node)

    def _remove_unused_sequences(self) -> None:
        """Remove nodes that only build sequences or optionals without remaining readers."""
        read, kept = set(self.graph.outputs), []
        for node in reversed(self.nodes):
            if node.outputs[0] in self.elements.keys() | self.equal_splits.keys() | self.wrapped.keys() and read.isdisjoint(node.outputs):
                continue
            kept.append(node)
            read.update(node.inputs)                     # includes what subgraphs read: loading lists it in the inputs of their nodes
        self.graph.nodes = kept[::-1]

    # ---- queries and new nodes

    def constant(self, name: str) -> np.ndarray | None:
        return self.graph.initializers.get(name)

    def constant_index(self, node: Node, index: int, default: int | None = None) -> int | None:
        """Return the position given by an input, `default` if the input is absent, None if its value is unknown."""
        if index >= len(node.inputs) or not node.inputs[index]:
            return default
        value = self.constant(node.inputs[index])
        return None if value is None else int(value.reshape(-1)[0])

    def is_tensor(self, name: str) -> bool:
        """Return whether a value is known not to be a sequence."""
        kind = self.graph.types.get(name)
        if name in self.graph.inputs or name in self.graph.initializers:
            return kind is None or not kind.sequence
        producer = next((node for node in self.nodes if name in node.outputs), None)
        if producer is None or producer.op_type == "Identity":
            return producer is not None and self.is_tensor(producer.inputs[0])
        return not producer.graphs and (producer.op_type in TENSOR_RESULTS or producer.op_type not in RULES)

    def add(self, op_type: str, inputs: Sequence[str], output: str, **attributes: int | tuple[int, ...]) -> str:
        self.nodes.append(Node(op_type, list(inputs), [output], self.names.unique(f"{output}/{op_type}"), "", dict(attributes)))
        return output

    def int64_constant(self, label: str, values: Sequence[int] | int) -> str:
        name = self.names.unique(label)
        self.graph.initializers[name] = np.array(values, np.int64)
        return name

    def unsqueezed(self, name: str, axis: int, output: str) -> str:
        if self.opset < AXES_INPUT_OPSET:
            return self.add("Unsqueeze", [name], output, axes=(axis,))
        return self.add("Unsqueeze", [name, self.int64_constant(f"{output}/axes", [axis])], output)


# ---- rules per operator: each returns whether its replacement makes the node unnecessary


def sequence_construct(resolver: SequenceResolver, node: Node) -> bool:
    resolver.elements[node.outputs[0]] = list(node.inputs)
    return False


def sequence_empty(resolver: SequenceResolver, node: Node) -> bool:
    resolver.elements[node.outputs[0]] = []
    return False


def sequence_insert(resolver: SequenceResolver, node: Node) -> bool:
    elements = resolver.elements.get(node.inputs[0])
    position = resolver.constant_index(node, 2, len(elements or ()))
    if elements is not None and position is not None:
        if not -len(elements) <= position <= len(elements):
            raise InvalidModelError(f"expected a position in [{-len(elements)}, {len(elements)}], got {position} (operator SequenceInsert, node {node.name!r})")
        position += len(elements) if position < 0 else 0
        resolver.elements[node.outputs[0]] = [*elements[:position], node.inputs[1], *elements[position:]]
    return False


def sequence_erase(resolver: SequenceResolver, node: Node) -> bool:
    elements = resolver.elements.get(node.inputs[0])
    position = resolver.constant_index(node, 1, -1)
    if elements and position is not None and -len(elements) <= position < len(elements):
        resolver.elements[node.outputs[0]] = [name for index, name in enumerate(elements) if index != position % len(elements)]
    return False


def identity(resolver: SequenceResolver, node: Node) -> bool:
    for known in (resolver.elements, resolver.equal_splits):
        if node.inputs[0] in known:
            known[node.outputs[0]] = known[node.inputs[0]]  # type: ignore[index, assignment]
    return False


def split_to_sequence(resolver: SequenceResolver, node: Node) -> bool:
    """Replace a split into chunks of known sizes by Split; equal chunks are sliced where they are read."""
    sizes = resolver.constant(node.inputs[1]) if len(node.inputs) > 1 and node.inputs[1] else np.array(1)
    axis, output = int(node.attributes.get("axis", 0)), node.outputs[0]
    if sizes is None:
        return False
    if min(sizes.reshape(-1), default=1) < (1 if sizes.ndim == 0 else 0):
        raise InvalidModelError(f"expected positive chunk sizes, got {sizes.tolist()} (operator SplitToSequence, node {node.name!r})")
    if sizes.ndim == 0:
        resolver.equal_splits[output] = node
        return False
    chunks = [resolver.names.unique(f"{output}/{index}") for index in range(len(sizes))]
    split = Node("Split", [node.inputs[0]], chunks, resolver.names.unique(f"{output}/Split"), "", {"axis": axis})
    if resolver.opset < AXES_INPUT_OPSET:
        split.attributes["split"] = tuple(map(int, sizes))
    else:
        split.inputs.append(resolver.int64_constant(f"{output}/sizes", [int(size) for size in sizes]))
    resolver.nodes.append(split)
    resolver.elements[output] = chunks
    return False


def sequence_at(resolver: SequenceResolver, node: Node) -> bool:
    position, source, output = resolver.constant_index(node, 1), node.inputs[0], node.outputs[0]
    if position is None:
        return False
    elements = resolver.elements.get(source)
    if elements is not None and -len(elements) <= position < len(elements):
        resolver.add("Identity", [elements[position]], output)
        return True
    return source in resolver.equal_splits and _replace_by_slice(resolver, resolver.equal_splits[source], position, output)


def _replace_by_slice(resolver: SequenceResolver, split: Node, position: int, output: str) -> bool:
    """Replace the access to one of equal chunks by a Gather or Slice of the split tensor; return False if that is not
    possible."""
    has_size = len(split.inputs) > 1 and bool(split.inputs[1])
    size = resolver.constant_index(split, 1, 1)
    axis = int(split.attributes.get("axis", 0))
    assert size is not None
    if not has_size and not split.attributes.get("keepdims", 1):
        resolver.add("Gather", [split.inputs[0], resolver.int64_constant(f"{output}/index", position)], output, axis=axis)
        return True
    if size == 1:                                        # unlike Slice, Gather rejects a position out of range
        resolver.add("Gather", [split.inputs[0], resolver.int64_constant(f"{output}/index", [position])], output, axis=axis)
        return True
    if position < 0:
        return False                                     # counted from the end, the start depends on the number of chunks, and the last one may be smaller
    values = {"start": position * size, "end": (position + 1) * size, "axis": axis}
    bounds = [resolver.int64_constant(f"{output}/{label}", [value]) for label, value in values.items()]
    resolver.add("Slice", [split.inputs[0], *bounds], output)
    return True


def sequence_length(resolver: SequenceResolver, node: Node) -> bool:
    elements = resolver.elements.get(node.inputs[0])
    if elements is None:
        return False
    resolver.add("Identity", [resolver.int64_constant(f"{node.outputs[0]}/count", len(elements))], node.outputs[0])
    return True


def concat_from_sequence(resolver: SequenceResolver, node: Node) -> bool:
    elements, output = resolver.elements.get(node.inputs[0]), node.outputs[0]
    if not elements:
        return False
    axis = int(node.attributes["axis"])
    if node.attributes.get("new_axis", 0):
        elements = [resolver.unsqueezed(name, axis, resolver.names.unique(f"{output}/{index}")) for index, name in enumerate(elements)]
    resolver.add("Concat", elements, output, axis=axis)
    return True


def sequence_map(resolver: SequenceResolver, node: Node) -> bool:
    """Replace a SequenceMap by one copy of its body for each element."""
    body = node.graphs["body"]
    sequences = [resolver.elements.get(name) for name in node.inputs[: len(body.inputs)]]
    counts = {len(elements) for elements in sequences if elements is not None}
    if sequences[0] is None or any(elements is None and not resolver.is_tensor(name) for elements, name in zip(sequences, node.inputs, strict=False)):
        return False
    if len(counts) > 1:
        raise InvalidModelError(f"expected sequences of one length, got {sorted(counts)} (operator SequenceMap, node {node.name!r})")
    results: list[list[str]] = []
    for index in range(counts.pop()):
        names = {inner: name if elements is None else elements[index] for inner, elements, name in zip(body.inputs, sequences, node.inputs, strict=False)}
        names |= {inner: resolver.names.unique(f"{node.outputs[0]}/{index}/{inner}") for inner in defined_values(body)}
        resolver.graph.initializers |= {names[inner]: array for inner, array in body.initializers.items()}
        for body_node in body.nodes:
            resolver.visit(rename_node_values(body_node, names))
        results.append([names.get(name, name) for name in body.outputs])
    for position, output in enumerate(node.outputs):
        if output:
            resolver.elements[output] = [row[position] for row in results]
            resolver.add("SequenceConstruct" if results else "SequenceEmpty", resolver.elements[output], output)
    return True


def optional(resolver: SequenceResolver, node: Node) -> bool:
    if node.inputs and node.inputs[0]:
        resolver.wrapped[node.outputs[0]] = node.inputs[0]
    return False


def optional_get_element(resolver: SequenceResolver, node: Node) -> bool:
    if node.inputs[0] not in resolver.wrapped:
        return False
    resolver.add("Identity", [resolver.wrapped[node.inputs[0]]], node.outputs[0])
    return True


def optional_has_element(resolver: SequenceResolver, node: Node) -> bool:
    if not node.inputs or node.inputs[0] not in resolver.wrapped:
        return False
    name = resolver.names.unique(f"{node.outputs[0]}/has_element")
    resolver.graph.initializers[name] = np.array(True)
    resolver.add("Identity", [name], node.outputs[0])
    return True


RULES: dict[str, Callable[[SequenceResolver, Node], bool]] = {
    "SequenceConstruct": sequence_construct, "SequenceEmpty": sequence_empty, "SequenceInsert": sequence_insert, "SequenceErase": sequence_erase,
    "SplitToSequence": split_to_sequence, "SequenceMap": sequence_map, "SequenceAt": sequence_at, "SequenceLength": sequence_length,
    "ConcatFromSequence": concat_from_sequence, "Identity": identity, "Optional": optional, "OptionalGetElement": optional_get_element,
    "OptionalHasElement": optional_has_element,
}
