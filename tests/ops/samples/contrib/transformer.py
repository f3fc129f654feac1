"""Samples of the transformer operators that ONNX Runtime's optimizer emits."""

import numpy as np

from tests.ops.samples import Refusal, Sample

rng = np.random.default_rng(61)
MICROSOFT = "com.microsoft"
N, S, T, HEADS, SIZE = 2, 4, 5, 2, 3
FEATURES = HEADS * SIZE
X, W, B = rng.standard_normal((N, S, FEATURES)), rng.standard_normal((FEATURES, 3 * FEATURES)) / 2, rng.standard_normal(3 * FEATURES)
Q, K, V = (rng.standard_normal((N, length, FEATURES)) for length in (S, T, T))
PAST = rng.standard_normal((2, N, HEADS, 3, SIZE))
MASK = np.array([[1, 1, 1, 0], [1, 1, 0, 0]], np.int32)
KEY_MASK = np.array([[1, 1, 1, 0, 0], [0, 1, 1, 1, 1]], np.int32)


def split_heads(x, heads=HEADS):
    return x.reshape(*x.shape[:2], heads, -1).swapaxes(1, 2)


def join_heads(x):
    return x.swapaxes(1, 2).reshape(x.shape[0], x.shape[2], -1)


def attend(q, k, v, mask=0.0, scale=None, softcap=0.0):
    scores = q @ k.swapaxes(-1, -2) * (q.shape[-1] ** -0.5 if scale is None else scale)
    scores = (softcap * np.tanh(scores / softcap) if softcap else scores) + mask
    p = np.exp(scores - scores.max(-1, keepdims=True))
    return join_heads(p / p.sum(-1, keepdims=True) @ v)


def causal(rows, keys, window=None):
    query = np.arange(rows)[:, None] + keys - rows
    masked = np.arange(keys) > query
    return np.where(masked if window is None else masked | (np.arange(keys) <= query - window), -1e30, 0)


def padding(mask, fill=-1e4):
    """Return what a 0/1 mask [n, t] or [n, s, t] adds to the scores."""
    return (1 - (mask[:, None] if mask.ndim == 2 else mask)[:, None]) * fill


def self_attention(x, w, b, *, mask=0.0, past=None, sizes=(FEATURES,) * 3, **options):
    q, k, v = map(split_heads, np.split(x @ w + b, np.cumsum(sizes)[:2], -1))
    if past is not None:
        k, v = np.concatenate([past[0], k], 2), np.concatenate([past[1], v], 2)
    return attend(q, k, v, mask, **options), np.stack([k, v]) if k.shape == v.shape else None


def attention_sample(label, inputs, oracle, outputs=1, **attributes):
    return Sample("Attention", inputs, oracle, {"num_heads": HEADS, **attributes}, MICROSOFT, outputs, label=label, gradient=outputs == 1)


def multi_head_sample(label, inputs, oracle, outputs=1, **attributes):
    return Sample("MultiHeadAttention", inputs, oracle, {"num_heads": HEADS, **attributes}, MICROSOFT, outputs, label=label, gradient=outputs == 1)


def multi_head_attention(q, k, v, mask=0.0, **options):
    return attend(split_heads(q), split_heads(k), split_heads(v), mask, **options)


