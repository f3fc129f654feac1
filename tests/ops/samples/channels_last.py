"""Samples of the channels-last operators; the oracles are those of the ONNX operators on transposed data."""

from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
from scipy.special import expit

from tests.ops.samples import Refusal, Sample
from tests.ops.samples.conv import conv as conv_first
from tests.ops.samples.conv import conv_grad as conv_grad_first
from tests.ops.samples.conv import taps

rng = np.random.default_rng(0)
ORTRAIN = "ortrain"


def normal(*shape):
    return rng.normal(size=shape)


def last(x):
    return np.ascontiguousarray(np.moveaxis(x, 1, -1))


def first(x):
    return np.ascontiguousarray(np.moveaxis(x, -1, 1))


# ---- convolution

# label, data [n, h, w, c], weight [k, c / group, kh, kw], attributes
CONVOLUTIONS: list[tuple[str, tuple[int, ...], tuple[int, ...], dict[str, Any]]] = [
    ("product", (2, 5, 6, 7), (9, 7, 1, 1), {}),
    ("product of one pixel", (3, 1, 1, 20), (40, 20, 1, 1), {}),
    ("Winograd, few tiles", (2, 7, 6, 16), (32, 16, 3, 3), {"pads": (1, 1, 1, 1)}),
    ("Winograd, many tiles", (3, 27, 30, 16), (16, 16, 3, 3), {"pads": (1, 1, 1, 1)}),
    ("Winograd, several blocks", (1, 45, 47, 144), (80, 144, 3, 3), {"pads": (1, 1, 1, 1)}),
    ("Winograd, many tiles of many channels", (1, 45, 47, 192), (160, 192, 3, 3), {"pads": (1, 1, 1, 1)}),
    ("Winograd, few tiles in several blocks", (2, 5, 9, 80), (48, 80, 3, 3), {"pads": (1, 1, 1, 1)}),
    ("Winograd without pads", (2, 8, 9, 16), (16, 16, 3, 3), {}),
    ("Winograd with uneven pads", (2, 8, 9, 16), (16, 16, 3, 3), {"pads": (0, 2, 1, 1)}),
    ("Winograd with strides, few tiles", (2, 16, 15, 16), (32, 16, 3, 3), {"pads": (1, 1, 1, 1), "strides": (2, 2)}),
    ("Winograd with strides, many tiles", (3, 53, 56, 16), (16, 16, 3, 3), {"pads": (1, 1, 1, 0), "strides": (2, 2)}),
    ("Winograd with strides, several blocks", (1, 90, 94, 144), (80, 144, 3, 3), {"pads": (1, 1, 1, 1), "strides": (2, 2)}),
    ("Winograd along rows", (5, 12, 12, 20), (50, 20, 5, 5), {}),
    ("Winograd along rows with pads", (2, 9, 11, 16), (17, 16, 3, 5), {"pads": (1, 2, 2, 1)}),
    ("Winograd along rows, large images", (2, 25, 47, 64), (64, 64, 5, 5), {"pads": (2, 2, 2, 2)}),
    ("Winograd along rows, 3 wide", (2, 9, 13, 20), (17, 20, 3, 3), {"pads": (1, 1, 1, 1)}),
    ("Winograd along rows, 3 wide, uneven pads", (2, 1, 31, 33), (50, 33, 1, 3), {"pads": (0, 2, 0, 0)}),
    ("Winograd along rows in parts", (2, 1, 1031, 24), (40, 24, 1, 3), {"pads": (0, 1, 0, 1)}),
    ("Winograd along rows in parts of images", (1, 57, 61, 40), (24, 40, 3, 3), {"pads": (1, 1, 1, 1)}),
    ("Winograd along rows, 7 wide", (2, 9, 17, 20), (34, 20, 3, 7), {"pads": (1, 3, 1, 3)}),
    ("Winograd along columns, 7 high", (3, 17, 9, 34), (20, 34, 7, 1), {"pads": (3, 0, 3, 0)}),
    ("Winograd along columns, 3 high", (2, 14, 9, 20), (24, 20, 3, 1), {"pads": (1, 0, 0, 0)}),
    ("direct 3 x 3", (2, 7, 6, 16), (32, 16, 3, 3), {"pads": (1, 1, 1, 1), "direct": 1}),
    ("strides", (2, 9, 8, 6), (10, 6, 3, 3), {"pads": (1, 1, 1, 1), "strides": (2, 2)}),
    ("stem", (1, 23, 24, 3), (20, 3, 7, 7), {"pads": (3, 3, 3, 3), "strides": (2, 2)}),
    ("pointwise strides", (2, 9, 8, 16), (24, 16, 1, 1), {"strides": (2, 2)}),
    ("pointwise strides, fewer channels than lanes", (2, 9, 8, 3), (5, 3, 1, 1), {"strides": (2, 2)}),
    ("dilations", (2, 9, 10, 5), (4, 5, 3, 3), {"dilations": (2, 3), "pads": (2, 3, 2, 3)}),
    ("deep", (2, 6, 6, 60), (33, 60, 3, 3), {"pads": (1, 1, 1, 1), "strides": (2, 1)}),
    ("deep, few pixels", (2, 5, 5, 160), (96, 160, 3, 3), {"pads": (1, 1, 1, 1), "strides": (2, 2)}),
    ("deep dilations, blocks of pixels", (1, 24, 25, 128), (320, 128, 3, 3), {"pads": (2, 2, 2, 2), "dilations": (2, 2)}),
    ("deep groups", (2, 5, 6, 256), (64, 128, 3, 2), {"group": 2, "strides": (2, 1)}),
    ("groups", (2, 6, 5, 32), (48, 16, 3, 3), {"group": 2, "pads": (1, 1, 1, 1)}),
    ("many pixels", (3, 40, 37, 4), (8, 4, 5, 5), {}),
    ("depthwise", (2, 9, 8, 19), (19, 1, 3, 3), {"group": 19, "pads": (1, 1, 1, 1)}),
    ("depthwise strides", (2, 9, 8, 32), (32, 1, 3, 3), {"group": 32, "pads": (1, 1, 1, 1), "strides": (2, 2)}),
    ("depthwise 5 x 5", (1, 9, 11, 16), (16, 1, 5, 5), {"group": 16, "pads": (2, 1, 2, 0), "strides": (3, 1)}),
    ("depthwise without pads", (1, 5, 7, 24), (24, 1, 3, 3), {"group": 24}),
    ("depthwise, wide pads", (1, 4, 5, 16), (16, 1, 3, 3), {"group": 16, "pads": (3, 3, 3, 3)}),
    ("depthwise, two filters per channel", (2, 7, 9, 12), (24, 1, 3, 3), {"group": 12, "pads": (1, 1, 1, 1)}),
    ("depthwise 7 x 7", (1, 13, 30, 20), (20, 1, 7, 7), {"group": 20, "pads": (3, 3, 3, 3)}),
    ("depthwise of many columns, strides", (1, 9, 22, 20), (20, 1, 3, 3), {"group": 20, "pads": (1, 1, 1, 1), "strides": (2, 2)}),
    ("depthwise of many columns, 5 x 5", (1, 7, 15, 17), (17, 1, 5, 5), {"group": 17, "pads": (2, 2, 2, 2)}),
    ("depthwise of many columns, 5 x 5 with strides", (1, 11, 25, 17), (17, 1, 5, 5), {"group": 17, "pads": (2, 2, 2, 2), "strides": (2, 2)}),
    ("depthwise of many columns, dilated", (1, 9, 20, 17), (17, 1, 3, 3), {"group": 17, "dilations": (2, 3), "pads": (2, 3, 2, 3)}),
    ("depthwise along a sequence", (2, 1, 70, 24), (24, 1, 1, 31), {"group": 24, "pads": (0, 15, 0, 15)}),
    ("depthwise, few channels", (2, 9, 30, 5), (5, 1, 3, 3), {"group": 5, "strides": (2, 2), "dilations": (1, 2), "pads": (1, 2, 1, 2)}),
    ("depthwise, strides beyond the kernel", (2, 8, 9, 6), (6, 1, 2, 2), {"group": 6, "strides": (3, 3)}),
    ("narrow groups", (2, 9, 8, 32), (32, 4, 3, 3), {"group": 8, "pads": (1, 1, 1, 1)}),
    ("narrow groups, overlapping vectors, strides", (2, 9, 30, 24), (24, 8, 3, 3), {"group": 3, "pads": (1, 1, 1, 1), "strides": (1, 2)}),
    ("narrow groups of fewer channels than filters", (2, 5, 27, 8), (16, 4, 5, 5), {"group": 2, "pads": (2, 2, 2, 2)}),
    ("narrow groups of fewer channels than a vector", (1, 6, 9, 4), (16, 2, 3, 2), {"group": 2, "dilations": (1, 2)}),
    ("narrow groups of odd sizes, strides", (2, 9, 11, 15), (9, 5, 3, 3), {"group": 3, "pads": (1, 1, 1, 1), "strides": (2, 2)}),
    ("narrow groups across vectors", (1, 13, 30, 36), (36, 9, 3, 3), {"group": 4, "pads": (1, 1, 1, 1)}),
    ("narrow groups of 2 channels", (2, 6, 13, 18), (18, 2, 3, 3), {"group": 9, "pads": (1, 1, 1, 1)}),
    ("narrow groups of 2 channels and 4 filters", (2, 6, 13, 10), (20, 2, 3, 3), {"group": 5, "pads": (1, 1, 1, 1)}),
    ("narrow groups of 3 channels and 4 filters", (1, 6, 13, 18), (24, 3, 3, 3), {"group": 6, "strides": (1, 2)}),
    ("narrow groups of 4 channels, overlapping vectors", (1, 7, 15, 20), (20, 4, 3, 3), {"group": 5, "pads": (1, 1, 1, 1)}),
    ("narrow groups of 8 channels", (2, 7, 15, 40), (40, 8, 3, 3), {"group": 5, "pads": (1, 1, 1, 1), "strides": (2, 2)}),
    ("narrow groups of 5 channels and 8 filters", (2, 7, 15, 15), (24, 5, 3, 3), {"group": 3, "pads": (1, 1, 1, 1)}),
    ("narrow groups, blocks of rows", (2, 40, 61, 64), (64, 8, 3, 3), {"group": 8, "pads": (1, 1, 1, 1)}),
    ("narrow groups, blocks of columns", (1, 3, 700, 8), (8, 4, 3, 3), {"group": 2, "pads": (1, 1, 1, 1)}),
    ("narrow groups of many channels", (1, 8, 9, 80), (4, 40, 3, 3), {"group": 2, "pads": (1, 0, 0, 1)}),
    ("wide groups with dilations", (2, 9, 10, 40), (36, 20, 3, 3), {"group": 2, "dilations": (2, 2), "pads": (2, 2, 2, 2)}),
    ("wide groups", (2, 9, 10, 66), (54, 22, 5, 3), {"group": 3, "pads": (2, 1, 2, 1)}),
    ("direct dilations", (2, 12, 14, 20), (24, 20, 3, 3), {"dilations": (3, 2), "pads": (3, 2, 3, 2)}),
    ("product of many pixels", (1, 97, 85, 48), (64, 48, 1, 1), {}),
    ("product of fewer pixels", (1, 33, 37, 48), (64, 48, 1, 1), {}),
    ("product of fewer pixels, many weights", (1, 33, 37, 272), (256, 272, 1, 1), {}),
    ("product of many pixels, deep", (1, 97, 85, 544), (32, 544, 1, 1), {}),
    ("product of many pixels, wide", (1, 97, 85, 64), (544, 64, 1, 1), {}),
    ("product of many pixels, strides", (2, 127, 129, 32), (64, 32, 1, 1), {"strides": (2, 2)}),
    ("Winograd, few tiles in several deep blocks", (2, 5, 9, 144), (64, 144, 3, 3), {"pads": (1, 1, 1, 1)}),
    ("windows on tiles", (2, 31, 29, 64), (96, 64, 3, 3), {"pads": (1, 1, 1, 1), "strides": (2, 2)}),
    ("windows on tiles, strides that some pixels are not seen by", (1, 50, 47, 96), (64, 96, 2, 3), {"strides": (3, 2)}),
    ("windows on tiles, more taps than a vector has elements", (2, 31, 29, 64), (96, 64, 5, 5), {"pads": (2, 2, 2, 2), "strides": (2, 2)}),
    ("pointwise strides, many channels", (2, 31, 29, 64), (96, 64, 1, 1), {"strides": (2, 2)}),
    ("windows on tiles, dilations, uneven pads", (1, 30, 33, 64), (64, 64, 3, 5), {"dilations": (2, 1), "pads": (3, 0, 1, 2)}),
    ("few filters", (2, 9, 30, 12), (12, 12, 3, 3), {"pads": (1, 1, 1, 1)}),
    ("one filter, dilations", (2, 9, 11, 20), (1, 20, 3, 3), {"pads": (2, 2, 2, 2), "dilations": (2, 2)}),
    ("few filters, strides, groups", (2, 9, 12, 48), (20, 24, 3, 3), {"pads": (1, 1, 1, 1), "strides": (2, 2), "group": 2}),
    ("few filters of many rows", (1, 40, 20, 6), (7, 6, 66, 1), {"pads": (33, 0, 33, 0)}),
    ("depthwise of more taps than are listed", (1, 20, 21, 17), (17, 1, 15, 13), {"group": 17, "pads": (7, 6, 7, 6)}),
    ("narrow groups of more taps than a table has", (1, 36, 35, 3), (3, 1, 33, 33), {"group": 3, "pads": (1, 1, 1, 1)}),
    ("narrow groups beyond a workspace", (1, 3, 4200, 24), (4, 12, 1, 3), {"group": 2, "dilations": (1, 2000)}),
    ("no images", (0, 4, 5, 6), (7, 6, 3, 3), {}),
    ("no channels", (2, 4, 5, 0), (7, 0, 3, 3), {}),
    ("no filters", (2, 4, 5, 6), (0, 6, 3, 3), {}),
    ("volume", (2, 5, 6, 7, 20), (24, 20, 3, 3, 3), {"pads": (1, 1, 1, 1, 1, 1)}),
    ("volume without pads", (2, 5, 6, 7, 16), (16, 16, 2, 3, 3), {}),
    ("volume, Winograd", (2, 5, 9, 10, 16), (32, 16, 3, 3, 3), {"pads": (1, 1, 1, 1, 1, 1)}),
    ("volume, Winograd with strides of planes", (1, 8, 13, 14, 32), (16, 32, 3, 3, 3), {"pads": (1, 1, 1, 0, 1, 1), "strides": (2, 1, 1)}),
    ("volume, Winograd with dilated planes", (1, 8, 13, 14, 32), (16, 32, 3, 3, 3), {"pads": (2, 1, 1, 2, 1, 1), "dilations": (2, 1, 1)}),
    ("volume, Winograd of many tiles", (2, 5, 21, 25, 80), (144, 80, 3, 3, 3), {"pads": (1, 1, 1, 1, 1, 1)}),
    ("volume, strides", (2, 7, 9, 8, 6), (20, 6, 3, 3, 3), {"pads": (1, 1, 1, 1, 1, 1), "strides": (2, 2, 2)}),
    ("volume, strides of many channels", (1, 6, 9, 10, 64), (96, 64, 3, 3, 3), {"pads": (1, 1, 1, 1, 1, 1), "strides": (2, 2, 2)}),
    ("volume, dilations, uneven pads", (1, 9, 10, 8, 33), (17, 33, 3, 2, 3), {"pads": (2, 0, 3, 1, 1, 2), "dilations": (2, 3, 1)}),
    ("volume, few filters", (2, 4, 6, 9, 5), (4, 5, 3, 3, 3), {"pads": (1, 1, 1, 1, 1, 1)}),
    ("volume, deep", (1, 4, 5, 5, 160), (96, 160, 3, 3, 3), {"pads": (1, 1, 1, 1, 1, 1)}),
    ("volume, product", (2, 3, 4, 5, 20), (24, 20, 1, 1, 1), {}),
    ("volume, product with strides", (2, 5, 7, 6, 20), (24, 20, 1, 1, 1), {"strides": (2, 3, 2)}),
    ("volume, kernel of one plane", (2, 3, 8, 9, 16), (16, 16, 1, 3, 3), {"pads": (0, 1, 1, 0, 1, 1)}),
    ("volume, kernel of one plane with strides", (2, 5, 8, 9, 16), (16, 16, 1, 3, 3), {"pads": (0, 1, 1, 0, 1, 1), "strides": (2, 1, 1)}),
    ("volume, kernel along planes", (2, 7, 4, 5, 20), (24, 20, 3, 1, 1), {"pads": (1, 0, 0, 1, 0, 0), "strides": (2, 1, 1)}),
    ("volume, strides and more filters than the L2 cache holds", (1, 3, 13, 14, 64), (80, 64, 3, 3, 3), {"pads": (1,) * 6, "strides": (2, 2, 2)}),
    ("volume, depthwise", (2, 5, 9, 8, 19), (19, 1, 3, 3, 3), {"group": 19, "pads": (1, 1, 1, 1, 1, 1)}),
    ("volume, depthwise of one plane", (2, 5, 9, 8, 19), (19, 1, 1, 3, 3), {"group": 19, "pads": (0, 1, 1, 0, 1, 1)}),
    ("volume, depthwise with strides", (1, 9, 9, 11, 32), (32, 1, 3, 3, 3), {"group": 32, "pads": (1, 1, 1, 1, 1, 1), "strides": (2, 2, 2)}),
    ("volume, few channels, depthwise", (2, 5, 6, 30, 3), (3, 1, 3, 3, 3), {"group": 3, "pads": (1, 1, 1, 1, 1, 1)}),
    ("volume, narrow groups", (2, 6, 13, 30, 32), (24, 4, 3, 3, 3), {"group": 8, "pads": (1, 1, 1, 1, 1, 1)}),
    ("volume, narrow groups of 8 channels, strides", (1, 5, 9, 14, 32), (32, 8, 3, 4, 4), {"group": 4, "pads": (1, 1, 1, 1, 1, 1), "strides": (1, 2, 2)}),
    ("volume, narrow groups, strides and dilations", (1, 9, 11, 12, 15), (9, 5, 2, 3, 3),
     {"group": 3, "pads": (2, 1, 0, 1, 2, 1), "strides": (1, 2, 3), "dilations": (3, 1, 2)}),
    ("volume, wide groups", (1, 4, 7, 8, 40), (36, 20, 3, 3, 3), {"group": 2, "pads": (1, 1, 1, 1, 1, 1)}),
    ("depthwise dilated", (1, 4, 4, 17), (17, 1, 3, 3), {"group": 17, "dilations": (2, 2), "pads": (2, 2, 2, 2)}),
]


