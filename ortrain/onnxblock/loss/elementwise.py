"""Losses whose target has the shape of the prediction, element by element."""

from __future__ import annotations

import numpy as np

from ortrain.onnxblock import blocks
from ortrain.onnxblock.building import add_initializer, add_node, dtype_of, type_of
from ortrain.onnxblock.loss.base import REDUCTIONS, Loss, check_number, reduce_axes, sample_weight_input, scalar, target_input


class ElementLoss(Loss):
    """A loss of each element of prediction and target, reduced. The target input is created with the type of the prediction."""

    def element(self, prediction: str, target: str) -> str:
        """Add the loss of each element."""
        raise NotImplementedError

    def build(self, loss_input_name: str, target_name: str = "target") -> str:
        """Build the loss of a prediction [n, …] and a target of the same shape and dtype."""
        return self.reduce(self.element(loss_input_name, target_input(target_name, type_of(loss_input_name))))


class MSELoss(ElementLoss):
    """The mean (or sum) of (prediction - target)²."""

    def element(self, prediction: str, target: str) -> str:
        return str(blocks.Pow(2.0)(blocks.Sub()(prediction, target)))


class L1Loss(ElementLoss):
    """The mean (or sum) of |prediction - target|."""

    def element(self, prediction: str, target: str) -> str:
        return str(blocks.Abs()(blocks.Sub()(prediction, target)))


class HuberLoss(ElementLoss):
    """The mean (or sum) of ½ d² where |d| <= delta, elsewhere delta (|d| - ½ delta), with d = prediction - target.

    delta: greater than 0. Raises InvalidArgumentError otherwise."""

    def __init__(self, delta: float = 1.0, reduction: str = "mean", sample_weight: bool = False) -> None:
        super().__init__(reduction, sample_weight)
        self._delta = check_number("a delta", delta, 0.0, strict=True)

    def element(self, prediction: str, target: str) -> str:
        # both cases are c (d - c / 2), where c is d limited to [-delta, delta]
        difference = blocks.Sub()(prediction, target)
        limited = blocks.Clip(-self._delta, self._delta)(difference)
        half = add_node("Mul", [limited, scalar(0.5, prediction)])[0]
        return add_node("Mul", [limited, blocks.Sub()(difference, half)])[0]


class SmoothL1Loss(ElementLoss):
    """The mean (or sum) of ½ d² / beta where |d| < beta, elsewhere |d| - ½ beta, with d = prediction - target.

    beta: at least 0; with 0 it is L1Loss. Raises InvalidArgumentError otherwise."""

    def __init__(self, beta: float = 1.0, reduction: str = "mean", sample_weight: bool = False) -> None:
        super().__init__(reduction, sample_weight)
        self._beta = check_number("a beta", beta, 0.0)

    def element(self, prediction: str, target: str) -> str:
        if self._beta == 0:
            return L1Loss().element(prediction, target)
        return add_node("Mul", [HuberLoss(self._beta).element(prediction, target), scalar(1 / self._beta, prediction)])[0]


def binary_cross_entropy(logits: str, target: str, pos_weight: np.ndarray | None = None) -> str:
    """Add -(pos_weight·t·log σ(z) + (1-t)·log(1-σ(z))) of logits z and targets t, element by element.

    Computed as (1-t)·z + (1 + (pos_weight-1)·t)·(log(1 + exp(-|z|)) + (|z|-z)/2), which does not overflow for any logit. The form (|z|-z)/2 instead
    of max(-z, 0) also makes the gradient correct at z = 0, where the derivative of |z| is taken as 0."""
    dtype = dtype_of(logits)
    add, sub, mul = blocks.Add(), blocks.Sub(), blocks.Mul()
    one = add_initializer(np.ones((), dtype), "bceloss.one")
    half = add_initializer(np.array(0.5, dtype), "bceloss.half")
    size = blocks.Abs()(logits)
    tail = blocks.Log()(add(one, blocks.Exp()(blocks.Neg()(size))))
    wrong = add(tail, mul(half, sub(size, logits)))
    if pos_weight is not None:
        extra = add_initializer(np.asarray(pos_weight, dtype) - dtype.type(1), "bceloss.pos_weight")
        wrong = mul(add(one, mul(extra, target)), wrong)
    return str(add(mul(sub(one, target), logits), wrong))


class BCEWithLogitsLoss(ElementLoss):
    """Binary cross entropy of sigmoid(z) and targets t: -(pos_weight·t·log σ(z) + (1-t)·log(1-σ(z)))·weight, mean or sum.

    weight, pos_weight: arrays that broadcast to the shape of the prediction, or None."""

    def __init__(self, weight: np.ndarray | None = None, reduction: str = "mean", pos_weight: np.ndarray | None = None,
                 sample_weight: bool = False) -> None:
        super().__init__(reduction, sample_weight)
        self._weight = weight
        self._pos_weight = pos_weight

    def element(self, prediction: str, target: str) -> str:
        loss = binary_cross_entropy(prediction, target, self._pos_weight)
        if self._weight is None:
            return loss
        return str(blocks.Mul()(add_initializer(np.asarray(self._weight, dtype_of(prediction)), "bceloss.weight"), loss))


