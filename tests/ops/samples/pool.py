"""Samples of the pooling family."""

from typing import Any

import numpy as np

from tests.ops.samples import Refusal, Sample
from tests.ops.samples.conv import pads_of

rng = np.random.default_rng(0)


def distinct(*shape):
    """Return numbers of which no two are close, so that maxima are differentiable."""
    return rng.permutation(np.arange(np.prod(shape), dtype=float)).reshape(shape) / 10 - 2


def windows(shape, attributes):
    """Yield (index, flat spatial positions of the window, divisor with count_include_pad) of each output position."""
    size, kernel = shape[2:], attributes["kernel_shape"]
    rank = len(size)
    strides, dilations = attributes.get("strides", (1,) * rank), attributes.get("dilations", (1,) * rank)
    begins, ends = pads_of(size, kernel, attributes)
    counts = []
    for n, k, s, d, b, e in zip(size, kernel, strides, dilations, begins, ends, strict=True):
        room = n + b + e - d * (k - 1) - 1
        count = room // s + 1
        if attributes.get("ceil_mode") and not attributes.get("auto_pad", "").startswith("SAME") and room % s and count * s < n + b:
            count += 1
        counts.append(count)
    for out in np.ndindex(*counts):
        inside, divisor = [], 0
        for tap in np.ndindex(*kernel):
            at = [o * s + t * d - b for o, s, t, d, b in zip(out, strides, tap, dilations, begins, strict=True)]
            if all(0 <= a < n for a, n in zip(at, size, strict=True)):
                inside.append(int(np.ravel_multi_index(at, size)))
            divisor += all(a < n + e for a, n, e in zip(at, size, ends, strict=True))
        yield out, inside, divisor if attributes.get("count_include_pad") else len(inside)


def outputs_of(shape, attributes):
    *_, (last, _, _) = windows(shape, attributes)
    return (*shape[:2], *(i + 1 for i in last))


def max_pool(x, **attributes):
    """Return (maxima, their flat positions)."""
    y = np.empty(outputs_of(x.shape, attributes), x.dtype)
    indices = np.empty(y.shape, np.int64)
    planes = x.reshape(*x.shape[:2], -1)
    first = np.arange(x.shape[0] * x.shape[1]).reshape(x.shape[:2]) * planes.shape[2]
    for out, inside, _ in windows(x.shape, attributes):
        where = (slice(None), slice(None), *out)
        y[where] = planes[:, :, inside].max(axis=2)
        indices[where] = first + np.array(inside)[planes[:, :, inside].argmax(axis=2)]
    return y, indices


def average_pool(x, **attributes):
    y = np.empty(outputs_of(x.shape, attributes), x.dtype)
    planes = x.reshape(*x.shape[:2], -1)
    for out, inside, divisor in windows(x.shape, attributes):
        y[(slice(None), slice(None), *out)] = planes[:, :, inside].sum(axis=2) / divisor
    return y


def max_pool_grad(dy, indices, shape):
    dx = np.zeros(shape, dy.dtype)
    np.add.at(dx.reshape(-1), indices.reshape(-1), dy.reshape(-1))
    return dx


def average_pool_grad(dy, shape, **attributes):
    dx = np.zeros((*shape[:2], int(np.prod(shape[2:]))), dy.dtype)
    for out, inside, divisor in windows(shape, attributes):
        dx[:, :, inside] += (dy[(slice(None), slice(None), *out)] / divisor)[:, :, None]
    return dx.reshape(shape)