def onnx_attributes(attributes):
    return {k: v for k, v in attributes.items() if k not in ("direct", "epsilon", "low", "high", "reads_planes", "writes_planes")}


def conv(x, w, b=None, scale=None, shift=None, mean=None, variance=None, **attributes):
    y = last(conv_first(first(x), w, b, **onnx_attributes(attributes)))
    if scale is not None:
        y = (y - mean) * scale / np.sqrt(variance + attributes["epsilon"]) + shift
    return np.clip(y, attributes.get("low", -np.inf), attributes.get("high", np.inf))


def conv_grad(dy, x, w, **attributes):
    dx, dw, db = conv_grad_first(first(dy), first(x), w, **onnx_attributes(attributes))
    return last(dx), dw, db


def output_shape(x, w, attributes):
    """Return the shape of the output of a convolution, given those of data and weight."""
    _, sizes, _ = taps(np.empty((0, 0, *x[1:-1])), np.empty((0, 0, *w[2:])), onnx_attributes(attributes))
    return x[0], *sizes, w[0]


def forward(label, x, w, attributes, *vectors):
    return Sample("ChannelsLastConv", [normal(*x), normal(*w) / np.sqrt(max(1, np.prod(w[1:]))), *vectors], lambda *a: conv(*a, **attributes), attributes,
                  domain=ORTRAIN, gradient=False, label=label)


