"""Samples of what onnxruntime's optimizer writes for transformers."""

import numpy as np

from tests.ops.samples import Refusal, Sample

rng = np.random.default_rng(61)
MICROSOFT = "com.microsoft"
N, S, T, HEADS, SIZE = 2, 4, 5, 2, 3
FEATURES = HEADS * SIZE
X, W, B = rng.standard_normal((N, S, FEATURES)), rng.standard_normal((FEATURES, 3 * FEATURES)) / 2, rng.standard_normal(3 * FEATURES)
Q, K, V = (rng.standard_normal((N, length, FEATURES)) for length in (S, T, T))
PAST = rng.standard_normal((2, N, HEADS, 3, SIZE))
KEPT = np.array([[1, 1, 1, 0], [1, 1, 0, 0]], np.int32)
KEPT_OF_KEYS = np.array([[1, 1, 1, 0, 0], [0, 1, 1, 1, 1]], np.int32)


def in_heads(x, heads=HEADS):
    return x.reshape(*x.shape[:2], heads, -1).swapaxes(1, 2)


def together(x):
    return x.swapaxes(1, 2).reshape(x.shape[0], x.shape[2], -1)


def softmax_mix(q, k, v, mask=0.0, scale=None, softcap=0.0):
    scores = q @ k.swapaxes(-1, -2) * (q.shape[-1] ** -0.5 if scale is None else scale)
    scores = (softcap * np.tanh(scores / softcap) if softcap else scores) + mask
    p = np.exp(scores - scores.max(-1, keepdims=True))
    return together(p / p.sum(-1, keepdims=True) @ v)


def causal(rows, keys, window=None):
    place = np.arange(rows)[:, None] + keys - rows
    hidden = np.arange(keys) > place
    return np.where(hidden if window is None else hidden | (np.arange(keys) <= place - window), -1e30, 0)


def hides(kept, fill=-1e4):
    """[n, t] or [n, s, t] of 0 and 1 as what is added to scores."""
    return (1 - (kept[:, None] if kept.ndim == 2 else kept)[:, None]) * fill


def projected(x, w, b, *, mask=0.0, past=None, sizes=(FEATURES,) * 3, **options):
    q, k, v = map(in_heads, np.split(x @ w + b, np.cumsum(sizes)[:2], -1))
    if past is not None:
        k, v = np.concatenate([past[0], k], 2), np.concatenate([past[1], v], 2)
    return softmax_mix(q, k, v, mask, **options), np.stack([k, v]) if k.shape == v.shape else None


def own_attention(label, inputs, oracle, outputs=1, **attributes):
    return Sample("Attention", inputs, oracle, {"num_heads": HEADS, **attributes}, MICROSOFT, outputs, label=label, gradient=outputs == 1)


def multi_head(label, inputs, oracle, outputs=1, **attributes):
    return Sample("MultiHeadAttention", inputs, oracle, {"num_heads": HEADS, **attributes}, MICROSOFT, outputs, label=label, gradient=outputs == 1)


def mixed(q, k, v, mask=0.0, **options):
    return softmax_mix(in_heads(q), in_heads(k), in_heads(v), mask, **options)


