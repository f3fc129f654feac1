"""GELU said in five nodes, x/2 (1 + erf(x/√2)), as exporters write it below opset 20: one pass forward and one back instead of five and ten."""

from __future__ import annotations

import math
from collections.abc import Iterator

from ortrain.fusion.view import View
from ortrain.ir import Node
from ortrain.ops.record import MICROSOFT

TOLERANCE = 1e-6
"""Relative, of constants: they are float32."""


def find(view: View) -> Iterator[tuple[Node, Node]]:
    """(last node, the Gelu that stands for it)"""
    for erf in view.nodes("Erf"):
        x, factor = view.factor(erf.inputs[0])
        if not math.isclose(factor, math.sqrt(0.5), rel_tol=TOLERANCE) or view.reader(erf.inputs[0], "Erf") is None:
            continue
        plus = view.reader(erf.outputs[0], "Add")
        if plus is None or not any(view.scalar(other) == 1.0 for value, other in view.operands(plus) if value == erf.outputs[0]):
            continue
        last = _times_half_of(view, plus.outputs[0], x)
        if last is not None:
            yield last, Node("Gelu", [x], [last.outputs[0]], last.name, MICROSOFT)


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
