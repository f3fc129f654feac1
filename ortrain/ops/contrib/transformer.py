"""What onnxruntime's optimizer writes for transformers (domain com.microsoft), said in ONNX's own operators, in which fusion finds attention again.

Shapes: n images, s positions, t keys, h heads. A value is [n, s, h size] or, split into heads, [n, h, s, size]."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ortrain.dtypes import NUMBERS
from ortrain.ir import Dim, TensorType
from ortrain.ops.registry.node_builder import NodeBuilder
from ortrain.ops.registry.record import MICROSOFT, InferenceContext, check_broadcasts, normalize_axis, operator

HIDDEN = float(np.finfo(np.float32).min)
"""What is added to the scores of later keys where attention is causal; padding has the node's own mask_filter_value."""
HEADS_FIRST = (0, 2, 1, 3)


def whole(c: InferenceContext, size: Dim, what: str) -> int:
    """A size that has to be known; refused when it is a symbol."""
    if not isinstance(size, int):
        raise c.error(f"expected {what} that is known, got {size!r}")
    return size


def count(g: NodeBuilder, value: str, axis: int) -> str:
    """A size of a value, as an int64 scalar."""
    return g.op("Gather", g.shape_of(value), g.constant(np.array(axis, np.int64)))


def positions(g: NodeBuilder, length: str) -> str:
    """0, 1, … below a scalar."""
    return g.op("Range", g.constant(np.array(0, np.int64)), length, g.constant(np.array(1, np.int64)))


def split(g: NodeBuilder, value: str, sizes: Sequence[int]) -> list[str]:
    """Parts of these sizes along the last axis."""
    axis, parts = g.rank(value) - 1, [True] * len(sizes)
    if g.opset < 13:
        return g.ops("Split", value, outputs=parts, axis=axis, split=tuple(sizes))
    return g.ops("Split", value, g.constant(list(sizes)), outputs=parts, axis=axis)


def heads_first(g: NodeBuilder, value: str, heads: int) -> str:
    """[n, s, heads size] as [n, heads, s, size]."""
    return g.op("Transpose", g.op("Reshape", value, g.constant([0, 0, heads, -1])), perm=HEADS_FIRST)


def heads_last(g: NodeBuilder, value: str) -> str:
    """[n, heads, s, size] as [n, s, heads size]."""
    return g.op("Reshape", g.op("Transpose", value, perm=HEADS_FIRST), g.constant([0, 0, -1]))


def add(g: NodeBuilder, first: str, second: str) -> str:
    """The sum of two values either of which may be absent ("")."""
    return g.op("Add", first, second) if first and second else first or second


def later_keys(g: NodeBuilder, q: str, k: str, window: int = -1) -> str:
    """[s, t]: HIDDEN where a key comes after its query, or (window >= 0) at least that many positions before; the last query belongs to the last key."""
    rows, keys = count(g, q, 2), count(g, k, 2)
    own = g.unsqueeze(g.op("Add", positions(g, rows), g.op("Sub", keys, rows)), [1])
    key = g.unsqueeze(positions(g, keys), [0])
    hidden = g.op("Greater", key, own)
    if window >= 0:
        hidden = g.op("Or", hidden, g.op("Greater", g.op("Sub", own, key), g.constant(np.array(window - 1, np.int64))))
    return g.op("Where", hidden, g.scalar(HIDDEN, q), g.scalar(0.0, q))