BIAS = rng.standard_normal((1, HEADS, S, S))
EACH = (rng.random((N, S, S)) < 0.6).astype(np.int32) | np.eye(S, dtype=np.int32)
WIDE = rng.standard_normal((FEATURES, 2 * FEATURES + 10)), rng.standard_normal(2 * FEATURES + 10)
ATTENTION = [
    own_attention("plain", [X, W, B], lambda *a: projected(*a)[0]),
    own_attention("causal", [X, W, B], lambda *a: projected(*a, mask=causal(S, S))[0], unidirectional=1),
    own_attention("padding", [X, W, B, KEPT], lambda x, w, b, m: projected(x, w, b, mask=hides(m))[0]),
    own_attention("filler", [X, W, B, KEPT], lambda x, w, b, m: projected(x, w, b, mask=hides(m, -2.0))[0], mask_filter_value=-2.0),
    own_attention("lengths", [X, W, B, KEPT.sum(1, dtype=np.int32)], lambda x, w, b, m: projected(x, w, b, mask=hides(KEPT))[0]),
    own_attention("ends-and-starts", [X, W, B, np.array([4, 3, 1, 0], np.int32)],
                  lambda x, w, b, m: projected(x, w, b, mask=hides(np.array([[0, 1, 1, 1], [1, 1, 1, 0]])))[0]),
    own_attention("mask-of-rows", [X, W, B, EACH], lambda x, w, b, m: projected(x, w, b, mask=hides(m))[0]),
    own_attention("causal-padding", [X, W, B, KEPT], lambda x, w, b, m: projected(x, w, b, mask=hides(m) + causal(S, S))[0], unidirectional=1),
    own_attention("bias", [X, W, B, None, None, BIAS], lambda x, w, b, m, p, a: projected(x, w, b, mask=a)[0]),
    own_attention("past", [X, W, B, None, PAST], lambda x, w, b, m, p: projected(x, w, b, past=p, mask=causal(S, S + 3)), 2, unidirectional=1),
    own_attention("past-gradient", [X, W, B, None, PAST], lambda x, w, b, m, p: projected(x, w, b, past=p)[0]),
    own_attention("sizes", [X, *WIDE], lambda *a: projected(*a, sizes=(FEATURES, FEATURES, 10))[0], qkv_hidden_sizes=[FEATURES, FEATURES, 10]),
    own_attention("scale", [X, W, B], lambda *a: projected(*a, scale=0.3)[0], scale=0.3),
]
V_WIDE = rng.standard_normal((N, T, 8))
PAST_K, PAST_V = PAST
MULTI_HEAD = [
    multi_head("plain", [Q, K, V], mixed), multi_head("other-width", [Q, K, V_WIDE], mixed),
    multi_head("bias", [Q, K, V, B], lambda q, k, v, b: mixed(*(x + c for x, c in zip((q, k, v), np.split(b, 3), strict=True)))),
    multi_head("padding", [Q, K, V, None, KEPT_OF_KEYS], lambda q, k, v, _, m: mixed(q, k, v, hides(m))),
    multi_head("bias-of-scores", [Q, K, V, None, None, rng.standard_normal((1, HEADS, S, T))], lambda q, k, v, b, m, a: mixed(q, k, v, a)),
    multi_head("split-keys", [Q, in_heads(K), in_heads(V)], lambda q, k, v: softmax_mix(in_heads(q), k, v)),
    multi_head("causal", [Q, Q + 1, Q + 2], lambda *a: mixed(*a, causal(S, S)), unidirectional=1),
    multi_head("past", [Q, K, V, None, None, None, PAST_K, PAST_V], lambda q, k, v, b, m, a, pk, pv: (
        softmax_mix(in_heads(q), np.concatenate([pk, in_heads(k)], 2), np.concatenate([pv, in_heads(v)], 2)),
        np.concatenate([pk, in_heads(k)], 2), np.concatenate([pv, in_heads(v)], 2)), 3),
]


# head sizes of 16, all that onnxruntime takes
GROUPED = [rng.standard_normal((N, S, heads * 16)) for heads in (4, 2, 2)]
LENGTHS, TOTAL = np.full(N, S - 1, np.int32), np.array(S, np.int32)
COSINES, SINES = np.cos(rng.uniform(0, 6, (10, 8))), np.sin(rng.uniform(0, 6, (10, 8)))


