"""Samples of transposed convolution; the oracle adds each input times the weight to the output."""

import numpy as np

from tests.ops.samples import Refusal, Sample

rng = np.random.default_rng(31)


def transposed(x, w, b=None, **attributes):
    rank = x.ndim - 2
    strides, dilations = attributes.get("strides", (1,) * rank), attributes.get("dilations", (1,) * rank)
    extra, pads, group = attributes.get("output_padding", (0,) * rank), attributes.get("pads", (0,) * 2 * rank), attributes.get("group", 1)
    full = [s * (n - 1) + (k - 1) * d + 1 + e for n, s, k, d, e in zip(x.shape[2:], strides, w.shape[2:], dilations, extra, strict=True)]
    sizes = [f - pads[i] - pads[rank + i] for i, f in enumerate(full)]
    begins = list(pads[:rank])
    if attributes.get("auto_pad", "NOTSET").startswith("SAME") or "output_shape" in attributes:
        sizes = list(attributes.get("output_shape", [n * s for n, s in zip(x.shape[2:], strides, strict=True)]))
        total = [max(f - s, 0) for f, s in zip(full, sizes, strict=True)]
        begins = [t // 2 if attributes.get("auto_pad") == "SAME_UPPER" else t - t // 2 for t in total]
    room = [max(f, b + s) for f, b, s in zip(full, begins, sizes, strict=True)]
    per, filters = x.shape[1] // group, w.shape[1]
    y = np.zeros((x.shape[0], filters * group, *room), x.dtype)
    for g in range(group):
        for tap in np.ndindex(*w.shape[2:]):
            cut = tuple(slice(t * d, t * d + (n - 1) * s + 1, s) for t, d, n, s in zip(tap, dilations, x.shape[2:], strides, strict=True))
            y[(slice(None), slice(g * filters, (g + 1) * filters), *cut)] += np.einsum(
                "nc...,ck->nk...", x[:, g * per:(g + 1) * per], w[(slice(g * per, (g + 1) * per), slice(None), *tap)])
    y = y[(slice(None), slice(None), *(slice(b, b + s) for b, s in zip(begins, sizes, strict=True)))]
    return y if b is None else y + b.reshape(-1, *(1,) * rank)


def sample(x, w, biased=False, **attributes):
    inputs = [rng.standard_normal(x), rng.standard_normal(w)]
    if biased:
        inputs.append(rng.standard_normal(w[1] * attributes.get("group", 1)))
    return Sample("ConvTranspose", inputs, lambda *a: transposed(*a, **attributes), attributes)


SAMPLES = [
    sample((2, 3, 5), (3, 4, 3)), sample((2, 3, 5, 4), (3, 4, 3, 2), biased=True), sample((1, 2, 3, 4, 3), (2, 3, 2, 3, 2)),
    sample((2, 4, 5, 6), (4, 3, 2, 2), biased=True, strides=(2, 2)), sample((2, 4, 5, 6), (4, 3, 3, 3), strides=(2, 2), pads=(1, 1, 1, 1), output_padding=(1, 1)),
    sample((2, 4, 5, 6), (4, 2, 3, 3), group=2, strides=(2, 1), pads=(0, 1, 1, 0)), sample((2, 4, 5, 6), (4, 1, 3, 3), biased=True, group=4, strides=(2, 2)),
    sample((1, 3, 4, 4), (3, 2, 3, 3), dilations=(2, 2)), sample((1, 3, 4, 4), (3, 2, 3, 3), auto_pad="SAME_UPPER", strides=(2, 2)),
    sample((1, 3, 4, 4), (3, 2, 3, 3), auto_pad="SAME_LOWER", strides=(2, 2)), sample((1, 3, 4, 4), (3, 2, 3, 3), output_shape=(8, 9), strides=(2, 2)),
    sample((2, 16, 12, 12), (16, 8, 2, 2), biased=True, strides=(2, 2)),
    Sample("ConvInputGrad", [rng.standard_normal((2, 3, 4, 4)), None, rng.standard_normal((3, 2, 3, 3))],
           lambda dy, _, w: transposed(dy, w, strides=(2, 2), pads=(1, 1, 1, 1), output_padding=(1, 1)),
           {"strides": (2, 2), "pads": (1, 1, 1, 1), "output_shape": (8, 8), "kernel_shape": (3, 3)}, "ortrain", gradient=False),
]
REFUSALS = [
    Refusal("ConvTranspose", [np.zeros((1, 3, 4)), np.zeros((2, 3, 3))]), Refusal("ConvTranspose", [np.zeros((1, 3)), np.zeros((3, 3))]),
    Refusal("ConvTranspose", [np.zeros((1, 3, 1)), np.zeros((3, 3, 2))], {"pads": (2, 2)}),
    Refusal("ConvTranspose", [np.zeros((1, 3, 4)), np.zeros((3, 3, 2))], {"strides": (0,)}, match="positive"),
    Refusal("ConvTranspose", [np.zeros((1, 3, 4, 4)), np.zeros((3, 3, 2, 2))], {"output_shape": (5,)}, match="output_shape of 2"),
]