def padding(g: NodeBuilder, mask: str, q: str, k: str) -> str:
    """What is added to the scores for a mask of integers: [n] lengths, [2 n] ends and starts, [n, t] or [n, s, t] with 0 for what is hidden."""
    shape, images = g.shape(mask), g.shape(q)[0]
    filler = g.scalar(float(g.attribute("mask_filter_value", -10000.0)), q)
    if len(shape) in (2, 3):
        kept = g.op("Cast", mask, to=NUMBERS[g.type(q).dtype])
        return g.unsqueeze(g.op("Mul", g.op("Sub", g.scalar(1.0, q), kept), filler), [1, 2] if len(shape) == 2 else [1])
    if len(shape) != 1 or shape[0] != images and not (isinstance(images, int) and shape[0] == 2 * images):
        raise g.error(f"expected a mask [n], [2 n], [n, t] or [n, s, t], got {list(shape)} for {images} images")
    key = g.unsqueeze(positions(g, count(g, k, 2)), [0])
    limits = g.op("Cast", mask, to=NUMBERS["int64"])
    ends, starts = (limits, "") if shape[0] == images else halves(g, limits, int(images))
    hidden = g.op("Not", g.op("Less", key, g.unsqueeze(ends, [1])))
    if starts:
        hidden = g.op("Or", hidden, g.op("Less", key, g.unsqueeze(starts, [1])))
    return g.unsqueeze(g.op("Where", hidden, filler, g.scalar(0.0, q)), [1, 2])


def halves(g: NodeBuilder, vector: str, size: int) -> tuple[str, str]:
    """The first and the second half of a vector of 2 `size`."""
    first, second = split(g, vector, [size, size])
    return first, second


def attend(g: NodeBuilder, q: str, k: str, v: str, mask: str, size: Dim) -> str:
    """softmax(scale q k' + mask) v of values split into heads; the result has the heads put together again."""
    scale = float(g.attribute("scale", 0.0)) or float(whole(g.context(), size, "a head size")) ** -0.5
    scores = g.op("Mul", g.op("MatMul", q, g.op("Transpose", k, perm=(0, 1, 3, 2))), g.scalar(scale, q))
    limit = float(g.attribute("softcap", 0.0))
    if limit:
        scores = g.op("Mul", g.op("Tanh", g.op("Div", scores, g.scalar(limit, q))), g.scalar(limit, q))
    return heads_last(g, g.op("MatMul", g.op("Softmax", add(g, scores, mask), axis=-1 if g.opset >= 13 else 3), v))


def with_past(g: NodeBuilder, past: str, value: str) -> str:
    """Keys or values after those of earlier positions."""
    return g.op("Concat", past, value, axis=2) if past else value


def refuse_attributes(g: NodeBuilder, *names: str) -> None:
    """Refuses attributes that change what is computed in a way that is not here."""
    given = [name for name in names if g.attribute(name, 0) not in (0, -1)]
    if given:
        raise g.error(f"expected a node without {', '.join(given)}, got {[g.attribute(name) for name in given]}")


def grown(past: Dim, size: Dim, c: InferenceContext) -> Dim:
    """The number of keys: those of the past and the new ones."""
    return past + size if isinstance(past, int) and isinstance(size, int) else size if past == 0 else c.fresh("keys")


# ---- attention of one value, with its projections


