"""Fusion of layer normalization as exporters write it below opset 17.

The pattern has nine nodes: (x - mean) / sqrt(mean of squared differences + epsilon), times a scale, plus a bias."""

from __future__ import annotations

from collections.abc import Iterator

from ortrain.fusion.graph_view import GraphView
from ortrain.ir import Node


def find(view: GraphView) -> Iterator[tuple[Node, Node]]:
    """Yield (last node, replacing LayerNormalization)."""
    for root in view.nodes("Sqrt"):
        match = _match(view, root)
        if match is not None:
            yield match


def _match(view: GraphView, root: Node) -> tuple[Node, Node] | None:
    """Return the match around a square root, None if there is none."""
    variance, epsilon = _split_epsilon(view, root.inputs[0])
    mean_of_squares = view.producer(variance, "ReduceMean")
    square = view.producer(mean_of_squares.inputs[0], "Mul", "Pow") if mean_of_squares is not None else None
    difference = view.producer(square.inputs[0], "Sub") if square is not None else None
    mean = view.producer(difference.inputs[1], "ReduceMean") if difference is not None else None
    quotient = view.sole_consumer(root.outputs[0], "Div")
    if mean_of_squares is None or square is None or difference is None or mean is None or quotient is None:
        return None
    x, axes = difference.inputs[0], _trailing_axes(view, mean)
    is_square = square.inputs[1] == square.inputs[0] if square.op_type == "Mul" else view.scalar(square.inputs[1]) == 2.0
    is_same_input = mean.inputs[0] == x and quotient.inputs == [difference.outputs[0], root.outputs[0]] and axes == _trailing_axes(view, mean_of_squares)
    internal = (mean, square, mean_of_squares)
    if not axes or not is_square or not is_same_input or view.consumer_count(difference.outputs[0]) != 2:
        return None
    if any(view.consumer_count(node.outputs[0]) != 1 for node in internal):
        return None
    last, scale = _scaled_or_shifted(view, quotient, "Mul", x, axes)
    if last is quotient:
        return None
    last, bias = _scaled_or_shifted(view, last, "Add", x, axes)
    attributes = {"axis": -axes, "epsilon": epsilon}
    return last, Node("LayerNormalization", [x, scale, *([bias] if bias else [])], [last.outputs[0]], last.name, attributes=attributes)


def _split_epsilon(view: GraphView, value: str) -> tuple[str, float]:
    """Return (variance, epsilon) if a value is their sum, which only the square root reads; ("", 0) if it is not."""
    add = view.producer(value, "Add")
    if add is not None and view.consumer_count(value) == 1:
        for variance, other in view.operands(add):
            epsilon = view.scalar(other)
            if epsilon is not None and view.consumer_count(variance) == 1:
                return variance, epsilon
    return "", 0.0


def _trailing_axes(view: GraphView, mean: Node) -> int:
    """Return the number of trailing axes over which a mean is taken; 0 if it drops axes or is over others."""
    axes_given = view.constant(mean.inputs[1]) if len(mean.inputs) > 1 else mean.attributes.get("axes")
    rank = view.rank(mean.inputs[0])
    if axes_given is None or rank is None or not mean.attributes.get("keepdims", 1):
        return 0
    axes = sorted(int(axis) % rank for axis in axes_given)
    return len(axes) if axes == list(range(rank - len(axes), rank)) else 0


def _scaled_or_shifted(view: GraphView, node: Node, op_type: str, x: str, axes: int) -> tuple[Node, str]:
    """Return (consumer, operand) if the consumer of a node's output combines it with an operand of the normalized
    axes' shape.

    Without such a consumer return (node, "")."""
    consumer, shape = view.sole_consumer(node.outputs[0], op_type), view.shape(x)
    if consumer is not None and shape is not None:
        for value, other in view.operands(consumer):
            if value == node.outputs[0] and view.shape(other) == shape[-axes:] and str not in map(type, shape[-axes:]):
                return consumer, other
    return node, ""
