"""Losses of scores per class and the label of the true class."""

from __future__ import annotations

import numpy as np

from ortrain.errors import InvalidArgumentError, InvalidModelError
from ortrain.onnxblock import blocks
from ortrain.onnxblock.building import add_initializer, add_node, dtype_of, generate_name, has_input, type_of
from ortrain.onnxblock.loss.base import (
    Loss,
    check_number,
    opset,
    own_operator,
    quotient,
    rank_of,
    reduce_axes,
    sample_weight_input,
    scalar,
    target_input,
    tensor_type,
    unsqueeze,
)
from ortrain.ops.loss import DEFAULT_IGNORE_INDEX
from ortrain.packages import onnx

FIRST_OPSET = 12
"""The first opset with SoftmaxCrossEntropyLoss and NegativeLogLikelihoodLoss."""


class ClassificationLoss(Loss):
    """A loss of scores and int64 labels, whose shape is that of the scores without the class axis.

    weight: [c], one factor per class. ignore_index: the label of ignored elements; None: -1. class_axis: the axis of the classes in the scores; None is
    axis 1, as in [n, c] and [n, c, h, w], but the last axis of scores with three, [n, s, c], as in language models and as 1.19 declares their labels."""

    predictions, targets = ("scores",), ("labels",)

    def __init__(self, weight: np.ndarray | None = None, reduction: str = "mean", ignore_index: int | None = None, class_axis: int | None = None,
                 sample_weight: bool = False) -> None:
        super().__init__(reduction, sample_weight)
        self._weight = None if weight is None else np.asarray(weight)
        self._ignore_index = ignore_index
        self._class_axis = class_axis
        if self._weight is not None and (self._weight.ndim != 1 or self._weight.dtype.kind not in "fiu"):
            raise InvalidArgumentError(f"expected class weights [c], got {self._weight.dtype} {list(self._weight.shape)}")
        if self._weight is not None and not (np.isfinite(self._weight) & (self._weight >= 0)).all():
            raise InvalidArgumentError(f"expected finite class weights of at least 0, got {self._weight.tolist()}")

    def build(self, scores_input_name: str, labels_name: str = "labels") -> str:
        """Build the loss. Raises InvalidModelError for scores without a class axis, and below opset 12, where the operators do not exist."""
        if opset() < FIRST_OPSET:
            raise InvalidModelError(f"expected a model of opset {FIRST_OPSET} or newer for {type(self).__name__}, got {opset()}: "
                                    "generate_artifacts(opset_version=13) converts it")
        scores = scores_input_name
        rank, axis = self._class_axis_of(scores, labels_name)
        self._check_weight(scores, axis)
        labels = target_input(labels_name, _labels_type(type_of(scores), axis))
        weight = sample_weight_input(scores, 0 if axis else 1) if self.has_sample_weight else ""
        if axis == 1 or rank is None:
            return self._loss(scores, labels, weight)
        if axis != rank - 1:
            scores = add_node("Transpose", [scores], perm=[*(i for i in range(rank) if i != axis), axis])[0]
        rows = add_node("Flatten", [scores], axis=rank - 1)[0]
        flat = add_node("Reshape", [labels, add_initializer(np.array([-1], np.int64), "celoss.shape")])[0]
        if weight:
            spread = add_node("Expand", [unsqueeze(weight, range(1, rank - 1)) if rank > 2 else weight, add_node("Shape", [labels])[0]])[0]
            weight = add_node("Reshape", [spread, add_initializer(np.array([-1], np.int64), "celoss.shape")])[0]
        loss = self._loss(rows, flat, weight)
        return loss if self.reduction != "none" else add_node("Reshape", [loss, add_node("Shape", [labels])[0]])[0]

    def _loss(self, scores: str, labels: str, sample_weight: str) -> str:
        """Add the loss of scores [n, c, …] and labels [n, …]; sample_weight: the weights [n], "" without."""
        raise NotImplementedError

    def _class_weight(self, scores: str, name: str | None = None) -> str:
        return "" if self._weight is None else add_initializer(self._weight.astype(dtype_of(scores)), "celoss.weight", name)

    def _softmax_focal_loss(self, scores: str, labels: str, sample_weight: str, *, gamma: float = 0.0, label_smoothing: float = 0.0,
                            weighted_mean: bool = True) -> str:
        kind = tensor_type(dtype_of(scores), [])
        if self.reduction == "none":
            kind = type_of(labels)
            kind.tensor_type.elem_type = type_of(scores).tensor_type.elem_type
        return own_operator("SoftmaxFocalLoss", [scores, labels, self._class_weight(scores), sample_weight], kind, gamma=gamma,
                            label_smoothing=label_smoothing, reduction=self.reduction, ignore_index=self._ignore_index, weighted_mean=int(weighted_mean))

    def _check_weight(self, scores: str, axis: int) -> None:
        """Raise InvalidArgumentError for class weights of another number than that of the classes."""
        dims = type_of(scores).tensor_type.shape.dim
        if self._weight is not None and axis < len(dims) and dims[axis].HasField("dim_value") and dims[axis].dim_value != len(self._weight):
            raise InvalidArgumentError(f"expected {dims[axis].dim_value} class weights, got {len(self._weight)} ({scores!r})")

    def _class_axis_of(self, scores: str, labels: str) -> tuple[int | None, int]:
        """Return (rank of the scores or None, class axis)."""
        rank = rank_of(scores)
        if rank is None:
            return None, 1
        if rank < 2:
            raise InvalidModelError(f"expected scores [n, c, …] for {type(self).__name__}, got rank {rank} ({scores!r})")
        if self._class_axis is not None:
            if not -rank <= self._class_axis < rank:
                raise InvalidModelError(f"expected a class_axis in [{-rank}, {rank}), got {self._class_axis} ({scores!r})")
            return rank, self._class_axis % rank
        if rank != 3 or has_input(labels) and _sizes(type_of(labels)) == _sizes(_labels_type(type_of(scores), 1)):
            return rank, 1
        return rank, 2


