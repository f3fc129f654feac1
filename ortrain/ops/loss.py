"""Softmax cross entropy over class scores, its gradient, and both in one operator, also of a linear layer's scores; the focal loss with class weights, label
smoothing and sample weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from ortrain.dtypes import itemsize
from ortrain.ir import Shape, TensorType
from ortrain.ops.registry.node_builder import GradientBuilder
from ortrain.ops.registry.record import (
    MICROSOFT,
    ORTRAIN,
    Guard,
    InferenceContext,
    KernelCall,
    LoweringContext,
    check_inputs,
    check_scalars,
    check_shape,
    operator,
)

REDUCTIONS = {"none": 0, "mean": 1, "sum": 2}
LOSS_ROWS = 64
"""Rows of a work item, equal to the constant in training/loss.h."""
DEFAULT_IGNORE_INDEX = -1
"""ONNX Runtime training 1.19 ignores the label -1 if the attribute ignore_index is absent."""


def reduction_of(c: InferenceContext) -> int:
    """Return the number that the kernels use for the node's attribute reduction."""
    name = c.attribute("reduction", "mean")
    if name not in REDUCTIONS:
        raise c.error(f"expected a reduction in {sorted(REDUCTIONS)}, got {name!r}")
    return REDUCTIONS[name]


def pack_loss(c: LoweringContext, scores: int, labels: int) -> KernelCall:
    """Return a call without a kernel name, with its ints (n, classes, positions, reduction, ignored label) and the guard of the labels.

    scores, labels: input indices of scores [n, classes, d…] and labels [n, d…]."""
    dims = c.dims(scores)
    inner = 1
    for size in dims[2:]:
        inner *= size
    ignored = int(c.attribute("ignore_index", DEFAULT_IGNORE_INDEX))
    guards = (Guard(labels, 0, dims[1], ignored, is_label=True),)
    return KernelCall("", (dims[0], dims[1], inner, reduction_of(c), ignored), guards=guards)


