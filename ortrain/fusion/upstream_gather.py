"""Upstream Gather: moves a Gather of few rows before row-wise operators, so that unused rows are not computed.

Transformer classifiers, for example, read one token of the last layer. Keys and values are computed for all tokens,
but queries, dense layers and normalizations only for that one, which saves 10/12 of the layer's matrix
multiplications."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np

from ortrain.fusion.graph_view import GraphView
from ortrain.ir import Dim, Node, Shape
from ortrain.ops.registry.heads import ORDERS, ROWS_FIRST
from ortrain.ops.registry.record import ORTRAIN, canonical_domain, is_elementwise

MATMULS = {("", "MatMul"), ("", "Gemm"), (ORTRAIN, "Attention")}
"""Operators of which a rewrite must include at least one: without, it would only replace one Gather by several."""
MIN_REDUCTION = 2
"""Minimum ratio of all rows to gathered rows, where the number of rows is known."""

GatheredAxes = dict[int, int]
"""Index of an input to gather -> the axis to gather along."""


@dataclass
class RowWiseRegion:
    """The nodes before a Gather of which only the gathered rows are needed.

    rows: gathered indices, [count]. nodes: id of a node -> (node, axes of its inputs, axis of its output)."""

    rows: np.ndarray
    nodes: dict[int, tuple[Node, GatheredAxes, int]] = field(default_factory=dict)


def find(view: GraphView) -> Iterator[tuple[Node, list[Node]]]:
    """Yield (Gather, replacing nodes)."""
    for gather in view.nodes("Gather"):
        rows, shape = view.constant(gather.inputs[1]), view.shape(gather.inputs[0])
        if rows is None or rows.ndim > 1 or not rows.size or not shape:
            continue
        axis = int(gather.attributes.get("axis", 0)) % len(shape)
        size = shape[axis]
        if isinstance(size, int) and size < MIN_REDUCTION * rows.size:
            continue
        region = _find_region(view, gather, axis, rows.reshape(-1))
        if any((canonical_domain(node.domain), node.op_type) in MATMULS for node, _, _ in region.nodes.values()):
            yield gather, _rewrite(view, gather, axis, rows, region)


def _find_region(view: GraphView, gather: Node, axis: int, rows: np.ndarray) -> RowWiseRegion:
    """Walk back from the Gather as long as every consumer of a value needs only the gathered rows."""
    region = RowWiseRegion(rows)
    requests = {gather.inputs[0]: Counter([axis])}          # value -> axis -> number of consumers that need only the rows
    for node in reversed(view.graph.nodes):
        requested_axes = requests.get(node.outputs[0], Counter())
        if len(requested_axes) != 1 or any(map(view.consumer_count, node.outputs[1:])):
            continue
        (output_axis, count), = requested_axes.items()
        axes = _gathered_axes(view, node, output_axis) if view.consumer_count(node.outputs[0]) == count else None
        if axes:
            region.nodes[id(node)] = node, axes, output_axis
            for name in dict.fromkeys(node.inputs):
                input_axes = {axes.get(index) for index, other in enumerate(node.inputs) if other == name}
                if len(input_axes) == 1 and (input_axis := input_axes.pop()) is not None:
                    requests.setdefault(name, Counter())[input_axis] += 1
    return region


def _rewrite(view: GraphView, gather: Node, axis: int, rows: np.ndarray, region: RowWiseRegion) -> list[Node]:
    """Return the nodes of a region on gathered rows, with Gathers of the region's inputs."""
    nodes: list[Node] = []
    names: dict[tuple[str, int], str] = {}

    def constant(array: np.ndarray) -> str:
        nodes.append(Node("Constant", [], [view.unique_name("rows")], attributes={"value": array}))
        return nodes[-1].outputs[0]

    index = constant(region.rows)
    for node, axes, output_axis in reversed(region.nodes.values()):
        for i, input_axis in axes.items():
            if (node.inputs[i], input_axis) not in names:
                names[node.inputs[i], input_axis] = view.unique_name(f"{node.inputs[i]}_rows")
                nodes.append(Node("Gather", [node.inputs[i], index], [names[node.inputs[i], input_axis]], attributes={"axis": input_axis}))
        copy = node.copy()
        copy.inputs = [names[name, axes[i]] if i in axes else name for i, name in enumerate(node.inputs)]
        if node.op_type == "Reshape":
            copy.inputs[1], copy.attributes = constant(_reshape_target(view.shape(node.outputs[0]) or (), output_axis, region.rows.size)), {}
        copy.outputs = [names.setdefault((node.outputs[0], output_axis), view.unique_name(f"{node.outputs[0]}_rows"))]
        nodes.append(copy)
    gathered = names[gather.inputs[0], axis]
    if rows.ndim:
        nodes.append(Node("Identity", [gathered], list(gather.outputs), gather.name))
    else:
        nodes.append(Node("Gather", [gathered, constant(np.array(0, np.int64))], list(gather.outputs), gather.name, attributes={"axis": axis}))
    return nodes