class CrossEntropyLoss(ClassificationLoss):
    """Softmax cross entropy of scores and int64 labels, whose shape is that of the scores without the class axis.

    weight, ignore_index, class_axis: see ClassificationLoss. label_smoothing: in [0, 1], the share of the target that is spread evenly over all classes.
    soft_labels: the target is a probability per class, in the shape and dtype of the scores, instead of a label; the mean is over elements, with or without
    class weights. Raises InvalidArgumentError for a label_smoothing outside its range and for soft labels with an ignore_index."""

    def __init__(self, weight: np.ndarray | None = None, reduction: str = "mean", ignore_index: int | None = None,
                 class_axis: int | None = None, label_smoothing: float = 0.0, soft_labels: bool = False, sample_weight: bool = False) -> None:
        super().__init__(weight, reduction, ignore_index, class_axis, sample_weight)
        self._smoothing = check_number("a label_smoothing", label_smoothing, 0.0, 1.0)
        self._soft_labels = soft_labels
        if soft_labels and ignore_index is not None:
            raise InvalidArgumentError("expected no ignore_index with soft labels, which have no label to ignore")

    def build(self, scores_input_name: str, labels_name: str = "labels") -> str:
        """Build the loss. Raises InvalidModelError for scores without a class axis, and below opset 12 (soft labels: 13)."""
        return self._soft_loss(scores_input_name, labels_name) if self._soft_labels else super().build(scores_input_name, labels_name)

    def _loss(self, scores: str, labels: str, sample_weight: str) -> str:
        if self._smoothing or sample_weight:
            return self._softmax_focal_loss(scores, labels, sample_weight, label_smoothing=self._smoothing)
        inputs = [scores, labels]
        # also without weights, so that loss and log_prob have the names that onnxruntime-training gives them
        weight = self._class_weight(scores, generate_name("celoss.weight"))
        if weight:
            inputs.append(weight)
        return add_node("SoftmaxCrossEntropyLoss", inputs, ["loss", "log_prob"], reduction=self.reduction, ignore_index=self._ignore_index)[0]

    def _soft_loss(self, scores: str, target_name: str) -> str:
        rank, axis = self._class_axis_of(scores, target_name)
        if rank is None or opset() < 13:
            raise InvalidModelError(f"expected a model of opset 13 or newer and scores of known rank for soft labels, got opset {opset()} ({scores!r})")
        self._check_weight(scores, axis)
        target = target_input(target_name, type_of(scores))
        if self._smoothing:
            classes = add_node("Gather", [add_node("Shape", [scores])[0], add_initializer(np.array(axis, np.int64), "celoss.axis")])[0]
            even = blocks.Div()(scalar(self._smoothing, scores), blocks.Cast(type_of(scores).tensor_type.elem_type)(classes))
            target = blocks.Add()(blocks.Mul()(target, scalar(1 - self._smoothing, scores)), even)
        if self._weight is not None:
            shape = [-1 if i == axis else 1 for i in range(rank)]
            target = blocks.Mul()(target, add_initializer(self._weight.astype(dtype_of(scores)).reshape(shape), "celoss.weight"))
        products = blocks.Mul()(target, add_node("LogSoftmax", [scores], axis=axis)[0])
        return self.reduce(blocks.Neg()(reduce_axes("ReduceSum", products, [axis])))