def partial_sums(call: KernelCall) -> int:
    """Return the bytes of the sums of losses and weights of each work item."""
    return 16 * (call.ints[0] * call.ints[2] // LOSS_ROWS + 1)


def lower_loss(c: LoweringContext) -> KernelCall:
    call = pack_loss(c, 0, 1)
    return KernelCall("softmax_cross_entropy_loss", call.ints, scratch=partial_sums(call), guards=call.guards, in_place={1: 0})


def loss_gradient(g: GradientBuilder) -> Sequence[str | None]:
    attributes = {"reduction": g.attribute("reduction", "mean")}
    if g.attribute("ignore_index") is not None:
        attributes["ignore_index"] = int(g.attribute("ignore_index"))
    dscores = g.op("SoftmaxCrossEntropyLossGrad", g.dy, g.output(1), *g.inputs[1:], domain=MICROSOFT, **attributes)
    return [dscores, None, None]


def check_loss(c: InferenceContext, first: int) -> tuple[Shape, Shape]:
    """Return the shapes of scores and labels, the inputs `first` and `first` + 1. Raises if they or the optional class weights do not fit."""
    scores, labels = c.shape(first), c.shape(first + 1)
    if len(scores) < 2 or len(labels) != len(scores) - 1:
        raise c.error(f"expected scores [n, c, d…] and labels [n, d…], got {list(scores)} and {list(labels)}")
    check_shape(c, "labels", labels, (scores[0], *scores[2:]))
    if c.dtype(first + 1) not in ("int32", "int64"):
        raise c.error(f"expected int32 or int64 labels, got {c.dtype(first + 1)}")
    if c.has(first + 2):
        check_shape(c, "weights", c.shape(first + 2), scores[1:2])
    return scores, labels


@operator("SoftmaxCrossEntropyLoss", lower=lower_loss, gradient=loss_gradient, stop_gradient=(1, 2), required_outputs=1)
def softmax_cross_entropy_loss(c: InferenceContext) -> list[TensorType]:
    """loss = -w[label] log_softmax(scores)[label], reduced over scores [n, c, d…] and labels [n, d…]; output 1: log_softmax(scores)"""
    scores, labels = check_loss(c, 0)
    shape = labels if reduction_of(c) == REDUCTIONS["none"] else ()
    return [TensorType(c.dtype(0), shape), TensorType(c.dtype(0), scores)]


def lower_loss_gradient(c: LoweringContext) -> KernelCall:
    call = pack_loss(c, 1, 2)
    return KernelCall("softmax_cross_entropy_loss_grad", call.ints, guards=call.guards, in_place={0: 1})


@operator("SoftmaxCrossEntropyLossGrad", domain=MICROSOFT, lower=lower_loss_gradient)
def softmax_cross_entropy_loss_grad(c: InferenceContext) -> list[TensorType]:
    """dscores = dloss w[label] (softmax(scores) - one_hot(label)), of (dloss, log_softmax(scores), labels, w)"""
    scores, labels = check_loss(c, 1)
    if reduction_of(c) == REDUCTIONS["none"]:
        check_shape(c, "dloss", c.shape(0), labels)
    else:
        check_inputs(c, None, 0)
        check_scalars(c, 0)
    return [TensorType(c.dtype(1), scores)]


def lower_loss_and_gradient(c: LoweringContext) -> KernelCall:
    call = pack_loss(c, 0, 1)
    return KernelCall("loss_and_gradient", call.ints, (float(c.attribute("dloss")),), scratch=partial_sums(call), guards=call.guards,
                      in_place={1: 0})


@operator("LossAndGradient", domain=ORTRAIN, lower=lower_loss_and_gradient, differentiable=False, required_outputs=2)
def loss_and_gradient(c: InferenceContext) -> list[TensorType]:
    """SoftmaxCrossEntropyLoss reduced to a scalar, and dscores for the constant `dloss`. Created by plans only"""
    if reduction_of(c) == REDUCTIONS["none"]:
        raise c.error("expected a loss that is reduced")
    return [softmax_cross_entropy_loss(c)[0], c.type(0)]


# ---- the loss of a linear layer's scores


def lower_linear_cross_entropy(c: LoweringContext) -> KernelCall:
    """Pack (n, classes, 1, reduction, ignored label, k, transB, transposed dw, rows of a chunk); floats: dloss."""
    *rows, k = c.dims(0)
    classes, chunk = c.dims(1)[1 - int(c.attribute("transB", 0))], int(c.attribute("chunk_rows"))
    ignored = int(c.attribute("ignore_index", DEFAULT_IGNORE_INDEX))
    ints = (prod(rows), classes, 1, reduction_of(c), ignored, k, int(c.attribute("transB", 0)), int(c.attribute("transposed_dw", 0)), chunk)
    call = KernelCall("linear_cross_entropy", ints, (float(c.attribute("dloss")),), guards=(Guard(2, 0, classes, ignored, is_label=True),), in_place={1: 0})
    return replace(call, scratch=chunk * classes * itemsize(c.dtype(0)) + partial_sums(call))


@operator("LinearCrossEntropy", domain=ORTRAIN, lower=lower_linear_cross_entropy, differentiable=False, required_outputs=1, takes_bfloat16=True)
def linear_cross_entropy(c: InferenceContext) -> list[TensorType]:
    """loss, dx, dw, db: SoftmaxCrossEntropyLoss of the scores x op(w) + b, reduced to a scalar, and its gradients for the constant `dloss`, of (x [.., k], w,
    labels, b, class weights), in chunks of `chunk_rows` rows; dw is transposed if `transposed_dw` is set. Created by plans only"""
    x, w, labels = (c.shape(index) for index in range(3))
    k, classes = w[::-1] if c.attribute("transB", 0) else w
    if len(x) < 2 or x[-1:] != (k,) or c.has(3) and c.shape(3) != (classes,) or c.has(4) and c.shape(4) != (classes,):
        shapes = [list(c.shape(index)) for index in (0, 1, 3, 4) if c.has(index)]
        raise c.error(f"expected x [.., k], weights [k, c], a bias and class weights [c], got {shapes}")
    check_shape(c, "labels", labels, (prod(x[:-1]),))
    chunk = int(c.attribute("chunk_rows"))
    if reduction_of(c) == REDUCTIONS["none"] or chunk < LOSS_ROWS or chunk % LOSS_ROWS:
        raise c.error(f"expected a loss that is reduced, and chunks of a multiple of {LOSS_ROWS} rows, got {c.attribute('reduction')!r} and {chunk}")
    dw = (classes, k) if c.attribute("transposed_dw", 0) else (k, classes)
    return [TensorType(c.dtype(0), shape) for shape in ((), x, dw, (classes,))]


# ---- focal loss, and cross entropy with label smoothing or sample weights


def check_focal_loss(c: InferenceContext, scores: int, labels: int) -> tuple[Shape, Shape]:
    """Return the shapes of scores and labels. Raises if inputs or attributes do not fit.

    scores, labels: input indices; class weights [c] and sample weights [n] follow the labels."""
    kinds = c.shape(scores), c.shape(labels)
    if len(kinds[0]) < 2 or len(kinds[1]) != len(kinds[0]) - 1:
        raise c.error(f"expected scores [n, c, d…] and labels [n, d…], got {list(kinds[0])} and {list(kinds[1])}")
    check_shape(c, "labels", kinds[1], (kinds[0][0], *kinds[0][2:]))
    for index, what, wanted in ((labels + 1, "class weights", kinds[0][1:2]), (labels + 2, "sample weights", kinds[0][:1])):
        if c.has(index):
            check_shape(c, what, c.shape(index), wanted)
    gamma, smoothing = float(c.attribute("gamma", 0.0)), float(c.attribute("label_smoothing", 0.0))
    if not 0 <= gamma < float("inf") or not 0 <= smoothing <= 1:
        raise c.error(f"expected a gamma of at least 0 and a label_smoothing in [0, 1], got {gamma} and {smoothing}")
    return kinds


def pack_focal_loss(c: LoweringContext, kernel: str, scores: int, labels: int) -> KernelCall:
    call = pack_loss(c, scores, labels)
    weighted = int(bool(c.attribute("weighted_mean", 1)))
    return KernelCall(kernel, (*call.ints, weighted), (float(c.attribute("gamma", 0.0)), float(c.attribute("label_smoothing", 0.0))), guards=call.guards)


def lower_focal_loss(c: LoweringContext) -> KernelCall:
    call = pack_focal_loss(c, "softmax_focal_loss", 0, 1)
    return replace(call, scratch=8 * call.ints[0] * call.ints[2])


def focal_loss_gradient(g: GradientBuilder) -> Sequence[str | None]:
    dscores = g.op("SoftmaxFocalLossGrad", g.dy, g.inputs[0], g.output(1), *g.inputs[1:], domain=ORTRAIN, **g.node.attributes)
    return [dscores, *[None] * (len(g.inputs) - 1)]


@operator("SoftmaxFocalLoss", domain=ORTRAIN, lower=lower_focal_loss, gradient=focal_loss_gradient, stop_gradient=(1, 2, 3), required_outputs=2)
def softmax_focal_loss(c: InferenceContext) -> list[TensorType]:
    """loss = sample_weight (w[label] (1 - label_smoothing) (1 - exp(-q[label]))^gamma q[label] + label_smoothing / c sum over classes of w q),
    q = -log_softmax(scores), reduced over scores [n, c, d…] and labels [n, d…]; output 1: the log of the sum of exp(scores)"""
    _, labels = check_focal_loss(c, 0, 1)
    shape = labels if reduction_of(c) == REDUCTIONS["none"] else ()
    return [TensorType(c.dtype(0), shape), TensorType(c.dtype(0), labels)]


def lower_focal_loss_gradient(c: LoweringContext) -> KernelCall:
    return replace(pack_focal_loss(c, "softmax_focal_loss_grad", 1, 3), in_place={0: 1})


@operator("SoftmaxFocalLossGrad", domain=ORTRAIN, lower=lower_focal_loss_gradient, differentiable=False)
def softmax_focal_loss_grad(c: InferenceContext) -> list[TensorType]:
    """dscores of SoftmaxFocalLoss, of (dloss, scores, log of the sum of exp(scores), labels, class weights, sample weights)"""
    scores, labels = check_focal_loss(c, 1, 3)
    check_shape(c, "the log of the sum of exp(scores)", c.shape(2), labels)
    if reduction_of(c) == REDUCTIONS["none"]:
        check_shape(c, "dloss", c.shape(0), labels)
    else:
        check_inputs(c, None, 0)
        check_scalars(c, 0)
    return [TensorType(c.dtype(1), scores)]
