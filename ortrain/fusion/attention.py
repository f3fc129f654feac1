"""Fusion of attention as exporters write it: two matrix multiplications around a scaled, masked softmax.

The fused operator stores no matrix of scores for the backward pass. It reads heads where they are: before rows, as products take them, or after, where a
transpose follows that is not needed then. Queries, keys and values may be the parts of one tensor whose heads are transposed together, as vision transformers
have them, and keys and values that are repeated for groups of queries are read once for all of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ortrain.fusion.graph_view import GraphView
from ortrain.ir import Dim, Node
from ortrain.ops.registry.heads import ORDERS
from ortrain.ops.registry.record import ORTRAIN

HEADS_FIRST, KEYS_LAST, SWAP = (0, 2, 1, 3), (0, 2, 3, 1), (0, 1, 3, 2)
"""Permutations of axes: [n, rows, heads, size] to [n, heads, rows, size], to [n, heads, size, rows], and between
these two."""
PARTS_FIRST = (2, 0, 3, 1, 4)
"""Permutation of the axes of packed parts: [n, rows, parts, heads, size] to [parts, n, heads, rows, size]."""
MAX_MASK_RANK = 4


@dataclass(frozen=True, slots=True)
class Heads:
    """Heads where they are in memory: a value [n, rows, heads, size] or, with heads before rows, [n, heads, rows, size]; or a part of a value
    [n, rows, parts, heads, size]."""

    value: str
    part: int | None = None
    heads_first: bool = False

    def nodes(self, view: GraphView, result: str) -> list[Node]:
        """Return the nodes that compute [n, rows, heads, size], named `result`, from a part."""
        if self.part is None:
            return []
        index = view.unique_name(f"{result}_index")
        return [Node("Constant", [], [index], attributes={"value": np.array(self.part, np.int64)}),
                Node("Gather", [self.value, index], [result], attributes={"axis": 2})]

    def counts(self, view: GraphView) -> tuple[Dim, Dim, Dim] | None:
        """Return the number of samples, heads and rows, None if they are unknown."""
        shape = view.shape(self.value)
        if shape is None or len(shape) < 4:
            return None
        return (shape[0], shape[1], shape[2]) if self.heads_first else (shape[0], shape[-2], shape[1])


def find(view: GraphView) -> Iterator[tuple[Node, list[Node]]]:
    """Yield (node of the result, replacing Attention and the nodes of its operands)."""
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
    scores, mask = _split_mask(view, softmax.inputs[0])
    scores_matmul, scale = _scaled_matmul(view, scores)
    if scores_matmul is None or not _is_internal(view, softmax.inputs[0]) or mask and view.needs_gradient(mask):
        return None
    scaled_q, q_scale = view.factor(scores_matmul.inputs[0])
    scaled_k, k_scale = view.factor(scores_matmul.inputs[1])
    operands = _operands(view, scaled_q, scaled_k, weighted.inputs[1])
    if operands is None or mask and not _mask_fits(view, mask, *operands[:2]):
        return None
    transpose = view.sole_consumer(weighted.outputs[0], "Transpose")
    result = transpose if transpose is not None and transpose.attributes.get("perm") == HEADS_FIRST else weighted
    names = [heads.value if heads.part is None else view.unique_name(f"{heads.value}_part") for heads in operands]
    nodes = [node for heads, name in zip(operands, names, strict=True) for node in heads.nodes(view, name)]
    orders = (*(int(heads.heads_first) for heads in operands), int(result is weighted))
    attributes = {"scale": scale * q_scale * k_scale} | ({ORDERS: orders} if any(orders) else {})
    fused = Node("Attention", [*names, *([mask] if mask else [])], [result.outputs[0]], result.name or weighted.name, ORTRAIN, attributes)
    return result, [*nodes, fused]


def _operands(view: GraphView, q: str, k: str, v: str) -> tuple[Heads, Heads, Heads] | None:
    """Return the heads of queries, keys and values, None where their products broadcast samples or heads, or may do so."""
    queries, keys, values = _heads(view, q), _heads_of_keys(view, k), _heads(view, v)
    if queries is None or keys is None or values is None:
        return None
    shared_keys, shared_values = _repeated(view, keys), _repeated(view, values)
    if shared_keys is not None and shared_values is not None and _are_compatible(view, queries, shared_keys, shared_values):
        return queries, shared_keys, shared_values
    return (queries, keys, values) if _are_compatible(view, queries, keys, values) else None


def _are_compatible(view: GraphView, queries: Heads, keys: Heads, values: Heads) -> bool:
    """Return whether keys and values are of the same samples as the queries, and of heads of which each belongs to as many heads of queries.

    Heads that transposes put before rows are taken to be so where sizes are unknown."""
    by_rows = not any(heads.heads_first for heads in (queries, keys, values))
    of_queries, of_keys, of_values = (heads.counts(view) for heads in (queries, keys, values))
    if of_queries is None or of_keys is None or of_values is None:
        return by_rows

    def agree(a: Dim, b: Dim) -> bool:
        return a == b or by_rows and not (isinstance(a, int) and isinstance(b, int))

    (n, heads, _), shared = of_queries, of_keys[1]
    divides = isinstance(heads, int) and isinstance(shared, int) and shared > 0 and heads % shared == 0
    return all(map(agree, of_keys, of_values)) and agree(n, of_keys[0]) and (divides or agree(heads, shared))


def _mask_fits(view: GraphView, mask: str, queries: Heads, keys: Heads) -> bool:
    """Return whether a mask is broadcast to the scores, and not the scores to the mask, as far as sizes are known."""
    shape, of_queries, of_keys = view.shape(mask), queries.counts(view), keys.counts(view)
    if shape is None or of_queries is None or of_keys is None:
        return True
    pairs = zip(reversed(shape), reversed((*of_queries, of_keys[2])), strict=False)
    return all(size == 1 or size == of_scores or not (isinstance(size, int) and isinstance(of_scores, int)) for size, of_scores in pairs)


def _repeated(view: GraphView, heads: Heads) -> Heads | None:
    """Return the heads that were repeated, each several times in a row, to get the given ones; None if they were not.

    They are repeated by Unsqueeze, Expand and Reshape, or by Gather, as [n, heads, rows, size]."""
    if not heads.heads_first:
        return None
    gather = view.producer(heads.value, "Gather")
    if gather is not None and gather.attributes.get("axis", 0) == 1:
        index, shape = view.constant(gather.inputs[1]), view.shape(gather.inputs[0])
        if index is None or index.ndim != 1 or shape is None or len(shape) != 4 or not isinstance(shape[1], int) or not shape[1]:
            return None
        return _heads(view, gather.inputs[0]) if np.array_equal(index, np.arange(shape[1]).repeat(len(index) // shape[1])) else None
    reshape = view.producer(heads.value, "Reshape")
    expand = None if reshape is None else view.producer(reshape.inputs[0], "Expand")
    unsqueeze = None if expand is None else view.producer(expand.inputs[0], "Unsqueeze")
    if expand is None or unsqueeze is None:
        return None
    once, repeated, joined = view.shape(unsqueeze.inputs[0]), view.shape(expand.outputs[0]), view.shape(heads.value)
    if once is None or repeated is None or joined is None or len(once) != 4 or _axes(view, unsqueeze) != [2]:
        return None
    shared, times = repeated[1:3]
    if once != (*repeated[:2], *repeated[3:]) or not (isinstance(shared, int) and isinstance(times, int)) or joined != (once[0], shared * times, *once[2:]):
        return None
    return _heads(view, unsqueeze.inputs[0])


def _axes(view: GraphView, node: Node) -> list[int] | None:
    """Return the axes of Squeeze or Unsqueeze, None if they are unknown."""
    axes = node.attributes.get("axes") if len(node.inputs) < 2 else view.constant(node.inputs[1])
    return None if axes is None else [int(axis) for axis in np.ravel(axes)]


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


def _heads(view: GraphView, value: str) -> Heads | None:
    """Return the heads that a value [n, heads, rows, size] has; None if it has no four axes."""
    node = view.producer(value, "Transpose")
    if node is not None and node.attributes.get("perm") == HEADS_FIRST:
        return Heads(node.inputs[0])
    return _packed_heads(view, value) or (Heads(value, heads_first=True) if view.rank(value) == 4 else None)


def _heads_of_keys(view: GraphView, value: str) -> Heads | None:
    """Return the heads of which a value [n, heads, size, keys] is the transpose, by one or two nodes; None if it is none."""
    node = view.producer(value, "Transpose")
    if node is None or node.attributes.get("perm") not in (KEYS_LAST, SWAP):
        return None
    return Heads(node.inputs[0]) if node.attributes.get("perm") == KEYS_LAST else _heads(view, node.inputs[0])


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
        split = view.producer_of_output(squeeze.inputs[0], "Split")
        if _axes(view, squeeze) == [0] and split is not None and split.attributes.get("axis", 0) == 0:
            sizes = [(view.shape(name) or (None,))[0] for name in split.outputs]
            if all(size == 1 for size in sizes):
                return split.inputs[0], split.outputs.index(squeeze.inputs[0])
    return "", 0
