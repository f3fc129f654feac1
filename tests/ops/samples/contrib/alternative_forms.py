"""Samples of the operator variants of ONNX Runtime training models.

The oracles of those with a kernel in onnxruntime-training 1.19.2 were compared with it by hand."""

import numpy as np

from tests.ops.samples import Refusal, Sample, by_reference

rng = np.random.default_rng(97)
MICROSOFT = "com.microsoft"
X, LABELS, SAMPLE_WEIGHTS, CLASS_WEIGHTS = rng.standard_normal((5, 4)), np.array([1, 0, 3, 2, 3]), rng.uniform(0.5, 2, 5), rng.uniform(0.5, 2, 4)
IGNORED, DLOSS = np.array(3), np.array(1.7)


def log_softmax(x):
    shifted = x - x.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


def label_loss(logs, labels):
    """Return -logs[label] per sample."""
    return -np.take_along_axis(logs, labels[..., None], -1)[..., 0]


def reduce_loss(loss, weight, reduction):
    """Return the loss per sample reduce_loss by `reduction`; weight: of the samples."""
    return {"none": loss, "sum": loss.sum(), "mean": loss.sum() / weight.sum()}[reduction]


def sample_weights(labels, weight, ignored, dtype):
    """Return the weight of each sample's class, 0 for samples with the ignored label."""
    return (np.ones(labels.shape) if weight is None else weight[labels]).astype(dtype) * (labels != (-1 if ignored is None else ignored))


def internal_loss(reduction):
    """Return the oracle of SoftmaxCrossEntropyLossInternal."""
    def oracle(x, labels, weight=None, ignored=None):
        w, logs = sample_weights(labels, weight, ignored, x.dtype), log_softmax(x)
        return np.asarray(reduce_loss(label_loss(logs, labels) * w, w, reduction), x.dtype), logs

    return oracle


def internal_loss_gradient(dloss, logs, labels, weight=None, ignored=None, bias=0.0):
    w = sample_weights(labels, weight, ignored, logs.dtype)
    return dloss * (np.exp(logs) - np.eye(4)[labels]) * w[:, None] / w.sum() + bias


def sparse_loss(x, labels, weight=None, reduction="mean"):
    w, logs = np.ones(labels.shape, x.dtype) if weight is None else weight, log_softmax(x)
    return np.asarray(reduce_loss(label_loss(logs, labels) * w, w, reduction), x.dtype), logs


def sparse_loss_gradient(dloss, logs, labels, weight=None):
    w = np.ones(labels.shape, logs.dtype) if weight is None else weight
    return dloss * (np.exp(logs) - np.eye(logs.shape[-1])[labels]) * w[..., None] / w.sum()


def first_output(oracle, **options):
    return lambda *a: oracle(*a, **options)[0]