# (label, shape of x, attributes, whether the shape follows from the windows alone)
CASES: list[tuple[str, tuple[int, ...], dict[str, Any], bool]] = [
    ("2x2", (2, 3, 6, 8), {"kernel_shape": (2, 2), "strides": (2, 2)}, True),
    ("3x3 stride 2 padded", (2, 3, 9, 7), {"kernel_shape": (3, 3), "strides": (2, 2), "pads": (1, 1, 1, 1)}, True),
    ("overlapping", (2, 2, 6, 7), {"kernel_shape": (3, 2)}, True),
    ("stride 3", (2, 2, 8, 11), {"kernel_shape": (2, 2), "strides": (3, 3)}, True),
    ("asymmetric", (1, 2, 6, 6), {"kernel_shape": (3, 3), "pads": (0, 1, 2, 0), "strides": (1, 2)}, True),
    ("wide", (1, 2, 3, 150), {"kernel_shape": (2, 3), "pads": (0, 1, 0, 1)}, True),
    ("wide stride 2", (1, 2, 4, 151), {"kernel_shape": (2, 3), "strides": (2, 2)}, True),
    ("loose end", (2, 2, 8, 8), {"kernel_shape": (3, 3), "strides": (2, 2)}, False),
    ("valid", (2, 2, 7, 9), {"kernel_shape": (3, 3), "strides": (2, 2), "auto_pad": "VALID"}, True),
    ("same upper", (2, 2, 7, 8), {"kernel_shape": (3, 2), "strides": (2, 2), "auto_pad": "SAME_UPPER"}, False),
    ("same lower", (2, 2, 8, 6), {"kernel_shape": (3, 4), "strides": (2, 1), "auto_pad": "SAME_LOWER"}, False),
    ("ceil", (2, 2, 8, 6), {"kernel_shape": (3, 3), "strides": (2, 2), "ceil_mode": 1}, False),
    ("ceil padded", (2, 2, 8, 7), {"kernel_shape": (3, 3), "strides": (2, 3), "pads": (1, 1, 1, 1), "ceil_mode": 1}, False),
    ("ceil beyond", (1, 1, 5, 5), {"kernel_shape": (1, 1), "strides": (2, 3), "pads": (0, 0, 0, 0), "ceil_mode": 1}, False),
    ("dilated", (2, 2, 9, 8), {"kernel_shape": (3, 2), "dilations": (2, 3), "pads": (1, 1, 1, 1)}, True),
    ("dilated ceil", (1, 2, 10, 9), {"kernel_shape": (2, 2), "dilations": (2, 2), "strides": (3, 2), "ceil_mode": 1}, False),
    ("1-D", (2, 3, 11), {"kernel_shape": (3,), "strides": (2,), "pads": (1, 1)}, True),
    ("3-D", (2, 2, 5, 6, 4), {"kernel_shape": (2, 3, 2), "strides": (1, 2, 2), "pads": (1, 1, 0, 0, 0, 0)}, False),
    ("3-D exact", (1, 2, 4, 4, 4), {"kernel_shape": (2, 2, 2), "strides": (2, 2, 2)}, True),
    ("many planes", (20, 30, 8, 8), {"kernel_shape": (2, 2), "strides": (2, 2)}, True),
]


def samples():
    for number, (label, shape, attributes, follows) in enumerate(CASES):
        x = distinct(*shape)
        y, indices = max_pool(x, **attributes)
        cheap = x.size < 2000
        opset = 11 + number % 11
        yield Sample("MaxPool", [x], lambda x, k=attributes: max_pool(x, **k), attributes, outputs=2, opset=opset, gradient=False,
                     label=label)
        yield Sample("MaxPool", [x], lambda x, k=attributes: max_pool(x, **k)[0], attributes, opset=opset, gradient=cheap, label=label)
        for include in (0, 1):
            averaged = attributes | {"count_include_pad": include}
            opset = 19 if "dilations" in attributes else opset
            yield Sample("AveragePool", [x], lambda x, k=averaged: average_pool(x, **k), averaged, opset=opset, gradient=cheap, label=label)
            if follows:
                yield Sample("AveragePoolGrad", [y], lambda dy, s=shape, k=averaged: average_pool_grad(dy, s, **k), averaged, opset=opset,
                             gradient=False, label=label)
        if follows:
            yield Sample("MaxPoolGrad", [y, indices], lambda dy, i, s=shape: max_pool_grad(dy, i, s), attributes, gradient=False,
                         label=label)