def forward_of_planes(label, x, w, attributes, *vectors, reads=1, writes=1):
    """Return a sample whose data, or result, is [n, c, h, w]."""
    plain = forward(label, x, w, attributes, *vectors)

    def oracle(data, *others):
        y = conv(last(data) if reads else data, *others, **attributes)
        return first(y) if writes else y

    inputs = [first(plain.inputs[0]) if reads else plain.inputs[0], *plain.inputs[1:]]
    return replace(plain, inputs=inputs, oracle=oracle, attributes=attributes | {"reads_planes": reads, "writes_planes": writes})


def backward(label, x, w, attributes):
    y = output_shape(x, w, attributes)
    return Sample("ChannelsLastConvGrad", [normal(*y) / np.sqrt(max(1, np.prod(y[:-1]))), normal(*x), normal(*w)], lambda *a: conv_grad(*a, **attributes), attributes,
                  domain=ORTRAIN, outputs=3, gradient=False, label=label)


def backward_added(label, x, w, attributes):
    """Return a sample with another gradient of x, to which dx is added."""
    plain, other = backward(label, x, w, attributes), normal(*x)

    def oracle(dy, x, w, other):
        dx, dw, db = conv_grad(dy, x, w, **attributes)
        return dx + other, dw, db

    return replace(plain, inputs=[*plain.inputs, other], oracle=oracle, label=f"{label}, added")


