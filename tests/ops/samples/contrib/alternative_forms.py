"""Samples of the forms that the old package's files may have. What has a kernel in onnxruntime-training 1.19.2 was compared with it once, by hand."""

import numpy as np

from tests.ops.samples import Refusal, Sample, by_reference

rng = np.random.default_rng(97)
MICROSOFT = "com.microsoft"
X, LABELS, WEIGHTS, OF_CLASSES = rng.standard_normal((5, 4)), np.array([1, 0, 3, 2, 3]), rng.uniform(0.5, 2, 5), rng.uniform(0.5, 2, 4)
IGNORED, DLOSS = np.array(3), np.array(1.7)


def log_softmax(x):
    shifted = x - x.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


def picked(logs, labels):
    return -np.take_along_axis(logs, labels[..., None], -1)[..., 0]


def reduced(loss, weight, reduction):
    return {"none": loss, "sum": loss.sum(), "mean": loss.sum() / weight.sum()}[reduction]


def class_weights(labels, weight, ignored, dtype):
    return (np.ones(labels.shape) if weight is None else weight[labels]).astype(dtype) * (labels != (-1 if ignored is None else ignored))


def internal(reduction):
    def oracle(x, labels, weight=None, ignored=None):
        w, logs = class_weights(labels, weight, ignored, x.dtype), log_softmax(x)
        return np.asarray(reduced(picked(logs, labels) * w, w, reduction), x.dtype), logs

    return oracle


def internal_back(dloss, logs, labels, weight=None, ignored=None, bias=0.0):
    w = class_weights(labels, weight, ignored, logs.dtype)
    return dloss * (np.exp(logs) - np.eye(4)[labels]) * w[:, None] / w.sum() + bias


def sparse(x, labels, weight=None, reduction="mean"):
    w, logs = np.ones(labels.shape, x.dtype) if weight is None else weight, log_softmax(x)
    return np.asarray(reduced(picked(logs, labels) * w, w, reduction), x.dtype), logs


def sparse_back(dloss, logs, labels, weight=None):
    w = np.ones(labels.shape, logs.dtype) if weight is None else weight
    return dloss * (np.exp(logs) - np.eye(logs.shape[-1])[labels]) * w[..., None] / w.sum()


def first(oracle, **options):
    return lambda *a: oracle(*a, **options)[0]


LOGS, SOFT = log_softmax(X), np.eye(4)[LABELS]
LOSSES = [
    Sample("SoftmaxCrossEntropyLossInternal", [X, LABELS, OF_CLASSES, IGNORED], first(internal("mean")), {"reduction": "mean"}, MICROSOFT, constants=[3], indices=[0]),
    Sample("SoftmaxCrossEntropyLossInternal", [X, LABELS], internal("none"), {"reduction": "none"}, MICROSOFT, 2, gradient=False),
    Sample("SoftmaxCrossEntropyLossInternalGrad", [DLOSS, LOGS, LABELS, OF_CLASSES, IGNORED, rng.standard_normal((5, 4))], internal_back, {}, MICROSOFT, constants=[4],
           gradient=False),
    Sample("SoftmaxCrossEntropyLossInternalGrad", [DLOSS, LOGS, LABELS], internal_back, {}, MICROSOFT, gradient=False),
    *[Sample(f"NegativeLogLikelihoodLossInternal{end}", [LOGS, LABELS, OF_CLASSES, IGNORED],
             lambda logs, labels, w, i: reduced(picked(logs, labels) * class_weights(labels, w, i, logs.dtype), class_weights(labels, w, i, logs.dtype), "mean"), {},
             MICROSOFT, constants=[3], indices=[0]) for end in ("", "2")],
    Sample("SparseSoftmaxCrossEntropy", [X, LABELS], first(sparse), indices=[0]), Sample("SparseSoftmaxCrossEntropy", [X, LABELS, WEIGHTS], first(sparse), indices=[0]),
    Sample("SparseSoftmaxCrossEntropy", [X, LABELS, WEIGHTS], lambda *a: sparse(*a, reduction="sum"), {"reduction": "sum"}, outputs=2, gradient=False),
    Sample("SparseSoftmaxCrossEntropy", [rng.standard_normal((2, 3, 4)), rng.integers(0, 4, (2, 3))], first(sparse), indices=[0], opset=11),
    Sample("SparseSoftmaxCrossEntropyGrad", [DLOSS, LOGS, LABELS], sparse_back, gradient=False),
    Sample("SparseSoftmaxCrossEntropyGrad", [DLOSS, LOGS, LABELS, WEIGHTS], sparse_back, gradient=False),
    Sample("SoftmaxCrossEntropy", [X, SOFT], lambda x, y: -(y * log_softmax(x)).sum() / 5, {}, MICROSOFT, indices=[0]),
    Sample("SoftmaxCrossEntropy", [X, SOFT], lambda x, y: -(y * log_softmax(x)).sum(), {"reduction": "sum"}, MICROSOFT, indices=[0]),
    Sample("SoftmaxCrossEntropyGrad", [DLOSS, LOGS, SOFT], lambda d, logs, y: d * (np.exp(logs) - y) / 5, {}, MICROSOFT, gradient=False),
]
SHAPES = [
    Sample("Trilu", [X], np.tril, {"upper": 0}, MICROSOFT), Sample("Trilu", [X, np.array(1)], lambda x, k: np.triu(x, k), {}, MICROSOFT, constants=[1]),
    Sample("ShrunkenGather", [X, np.array([2, 0])], lambda x, i: x[:, i], {"axis": 1}, MICROSOFT),
]
SCALE, BIAS, INVERSE = rng.uniform(0.5, 2, 4), rng.standard_normal(4), rng.uniform(0.5, 2, (5, 1))