X = distinct(2, 3, 6, 5)
TIES = np.tile([1.0, 2.0, 2.0, 1.0], 6).reshape(1, 1, 4, 6)
SAMPLES = [
    *samples(),
    *[Sample("MaxPool", [(20 * X).astype(kind)], lambda x: max_pool(x, kernel_shape=(2, 3)), {"kernel_shape": (2, 3)}, outputs=2, gradient=False)
      for kind in (np.int8, np.uint8)],
    Sample("MaxPool", [TIES], lambda x: max_pool(x, kernel_shape=(2, 3)), {"kernel_shape": (2, 3)}, outputs=2, gradient=False,
           label="ties"),
    Sample("MaxPool", [-X - 100], lambda x: max_pool(x, kernel_shape=(3, 3), pads=(1, 1, 1, 1)),
           {"kernel_shape": (3, 3), "pads": (1, 1, 1, 1)}, outputs=2, gradient=False, label="negative"),
    Sample("MaxPool", [np.where(X < 12, -np.inf, X)], lambda x: max_pool(x, kernel_shape=(2, 2)), {"kernel_shape": (2, 2)}, outputs=2, gradient=False,
           label="windows of minus infinity"),
    Sample("MaxPool", [X[:0]], lambda x: (np.zeros((0, 3, 5, 4), x.dtype), np.zeros((0, 3, 5, 4), np.int64)), {"kernel_shape": (2, 2)},
           outputs=2, gradient=False, label="no images"),
    Sample("AveragePool", [X[:0]], lambda x: np.zeros((0, 3, 5, 4), x.dtype), {"kernel_shape": (2, 2)}, gradient=False, label="no images"),
    Sample("AveragePoolGrad", [X[:0]], lambda dy: np.zeros((0, 3, 7, 6), dy.dtype), {"kernel_shape": (2, 2)}, gradient=False,
           label="no images"),
    Sample("GlobalAveragePool", [X], lambda x: x.mean(axis=(2, 3), keepdims=True)),
    Sample("GlobalAveragePool", [distinct(2, 3, 40)], lambda x: x.mean(axis=2, keepdims=True), label="1-D"),
    Sample("GlobalAveragePool", [distinct(2, 2, 3, 5, 4)], lambda x: x.mean(axis=(2, 3, 4), keepdims=True), opset=11, label="3-D"),
    Sample("GlobalAveragePool", [X[:0]], lambda x: np.zeros((0, 3, 1, 1), x.dtype), gradient=False, label="no images"),
    Sample("GlobalMaxPool", [X], lambda x: x.max(axis=(2, 3), keepdims=True)),
    Sample("GlobalMaxPool", [distinct(3, 2, 21)], lambda x: x.max(axis=2, keepdims=True), opset=11, label="1-D"),
]

LP = rng.uniform(0.3, 1.5, (2, 3, 7, 6)) * rng.choice([-1.0, 1.0], (2, 3, 7, 6))


def lp(x, p, kernel, strides, pads):
    x = np.pad(np.abs(x) ** p, [(0, 0), (0, 0), (pads[0], pads[2]), (pads[1], pads[3])])
    rows, columns = ((n - k) // s + 1 for n, k, s in zip(x.shape[2:], kernel, strides, strict=True))
    y = [[x[:, :, i * strides[0] : i * strides[0] + kernel[0], j * strides[1] : j * strides[1] + kernel[1]].sum((2, 3)) for j in range(columns)] for i in range(rows)]
    return np.array(y).transpose(2, 3, 0, 1) ** (1 / p)


SAMPLES += [
    *[Sample("LpPool", [LP], lambda x, p=p, s=s, pads=pads: lp(x, p, (2, 3), s, pads).astype(x.dtype), {"p": p, "kernel_shape": (2, 3), "strides": s, "pads": pads})
      for p in (1, 2, 3) for s, pads in (((1, 1), (0, 0, 0, 0)), ((2, 1), (1, 0, 0, 1)))],
    *[Sample("GlobalLpPool", [LP], lambda x, p=p: (np.abs(x) ** p).sum((2, 3), keepdims=True) ** (1 / p), {"p": p}) for p in (1, 2, 3)],
]
REFUSALS: list[Refusal] = [
    Refusal("MaxPool", [X], match="kernel_shape"),
    Refusal("MaxPool", [X], {"kernel_shape": (2,)}, match="kernel_shape"),
    Refusal("MaxPool", [X[0, 0]], {"kernel_shape": (2, 2)}, match="rank"),
    Refusal("MaxPool", [X], {"kernel_shape": (7, 2)}, match="fit"),
    Refusal("MaxPool", [X.astype("int64")], {"kernel_shape": (2, 2)}, match="float32"),
    Refusal("AveragePool", [X], {"kernel_shape": (2, 2), "strides": (0, 1)}, match="positive"),
    Refusal("AveragePool", [X], {"kernel_shape": (2, 2), "pads": (1, 1)}, match="pads"),
    Refusal("GlobalAveragePool", [X[0, 0, 0]], match="rank"),
    Refusal("MaxPoolGrad", [X, X], {"kernel_shape": (2, 2)}, match="indices"),
    Refusal("AveragePoolGrad", [X], {"kernel_shape": (2, 2), "strides": (3, 3), "pads": (8, 8, 8, 8)}, match="expected"),
]
