"""Fusion of layer and RMS normalization as exporters write them without the operators.

The pattern is a deviation d, divided by the root of the mean of its squares plus epsilon, times a scale, plus a bias. d is x minus its mean for layer
normalization, and x itself for RMS normalization, which has no bias. Exporters write the division as Div, or as a product with a Reciprocal, with 1 / root, or
with a power of -1/2."""

from __future__ import annotations

from collections.abc import Iterator

from ortrain.fusion.graph_view import GraphView
from ortrain.ir import Node


def find(view: GraphView) -> Iterator[tuple[Node, Node]]:
    """Yield (last node, replacing LayerNormalization or SimplifiedLayerNormalization)."""
    for op_type in ("Sqrt", "Pow"):
        for root in view.nodes(op_type):
            exponent = 0.5 if op_type == "Sqrt" else view.scalar(root.inputs[1])
            match = _match(view, root, exponent == -0.5) if exponent in (0.5, -0.5) else None
            if match is not None:
                yield match
    for node in view.nodes("RMSNormalization"):
        (x, scale), axis = node.inputs, int(node.attributes.get("axis", -1))
        shape = view.shape(x)
        sizes = shape[axis % len(shape) :] if shape else ()
        if sizes and view.shape(scale) == sizes and str not in map(type, sizes) and view.dtype(x) == view.dtype(scale):
            attributes = {"axis": axis, "epsilon": float(node.attributes.get("epsilon", 1e-5))}
            yield node, Node("SimplifiedLayerNormalization", list(node.inputs), list(node.outputs), node.name, attributes=attributes)


def _match(view: GraphView, root: Node, is_inverse: bool) -> tuple[Node, Node] | None:
    """Return the match around a root, None if there is none. is_inverse: whether it is a power of -1/2."""
    variance, epsilon = _split_epsilon(view, root.inputs[0])
    mean_of_squares = view.producer(variance, "ReduceMean")
    square = view.producer(mean_of_squares.inputs[0], "Mul", "Pow") if mean_of_squares is not None else None
    if mean_of_squares is None or square is None or any(view.consumer_count(node.outputs[0]) != 1 for node in (square, mean_of_squares)):
        return None
    is_square = square.inputs[1] == square.inputs[0] if square.op_type == "Mul" else view.scalar(square.inputs[1]) == 2.0
    deviation, axes = square.inputs[0], _trailing_axes(view, mean_of_squares)
    quotient = _quotient(view, deviation, root, is_inverse)
    if not is_square or not axes or quotient is None:
        return None
    x = _centered(view, deviation, axes)
    last, scale = _scaled_or_shifted(view, quotient, "Mul", x or deviation, axes)
    if last is quotient:
        return None
    attributes = {"axis": -axes, "epsilon": epsilon}
    if not x:
        return last, Node("SimplifiedLayerNormalization", [deviation, scale], [last.outputs[0]], last.name, attributes=attributes)
    last, bias = _scaled_or_shifted(view, last, "Add", x, axes)
    return last, Node("LayerNormalization", [x, scale, *([bias] if bias else [])], [last.outputs[0]], last.name, attributes=attributes)


def _centered(view: GraphView, deviation: str, axes: int) -> str:
    """Return x if a value is x minus its mean over the last axes, which only the pattern reads; "" if it is not."""
    difference = view.producer(deviation, "Sub")
    mean = view.producer(difference.inputs[1], "ReduceMean") if difference is not None else None
    if difference is None or mean is None or view.consumer_count(deviation) != 2 or view.consumer_count(mean.outputs[0]) != 1:
        return ""
    return difference.inputs[0] if mean.inputs[0] == difference.inputs[0] and _trailing_axes(view, mean) == axes else ""


def _quotient(view: GraphView, deviation: str, root: Node, is_inverse: bool) -> Node | None:
    """Return the node that divides a deviation by a root, which nothing else reads; None if there is none."""
    divisor = root.outputs[0]
    if not is_inverse:
        division = view.sole_consumer(divisor, "Div")
        if division is not None and division.inputs == [deviation, divisor]:
            return division
        inverse = view.sole_consumer(divisor, "Reciprocal", "Div")
        if inverse is None or inverse.op_type == "Div" and view.scalar(inverse.inputs[0]) != 1.0:
            return None
        divisor = inverse.outputs[0]
    product = view.sole_consumer(divisor, "Mul")
    return product if product is not None and deviation in product.inputs else None


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
