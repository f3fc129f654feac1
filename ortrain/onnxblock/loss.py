"""Losses as blocks: called with the name of the prediction and of the target, they return the name of the loss."""

from __future__ import annotations

import numpy as np
import onnx

from ortrain.errors import InvalidArgumentError, InvalidModelError
from ortrain.onnxblock import blocks
from ortrain.onnxblock.building import add_initializer, add_input, add_node, dtype_of, generate_name, has_input, type_of

REDUCTIONS = ("mean", "sum", "none")


def _check_reduction(reduction: str) -> str:
    if reduction not in REDUCTIONS:
        raise InvalidArgumentError(f"Reduction {reduction} not supported. Expected one of {', '.join(REDUCTIONS)}.")
    return reduction


def _reduce(reduction: str, value: str) -> str:
    if reduction == "none":
        return value
    return str((blocks.ReduceMean if reduction == "mean" else blocks.ReduceSum)(keepdims=False)(value))


def _target(like: str, name: str) -> str:
    """The graph input of that name, made like `like` unless the model has it already."""
    return name if has_input(name) else str(blocks.InputLike(like)(name))


class _ElementLoss(blocks.Block):
    """A loss of prediction - target, element by element."""

    def __init__(self, reduction: str = "mean") -> None:
        super().__init__()
        self._reduction = _check_reduction(reduction)

    def element(self, difference: str) -> str:
        raise NotImplementedError

    def build(self, loss_input_name: str, target_name: str = "target") -> str:
        target = _target(loss_input_name, target_name)
        return _reduce(self._reduction, self.element(blocks.Sub()(loss_input_name, target)))


class MSELoss(_ElementLoss):
    """The mean (or sum) of (prediction - target)²."""

    def element(self, difference: str) -> str:
        return str(blocks.Pow(2.0)(difference))


class L1Loss(_ElementLoss):
    """The mean (or sum) of |prediction - target|."""

    def element(self, difference: str) -> str:
        return str(blocks.Abs()(difference))


class BCEWithLogitsLoss(blocks.Block):
    """Binary cross entropy of sigmoid(z) and targets t: -(pos_weight·t·log σ(z) + (1-t)·log(1-σ(z)))·weight, mean or sum.

    Built in the form (1-t)·z + (1 + (pos_weight-1)·t)·(log(1 + exp(-|z|)) + (|z|-z)/2), which no logit makes overflow and whose gradient is
    right at z = 0 too: (|z|-z)/2 rather than max(-z, 0), for the derivative of |z| at 0 is taken as 0."""

    def __init__(self, weight: np.ndarray | None = None, reduction: str = "mean", pos_weight: np.ndarray | None = None) -> None:
        super().__init__()
        self._reduction = _check_reduction(reduction)
        self._weight = weight
        self._pos_weight = pos_weight

    def build(self, loss_input_name: str, target_name: str = "target") -> str:
        logits, target = loss_input_name, _target(loss_input_name, target_name)
        dtype = dtype_of(logits)
        add, sub, mul = blocks.Add(), blocks.Sub(), blocks.Mul()
        one = add_initializer(np.ones((), dtype), "bceloss.one")
        half = add_initializer(np.array(0.5, dtype), "bceloss.half")
        size = blocks.Abs()(logits)
        tail = blocks.Log()(add(one, blocks.Exp()(blocks.Neg()(size))))
        wrong = add(tail, mul(half, sub(size, logits)))
        if self._pos_weight is not None:
            extra = add_initializer(np.asarray(self._pos_weight, dtype) - dtype.type(1), "bceloss.pos_weight")
            wrong = mul(add(one, mul(extra, target)), wrong)
        loss = add(mul(sub(one, target), logits), wrong)
        if self._weight is not None:
            loss = mul(add_initializer(np.asarray(self._weight, dtype), "bceloss.weight"), loss)
        return _reduce(self._reduction, loss)


class CrossEntropyLoss(blocks.Block):
    """Softmax cross entropy of scores [n, c, …] and int64 labels [n, …].

    weight: [c], one factor per class. ignore_index: labels that do not count."""

    def __init__(self, weight: np.ndarray | None = None, reduction: str = "mean", ignore_index: int | None = None) -> None:
        super().__init__()
        self._reduction = _check_reduction(reduction)
        self._weight = weight
        self._ignore_index = ignore_index

    def build(self, scores_input_name: str, labels_name: str = "labels") -> str:
        weight_name = generate_name("celoss.weight")
        inputs = [scores_input_name, self._labels(scores_input_name, labels_name)]
        if self._weight is not None:
            inputs.append(add_initializer(np.asarray(self._weight, dtype_of(scores_input_name)), name=weight_name))
        outputs = ["loss", "log_prob"]
        return add_node("SoftmaxCrossEntropyLoss", inputs, outputs, reduction=self._reduction, ignore_index=self._ignore_index)[0]

    @staticmethod
    def _labels(scores: str, name: str) -> str:
        kind = type_of(scores)
        if has_input(name):
            return name
        labels = onnx.TypeProto()
        labels.tensor_type.elem_type = onnx.TensorProto.INT64
        if kind.tensor_type.HasField("shape"):
            dims = kind.tensor_type.shape.dim
            if len(dims) < 2:
                raise InvalidModelError(f"expected scores [n, c, …] for CrossEntropyLoss, got rank {len(dims)} ({scores!r})")
            # the operator's class axis is 1
            labels.tensor_type.shape.dim.extend([dims[0], *dims[2:]])
        return add_input(name, labels)
