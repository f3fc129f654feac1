"""Attention as exporters write it: two products around a scaled, masked softmax, between transposes that bring the heads to the front and back.

As one operator it reads the heads where they lie, so that the transposes go, and keeps no matrix of scores for backward."""

from __future__ import annotations

from collections.abc import Iterator

from ortrain.fusion.graph_view import View
from ortrain.ir import Node
from ortrain.ops.registry.record import ORTRAIN

HEADS_FIRST, KEYS_LAST, SWAP = (0, 2, 1, 3), (0, 2, 3, 1), (0, 1, 3, 2)
"""[n, rows, heads, size] to [n, heads, rows, size], to [n, heads, size, rows], and between the two."""
HIGHEST_MASK_RANK = 4


def find(view: View) -> Iterator[tuple[Node, Node]]:
    """(transpose of the result, the Attention that stands for it)"""
    for softmax in view.nodes("Softmax"):
        found = _around(view, softmax)
        if found is not None:
            yield found


def _around(view: View, softmax: Node) -> tuple[Node, Node] | None:
    if softmax.attributes.get("axis", -1) not in (-1, 3):
        return None
    mixed = view.reader(softmax.outputs[0], "MatMul")
    if mixed is None or mixed.inputs[0] != softmax.outputs[0]:
        return None
    back = view.reader(mixed.outputs[0], "Transpose")
    v = _transposed(view, mixed.inputs[1], HEADS_FIRST)
    scores, mask = _without_mask(view, softmax.inputs[0])
    product, scale = _product(view, scores)
    if back is None or back.attributes.get("perm") != HEADS_FIRST or v is None or product is None or not _belongs(view, softmax.inputs[0]):
        return None
    left, of_q = view.factor(product.inputs[0])
    right, of_k = view.factor(product.inputs[1])
    q, k = _transposed(view, left, HEADS_FIRST), _transposed(view, right, KEYS_LAST)
    if q is None or k is None or mask and view.moves(mask):
        return None
    inputs = [q, k, v, *([mask] if mask else [])]
    return back, Node("Attention", inputs, [back.outputs[0]], back.name or mixed.name, ORTRAIN, {"scale": scale * of_q * of_k})


def _without_mask(view: View, value: str) -> tuple[str, str]:
    """(scores, mask) of their sum; no mask is ""."""
    total = view.maker(value, "Add")
    if total is not None:
        for scores, mask in view.operands(total):
            rank = view.rank(mask)
            if _product(view, scores)[0] is not None and rank is not None and rank <= HIGHEST_MASK_RANK and _belongs(view, scores):
                return scores, mask
    return value, ""


def _product(view: View, value: str) -> tuple[Node | None, float]:
    """(the product, a number) whose multiple a value is."""
    source, scale = view.factor(value)
    if source != value and not _belongs(view, source):
        return None, 1.0
    return view.maker(source, "MatMul"), scale


def _belongs(view: View, value: str) -> bool:
    """Whether nothing but the pattern reads a value."""
    return view.reader(value, "Mul", "Div", "Add", "Softmax") is not None


def _transposed(view: View, value: str, perm: tuple[int, ...]) -> str | None:
    """The value of which this is the transpose, by one node or, for the keys, by two."""
    node = view.maker(value, "Transpose")
    if node is None:
        return None
    if node.attributes.get("perm") == perm:
        return node.inputs[0]
    if perm == KEYS_LAST and node.attributes.get("perm") == SWAP:
        return _transposed(view, node.inputs[0], HEADS_FIRST)
    return None
