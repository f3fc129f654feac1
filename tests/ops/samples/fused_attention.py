"""Samples of scaled dot-product attention."""

import numpy as np

from tests.ops.samples import Refusal, Sample

rng = np.random.default_rng(23)
SCALE = 0.5
N, HEADS, SIZE, WIDTH = 2, 3, 4, 5


def operands(rows, keys, shared=HEADS):
    """Return random q, k and v. shared: the number of heads of k and v."""
    return [rng.standard_normal(shape) for shape in ((N, rows, HEADS, SIZE), (N, keys, shared, SIZE), (N, keys, shared, WIDTH))]


def per_query(x):
    """Return keys or values with one head per head of queries."""
    return np.repeat(x, HEADS // x.shape[2], 2)


def per_key(gradient, shared):
    """Return a gradient of heads of queries, added up per head of keys."""
    n, keys, _, size = gradient.shape
    return gradient.reshape(n, keys, shared, HEADS // shared, size).sum(3)


def turned(x, heads_first):
    """Return [n, heads, rows, size] of [n, rows, heads, size], or the other way round, if heads come first."""
    return np.ascontiguousarray(x.swapaxes(1, 2)) if heads_first else x


def probabilities(q, k, v, mask=None):
    scores = SCALE * np.einsum("nihd,njhd->nhij", q, k) + (0 if mask is None else mask)
    top = scores.max(-1, keepdims=True)
    log_sums = np.log(np.exp(scores - top).sum(-1)) + top[..., 0]
    return np.exp(scores - log_sums[..., None]), log_sums


def attend(q, k, v, mask=None):
    p, log_sums = probabilities(q, per_query(k), v, mask)
    return np.einsum("nhij,njhd->nihd", p, per_query(v)), log_sums


def attend_gradient(dy, q, k, v, mask, y, log_sums):
    p, _ = probabilities(q, per_query(k), v, mask)
    dp = np.einsum("nihd,njhd->nhij", dy, per_query(v))
    ds = SCALE * p * (dp - (dp * p).sum(-1, keepdims=True))
    dk, dv = np.einsum("nhij,nihd->njhd", ds, q), np.einsum("nhij,nihd->njhd", p, dy)
    return np.einsum("nhij,njhd->nihd", ds, per_query(k)), per_key(dk, k.shape[2]), per_key(dv, k.shape[2])


def causal(rows):
    return np.triu(np.full((rows, rows), -1e9), 1)


def forward_and_gradient(label, inputs, mask=None, constant=False):
    """Yield samples of the operator with one and with two outputs, and of its gradient."""
    own = {"scale": SCALE}
    forward = [*inputs, *([] if mask is None else [mask])]
    yield Sample("Attention", forward, lambda *a: attend(*a)[0], own, "ortrain", indices=[0, 1, 2], constants=[3] if constant else [],
                 label=label)
    y, log_sums = attend(*forward)
    yield Sample("Attention", forward, attend, own, "ortrain", outputs=2, gradient=False, constants=[3] if constant else [], label=f"{label}-two-outputs")
    yield Sample("AttentionGrad", [rng.standard_normal(y.shape), *inputs, mask, y, log_sums], attend_gradient, own, "ortrain", outputs=3, gradient=False,
                 constants=[4] if constant else [], label=label)


def ordered(label, inputs, orders, mask=None):
    """Yield samples of the operator with heads before rows in some of q, k, v and y, and of its gradient."""
    own, (y, log_sums) = {"scale": SCALE, "heads_first": orders}, attend(*inputs, *([] if mask is None else [mask]))
    given = [turned(x, order) for x, order in zip(inputs, orders, strict=False)]

    def rows_first(arrays):
        return [turned(x, order) for x, order in zip(arrays, orders, strict=False)]

    def forward(q, k, v, mask=None):
        result, sums = attend(*rows_first((q, k, v)), mask)
        return turned(result, orders[3]), sums

    def gradient(dy, q, k, v, mask, y, log_sums):
        return tuple(rows_first(attend_gradient(turned(dy, orders[3]), *rows_first((q, k, v)), mask, y, log_sums)))

    yield Sample("Attention", [*given, *([] if mask is None else [mask])], lambda *a: forward(*a)[0], own, "ortrain", indices=[0, 1, 2], label=label)
    yield Sample("AttentionGrad", [turned(rng.standard_normal(y.shape), orders[3]), *given, mask, turned(y, orders[3]), log_sums], gradient, own, "ortrain",
                 outputs=3, gradient=False, label=label)


def packed(label, rows, mask=None, constant=False, queries=None):
    """Yield samples of the operator whose queries, keys and values are one input, and of its gradient. queries: the first one and their number; None for all."""
    qkv, given = rng.standard_normal((N, rows, 3, HEADS, SIZE)), [] if mask is None else [mask]
    first, count = queries or (0, rows)

    def forward(qkv, mask=None):
        q, k, v = np.moveaxis(qkv, 2, 0)
        return attend(q[:, first : first + count], k, v, mask)

    def gradient(dy, qkv, mask, y, log_sums):
        q, k, v = np.moveaxis(qkv, 2, 0)
        dq, dk, dv = attend_gradient(dy, q[:, first : first + count], k, v, mask, y, log_sums)
        return np.stack([np.pad(dq, ((0, 0), (first, rows - first - count), (0, 0), (0, 0))), dk, dv], 2)

    own, y, log_sums = {"scale": SCALE} | ({"query_rows": count, "first_query": first} if queries else {}), *forward(qkv, mask)
    yield Sample("PackedAttention", [qkv, *given], lambda *a: forward(*a)[0], own, "ortrain", indices=[0], constants=[1] if constant else [], label=label)
    yield Sample("PackedAttention", [qkv, *given], forward, own, "ortrain", outputs=2, gradient=False, constants=[1] if constant else [],
                 label=f"{label}-two-outputs")
    yield Sample("PackedAttentionGrad", [rng.standard_normal(y.shape), qkv, mask, y, log_sums], gradient, own, "ortrain", gradient=False,
                 constants=[2] if constant else [], label=label)


PADDING = np.where(rng.random((N, 1, 1, 7)) < 0.4, -1e4, 0.0)
PADDING[..., 0] = 0
PADDING_OF_9 = np.where(np.arange(9) < rng.integers(1, 10, (N, 1, 1, 1)), 0.0, -1e4)
LONG = operands(150, 150)
SAMPLES = [
    *forward_and_gradient("plain", operands(6, 6)), *forward_and_gradient("other-keys", operands(5, 9)), *forward_and_gradient("causal", operands(6, 6), causal(6), True),
    *forward_and_gradient("causal-not-known", operands(6, 6), causal(6)), *forward_and_gradient("padding", operands(5, 7), PADDING),
    *forward_and_gradient("bias-of-heads", operands(4, 7), rng.standard_normal((1, HEADS, 4, 7))), *forward_and_gradient("column", operands(4, 7), rng.standard_normal((4, 1))),
    *forward_and_gradient("one-row", operands(1, 3)), *forward_and_gradient("shared-heads", operands(5, 9, 1)),
    *forward_and_gradient("whole-vectors", operands(3, 64)), *forward_and_gradient("end-of-row", operands(3, 37), rng.standard_normal((3, 37))),
    *ordered("heads-first", operands(6, 6), (1, 1, 1, 1)), *ordered("queries-first", operands(5, 9), (0, 1, 1, 0), rng.standard_normal((1, HEADS, 5, 9))),
    *ordered("keys-rows-first", operands(5, 9), (1, 0, 1, 0)), *ordered("shared-heads-first", operands(5, 9, 1), (1, 1, 1, 0), PADDING_OF_9), *packed("packed", 6), *packed("packed-causal", 6, causal(6), True),
    *packed("packed-padding", 7, PADDING), *packed("packed-class-token", 7, PADDING, queries=(0, 1)), *packed("packed-last-tokens", 6, queries=(4, 2)),
]
SAMPLES += [s for s in (*forward_and_gradient("blocks", LONG), *forward_and_gradient("causal-blocks", LONG, causal(150), True)) if s.outputs > 1]
SAMPLES += [s for s in (*packed("packed-blocks", 150), *packed("packed-causal-blocks", 150, causal(150), True), *packed("packed-some-blocks", 150, queries=(3, 140)))
            if not s.gradient]


def empty(label, q, k):
    """Return samples of the operator without results, and of its gradient, which is 0."""
    arrays = [np.ones(shape) for shape in (q, k, k)]
    log_sums = np.ones((q[0], q[2], q[1]))
    return [Sample("Attention", arrays, lambda q, k, v: (q, log_sums), {}, "ortrain", outputs=2, gradient=False, label=label),
            Sample("AttentionGrad", [np.ones(q), *arrays, None, np.ones(q), log_sums], lambda dy, q, k, v, *_: (0 * q, 0 * k, 0 * v), {}, "ortrain",
                   outputs=3, gradient=False, label=label)]


SAMPLES += [*empty("no-heads", (2, 3, 0, 4), (2, 5, 0, 4)), *empty("no-queries", (2, 0, 2, 4), (2, 5, 2, 4)), *empty("no-samples", (0, 3, 2, 4), (0, 5, 1, 4))]
REFUSALS = [
    Refusal("Attention", [np.ones((2, 3, 4)), np.ones((2, 3, 4)), np.ones((2, 3, 4))], {}, "ortrain"),
    Refusal("Attention", [np.ones((2, 3, 2, 4)), np.ones((2, 3, 2, 5)), np.ones((2, 3, 2, 5))], {}, "ortrain"),
    Refusal("Attention", [np.ones((2, 3, 3, 4)), np.ones((2, 3, 2, 4)), np.ones((2, 3, 2, 4))], {}, "ortrain"),
    Refusal("Attention", [np.ones((2, 5, 3, 4)), np.ones((2, 3, 6, 4)), np.ones((2, 3, 6, 4))], {"heads_first": (0, 1, 1)}, "ortrain"),
    Refusal("Attention", [np.ones((2, 5, 3, 4)), np.ones((2, 3, 6, 4)), np.ones((2, 3, 6, 4))], {"heads_first": (0, 1, 2, 0)}, "ortrain"),
    Refusal("PackedAttention", [np.ones((2, 3, 2, 2, 5))], {}, "ortrain"), Refusal("PackedAttention", [np.ones((2, 3, 2, 5))], {}, "ortrain"),
    Refusal("PackedAttention", [np.ones((2, 3, 3, 2, 5)), np.ones((4, 3))], {}, "ortrain"),
    *(Refusal("PackedAttention", [np.ones((2, 3, 3, 2, 5))], {"query_rows": count, "first_query": first}, "ortrain")
      for count, first in ((4, 0), (2, 2), (-1, 0), (0, 1), (1, -1))),
]
