"""Samples of convolutions of planes; the oracles are those of the ONNX operators."""

from typing import Any

import numpy as np

from tests.ops.samples import Refusal, Sample
from tests.ops.samples.conv import conv as conv_of_images
from tests.ops.samples.conv import conv_grad, taps

rng = np.random.default_rng(0)
ORTRAIN = "ortrain"

# label, data [n, c, h, w], weight [k, c / group, kh, kw], attributes
CONVOLUTIONS: list[tuple[str, tuple[int, ...], tuple[int, ...], dict[str, Any]]] = [
    ("product", (2, 7, 5, 6), (9, 7, 1, 1), {}),
    ("product of one image", (1, 20, 9, 7), (40, 20, 1, 1), {}),
    ("products of more images than partial sums", (19, 12, 5, 5), (8, 12, 1, 1), {}),
    ("large products", (2, 96, 35, 33), (64, 96, 1, 1), {}),
    ("product of volumes", (2, 5, 3, 4, 5), (6, 5, 1, 1, 1), {}),
    ("product of sequences", (2, 5, 1, 17), (6, 5, 1, 1), {}),
    ("depthwise", (2, 5, 9, 30), (5, 1, 3, 3), {"group": 5, "pads": (1, 1, 1, 1)}),
    ("depthwise, narrow", (2, 5, 9, 6), (5, 1, 3, 3), {"group": 5, "pads": (1, 1, 1, 1)}),
    ("depthwise, one column", (2, 5, 19, 1), (5, 1, 3, 3), {"group": 5, "pads": (1, 1, 1, 1)}),
    ("depthwise, few rows", (2, 5, 3, 30), (5, 1, 3, 3), {"group": 5, "pads": (1, 1, 1, 1)}),
    ("depthwise strides", (2, 3, 19, 38), (3, 1, 3, 3), {"group": 3, "pads": (1, 1, 1, 1), "strides": (2, 2)}),
    ("depthwise strides, narrow", (2, 3, 9, 7), (3, 1, 3, 3), {"group": 3, "pads": (1, 1, 0, 0), "strides": (2, 2)}),
    ("depthwise strides of rows", (2, 3, 13, 20), (3, 1, 5, 4), {"group": 3, "pads": (2, 1, 2, 2), "strides": (3, 1)}),
    ("depthwise strides of columns", (2, 3, 13, 50), (3, 1, 2, 3), {"group": 3, "pads": (0, 2, 1, 0), "strides": (1, 3)}),
    ("depthwise strides beyond the kernel", (2, 3, 14, 50), (3, 1, 2, 2), {"group": 3, "strides": (3, 3)}),
    ("depthwise 5 x 5", (1, 4, 13, 21), (4, 1, 5, 5), {"group": 4, "pads": (2, 1, 2, 0)}),
    ("depthwise 7 x 7", (1, 4, 13, 30), (4, 1, 7, 7), {"group": 4, "pads": (3, 3, 3, 3)}),
    ("depthwise 2 x 2 without pads", (1, 4, 13, 18), (4, 1, 2, 2), {"group": 4}),
    ("depthwise 4 x 4 with strides", (2, 4, 16, 36), (4, 1, 4, 4), {"group": 4, "pads": (1, 1, 1, 1), "strides": (2, 2)}),
    ("depthwise, dilated", (2, 3, 15, 33), (3, 1, 3, 3), {"group": 3, "pads": (2, 3, 2, 3), "dilations": (2, 3)}),
    ("depthwise, dilated with strides", (2, 3, 15, 60), (3, 1, 3, 3), {"group": 3, "pads": (3, 2, 3, 2), "dilations": (3, 2), "strides": (2, 2)}),
    ("depthwise, wide pads", (1, 3, 4, 5), (3, 1, 3, 3), {"group": 3, "pads": (3, 3, 3, 3)}),
    ("depthwise along a sequence", (2, 3, 1, 70), (3, 1, 1, 31), {"group": 3, "pads": (0, 15, 0, 15)}),
    ("depthwise in bands", (1, 2, 150, 130), (2, 1, 3, 3), {"group": 2, "pads": (1, 1, 1, 1)}),
    ("depthwise in bands, strides", (1, 2, 170, 133), (2, 1, 5, 3), {"group": 2, "pads": (2, 1, 2, 1), "strides": (2, 2)}),
    ("depthwise in bands of one row", (1, 2, 3, 9000), (2, 1, 3, 3), {"group": 2, "pads": (1, 1, 1, 1)}),
    ("depthwise, one tap", (2, 3, 9, 20), (3, 1, 1, 1), {"group": 3}),
    ("depthwise of planes of a volume's size", (2, 3, 1, 9, 20), (3, 1, 1, 3, 3), {"group": 3, "pads": (0, 1, 1, 0, 1, 1)}),
]
CLIPPED = CONVOLUTIONS[0], CONVOLUTIONS[3], CONVOLUTIONS[6], CONVOLUTIONS[7], CONVOLUTIONS[10], CONVOLUTIONS[19]


def normal(*shape):
    return rng.normal(size=shape)


def forward(label, x, w, attributes, *vectors, **limits):
    oracle = (lambda *a: np.clip(conv_of_images(*a, **attributes), limits.get("low", -np.inf), limits.get("high", np.inf)))
    return Sample("PlanesConv", [normal(*x), normal(*w) / np.sqrt(np.prod(w[1:])), *vectors], oracle, attributes | limits, domain=ORTRAIN, gradient=False,
                  label=label)


def backward(label, x, w, attributes):
    _, sizes, _ = taps(np.empty((0, 0, *x[2:])), np.empty((0, 0, *w[2:])), attributes)
    y = x[0], w[0], *sizes
    return Sample("PlanesConvGrad", [normal(*y) / np.sqrt(np.prod(y) / y[1]), normal(*x), normal(*w)], lambda *a: conv_grad(*a, **attributes), attributes,
                  domain=ORTRAIN, outputs=3, gradient=False, label=label)


SAMPLES = [
    *(forward(*case) for case in CONVOLUTIONS),
    *(forward(f"{label}, bias and limits", x, w, attributes, normal(w[0]), low=-0.5, high=0.75) for label, x, w, attributes in CLIPPED),
    *(forward(f"{label}, bias", x, w, attributes, normal(w[0])) for label, x, w, attributes in CLIPPED),
    *(backward(*case) for case in CONVOLUTIONS),
]

REFUSALS = [
    Refusal("PlanesConv", [normal(2, 4, 5, 5), normal(6, 4, 3, 3)], domain=ORTRAIN, match="expected a 1 x 1 kernel"),
    Refusal("PlanesConv", [normal(2, 4, 5, 5), normal(6, 4, 1, 1)], {"strides": (2, 2)}, domain=ORTRAIN, match="expected a 1 x 1 kernel"),
    Refusal("PlanesConv", [normal(2, 4, 5, 5), normal(8, 1, 3, 3)], {"group": 4}, domain=ORTRAIN, match="one filter for each channel"),
    Refusal("PlanesConv", [normal(2, 4, 5, 5), normal(6, 4, 1, 1), normal(5)], domain=ORTRAIN),
    Refusal("PlanesConvGrad", [normal(2, 6, 5, 4), normal(2, 4, 5, 5), normal(6, 4, 1, 1)], domain=ORTRAIN),
]