def invertible(dy, y, scale, bias, inverse):
    normal, along = (y - bias) / scale, dy * scale
    dx = inverse * (along - along.mean(-1, keepdims=True) - normal * (along * normal).mean(-1, keepdims=True))
    return dx, (dy * normal).sum(0), dy.sum(0)


IMAGES, FILTERS = rng.standard_normal((2, 3, 4, 4)), rng.standard_normal((3, 2, 3, 3))
STRIDED = {"strides": (2, 2), "pads": (1, 0, 1, 2)}


def transposed_back(dy, x, w):
    """By the definition: y is linear in x and in w, so that their gradients are products with y of unit tensors."""
    transpose = by_reference("ConvTranspose", STRIDED)
    dx, dw = np.zeros(x.shape), np.zeros(w.shape)
    for index in np.ndindex(*x.shape):
        unit = np.zeros(x.shape)
        unit[index] = 1
        dx[index] = (transpose(unit, w.astype(float)) * dy).sum()
    for index in np.ndindex(*w.shape):
        unit = np.zeros(w.shape)
        unit[index] = 1
        dw[index] = (transpose(x.astype(float), unit) * dy).sum()
    return dx, dw, dy.sum((0, 2, 3))


GRADIENTS = [
    Sample("InvertibleLayerNormalizationGrad", [rng.standard_normal((5, 4)), X, SCALE, BIAS, INVERSE], invertible, {}, MICROSOFT, 3, gradient=False),
    Sample("ConvTransposeGrad", [rng.standard_normal(by_reference("ConvTranspose", STRIDED)(IMAGES, FILTERS).shape), IMAGES, FILTERS], transposed_back, STRIDED,
           MICROSOFT, 3, gradient=False),
    Sample("ResizeGrad", [rng.standard_normal((1, 2, 6, 8)), rng.standard_normal((1, 2, 3, 4)), None, np.array([1, 1, 2, 2], np.float32)],
           lambda dy, x, roi, scales: dy.reshape(1, 2, 3, 2, 4, 2).sum((3, 5)), {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"},
           MICROSOFT, constants=[3], gradient=False),
]
SAMPLES = [*LOSSES, *SHAPES, *GRADIENTS]
REFUSALS = [
    Refusal("SparseSoftmaxCrossEntropy", [X, X]), Refusal("SoftmaxCrossEntropy", [X, LABELS], {}, MICROSOFT),
    Refusal("SoftmaxCrossEntropy", [X, SOFT], {"reduction": "none"}, MICROSOFT), Refusal("ShrunkenGather", [X, np.array([0])], {"axis": 2}, MICROSOFT),
]
