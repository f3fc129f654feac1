"""Metrics of classifications: accuracy, precision, recall, F1, confusion matrix and perplexity."""

from __future__ import annotations

import math
from typing import Literal, get_args

import numpy as np

from ortrain.errors import InvalidArgumentError, LabelRangeError
from ortrain.metrics.arrays import ClassRule, Labels, row_blocks
from ortrain.metrics.base import Metric, RatioMetric, grown

Average = Literal["macro", "micro", "weighted", "binary"]

MAX_CLASSES = 1 << 24
"""The largest number of classes that are counted one by one: what is above is no label but a mistake."""
MAX_MATRIX_CLASSES = 4096
"""The largest number of classes of a confusion matrix, which takes 134 MB with so many."""


class Accuracy(RatioMetric):
    """The share of targets whose class was predicted.

    threshold: the score above which class 1 is predicted in a binary classification with one score per target: 0 for logits, 0.5 for probabilities.
    ignore_index: the label of targets that do not count. class_axis: the axis of the classes in the predictions; by default axis 1 if the other axes are
    those of the targets, else the last axis.

    Predictions are scores of every class, scores of class 1, or class labels; see ClassRule."""

    def __init__(self, *, threshold: float = 0.0, ignore_index: int | None = None, class_axis: int | None = None, name: str = "accuracy") -> None:
        self._rule = ClassRule(threshold, ignore_index, class_axis)
        super().__init__(name)

    def update(self, predictions: np.ndarray, targets: np.ndarray, weights: np.ndarray | None = None) -> None:
        labels = self._rule.labels(predictions, targets, weights)
        self._add(labels.predictions == labels.targets, labels.weights)


class TopKAccuracy(RatioMetric):
    """The share of targets whose class is among the k classes of the highest scores. Of equal scores, that of the lower class counts as higher.

    k: at least 1, at most the number of classes. ignore_index, class_axis: as in Accuracy. Predictions are scores of every class."""

    def __init__(self, k: int = 5, *, ignore_index: int | None = None, class_axis: int | None = None, name: str | None = None) -> None:
        if k < 1:
            raise InvalidArgumentError(f"expected k >= 1, got {k}")
        self.k = k
        self._rule = ClassRule(0.0, ignore_index, class_axis)
        super().__init__(name or f"top-{k}")

    def update(self, predictions: np.ndarray, targets: np.ndarray, weights: np.ndarray | None = None) -> None:
        batch = self._rule.scores(predictions, targets, weights)
        classes = batch.scores.shape[1]
        if classes < max(2, self.k):
            raise InvalidArgumentError(f"expected scores of at least {max(2, self.k)} classes, got {classes}")
        rank = np.zeros(len(batch.targets), np.int64)
        for rows in row_blocks(*batch.scores.shape):
            scores, targets = batch.scores[rows], batch.targets[rows, None]
            own = np.take_along_axis(scores, targets, axis=1)
            rank[rows] = np.count_nonzero((scores > own) | ((scores == own) & (np.arange(classes) < targets)), axis=1)
        self._add(rank < self.k, batch.weights)


class Perplexity(RatioMetric):
    """The exponential of the mean cross-entropy between the softmax of the predictions and the targets, as is usual for language models.

    ignore_index, class_axis: as in Accuracy. Predictions are logits of every class."""

    higher_is_better = False

    def __init__(self, *, ignore_index: int | None = None, class_axis: int | None = None, name: str = "perplexity") -> None:
        self._rule = ClassRule(0.0, ignore_index, class_axis)
        super().__init__(name)

    def update(self, predictions: np.ndarray, targets: np.ndarray, weights: np.ndarray | None = None) -> None:
        batch = self._rule.scores(predictions, targets, weights)
        if batch.scores.shape[1] < 2:
            raise InvalidArgumentError("expected logits of at least 2 classes, got one score per target")
        entropy = np.zeros(len(batch.targets))
        for rows in row_blocks(*batch.scores.shape):
            logits = batch.scores[rows].astype(np.float64)
            logits -= logits.max(axis=1, keepdims=True)
            own = np.take_along_axis(logits, batch.targets[rows, None], axis=1)[:, 0]
            entropy[rows] = np.log(np.exp(logits, out=logits).sum(axis=1)) - own
        self._add(entropy, batch.weights)

    def result(self) -> float:
        try:
            return math.exp(super().result())
        except OverflowError:
            return math.inf


class _ClassCounts(Metric):
    """Accumulates, per class, the weight of what was predicted, what was wanted, and what was both."""

    def __init__(self, average: Average, threshold: float, ignore_index: int | None, class_axis: int | None, name: str) -> None:
        if average not in get_args(Average):
            raise InvalidArgumentError(f"expected average to be one of {list(get_args(Average))}, got {average!r}")
        self.average = average
        self._rule = ClassRule(threshold, ignore_index, class_axis)
        super().__init__(name)

    def reset(self) -> None:
        self._right = np.zeros(0)
        self._predicted = np.zeros(0)
        self._wanted = np.zeros(0)
        self._seen = np.zeros(0, bool)

    def update(self, predictions: np.ndarray, targets: np.ndarray, weights: np.ndarray | None = None) -> None:
        labels = self._rule.labels(predictions, targets, weights)
        if self.average == "binary" and labels.classes > 2:
            raise LabelRangeError(f'expected two classes for average="binary", got {labels.classes}')
        if labels.classes > MAX_CLASSES:
            raise LabelRangeError(f"expected at most {MAX_CLASSES} classes, got {labels.classes}")
        size = max(labels.classes, self._right.size)
        right = labels.predictions == labels.targets
        self._right = grown(self._right, size) + counts(labels.targets[right], None if labels.weights is None else labels.weights[right], size)
        self._predicted = grown(self._predicted, size) + counts(labels.predictions, labels.weights, size)
        self._wanted = grown(self._wanted, size) + counts(labels.targets, labels.weights, size)
        self._seen = grown(self._seen, size)
        self._seen[labels.targets] = self._seen[labels.predictions] = True

    def _ratio(self, right: np.ndarray, predicted: np.ndarray, wanted: np.ndarray) -> np.ndarray:
        """Return the figure of each class [n] from the three weights [n]."""
        raise NotImplementedError

    def result(self) -> float:
        if not self._wanted.sum() > 0:
            return float("nan")
        if self.average == "micro":
            return float(self._ratio(self._right.sum(keepdims=True), self._predicted.sum(keepdims=True), self._wanted.sum(keepdims=True))[0])
        figures = self._ratio(self._right, self._predicted, self._wanted)
        if self.average == "binary":
            return float(figures[1]) if figures.size > 1 else 0.0
        if self.average == "weighted":
            return float(np.average(figures, weights=self._wanted))
        return float(figures[self._seen].mean())


