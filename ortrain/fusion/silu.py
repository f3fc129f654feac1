"""SiLU said in two nodes, x sigmoid(x), as exporters write it below opset 24: one pass forward and one back instead of two and four."""

from __future__ import annotations

from collections.abc import Iterator

from ortrain.fusion.graph_view import View
from ortrain.ir import Node


def find(view: View) -> Iterator[tuple[Node, Node]]:
    """(product, the Swish that stands for it)"""
    for sigmoid in view.nodes("Sigmoid"):
        product = view.reader(sigmoid.outputs[0], "Mul")
        if product is not None and sorted(product.inputs) == sorted((sigmoid.inputs[0], sigmoid.outputs[0])):
            yield product, Node("Swish", [sigmoid.inputs[0]], [product.outputs[0]], product.name)
