"""Every loss has the value of its formula in NumPy and the gradient of central differences, at every opset, reduction and with sample weights."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from onnx import helper

from ortrain import onnxblock
from ortrain.gradient import add_gradient
from ortrain.loading.loader import load_model
from ortrain.onnxblock import loss
from ortrain.onnxblock.building import register_outputs
from tests.ops.samples import ctc_loss as ctc_samples
from tests.ops.test_gradients import STEPS, TOLERANCE, run, slope

rng = np.random.default_rng(8)
N, CLASSES = 6, 5
X, T = rng.standard_normal((2, N, 4)) * 2
SCORES, LABELS = rng.standard_normal((N, CLASSES)), np.array([0, 4, 2, 2, 1, 3])
IMAGES, IMAGE_LABELS = rng.standard_normal((N, CLASSES, 2, 3)), rng.integers(0, CLASSES, (N, 2, 3))
TEXTS, TEXT_LABELS = rng.standard_normal((N, 3, CLASSES)), rng.integers(0, CLASSES, (N, 3))
CLASS_WEIGHT = np.array([0.5, 1.0, 2.0, 0.25, 1.5])
SAMPLE_WEIGHT = np.array([0.5, 2.0, 0.0, 1.0, 3.0, 0.25])
BINARY = np.array(rng.random((N, 4)) > 0.5, float)
SIGNS = np.where(rng.random((N, 4)) > 0.5, 1.0, -1.0)
EMBEDDINGS = list(rng.standard_normal((3, N, 4)))


def softmax(x, axis=1):
    e = np.exp(x - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


SOFT = softmax(rng.standard_normal((N, CLASSES)))


@dataclass(frozen=True)
class Case:
    """A loss, the arrays it is called with, and its formula.

    make: called with the options of a case, reduction and sample_weight. oracle: (reduction, predictions, targets) -> the losses [n, …], or (losses, shares)
    where the elements have different shares in the divisor of a mean."""

    make: Any
    predictions: list[np.ndarray]
    targets: dict[str, np.ndarray]
    oracle: Any
    options: dict[str, Any] = field(default_factory=dict)


def simple(make, oracle, target=T, x=X, **options):
    return Case(make, [x], {"target": target}, lambda reduction, x, t: oracle(x, t), options)


def labelled(make, scores, labels, *, axis=1, smoothing=0.0, weight=None, ignored=-1, gamma=0.0, is_log=False, **options):
    def oracle(reduction, x, t):
        x = np.moveaxis(x, axis, -1)
        q = -x if is_log else -np.log(softmax(x, -1))
        w = np.ones(CLASSES) if weight is None else weight
        kept = t != ignored
        safe = np.where(kept, t, 0)
        of_label = np.take_along_axis(q, safe[..., None], -1)[..., 0]
        losses = (1 - smoothing) * w[safe] * (1 - np.exp(-of_label)) ** gamma * of_label + smoothing / CLASSES * (w * q).sum(-1)
        return losses * kept, kept * (w[safe] if make is not loss.FocalLoss else 1.0)

    return Case(make, [scores], {"labels": labels}, oracle, options)


def huber(x, t, delta=1.0):
    d = np.abs(x - t)
    return np.where(d <= delta, d * d / 2, delta * (d - delta / 2))


def bce(x, t):
    return np.logaddexp(0, x) - x * t


def binary_focal(x, t, gamma=2.0, alpha=0.25):
    p = 1 / (1 + np.exp(-x))
    return bce(x, t) * (1 - (p * t + (1 - p) * (1 - t))) ** gamma * (1 if alpha is None else alpha * t + (1 - alpha) * (1 - t))


def distance(a, b, p=2.0):
    return (np.abs(a - b + 1e-6) ** p).sum(-1) ** (1 / p)


def triplet(margin=1.0, p=2.0, swap=False):
    def oracle(reduction, a, positive, negative):
        apart = distance(a, negative, p)
        if swap:
            apart = np.minimum(apart, distance(positive, negative, p))
        return np.maximum(distance(a, positive, p) - apart + margin, 0)

    return oracle


def cosine(margin):
    def oracle(reduction, a, b, t):
        cos = (a * b).sum(1) / np.sqrt(((a * a).sum(1) + 1e-12) * ((b * b).sum(1) + 1e-12))
        return np.where(t == 1, 1 - cos, np.maximum(cos - margin, 0))

    return oracle


def ctc(reduction, log_probs, targets, input_lengths, target_lengths, **attributes):
    losses = ctc_samples.loss(log_probs, targets, input_lengths, target_lengths, **attributes)
    return losses / np.maximum(target_lengths, 1) if reduction == "mean" else losses


def log_softmax(x, axis=1):
    return np.log(softmax(x, axis))


CTC = {"targets": np.array([[1, 2], [2, 2], [1, -1], [-1, 0], [2, 1], [1, 1]]), "input_lengths": np.array([5, 4, 3, 5, 5, 4]),
       "target_lengths": np.array([2, 2, 1, 0, 2, 1])}
FRAMES = log_softmax(rng.standard_normal((5, N, 3)), 2)
LOG_SCORES = log_softmax(SCORES)
CASES = {
    "mse": simple(loss.MSELoss, lambda x, t: (x - t) ** 2),
    "l1": simple(loss.L1Loss, lambda x, t: np.abs(x - t)),
    "l1 of vectors": simple(loss.L1Loss, lambda x, t: np.abs(x - t), T[:, 0], X[:, 0]),
    "huber": simple(loss.HuberLoss, huber),
    "huber with delta": simple(loss.HuberLoss, lambda x, t: huber(x, t, 0.4), delta=0.4),
    "smooth l1": simple(loss.SmoothL1Loss, huber),
    "smooth l1 with beta": simple(loss.SmoothL1Loss, lambda x, t: huber(x, t, 1.7) / 1.7, beta=1.7),
    "smooth l1 with beta 0": simple(loss.SmoothL1Loss, lambda x, t: np.abs(x - t), beta=0.0),
    "bce with logits": simple(loss.BCEWithLogitsLoss, bce, BINARY),
    "binary focal": simple(loss.BinaryFocalLoss, binary_focal, BINARY),
    "binary focal with soft targets": simple(loss.BinaryFocalLoss, lambda x, t: binary_focal(x, t, 0.5, None), rng.random((N, 4)), gamma=0.5, alpha=None),
    "hinge": simple(loss.HingeLoss, lambda x, t: np.maximum(1 - x * t, 0), SIGNS),
    "squared hinge": simple(loss.HingeLoss, lambda x, t: np.maximum(0.5 - x * t, 0) ** 2, SIGNS, margin=0.5, squared=True),
    "kl divergence": simple(loss.KLDivLoss, lambda x, t: t * (np.log(t) - x), SOFT, LOG_SCORES),
    "kl divergence of log targets": simple(loss.KLDivLoss, lambda x, t: np.exp(t) * (t - x), np.log(SOFT), LOG_SCORES, log_target=True),
    "kl divergence of logits": simple(loss.KLDivLoss, lambda x, t: t * (np.log(t) - log_softmax(x)), SOFT, SCORES, from_logits=True),
    "cross entropy": labelled(loss.CrossEntropyLoss, SCORES, LABELS),
    "cross entropy with everything": labelled(loss.CrossEntropyLoss, SCORES, LABELS, weight=CLASS_WEIGHT, smoothing=0.25, ignored=2,
                                              label_smoothing=0.25, ignore_index=2),
    "cross entropy of images": labelled(loss.CrossEntropyLoss, IMAGES, IMAGE_LABELS, smoothing=0.125, ignored=1, label_smoothing=0.125, ignore_index=1),
    "cross entropy of texts": labelled(loss.CrossEntropyLoss, TEXTS, TEXT_LABELS, axis=2, smoothing=0.125, label_smoothing=0.125),
    "cross entropy with class axis 1 of 3": labelled(loss.CrossEntropyLoss, TEXTS.transpose(0, 2, 1).copy(), TEXT_LABELS, class_axis=1),
    "cross entropy with class axis 0": labelled(loss.CrossEntropyLoss, TEXTS.transpose(2, 0, 1).copy(), TEXT_LABELS, axis=0, class_axis=0),
    "cross entropy of soft labels": simple(loss.CrossEntropyLoss, lambda x, t: -(t * log_softmax(x)).sum(1), SOFT, SCORES, soft_labels=True),
    "cross entropy of soft labels with everything": simple(
        loss.CrossEntropyLoss, lambda x, t: -((0.8 * t + 0.2 / CLASSES) * CLASS_WEIGHT * log_softmax(x)).sum(1), SOFT, SCORES, soft_labels=True,
        label_smoothing=0.2, weight=CLASS_WEIGHT),
    "focal": labelled(loss.FocalLoss, SCORES, LABELS, gamma=2.0),
    "focal with everything": labelled(loss.FocalLoss, IMAGES, IMAGE_LABELS, gamma=0.75, weight=CLASS_WEIGHT, ignored=2),
    "nll": labelled(loss.NLLLoss, LOG_SCORES, LABELS, is_log=True),
    "nll with everything": labelled(loss.NLLLoss, LOG_SCORES, LABELS, is_log=True, weight=CLASS_WEIGHT, ignored=2),
    "nll of images": labelled(loss.NLLLoss, log_softmax(IMAGES), IMAGE_LABELS, is_log=True),
    "triplet": Case(loss.TripletMarginLoss, EMBEDDINGS, {}, triplet()),
    "triplet with swap": Case(loss.TripletMarginLoss, EMBEDDINGS, {}, triplet(0.5, 1.0, True), {"margin": 0.5, "p": 1.0, "swap": True}),
    "triplet with p 3": Case(loss.TripletMarginLoss, EMBEDDINGS, {}, triplet(2.0, 3.0), {"margin": 2.0, "p": 3.0}),
    "cosine embedding": Case(loss.CosineEmbeddingLoss, EMBEDDINGS[:2], {"target": SIGNS[:, 0]}, cosine(0.0)),
    "cosine embedding with margin": Case(loss.CosineEmbeddingLoss, EMBEDDINGS[:2], {"target": SIGNS[:, 0]}, cosine(0.3), {"margin": 0.3}),
    "ctc": Case(loss.CTCLoss, [FRAMES], CTC, ctc),
    "ctc of batches first": Case(loss.CTCLoss, [FRAMES.transpose(1, 0, 2).copy()], CTC, lambda *a: ctc(*a, batch_first=1), {"batch_first": True}),
    "ctc of logits": Case(loss.CTCLoss, [FRAMES * 2], CTC, lambda r, x, *t: ctc(r, log_softmax(x, 2), *t), {"from_logits": True}),
}
for _name, _options in {"cross entropy with everything": {"weight": CLASS_WEIGHT}, "nll with everything": {"weight": CLASS_WEIGHT, "ignore_index": 2},
                        "focal": {"gamma": 2.0}, "focal with everything": {"gamma": 0.75, "alpha": CLASS_WEIGHT, "ignore_index": 2}}.items():
    CASES[_name].options.update(_options)


def expected(case, reduction="mean", sample_weight=None):
    """Return the reduced loss; with sample weights, a mean is sum(w · loss) / sum(w · share)."""
    found = case.oracle(reduction, *case.predictions, *case.targets.values())
    losses, shares = found if isinstance(found, tuple) else (found, np.ones_like(found))
    w = np.ones(N) if sample_weight is None else sample_weight
    w = w.reshape(-1, *[1] * (losses.ndim - 1))
    return {"none": w * losses, "sum": (w * losses).sum(), "mean": (w * losses).sum() / (w * shares).sum()}[reduction]


def built(case, reduction="mean", weighted=False, dtype="float64", opset=17, symbolic=False):
    """Return a model of the case's loss alone, whose inputs are the predictions, the targets and the sample weights."""
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    names = [f"x{i}" for i in range(len(case.predictions))]
    # the axis of the samples is open; what else has its size is none
    dims = [["n" if symbolic and size == N else size for size in x.shape] for x in case.predictions]
    values = [helper.make_tensor_value_info(name, kind, shape) for name, shape in zip(names, dims, strict=True)]
    nodes = [helper.make_node("Identity", [name], [f"y{i}"]) for i, name in enumerate(names)]
    outputs = [helper.make_tensor_value_info(f"y{i}", kind, shape) for i, shape in enumerate(dims)]
    model = helper.make_model(helper.make_graph(nodes, "g", values, outputs), opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    with onnxblock.base(model):
        result = case.make(**case.options, reduction=reduction, sample_weight=weighted)(*(f"y{i}" for i in range(len(names))), *case.targets)
    register_outputs(model, [result])
    return load_model(model)


def arrays(model, case, dtype="float64"):
    """Return the values of the model's inputs."""
    given = dict(zip((f"x{i}" for i in range(len(case.predictions))), case.predictions, strict=True)) | case.targets
    values = []
    for name in model.graph.inputs:
        array = SAMPLE_WEIGHT if name == "sample_weight" else given[name]
        values.append(np.asarray(array, "float32" if name == "sample_weight" else dtype if array.dtype.kind == "f" else None))
    return values


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("weighted", [False, True])
def test_a_loss_has_the_value_of_its_formula(name, reduction, weighted):
    case = CASES[name]
    for dtype, tolerance in (("float64", 1e-10), ("float32", 2e-5)):
        model = built(case, reduction, weighted, dtype)
        (actual,) = run(model, arrays(model, case, dtype), model.graph.outputs)
        wanted = expected(case, reduction, SAMPLE_WEIGHT if weighted else None)
        assert actual.shape == wanted.shape and actual.dtype == dtype
        np.testing.assert_allclose(actual, wanted, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("opset", [13, 18, 21])
def test_a_loss_can_be_built_at_every_opset(name, opset):
    case = CASES[name]
    model = built(case, "mean", True, opset=opset, symbolic=True)
    (actual,) = run(model, arrays(model, case), model.graph.outputs)
    np.testing.assert_allclose(actual, expected(case, "mean", SAMPLE_WEIGHT), rtol=1e-10)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("weighted", [False, True])
def test_the_gradient_of_a_loss_agrees_with_central_differences(name, weighted):
    case = CASES[name]
    forward = built(case, "mean", weighted)
    output = forward.graph.outputs[0]
    values = arrays(forward, case)
    backward = forward.copy()
    names = [f"x{i}" for i in range(len(case.predictions))]
    gradients = add_gradient(backward, output, names)
    computed = run(backward, values, [gradients[x] for x in names])
    for index, gradient in enumerate(computed):
        direction = np.random.default_rng(index).standard_normal(gradient.shape)

        def at(distance, index=index, direction=direction):
            moved = [x + distance * direction if i == index else x for i, x in enumerate(values)]
            return float(run(forward, moved, [output])[0])

        analytic, scale = float((gradient * direction).sum()), float(np.abs(gradient * direction).sum())
        assert scale > 0
        assert min(abs(slope(at, step) - analytic) for step in STEPS) < TOLERANCE * scale