BIAS = rng.standard_normal((1, HEADS, S, S))
ROW_MASK = (rng.random((N, S, S)) < 0.6).astype(np.int32) | np.eye(S, dtype=np.int32)
WIDE_V = rng.standard_normal((FEATURES, 2 * FEATURES + 10)), rng.standard_normal(2 * FEATURES + 10)
ATTENTION = [
    attention_sample("plain", [X, W, B], lambda *a: self_attention(*a)[0]),
    attention_sample("causal", [X, W, B], lambda *a: self_attention(*a, mask=causal(S, S))[0], unidirectional=1),
    attention_sample("padding", [X, W, B, MASK], lambda x, w, b, m: self_attention(x, w, b, mask=padding(m))[0]),
    attention_sample("filler", [X, W, B, MASK], lambda x, w, b, m: self_attention(x, w, b, mask=padding(m, -2.0))[0], mask_filter_value=-2.0),
    attention_sample("lengths", [X, W, B, MASK.sum(1, dtype=np.int32)], lambda x, w, b, m: self_attention(x, w, b, mask=padding(MASK))[0]),
    attention_sample("ends-and-starts", [X, W, B, np.array([4, 3, 1, 0], np.int32)],
                  lambda x, w, b, m: self_attention(x, w, b, mask=padding(np.array([[0, 1, 1, 1], [1, 1, 1, 0]])))[0]),
    attention_sample("mask-of-rows", [X, W, B, ROW_MASK], lambda x, w, b, m: self_attention(x, w, b, mask=padding(m))[0]),
    attention_sample("causal-padding", [X, W, B, MASK], lambda x, w, b, m: self_attention(x, w, b, mask=padding(m) + causal(S, S))[0], unidirectional=1),
    attention_sample("bias", [X, W, B, None, None, BIAS], lambda x, w, b, m, p, a: self_attention(x, w, b, mask=a)[0]),
    attention_sample("past", [X, W, B, None, PAST], lambda x, w, b, m, p: self_attention(x, w, b, past=p, mask=causal(S, S + 3)), 2, unidirectional=1),
    attention_sample("past-gradient", [X, W, B, None, PAST], lambda x, w, b, m, p: self_attention(x, w, b, past=p)[0]),
    attention_sample("sizes", [X, *WIDE_V], lambda *a: self_attention(*a, sizes=(FEATURES, FEATURES, 10))[0], qkv_hidden_sizes=[FEATURES, FEATURES, 10]),
    attention_sample("scale", [X, W, B], lambda *a: self_attention(*a, scale=0.3)[0], scale=0.3),
]
V_WIDE = rng.standard_normal((N, T, 8))
PAST_K, PAST_V = PAST
MULTI_HEAD = [
    multi_head_sample("plain", [Q, K, V], multi_head_attention), multi_head_sample("other-width", [Q, K, V_WIDE], multi_head_attention),
    multi_head_sample("bias", [Q, K, V, B], lambda q, k, v, b: multi_head_attention(*(x + c for x, c in zip((q, k, v), np.split(b, 3), strict=True)))),
    multi_head_sample("padding", [Q, K, V, None, KEY_MASK], lambda q, k, v, _, m: multi_head_attention(q, k, v, padding(m))),
    multi_head_sample("bias-of-scores", [Q, K, V, None, None, rng.standard_normal((1, HEADS, S, T))], lambda q, k, v, b, m, a: multi_head_attention(q, k, v, a)),
    multi_head_sample("split-keys", [Q, split_heads(K), split_heads(V)], lambda q, k, v: attend(split_heads(q), k, v)),
    multi_head_sample("causal", [Q, Q + 1, Q + 2], lambda *a: multi_head_attention(*a, causal(S, S)), unidirectional=1),
    multi_head_sample("past", [Q, K, V, None, None, None, PAST_K, PAST_V], lambda q, k, v, b, m, a, pk, pv: (
        attend(split_heads(q), np.concatenate([pk, split_heads(k)], 2), np.concatenate([pv, split_heads(v)], 2)),
        np.concatenate([pk, split_heads(k)], 2), np.concatenate([pv, split_heads(v)], 2)), 3),
]


# onnxruntime accepts head sizes that are multiples of 16
GROUPED = [rng.standard_normal((N, S, heads * 16)) for heads in (4, 2, 2)]
LENGTHS, TOTAL = np.full(N, S - 1, np.int32), np.array(S, np.int32)
COSINES, SINES = np.cos(rng.uniform(0, 6, (10, 8))), np.sin(rng.uniform(0, 6, (10, 8)))