def projected_sizes(c: InferenceContext) -> tuple[int, int, int]:
    """How many columns of the weights are queries, keys and values."""
    columns = whole(c, c.shape(1)[1], "a number of columns")
    sizes = tuple(int(size) for size in c.attribute("qkv_hidden_sizes", ())) or (columns // 3,) * 3
    heads = int(c.attribute("num_heads", 0))
    if heads < 1 or len(sizes) != 3 or sum(sizes) != columns or any(size % heads for size in sizes) or sizes[0] != sizes[1]:
        raise c.error(f"expected columns that split into three times {heads} heads, got {columns} columns and sizes {list(sizes)}")
    return sizes[0], sizes[1], sizes[2]


def attention_decomposition(g: NodeBuilder) -> list[str]:
    refuse_attributes(g, "do_rotary", "past_present_share_buffer")
    heads = int(g.attribute("num_heads"))
    sizes = projected_sizes(g.context())
    projected = add(g, g.op("MatMul", *g.inputs[:2]), g.optional(2))
    q, k, v = (heads_first(g, part, heads) for part in split(g, projected, sizes))
    if g.has(4):
        past = [g.op("Gather", g.inputs[4], g.constant(np.array(i, np.int64)), axis=0) for i in (0, 1)]
        k, v = (with_past(g, *pair) for pair in zip(past, (k, v), strict=True))
    mask = add(g, padding(g, g.inputs[3], q, k) if g.has(3) else "", g.optional(5))
    if g.attribute("unidirectional", 0):
        mask = add(g, later_keys(g, q, k), mask)
    y = attend(g, q, k, v, mask, sizes[0] // heads)
    return [y, g.op("Concat", g.unsqueeze(k, [0]), g.unsqueeze(v, [0]), axis=0)] if g.wants(1) else [y]


@operator("Attention", domain=MICROSOFT, decompose=attention_decomposition, stop_gradient=(3,))
def attention(c: InferenceContext) -> list[TensorType]:
    """y = softmax(scale q k' + masks) v in heads, where [q, k, v] = x w + b; then keys and values, those of the past before them"""
    shape = c.shape(0)
    if len(shape) != 3 or len(c.shape(1)) != 2:
        raise c.error(f"expected x [n, s, features] and weights [features, columns], got {list(shape)} and {list(c.shape(1))}")
    sizes, heads = projected_sizes(c), int(c.attribute("num_heads"))
    keys = grown(c.shape(4)[3] if c.has(4) else 0, shape[1], c)
    return [TensorType(c.dtype(0), (*shape[:2], sizes[2])), TensorType(c.dtype(0), (2, shape[0], heads, keys, sizes[0] // heads))]


# ---- attention of queries, keys and values


def head_count(c: InferenceContext, name: str) -> int:
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
        widths = [whole(g.context(), g.shape(name)[-1], "a size") for name in g.inputs[:3]]
        query, key, value = (g.op("Add", *pair) for pair in zip(g.inputs[:3], split(g, g.inputs[3], widths), strict=True))
    q, k, v = (heads_first(g, name, heads) if g.rank(name) == 3 else name for name in (query, key, value))
    k, v = with_past(g, g.optional(6), k), with_past(g, g.optional(7), v)
    mask = add(g, padding(g, g.inputs[4], q, k) if g.has(4) else "", g.optional(5))
    if g.attribute("unidirectional", 0):
        mask = add(g, later_keys(g, q, k), mask)
    return [attend(g, q, k, v, mask, g.shape(q)[3]), k, v]


@operator("MultiHeadAttention", domain=MICROSOFT, decompose=multi_head_decomposition, stop_gradient=(4,))
def multi_head_attention(c: InferenceContext) -> list[TensorType]:
    """y = softmax(scale q k' + masks) v in heads, of queries, keys and values (+ bias); then keys and values, those of the past before them"""
    heads = head_count(c, "num_heads")
    if not (c.has(1) and c.has(2)):
        raise c.error("expected queries, keys and values apart, got them packed")
    q, k, v = (c.shape(i) for i in range(3))
    if len(q) != 3 or len(k) not in (3, 4) or len(k) != len(v):
        raise c.error(f"expected queries [n, s, features], and keys and values [n, t, features] or [n, heads, t, size], got {list(q)}, {list(k)} and {list(v)}")
    size, width = ((shape[3] if len(shape) == 4 else per_head(c, shape[2], heads)) for shape in (k, v))
    keys = grown(c.shape(6)[2] if c.has(6) else 0, k[-2], c)
    features = q[2] if size == width else heads * width if isinstance(width, int) else c.fresh("features")
    return [TensorType(c.dtype(0), (*q[:2], features)), *(TensorType(c.dtype(0), (q[0], heads, keys, each)) for each in (size, width))]


def per_head(c: InferenceContext, features: Dim, heads: int) -> Dim:
    """The size of a head; refused where the heads do not share the features evenly."""
    if not isinstance(features, int):
        return c.fresh("head")
    if features % heads:
        raise c.error(f"expected features that {heads} heads share evenly, got {features}")
    return features // heads


def grouped_decomposition(g: NodeBuilder) -> list[str]:
    refuse_attributes(g, "smooth_softmax", "k_quant_type", "v_quant_type")
    heads, shared = int(g.attribute("num_heads")), int(g.attribute("kv_num_heads"))
    parts = list(g.inputs[:3])
    if not g.has(1):
        size = whole(g.context(), g.shape(g.inputs[0])[2], "a size") // (heads + 2 * shared)
        parts = split(g, g.inputs[0], [heads * size, shared * size, shared * size])
    q, k, v = (heads_first(g, part, number) for part, number in zip(parts, (heads, shared, shared), strict=True))
    if g.attribute("do_rotary", 0):
        earlier = count(g, g.inputs[3], 2) if g.has(3) else g.constant(np.array(0, np.int64))
        places = g.unsqueeze(g.op("Add", positions(g, count(g, q, 2)), earlier), [0])
        q, k = (rotated(g, name, places, g.inputs[7], g.inputs[8], bool(g.attribute("rotary_interleaved", 0))) for name in (q, k))
    k, v = with_past(g, g.optional(3), k), with_past(g, g.optional(4), v)
    mask = add(g, later_keys(g, q, k, int(g.attribute("local_window_size", -1))), g.optional(10))
    spread_k, spread_v = (repeated(g, name, heads // shared) for name in (k, v))
    return [attend(g, q, spread_k, spread_v, mask, g.shape(q)[3]), k, v]


def repeated(g: NodeBuilder, value: str, times: int) -> str:
    """Every head `times` times in a row: [n, h, t, size] as [n, h times, t, size]."""
    if times == 1:
        return value
    heads = g.shape(value)[1]
    return g.op("Gather", value, g.constant(np.arange(int(heads)).repeat(times)), axis=1)


@operator("GroupQueryAttention", domain=MICROSOFT, decompose=grouped_decomposition, stop_gradient=(5, 6, 7, 8, 9))
def group_query_attention(c: InferenceContext) -> list[TensorType]:
    """causal y = softmax(scale q k' + mask) v, several heads of queries for one of keys and values (Ainslie et al., arXiv 2305.13245), turned by their places
    where asked; then keys and values. Of shorter sequences than the longest, rows beyond their end are not defined. A past holds what its shape says."""
    heads, shared = head_count(c, "num_heads"), head_count(c, "kv_num_heads")
    q = c.shape(0)
    if len(q) != 3 or heads % shared:
        raise c.error(f"expected queries [n, s, features] and a multiple of {shared} heads, got {list(q)} and {heads} heads")
    size = per_head(c, q[2], heads if c.has(1) else heads + 2 * shared)
    keys = grown(c.shape(3)[2] if c.has(3) else 0, q[1], c)
    present = TensorType(c.dtype(0), (q[0], shared, keys, size))
    return [TensorType(c.dtype(0), q if c.has(1) else (*q[:2], heads * size if isinstance(size, int) else c.fresh("features"))), present, present]


# ---- positions


def rotated(g: NodeBuilder, x: str, places: str, cosines: str, sines: str, interleaved: bool) -> str:
    """[n, h, s, size] turned: pairs of features (neighbors, or from both halves) by the angles that their places have in the tables."""
    size, half = (whole(g.context(), g.shape(name)[-1], "a size") for name in (x, cosines))
    turned, *rest = split(g, x, [2 * half, size - 2 * half]) if size > 2 * half else [x]
    cosine, sine = (g.unsqueeze(g.op("Gather", table, places, axis=0), [1]) for table in (cosines, sines))
    if interleaved:
        pairs = g.op("Reshape", turned, g.constant([0, 0, 0, half, 2]))
        first, second = (g.op("Gather", pairs, g.constant(np.array(i, np.int64)), axis=4) for i in (0, 1))
    else:
        first, second = split(g, turned, [half, half])
    parts = [g.op("Sub", g.op("Mul", first, cosine), g.op("Mul", second, sine)), g.op("Add", g.op("Mul", second, cosine), g.op("Mul", first, sine))]
    if interleaved:
        y = g.op("Reshape", g.op("Concat", *(g.unsqueeze(part, [4]) for part in parts), axis=4), g.constant([0, 0, 0, 2 * half]))
    else:
        y = g.op("Concat", *parts, axis=3)
    return g.op("Concat", y, *rest, axis=3) if rest else y


def rotary_decomposition(g: NodeBuilder) -> list[str]:
    x, places, cosines, sines = g.inputs
    split_already = g.rank(x) == 4
    half = whole(g.context(), g.shape(cosines)[1], "a size")
    if not split_already:
        features = whole(g.context(), g.shape(x)[2], "a size")
        x = heads_first(g, x, int(g.attribute("num_heads", 0)) or features // (2 * half))
    if g.rank(places) == 1:
        places = g.unsqueeze(g.op("Add", positions(g, count(g, x, 2)), places), [0])
    y = rotated(g, x, places, cosines, sines, bool(g.attribute("interleaved", 0)))
    return [y if split_already else heads_last(g, y)]


@operator("RotaryEmbedding", domain=MICROSOFT, decompose=rotary_decomposition, stop_gradient=(1,))
def rotary_embedding(c: InferenceContext) -> list[TensorType]:
    """x turned by the angles of its places (Su et al., arXiv 2104.09864); x [n, s, features] or [n, heads, s, size], places [n, s] or the first one [1]"""
    if len(c.shape(0)) not in (3, 4) or len(c.shape(1)) not in (1, 2) or len(c.shape(2)) != 2:
        raise c.error(f"expected x of rank 3 or 4, places of rank 1 or 2 and tables of rank 2, got {[list(c.shape(i)) for i in range(3)]}")
    return [c.type(0)]


# ---- embeddings and normalizations


def embed_decomposition(g: NodeBuilder) -> list[str]:
    ids, word, place = g.inputs[0], g.inputs[2], g.inputs[3]
    places = g.inputs[8] if g.has(8) else positions(g, count(g, ids, 1))
    total = g.op("Add", g.op("Gather", word, ids, axis=0), g.op("Gather", place, places, axis=0))
    if g.has(1):
        total = g.op("Add", total, g.op("Gather", g.inputs[4], g.inputs[1], axis=0))
    y = g.op("LayerNormalization", total, *g.inputs[5:7], axis=-1, epsilon=float(g.attribute("epsilon", 1e-12)))
    lengths = ""
    if g.wants(1):
        mask = g.inputs[7] if g.has(7) else g.op("Sub", ids, ids)
        lengths = g.op("Cast", g.reduce_sum(g.op("Cast", mask, to=NUMBERS["int64"]), [1], keepdims=False), to=NUMBERS["int32"])
    return [y, lengths, total]


@operator("EmbedLayerNormalization", domain=MICROSOFT, decompose=embed_decomposition, stop_gradient=(0, 1, 7, 8))
def embed_layer_normalization(c: InferenceContext) -> list[TensorType]:
    """LayerNormalization of the sum of the embeddings of words, places and (if given) segments; then the lengths that a mask states; then the sum"""
    ids, words = c.shape(0), c.shape(2)
    if len(ids) != 2 or len(words) != 2 or len(c.shape(3)) != 2:
        raise c.error(f"expected indices [n, s] and tables of rank 2, got {list(ids)}, {list(words)} and {list(c.shape(3))}")
    y = TensorType(c.dtype(2), (*ids, words[1]))
    return [y, TensorType("int32", ids[:1]), y]


def root_mean_square(g: NodeBuilder, x: str, scale: str) -> tuple[str, str]:
    """(x over the root of the mean of its squares, times scale; one over that root), over the axes from `axis` on."""
    rank = g.rank(x)
    axes = list(range(int(g.attribute("axis", -1)) % rank, rank))
    mean = g.reduce("ReduceMean", g.op("Mul", x, x), axes)
    inverse = g.op("Reciprocal", g.op("Sqrt", g.op("Add", mean, g.scalar(float(g.attribute("epsilon", 1e-5)), x))))
    return g.op("Mul", g.op("Mul", x, inverse), scale), inverse


def reduced(c: InferenceContext) -> TensorType:
    """The type of statistics over the axes from `axis` on."""
    shape = c.shape(0)
    axis = int(c.attribute("axis", -1)) % max(len(shape), 1)
    return TensorType(c.dtype(0), (*shape[:axis], *(1 for _ in shape[axis:])))


@operator("SimplifiedLayerNormalization", decompose=lambda g: list(root_mean_square(g, *g.inputs[:2])))
def simplified_layer_normalization(c: InferenceContext) -> list[TensorType]:
    """y = scale x / sqrt(mean of x² + epsilon) (Zhang and Sennrich, arXiv 1910.07467); then one over the root. In ONNX's domain, though not of it"""
    return [c.type(0), reduced(c)]


def skip_and_simplify(g: NodeBuilder) -> list[str]:
    total = add(g, g.op("Add", *g.inputs[:2]), g.optional(3))
    y, inverse = root_mean_square(g, total, g.inputs[2])
    return [y, g.op("Sub", inverse, inverse) if g.wants(1) else "", inverse, total]


@operator("SkipSimplifiedLayerNormalization", domain=MICROSOFT, decompose=skip_and_simplify)
def skip_simplified_layer_normalization(c: InferenceContext) -> list[TensorType]:
    """SimplifiedLayerNormalization of x + skip (+ bias); output 1 is zero, output 2 one over the root, output 3 the sum"""
    return [c.type(0), reduced(c), reduced(c), c.type(0)]


def simplified_gradient_decomposition(g: NodeBuilder) -> list[str]:
    dy, x, scale, inverse = g.inputs
    rank = g.rank(x)
    axis = int(g.attribute("axis", -1)) % rank
    normal, along = g.op("Mul", x, inverse), g.op("Mul", dy, scale)
    share = g.reduce("ReduceMean", g.op("Mul", along, normal), list(range(axis, rank)))
    dx = g.op("Mul", g.op("Sub", along, g.op("Mul", normal, share)), inverse)
    return [dx, g.reduce_sum(g.op("Mul", dy, normal), list(range(axis)), keepdims=False)]


@operator("SimplifiedLayerNormalizationGrad", domain=MICROSOFT, decompose=simplified_gradient_decomposition)
def simplified_layer_normalization_grad(c: InferenceContext) -> list[TensorType]:
    """(dx, dscale) of (dy, x, scale, one over the root)"""
    return [c.type(1), c.type(2)]


def bias_softmax_decomposition(g: NodeBuilder) -> list[str]:
    total, axis = g.op("Add", *g.inputs), int(g.attribute("axis", 1))
    if g.opset < 13 or axis % g.rank(total) == g.rank(total) - 1:
        return [g.op("Softmax", total, axis=axis)]
    return [g.reshape_like(g.op("Softmax", g.op("Flatten", total, axis=axis), axis=1), total)]


@operator("BiasSoftmax", domain=MICROSOFT, decompose=bias_softmax_decomposition)
def bias_softmax(c: InferenceContext) -> list[TensorType]:
    """y = Softmax of x + bias over all axes from `axis` on"""
    normalize_axis(c, int(c.attribute("axis", 1)), len(c.shape(0)))
    check_broadcasts(c, 1, c.shape(0))
    return [c.type(0)]
