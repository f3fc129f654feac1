"""Samples of the normalization operators."""

import numpy as np

from tests.ops.samples import Refusal, Sample

rng = np.random.default_rng(6)
MICROSOFT = "com.microsoft"
SCALE, BIAS, MEAN, VARIANCE = rng.uniform(0.5, 1.5, 4), rng.standard_normal(4), rng.standard_normal(4), rng.uniform(0.5, 2, 4)
BATCHES = [rng.standard_normal(shape) * 2 + 3 for shape in ((5, 4), (2, 4, 9), (3, 4, 5, 7), (2, 4, 2, 3, 3))]


def broadcast_channels(v, x):
    return v.reshape(1, -1, *[1] * (x.ndim - 2))


def reduction_axes(x):
    return tuple(a for a in range(x.ndim) if a != 1)


def batch_norm_inference(epsilon):
    return lambda x, s, b, m, v: broadcast_channels(s, x) * (x - broadcast_channels(m, x)) / np.sqrt(broadcast_channels(v, x) + epsilon) + broadcast_channels(b, x)


def batch_norm_training(epsilon, momentum, internal):
    def oracle(x, s, b, m, v):
        mean, variance = x.mean(reduction_axes(x)), x.var(reduction_axes(x))
        y = broadcast_channels(s, x) * (x - broadcast_channels(mean, x)) / np.sqrt(broadcast_channels(variance, x) + epsilon) + broadcast_channels(b, x)
        outputs = (y, m * momentum + mean * (1 - momentum), v * momentum + variance * (1 - momentum), mean, 1 / np.sqrt(variance + epsilon))
        return outputs if internal else outputs[:3]

    return oracle


def batch_norm_gradient(dy, x, scale, mean, inverse):
    n = x.size / x.shape[1]
    normal = (x - broadcast_channels(mean, x)) * broadcast_channels(inverse, x)
    dscale, dbias = (dy * normal).sum(reduction_axes(x)), dy.sum(reduction_axes(x))
    return broadcast_channels(scale * inverse, x) * (dy - broadcast_channels(dbias, x) / n - normal * broadcast_channels(dscale, x) / n), dscale, dbias


def batch(op_type, x, oracle, outputs=1, domain="", **attributes):
    return Sample(op_type, [x, SCALE, BIAS, MEAN, VARIANCE], oracle, attributes, domain, outputs, indices=[0, 1, 2], opset=1 if domain else 15)


def layer(epsilon, axis):
    def oracle(x, s, b=0):
        axes = tuple(range(axis % x.ndim, x.ndim))
        mean, inverse = x.mean(axes, keepdims=True), 1 / np.sqrt(x.var(axes, keepdims=True) + epsilon)
        return (x - mean) * inverse * s + b, mean, inverse

    return oracle


def layer_gradient(axis):
    def oracle(dy, x, s, mean, inverse):
        axes, leading = tuple(range(axis % x.ndim, x.ndim)), tuple(range(axis % x.ndim))
        normal, d = (x - mean) * inverse, dy * s
        dx = inverse * (d - d.mean(axes, keepdims=True) - normal * (d * normal).mean(axes, keepdims=True))
        return dx, (dy * normal).sum(leading), dy.sum(leading)

    return oracle


Y = rng.standard_normal((3, 6, 21)) + 1
S, B = rng.uniform(0.5, 1.5, 21), rng.standard_normal(21)
S2, B2 = rng.uniform(0.5, 1.5, (6, 21)), rng.standard_normal((6, 21))


def first_output(oracle):
    return lambda *a: oracle(*a)[0]


def statistics(x):
    return x.mean(reduction_axes(x)), 1 / np.sqrt(x.var(reduction_axes(x)) + 1e-5)


def layer_statistics(x, axis):
    axes = tuple(range(axis % x.ndim, x.ndim))
    return x.mean(axes, keepdims=True), 1 / np.sqrt(x.var(axes, keepdims=True) + 1e-5)


def skip_layer_norm(x, skip, gamma, beta=None, bias=None):
    total = x + skip + (0 if bias is None else bias)
    centerd = total - total.mean(-1, keepdims=True)
    y = centerd / np.sqrt((centerd**2).mean(-1, keepdims=True) + 1e-12) * gamma
    return y if beta is None else y + beta


def group_statistics(x, groups):
    """Return the mean and 1 / standard deviation of each group of channels of each image, [n, groups]."""
    rows = x.reshape(len(x), groups, -1)
    return rows.mean(2), 1 / np.sqrt(rows.var(2) + 1e-5)


def group_norm_gradient(dy, x, s, mean, inverse):
    shape = (len(x), mean.shape[1], -1)
    normal = ((x.reshape(shape) - mean[..., None]) * inverse[..., None]).reshape(x.shape)
    d, rows = (dy * broadcast_channels(s, x)).reshape(shape), normal.reshape(shape)
    dx = inverse[..., None] * (d - d.mean(2, keepdims=True) - rows * (d * rows).mean(2, keepdims=True))
    return dx.reshape(x.shape), (dy * normal).sum(reduction_axes(x)), dy.sum(reduction_axes(x))


