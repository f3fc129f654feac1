"""GELU said in single nodes, x/2 (1 + erf(x/√2)) or x/2 (1 + tanh(√(2/π) (x + 0.044715 x³))), as exporters write it below opset 20: one pass forward and one
back instead of five and ten."""

from __future__ import annotations

import math
from collections.abc import Iterator

from ortrain.fusion.graph_view import View
from ortrain.ir import Node
from ortrain.ops.registry.record import MICROSOFT

TOLERANCE = 1e-6
"""Relative, of constants: they are float32."""


def find(view: View) -> Iterator[tuple[Node, Node]]:
    """(last node, the Gelu or FastGelu that stands for it)"""
    for op_type, argument, fused in (("Erf", _argument_of_erf, "Gelu"), ("Tanh", _argument_of_tanh, "FastGelu")):
        for node in view.nodes(op_type):
            x = argument(view, node.inputs[0])
            plus = view.reader(node.outputs[0], "Add")
            if x is None or plus is None or not any(view.scalar(other) == 1.0 for value, other in view.operands(plus) if value == node.outputs[0]):
                continue
            last = _times_half_of(view, plus.outputs[0], x)
            if last is not None:
                yield last, Node(fused, [x], [last.outputs[0]], last.name, MICROSOFT)


def _argument_of_erf(view: View, value: str) -> str | None:
    """x where a value is x/√2, and nothing else reads it."""
    x, factor = view.factor(value)
    return x if math.isclose(factor, math.sqrt(0.5), rel_tol=TOLERANCE) and view.readers(value) == 1 else None


def _argument_of_tanh(view: View, value: str) -> str | None:
    """x where a value is √(2/π) (x + 0.044715 x³), and nothing else reads it or what it is made of."""
    total, factor = view.factor(value)
    plus = view.maker(total, "Add")
    if plus is None or not math.isclose(factor, math.sqrt(2 / math.pi), rel_tol=TOLERANCE) or view.readers(value) != 1 or view.readers(total) != 1:
        return None
    for x, other in view.operands(plus):
        cube, factor = view.factor(other)
        if math.isclose(factor, 0.044715, rel_tol=TOLERANCE) and view.readers(other) == 1 and _is_cube(view, cube, x):
            return x
    return None


def _is_cube(view: View, value: str, x: str) -> bool:
    """Whether a value is x³, by Pow or by two products, and read once."""
    node = view.maker(value, "Pow", "Mul")
    if node is None or view.readers(value) != 1:
        return False
    if node.op_type == "Pow":
        return node.inputs[0] == x and view.scalar(node.inputs[1]) == 3.0
    return any(first == x and (square := view.maker(second, "Mul")) is not None and square.inputs == [x, x] and view.readers(second) == 1
               for first, second in view.operands(node))


def _times_half_of(view: View, value: str, x: str) -> Node | None:
    """The node whose output is value * x / 2, in any order of the factors."""
    need_x, need_half = True, True
    while True:
        node = view.reader(value, "Mul")
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
