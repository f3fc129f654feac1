"""Rows that nobody reads are not computed: a Gather of a few of them moves before what works row by row, products among it.

Classifiers on transformers read one token of the last layer. Its keys and values are of all tokens; its queries, its dense layers and its normalizations
are of that one: ten of the twelve parts of the layer's products go."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np

from ortrain.fusion.graph_view import View
from ortrain.ir import Dim, Node, Shape
from ortrain.ops.registry.record import MICROSOFT, ORTRAIN, canonical_domain

PRODUCTS = {("", "MatMul"), ("", "Gemm"), (ORTRAIN, "Attention")}
"""What a move has to save at least one of: without, it would only trade one Gather for several."""
ELEMENTWISE = frozenset({("", name) for name in (
    "Abs", "Add", "Cast", "Celu", "Div", "Elu", "Erf", "Exp", "Gelu", "HardSigmoid", "HardSwish", "Identity", "LeakyRelu", "Log", "Mish", "Mul", "Neg", "Pow",
    "Reciprocal", "Relu", "Selu", "Sigmoid", "Softplus", "Softsign", "Sqrt", "Sub", "Swish", "Tanh")} | {(MICROSOFT, "Gelu"), (MICROSOFT, "FastGelu")})
MIN_SAVING = 2
"""Of how many rows at least one stays, where their number is known."""

Axes = dict[int, int]
"""Which inputs of a node are cut, and along which axis."""


@dataclass
class Cut:
    """Rows `rows` [count] of an axis, and the nodes that need no others, each with the axes of its inputs and its output that are cut."""

    rows: np.ndarray
    nodes: dict[int, tuple[Node, Axes, int]] = field(default_factory=dict)


def find(view: View) -> Iterator[tuple[Node, list[Node]]]:
    """(the Gather, the nodes that stand for it)"""
    for gather in view.nodes("Gather"):
        rows, shape = view.array(gather.inputs[1]), view.shape(gather.inputs[0])
        if rows is None or rows.ndim > 1 or not rows.size or not shape:
            continue
        axis = int(gather.attributes.get("axis", 0)) % len(shape)
        size = shape[axis]
        if isinstance(size, int) and size < MIN_SAVING * rows.size:
            continue
        cut = _cut_before(view, gather, axis, rows.reshape(-1))
        if any((canonical_domain(node.domain), node.op_type) in PRODUCTS for node, _, _ in cut.nodes.values()):
            yield gather, _written(view, gather, axis, rows, cut)


def _cut_before(view: View, gather: Node, axis: int, rows: np.ndarray) -> Cut:
    """Goes back from the Gather as long as every reader of a value needs these rows only."""
    cut = Cut(rows)
    asked = {gather.inputs[0]: Counter([axis])}          # value -> axis -> how many nodes need no more than its rows there
    for node in reversed(view.graph.nodes):
        wishes = asked.get(node.outputs[0], Counter())
        if len(wishes) != 1 or any(map(view.readers, node.outputs[1:])):
            continue
        (along, count), = wishes.items()
        axes = _axes(view, node, along) if view.readers(node.outputs[0]) == count else None
        if axes:
            cut.nodes[id(node)] = node, axes, along
            for name in dict.fromkeys(node.inputs):
                uses = {axes.get(index) for index, other in enumerate(node.inputs) if other == name}
                if len(uses) == 1 and (of_input := uses.pop()) is not None:
                    asked.setdefault(name, Counter())[of_input] += 1
    return cut


def _written(view: View, gather: Node, axis: int, rows: np.ndarray, cut: Cut) -> list[Node]:
    """The nodes of the cut with few rows, behind Gathers of what they read."""
    made: list[Node] = []
    names: dict[tuple[str, int], str] = {}

    def constant(array: np.ndarray) -> str:
        made.append(Node("Constant", [], [view.new_name("rows")], attributes={"value": array}))
        return made[-1].outputs[0]

    index = constant(cut.rows)
    for node, axes, along in reversed(cut.nodes.values()):
        for i, of_input in axes.items():
            if (node.inputs[i], of_input) not in names:
                names[node.inputs[i], of_input] = view.new_name(f"{node.inputs[i]}_rows")
                made.append(Node("Gather", [node.inputs[i], index], [names[node.inputs[i], of_input]], attributes={"axis": of_input}))
        copy = node.copy()
        copy.inputs = [names[name, axes[i]] if i in axes else name for i, name in enumerate(node.inputs)]
        if node.op_type == "Reshape":
            copy.inputs[1], copy.attributes = constant(_sizes(view.shape(node.outputs[0]) or (), along, cut.rows.size)), {}
        copy.outputs = [names.setdefault((node.outputs[0], along), view.new_name(f"{node.outputs[0]}_rows"))]
        made.append(copy)
    few = names[gather.inputs[0], axis]
    if rows.ndim:
        made.append(Node("Identity", [few], list(gather.outputs), gather.name))
    else:
        made.append(Node("Gather", [few, constant(np.array(0, np.int64))], list(gather.outputs), gather.name, attributes={"axis": axis}))
    return made


# ---- which inputs a node needs only rows of, when only these rows of its output are read: None where it does not work row by row


def _axes(view: View, node: Node, axis: int) -> Axes | None:
    kind = canonical_domain(node.domain), node.op_type
    if kind in ELEMENTWISE:
        return _aligned(view, node, range(len(node.inputs)), axis)
    rule = RULES.get(kind)
    return None if rule is None else rule(view, node, axis)


def _aligned(view: View, node: Node, inputs: range, axis: int) -> Axes | None:
    """Inputs that are broadcast: those whose size along the axis is the output's are cut, those of size 1 are not."""
    shape, axes = view.shape(node.outputs[0]), Axes()
    for index in inputs:
        given = view.shape(node.inputs[index])
        if given is None or shape is None:
            return None
        own = axis - len(shape) + len(given)
        if own < 0 or given[own] == 1:
            continue
        if given[own] != shape[axis]:
            return None
        axes[index] = own
    return axes


