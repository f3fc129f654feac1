"""Layer normalization said in nine nodes, as exporters write it below opset 17: (x - mean) / sqrt(mean of squares + epsilon), times a scale, plus a bias."""

from __future__ import annotations

from collections.abc import Iterator

from ortrain.fusion.graph_view import View
from ortrain.ir import Node


def find(view: View) -> Iterator[tuple[Node, Node]]:
    """(last node, the LayerNormalization that stands for it)"""
    for root in view.nodes("Sqrt"):
        found = _around(view, root)
        if found is not None:
            yield found


def _around(view: View, root: Node) -> tuple[Node, Node] | None:
    variance, epsilon = _with_epsilon(view, root.inputs[0])
    mean_of_squares = view.maker(variance, "ReduceMean")
    square = view.maker(mean_of_squares.inputs[0], "Mul", "Pow") if mean_of_squares is not None else None
    difference = view.maker(square.inputs[0], "Sub") if square is not None else None
    mean = view.maker(difference.inputs[1], "ReduceMean") if difference is not None else None
    quotient = view.reader(root.outputs[0], "Div")
    if mean_of_squares is None or square is None or difference is None or mean is None or quotient is None:
        return None
    x, axes = difference.inputs[0], _trailing_axes(view, mean)
    is_square = square.inputs[1] == square.inputs[0] if square.op_type == "Mul" else view.scalar(square.inputs[1]) == 2.0
    of_one = mean.inputs[0] == x and quotient.inputs == [difference.outputs[0], root.outputs[0]] and axes == _trailing_axes(view, mean_of_squares)
    inner = (mean, square, mean_of_squares)
    if not axes or not is_square or not of_one or view.readers(difference.outputs[0]) != 2 or any(view.readers(node.outputs[0]) != 1 for node in inner):
        return None
    last, scale = _affine(view, quotient, "Mul", x, axes)
    if last is quotient:
        return None
    last, bias = _affine(view, last, "Add", x, axes)
    attributes = {"axis": -axes, "epsilon": epsilon}
    return last, Node("LayerNormalization", [x, scale, *([bias] if bias else [])], [last.outputs[0]], last.name, attributes=attributes)


def _with_epsilon(view: View, value: str) -> tuple[str, float]:
    """(variance, epsilon) of their sum, which nothing but the root reads; no epsilon is no match."""
    total = view.maker(value, "Add")
    if total is not None and view.readers(value) == 1:
        for variance, other in view.operands(total):
            epsilon = view.scalar(other)
            if epsilon is not None and view.readers(variance) == 1:
                return variance, epsilon
    return "", 0.0


def _trailing_axes(view: View, mean: Node) -> int:
    """How many of the last axes a mean is over, all of which it keeps; 0 for any other mean."""
    given = view.array(mean.inputs[1]) if len(mean.inputs) > 1 else mean.attributes.get("axes")
    rank = view.rank(mean.inputs[0])
    if given is None or rank is None or not mean.attributes.get("keepdims", 1):
        return 0
    axes = sorted(int(axis) % rank for axis in given)
    return len(axes) if axes == list(range(rank - len(axes), rank)) else 0


def _affine(view: View, node: Node, op_type: str, x: str, axes: int) -> tuple[Node, str]:
    """The node that scales or shifts what a node gives by a value as large as the normalized axes, and that value; the node itself where there is none."""
    after, shape = view.reader(node.outputs[0], op_type), view.shape(x)
    if after is not None and shape is not None:
        for value, other in view.operands(after):
            if value == node.outputs[0] and view.shape(other) == shape[-axes:] and str not in map(type, shape[-axes:]):
                return after, other
    return node, ""
