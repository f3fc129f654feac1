"""Losses as blocks: called with the names of prediction and target, they return the name of the loss."""

from __future__ import annotations

import numpy as np
import onnx

from ortrain.errors import InvalidArgumentError, InvalidModelError
from ortrain.onnxblock import blocks
from ortrain.onnxblock.building import add_initializer, add_input, add_node, dtype_of, generate_name, has_input, type_of
from ortrain.onnxblock.model_accessor import current_model

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
    """Return the graph input of that name, created like `like` unless the model has it already."""
    return name if has_input(name) else str(blocks.InputLike(like)(name))


class _ElementLoss(blocks.Block):
    """An elementwise loss of prediction - target."""

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

    Computed as (1-t)·z + (1 + (pos_weight-1)·t)·(log(1 + exp(-|z|)) + (|z|-z)/2), which does not overflow for any logit. The form (|z|-z)/2 instead
    of max(-z, 0) also makes the gradient correct at z = 0, where the derivative of |z| is taken as 0."""

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
    """Softmax cross entropy of scores and int64 labels, whose shape is that of the scores without the class axis.

    weight: [c], one factor per class. ignore_index: the label of ignored elements. class_axis: the axis of the classes in the scores; None is axis 1,
    as in [n, c] and [n, c, h, w], but the last axis of scores with three, [n, s, c], as in language models and as 1.19 declares their labels."""

    def __init__(self, weight: np.ndarray | None = None, reduction: str = "mean", ignore_index: int | None = None,
                 class_axis: int | None = None) -> None:
        super().__init__()
        self._reduction = _check_reduction(reduction)
        self._weight = weight
        self._ignore_index = ignore_index
        self._class_axis = class_axis

    def build(self, scores_input_name: str, labels_name: str = "labels") -> str:
        """Build the loss. Raises InvalidModelError for scores without a class axis, and below opset 12, where the operator does not exist."""
        opset = next((o.version for o in current_model().opset_import if o.domain in ("", "ai.onnx")), FIRST_OPSET)
        if opset < FIRST_OPSET:
            raise InvalidModelError(f"expected a model of opset {FIRST_OPSET} or newer for CrossEntropyLoss, got {opset}: "
                                    "generate_artifacts(opset_version=13) converts it")
        scores, labels = scores_input_name, labels_name
        rank, axis = self._class_axis_of(scores, labels)
        if not has_input(labels):
            add_input(labels, _labels_type(type_of(scores), axis))
        if axis == 1 or rank is None:
            return self._loss(scores, labels)
        if axis != rank - 1:
            scores = add_node("Transpose", [scores], perm=[*(i for i in range(rank) if i != axis), axis])[0]
        rows = add_node("Flatten", [scores], axis=rank - 1)[0]
        flat = add_node("Reshape", [labels, add_initializer(np.array([-1], np.int64), "celoss.shape")])[0]
        loss = self._loss(rows, flat)
        return loss if self._reduction != "none" else add_node("Reshape", [loss, add_node("Shape", [labels])[0]])[0]

    def _loss(self, scores: str, labels: str) -> str:
        inputs = [scores, labels]
        # also without weights, so that loss and log_prob have the names that onnxruntime-training gives them
        weight_name = generate_name("celoss.weight")
        if self._weight is not None:
            inputs.append(add_initializer(np.asarray(self._weight, dtype_of(scores)), name=weight_name))
        return add_node("SoftmaxCrossEntropyLoss", inputs, ["loss", "log_prob"], reduction=self._reduction, ignore_index=self._ignore_index)[0]

    def _class_axis_of(self, scores: str, labels: str) -> tuple[int | None, int]:
        """Return (rank of the scores or None, class axis)."""
        kind = type_of(scores).tensor_type
        if not kind.HasField("shape"):
            return None, 1
        rank = len(kind.shape.dim)
        if rank < 2:
            raise InvalidModelError(f"expected scores [n, c, …] for CrossEntropyLoss, got rank {rank} ({scores!r})")
        if self._class_axis is not None:
            if not -rank <= self._class_axis < rank:
                raise InvalidModelError(f"expected a class_axis in [{-rank}, {rank}), got {self._class_axis} ({scores!r})")
            return rank, self._class_axis % rank
        if rank != 3 or has_input(labels) and _sizes(type_of(labels)) == _sizes(_labels_type(type_of(scores), 1)):
            return rank, 1
        return rank, 2


FIRST_OPSET = 12
"""The first opset with SoftmaxCrossEntropyLoss."""


def _labels_type(scores: onnx.TypeProto, axis: int) -> onnx.TypeProto:
    """Return int64 in the scores' shape without the class axis."""
    labels = onnx.TypeProto()
    labels.tensor_type.elem_type = onnx.TensorProto.INT64
    if scores.tensor_type.HasField("shape"):
        dims = scores.tensor_type.shape.dim
        labels.tensor_type.shape.dim.extend([*dims[:axis], *dims[axis + 1 :]])
    return labels


def _sizes(kind: onnx.TypeProto) -> list[int | str]:
    return [dim.dim_value if dim.HasField("dim_value") else dim.dim_param for dim in kind.tensor_type.shape.dim]
