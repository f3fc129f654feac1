"""Scaled dot-product attention as ONNX defines it since opset 23, decomposed into the operators from which `fusion` builds attention.

Shapes: n sequences, s query positions, t keys, h heads. A value is [n, s, h size] or, split into heads, [n, h, s, size]."""

from __future__ import annotations

import numpy as np

from ortrain.dtypes import NUMBERS
from ortrain.ir import Dim, TensorType
from ortrain.ops.registry.node_builder import NodeBuilder
from ortrain.ops.registry.record import InferenceContext, check_broadcasts, operator
from ortrain.ops.shared.attention_nodes import (
    MASKED,
    heads_first,
    heads_last,
    key_count,
    per_head,
    positions,
    repeat_heads,
    size_of,
    static_size,
    weighted_values,
    with_past,
)

Q, K, V, MASK, PAST_KEY, PAST_VALUE, KEY_COUNTS = range(7)
"""Indices of the inputs."""
Y, PRESENT_KEY, PRESENT_VALUE, PRODUCTS = range(4)
"""Indices of the outputs."""
WINDOWS = ("left_window_size", "right_window_size")


def head_counts(c: InferenceContext) -> tuple[int, int]:
    """Return the number of heads of the queries and of the keys. Raises ShapeInferenceError where they do not fit."""
    if len(c.shape(Q)) == 4:
        heads, shared = (static_size(c, c.shape(i)[1], "a number of heads") for i in (Q, K))
    else:
        heads, shared = (int(c.attribute(name, 0)) for name in ("q_num_heads", "kv_num_heads"))
    if heads < 1 or shared < 1 or heads % shared:
        raise c.error(f"expected heads of queries that heads of keys share evenly, got {heads} and {shared}")
    return heads, shared


def split_heads(g: NodeBuilder) -> tuple[str, str, str]:
    """Return queries, keys and values split into heads."""
    heads, shared = head_counts(g.context())
    q, k, v = (name if g.rank(name) == 4 else heads_first(g, name, count) for name, count in zip(g.inputs, (heads, shared, shared), strict=False))
    return q, k, v


def visible_keys(g: NodeBuilder, q: str, k: str) -> str:
    """Return which keys each query may attend to by its position, bool [s, t] or [n, 1, s, t]; "" for all.

    A causal query sees no later keys, one with windows only keys near its position. Queries come after the past keys, or are the last of the sequences whose
    lengths are given; keys beyond these lengths are padding."""
    left, right = (int(g.attribute(name, -1)) for name in WINDOWS)
    if g.attribute("is_causal", 0):
        right = 0
    key = positions(g, size_of(g, k, 2))
    lengths = g.unsqueeze(g.op("Cast", g.inputs[KEY_COUNTS], to=NUMBERS["int64"]), [1, 2, 3]) if g.has(KEY_COUNTS) else ""
    conditions = [g.op("Less", key, lengths)] if lengths else []
    if left >= 0 or right >= 0:
        query = g.unsqueeze(positions(g, size_of(g, q, 2)), [1])
        if lengths:
            query = g.op("Add", query, g.op("Sub", lengths, size_of(g, q, 2)))
        elif g.has(PAST_KEY):
            query = g.op("Add", query, size_of(g, g.inputs[PAST_KEY], 2))
        ahead = g.op("Sub", key, query)
        conditions += [g.op("Not", g.op("Greater", ahead, g.constant(np.array(right, np.int64))))] if right >= 0 else []
        conditions += [g.op("Not", g.op("Less", ahead, g.constant(np.array(-left, np.int64))))] if left >= 0 else []
    if not conditions:
        return ""
    both = conditions[0]
    for condition in conditions[1:]:
        both = g.op("And", both, condition)
    return both


def given_mask(g: NodeBuilder, q: str, k: str) -> str:
    """Return the mask input as numbers to add to the scores, -inf where a key is masked, which all keys beyond the mask's last axis are; "" without one."""
    mask = g.optional(MASK)
    if mask and g.type(mask).dtype == "bool":
        mask = g.op("Where", mask, g.scalar(0.0, q), g.scalar(-np.inf, q))
    if mask and g.shape(mask)[-1] != g.shape(k)[2]:
        missing = g.op("Sub", size_of(g, k, 2), size_of(g, mask, g.rank(mask) - 1))
        pads = g.op("Concat", g.constant([0] * (2 * g.rank(mask) - 1)), g.unsqueeze(missing, [0]), axis=0)
        mask = g.op("Pad", mask, pads, g.scalar(-np.inf, q))
    return mask


