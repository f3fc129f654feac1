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
        scale = {"none": dy, "sum": dy, "mean": dy / w.sum() if w.sum() else 0.0}[reduction]
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


def linear_cross_entropy(inputs, reduction="mean", outputs=4, **attributes):
    """Return a sample of a linear layer with its loss and gradients; chunks of 64 rows."""
    ignored, transposed, transposed_dw = (attributes.get(name, default) for name, default in (("ignore_index", -1), ("transB", 0), ("transposed_dw", 0)))

    def oracle(x, w, labels, bias=None, weight=None):
        rows, op_w = x.reshape(-1, x.shape[-1]), w.T if transposed else w
        scores = rows @ op_w + (0 if bias is None else bias)
        loss, logs = cross_entropy(reduction, ignored)(scores, labels, weight)
        dscores = cross_entropy_gradient(reduction, ignored)(0.5, logs, labels, weight)
        dw = rows.T @ dscores
        return (loss, (dscores @ op_w.T).reshape(x.shape), dw.T if transposed_dw else dw, dscores.sum(0))[:outputs]

    return Sample("LinearCrossEntropy", inputs, oracle if outputs > 1 else lambda *a: oracle(*a)[0],
                  {"reduction": reduction, "dloss": 0.5, "chunk_rows": 64, **attributes}, "ortrain", outputs=outputs, gradient=False,
                  label=f"{reduction}-{len(inputs)}-{inputs[0].shape}-{transposed}{transposed_dw}-{outputs}")


def softmax_focal(x, labels, weight=None, samples=None, *, gamma=0.0, label_smoothing=0.0, ignore_index=-1, reduction="mean", weighted_mean=1):
    """The loss and the log of the sum of exp(x), written as PyTorch's documentation of CrossEntropyLoss has it, times (1 - p)^gamma."""
    kept = labels != ignore_index
    safe = np.where(kept, labels, 0)
    per_class = np.ones(x.shape[1]) if weight is None else weight
    per_sample = np.ones(len(x)) if samples is None else samples
    q = -log_softmax(x)
    of_label = np.take_along_axis(q, safe[:, None], 1)[:, 0]
    smooth = (q * per_class.reshape(-1, *[1] * (x.ndim - 2))).sum(1) / x.shape[1]
    losses = (1 - label_smoothing) * per_class[safe] * (1 - np.exp(-of_label)) ** gamma * of_label + label_smoothing * smooth
    scale = kept * per_sample.reshape(-1, *[1] * (labels.ndim - 1))
    losses, shares = losses * scale, scale * (per_class[safe] if weighted_mean else 1)
    total = {"none": losses, "sum": losses.sum(), "mean": losses.sum() / shares.sum() if shares.sum() else 0.0}[reduction]
    return np.asarray(total), of_label + np.take_along_axis(x, safe[:, None], 1)[:, 0]


def focal(inputs, outputs=1, **attributes):
    def oracle(*arrays):
        return softmax_focal(*arrays, **attributes)[:outputs] if outputs > 1 else softmax_focal(*arrays, **attributes)[0]

    return Sample("SoftmaxFocalLoss", inputs, oracle, attributes, "ortrain", outputs=outputs, gradient=outputs == 1, indices=[0],
                  label="-".join([*map(str, attributes.values()), f"{len(inputs)}", f"{inputs[0].shape}"]))


def focal_gradient(inputs, gamma=0.0, reduction="mean", label_smoothing=0.0):
    """Return a sample of the gradient alone; its oracle has PyTorch's formulas with q = -log softmax(x) and the derivative by q written out."""

    def oracle(dy, x, shift, labels, weight=None, samples=None):
        per_class = np.ones(x.shape[1]) if weight is None else weight
        per_sample = np.ones(len(x)) if samples is None else samples
        p = np.exp(x - shift[:, None])
        onehot = np.eye(x.shape[1])[labels]
        q, p_label = (-np.log(p) * onehot).sum(1), (p * onehot).sum(1)
        slope = (1 - p_label) ** gamma + (gamma * q * p_label * (1 - p_label) ** (gamma - 1) if gamma else 0)
        hard = (p - onehot) * ((1 - label_smoothing) * slope * per_class[labels])[:, None]
        soft = (p * per_class.sum() - per_class) * label_smoothing / x.shape[1]
        divisor = (per_class[labels] * per_sample).sum() if reduction == "mean" else 1
        return (hard + soft) * (dy * per_sample / divisor)[:, None]

    return Sample("SoftmaxFocalLossGrad", inputs, oracle, {"gamma": gamma, "reduction": reduction, "label_smoothing": label_smoothing}, "ortrain",
                  gradient=False, label=f"{gamma}-{reduction}-{label_smoothing}")


