"""Fusion of SiLU as exporters write it below opset 24, x sigmoid(x): one pass forward and one backward instead of two
and four."""

from __future__ import annotations

from collections.abc import Iterator

from ortrain.fusion.graph_view import GraphView
from ortrain.ir import Node


def find(view: GraphView) -> Iterator[tuple[Node, Node]]:
    """Yield (multiplication, replacing Swish)."""
    for sigmoid in view.nodes("Sigmoid"):
        multiplication = view.sole_consumer(sigmoid.outputs[0], "Mul")
        if multiplication is not None and sorted(multiplication.inputs) == sorted((sigmoid.inputs[0], sigmoid.outputs[0])):
            yield multiplication, Node("Swish", [sigmoid.inputs[0]], [multiplication.outputs[0]], multiplication.name)