def masks(g: NodeBuilder, q: str, k: str) -> tuple[str, str]:
    """Return the mask to add to the scores, and for each query 1 if it sees any key or else 0; "" for either that is not needed.

    The mask is finite, so that the softmax of a query that sees no key is not NaN, as its result would be by the gradient too."""
    shown, given = visible_keys(g, q, k), given_mask(g, q, k)
    if not given and (not shown or not g.has(KEY_COUNTS) and int(g.attribute(WINDOWS[0], -1)) < 0):
        return g.op("Where", shown, g.scalar(0.0, q), g.scalar(MASKED, q)) if shown else "", ""          # the first key is seen
    mask = g.op("Where", shown, given or g.scalar(0.0, q), g.scalar(-np.inf, q)) if shown else given
    sees_any = g.op("Greater", g.reduce("ReduceMax", mask, [-1]), g.scalar(-np.inf, q))
    return g.op("Max", mask, g.scalar(MASKED, q)), g.op("Cast", sees_any, to=NUMBERS[g.type(q).dtype])


def attention_decomposition(g: NodeBuilder) -> list[str] | None:
    if g.has_output(PRODUCTS):
        from ortrain.ops.registry.onnx_definitions import body

        return body(g)
    heads, shared = head_counts(g.context())
    q, k, v = split_heads(g)
    k, v = with_past(g, g.optional(PAST_KEY), k), with_past(g, g.optional(PAST_VALUE), v)
    mask, sees_any = masks(g, q, k)
    scale = g.attribute("scale")
    scale = float(static_size(g.context(), g.shape(q)[3], "a head size")) ** -0.5 if scale is None else float(scale)
    wider = "float64" if g.attribute("softmax_precision", 0) == NUMBERS["float64"] and g.type(q).dtype != "float64" else ""
    y = weighted_values(g, q, repeat_heads(g, k, heads // shared), repeat_heads(g, v, heads // shared), mask, scale, wider)
    if sees_any:
        y = g.op("Mul", y, sees_any)
    return [y if g.rank(g.inputs[Q]) == 4 else heads_last(g, y), k, v]


@operator("Attention", decompose=attention_decomposition, stop_gradient=(KEY_COUNTS,))
def attention(c: InferenceContext) -> list[TensorType]:
    """Y = softmax(scale Q Kᵀ + masks) V per head; outputs 1 and 2: keys and values, appended to the past ones; output 3: scores

    Queries of several heads may share a head of keys (Ainslie et al., arXiv 2305.13245). The result of a query that sees no key is 0."""
    shapes = [c.shape(i) for i in (Q, K, V)]
    if len(shapes[0]) not in (3, 4) or any(len(shape) != len(shapes[0]) for shape in shapes):
        raise c.error(f"expected queries, keys and values of three axes or of four, got {[list(shape) for shape in shapes]}")
    heads, shared = head_counts(c)
    (n, _, rows, size), (_, _, new, key_size), (_, _, _, width) = map(of_heads, (c, c, c), shapes, (heads, shared, shared))
    if isinstance(size, int) and isinstance(key_size, int) and size != key_size:
        raise c.error(f"expected heads of queries and keys of one size, got {size} and {key_size}")
    if c.has(PAST_KEY) != c.has(PAST_VALUE) or c.has(PAST_KEY) and c.has(KEY_COUNTS):
        raise c.error("expected past keys and values together, and without lengths of the sequences")
    keys = key_count(c.shape(PAST_KEY)[2] if c.has(PAST_KEY) else 0, new, c)
    check_mask(c, (n, heads, rows), keys)
    joined = (n, heads, rows, width) if len(shapes[0]) == 4 else (n, rows, heads * width if isinstance(width, int) else c.new_symbol("features"))
    outputs = (joined, (n, shared, keys, size), (n, shared, keys, width), (n, heads, rows, keys))
    return [TensorType(c.dtype(Q), shape) for shape in outputs]


def of_heads(c: InferenceContext, shape: tuple[Dim, ...], heads: int) -> tuple[Dim, Dim, Dim, Dim]:
    """Return the shape [n, heads, rows, size] of a value that may have its heads joined."""
    if len(shape) == 4:
        return shape[0], shape[1], shape[2], shape[3]
    return shape[0], heads, shape[1], per_head(c, shape[2], heads)


def check_mask(c: InferenceContext, scores: tuple[Dim, Dim, Dim], keys: Dim) -> None:
    """Raise ShapeInferenceError for a mask that is not broadcast to the scores, has more keys than there are, or is neither bool nor of the queries' type."""
    if not c.has(MASK):
        return
    shape = c.shape(MASK)
    if c.dtype(MASK) not in ("bool", c.dtype(Q)):
        raise c.error(f"expected a mask of bool or {c.dtype(Q)}, got {c.dtype(MASK)}")
    if not shape or isinstance(shape[-1], int) and isinstance(keys, int) and shape[-1] > keys:
        raise c.error(f"expected a mask of at most {keys} keys, got {list(shape)}")
    check_broadcasts(c, MASK, (*scores, shape[-1]))