SAMPLE_WEIGHT = np.array([0.5, 2.0, 0.0, 1.0, 3.0, 0.25])
SHIFT = np.log(np.exp(SCORES).sum(1))
ONE, WIDE, LONG = np.array(1.5), rng.standard_normal((70, 50)) * 4, rng.standard_normal((70, 100)) * 4      # rows in panels and alone
WIDE_LABELS, WIDE_WEIGHT = rng.integers(0, 50, 70), rng.uniform(0.5, 2, 50)
FEATURES, CLASSIFIER = rng.standard_normal((3, 50, 6)), rng.standard_normal((6, 40))                     # two chunks of rows and a part of one
CLASSIFIED, CLASSIFIER_BIAS, CLASSIFIER_WEIGHT = rng.integers(0, 40, 150), rng.standard_normal(40), rng.uniform(0.5, 2, 40)
SAMPLES = [
    *[Sample("SoftmaxCrossEntropyLoss", [SCORES, LABELS], lambda *a, r=r: cross_entropy(r)(*a)[0], {"reduction": r}, label=f"one-output-{r}")
      for r in ("mean", "sum", "none")],
    *[Sample("SoftmaxCrossEntropyLoss", [x, t], lambda *a: cross_entropy("mean", 2)(*a)[0], {"ignore_index": 2}, label="ignored")
      for x, t in ((SCORES, LABELS), (DEEP, DEEP_LABELS))],
    Sample("SoftmaxCrossEntropyLoss", [SCORES, LABELS.astype(np.int32), WEIGHT], lambda *a: cross_entropy()(*a)[0], indices=[0], label="weighted"),
    Sample("SoftmaxCrossEntropyLoss", [SCORES, np.full(6, -1)], lambda x, t: np.zeros(()), label="all-ignored"),
    Sample("SoftmaxCrossEntropyLoss", [SCORES, LABELS], cross_entropy(), outputs=2, gradient=False, label="two-outputs"),
    *[Sample("SoftmaxCrossEntropyLoss", [x, WIDE_LABELS], cross_entropy(r, 7), {"reduction": r, "ignore_index": 7}, outputs=2, gradient=False,
             label=f"{r}-{x.shape}") for x in (WIDE, LONG) for r in ("mean", "none")],
    *[Sample("SoftmaxCrossEntropyLoss", [x, WIDE_LABELS], lambda *a: cross_entropy()(*a)[0], label=f"one-output-{x.shape}") for x in (WIDE, LONG)],
    gradient([ONE, log_softmax(WIDE), WIDE_LABELS, WIDE_WEIGHT], ignore_index=7),
    gradient([ONE, log_softmax(LONG), WIDE_LABELS]),
    gradient([ONE, log_softmax(SCORES), LABELS]),
    gradient([ONE, log_softmax(DEEP), DEEP_LABELS], "sum", ignore_index=2),
    gradient([rng.standard_normal(6), log_softmax(SCORES), LABELS, WEIGHT], "none"),
    loss_and_gradient([SCORES, LABELS]),
    loss_and_gradient([SCORES, LABELS, WEIGHT], ignore_index=2),
    loss_and_gradient([DEEP, DEEP_LABELS.astype(np.int32)], "sum", ignore_index=2),
    loss_and_gradient([WIDE, WIDE_LABELS]),
    loss_and_gradient([WIDE[:, :13], WIDE_LABELS.clip(0, 12).astype(np.int32)], ignore_index=12),
    loss_and_gradient([LONG, WIDE_LABELS], ignore_index=7),
    Sample("LossAndGradient", [SCORES, np.full(6, -1)], lambda x, t: (np.zeros(()), np.zeros_like(x)), {"dloss": 1.0}, "ortrain", outputs=2, gradient=False,
           label="all-ignored"),
    linear_cross_entropy([FEATURES, CLASSIFIER, CLASSIFIED]),
    linear_cross_entropy([FEATURES, CLASSIFIER.T, CLASSIFIED.astype(np.int32), CLASSIFIER_BIAS], "sum", transB=1, transposed_dw=1, ignore_index=3),
    linear_cross_entropy([FEATURES[0], CLASSIFIER, CLASSIFIED[:50], None, CLASSIFIER_WEIGHT], transposed_dw=1, ignore_index=39),
    linear_cross_entropy([FEATURES, CLASSIFIER.T, CLASSIFIED, CLASSIFIER_BIAS, CLASSIFIER_WEIGHT], transB=1),
    linear_cross_entropy([FEATURES, CLASSIFIER, CLASSIFIED, CLASSIFIER_BIAS], outputs=1),
    linear_cross_entropy([FEATURES, CLASSIFIER, np.full(150, -1), CLASSIFIER_BIAS], outputs=2),
    linear_cross_entropy([np.zeros((0, 6)), CLASSIFIER, np.zeros(0, np.int64), CLASSIFIER_BIAS]),
    focal([SCORES, LABELS]),
    focal([SCORES, LABELS], outputs=2, label_smoothing=0.1),
    *[focal([SCORES, LABELS, WEIGHT, SAMPLE_WEIGHT], label_smoothing=0.2, reduction=r, ignore_index=2) for r in ("mean", "sum", "none")],
    *[focal([SCORES, LABELS, WEIGHT], gamma=gamma, weighted_mean=0) for gamma in (0.5, 1.0, 2.0)],
    focal([SCORES, LABELS, None, SAMPLE_WEIGHT], gamma=2.5, reduction="none"),
    focal([DEEP, DEEP_LABELS.astype(np.int32), WEIGHT[:4], SAMPLE_WEIGHT[:2]], label_smoothing=0.3, ignore_index=3),
    focal([DEEP, DEEP_LABELS], gamma=2.0, label_smoothing=0.1),
    focal([WIDE, rng.integers(0, 50, 70)], label_smoothing=0.1),
    focal([SCORES, np.full(6, -1)], label_smoothing=0.1),
    focal_gradient([ONE, SCORES, SHIFT, LABELS], label_smoothing=0.25),
    focal_gradient([ONE, SCORES, SHIFT, LABELS, WEIGHT, SAMPLE_WEIGHT], 1.5),
    focal_gradient([rng.standard_normal(6), SCORES, SHIFT, LABELS, WEIGHT, SAMPLE_WEIGHT], 0.5, "none", 0.1),
]
REFUSALS = [
    Refusal("SoftmaxFocalLoss", [SCORES, LABELS, WEIGHT[1:]], domain="ortrain"),
    Refusal("SoftmaxFocalLoss", [SCORES, LABELS, WEIGHT, SAMPLE_WEIGHT[1:]], domain="ortrain"),
    Refusal("SoftmaxFocalLoss", [SCORES, LABELS[:, None]], domain="ortrain"),
    Refusal("SoftmaxFocalLoss", [SCORES, LABELS], {"gamma": -1.0}, "ortrain"),
    Refusal("SoftmaxFocalLoss", [SCORES, LABELS], {"label_smoothing": 1.5}, "ortrain"),
    Refusal("SoftmaxFocalLoss", [SCORES, LABELS], {"label_smoothing": float("nan")}, "ortrain"),
    Refusal("SoftmaxFocalLossGrad", [np.ones(6), SCORES, SHIFT, LABELS], {"reduction": "mean"}, "ortrain"),
    Refusal("SoftmaxFocalLossGrad", [ONE, SCORES, SHIFT[1:], LABELS], domain="ortrain"),
    Refusal("SoftmaxCrossEntropyLoss", [SCORES, LABELS[:-1]]),
    Refusal("SoftmaxCrossEntropyLoss", [SCORES, LABELS.astype(np.float64)]),
    Refusal("SoftmaxCrossEntropyLoss", [SCORES, LABELS], {"reduction": "avg"}),
    Refusal("LossAndGradient", [SCORES, LABELS], {"reduction": "none", "dloss": 1.0}, "ortrain"),
    *[Refusal("LinearCrossEntropy", inputs, {"dloss": 1.0, "chunk_rows": 64} | attributes, "ortrain") for inputs, attributes in (
        ([FEATURES, CLASSIFIER, CLASSIFIED], {"reduction": "none"}), ([FEATURES, CLASSIFIER, CLASSIFIED], {"chunk_rows": 96}),
        ([FEATURES, CLASSIFIER.T, CLASSIFIED], {}), ([FEATURES, CLASSIFIER, CLASSIFIED[1:]], {}), ([FEATURES, CLASSIFIER, CLASSIFIED, CLASSIFIER_BIAS[1:]], {}),
        ([FEATURES, CLASSIFIER, CLASSIFIED, None, CLASSIFIER_WEIGHT[1:]], {}))],
]