class Precision(_ClassCounts):
    """Of the predictions of a class, the share that is right.

    average: "macro" is the mean over all classes that occur in targets or predictions, "weighted" weighs them by their occurrence in the targets, "micro"
    takes all classes together, "binary" is class 1 of two. A class without predictions counts as 0.
    threshold, ignore_index, class_axis and predictions: as in Accuracy. The definitions are those of scikit-learn (zero_division=0)."""

    def __init__(self, average: Average = "macro", *, threshold: float = 0.0, ignore_index: int | None = None, class_axis: int | None = None,
                 name: str = "precision") -> None:
        super().__init__(average, threshold, ignore_index, class_axis, name)

    def _ratio(self, right: np.ndarray, predicted: np.ndarray, wanted: np.ndarray) -> np.ndarray:
        return ratio(right, predicted)


class Recall(_ClassCounts):
    """Of the targets of a class, the share that was predicted. A class without targets counts as 0. Parameters: as in Precision."""

    def __init__(self, average: Average = "macro", *, threshold: float = 0.0, ignore_index: int | None = None, class_axis: int | None = None,
                 name: str = "recall") -> None:
        super().__init__(average, threshold, ignore_index, class_axis, name)

    def _ratio(self, right: np.ndarray, predicted: np.ndarray, wanted: np.ndarray) -> np.ndarray:
        return ratio(right, wanted)


class F1(_ClassCounts):
    """The harmonic mean of precision and recall of each class, averaged over classes. Parameters: as in Precision."""

    def __init__(self, average: Average = "macro", *, threshold: float = 0.0, ignore_index: int | None = None, class_axis: int | None = None,
                 name: str = "f1") -> None:
        super().__init__(average, threshold, ignore_index, class_axis, name)

    def _ratio(self, right: np.ndarray, predicted: np.ndarray, wanted: np.ndarray) -> np.ndarray:
        return ratio(2 * right, predicted + wanted)


class ConfusionMatrix(Metric):
    """Counts, or sums of weights, by target and predicted class.

    classes: the number of classes; None for as many as scores or labels show.
    threshold, ignore_index, class_axis and predictions: as in Accuracy.

    The figure in records is the share of the diagonal, which is the accuracy; the matrix itself is the attribute `matrix`.
    Raises LabelRangeError for more than `classes` classes, and for more than 4096."""

    def __init__(self, classes: int | None = None, *, threshold: float = 0.0, ignore_index: int | None = None, class_axis: int | None = None,
                 name: str = "confusion-matrix") -> None:
        if classes is not None and not 1 <= classes <= MAX_MATRIX_CLASSES:
            raise InvalidArgumentError(f"expected 1 to {MAX_MATRIX_CLASSES} classes, got {classes}")
        self.classes = classes
        self._rule = ClassRule(threshold, ignore_index, class_axis)
        super().__init__(name)

    def reset(self) -> None:
        self._matrix = np.zeros((self.classes or 0, self.classes or 0))
        self._weighted = False

    @property
    def matrix(self) -> np.ndarray:
        """The matrix [classes, classes], a copy: rows are targets, columns predictions; int64, or float64 once an update had weights."""
        return self._matrix.copy() if self._weighted else self._matrix.astype(np.int64)

    def update(self, predictions: np.ndarray, targets: np.ndarray, weights: np.ndarray | None = None) -> None:
        labels = self._rule.labels(predictions, targets, weights)
        size = self._size(labels)
        cells = counts(labels.targets * size + labels.predictions, labels.weights, size * size).reshape(size, size)
        self._matrix = grown(self._matrix, size) + cells
        self._weighted = self._weighted or weights is not None

    def _size(self, labels: Labels) -> int:
        needed = labels.classes
        if self.classes is not None and labels.targets.size:
            needed = int(max(labels.targets.max(), labels.predictions.max())) + 1
        limit = self.classes or MAX_MATRIX_CLASSES
        if needed > limit:
            raise LabelRangeError(f"expected at most {limit} classes in a confusion matrix, got {needed}")
        return self.classes or max(needed, len(self._matrix))

    def result(self) -> float:
        total = float(self._matrix.sum())
        return float(np.trace(self._matrix)) / total if total else float("nan")


def counts(labels: np.ndarray, weights: np.ndarray | None, size: int) -> np.ndarray:
    """Return the number or weight of each label, float64 [size]."""
    return np.bincount(labels.astype(np.intp), weights, size).astype(np.float64, copy=False)


def ratio(part: np.ndarray, whole: np.ndarray) -> np.ndarray:
    """Return part / whole, and 0 where whole is 0."""
    quotient = np.zeros(whole.shape)
    np.divide(part, whole, out=quotient, where=whole > 0)
    return quotient
