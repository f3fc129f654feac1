"""Sequences whose elements a graph names one by one (chunks, stacks, lists that are built and read at known places), and optionals whose element it names, in
terms of tensors: so that programs run them, and gradients flow."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ortrain.errors import InvalidModelError
from ortrain.ir import Graph, NameSource, Node
from ortrain.ops.registry.subgraphs import made, renamed_node

TENSOR_RESULTS = frozenset({"SequenceAt", "SequenceLength", "ConcatFromSequence", "OptionalHasElement"})
"""Operators on sequences and optionals that make tensors."""

OPTIONAL_INPUT_OPSET = 13
"""From here on Split, Squeeze and Unsqueeze take sizes and axes as inputs."""


def resolve_sequences(graph: Graph, opset: int, names: NameSource) -> None:
    """Replaces the operators on sequences, as far as they can be, in the graph. What still needs a sequence keeps the nodes that make it."""
    if any(node.op_type in RULES and node.op_type != "Identity" for node in graph.nodes):
        Resolver(graph, opset, names).run()


class Resolver:
    """One pass over one graph."""

    def __init__(self, graph: Graph, opset: int, names: NameSource) -> None:
        self.graph, self.opset, self.names = graph, opset, names
        self.elements: dict[str, list[str]] = {}
        """Sequence -> the values that are its elements."""
        self.wrapped: dict[str, str] = {}
        """Optional -> the value that it holds."""
        self.pieces: dict[str, Node] = {}
        """Sequence -> the SplitToSequence that cuts an unknown number of equal pieces."""
        self.nodes: list[Node] = []

    def run(self) -> None:
        for node in self.graph.nodes:
            self.visit(node)
        self._drop_makers()

    def visit(self, node: Node) -> None:
        """Keeps a node, unless its rule settles it."""
        rule = RULES.get(node.op_type) if not node.domain else None
        if rule is None or not rule(self, node):
            self.nodes.append(node)

    def _drop_makers(self) -> None:
        """Removes the nodes whose only purpose was a sequence that nobody reads any more."""
        read, kept = set(self.graph.outputs), []
        for node in reversed(self.nodes):
            if node.outputs[0] in self.elements.keys() | self.pieces.keys() | self.wrapped.keys() and read.isdisjoint(node.outputs):
                continue
            kept.append(node)
            read.update(node.inputs)                     # of graphs inside, too: their nodes list what they read
        self.graph.nodes = kept[::-1]

    # ---- what is known

    def constant(self, name: str) -> np.ndarray | None:
        return self.graph.initializers.get(name)

    def place(self, node: Node, index: int, default: int | None = None) -> int | None:
        """The position that an input says, if it is known."""
        if index >= len(node.inputs) or not node.inputs[index]:
            return default
        value = self.constant(node.inputs[index])
        return None if value is None else int(value.reshape(-1)[0])

    def is_tensor(self, name: str) -> bool:
        """True for a value that is known to be no sequence."""
        kind = self.graph.types.get(name)
        if name in self.graph.inputs or name in self.graph.initializers:
            return kind is None or not kind.sequence
        maker = next((node for node in self.nodes if name in node.outputs), None)
        if maker is None or maker.op_type == "Identity":
            return maker is not None and self.is_tensor(maker.inputs[0])
        return not maker.graphs and (maker.op_type in TENSOR_RESULTS or maker.op_type not in RULES)

    def add(self, op_type: str, inputs: Sequence[str], output: str, **attributes: int | tuple[int, ...]) -> str:
        self.nodes.append(Node(op_type, list(inputs), [output], self.names.unique(f"{output}/{op_type}"), "", dict(attributes)))
        return output

    def ints(self, label: str, values: Sequence[int] | int) -> str:
        name = self.names.unique(label)
        self.graph.initializers[name] = np.array(values, np.int64)
        return name

    def unsqueezed(self, name: str, axis: int, output: str) -> str:
        if self.opset < OPTIONAL_INPUT_OPSET:
            return self.add("Unsqueeze", [name], output, axes=(axis,))
        return self.add("Unsqueeze", [name, self.ints(f"{output}/axes", [axis])], output)


# ---- one rule for each operator: True when the node is not needed for what its rule has settled


def construct(r: Resolver, node: Node) -> bool:
    r.elements[node.outputs[0]] = list(node.inputs)
    return False


def empty(r: Resolver, node: Node) -> bool:
    r.elements[node.outputs[0]] = []
    return False


def insert(r: Resolver, node: Node) -> bool:
    elements = r.elements.get(node.inputs[0])
    place = r.place(node, 2, len(elements or ()))
    if elements is not None and place is not None:
        if not -len(elements) <= place <= len(elements):
            raise InvalidModelError(f"expected a position in [{-len(elements)}, {len(elements)}], got {place} (operator SequenceInsert, node {node.name!r})")
        place += len(elements) if place < 0 else 0
        r.elements[node.outputs[0]] = [*elements[:place], node.inputs[1], *elements[place:]]
    return False


def erase(r: Resolver, node: Node) -> bool:
    elements = r.elements.get(node.inputs[0])
    place = r.place(node, 1, -1)
    if elements and place is not None and -len(elements) <= place < len(elements):
        r.elements[node.outputs[0]] = [name for index, name in enumerate(elements) if index != place % len(elements)]
    return False


def hand_on(r: Resolver, node: Node) -> bool:
    for known in (r.elements, r.pieces):
        if node.inputs[0] in known:
            known[node.outputs[0]] = known[node.inputs[0]]  # type: ignore[index, assignment]
    return False


def split(r: Resolver, node: Node) -> bool:
    """Pieces of sizes that are known are those of a Split; of equal pieces, each is a slice."""
    sizes = r.constant(node.inputs[1]) if len(node.inputs) > 1 and node.inputs[1] else np.array(1)
    axis, output = int(node.attributes.get("axis", 0)), node.outputs[0]
    if sizes is None:
        return False
    if min(sizes.reshape(-1), default=1) < (1 if sizes.ndim == 0 else 0):
        raise InvalidModelError(f"expected sizes of pieces that are positive, got {sizes.tolist()} (operator SplitToSequence, node {node.name!r})")
    if sizes.ndim == 0:
        r.pieces[output] = node
        return False
    pieces = [r.names.unique(f"{output}/{index}") for index in range(len(sizes))]
    made = Node("Split", [node.inputs[0]], pieces, r.names.unique(f"{output}/Split"), "", {"axis": axis})
    if r.opset < OPTIONAL_INPUT_OPSET:
        made.attributes["split"] = tuple(map(int, sizes))
    else:
        made.inputs.append(r.ints(f"{output}/sizes", [int(size) for size in sizes]))
    r.nodes.append(made)
    r.elements[output] = pieces
    return False


def at(r: Resolver, node: Node) -> bool:
    place, source, output = r.place(node, 1), node.inputs[0], node.outputs[0]
    if place is None:
        return False
    elements = r.elements.get(source)
    if elements is not None and -len(elements) <= place < len(elements):
        r.add("Identity", [elements[place]], output)
        return True
    return source in r.pieces and _slice(r, r.pieces[source], place, output)


def _slice(r: Resolver, cut: Node, place: int, output: str) -> bool:
    """Piece `place` of equal ones."""
    given = len(cut.inputs) > 1 and bool(cut.inputs[1])
    size = r.place(cut, 1, 1)
    axis = int(cut.attributes.get("axis", 0))
    assert size is not None
    if not given and not cut.attributes.get("keepdims", 1):
        r.add("Gather", [cut.inputs[0], r.ints(f"{output}/index", place)], output, axis=axis)
        return True
    if size == 1:                                        # a Slice would not refuse a piece that is not there
        r.add("Gather", [cut.inputs[0], r.ints(f"{output}/index", [place])], output, axis=axis)
        return True
    if place < 0:
        return False                                     # the last piece may be smaller
    bounds = [r.ints(f"{output}/{label}", [value]) for label, value in (("start", place * size), ("end", (place + 1) * size), ("axis", axis))]
    r.add("Slice", [cut.inputs[0], *bounds], output)
    return True


def length(r: Resolver, node: Node) -> bool:
    elements = r.elements.get(node.inputs[0])
    if elements is None:
        return False
    r.add("Identity", [r.ints(f"{node.outputs[0]}/count", len(elements))], node.outputs[0])
    return True


def concat(r: Resolver, node: Node) -> bool:
    elements, output = r.elements.get(node.inputs[0]), node.outputs[0]
    if not elements:
        return False
    axis = int(node.attributes["axis"])
    if node.attributes.get("new_axis", 0):
        elements = [r.unsqueezed(name, axis, r.names.unique(f"{output}/{index}")) for index, name in enumerate(elements)]
    r.add("Concat", elements, output, axis=axis)
    return True


def mapped(r: Resolver, node: Node) -> bool:
    """The body once for each element."""
    body = node.graphs["body"]
    given = [r.elements.get(name) for name in node.inputs[: len(body.inputs)]]
    counts = {len(elements) for elements in given if elements is not None}
    if given[0] is None or any(elements is None and not r.is_tensor(name) for elements, name in zip(given, node.inputs, strict=False)):
        return False
    if len(counts) > 1:
        raise InvalidModelError(f"expected sequences of one length, got {sorted(counts)} (operator SequenceMap, node {node.name!r})")
    results: list[list[str]] = []
    for index in range(counts.pop()):
        names = {inner: name if elements is None else elements[index] for inner, elements, name in zip(body.inputs, given, node.inputs, strict=False)}
        names |= {inner: r.names.unique(f"{node.outputs[0]}/{index}/{inner}") for inner in made(body)}
        r.graph.initializers |= {names[inner]: array for inner, array in body.initializers.items()}
        for part in body.nodes:
            r.visit(renamed_node(part, names))
        results.append([names.get(name, name) for name in body.outputs])
    for place, output in enumerate(node.outputs):
        if output:
            r.elements[output] = [row[place] for row in results]
            r.add("SequenceConstruct" if results else "SequenceEmpty", r.elements[output], output)
    return True


def wrap(r: Resolver, node: Node) -> bool:
    if node.inputs and node.inputs[0]:
        r.wrapped[node.outputs[0]] = node.inputs[0]
    return False


def unwrap(r: Resolver, node: Node) -> bool:
    if node.inputs[0] not in r.wrapped:
        return False
    r.add("Identity", [r.wrapped[node.inputs[0]]], node.outputs[0])
    return True


def is_there(r: Resolver, node: Node) -> bool:
    if not node.inputs or node.inputs[0] not in r.wrapped:
        return False
    name = r.names.unique(f"{node.outputs[0]}/is_there")
    r.graph.initializers[name] = np.array(True)
    r.add("Identity", [name], node.outputs[0])
    return True


RULES: dict[str, Callable[[Resolver, Node], bool]] = {
    "SequenceConstruct": construct, "SequenceEmpty": empty, "SequenceInsert": insert, "SequenceErase": erase, "SplitToSequence": split,
    "SequenceMap": mapped, "SequenceAt": at, "SequenceLength": length, "ConcatFromSequence": concat, "Identity": hand_on,
    "Optional": wrap, "OptionalGetElement": unwrap, "OptionalHasElement": is_there,
}
