"""Fusion of GELU as exporters write it below opset 20: x/2 (1 + erf(x/√2)) or x/2 (1 + tanh(√(2/π) (x + 0.044715
x³))).

The fused operator takes one pass forward and one backward instead of five and ten."""

from __future__ import annotations

import math
from collections.abc import Iterator

from ortrain.fusion.graph_view import GraphView
from ortrain.ir import Node
from ortrain.ops.registry.record import MICROSOFT

TOLERANCE = 1e-6
"""Relative tolerance for matching constants, which are float32."""


def find(view: GraphView) -> Iterator[tuple[Node, Node]]:
    """Yield (last node, replacing Gelu or FastGelu)."""
    for op_type, argument, fused in (("Erf", _erf_argument, "Gelu"), ("Tanh", _tanh_argument, "FastGelu")):
        for node in view.nodes(op_type):
            x = argument(view, node.inputs[0])
            add = view.sole_consumer(node.outputs[0], "Add")
            if x is None or add is None or not any(view.scalar(other) == 1.0 for value, other in view.operands(add) if value == node.outputs[0]):
                continue
            last = _half_product(view, add.outputs[0], x)
            if last is not None:
                yield last, Node(fused, [x], [last.outputs[0]], last.name, MICROSOFT)


def _erf_argument(view: GraphView, value: str) -> str | None:
    """Return x if a value is x/√2 and has one consumer; else None."""
    x, factor = view.factor(value)
    return x if math.isclose(factor, math.sqrt(0.5), rel_tol=TOLERANCE) and view.consumer_count(value) == 1 else None


def _tanh_argument(view: GraphView, value: str) -> str | None:
    """Return x if a value is √(2/π) (x + 0.044715 x³) and it and its intermediate results have one consumer; else
    None."""
    total, factor = view.factor(value)
    add = view.producer(total, "Add")
    if add is None or not math.isclose(factor, math.sqrt(2 / math.pi), rel_tol=TOLERANCE) or view.consumer_count(value) != 1 or view.consumer_count(total) != 1:
        return None
    for x, other in view.operands(add):
        cube, factor = view.factor(other)
        if math.isclose(factor, 0.044715, rel_tol=TOLERANCE) and view.consumer_count(other) == 1 and _is_cube(view, cube, x):
            return x
    return None


def _is_cube(view: GraphView, value: str, x: str) -> bool:
    """Return whether a value is x³, by Pow or two multiplications, and has one consumer."""
    node = view.producer(value, "Pow", "Mul")
    if node is None or view.consumer_count(value) != 1:
        return False
    if node.op_type == "Pow":
        return node.inputs[0] == x and view.scalar(node.inputs[1]) == 3.0
    return any(first == x and (square := view.producer(second, "Mul")) is not None and square.inputs == [x, x] and view.consumer_count(second) == 1
               for first, second in view.operands(node))


def _half_product(view: GraphView, value: str, x: str) -> Node | None:
    """Return the node whose output is value * x / 2, with the factors in any order; None if there is none."""
    need_x, need_half = True, True
    while True:
        node = view.sole_consumer(value, "Mul")
        if node is None:
            return None
        other = node.inputs[1] if node.inputs[0] == value else node.inputs[0]
        source, number = view.factor(other)
        if need_x and other == x:
            need_x = False
        elif need_half and view.scalar(other) == 0.5:
            need_half = False
        elif need_x and need_half and source == x and number == 0.5:
            need_x = need_half = False
        else:
            return None
        if not need_x and not need_half:
            return node
        value = node.outputs[0]