LOGS, ONE_HOT = log_softmax(X), np.eye(4)[LABELS]
LOSSES = [
    Sample("SoftmaxCrossEntropyLossInternal", [X, LABELS, CLASS_WEIGHTS, IGNORED], first_output(internal_loss("mean")), {"reduction": "mean"}, MICROSOFT, constants=[3], indices=[0]),
    Sample("SoftmaxCrossEntropyLossInternal", [X, LABELS], internal_loss("none"), {"reduction": "none"}, MICROSOFT, 2, gradient=False),
    Sample("SoftmaxCrossEntropyLossInternalGrad", [DLOSS, LOGS, LABELS, CLASS_WEIGHTS, IGNORED, rng.standard_normal((5, 4))], internal_loss_gradient, {}, MICROSOFT, constants=[4],
           gradient=False),
    Sample("SoftmaxCrossEntropyLossInternalGrad", [DLOSS, LOGS, LABELS], internal_loss_gradient, {}, MICROSOFT, gradient=False),
    *[Sample(f"NegativeLogLikelihoodLossInternal{end}", [LOGS, LABELS, CLASS_WEIGHTS, IGNORED],
             lambda logs, labels, w, i: reduce_loss(label_loss(logs, labels) * sample_weights(labels, w, i, logs.dtype), sample_weights(labels, w, i, logs.dtype), "mean"), {},
             MICROSOFT, constants=[3], indices=[0]) for end in ("", "2")],
    Sample("SparseSoftmaxCrossEntropy", [X, LABELS], first_output(sparse_loss), indices=[0]), Sample("SparseSoftmaxCrossEntropy", [X, LABELS, SAMPLE_WEIGHTS], first_output(sparse_loss), indices=[0]),
    Sample("SparseSoftmaxCrossEntropy", [X, LABELS, SAMPLE_WEIGHTS], lambda *a: sparse_loss(*a, reduction="sum"), {"reduction": "sum"}, outputs=2, gradient=False),
    Sample("SparseSoftmaxCrossEntropy", [rng.standard_normal((2, 3, 4)), rng.integers(0, 4, (2, 3))], first_output(sparse_loss), indices=[0], opset=11),
    Sample("SparseSoftmaxCrossEntropyGrad", [DLOSS, LOGS, LABELS], sparse_loss_gradient, gradient=False),
    Sample("SparseSoftmaxCrossEntropyGrad", [DLOSS, LOGS, LABELS, SAMPLE_WEIGHTS], sparse_loss_gradient, gradient=False),
    Sample("SoftmaxCrossEntropy", [X, ONE_HOT], lambda x, y: -(y * log_softmax(x)).sum() / 5, {}, MICROSOFT, indices=[0]),
    Sample("SoftmaxCrossEntropy", [X, ONE_HOT], lambda x, y: -(y * log_softmax(x)).sum(), {"reduction": "sum"}, MICROSOFT, indices=[0]),
    Sample("SoftmaxCrossEntropyGrad", [DLOSS, LOGS, ONE_HOT], lambda d, logs, y: d * (np.exp(logs) - y) / 5, {}, MICROSOFT, gradient=False),
]
SHAPES = [
    Sample("Trilu", [X], np.tril, {"upper": 0}, MICROSOFT), Sample("Trilu", [X, np.array(1)], lambda x, k: np.triu(x, k), {}, MICROSOFT, constants=[1]),
    Sample("ShrunkenGather", [X, np.array([2, 0])], lambda x, i: x[:, i], {"axis": 1}, MICROSOFT),
]
SCALE, BIAS, INVERSE = rng.uniform(0.5, 2, 4), rng.standard_normal(4), rng.uniform(0.5, 2, (5, 1))


def invertible_gradient(dy, y, scale, bias, inverse):
    normalized, scaled_dy = (y - bias) / scale, dy * scale
    dx = inverse * (scaled_dy - scaled_dy.mean(-1, keepdims=True) - normalized * (scaled_dy * normalized).mean(-1, keepdims=True))
    return dx, (dy * normalized).sum(0), dy.sum(0)


IMAGES, FILTERS = rng.standard_normal((2, 3, 4, 4)), rng.standard_normal((3, 2, 3, 3))
STRIDED = {"strides": (2, 2), "pads": (1, 0, 1, 2)}


def conv_transpose_gradient(dy, x, w):
    """Return (dx, dw, dbias): y is linear in x and in w, so each gradient element is the inner product of dy with the y of a unit tensor."""
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
    Sample("InvertibleLayerNormalizationGrad", [rng.standard_normal((5, 4)), X, SCALE, BIAS, INVERSE], invertible_gradient, {}, MICROSOFT, 3, gradient=False),
    Sample("ConvTransposeGrad", [rng.standard_normal(by_reference("ConvTranspose", STRIDED)(IMAGES, FILTERS).shape), IMAGES, FILTERS], conv_transpose_gradient, STRIDED,
           MICROSOFT, 3, gradient=False),
    Sample("ResizeGrad", [rng.standard_normal((1, 2, 6, 8)), rng.standard_normal((1, 2, 3, 4)), None, np.array([1, 1, 2, 2], np.float32)],
           lambda dy, x, roi, scales: dy.reshape(1, 2, 3, 2, 4, 2).sum((3, 5)), {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"},
           MICROSOFT, constants=[3], gradient=False),
]
SAMPLES = [*LOSSES, *SHAPES, *GRADIENTS]
REFUSALS = [
    Refusal("SparseSoftmaxCrossEntropy", [X, X]), Refusal("SoftmaxCrossEntropy", [X, LABELS], {}, MICROSOFT),
    Refusal("SoftmaxCrossEntropy", [X, ONE_HOT], {"reduction": "none"}, MICROSOFT), Refusal("ShrunkenGather", [X, np.array([0])], {"axis": 2}, MICROSOFT),
]
