"""Nodes that decompositions of attention share: heads, positions, keys of earlier positions.

Shapes: n sequences, s query positions, t keys, h heads. A value is [n, s, h size] or, split into heads, [n, h, s, size]."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ortrain.dtypes import NUMBERS
from ortrain.ir import Dim
from ortrain.ops.registry.node_builder import NodeBuilder
from ortrain.ops.registry.record import InferenceContext

MASKED = float(np.finfo(np.float32).min)
"""Added to the scores of later keys in causal attention; padding_mask uses the node's mask_filter_value."""
SWAP_HEADS = (0, 2, 1, 3)
"""Permutation between [n, s, h, size] and [n, h, s, size]."""


def static_size(c: InferenceContext, size: Dim, what: str) -> int:
    """Return a size. Raises ShapeInferenceError when it is a symbol. what: names the size in the message."""
    if not isinstance(size, int):
        raise c.error(f"expected {what} that is known, got {size!r}")
    return size


def size_of(g: NodeBuilder, value: str, axis: int) -> str:
    """Return the size of a value along an axis, as an int64 scalar."""
    return g.op("Gather", g.shape_of(value), g.constant(np.array(axis, np.int64)))


def positions(g: NodeBuilder, length: str) -> str:
    """Return the int64 vector 0, 1, …, length - 1. length: an int64 scalar."""
    return g.op("Range", g.constant(np.array(0, np.int64)), length, g.constant(np.array(1, np.int64)))


def split(g: NodeBuilder, value: str, sizes: Sequence[int]) -> list[str]:
    """Split a value along its last axis into parts of the given sizes."""
    axis, parts = g.rank(value) - 1, [True] * len(sizes)
    if g.opset < 13:
        return g.ops("Split", value, outputs=parts, axis=axis, split=tuple(sizes))
    return g.ops("Split", value, g.constant(list(sizes)), outputs=parts, axis=axis)


def heads_first(g: NodeBuilder, value: str, heads: int) -> str:
    """Split [n, s, heads size] into heads: [n, heads, s, size]."""
    return g.op("Transpose", g.op("Reshape", value, g.constant([0, 0, heads, -1])), perm=SWAP_HEADS)


def heads_last(g: NodeBuilder, value: str) -> str:
    """Join the heads of [n, heads, s, size]: [n, s, heads size]."""
    return g.op("Reshape", g.op("Transpose", value, perm=SWAP_HEADS), g.constant([0, 0, -1]))


def add_optional(g: NodeBuilder, first: str, second: str) -> str:
    """Return the sum of two values, or the only one if the other is absent (""); "" if both are."""
    return g.op("Add", first, second) if first and second else first or second


def weighted_values(g: NodeBuilder, q: str, k: str, v: str, mask: str, scale: float, precision: str = "") -> str:
    """Return softmax(scale q k' + mask) v of values split into heads: [n, h, s, width].

    mask: what to add to the scores, "" for nothing. precision: the type in which the softmax is computed, "" for that of the queries. The node's `softcap` c
    replaces scores x by c tanh(x / c)."""
    scores = g.op("Mul", g.op("MatMul", q, g.op("Transpose", k, perm=(0, 1, 3, 2))), g.scalar(scale, q))
    limit = float(g.attribute("softcap", 0.0))
    if limit:
        scores = g.op("Mul", g.op("Tanh", g.op("Div", scores, g.scalar(limit, q))), g.scalar(limit, q))
    scores = add_optional(g, scores, mask)
    if precision:
        scores = g.op("Cast", scores, to=NUMBERS[precision])
    weights = g.op("Softmax", scores, axis=-1 if g.opset >= 13 else 3)
    return g.op("MatMul", g.op("Cast", weights, to=NUMBERS[g.type(q).dtype]) if precision else weights, v)


def with_past(g: NodeBuilder, past: str, value: str) -> str:
    """Return keys or values appended to those of earlier positions, if there are any (past not "")."""
    return g.op("Concat", past, value, axis=2) if past else value


def key_count(past: Dim, size: Dim, c: InferenceContext) -> Dim:
    """Return the number of keys: `past` earlier ones and `size` new ones."""
    return past + size if isinstance(past, int) and isinstance(size, int) else size if past == 0 else c.new_symbol("keys")


def per_head(c: InferenceContext, features: Dim, heads: int) -> Dim:
    """Return the size of a head. Raises ShapeInferenceError where the number of features is not a multiple of `heads`."""
    if not isinstance(features, int):
        return c.new_symbol("head")
    if features % heads:
        raise c.error(f"expected features that {heads} heads share evenly, got {features}")
    return features // heads


def repeat_heads(g: NodeBuilder, value: str, times: int) -> str:
    """Return each head `times` times in a row: [n, h, t, size] becomes [n, h times, t, size]."""
    if times == 1:
        return value
    heads = g.shape(value)[1]
    return g.op("Gather", value, g.constant(np.arange(int(heads), dtype=np.int64).repeat(times)), axis=1)