def rotate(x, positions, cosines, sines, interleaved=False):
    """Rotate pairs of features of x [n, s, h, size] by the angles of their positions."""
    width = 2 * cosines.shape[1]
    c, s = cosines[positions][:, :, None], sines[positions][:, :, None]
    first, second = (slice(0, width, 2), slice(1, width, 2)) if interleaved else (slice(0, width // 2), slice(width // 2, width))
    y = x.copy()
    y[..., first], y[..., second] = x[..., first] * c - x[..., second] * s, x[..., second] * c + x[..., first] * s
    return y


def rotate_flat(x, positions, cosines, sines, heads, **options):
    """Rotate x [n, s, heads size]."""
    return rotate(x.reshape(*x.shape[:2], heads, -1), positions, cosines, sines, **options).reshape(x.shape)


def grouped_attention(q, k, v, window=None, softcap=0.0, past=None):
    q, k, v = split_heads(q, 4), split_heads(k, 2), split_heads(v, 2)
    if past is not None:
        k, v = np.concatenate([past[0], k], 2), np.concatenate([past[1], v], 2)
    return attend(q, k.repeat(2, 1), v.repeat(2, 1), causal(q.shape[2], k.shape[2], window), softcap=softcap), k, v


def grouped_sample(label, inputs, oracle, outputs=1, **attributes):
    return Sample("GroupQueryAttention", inputs, oracle, {"num_heads": 4, "kv_num_heads": 2, **attributes}, MICROSOFT, outputs, label=label,
                  gradient=outputs == 1, indices=[i for i in range(3) if inputs[i] is not None])


POSITIONS = np.arange(S)[None].repeat(N, 0)
GROUPED_SAMPLES = [
    grouped_sample("plain", [*GROUPED, None, None, LENGTHS, TOTAL], lambda q, k, v, *_: grouped_attention(q, k, v), 3),
    grouped_sample("packed", [np.concatenate(GROUPED, -1), None, None, None, None, LENGTHS, TOTAL],
            lambda x, *_: grouped_attention(*np.split(x, [64, 96], -1))[0]),
    grouped_sample("window", [*GROUPED, None, None, LENGTHS, TOTAL], lambda q, k, v, *_: grouped_attention(q, k, v, 2)[0], local_window_size=2),
    grouped_sample("softcap", [*GROUPED, None, None, LENGTHS, TOTAL], lambda q, k, v, *_: grouped_attention(q, k, v, softcap=1.5)[0], softcap=1.5),
    grouped_sample("empty-past", [*GROUPED, *(np.zeros((N, 2, 0, 16)),) * 2, LENGTHS, TOTAL], lambda q, k, v, *_: grouped_attention(q, k, v), 3),
    *[grouped_sample(f"rotary-{i}", [*GROUPED, None, None, LENGTHS, TOTAL, COSINES, SINES],
              lambda q, k, v, pk, pv, n, t, c, s, i=i: grouped_attention(rotate_flat(q, POSITIONS, c, s, 4, interleaved=i), rotate_flat(k, POSITIONS, c, s, 2, interleaved=i), v)[0],
              do_rotary=1, rotary_interleaved=i) for i in (0, 1)],
    grouped_sample("past", [*(x[:1, :1] for x in GROUPED), *rng.standard_normal((2, 1, 2, 3, 16)), np.array([3], np.int32), np.array(4, np.int32)],
            lambda q, k, v, pk, pv, *_: grouped_attention(q, k, v, past=(pk, pv)), 3),
]
ROTARY_POSITIONS = np.array([[0, 1, 2, 3], [3, 4, 5, 6]])
ROTARY_X = rng.standard_normal((N, S, 3 * 16))
ROTARY = [Sample("RotaryEmbedding", inputs, oracle, {"interleaved": i, **more}, MICROSOFT, label=f"{label}-{i}", indices=[0]) for i in (0, 1) for label, inputs, oracle, more in (
    ("flat", [ROTARY_X, ROTARY_POSITIONS, COSINES, SINES], lambda x, p, c, s, i=i: rotate_flat(x, p, c, s, 3, interleaved=i), {}),
    ("first-place", [ROTARY_X, np.array([2]), COSINES, SINES], lambda x, p, c, s, i=i: rotate_flat(x, POSITIONS + 2, c, s, 3, interleaved=i), {}),
    ("split", [split_heads(ROTARY_X, 3), ROTARY_POSITIONS, COSINES, SINES],
     lambda x, p, c, s, i=i: rotate(x.swapaxes(1, 2), p, c, s, i).swapaxes(1, 2), {}),
    ("partly", [ROTARY_X, ROTARY_POSITIONS, COSINES[:, :4], SINES[:, :4]], lambda x, p, c, s, i=i: rotate_flat(x, p, c, s, 3, interleaved=i),
     {"num_heads": 3, "rotary_embedding_dim": 8}),
)]


def layer_norm(x, gamma, beta, epsilon=1e-12):
    centered = x - x.mean(-1, keepdims=True)
    return centered / np.sqrt((centered**2).mean(-1, keepdims=True) + epsilon) * gamma + beta


IDS, SEGMENTS = np.array([[1, 2, 3], [4, 0, 1]], np.int32), np.array([[0, 0, 1], [1, 0, 1]], np.int32)
WORDS, POSITION_TABLE, SEGMENT_TABLE, GAMMA, BETA = (rng.standard_normal(shape) for shape in ((7, 6), (5, 6), (2, 6), 6, 6))
POSITION_IDS = np.array([[2, 1, 0], [0, 1, 4]], np.int32)


def embed_layer_norm(ids, segments, words, position_table, segment_table, gamma, beta, mask=None, positions=None, epsilon=1e-12):
    total = words[ids] + (position_table[None, : ids.shape[1]] if positions is None else position_table[positions]) + (0 if segments is None else segment_table[segments])
    lengths = np.zeros(len(ids)) if mask is None else mask.sum(1)
    return layer_norm(total, gamma, beta, epsilon), lengths.astype(np.int32), total


EMBED = [
    Sample("EmbedLayerNormalization", [IDS, SEGMENTS, WORDS, POSITION_TABLE, SEGMENT_TABLE, GAMMA, BETA, np.array([[1, 1, 0], [1, 1, 1]], np.int32)], embed_layer_norm,
           {}, MICROSOFT, 3, gradient=False),
    Sample("EmbedLayerNormalization", [IDS, SEGMENTS, WORDS, POSITION_TABLE, SEGMENT_TABLE, GAMMA, BETA], lambda *a: embed_layer_norm(*a)[0], {}, MICROSOFT),
    Sample("EmbedLayerNormalization", [IDS, None, WORDS, POSITION_TABLE, None, GAMMA, BETA, None, POSITION_IDS], lambda *a: embed_layer_norm(*a, epsilon=1e-5)[:2],
           {"epsilon": 1e-5}, MICROSOFT, 2, gradient=False),
]


def rms_norm(x, gamma, epsilon=1e-5):
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + epsilon) * gamma


G = rng.uniform(0.5, 1.5, FEATURES)
SKIP, SKIP_BIAS = rng.standard_normal(X.shape), rng.standard_normal(FEATURES)
NORMALIZATIONS = [
    Sample("SkipSimplifiedLayerNormalization", [X, SKIP, G], lambda x, s, g: rms_norm(x + s, g, 1e-6), {"epsilon": 1e-6}, MICROSOFT),
    Sample("SkipSimplifiedLayerNormalization", [X, SKIP, G, SKIP_BIAS],
           lambda x, s, g, b: (rms_norm(x + s + b, g, 1e-6), None, None, x + s + b), {"epsilon": 1e-6}, MICROSOFT, 4, gradient=False),
]


def bias_softmax(x, bias):
    p = np.exp(x + bias - (x + bias).max(-1, keepdims=True))
    return p / p.sum(-1, keepdims=True)


NORMALIZATIONS += [
    Sample("BiasSoftmax", [X, SKIP], bias_softmax, {"axis": -1, "is_inner_broadcast": 0}, MICROSOFT),
]
SAMPLES = [*ATTENTION, *MULTI_HEAD, *GROUPED_SAMPLES, *ROTARY, *EMBED, *NORMALIZATIONS]
REFUSALS = [
    Refusal("Attention", [X, W[:, :-1], B], {"num_heads": HEADS}, MICROSOFT), Refusal("Attention", [X, W, B], {"num_heads": 4}, MICROSOFT),
    Refusal("Attention", [X[0], W, B], {"num_heads": HEADS}, MICROSOFT), Refusal("MultiHeadAttention", [Q], {"num_heads": HEADS}, MICROSOFT),
    Refusal("MultiHeadAttention", [Q, K, V], {"num_heads": 4}, MICROSOFT), Refusal("MultiHeadAttention", [Q, K, V], {}, MICROSOFT),
    Refusal("GroupQueryAttention", [*GROUPED, None, None, LENGTHS, TOTAL], {"num_heads": 3, "kv_num_heads": 2}, MICROSOFT),
    Refusal("RotaryEmbedding", [ROTARY_X[0], ROTARY_POSITIONS, COSINES, SINES], {}, MICROSOFT), Refusal("EmbedLayerNormalization", [IDS[0], None, WORDS, POSITION_TABLE], {}, MICROSOFT),
]