def transposed(label, x, w, attributes):
    """Return a sample of dx alone, given no x."""
    y = output_shape(x, w, attributes)
    return Sample("ChannelsLastConvInputGrad", [normal(*y) / np.sqrt(np.prod(y[:-1])), None, normal(*w)],
                  lambda dy, _, w: conv_grad(dy, np.zeros(x), w, **attributes)[0], attributes | {"output_shape": x[1:-1]}, domain=ORTRAIN, gradient=False,
                  label=label)


def frozen(filters):
    return [normal(filters), normal(filters), normal(filters), rng.uniform(0.5, 2, filters)]


# ---- batch normalization


def batch_norm(x, scale, bias, mean, variance, residual=None, **attributes):
    epsilon, momentum = attributes.get("epsilon", 1e-5), attributes.get("momentum", 0.9)
    new_mean, new_variance = mean, variance
    if attributes.get("training_mode", 0):
        batch_mean, batch_variance = x.mean((0, 1, 2)), x.var((0, 1, 2))
        new_mean, new_variance = (momentum * old + (1 - momentum) * new for old, new in ((mean, batch_mean), (variance, batch_variance)))
        mean, variance = batch_mean, batch_variance
    inverse = 1 / np.sqrt(variance + epsilon)
    y = (x - mean) * inverse * scale + bias
    return activated(y if residual is None else y + residual, **attributes), new_mean, new_variance, mean, inverse


CURVES = {"Swish": lambda z, alpha: z * expit(alpha * z), "LeakyRelu": lambda z, alpha: np.where(z > 0, z, alpha * z),
          "HardSwish": lambda z, _: z * np.clip(z / 6 + 0.5, 0, 1)}
SLOPES = {"Swish": lambda z, alpha: expit(alpha * z) * (1 + alpha * z * (1 - expit(alpha * z))), "LeakyRelu": lambda z, alpha: np.where(z > 0, 1, alpha),
          "HardSwish": lambda z, _: np.where(np.abs(z) < 3, z / 3 + 0.5, z > 0)}
"""Activations and their derivatives."""


def activated(z, low=-np.inf, high=np.inf, activation="", alpha=0.0, **_):
    """Return clip(z, low, high), or the activation of z."""
    return CURVES[activation](z, alpha) if activation else np.clip(z, low, high)


def gradient_of_input(dy, z, low=-np.inf, high=np.inf, closed=0, activation="", alpha=0.0, **_):
    """Return the gradient of the input z of the activation."""
    if activation:
        return dy * SLOPES[activation](z, alpha)
    if (low, high) == (-np.inf, np.inf):
        return dy
    return dy * ((z >= low) & (z <= high) if closed else (z > low) & (z < high))


def batch_norm_grad(dy, x, scale, mean, inverse, bias=None, y=None, **attributes):
    dy = gradient_of_input(dy, y if y is not None else (x - mean) * inverse * scale + (0 if bias is None else bias), **attributes)
    normal_x = (x - mean) * inverse
    count = np.prod(x.shape[:3])
    dscale, dbias = (dy * normal_x).sum((0, 1, 2)), dy.sum((0, 1, 2))
    return scale * inverse * (dy - dbias / count - normal_x * dscale / count), dscale, dbias, dy


def norm_sample(label, shape, attributes, residual=False):
    vectors = [normal(shape[3]), normal(shape[3]), normal(shape[3]), rng.uniform(0.5, 2, shape[3])]
    inputs = [normal(*shape) + 3, *vectors, *([normal(*shape)] if residual else [])]
    return Sample("ChannelsLastBatchNormalization", inputs, lambda *a: batch_norm(*a, **attributes), attributes, domain=ORTRAIN, outputs=5, gradient=False,
                  label=label)


