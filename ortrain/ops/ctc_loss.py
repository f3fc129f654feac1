"""Connectionist temporal classification (CTC): the loss of a label sequence that is not aligned with the frames of the prediction."""

from __future__ import annotations

from collections.abc import Sequence

from ortrain.ir import Dim, TensorType
from ortrain.ops.registry.node_builder import GradientBuilder
from ortrain.ops.registry.record import ORTRAIN, Guard, InferenceContext, KernelCall, LoweringContext, check_shape, operator

PADDING = -1
"""The label that may fill a row of targets beyond its length, besides any valid label."""


def lower_ctc(c: LoweringContext) -> KernelCall:
    dims, labels = c.dims(0), c.dims(1)[1]
    batch_first, blank = int(bool(c.attribute("batch_first", 0))), int(c.attribute("blank", 0))
    frames, n = (dims[1], dims[0]) if batch_first else (dims[0], dims[1])
    if not 0 <= blank < dims[2]:
        raise c.error(f"expected a blank among {dims[2]} classes, got {blank}")
    guards = (Guard(1, 0, dims[2], PADDING, is_label=True), Guard(2, 0, frames + 1), Guard(3, 0, labels + 1))
    kept = frames if c.has_output(1) else 2
    ints = (frames, n, dims[2], labels, blank, batch_first, int(bool(c.attribute("zero_infinity", 0))), kept)
    return KernelCall("ctc_loss", ints, scratch=8 * n * (kept + 2) * (2 * labels + 1), guards=guards)


def ctc_gradient(g: GradientBuilder) -> Sequence[str | None]:
    shape = [-1, 1, 1] if g.attribute("batch_first", 0) else [-1, 1]
    per_sequence = g.op("Reshape", g.dy, g.constant(shape))
    return [g.op("Mul", g.output(1), per_sequence), None, None, None]


@operator("CTCLoss", domain=ORTRAIN, lower=lower_ctc, gradient=ctc_gradient, stop_gradient=(1, 2, 3), required_outputs=1)
def ctc_loss(c: InferenceContext) -> list[TensorType]:
    """loss [n] = -log of the summed probability of all alignments that spell the targets, of (log_probs [t, n, c], or [n, t, c] with batch_first;
    targets [n, s]; input lengths [n]; target lengths [n]); output 1: the gradient of loss by log_probs"""
    shape, targets = c.shape(0), c.shape(1)
    if len(shape) != 3 or len(targets) != 2:
        raise c.error(f"expected log_probs [t, n, c] and targets [n, s], got {list(shape)} and {list(targets)}")
    n: Dim = shape[0] if c.attribute("batch_first", 0) else shape[1]
    check_shape(c, "targets", targets, (n, targets[1]))
    check_shape(c, "input lengths", c.shape(2), (n,))
    check_shape(c, "target lengths", c.shape(3), (n,))
    return [TensorType(c.dtype(0), (n,)), TensorType(c.dtype(0), shape)]
