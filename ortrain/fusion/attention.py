"""Fusion of attention as exporters write it: two matrix multiplications around a scaled, masked softmax, between
transposes of the heads.

The fused operator reads the heads in their original layout, so that the transposes are not needed, and stores no
matrix of scores for the backward pass."""

from __future__ import annotations

from collections.abc import Iterator

from ortrain.fusion.graph_view import GraphView
from ortrain.ir import Node
from ortrain.ops.registry.record import ORTRAIN

HEADS_FIRST, KEYS_LAST, SWAP = (0, 2, 1, 3), (0, 2, 3, 1), (0, 1, 3, 2)
"""Permutations of axes: [n, rows, heads, size] to [n, heads, rows, size], to [n, heads, size, rows], and between
these two."""
MAX_MASK_RANK = 4


def find(view: GraphView) -> Iterator[tuple[Node, Node]]:
    """Yield (transpose of the result, replacing Attention)."""
    for softmax in view.nodes("Softmax"):
        match = _match(view, softmax)
        if match is not None:
            yield match


def _match(view: GraphView, softmax: Node) -> tuple[Node, Node] | None:
    """Return the match around a softmax, None if there is none."""
    if softmax.attributes.get("axis", -1) not in (-1, 3):
        return None
    weighted = view.sole_consumer(softmax.outputs[0], "MatMul")
    if weighted is None or weighted.inputs[0] != softmax.outputs[0]:
        return None
    result = view.sole_consumer(weighted.outputs[0], "Transpose")
    v = _source_of_transpose(view, weighted.inputs[1], HEADS_FIRST)
    scores, mask = _split_mask(view, softmax.inputs[0])
    scores_matmul, scale = _scaled_matmul(view, scores)
    if result is None or result.attributes.get("perm") != HEADS_FIRST or v is None or scores_matmul is None or not _is_internal(view, softmax.inputs[0]):
        return None
    scaled_q, q_scale = view.factor(scores_matmul.inputs[0])
    scaled_k, k_scale = view.factor(scores_matmul.inputs[1])
    q, k = _source_of_transpose(view, scaled_q, HEADS_FIRST), _source_of_transpose(view, scaled_k, KEYS_LAST)
    if q is None or k is None or mask and view.needs_gradient(mask):
        return None
    inputs = [q, k, v, *([mask] if mask else [])]
    return result, Node("Attention", inputs, [result.outputs[0]], result.name or weighted.name, ORTRAIN, {"scale": scale * q_scale * k_scale})


def _split_mask(view: GraphView, value: str) -> tuple[str, str]:
    """Return (scores, mask) if a value is their sum, else (value, "")."""
    add = view.producer(value, "Add")
    if add is not None:
        for scores, mask in view.operands(add):
            rank = view.rank(mask)
            if _scaled_matmul(view, scores)[0] is not None and rank is not None and rank <= MAX_MASK_RANK and _is_internal(view, scores):
                return scores, mask
    return value, ""


def _scaled_matmul(view: GraphView, value: str) -> tuple[Node | None, float]:
    """Return (matrix multiplication, factor) if a value is a multiple of its result; the node is None if not."""
    source, scale = view.factor(value)
    if source != value and not _is_internal(view, source):
        return None, 1.0
    return view.producer(source, "MatMul"), scale


def _is_internal(view: GraphView, value: str) -> bool:
    """Return whether only one node reads a value, and that node may be a part of the pattern."""
    return view.sole_consumer(value, "Mul", "Div", "Add", "Softmax") is not None


def _source_of_transpose(view: GraphView, value: str, perm: tuple[int, ...]) -> str | None:
    """Return the value of which `value` is the transpose; the keys may be transposed by two nodes. None if it is no
    transpose."""
    node = view.producer(value, "Transpose")
    if node is None:
        return None
    if node.attributes.get("perm") == perm:
        return node.inputs[0]
    if perm == KEYS_LAST and node.attributes.get("perm") == SWAP:
        return _source_of_transpose(view, node.inputs[0], HEADS_FIRST)
    return None
