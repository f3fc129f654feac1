"""Samples of softmax cross entropy and its gradient."""

import numpy as np

from tests.ops.samples import Refusal, Sample

rng = np.random.default_rng(4)
SCORES, DEEP = rng.standard_normal((6, 5)), rng.standard_normal((2, 4, 3))
LABELS, DEEP_LABELS = np.array([0, 4, 2, 2, 1, 3]), np.array([[0, 3, 1], [2, 2, 0]])
WEIGHT = np.array([0.5, 1.0, 2.0, 0.25, 1.5])


def log_softmax(x):
    y = x - x.max(1, keepdims=True)
    return y - np.log(np.exp(y).sum(1, keepdims=True))


def cross_entropy(reduction="mean", ignored=-1):
    def oracle(x, labels, weight=None):
        logs = log_softmax(x)
        keep = labels != ignored
        safe = np.where(keep, labels, 0)
        w = (np.ones(x.shape[1]) if weight is None else weight)[safe] * keep
        losses = -w * np.take_along_axis(logs, safe[:, None], 1)[:, 0]
        reduced = {"none": losses, "sum": losses.sum(), "mean": losses.sum() / w.sum() if w.sum() else 0.0}[reduction]
        return np.asarray(reduced, x.dtype), logs

    return oracle


def cross_entropy_gradient(reduction="mean", ignored=-1):
    def oracle(dy, logs, labels, weight=None):
        keep = labels != ignored
        safe = np.where(keep, labels, 0)
        w = (np.ones(logs.shape[1]) if weight is None else weight)[safe] * keep
        onehot = np.moveaxis(np.eye(logs.shape[1])[safe], -1, 1)
        scale = {"none": dy, "sum": dy, "mean": dy / w.sum()}[reduction]
        return (np.exp(logs) - onehot) * (w * scale)[:, None]

    return oracle


def gradient(inputs, reduction="mean", **attributes):
    return Sample("SoftmaxCrossEntropyLossGrad", inputs, cross_entropy_gradient(reduction, attributes.get("ignore_index", -1)),
                  {"reduction": reduction, **attributes}, "com.microsoft", gradient=False, label=reduction)


def loss_and_gradient(inputs, reduction="mean", **attributes):
    """Return a sample of the operator that computes the loss and its gradient."""
    ignored = attributes.get("ignore_index", -1)

    def oracle(x, labels, weight=None):
        loss, logs = cross_entropy(reduction, ignored)(x, labels, weight)
        return loss, cross_entropy_gradient(reduction, ignored)(0.5, logs, labels, weight)

    return Sample("LossAndGradient", inputs, oracle, {"reduction": reduction, "dloss": 0.5, **attributes}, "ortrain", outputs=2, gradient=False,
                  label=f"{reduction}-{len(inputs)}-{inputs[0].shape}")


ONE, WIDE = np.array(1.5), rng.standard_normal((70, 50)) * 4
SAMPLES = [
    *[Sample("SoftmaxCrossEntropyLoss", [SCORES, LABELS], lambda *a, r=r: cross_entropy(r)(*a)[0], {"reduction": r}, label=f"one-output-{r}")
      for r in ("mean", "sum", "none")],
    *[Sample("SoftmaxCrossEntropyLoss", [x, t], lambda *a: cross_entropy("mean", 2)(*a)[0], {"ignore_index": 2}, label="ignored")
      for x, t in ((SCORES, LABELS), (DEEP, DEEP_LABELS))],
    Sample("SoftmaxCrossEntropyLoss", [SCORES, LABELS.astype(np.int32), WEIGHT], lambda *a: cross_entropy()(*a)[0], indices=[0], label="weighted"),
    Sample("SoftmaxCrossEntropyLoss", [SCORES, np.full(6, -1)], lambda x, t: np.zeros(()), label="all-ignored"),
    Sample("SoftmaxCrossEntropyLoss", [SCORES, LABELS], cross_entropy(), outputs=2, gradient=False, label="two-outputs"),
    gradient([ONE, log_softmax(SCORES), LABELS]),
    gradient([ONE, log_softmax(DEEP), DEEP_LABELS], "sum", ignore_index=2),
    gradient([rng.standard_normal(6), log_softmax(SCORES), LABELS, WEIGHT], "none"),
    loss_and_gradient([SCORES, LABELS]),
    loss_and_gradient([SCORES, LABELS, WEIGHT], ignore_index=2),
    loss_and_gradient([DEEP, DEEP_LABELS.astype(np.int32)], "sum", ignore_index=2),
    loss_and_gradient([WIDE, rng.integers(0, 50, 70)]),
    Sample("LossAndGradient", [SCORES, np.full(6, -1)], lambda x, t: (np.zeros(()), np.zeros_like(x)), {"dloss": 1.0}, "ortrain", outputs=2, gradient=False,
           label="all-ignored"),
]
REFUSALS = [
    Refusal("SoftmaxCrossEntropyLoss", [SCORES, LABELS[:-1]]),
    Refusal("SoftmaxCrossEntropyLoss", [SCORES, LABELS.astype(np.float64)]),
    Refusal("SoftmaxCrossEntropyLoss", [SCORES, LABELS], {"reduction": "avg"}),
    Refusal("LossAndGradient", [SCORES, LABELS], {"reduction": "none", "dloss": 1.0}, "ortrain"),
]
