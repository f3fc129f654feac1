"""Losses over class scores."""

from __future__ import annotations

from collections.abc import Sequence

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
    check_numbers,
    check_shape,
    operator,
)

REDUCTIONS = {"none": 0, "mean": 1, "sum": 2}
IGNORED_BY_DEFAULT = -1
"""The old package ignores the label -1 when ignore_index is absent."""


def reduction_of(c: InferenceContext) -> int:
    name = c.attribute("reduction", "mean")
    if name not in REDUCTIONS:
        raise c.error(f"expected a reduction in {sorted(REDUCTIONS)}, got {name!r}")
    return REDUCTIONS[name]


def packed(c: LoweringContext, scores: int, labels: int) -> KernelCall:
    """ints: rows n, classes c, positions d, reduction, ignored label."""
    dims = c.dims(scores)
    inner = 1
    for size in dims[2:]:
        inner *= size
    ignored = int(c.attribute("ignore_index", IGNORED_BY_DEFAULT))
    guards = (Guard(labels, 0, dims[1], ignored, label=True),)
    return KernelCall("", (dims[0], dims[1], inner, reduction_of(c), ignored), guards=guards)


def lower_loss(c: LoweringContext) -> KernelCall:
    call = packed(c, 0, 1)
    rows = call.ints[0] * call.ints[2]
    needs_log_probabilities = 0 if c.wants(1) else rows * call.ints[1]
    return KernelCall("softmax_cross_entropy_loss", call.ints, scratch=8 * (2 * rows + needs_log_probabilities), guards=call.guards,
                      in_place={1: 0})


def loss_gradient(g: GradientBuilder) -> Sequence[str | None]:
    attributes = {"reduction": g.attribute("reduction", "mean")}
    if g.attribute("ignore_index") is not None:
        attributes["ignore_index"] = int(g.attribute("ignore_index"))
    dscores = g.op("SoftmaxCrossEntropyLossGrad", g.dy, g.output(1), *g.inputs[1:], domain=MICROSOFT, **attributes)
    return [dscores, None, None]


def check_loss(c: InferenceContext, first: int) -> tuple[Shape, Shape]:
    """The shapes of scores and labels, inputs from the first on, with weights of classes or none behind them."""
    scores, labels = c.shape(first), c.shape(first + 1)
    if len(scores) < 2 or len(labels) != len(scores) - 1:
        raise c.error(f"expected scores [n, c, d…] and labels [n, d…], got {list(scores)} and {list(labels)}")
    check_shape(c, "labels", labels, (scores[0], *scores[2:]))
    if c.dtype(first + 1) not in ("int32", "int64"):
        raise c.error(f"expected int32 or int64 labels, got {c.dtype(first + 1)}")
    if c.has(first + 2):
        check_shape(c, "weights", c.shape(first + 2), scores[1:2])
    return scores, labels


@operator("SoftmaxCrossEntropyLoss", lower=lower_loss, gradient=loss_gradient, stop_gradient=(1, 2), written=1)
def softmax_cross_entropy_loss(c: InferenceContext) -> list[TensorType]:
    """loss = -w[label] log softmax(scores)[label], reduced; scores [n, c, d…], labels [n, d…]; second output: log softmax(scores)"""
    scores, labels = check_loss(c, 0)
    shape = labels if reduction_of(c) == REDUCTIONS["none"] else ()
    return [TensorType(c.dtype(0), shape), TensorType(c.dtype(0), scores)]


def lower_loss_gradient(c: LoweringContext) -> KernelCall:
    call = packed(c, 1, 2)
    return KernelCall("softmax_cross_entropy_loss_grad", call.ints, guards=call.guards, in_place={0: 1})


@operator("SoftmaxCrossEntropyLossGrad", domain=MICROSOFT, lower=lower_loss_gradient)
def softmax_cross_entropy_loss_grad(c: InferenceContext) -> list[TensorType]:
    """dscores = dloss w (softmax - onehot), of (dloss, log softmax, labels, weight)"""
    scores, labels = check_loss(c, 1)
    if reduction_of(c) == REDUCTIONS["none"]:
        check_shape(c, "dloss", c.shape(0), labels)
    else:
        check_inputs(c, None, 0)
        check_numbers(c, 0)
    return [TensorType(c.dtype(1), scores)]


def lower_loss_and_gradient(c: LoweringContext) -> KernelCall:
    call = packed(c, 0, 1)
    return KernelCall("loss_and_gradient", call.ints, (float(c.attribute("dloss")),), scratch=8 * 2 * call.ints[0] * call.ints[2], guards=call.guards,
                      in_place={1: 0})


@operator("LossAndGradient", domain=ORTRAIN, lower=lower_loss_and_gradient, differentiable=False, written=2)
def loss_and_gradient(c: InferenceContext) -> list[TensorType]:
    """SoftmaxCrossEntropyLoss reduced to a number, and its gradient dscores = dloss w (softmax - onehot) of a constant `dloss`; plans merge them, no file
    has it"""
    if reduction_of(c) == REDUCTIONS["none"]:
        raise c.error("expected a loss that is reduced")
    return [softmax_cross_entropy_loss(c)[0], c.type(0)]
