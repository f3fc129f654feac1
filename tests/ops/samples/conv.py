"""Samples of the convolution family."""

from itertools import product
from typing import Any

import numpy as np

from tests.ops.samples import Refusal, Sample

rng = np.random.default_rng(0)
MICROSOFT = "com.microsoft"


def pads_of(size, kernel, attributes):
    """Return (begin pads, end pads), with auto_pad resolved."""
    rank = len(size)
    auto_pad = attributes.get("auto_pad", "NOTSET")
    pads = attributes.get("pads", (0,) * 2 * rank)
    if auto_pad == "NOTSET":
        return pads[:rank], pads[rank:]
    if auto_pad == "VALID":
        return (0,) * rank, (0,) * rank
    strides, dilations = attributes.get("strides", (1,) * rank), attributes.get("dilations", (1,) * rank)
    axes = zip(size, kernel, strides, dilations, strict=True)
    totals = [max((int(np.ceil(n / s)) - 1) * s + (k - 1) * d + 1 - n, 0) for n, k, s, d in axes]
    small, large = [t // 2 for t in totals], [t - t // 2 for t in totals]
    return (small, large) if auto_pad == "SAME_UPPER" else (large, small)


def taps(x, w, attributes):
    """Return (padded x, output sizes, the index of each tap with the slice of padded x that it reads)."""
    rank = x.ndim - 2
    strides, dilations = attributes.get("strides", (1,) * rank), attributes.get("dilations", (1,) * rank)
    begins, ends = pads_of(x.shape[2:], w.shape[2:], attributes)
    padded = np.pad(x, [(0, 0), (0, 0), *zip(begins, ends, strict=True)])
    sizes = [(n - (k - 1) * d - 1) // s + 1 for n, k, s, d in zip(padded.shape[2:], w.shape[2:], strides, dilations, strict=True)]
    seen = []
    for tap in np.ndindex(*w.shape[2:]):
        cut = tuple(slice(t * d, t * d + (o - 1) * s + 1, s) for t, d, s, o in zip(tap, dilations, strides, sizes, strict=True))
        seen.append((tap, (slice(None), slice(None), *cut)))
    return padded, sizes, seen


def conv(x, w, b=None, **attributes):
    group = attributes.get("group", 1)
    padded, sizes, seen = taps(x, w, attributes)
    y = np.zeros((x.shape[0], w.shape[0], *sizes), x.dtype)
    m, c = w.shape[0] // group, w.shape[1]
    for g, (tap, cut) in product(range(group), seen):
        w_tap = w[(slice(g * m, g * m + m), slice(None), *tap)]
        y[:, g * m:g * m + m] += np.einsum("kc,nc...->nk...", w_tap, padded[cut][:, g * c:g * c + c])
    return y if b is None else y + b.reshape(-1, *(1,) * len(sizes))


def conv_grad(dy, x, w, **attributes):
    group = attributes.get("group", 1)
    padded, sizes, seen = taps(x, w, attributes)
    dx, dw = np.zeros_like(padded), np.zeros_like(w)
    m, c = w.shape[0] // group, w.shape[1]
    for g, (tap, cut) in product(range(group), seen):
        filters, channels = slice(g * m, g * m + m), slice(g * c, g * c + c)
        dx[cut][:, channels] += np.einsum("kc,nk...->nc...", w[(filters, slice(None), *tap)], dy[:, filters])
        both = padded[cut][:, channels].reshape(len(x), c, np.prod(sizes))
        dw[(filters, slice(None), *tap)] += np.einsum("nkp,ncp->kc", dy[:, filters].reshape(len(x), m, np.prod(sizes)), both)
    begins, _ = pads_of(x.shape[2:], w.shape[2:], attributes)
    inside = tuple(slice(b, b + n) for b, n in zip(begins, x.shape[2:], strict=True))
    return dx[(slice(None), slice(None), *inside)], dw, dy.sum(axis=(0, *range(2, dy.ndim)))


def normal(*shape):
    return rng.normal(size=shape)


CASES: list[tuple[str, tuple[int, ...], tuple[int, ...], dict[str, Any]]] = [
    ("plain", (2, 3, 7, 6), (4, 3, 3, 3), {}),
    ("pads", (2, 3, 7, 6), (4, 3, 3, 3), {"kernel_shape": (3, 3), "pads": (1, 1, 1, 1)}),
    ("asymmetric", (2, 3, 7, 6), (4, 3, 3, 2), {"pads": (0, 2, 1, 1), "strides": (2, 1)}),
    ("strides", (3, 2, 9, 8), (4, 2, 3, 3), {"pads": (1, 1, 1, 1), "strides": (2, 2)}),
    ("stride 3", (2, 2, 11, 10), (2, 2, 2, 2), {"strides": (3, 3)}),
    ("kernel below stride", (2, 2, 7, 7), (3, 2, 1, 1), {"strides": (2, 2)}),
    ("dilations", (2, 2, 9, 10), (4, 2, 3, 3), {"dilations": (2, 3), "pads": (2, 3, 2, 3)}),
    ("groups", (2, 4, 6, 5), (6, 2, 3, 3), {"group": 2, "pads": (1, 1, 1, 1)}),
    ("valid", (2, 3, 7, 6), (4, 3, 3, 3), {"auto_pad": "VALID", "strides": (2, 2)}),
    ("same upper", (2, 3, 7, 6), (4, 3, 3, 2), {"auto_pad": "SAME_UPPER", "strides": (2, 2)}),
    ("same lower", (2, 3, 8, 6), (4, 3, 4, 3), {"auto_pad": "SAME_LOWER", "strides": (2, 1)}),
    ("same dilated", (1, 2, 8, 7), (3, 2, 3, 3), {"auto_pad": "SAME_UPPER", "dilations": (2, 2)}),
    ("pointwise", (3, 5, 4, 6), (7, 5, 1, 1), {}),
    ("pointwise groups", (2, 6, 4, 4), (4, 3, 1, 1), {"group": 2}),
    ("pointwise padded", (2, 3, 4, 4), (4, 3, 1, 1), {"pads": (1, 0, 0, 1)}),
    ("one image, many positions", (1, 3, 40, 37), (8, 3, 3, 3), {"pads": (1, 1, 1, 1)}),
    ("many images, one position", (40, 6, 3, 3), (5, 6, 3, 3), {}),
    ("many small images", (33, 40, 4, 4), (9, 40, 3, 3), {"pads": (1, 1, 1, 1)}),
    ("several tiles", (2, 70, 20, 20), (6, 70, 3, 3), {"pads": (1, 1, 1, 1)}),
    ("pointwise tiles", (2, 48, 25, 25), (70, 48, 1, 1), {}),
    ("pad beyond kernel", (1, 2, 3, 3), (2, 2, 2, 2), {"pads": (3, 3, 3, 3)}),
    ("depthwise", (2, 5, 9, 8), (5, 1, 3, 3), {"group": 5, "pads": (1, 1, 1, 1)}),
    ("depthwise strides", (2, 4, 9, 8), (4, 1, 3, 3), {"group": 4, "pads": (1, 1, 1, 1), "strides": (2, 2)}),
    ("depthwise stride 3", (2, 4, 9, 38), (4, 1, 5, 5), {"group": 4, "pads": (2, 1, 2, 0), "strides": (3, 3)}),
    ("depthwise dilated", (2, 3, 9, 20), (3, 1, 3, 3), {"group": 3, "auto_pad": "SAME_UPPER", "dilations": (2, 2)}),
    ("depthwise multiplier", (2, 3, 6, 7), (6, 1, 3, 3), {"group": 3}),
    ("depthwise 1-D", (2, 4, 40), (4, 1, 5), {"group": 4, "pads": (2, 2)}),
    ("depthwise 3-D", (2, 3, 4, 5, 6), (3, 1, 2, 3, 3), {"group": 3, "pads": (1, 1, 0, 0, 1, 1)}),
    ("1-D", (2, 3, 30), (4, 3, 5), {"strides": (2,), "pads": (2, 1)}),
    ("1-D long", (2, 2, 1500), (3, 2, 9), {"dilations": (4,)}),
    ("1-D causal", (2, 3, 20), (4, 3, 3), {"dilations": (2,), "pads": (4, 0)}),
    ("3-D", (2, 2, 5, 6, 7), (3, 2, 3, 2, 3), {"strides": (2, 1, 2), "pads": (1, 0, 1, 1, 1, 0)}),
    ("no images", (0, 3, 7, 6), (4, 3, 3, 3), {}),
    ("no channels", (2, 0, 7, 6), (4, 0, 3, 3), {}),
    ("no filters", (2, 3, 7, 6), (0, 3, 3, 3), {}),
    ("3-D groups", (1, 4, 4, 5, 4), (2, 2, 2, 2, 2), {"group": 2, "dilations": (1, 2, 1)}),
]


def samples():
    for number, (label, x_shape, w_shape, attributes) in enumerate(CASES):
        x, w, b = normal(*x_shape), normal(*w_shape), normal(w_shape[0])
        biased = number % 3 != 1
        cheap = x.size * w.size < 30000
        yield Sample("Conv", [x, w, b] if biased else [x, w], lambda *a, k=attributes: conv(*a, **k), attributes, gradient=cheap,
                     opset=11 + number % 11, label=label)
        dy = normal(*conv(x, w, **attributes).shape)
        yield Sample("ConvGrad", [dy, x, w], lambda *a, k=attributes: conv_grad(*a, **k), attributes, domain=MICROSOFT, outputs=3,
                     gradient=False, label=label)


def no_images(dy, x, w):
    return np.zeros_like(x), np.zeros_like(w), np.zeros(w.shape[0], w.dtype)


X, W = normal(2, 4, 6, 6), normal(4, 4, 3, 3)
SAMPLES = [
    *samples(),
    Sample("Conv", [X, W, None], conv, label="bias left out"),
    Sample("FusedConv", [X, W, W[:, 0, 0, 0].copy()], lambda x, w, b: np.maximum(conv(x, w, b), 0), {"activation": "Relu"}, MICROSOFT),
    Sample("FusedConv", [X, W, None, conv(X, W) / 2], lambda x, w, b, z: np.clip(conv(x, w) + z, -0.5, 6.0),
           {"activation": "Clip", "activation_params": (-0.5, 6.0)}, MICROSOFT),
    Sample("ConvGrad", [conv(X, W), X, W], lambda *a: conv_grad(*a)[:1], domain=MICROSOFT, gradient=False, label="only dx"),
    Sample("ConvGrad", [conv(X, W), X, W], lambda *a: conv_grad(*a)[:2], domain=MICROSOFT, outputs=2, gradient=False, label="no db"),
    Sample("Conv", [X[:0], W], lambda x, w: np.zeros((0, 4, 4, 4), x.dtype), gradient=False, label="no images"),
    Sample("ConvGrad", [np.zeros((0, 4, 4, 4)), X[:0], W], no_images, domain=MICROSOFT, outputs=3, gradient=False, label="no images"),
    Sample("ConvGrad", [np.zeros((0, 4, 4, 4)), X[:0], W[:, :1]], no_images, {"group": 4}, domain=MICROSOFT, outputs=3, gradient=False,
           label="no images depthwise"),
]

REFUSALS: list[Refusal] = [
    Refusal("Conv", [X, W[:, :3]], match="channels"),
    Refusal("Conv", [X, W], {"group": 3}, match="group"),
    Refusal("Conv", [X, W[0]], match="rank"),
    Refusal("Conv", [X[0, 0], W[0, 0]], match="rank"),
    Refusal("Conv", [X, W], {"kernel_shape": (2, 2)}, match="kernel_shape"),
    Refusal("Conv", [X, W], {"strides": (1,)}, match="strides"),
    Refusal("Conv", [X, W], {"strides": (0, 1)}, match="positive"),
    Refusal("Conv", [X, W], {"pads": (1, 1, 1)}, match="pads"),
    Refusal("Conv", [X, W], {"pads": (1, 1, 1, -1)}, match="pads"),
    Refusal("Conv", [X, W], {"auto_pad": "SAME"}, match="auto_pad"),
    Refusal("Conv", [X[:, :, :2], W], match="fit"),
    Refusal("Conv", [X, W, np.zeros(3)], match="bias"),
    Refusal("Conv", [X, W.astype("int64")], match="dtype"),
    Refusal("ConvGrad", [X, X, W], domain=MICROSOFT, match="gradient"),
]