def turned(x, places, cosines, sines, interleaved=False):
    """[n, s, h, size]"""
    width = 2 * cosines.shape[1]
    c, s = cosines[places][:, :, None], sines[places][:, :, None]
    first, second = (slice(0, width, 2), slice(1, width, 2)) if interleaved else (slice(0, width // 2), slice(width // 2, width))
    y = x.copy()
    y[..., first], y[..., second] = x[..., first] * c - x[..., second] * s, x[..., second] * c + x[..., first] * s
    return y


def turned_flat(x, places, cosines, sines, heads, **how):
    return turned(x.reshape(*x.shape[:2], heads, -1), places, cosines, sines, **how).reshape(x.shape)


def shared_heads(q, k, v, window=None, softcap=0.0, past=None):
    q, k, v = in_heads(q, 4), in_heads(k, 2), in_heads(v, 2)
    if past is not None:
        k, v = np.concatenate([past[0], k], 2), np.concatenate([past[1], v], 2)
    return softmax_mix(q, k.repeat(2, 1), v.repeat(2, 1), causal(q.shape[2], k.shape[2], window), softcap=softcap), k, v


def grouped(label, inputs, oracle, outputs=1, **attributes):
    return Sample("GroupQueryAttention", inputs, oracle, {"num_heads": 4, "kv_num_heads": 2, **attributes}, MICROSOFT, outputs, label=label,
                  gradient=outputs == 1, indices=[i for i in range(3) if inputs[i] is not None])


FIRST = np.arange(S)[None].repeat(N, 0)
GROUPED_SAMPLES = [
    grouped("plain", [*GROUPED, None, None, LENGTHS, TOTAL], lambda q, k, v, *_: shared_heads(q, k, v), 3),
    grouped("packed", [np.concatenate(GROUPED, -1), None, None, None, None, LENGTHS, TOTAL],
            lambda x, *_: shared_heads(*np.split(x, [64, 96], -1))[0]),
    grouped("window", [*GROUPED, None, None, LENGTHS, TOTAL], lambda q, k, v, *_: shared_heads(q, k, v, 2)[0], local_window_size=2),
    grouped("softcap", [*GROUPED, None, None, LENGTHS, TOTAL], lambda q, k, v, *_: shared_heads(q, k, v, softcap=1.5)[0], softcap=1.5),
    grouped("empty-past", [*GROUPED, *(np.zeros((N, 2, 0, 16)),) * 2, LENGTHS, TOTAL], lambda q, k, v, *_: shared_heads(q, k, v), 3),
    *[grouped(f"rotary-{i}", [*GROUPED, None, None, LENGTHS, TOTAL, COSINES, SINES],
              lambda q, k, v, pk, pv, n, t, c, s, i=i: shared_heads(turned_flat(q, FIRST, c, s, 4, interleaved=i), turned_flat(k, FIRST, c, s, 2, interleaved=i), v)[0],
              do_rotary=1, rotary_interleaved=i) for i in (0, 1)],
    grouped("past", [*(x[:1, :1] for x in GROUPED), *rng.standard_normal((2, 1, 2, 3, 16)), np.array([3], np.int32), np.array(4, np.int32)],
            lambda q, k, v, pk, pv, *_: shared_heads(q, k, v, past=(pk, pv)), 3),
]
PLACES = np.array([[0, 1, 2, 3], [3, 4, 5, 6]])
ROTATED = rng.standard_normal((N, S, 3 * 16))
ROTARY = [Sample("RotaryEmbedding", inputs, oracle, {"interleaved": i, **more}, MICROSOFT, label=f"{label}-{i}", indices=[0]) for i in (0, 1) for label, inputs, oracle, more in (
    ("flat", [ROTATED, PLACES, COSINES, SINES], lambda x, p, c, s, i=i: turned_flat(x, p, c, s, 3, interleaved=i), {}),
    ("first-place", [ROTATED, np.array([2]), COSINES, SINES], lambda x, p, c, s, i=i: turned_flat(x, FIRST + 2, c, s, 3, interleaved=i), {}),
    ("split", [in_heads(ROTATED, 3), PLACES, COSINES, SINES],
     lambda x, p, c, s, i=i: turned(x.swapaxes(1, 2), p, c, s, i).swapaxes(1, 2), {}),
    ("partly", [ROTATED, PLACES, COSINES[:, :4], SINES[:, :4]], lambda x, p, c, s, i=i: turned_flat(x, p, c, s, 3, interleaved=i),
     {"num_heads": 3, "rotary_embedding_dim": 8}),
)]


def normalized(x, gamma, beta, epsilon=1e-12):
    centerd = x - x.mean(-1, keepdims=True)
    return centerd / np.sqrt((centerd**2).mean(-1, keepdims=True) + epsilon) * gamma + beta


IDS, SEGMENTS = np.array([[1, 2, 3], [4, 0, 1]], np.int32), np.array([[0, 0, 1], [1, 0, 1]], np.int32)
WORDS, PLACE_TABLE, SEGMENT_TABLE, GAMMA, BETA = (rng.standard_normal(shape) for shape in ((7, 6), (5, 6), (2, 6), 6, 6))
LIST_OF_PLACES = np.array([[2, 1, 0], [0, 1, 4]], np.int32)


def embedded(ids, segments, words, places, segment_table, gamma, beta, mask=None, chosen=None, epsilon=1e-12):
    total = words[ids] + (places[None, : ids.shape[1]] if chosen is None else places[chosen]) + (0 if segments is None else segment_table[segments])
    lengths = np.zeros(len(ids)) if mask is None else mask.sum(1)
    return normalized(total, gamma, beta, epsilon), lengths.astype(np.int32), total


EMBED = [
    Sample("EmbedLayerNormalization", [IDS, SEGMENTS, WORDS, PLACE_TABLE, SEGMENT_TABLE, GAMMA, BETA, np.array([[1, 1, 0], [1, 1, 1]], np.int32)], embedded,
           {}, MICROSOFT, 3, gradient=False),
    Sample("EmbedLayerNormalization", [IDS, SEGMENTS, WORDS, PLACE_TABLE, SEGMENT_TABLE, GAMMA, BETA], lambda *a: embedded(*a)[0], {}, MICROSOFT),
    Sample("EmbedLayerNormalization", [IDS, None, WORDS, PLACE_TABLE, None, GAMMA, BETA, None, LIST_OF_PLACES], lambda *a: embedded(*a, epsilon=1e-5)[:2],
           {"epsilon": 1e-5}, MICROSOFT, 2, gradient=False),
]


def simplified(x, gamma, epsilon=1e-5):
    inverse = 1 / np.sqrt((x**2).mean(-1, keepdims=True) + epsilon)
    return x * inverse * gamma, inverse


G = rng.uniform(0.5, 1.5, FEATURES)
SKIP, SKIP_BIAS = rng.standard_normal(X.shape), rng.standard_normal(FEATURES)
NORMALIZATIONS = [
    Sample("SimplifiedLayerNormalization", [X, G], lambda *a: simplified(*a)[0]),
    Sample("SimplifiedLayerNormalization", [X, G], lambda *a: simplified(*a, 1e-3), {"epsilon": 1e-3, "axis": -1}, outputs=2, gradient=False),
    Sample("SkipSimplifiedLayerNormalization", [X, SKIP, G], lambda x, s, g: simplified(x + s, g, 1e-6)[0], {"epsilon": 1e-6}, MICROSOFT),
    Sample("SkipSimplifiedLayerNormalization", [X, SKIP, G, SKIP_BIAS],
           lambda x, s, g, b: (simplified(x + s + b, g, 1e-6)[0], None, None, x + s + b), {"epsilon": 1e-6}, MICROSOFT, 4, gradient=False),
]


def simplified_back(dy, x, gamma, inverse):
    normal = x * inverse
    return (dy * gamma - normal * (dy * gamma * normal).mean(-1, keepdims=True)) * inverse, (dy * normal).sum((0, 1))


def softmax_of_sum(x, bias):
    p = np.exp(x + bias - (x + bias).max(-1, keepdims=True))
    return p / p.sum(-1, keepdims=True)


NORMALIZATIONS += [
    Sample("SimplifiedLayerNormalizationGrad", [rng.standard_normal(X.shape), X, G, simplified(X, G)[1]], simplified_back, {}, MICROSOFT, 2, gradient=False),
    Sample("BiasSoftmax", [X, SKIP], softmax_of_sum, {"axis": -1, "is_inner_broadcast": 0}, MICROSOFT),
]
SAMPLES = [*ATTENTION, *MULTI_HEAD, *GROUPED_SAMPLES, *ROTARY, *EMBED, *NORMALIZATIONS]
REFUSALS = [
    Refusal("Attention", [X, W[:, :-1], B], {"num_heads": HEADS}, MICROSOFT), Refusal("Attention", [X, W, B], {"num_heads": 4}, MICROSOFT),
    Refusal("Attention", [X[0], W, B], {"num_heads": HEADS}, MICROSOFT), Refusal("MultiHeadAttention", [Q], {"num_heads": HEADS}, MICROSOFT),
    Refusal("MultiHeadAttention", [Q, K, V], {"num_heads": 4}, MICROSOFT), Refusal("MultiHeadAttention", [Q, K, V], {}, MICROSOFT),
    Refusal("GroupQueryAttention", [*GROUPED, None, None, LENGTHS, TOTAL], {"num_heads": 3, "kv_num_heads": 2}, MICROSOFT),
    Refusal("RotaryEmbedding", [ROTATED[0], PLACES, COSINES, SINES], {}, MICROSOFT), Refusal("EmbedLayerNormalization", [IDS[0], None, WORDS, PLACE_TABLE], {}, MICROSOFT),
]
