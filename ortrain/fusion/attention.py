"""Fusion of attention as exporters write it: two matrix multiplications around a scaled, masked softmax, between
transposes of the heads.

The fused operator reads the heads in their original layout, so that the transposes are not needed, and stores no
matrix of scores for the backward pass. Queries, keys and values may be the parts of one tensor whose heads are
transposed together, as vision transformers have them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ortrain.fusion.graph_view import GraphView
from ortrain.ir import Node
from ortrain.ops.registry.record import ORTRAIN

HEADS_FIRST, KEYS_LAST, SWAP = (0, 2, 1, 3), (0, 2, 3, 1), (0, 1, 3, 2)
"""Permutations of axes: [n, rows, heads, size] to [n, heads, rows, size], to [n, heads, size, rows], and between
these two."""
PARTS_FIRST = (2, 0, 3, 1, 4)
"""Permutation of the axes of packed parts: [n, rows, parts, heads, size] to [parts, n, heads, rows, size]."""
MAX_MASK_RANK = 4


@dataclass(frozen=True, slots=True)
class Heads:
    """Heads in their original layout: a value [n, rows, heads, size], or a part of one [n, rows, parts, heads, size]."""

    value: str
    part: int | None = None

    def nodes(self, view: GraphView, result: str) -> list[Node]:
        """Return the nodes that compute [n, rows, heads, size], named `result`, from a part."""
        if self.part is None:
            return []
        index = view.unique_name(f"{result}_index")
        return [Node("Constant", [], [index], attributes={"value": np.array(self.part, np.int64)}),
                Node("Gather", [self.value, index], [result], attributes={"axis": 2})]


def find(view: GraphView) -> Iterator[tuple[Node, list[Node]]]:
    """Yield (transpose of the result, replacing Attention and the nodes of its operands)."""
    for softmax in view.nodes("Softmax"):
        match = _match(view, softmax)
        if match is not None:
            yield match


def _match(view: GraphView, softmax: Node) -> tuple[Node, list[Node]] | None:
    """Return the match around a softmax, None if there is none."""
    if softmax.attributes.get("axis", -1) not in (-1, 3):
        return None
    weighted = view.sole_consumer(softmax.outputs[0], "MatMul")
    if weighted is None or weighted.inputs[0] != softmax.outputs[0]:
        return None
    result = view.sole_consumer(weighted.outputs[0], "Transpose")
    v = _heads(view, weighted.inputs[1], HEADS_FIRST)
    scores, mask = _split_mask(view, softmax.inputs[0])
    scores_matmul, scale = _scaled_matmul(view, scores)
    if result is None or result.attributes.get("perm") != HEADS_FIRST or v is None or scores_matmul is None or not _is_internal(view, softmax.inputs[0]):
        return None
    scaled_q, q_scale = view.factor(scores_matmul.inputs[0])
    scaled_k, k_scale = view.factor(scores_matmul.inputs[1])
    q, k = _heads(view, scaled_q, HEADS_FIRST), _heads(view, scaled_k, KEYS_LAST)
    if q is None or k is None or mask and view.needs_gradient(mask):
        return None
    names = [heads.value if heads.part is None else view.unique_name(f"{heads.value}_part") for heads in (q, k, v)]
    nodes = [node for heads, name in zip((q, k, v), names, strict=True) for node in heads.nodes(view, name)]
    inputs = [*names, *([mask] if mask else [])]
    fused = Node("Attention", inputs, [result.outputs[0]], result.name or weighted.name, ORTRAIN, {"scale": scale * q_scale * k_scale})
    return result, [*nodes, fused]


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


def _heads(view: GraphView, value: str, perm: tuple[int, ...]) -> Heads | None:
    """Return the heads of which `value` is the transpose; the keys may be transposed by two nodes. None if it is none."""
    node = view.producer(value, "Transpose")
    if node is not None and node.attributes.get("perm") == perm:
        return Heads(node.inputs[0])
    if perm == KEYS_LAST:
        return _heads(view, node.inputs[0], HEADS_FIRST) if node is not None and node.attributes.get("perm") == SWAP else None
    return _packed_heads(view, value)


def _packed_heads(view: GraphView, value: str) -> Heads | None:
    """Return the heads of which `value` [n, heads, rows, size] is one of several that were transposed together."""
    parts, part = _element_of_first_axis(view, value)
    node = view.producer(parts, "Transpose")
    return Heads(node.inputs[0], part) if node is not None and node.attributes.get("perm") == PARTS_FIRST else None


def _element_of_first_axis(view: GraphView, value: str) -> tuple[str, int]:
    """Return (x, i) if a value is x[i], by Gather or by Split and Squeeze, as exporters write indices and torch.unbind; ("", 0) if not."""
    gather, squeeze = view.producer(value, "Gather"), view.producer(value, "Squeeze")
    if gather is not None and gather.attributes.get("axis", 0) == 0:
        index = view.constant(gather.inputs[1])
        if index is not None and index.ndim == 0 and index >= 0:
            return gather.inputs[0], int(index)
    if squeeze is not None:
        axes = squeeze.attributes.get("axes") if len(squeeze.inputs) < 2 else view.constant(squeeze.inputs[1])
        split = view.producer_of_output(squeeze.inputs[0], "Split")
        if axes is not None and list(axes) == [0] and split is not None and split.attributes.get("axis", 0) == 0:
            sizes = [(view.shape(name) or (None,))[0] for name in split.outputs]
            if all(size == 1 for size in sizes):
                return split.inputs[0], split.outputs.index(squeeze.inputs[0])
    return "", 0