def _of_product(view: View, node: Node, axis: int) -> Axes | None:
    shapes = [view.shape(name) for name in (*node.inputs, node.outputs[0])]
    if any(shape is None or len(shape) < 2 for shape in shapes):
        return None
    a, _, y = (len(shape or ()) for shape in shapes)
    if axis < y - 2:
        return _aligned(view, node, range(2), axis)
    return {0: a - 2} if axis == y - 2 else None


def _of_gemm(view: View, node: Node, axis: int) -> Axes | None:
    if axis != 0 or node.attributes.get("transA", 0):
        return None
    added = _aligned(view, node, range(2, len(node.inputs)), 0)
    return None if added is None else {0: 0, **added}


def _of_attention(view: View, node: Node, axis: int) -> Axes | None:
    """Queries alone, and their rows of the mask [.., rows, keys]."""
    if axis != 1:
        return None
    queries, mask = view.shape(node.inputs[0]), view.shape(node.inputs[3]) if len(node.inputs) > 3 else ()
    if queries is None or mask is None:
        return None
    if len(mask) < 2 or mask[-2] == 1:
        return {0: 1}
    return {0: 1, 3: len(mask) - 2} if mask[-2] == queries[1] else None


def _of_normalization(view: View, node: Node, axis: int) -> Axes | None:
    """Softmax and LayerNormalization, of axes behind the one that is cut. A Softmax that says no axis is of all from the second on below opset 13."""
    shape, first = view.shape(node.outputs[0]), int(node.attributes.get("axis", 1 if node.op_type == "Softmax" else -1))
    return {0: axis} if shape and axis < first % len(shape) else None


def _of_transpose(view: View, node: Node, axis: int) -> Axes | None:
    order = node.attributes.get("perm")
    return None if order is None else {0: int(order[axis])}


def _of_reshape(view: View, node: Node, axis: int) -> Axes | None:
    """What only joins or splits axes behind the one that is cut."""
    before, after = view.shape(node.inputs[0]), view.shape(node.outputs[0])
    if before is None or after is None or before[: axis + 1] != after[: axis + 1] or sum(not isinstance(size, int) for size in after[axis + 1 :]) > 1:
        return None
    return {0: axis} if 0 not in after[axis + 1 :] else None


def _sizes(shape: Shape, axis: int, count: int) -> np.ndarray:
    """Reshape's second input for `count` rows along an axis: the axes before it are copied."""
    def size(dim: Dim) -> int:
        return dim if isinstance(dim, int) else -1

    return np.array([*(0 for _ in shape[:axis]), count, *map(size, shape[axis + 1 :])], np.int64)


RULES: dict[tuple[str, str], Callable[[View, Node, int], Axes | None]] = {
    ("", "MatMul"): _of_product, ("", "Gemm"): _of_gemm, (ORTRAIN, "Attention"): _of_attention, ("", "LayerNormalization"): _of_normalization,
    ("", "Softmax"): _of_normalization, ("", "Transpose"): _of_transpose, ("", "Reshape"): _of_reshape,
}