class BinaryFocalLoss(ElementLoss):
    """Focal loss of sigmoid(z) and targets t: BCE(z, t)·(1 - p)^gamma·(alpha·t + (1 - alpha)·(1 - t)), p = σ(z)·t + (1 - σ(z))·(1 - t), mean or sum.

    gamma: at least 0. alpha: in [0, 1], None for none. The formula is that of torchvision.ops.sigmoid_focal_loss (Lin et al. 2017, Focal Loss for
    Dense Object Detection). Raises InvalidArgumentError for a gamma or alpha outside its range."""

    def __init__(self, gamma: float = 2.0, alpha: float | None = 0.25, reduction: str = "mean", sample_weight: bool = False) -> None:
        super().__init__(reduction, sample_weight)
        self._gamma = check_number("a gamma", gamma, 0.0)
        self._alpha = None if alpha is None else check_number("an alpha", alpha, 0.0, 1.0)

    def element(self, prediction: str, target: str) -> str:
        add, sub, mul = blocks.Add(), blocks.Sub(), blocks.Mul()
        one = scalar(1.0, prediction)
        negative = sub(one, target)
        loss = binary_cross_entropy(prediction, target)
        if self._gamma > 0:
            # 1 - p as a sum of products, so that it does not cancel; it is limited since its power may have no derivative at 0
            wrong = add(mul(blocks.Sigmoid()(prediction), negative), mul(blocks.Sigmoid()(blocks.Neg()(prediction)), target))
            loss = mul(loss, blocks.Pow(self._gamma)(blocks.Clip(float(np.finfo(np.float32).tiny))(wrong)))
        if self._alpha is not None:
            balance = add(mul(scalar(self._alpha, prediction), target), mul(scalar(1 - self._alpha, prediction), negative))
            loss = mul(balance, loss)
        return str(loss)


class HingeLoss(ElementLoss):
    """The mean (or sum) of max(0, margin - prediction·target) for targets -1 and 1, squared if `squared`.

    The formula is that of Keras's Hinge and SquaredHinge; PyTorch has none. Raises InvalidArgumentError for a margin that is not a finite number of at
    least 0."""

    def __init__(self, margin: float = 1.0, squared: bool = False, reduction: str = "mean", sample_weight: bool = False) -> None:
        super().__init__(reduction, sample_weight)
        self._margin = check_number("a margin", margin, 0.0)
        self._squared = squared

    def element(self, prediction: str, target: str) -> str:
        loss = add_node("Relu", [blocks.Sub()(scalar(self._margin, prediction), blocks.Mul()(prediction, target))])[0]
        return str(blocks.Mul()(loss, loss)) if self._squared else loss


class KLDivLoss(ElementLoss):
    """Kullback-Leibler divergence: target·(log target - prediction), where the prediction is the log of a distribution.

    reduction: "mean" over all elements, as in PyTorch, or "batchmean", the sum divided by the batch size, which is the divergence in the mathematical
    sense; "sum" or "none". log_target: the target is the log of a distribution, too. from_logits: take the log softmax of the prediction over its last axis
    first. Elements with target 0 have the loss 0."""

    reductions = (*REDUCTIONS, "batchmean")

    def __init__(self, reduction: str = "mean", log_target: bool = False, from_logits: bool = False, sample_weight: bool = False) -> None:
        super().__init__(reduction, sample_weight)
        self._log_target = log_target
        self._from_logits = from_logits

    def element(self, prediction: str, target: str) -> str:
        if self._from_logits:
            prediction = add_node("LogSoftmax", [prediction], axis=-1)[0]
        if self._log_target:
            return str(blocks.Mul()(blocks.Exp()(target), blocks.Sub()(target, prediction)))
        is_zero = add_node("Equal", [target, scalar(0.0, target)])[0]
        log_target = blocks.Log()(add_node("Where", [is_zero, scalar(1.0, target), target])[0])
        return str(blocks.Mul()(target, blocks.Sub()(log_target, prediction)))

    def reduce(self, value: str) -> str:
        """Reduce the elementwise loss; "batchmean" is the (weighted) mean over samples of the sum of each."""
        if self.reduction != "batchmean":
            return super().reduce(value)
        per_sample = reduce_axes("ReduceSum", add_node("Flatten", [value], axis=1)[0], [1])
        if self.has_sample_weight:
            return self.weighted(per_sample, sample_weight_input(value))
        return add_node("ReduceMean", [per_sample], keepdims=0)[0]
