"""The area under the receiver operating characteristic."""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np

from ortrain.errors import InvalidArgumentError
from ortrain.metrics.arrays import ClassRule
from ortrain.metrics.base import Metric

ClassAverage = Literal["macro", "weighted"]


class AUROC(Metric):
    """The area under the receiver operating characteristic, of two classes or, one class against the rest, of several.

    It is the probability that a target of the class has a higher score than one of another class, ties counting half (Mann-Whitney U statistic), and is
    computed exactly from the scores of all updates, which are kept until reset.

    average: of several classes, "macro" is the mean, "weighted" weighs them by their occurrence in the targets. Classes that all targets or none belong to
    do not count. from_logits: predictions of several classes are logits, of which the softmax is taken; False for probabilities.
    ignore_index, class_axis: as in Accuracy. Predictions are scores of every class, or of class 1. The result is NaN with targets of a single class."""

    def __init__(self, average: ClassAverage = "macro", *, from_logits: bool = True, ignore_index: int | None = None, class_axis: int | None = None,
                 name: str = "auroc") -> None:
        if average not in get_args(ClassAverage):
            raise InvalidArgumentError(f"expected average to be one of {list(get_args(ClassAverage))}, got {average!r}")
        self.average = average
        self.from_logits = from_logits
        self._rule = ClassRule(0.0, ignore_index, class_axis)
        super().__init__(name)

    def reset(self) -> None:
        self._scores: list[np.ndarray] = []
        self._targets: list[np.ndarray] = []
        self._weights: list[np.ndarray] = []

    def update(self, predictions: np.ndarray, targets: np.ndarray, weights: np.ndarray | None = None) -> None:
        batch = self._rule.scores(predictions, targets, weights)
        if self._scores and batch.scores.shape[1] != self._scores[0].shape[1]:
            raise InvalidArgumentError(f"expected scores of {self._scores[0].shape[1]} classes as before, got {batch.scores.shape[1]}")
        # the model may overwrite its outputs in the next step
        self._scores.append(batch.scores.copy())
        self._targets.append(batch.targets.copy())
        self._weights.append(np.ones(batch.targets.size) if batch.weights is None else batch.weights)

    def result(self) -> float:
        if not self._scores:
            return float("nan")
        scores, targets, weights = np.concatenate(self._scores), np.concatenate(self._targets), np.concatenate(self._weights)
        if scores.shape[1] == 1:
            return area(scores[:, 0], targets == 1, weights)
        columns = softmax(scores) if self.from_logits else scores
        if columns.shape[1] == 2:
            # the difference ranks like the probability of class 1, which rounds to 1 for many large logits
            single = scores[:, 1].astype(np.float64) - scores[:, 0] if self.from_logits else scores[:, 1]
            return area(single, targets == 1, weights)
        areas = np.array([area(columns[:, label], targets == label, weights) for label in range(columns.shape[1])])
        counted = ~np.isnan(areas)
        if not counted.any():
            return float("nan")
        if self.average == "macro":
            return float(areas[counted].mean())
        return float(np.average(areas[counted], weights=np.bincount(targets.astype(np.intp), weights, columns.shape[1])[counted]))


def softmax(logits: np.ndarray) -> np.ndarray:
    """Return the softmax over the last axis in float64."""
    shifted = logits.astype(np.float64)
    shifted -= shifted.max(axis=-1, keepdims=True)
    np.exp(shifted, out=shifted)
    shifted /= shifted.sum(axis=-1, keepdims=True)
    return shifted


def area(scores: np.ndarray, positive: np.ndarray, weights: np.ndarray) -> float:
    """Return the weighted probability that a positive sample scores above a negative one, ties counting half; NaN without samples of both kinds.

    scores [n], positive bool [n], weights float64 [n]."""
    order = np.argsort(scores, kind="stable")
    ranked, hits = scores[order], positive[order]
    starts = np.flatnonzero(np.r_[True, ranked[1:] != ranked[:-1]]) if ranked.size else np.zeros(0, np.int64)
    if not starts.size:
        return float("nan")
    above = np.add.reduceat(np.where(hits, weights[order], 0.0), starts)
    below = np.add.reduceat(np.where(hits, 0.0, weights[order]), starts)
    pairs = above.sum() * below.sum()
    if not pairs > 0:
        return float("nan")
    return float(np.dot(above, np.cumsum(below) - below / 2) / pairs)