# ---- rules per operator: the axes of the inputs to gather when only some rows of the output are needed, None if the operator is not row-wise


def _gathered_axes(view: GraphView, node: Node, axis: int) -> GatheredAxes | None:
    kind = canonical_domain(node.domain), node.op_type
    if kind == ("", "Identity") or is_elementwise(node):
        return _broadcast_axes(view, node, range(len(node.inputs)), axis)
    rule = RULES.get(kind)
    return None if rule is None else rule(view, node, axis)


def _broadcast_axes(view: GraphView, node: Node, inputs: range, axis: int) -> GatheredAxes | None:
    """Return the axes for broadcast inputs: those with the output's size along the axis are gathered, those with size
    1 are not."""
    shape, axes = view.shape(node.outputs[0]), GatheredAxes()
    for index in inputs:
        input_shape = view.shape(node.inputs[index])
        if input_shape is None or shape is None:
            return None
        input_axis = axis - len(shape) + len(input_shape)
        if input_axis < 0 or input_shape[input_axis] == 1:
            continue
        if input_shape[input_axis] != shape[axis]:
            return None
        axes[index] = input_axis
    return axes


def _matmul_axes(view: GraphView, node: Node, axis: int) -> GatheredAxes | None:
    shapes = [view.shape(name) for name in (*node.inputs, node.outputs[0])]
    if any(shape is None or len(shape) < 2 for shape in shapes):
        return None
    a_rank, _, y_rank = (len(shape or ()) for shape in shapes)
    if axis < y_rank - 2:
        return _broadcast_axes(view, node, range(2), axis)
    return {0: a_rank - 2} if axis == y_rank - 2 else None


def _gemm_axes(view: GraphView, node: Node, axis: int) -> GatheredAxes | None:
    if axis != 0 or node.attributes.get("transA", 0):
        return None
    addend = _broadcast_axes(view, node, range(2, len(node.inputs)), 0)
    return None if addend is None else {0: 0, **addend}


def _attention_axes(view: GraphView, node: Node, axis: int) -> GatheredAxes | None:
    """Return the axes of the queries and of their rows in the mask [.., rows, keys]; keys and values keep all rows."""
    orders = node.attributes.get(ORDERS, ROWS_FIRST)
    if axis != 1 + orders[3]:
        return None
    rows = 1 + orders[0]
    if len(node.inputs) < 4:
        return {0: rows}
    queries, mask = view.shape(node.inputs[0]), view.shape(node.inputs[3])
    if queries is None or mask is None:
        return None
    if len(mask) < 2 or mask[-2] == 1:
        return {0: rows}
    return {0: rows, 3: len(mask) - 2} if mask[-2] == queries[rows] else None


def _normalization_axes(view: GraphView, node: Node, axis: int) -> GatheredAxes | None:
    """Return the axes for a Softmax or LayerNormalization over axes behind the gathered one.

    Below opset 13 the default axis of Softmax is 1, with normalization over all axes from there on."""
    shape, first = view.shape(node.outputs[0]), int(node.attributes.get("axis", 1 if node.op_type == "Softmax" else -1))
    return {0: axis} if shape and axis < first % len(shape) else None


def _transpose_axes(view: GraphView, node: Node, axis: int) -> GatheredAxes | None:
    order = node.attributes.get("perm")
    return None if order is None else {0: int(order[axis])}


def _reshape_axes(view: GraphView, node: Node, axis: int) -> GatheredAxes | None:
    """Return the axes for a Reshape that only merges or splits axes behind the gathered one."""
    before, after = view.shape(node.inputs[0]), view.shape(node.outputs[0])
    if before is None or after is None or before[: axis + 1] != after[: axis + 1] or sum(not isinstance(size, int) for size in after[axis + 1 :]) > 1:
        return None
    return {0: axis} if 0 not in after[axis + 1 :] else None


def _reshape_target(shape: Shape, axis: int, count: int) -> np.ndarray:
    """Return the second input of a Reshape to `count` rows along an axis; the sizes before it are copied (0), a
    dynamic one is -1."""
    def size(dim: Dim) -> int:
        return dim if isinstance(dim, int) else -1

    return np.array([*(0 for _ in shape[:axis]), count, *map(size, shape[axis + 1 :])], np.int64)


RULES: dict[tuple[str, str], Callable[[GraphView, Node, int], GatheredAxes | None]] = {
    ("", "MatMul"): _matmul_axes, ("", "Gemm"): _gemm_axes, (ORTRAIN, "Attention"): _attention_axes, ("", "LayerNormalization"): _normalization_axes,
    ("", "Softmax"): _normalization_axes, ("", "Transpose"): _transpose_axes, ("", "Reshape"): _reshape_axes,
}