class FocalLoss(ClassificationLoss):
    """Focal loss of the softmax of scores and int64 labels: -alpha[label]·(1 - p)^gamma·log p, p = softmax(scores)[label] (Lin et al. 2017, Focal Loss for
    Dense Object Detection).

    gamma: at least 0; with 0 and no alpha it is CrossEntropyLoss. alpha: [c], one factor per class, or None; unlike the class weights of CrossEntropyLoss,
    it does not count in the divisor of the mean. ignore_index, class_axis: see ClassificationLoss. For independent classes use BinaryFocalLoss. Raises
    InvalidArgumentError for a gamma below 0."""

    def __init__(self, gamma: float = 2.0, alpha: np.ndarray | None = None, reduction: str = "mean", ignore_index: int | None = None,
                 class_axis: int | None = None, sample_weight: bool = False) -> None:
        super().__init__(alpha, reduction, ignore_index, class_axis, sample_weight)
        self._gamma = check_number("a gamma", gamma, 0.0)

    def _loss(self, scores: str, labels: str, sample_weight: str) -> str:
        return self._softmax_focal_loss(scores, labels, sample_weight, gamma=self._gamma, weighted_mean=False)


class NLLLoss(ClassificationLoss):
    """Negative log likelihood: -weight[label]·log_probs[label], of log probabilities (a log softmax) and int64 labels.

    The parameters are those of ClassificationLoss. The mean divides by the sum of the class weights of the labels."""

    predictions = ("log_probs",)

    def _loss(self, scores: str, labels: str, sample_weight: str) -> str:
        class_weight = self._class_weight(scores)
        inputs = [scores, labels, *([class_weight] if class_weight else [])]
        reduction = "none" if sample_weight else self.reduction
        losses = add_node("NegativeLogLikelihoodLoss", inputs, ["loss"], reduction=reduction, ignore_index=self._ignored)[0]
        if not sample_weight:
            return losses
        rank = rank_of(labels) or 1
        weight = unsqueeze(sample_weight, range(1, rank)) if rank > 1 else sample_weight
        weighted = blocks.Mul()(losses, weight)
        if self.reduction != "mean":
            return weighted if self.reduction == "none" else add_node("ReduceSum", [weighted], keepdims=0)[0]
        shares = blocks.Mul()(self._label_weight(labels, class_weight, scores), weight)
        return quotient(*(add_node("ReduceSum", [value], keepdims=0)[0] for value in (weighted, shares)))

    @property
    def _ignored(self) -> int:
        return DEFAULT_IGNORE_INDEX if self._ignore_index is None else self._ignore_index

    def _label_weight(self, labels: str, class_weight: str, scores: str) -> str:
        """Return the class weight of each label, 0 for ignored ones."""
        number = add_initializer(np.array(self._ignored, np.int64), "nllloss.ignored")
        ignored = add_node("Equal", [labels, number])[0]
        weight = scalar(1.0, scores)
        if class_weight:
            weight = add_node("Gather", [class_weight, add_node("Where", [ignored, add_initializer(np.array(0, np.int64), "nllloss.zero"), labels])[0]])[0]
        return add_node("Where", [ignored, scalar(0.0, scores), weight])[0]


def _labels_type(scores: onnx.TypeProto, axis: int) -> onnx.TypeProto:
    """Return int64 in the scores' shape without the class axis."""
    if not scores.tensor_type.HasField("shape"):
        return tensor_type(np.dtype(np.int64), None)
    dims = scores.tensor_type.shape.dim
    return tensor_type(np.dtype(np.int64), [*dims[:axis], *dims[axis + 1 :]])


def _sizes(kind: onnx.TypeProto) -> list[int | str]:
    return [dim.dim_value if dim.HasField("dim_value") else dim.dim_param for dim in kind.tensor_type.shape.dim]