SAMPLES = [
    *[Sample("SkipLayerNormalization", [*(rng.standard_normal((2, 3, 6)) for _ in range(2)), *(rng.standard_normal(6) for _ in range(n))], skip_layer_norm, {},
             "com.microsoft") for n in (1, 2, 3)],
    *[batch("BatchNormalization", x, batch_norm_inference(1e-3), epsilon=1e-3) for x in BATCHES],
    *[Sample("BatchNormalization", [x, SCALE, BIAS, MEAN, VARIANCE], batch_norm_training(1e-5, 0.8, False), {"momentum": 0.8, "training_mode": 1}, outputs=3, gradient=False,
             opset=15) for x in BATCHES],
    *[Sample("BatchNormInternal", [x, SCALE, BIAS, MEAN, VARIANCE], batch_norm_training(1e-5, 0.9, True), {}, MICROSOFT, 5, gradient=False) for x in BATCHES],
    *[batch("BatchNormInternal", x, first_output(batch_norm_training(1e-5, 0.9, True)), domain=MICROSOFT) for x in BATCHES],
    batch("BatchNormalization", BATCHES[2], first_output(batch_norm_training(1e-5, 0.9, False)), training_mode=1),
    *[Sample("BatchNormalizationGrad", [rng.standard_normal(x.shape), x, SCALE, *statistics(x)], batch_norm_gradient, {}, MICROSOFT, 3, gradient=False) for x in BATCHES],
    Sample("LayerNormalization", [Y, S, B], first_output(layer(1e-5, -1))), Sample("LayerNormalization", [Y, S], first_output(layer(1e-5, -1)), label="no-bias"),
    Sample("LayerNormalization", [Y, S2, B2], first_output(layer(1e-4, 1)), {"axis": 1, "epsilon": 1e-4}),
    Sample("LayerNormalization", [Y, S, B], layer(1e-5, -1), outputs=3, gradient=False),
    Sample("LayerNormalizationGrad", [rng.standard_normal(Y.shape), Y, S, *layer_statistics(Y, -1)], layer_gradient(-1), {}, MICROSOFT, 3, gradient=False),
    Sample("LayerNormalizationGrad", [rng.standard_normal(Y.shape), Y, S2, *layer_statistics(Y, 1)], layer_gradient(1), {"axis": 1}, MICROSOFT, 3, gradient=False),
]


def rms_norm(epsilon, axis):
    def oracle(x, scale):
        inverse = 1 / np.sqrt((x**2).mean(tuple(range(axis % x.ndim, x.ndim)), keepdims=True) + epsilon)
        return x * inverse * scale, inverse

    return oracle


def rms_norm_gradient(axis):
    def oracle(dy, x, scale, inverse):
        leading, reduced = tuple(range(axis % x.ndim)), tuple(range(axis % x.ndim, x.ndim))
        normal = x * inverse
        return (dy * scale - normal * (dy * scale * normal).mean(reduced, keepdims=True)) * inverse, (dy * normal).sum(leading)

    return oracle


ROWS = [rng.standard_normal(shape) + 0.5 for shape in ((3, 6, 21), (2, 5, 16), (5, 100), (3, 384), (2, 2, 470), (20, 3), (4, 8), (3, 33), (2, 64))]
"""Rows of less than a vector, of some vectors with and without elements that are left, of fewer and of more elements than sums have lanes, and long ones, which
have more lanes."""
WIDTHS = {3: 600, 7: 20, 8: 9, 13: 40, 16: 5, 31: 3, 64: 4, 65: 3, 130: 3}
"""Rows of gradients by their elements."""
NORMAL = [rng.standard_normal((rows, width)) + 0.5 for width, rows in WIDTHS.items()]
SAMPLES += [
    *[Sample("LayerNormalization", [x, rng.uniform(0.5, 1.5, x.shape[-1]), rng.standard_normal(x.shape[-1])], first_output(layer(1e-5, -1))) for x in ROWS],
    *[Sample("SimplifiedLayerNormalization", [x, rng.uniform(0.5, 1.5, x.shape[-1])], first_output(rms_norm(1e-5, -1))) for x in ROWS],
    *[Sample("LayerNormalizationGrad", [rng.standard_normal(x.shape), x, rng.standard_normal(x.shape[1]), *layer_statistics(x, -1)], layer_gradient(-1), {},
             MICROSOFT, 3, gradient=False) for x in NORMAL],
    Sample("SimplifiedLayerNormalization", [Y, S2], rms_norm(1e-3, 1), {"epsilon": 1e-3, "axis": 1}, outputs=2, gradient=False),
    Sample("SimplifiedLayerNormalization", [Y, S2], first_output(rms_norm(1e-5, 1)), {"axis": 1}),
    *[Sample("SimplifiedLayerNormalizationGrad", [rng.standard_normal(x.shape), x, s, rms_norm(1e-5, axis)(x, s)[1]], rms_norm_gradient(axis), {"axis": axis},
             MICROSOFT, 2, gradient=False) for x, s, axis in ((Y, S, -1), (Y, S2, 1), (ROWS[4], rng.standard_normal(470), 2), *((x, rng.standard_normal(x.shape[1]), 1) for x in NORMAL))],
    *[Sample("RMSNormalization", [Y, scale], first_output(rms_norm(1e-5, axis)), {"axis": axis}, opset=23)
      for axis, scale in ((-1, S), (1, S2), (1, S), (-1, S[:1]))],
]


