"""Transformer operators that ONNX Runtime's optimizer emits (domain com.microsoft), decomposed into ONNX operators from which `fusion` builds attention.

Shapes: n sequences, s query positions, t keys, h heads. A value is [n, s, h size] or, split into heads, [n, h, s, size]."""

from __future__ import annotations

import numpy as np

from ortrain.dtypes import NUMBERS
from ortrain.ir import Dim, TensorType
from ortrain.ops.registry.node_builder import NodeBuilder
from ortrain.ops.registry.record import MICROSOFT, InferenceContext, check_broadcasts, normalize_axis, operator
from ortrain.ops.shared.attention_nodes import (
    MASKED,
    add_optional,
    heads_first,
    heads_last,
    key_count,
    per_head,
    positions,
    repeat_heads,
    size_of,
    split,
    static_size,
    weighted_values,
    with_past,
)


def causal_mask(g: NodeBuilder, q: str, k: str, window: int = -1) -> str:
    """Return the mask [s, t] to add to the scores of causal attention, in which the last query has the position of the last key.

    It is MASKED where a key comes after its query or, if window >= 0, at least `window` positions before it."""
    rows, keys = size_of(g, q, 2), size_of(g, k, 2)
    query = g.unsqueeze(g.op("Add", positions(g, rows), g.op("Sub", keys, rows)), [1])
    key = g.unsqueeze(positions(g, keys), [0])
    masked = g.op("Greater", key, query)
    if window >= 0:
        masked = g.op("Or", masked, g.op("Greater", g.op("Sub", query, key), g.constant(np.array(window - 1, np.int64))))
    return g.op("Where", masked, g.scalar(MASKED, q), g.scalar(0.0, q))


def padding_mask(g: NodeBuilder, mask: str, q: str, k: str) -> str:
    """Return the mask to add to the scores for an integer mask in any of the forms that ONNX Runtime accepts.

    mask: [n] sequence lengths, [2 n] ends followed by starts, or [n, t] or [n, s, t] with 0 for masked keys."""
    shape, sequences = g.shape(mask), g.shape(q)[0]
    filler = g.scalar(float(g.attribute("mask_filter_value", -10000.0)), q)
    if len(shape) in (2, 3):
        kept = g.op("Cast", mask, to=NUMBERS[g.type(q).dtype])
        return g.unsqueeze(g.op("Mul", g.op("Sub", g.scalar(1.0, q), kept), filler), [1, 2] if len(shape) == 2 else [1])
    if len(shape) != 1 or shape[0] != sequences and not (isinstance(sequences, int) and shape[0] == 2 * sequences):
        raise g.error(f"expected a mask [n], [2 n], [n, t] or [n, s, t], got {list(shape)} for {sequences} sequences")
    key = g.unsqueeze(positions(g, size_of(g, k, 2)), [0])
    limits = g.op("Cast", mask, to=NUMBERS["int64"])
    ends, starts = (limits, "") if shape[0] == sequences else halves(g, limits, int(sequences))
    masked = g.op("Not", g.op("Less", key, g.unsqueeze(ends, [1])))
    if starts:
        masked = g.op("Or", masked, g.op("Less", key, g.unsqueeze(starts, [1])))
    return g.unsqueeze(g.op("Where", masked, filler, g.scalar(0.0, q)), [1, 2])


def halves(g: NodeBuilder, vector: str, size: int) -> tuple[str, str]:
    """Split a vector of 2 `size` elements into its first and second half."""
    first, second = split(g, vector, [size, size])
    return first, second


def attend(g: NodeBuilder, q: str, k: str, v: str, mask: str, size: Dim) -> str:
    """Return softmax(scale q k' + mask) v of values split into heads, as [n, s, h width].

    mask: what to add to the scores, "" for nothing. size: the head size, which determines the scale unless the node has a `scale`. The node's `softcap` c
    replaces scores x by c tanh(x / c)."""
    scale = float(g.attribute("scale", 0.0)) or float(static_size(g.context(), size, "a head size")) ** -0.5
    return heads_last(g, weighted_values(g, q, k, v, mask, scale))