def norm_grad_sample(label, shape, attributes, of_y=False, biased=True):
    x, c = normal(*shape), shape[3]
    inputs = [normal(*shape), x, normal(c) + 2, x.mean((0, 1, 2)), 1 / np.sqrt(x.var((0, 1, 2)) + 1e-5)]
    if biased:
        inputs.append(normal(c))
    if of_y:
        inputs.append(normal(*shape))
    outputs = 4 if of_y else 3
    return Sample("ChannelsLastBatchNormalizationGrad", inputs, lambda *a: batch_norm_grad(*a, **attributes)[:outputs], attributes, domain=ORTRAIN,
                  outputs=outputs, gradient=False, label=label)


def norm_again_sample(label, shape, attributes, residual=False):
    """Return a sample with given statistics, as in inference mode."""
    c = shape[3]
    inputs = [normal(*shape), normal(c), normal(c), normal(c), rng.uniform(0.5, 2, c), *([normal(*shape)] if residual else [])]

    def oracle(x, scale, bias, mean, inverse, residual=None):
        return batch_norm(x, scale, bias, mean, 1 / inverse**2, residual, epsilon=0, **attributes)[0]

    return Sample("ChannelsLastBatchNormalizationRecompute", inputs, oracle, attributes, domain=ORTRAIN, gradient=False, label=label)


# ---- group normalization