def instance_norm(x, s, b, epsilon=1e-5):
    axes = tuple(range(2, x.ndim))
    return broadcast_channels(s, x) * (x - x.mean(axes, keepdims=True)) / np.sqrt(x.var(axes, keepdims=True) + epsilon) + broadcast_channels(b, x)


def local_response(x, size, alpha=1e-4, beta=0.75, bias=1.0):
    total = np.zeros_like(x)
    for c in range(x.shape[1]):
        total[:, c] = (x[:, max(0, c - (size - 1) // 2) : c + size // 2 + 1] ** 2).sum(1)
    return x / (bias + alpha / size * total) ** beta


def group_norm(x, s, b, groups):
    """Group normalization; s and b have one element per channel, or per group as before opset 21."""
    z = x.reshape(len(x), groups, -1)
    z = ((z - z.mean(-1, keepdims=True)) / np.sqrt(z.var(-1, keepdims=True) + 1e-5)).reshape(x.shape)
    per_channel = [np.repeat(v, x.shape[1] // len(v)) for v in (s, b)]
    return broadcast_channels(per_channel[0], x) * z + broadcast_channels(per_channel[1], x)


SAMPLES += [
    *[Sample("GroupNormalization", [x, SCALE, BIAS], lambda x, s, b, n=n: group_norm(x, s, b, n), {"num_groups": n}, opset=21) for x in BATCHES[1:3] for n in (1, 2, 4)],
    Sample("GroupNormalization", [BATCHES[2], SCALE[:2], BIAS[:2]], lambda x, s, b: group_norm(x, s, b, 2), {"num_groups": 2}, opset=18),
    *[Sample("InstanceNormalization", [x, SCALE, BIAS], instance_norm) for x in BATCHES[1:]],
    *[Sample("GroupNorm", [x, SCALE, BIAS], lambda x, s, b, n=n: (group_norm(x, s, b, n), *group_statistics(x, n)), {"num_groups": n}, "ortrain", outputs=3,
             gradient=False)
      for x in BATCHES[1:] for n in (1, 2, 4)],
    *[Sample("GroupNormGrad", [x[::-1] - 3, x, SCALE, *group_statistics(x, n)], lambda dy, x, s, m, i: group_norm_gradient(dy, x, s, m, i),
             {"num_groups": n}, "ortrain", outputs=3, gradient=False) for x in BATCHES[1:] for n in (1, 2)],
    Sample("InstanceNormalization", [BATCHES[2], SCALE, BIAS], lambda *a: instance_norm(*a, 0.1), {"epsilon": 0.1}),
    Sample("InstanceNormalization", [BATCHES[2], SCALE, BIAS], instance_norm, opset=18),
    *[Sample("LpNormalization", [BATCHES[2]], lambda x, p=p, a=a: x / np.linalg.norm(x, p, a, keepdims=True), {"p": p, "axis": a}) for p in (1, 2) for a in (1, -1)],
    Sample("LpNormalization", [np.zeros((2, 3))], lambda x: x, gradient=False),
    *[Sample("LRN", [BATCHES[2]], lambda x, n=n: local_response(x, n, 0.5, 0.6, 2.0), {"size": n, "alpha": 0.5, "beta": 0.6, "bias": 2.0}) for n in (1, 2, 3, 7)],
    Sample("LRN", [BATCHES[3]], lambda x: local_response(x, 3), {"size": 3}),
]
REFUSALS = [
    Refusal("BatchNormalization", [BATCHES[1], SCALE[:3], BIAS, MEAN, VARIANCE]), Refusal("BatchNormalization", [BATCHES[1][0, 0], SCALE, BIAS, MEAN, VARIANCE]),
    Refusal("LayerNormalization", [Y, S[:5]]), Refusal("LayerNormalization", [Y, S], {"axis": 3}),
    Refusal("LayerNormalization", [Y, np.ones(Y.shape[1])], {"axis": 1}),
    Refusal("SimplifiedLayerNormalization", [Y, S[:5]]), Refusal("SimplifiedLayerNormalization", [Y, S], {"axis": 3}), Refusal("RMSNormalization", [Y, S[:5]], opset=23),
    Refusal("GroupNormalization", [BATCHES[2], SCALE, BIAS], {"num_groups": 3}, opset=21, match="divide"),
    Refusal("GroupNormalization", [BATCHES[2], SCALE[:2], BIAS[:2]], {"num_groups": 2}, opset=21, match="input 1"),
]