def refuse_attributes(g: NodeBuilder, *names: str) -> None:
    """Raise ShapeInferenceError for attributes that request what the decomposition does not implement."""
    given = [name for name in names if g.attribute(name, 0) not in (0, -1)]
    if given:
        raise g.error(f"expected a node without {', '.join(given)}, got {[g.attribute(name) for name in given]}")


# ---- self-attention with its input projection


def projected_sizes(c: InferenceContext) -> tuple[int, int, int]:
    """Return how many columns of the weights project to queries, keys and values. Raises ShapeInferenceError for columns that the heads cannot share."""
    columns = static_size(c, c.shape(1)[1], "a number of columns")
    sizes = tuple(int(size) for size in c.attribute("qkv_hidden_sizes", ())) or (columns // 3,) * 3
    heads = int(c.attribute("num_heads", 0))
    if heads < 1 or len(sizes) != 3 or sum(sizes) != columns or any(size % heads for size in sizes) or sizes[0] != sizes[1]:
        raise c.error(f"expected columns that split into three times {heads} heads, got {columns} columns and sizes {list(sizes)}")
    return sizes[0], sizes[1], sizes[2]


def attention_decomposition(g: NodeBuilder) -> list[str]:
    refuse_attributes(g, "do_rotary", "past_present_share_buffer")
    heads = int(g.attribute("num_heads"))
    sizes = projected_sizes(g.context())
    projected = add_optional(g, g.op("MatMul", *g.inputs[:2]), g.optional(2))
    q, k, v = (heads_first(g, part, heads) for part in split(g, projected, sizes))
    if g.has(4):
        past = [g.op("Gather", g.inputs[4], g.constant(np.array(i, np.int64)), axis=0) for i in (0, 1)]
        k, v = (with_past(g, *pair) for pair in zip(past, (k, v), strict=True))
    mask = add_optional(g, padding_mask(g, g.inputs[3], q, k) if g.has(3) else "", g.optional(5))
    if g.attribute("unidirectional", 0):
        mask = add_optional(g, causal_mask(g, q, k), mask)
    y = attend(g, q, k, v, mask, sizes[0] // heads)
    return [y, g.op("Concat", g.unsqueeze(k, [0]), g.unsqueeze(v, [0]), axis=0)] if g.has_output(1) else [y]


@operator("Attention", domain=MICROSOFT, decompose=attention_decomposition, stop_gradient=(3,))
def attention(c: InferenceContext) -> list[TensorType]:
    """y = softmax(scale q k' + masks) v per head, with [q, k, v] = x w + b; output 1: keys and values, appended to the past ones"""
    shape = c.shape(0)
    if len(shape) != 3 or len(c.shape(1)) != 2:
        raise c.error(f"expected x [n, s, features] and weights [features, columns], got {list(shape)} and {list(c.shape(1))}")
    sizes, heads = projected_sizes(c), int(c.attribute("num_heads"))
    keys = key_count(c.shape(4)[3] if c.has(4) else 0, shape[1], c)
    return [TensorType(c.dtype(0), (*shape[:2], sizes[2])), TensorType(c.dtype(0), (2, shape[0], heads, keys, sizes[0] // heads))]


# ---- attention of separate queries, keys and values


def head_count(c: InferenceContext, name: str) -> int:
    """Return the attribute `name`, a number of heads. Raises ShapeInferenceError when it is less than 1."""
    heads = int(c.attribute(name, 0))
    if heads < 1:
        raise c.error(f"expected {name} of at least 1, got {heads}")
    return heads


def multi_head_decomposition(g: NodeBuilder) -> list[str]:
    heads = int(g.attribute("num_heads"))
    query, key, value = g.inputs[:3]
    if g.has(3):
        if g.rank(key) != 3:
            raise g.error("expected no bias for keys and values that are split into heads, got one")
        widths = [static_size(g.context(), g.shape(name)[-1], "a size") for name in g.inputs[:3]]
        query, key, value = (g.op("Add", *pair) for pair in zip(g.inputs[:3], split(g, g.inputs[3], widths), strict=True))
    q, k, v = (heads_first(g, name, heads) if g.rank(name) == 3 else name for name in (query, key, value))
    k, v = with_past(g, g.optional(6), k), with_past(g, g.optional(7), v)
    mask = add_optional(g, padding_mask(g, g.inputs[4], q, k) if g.has(4) else "", g.optional(5))
    if g.attribute("unidirectional", 0):
        mask = add_optional(g, causal_mask(g, q, k), mask)
    return [attend(g, q, k, v, mask, g.shape(q)[3]), k, v]


@operator("MultiHeadAttention", domain=MICROSOFT, decompose=multi_head_decomposition, stop_gradient=(4,))
def multi_head_attention(c: InferenceContext) -> list[TensorType]:
    """y = softmax(scale q k' + masks) v per head, of queries, keys and values plus bias; outputs 1 and 2: keys and values, appended to the past ones"""
    heads = head_count(c, "num_heads")
    if not (c.has(1) and c.has(2)):
        raise c.error("expected separate queries, keys and values, got them packed")
    q, k, v = (c.shape(i) for i in range(3))
    if len(q) != 3 or len(k) not in (3, 4) or len(k) != len(v):
        raise c.error(f"expected queries [n, s, features], and keys and values [n, t, features] or [n, heads, t, size], got {list(q)}, {list(k)} and {list(v)}")
    size, width = ((shape[3] if len(shape) == 4 else per_head(c, shape[2], heads)) for shape in (k, v))
    keys = key_count(c.shape(6)[2] if c.has(6) else 0, k[-2], c)
    features = q[2] if size == width else heads * width if isinstance(width, int) else c.new_symbol("features")
    return [TensorType(c.dtype(0), (*q[:2], features)), *(TensorType(c.dtype(0), (q[0], heads, keys, each)) for each in (size, width))]


def grouped_decomposition(g: NodeBuilder) -> list[str]:
    refuse_attributes(g, "smooth_softmax", "k_quant_type", "v_quant_type")
    heads, shared = int(g.attribute("num_heads")), int(g.attribute("kv_num_heads"))
    parts = list(g.inputs[:3])
    if not g.has(1):
        size = static_size(g.context(), g.shape(g.inputs[0])[2], "a size") // (heads + 2 * shared)
        parts = split(g, g.inputs[0], [heads * size, shared * size, shared * size])
    q, k, v = (heads_first(g, part, number) for part, number in zip(parts, (heads, shared, shared), strict=True))
    if g.attribute("do_rotary", 0):
        first = size_of(g, g.inputs[3], 2) if g.has(3) else g.constant(np.array(0, np.int64))
        position = g.unsqueeze(g.op("Add", positions(g, size_of(g, q, 2)), first), [0])
        q, k = (rotate(g, name, position, g.inputs[7], g.inputs[8], bool(g.attribute("rotary_interleaved", 0))) for name in (q, k))
    k, v = with_past(g, g.optional(3), k), with_past(g, g.optional(4), v)
    mask = add_optional(g, causal_mask(g, q, k, int(g.attribute("local_window_size", -1))), g.optional(10))
    repeated_k, repeated_v = (repeat_heads(g, name, heads // shared) for name in (k, v))
    return [attend(g, q, repeated_k, repeated_v, mask, g.shape(q)[3]), k, v]


@operator("GroupQueryAttention", domain=MICROSOFT, decompose=grouped_decomposition, stop_gradient=(5, 6, 7, 8, 9))
def group_query_attention(c: InferenceContext) -> list[TensorType]:
    """y = softmax(scale q k' + mask) v, causal, with several heads of queries per head of keys and values; outputs 1 and 2: keys and values

    Ainslie et al., arXiv 2305.13245. With do_rotary, queries and keys are rotated by their positions. Sequence lengths are not read: rows of y beyond the end
    of a sequence shorter than the longest are meaningless, and a past holds as many keys as its shape tells."""
    heads, shared = head_count(c, "num_heads"), head_count(c, "kv_num_heads")
    q = c.shape(0)
    if len(q) != 3 or heads % shared:
        raise c.error(f"expected queries [n, s, features] and a multiple of {shared} heads, got {list(q)} and {heads} heads")
    size = per_head(c, q[2], heads if c.has(1) else heads + 2 * shared)
    keys = key_count(c.shape(3)[2] if c.has(3) else 0, q[1], c)
    present = TensorType(c.dtype(0), (q[0], shared, keys, size))
    return [TensorType(c.dtype(0), q if c.has(1) else (*q[:2], heads * size if isinstance(size, int) else c.new_symbol("features"))), present, present]


# ---- positions


def rotate(g: NodeBuilder, x: str, position: str, cosines: str, sines: str, interleaved: bool) -> str:
    """Return x [n, h, s, size] with pairs of features rotated by the angles of their positions.

    position: [n or 1, s]. cosines, sines: tables [positions, pairs]; features beyond 2 pairs stay as they are. interleaved: whether neighbors form a pair,
    rather than a feature of the first half with one of the second."""
    size, half = (static_size(g.context(), g.shape(name)[-1], "a size") for name in (x, cosines))
    rotated, *rest = split(g, x, [2 * half, size - 2 * half]) if size > 2 * half else [x]
    cosine, sine = (g.unsqueeze(g.op("Gather", table, position, axis=0), [1]) for table in (cosines, sines))
    if interleaved:
        pairs = g.op("Reshape", rotated, g.constant([0, 0, 0, half, 2]))
        first, second = (g.op("Gather", pairs, g.constant(np.array(i, np.int64)), axis=4) for i in (0, 1))
    else:
        first, second = split(g, rotated, [half, half])
    parts = [g.op("Sub", g.op("Mul", first, cosine), g.op("Mul", second, sine)), g.op("Add", g.op("Mul", second, cosine), g.op("Mul", first, sine))]
    if interleaved:
        y = g.op("Reshape", g.op("Concat", *(g.unsqueeze(part, [4]) for part in parts), axis=4), g.constant([0, 0, 0, 2 * half]))
    else:
        y = g.op("Concat", *parts, axis=3)
    return g.op("Concat", y, *rest, axis=3) if rest else y


def rotary_decomposition(g: NodeBuilder) -> list[str]:
    x, position, cosines, sines = g.inputs
    is_split = g.rank(x) == 4
    half = static_size(g.context(), g.shape(cosines)[1], "a size")
    if not is_split:
        features = static_size(g.context(), g.shape(x)[2], "a size")
        x = heads_first(g, x, int(g.attribute("num_heads", 0)) or features // (2 * half))
    if g.rank(position) == 1:
        position = g.unsqueeze(g.op("Add", positions(g, size_of(g, x, 2)), position), [0])
    y = rotate(g, x, position, cosines, sines, bool(g.attribute("interleaved", 0)))
    return [y if is_split else heads_last(g, y)]


@operator("RotaryEmbedding", domain=MICROSOFT, decompose=rotary_decomposition, stop_gradient=(1,))
def rotary_embedding(c: InferenceContext) -> list[TensorType]:
    """y = x with pairs of features rotated by the angles of their positions (Su et al., arXiv 2104.09864)

    x: [n, s, features] or [n, heads, s, size]. Input 1: positions [n, s], or the position [1] of the first row."""
    if len(c.shape(0)) not in (3, 4) or len(c.shape(1)) not in (1, 2) or len(c.shape(2)) != 2:
        raise c.error(f"expected x of rank 3 or 4, positions of rank 1 or 2 and tables of rank 2, got {[list(c.shape(i)) for i in range(3)]}")
    return [c.type(0)]


# ---- embeddings and normalizations


def embed_decomposition(g: NodeBuilder) -> list[str]:
    ids, words, position_table = g.inputs[0], g.inputs[2], g.inputs[3]
    position = g.inputs[8] if g.has(8) else positions(g, size_of(g, ids, 1))
    total = g.op("Add", g.op("Gather", words, ids, axis=0), g.op("Gather", position_table, position, axis=0))
    if g.has(1):
        total = g.op("Add", total, g.op("Gather", g.inputs[4], g.inputs[1], axis=0))
    y = g.op("LayerNormalization", total, *g.inputs[5:7], axis=-1, epsilon=float(g.attribute("epsilon", 1e-12)))
    lengths = ""
    if g.has_output(1):
        mask = g.inputs[7] if g.has(7) else g.op("Sub", ids, ids)
        lengths = g.op("Cast", g.reduce_sum(g.op("Cast", mask, to=NUMBERS["int64"]), [1], keepdims=False), to=NUMBERS["int32"])
    return [y, lengths, total]


@operator("EmbedLayerNormalization", domain=MICROSOFT, decompose=embed_decomposition, stop_gradient=(0, 1, 7, 8))
def embed_layer_normalization(c: InferenceContext) -> list[TensorType]:
    """y = LayerNormalization of the sum of word, position and optional segment embeddings; output 1: the sum of each row of the mask; output 2: the sum"""
    ids, words = c.shape(0), c.shape(2)
    if len(ids) != 2 or len(words) != 2 or len(c.shape(3)) != 2:
        raise c.error(f"expected indices [n, s] and tables of rank 2, got {list(ids)}, {list(words)} and {list(c.shape(3))}")
    y = TensorType(c.dtype(2), (*ids, words[1]))
    return [y, TensorType("int32", ids[:1]), y]


def skip_decomposition(g: NodeBuilder) -> list[str]:
    total = add_optional(g, g.op("Add", *g.inputs[:2]), g.optional(3))
    y, inverse = g.ops("SimplifiedLayerNormalization", total, g.inputs[2], outputs=[True, True], axis=-1, epsilon=float(g.attribute("epsilon", 1e-5)))
    return [y, g.op("Sub", inverse, inverse) if g.has_output(1) else "", inverse, total]


@operator("SkipSimplifiedLayerNormalization", domain=MICROSOFT, decompose=skip_decomposition)
def skip_simplified_layer_normalization(c: InferenceContext) -> list[TensorType]:
    """y = SimplifiedLayerNormalization of x + skip + optional bias; output 1: zero; output 2: 1 / rms; output 3: the sum"""
    statistics = TensorType(c.dtype(0), (*c.shape(0)[:-1], 1))
    return [c.type(0), statistics, statistics, c.type(0)]


def bias_softmax_decomposition(g: NodeBuilder) -> list[str]:
    total, axis = g.op("Add", *g.inputs), int(g.attribute("axis", 1))
    if g.opset < 13 or axis % g.rank(total) == g.rank(total) - 1:
        return [g.op("Softmax", total, axis=axis)]
    return [g.reshape_like(g.op("Softmax", g.op("Flatten", total, axis=axis), axis=1), total)]


@operator("BiasSoftmax", domain=MICROSOFT, decompose=bias_softmax_decomposition)
def bias_softmax(c: InferenceContext) -> list[TensorType]:
    """y = Softmax of x + bias, over all axes from `axis` on together"""
    normalize_axis(c, int(c.attribute("axis", 1)), len(c.shape(0)))
    check_broadcasts(c, 1, c.shape(0))
    return [c.type(0)]