def group_statistics(x, groups, epsilon=1e-5):
    """Return the mean and 1 / sqrt(variance + epsilon) of the groups of channels, [n, groups]."""
    divided = x.reshape(len(x), -1, groups, x.shape[-1] // groups)
    return divided.mean((1, 3)), 1 / np.sqrt(divided.var((1, 3)) + epsilon)


def of_channels(statistics, x):
    """Return values of groups [n, groups] for the channels of x, [n, 1, ..., c]."""
    return np.repeat(statistics, x.shape[-1] // statistics.shape[1], 1).reshape(len(x), *(1,) * (x.ndim - 2), x.shape[-1])


def group_norm_again(x, scale, bias, mean, inverse, **attributes):
    return activated((x - of_channels(mean, x)) * of_channels(inverse, x) * scale + bias, **attributes)


def group_norm_sample(label, shape, groups, **attributes):
    """Return a sample of images with different means and spreads."""
    x = normal(*shape) * np.arange(1, 1 + shape[0]).reshape(-1, *(1,) * (len(shape) - 1)) + np.linspace(-3, 3, shape[-1])

    def oracle(x, scale, bias):
        statistics = group_statistics(x, groups, attributes.get("epsilon", 1e-5))
        return group_norm_again(x, scale, bias, *statistics, **attributes), *statistics

    return Sample("ChannelsLastGroupNorm", [x, normal(shape[-1]), normal(shape[-1])], oracle, attributes | {"num_groups": groups}, domain=ORTRAIN, outputs=3,
                  gradient=False, label=label)


def group_norm_again_sample(label, shape, groups, **attributes):
    inputs = [normal(*shape), normal(shape[-1]), normal(shape[-1]), normal(shape[0], groups), rng.uniform(0.5, 2, (shape[0], groups))]
    return Sample("ChannelsLastGroupNormRecompute", inputs, lambda *a: group_norm_again(*a, **attributes), attributes | {"num_groups": groups}, domain=ORTRAIN,
                  gradient=False, label=label)


def group_norm_grad_sample(label, shape, groups, **attributes):
    x, c = normal(*shape), shape[-1]

    def oracle(dy, x, scale, mean, inverse, bias=0):
        normal_x = (x - of_channels(mean, x)) * of_channels(inverse, x)
        dy = gradient_of_input(dy, normal_x * scale + bias, **attributes)
        slope = scale * dy
        means = [of_channels(group_statistics(values, groups)[0], x) for values in (slope, slope * normal_x)]
        spatial = tuple(range(x.ndim - 1))
        return of_channels(inverse, x) * (slope - means[0] - normal_x * means[1]), (dy * normal_x).sum(spatial), dy.sum(spatial)

    inputs = [normal(*shape), x, normal(c) + 2, *group_statistics(x, groups), *([normal(c)] if attributes else [])]
    return Sample("ChannelsLastGroupNormGrad", inputs, oracle, attributes | {"num_groups": groups}, domain=ORTRAIN, outputs=3, gradient=False, label=label)


RELU = {"low": 0.0}
RELU6 = {"low": 0.0, "high": 6.0, "closed": 1}
SWISH, LEAKY_RELU, HARD_SWISH = {"activation": "Swish", "alpha": 1.25}, {"activation": "LeakyRelu", "alpha": 0.2}, {"activation": "HardSwish"}
TRAINING = {"training_mode": 1, "momentum": 0.75, "epsilon": 1e-4}


# ---- pooling


def windows(x, kernel, strides, pads):
    """[n, h, w, c] -> [n, oh, ow, taps, c]"""
    rank = len(kernel)
    padded = np.pad(x, [(0, 0), *((pads[i], pads[rank + i]) for i in range(rank)), (0, 0)], constant_values=-np.inf)
    sizes = [(padded.shape[1 + i] - kernel[i]) // strides[i] + 1 for i in range(rank)]
    cuts = [tuple(slice(t, t + (o - 1) * s + 1, s) for t, o, s in zip(tap, sizes, strides, strict=True)) for tap in np.ndindex(*kernel)]
    return np.stack([padded[(slice(None), *cut)] for cut in cuts], -2)


def max_pool(x, kernel_shape, strides=None, pads=None, **_):
    rank = len(kernel_shape)
    seen = windows(x, kernel_shape, strides or (1,) * rank, pads or (0,) * 2 * rank)
    return seen.max(-2), seen.argmax(-2).astype("int32")


def max_pool_grad(dy, taps, y=None, *, kernel_shape, spatial, strides=None, pads=None):
    rank = len(kernel_shape)
    strides, pads = strides or (1,) * rank, pads or (0,) * 2 * rank
    dy = dy if y is None else dy * (y > 0)
    padded = np.zeros((len(dy), *(spatial[i] + pads[i] + pads[i + rank] + strides[i] for i in range(rank)), dy.shape[-1]), dy.dtype)
    for i, *output, ch in np.ndindex(dy.shape):
        tap = np.unravel_index(taps[(i, *output, ch)], kernel_shape)
        padded[(i, *(o * s + t for o, s, t in zip(output, strides, tap, strict=True)), ch)] += dy[(i, *output, ch)]
    return padded[(slice(None), *(slice(pads[i], pads[i] + spatial[i]) for i in range(rank)))]


POOLS: list[tuple[tuple[int, ...], dict[str, Any]]] = [
    ((2, 6, 8, 16), {"kernel_shape": (2, 2), "strides": (2, 2)}),
    ((1, 9, 8, 21), {"kernel_shape": (3, 3), "strides": (2, 2), "pads": (1, 1, 1, 1)}),
    ((1, 5, 6, 16), {"kernel_shape": (3, 2)}),
    ((2, 6, 8, 19), {"kernel_shape": (3, 2), "strides": (3, 2)}),
    ((2, 4, 4, 16), {"kernel_shape": (2, 2), "strides": (2, 2), "pads": (1, 1, 0, 0)}),
    ((1, 4, 6, 8, 19), {"kernel_shape": (2, 3, 2), "strides": (2, 3, 2)}),
    ((1, 5, 6, 7, 16), {"kernel_shape": (3, 2, 3), "strides": (2, 1, 2), "pads": (1, 0, 1, 1, 1, 1)}),
    ((2, 9, 11, 13), {"kernel_shape": (2, 2), "strides": (2, 2)}),
    ((2, 7, 9, 9), {"kernel_shape": (3, 3), "pads": (1, 1, 1, 1)}),
    ((2, 7, 9, 5), {"kernel_shape": (3, 3), "strides": (2, 2), "pads": (0, 1, 1, 0)}),
    ((2, 7, 9, 3), {"kernel_shape": (3, 2), "pads": (2, 0, 0, 1)}),
    ((2, 6, 4, 1), {"kernel_shape": (2, 3), "strides": (1, 2)}),
    ((2, 5, 7, 8, 7), {"kernel_shape": (2, 3, 2), "strides": (2, 3, 2)}),
    ((1, 4, 3, 2, 2), {"kernel_shape": (3, 2, 2), "pads": (1, 1, 1, 1, 0, 0)}),
]


def average_pool(x, kernel_shape, strides=None, pads=None, count_include_pad=0):
    rank = len(kernel_shape)
    strides, pads = strides or (1,) * rank, pads or (0,) * 2 * rank
    seen = windows(x, kernel_shape, strides, pads)
    inside = np.isfinite(seen)
    return np.where(inside, seen, 0).sum(-2) / (prod(kernel_shape) if count_include_pad else inside.sum(-2))


def average_pool_grad(dy, kernel_shape, spatial, strides=None, pads=None, count_include_pad=0):
    rank = len(kernel_shape)
    strides, pads = strides or (1,) * rank, pads or (0,) * 2 * rank
    inside = np.isfinite(windows(np.zeros((1, *spatial, 1)), kernel_shape, strides, pads))
    share = dy / (prod(kernel_shape) if count_include_pad else inside.sum(-2))
    padded = np.zeros((len(dy), *(spatial[i] + pads[i] + pads[i + rank] for i in range(rank)), dy.shape[-1]))
    for tap in np.ndindex(*kernel_shape):
        cut = tuple(slice(t, t + (o - 1) * s + 1, s) for t, o, s in zip(tap, dy.shape[1:-1], strides, strict=True))
        padded[(slice(None), *cut)] += share
    return padded[(slice(None), *(slice(pads[i], pads[i] + spatial[i]) for i in range(rank)))]


def average_samples(shape, attributes):
    x = normal(*shape)
    for count in (0, 1) if attributes.get("pads") else (0,):
        both = attributes | {"count_include_pad": count}
        label, y = f"pads counted: {count}", average_pool(x, **both)
        yield Sample("ChannelsLastAveragePool", [x], lambda x, both=both: average_pool(x, **both), both, domain=ORTRAIN, gradient=False, label=label)
        dy = normal(*y.shape)

        def gradient(dy, both=both):
            return average_pool_grad(dy, **both, spatial=shape[1:-1])

        yield Sample("ChannelsLastAveragePoolGrad", [dy], gradient, both | {"spatial": shape[1:-1]}, domain=ORTRAIN, gradient=False, label=label)


def pool_samples(shape, attributes):
    x = normal(*shape)
    y, taps = max_pool(x, **attributes)
    yield Sample("ChannelsLastMaxPool", [x], lambda x: max_pool(x, **attributes), attributes, domain=ORTRAIN, outputs=2, gradient=False)
    backward_attributes = attributes | {"spatial": shape[1:-1]}

    def gradient(dy, taps, y=None):
        return max_pool_grad(dy, taps, y, **backward_attributes)

    for label, given in (("alone", []), ("behind a ReLU", [y])):
        yield Sample("ChannelsLastMaxPoolGrad", [normal(*y.shape), taps, *given], gradient, backward_attributes, domain=ORTRAIN, gradient=False, label=label)


SAMPLES: list[Sample] = [
    *(forward(*case) for case in CONVOLUTIONS),
    *(backward(*case) for case in CONVOLUTIONS),
    *(backward_added(*case) for case in CONVOLUTIONS if set(case[2][2:]) == {1} and case[3].keys() <= {"strides"}),
    transposed("4 x 4, strides", (2, 16, 18, 20), (32, 20, 4, 4), {"pads": (1, 1, 1, 1), "strides": (2, 2)}),
    transposed("2 x 2, strides", (2, 12, 15, 8), (24, 8, 2, 2), {"strides": (2, 2)}),
    transposed("3 x 3, strides, a row that no window covers", (2, 16, 12, 16), (32, 16, 3, 3), {"pads": (1, 1, 1, 1), "strides": (2, 2)}),
    transposed("one pixel to 4 x 4", (3, 4, 4, 24), (40, 24, 4, 4), {}),
    transposed("3 x 3", (2, 9, 11, 17), (33, 17, 3, 3), {"pads": (1, 1, 1, 1)}),
    transposed("fewer windows than fit", (2, 9, 11, 17), (33, 17, 3, 3), {"pads": (1, 1, 0, 0), "dilations": (2, 2)}),
    transposed("volume, strides", (2, 8, 10, 6, 20), (33, 20, 4, 4, 4), {"pads": (1, 1, 1, 1, 1, 1), "strides": (2, 2, 2)}),
    transposed("volume, narrow groups", (1, 9, 7, 11, 12), (8, 3, 3, 2, 3), {"group": 4, "strides": (2, 3, 2)}),
    transposed("narrow groups, strides", (2, 9, 11, 12), (8, 3, 3, 3), {"group": 4, "strides": (2, 2)}),
    forward("few filters, frozen statistics", (2, 9, 30, 12), (10, 12, 3, 3), {"pads": (1, 1, 1, 1), "epsilon": 1e-3, "low": 0.0}, None, *frozen(10)),
    forward("two filters, strides, frozen statistics", (2, 9, 30, 21), (2, 21, 3, 3), {"strides": (2, 2), "epsilon": 1e-3, "low": 0.0}, None, *frozen(2)),
    forward("product of two filters, strides, frozen statistics", (2, 9, 30, 21), (2, 21, 1, 1), {"strides": (2, 2), "epsilon": 1e-3}, None, *frozen(2)),
    transposed("3 x 3 to three channels", (2, 9, 11, 3), (21, 3, 3, 3), {"pads": (1, 1, 1, 1)}),
    forward_of_planes("planes, two filters", (2, 9, 30, 21), (2, 21, 3, 3), {"pads": (1, 1, 1, 1), "low": 0.0}, normal(2)),
    forward_of_planes("planes, groups", (2, 9, 30, 48), (32, 24, 3, 3), {"group": 2, "pads": (1, 1, 1, 1)}),
    forward_of_planes("planes, three channels, bias and ReLU", (2, 19, 21, 3), (20, 3, 3, 3), {"strides": (2, 2), "pads": (1, 0, 1, 1), "low": 0.0}, normal(20)),
    forward_of_planes("planes, few filters, frozen statistics", (2, 9, 30, 12), (10, 12, 3, 3), {"epsilon": 1e-3, "low": 0.0}, None, *frozen(10)),
    forward_of_planes("planes, several blocks of rows", (1, 60, 41, 7), (40, 7, 3, 2), {"pads": (1, 1, 1, 0), "epsilon": 1e-3}, None, *frozen(40)),
    forward_of_planes("volume of planes, dilations", (2, 6, 9, 10, 20), (24, 20, 3, 3, 3), {"pads": (2,) * 6, "dilations": (2, 2, 2)}),
    forward_of_planes("volume of planes, strides", (1, 5, 9, 10, 20), (24, 20, 3, 3, 3), {"pads": (1,) * 6, "strides": (2, 2, 2)}, normal(24)),
    forward_of_planes("data of planes", (2, 9, 11, 17), (33, 17, 3, 3), {"pads": (1, 1, 1, 1)}, writes=0),
    forward_of_planes("result of planes", (2, 9, 11, 17), (33, 17, 3, 3), {}, reads=0),
    forward("no channels, bias and ReLU", (2, 4, 5, 0), (7, 0, 3, 3), {"low": 0.0}, normal(7)),
    forward("volume, bias and ReLU", (2, 5, 6, 7, 20), (24, 20, 3, 3, 3), {"pads": (1, 1, 1, 1, 1, 1), "low": 0.0}, normal(24)),
    forward("volume, Winograd, bias and ReLU", (2, 5, 6, 7, 16), (32, 16, 3, 3, 3), {"pads": (1, 1, 1, 1, 1, 1), "low": 0.0}, normal(32)),
    forward("volume, narrow groups, frozen statistics", (1, 5, 6, 9, 8), (12, 2, 3, 3, 3), {"group": 4, "epsilon": 1e-3, "low": 0.0}, None, *frozen(12)),
    forward("bias", (2, 5, 6, 7), (9, 7, 1, 1), {}, normal(9)),
    forward("Winograd with bias and ReLU", (2, 7, 6, 16), (32, 16, 3, 3), {"pads": (1, 1, 1, 1), "low": 0.0}, normal(32)),
    forward("product, frozen statistics", (2, 5, 6, 7), (9, 7, 1, 1), {"epsilon": 1e-3, "low": 0.0, "high": 1.0}, None, *frozen(9)),
    forward("product of many pixels, frozen statistics", (1, 97, 85, 48), (64, 48, 1, 1), {"epsilon": 1e-3, "low": 0.0, "high": 1.0}, None, *frozen(64)),
    forward("Winograd, frozen statistics", (3, 27, 30, 16), (16, 16, 3, 3), {"pads": (1, 1, 1, 1), "epsilon": 1e-3}, normal(16), *frozen(16)),
    forward("rows, frozen statistics", (2, 9, 8, 6), (10, 6, 3, 3), {"strides": (2, 2), "epsilon": 1e-3, "low": 0.0}, None, *frozen(10)),
    forward("windows on tiles, bias", (2, 31, 29, 64), (96, 64, 3, 3), {"pads": (1, 1, 1, 1), "strides": (2, 2)}, normal(96)),
    forward("windows on tiles, frozen statistics", (2, 31, 29, 64), (96, 64, 3, 3), {"strides": (2, 2), "epsilon": 1e-3, "low": 0.0}, None, *frozen(96)),
    forward("depthwise, frozen statistics", (2, 9, 8, 19), (19, 1, 3, 3), {"group": 19, "epsilon": 1e-3, "low": 0.0, "high": 1.0}, None, *frozen(19)),
    forward("narrow groups, frozen statistics", (2, 9, 8, 32), (24, 4, 3, 3), {"group": 8, "epsilon": 1e-3, "low": 0.0}, normal(24), *frozen(24)),
    forward("few narrow groups, frozen statistics", (2, 9, 8, 6), (9, 2, 3, 3), {"group": 3, "epsilon": 1e-3, "low": 0.0}, normal(9), *frozen(9)),
    forward("wide groups, frozen statistics", (2, 9, 8, 40), (34, 20, 3, 3), {"group": 2, "epsilon": 1e-3, "low": 0.0}, None, *frozen(34)),
    norm_sample("inference", (2, 5, 6, 16), {}),
    norm_sample("training", (2, 5, 6, 19), TRAINING),
    norm_sample("training, many pixels", (4, 40, 33, 40), TRAINING),
    norm_sample("training, many channels", (1, 2, 3, 2061), TRAINING),
    *[norm_sample(f"training, {channels} channels", (3, 37, 31, channels), TRAINING | RELU) for channels in (1, 12)],
    norm_sample("training with ReLU", (2, 5, 6, 16), TRAINING | RELU),
    norm_sample("training with residual", (2, 5, 6, 16), TRAINING, residual=True),
    norm_sample("training with residual and ReLU", (2, 5, 6, 35), TRAINING | RELU, residual=True),
    norm_sample("training with ReLU6", (2, 5, 6, 35), TRAINING | RELU6),
    *[norm_sample(f"training with Swish, {channels} channels", (2, 5, 6, channels), TRAINING | SWISH) for channels in (1, 16, 35)],
    *[norm_again_sample(curve["activation"], (2, 5, 6, 35), curve) for curve in (SWISH, LEAKY_RELU, HARD_SWISH)],
    *[norm_sample(f"training with {curve['activation']}", (2, 5, 6, 35), TRAINING | curve) for curve in (LEAKY_RELU, HARD_SWISH)],
    *[norm_grad_sample(curve["activation"], (2, 5, 6, 35), curve) for curve in (LEAKY_RELU, HARD_SWISH)],
    *[norm_grad_sample(f"Swish, {shape[3]} channels", shape, SWISH) for shape in ((2, 5, 6, 1), (2, 5, 6, 35), (4, 40, 33, 40))],
    norm_again_sample("plain", (2, 5, 6, 19), {}),
    norm_again_sample("ReLU behind a residual", (2, 5, 6, 35), RELU, residual=True),
    norm_again_sample("ReLU6", (4, 40, 33, 40), RELU6),
    norm_grad_sample("plain", (2, 5, 6, 19), {}, biased=False),
    norm_grad_sample("many pixels", (4, 40, 33, 40), {}, biased=False),
    norm_grad_sample("many channels, ReLU", (1, 2, 3, 2061), RELU),
    *[norm_grad_sample(f"{channels} channels, ReLU", (3, 37, 31, channels), RELU) for channels in (1, 12)],
    norm_grad_sample("ReLU", (2, 5, 6, 35), RELU),
    norm_grad_sample("ReLU6", (2, 5, 6, 35), RELU6),
    norm_grad_sample("ReLU behind a residual", (2, 5, 6, 35), RELU, of_y=True),
    *(make(f"{shape}, {groups} groups", shape, groups, **attributes)
      for shape, groups, attributes in (((2, 5, 6, 12), 4, {}), ((3, 37, 31, 12), 3, SWISH), ((9, 5, 6, 35), 7, RELU), ((1, 40, 33, 40), 1, SWISH),
                                        ((8, 4, 4, 64), 32, SWISH), ((2, 3, 4, 5, 6), 2, RELU6), ((2, 5, 6, 12), 2, LEAKY_RELU), ((9, 5, 6, 12), 2, HARD_SWISH), ((2, 5, 6, 3), 3, SWISH), ((1, 2, 3, 2061), 3, {}))
      for make in (group_norm_sample, group_norm_again_sample, group_norm_grad_sample)),
    group_norm_sample("epsilon", (2, 5, 6, 12), 2, epsilon=0.5),
    *(sample for case in POOLS for sample in (*pool_samples(*case), *average_samples(*case))),
]

X = normal(1, 4, 4, 3)

REFUSALS: list[Refusal] = [
    Refusal("ChannelsLastConv", [X, normal(2, 4, 3, 3)], domain=ORTRAIN, match="weight"),
    Refusal("ChannelsLastConvGrad", [X, X, normal(2, 4, 3, 3)], domain=ORTRAIN, match="weight"),
    Refusal("ChannelsLastConvInputGrad", [X, None, normal(2, 4, 3, 3)], {"output_shape": (6, 6)}, domain=ORTRAIN, match="support"),
    Refusal("ChannelsLastMaxPool", [normal(1, 4, 4, 16)], {"kernel_shape": (2, 2), "pads": (2, 0, 0, 0)}, domain=ORTRAIN, match="pads smaller"),
    Refusal("ChannelsLastMaxPool", [normal(1, 20, 20, 2)], {"kernel_shape": (12, 11)}, domain=ORTRAIN, match="at most 128 taps"),
    Refusal("ChannelsLastAveragePool", [normal(1, 4, 4, 3)], {"kernel_shape": (2, 2), "ceil_mode": 1}, domain=ORTRAIN, match="ceil_mode"),
    Refusal("ChannelsLastBatchNormalization", [X, normal(4), normal(4), normal(4), normal(4)], domain=ORTRAIN, match="input 1 of shape"),
    Refusal("ChannelsLastBatchNormalization", [X, *[normal(3)] * 4, X], SWISH, domain=ORTRAIN, match="without limits and further inputs"),
    Refusal("ChannelsLastBatchNormalization", [X, *[normal(3)] * 4], {"activation": "Selu"}, domain=ORTRAIN, match="Swish, LeakyRelu, HardSwish, got 'Selu'"),
    Refusal("ChannelsLastBatchNormalization", [X, *[normal(3)] * 4], SWISH | RELU, domain=ORTRAIN, match="without limits and further inputs"),
    Refusal("ChannelsLastBatchNormalizationGrad", [X, X, *[normal(3)] * 3], SWISH, domain=ORTRAIN, match="input 5"),
    Refusal("ChannelsLastGroupNorm", [X, normal(3), normal(3)], {"num_groups": 2}, domain=ORTRAIN, match="divide"),
    Refusal("ChannelsLastGroupNorm", [X, normal(4), normal(3)], {"num_groups": 3}, domain=ORTRAIN, match="input 1 of shape"),
    Refusal("ChannelsLastGroupNorm", [X[0], normal(3), normal(3)], {"num_groups": 3}, domain=ORTRAIN, match=r"expected x \[n, h, w, c\]"),
    Refusal("ChannelsLastGroupNormRecompute", [X, normal(3), normal(3), normal(1, 2), normal(1, 3)], {"num_groups": 3}, domain=ORTRAIN, match="input 3 of shape"),
    Refusal("ChannelsLastGroupNormGrad", [X, X, normal(3), normal(1, 3), normal(1, 3)], {"num_groups": 3} | SWISH, domain=ORTRAIN, match="input 5"),
    Refusal("ChannelsLastGroupNormGrad", [X[:, 1:], X, normal(3), normal(1, 3), normal(1, 3)], {"num_groups": 3}, domain=ORTRAIN, match="input 0 of shape"),
]
