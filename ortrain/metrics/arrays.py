"""Checks and conversions of predictions, targets and weights that metrics share."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from ortrain.errors import ArgumentTypeError, InvalidArgumentError, LabelRangeError

BLOCK = 1 << 16
"""Elements of a block of scores."""


def numbers(values: Any, what: str) -> np.ndarray:
    """Return the values as an array of numbers with a sample axis. `what` names them in errors."""
    array = np.asarray(values)
    if array.dtype.name == "bfloat16":
        array = array.astype(np.float32)
    if array.dtype.kind not in "biuf":
        raise ArgumentTypeError(f"expected numbers as {what}, got dtype {array.dtype}")
    if array.ndim == 0:
        raise InvalidArgumentError(f"expected {what} with a sample axis, got a single number")
    return array


def flat_weights(weights: Any, shape: tuple[int, ...]) -> np.ndarray | None:
    """Return weights [n] or [n, ...] as float64, one per element of targets of the given shape, flat; None for None."""
    if weights is None:
        return None
    array = numbers(weights, "weights").astype(np.float64)
    if array.shape not in (shape, shape[:1]):
        raise InvalidArgumentError(f"expected weights of shape {[*shape[:1]]} or {[*shape]}, got {[*array.shape]}")
    if not (np.isfinite(array).all() and (array >= 0).all()):
        raise InvalidArgumentError(f"expected weights that are finite and >= 0, got values from {array.min()} to {array.max()}")
    if array.shape != shape:
        array = np.broadcast_to(array.reshape(-1, *[1] * (len(shape) - 1)), shape)
    return array.reshape(-1)


def same_shape(predictions: Any, targets: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return predictions and targets as arrays of one shape. Predictions may have one more axis, of size 1, at the end.

    Other shapes are refused: NumPy would broadcast [n, 1] against [n] to [n, n]."""
    found, wanted = numbers(predictions, "predictions"), numbers(targets, "targets")
    if found.shape == (*wanted.shape, 1):
        found = found.reshape(wanted.shape)
    if found.shape != wanted.shape:
        raise InvalidArgumentError(f"expected predictions of the targets' shape {[*wanted.shape]}, got {[*found.shape]}")
    return found, wanted


def integers(values: np.ndarray, what: str) -> np.ndarray:
    """Return the values as int64. Floating-point values must be whole numbers, as in the targets of a binary cross-entropy."""
    if values.dtype.kind == "f":
        if not (np.isfinite(values).all() and (values == np.rint(values)).all()):
            raise InvalidArgumentError(f"expected class labels as {what}, got numbers that are not whole")
        return values.astype(np.int64)
    return values.astype(np.int64, copy=False)


@dataclass(frozen=True, slots=True)
class Labels:
    """The targets of one batch that count, flat, beside what was predicted for them."""

    targets: np.ndarray
    """int64 [m], values in [0, classes)."""
    predictions: np.ndarray
    """int64 [m], values in [0, classes)."""
    weights: np.ndarray | None
    """float64 [m]."""
    classes: int


@dataclass(frozen=True, slots=True)
class Scores:
    """The targets of one batch that count, flat, beside the scores of every class."""

    targets: np.ndarray
    """int64 [m], values in [0, classes)."""
    scores: np.ndarray
    """[m, classes], a floating-point dtype; [m, 1] for binary targets: the score of class 1."""
    weights: np.ndarray | None
    """float64 [m]."""


@dataclass(frozen=True, slots=True)
class ClassRule:
    """How predictions and targets of a classification are read.

    Targets are class labels [n, ...]: integers, or whole numbers in a floating-point dtype. Predictions are one of

    - scores of every class: [n, classes, ...] or [n, ..., classes]. Where both readings fit, axis 1 is the class axis, as in SoftmaxCrossEntropyLoss of ONNX;
      class_axis decides otherwise;
    - scores of class 1 in a binary classification: floating-point numbers of the targets' shape, with or without a last axis of size 1. The predicted class
      is 1 where the score is above the threshold;
    - class labels: integers or booleans of the targets' shape.

    Targets equal to ignore_index do not count."""

    threshold: float = 0.0
    ignore_index: int | None = None
    class_axis: int | None = None

    def labels(self, predictions: Any, targets: Any, weights: Any) -> Labels:
        """Return the predicted classes: the first of those with the highest score."""
        found, wanted = numbers(predictions, "predictions"), numbers(targets, "targets")
        axis = self._class_axis(found, wanted)
        factors = flat_weights(weights, wanted.shape)
        answers = integers(wanted, "targets").reshape(-1)
        if axis is not None and found.shape[axis] > 1:
            classes = found.shape[axis]
            guesses = found.argmax(axis=axis)
            # argmax returns the first NaN where there is one
            if found.dtype.kind == "f" and np.isnan(np.take_along_axis(found, np.expand_dims(guesses, axis), axis)).any():
                raise InvalidArgumentError("expected scores, got NaN in the predictions")
            guesses = guesses.reshape(-1)
        else:
            classes, guesses = self._compared(found.reshape(-1))
        return self._counted_labels(answers, guesses, factors, classes)

    def _compared(self, found: np.ndarray) -> tuple[int | None, np.ndarray]:
        """Return (2, classes by threshold) of scores of class 1, or (None, labels) of labels."""
        if found.dtype.kind == "f":
            if found.size and np.isnan(found.min()):
                raise InvalidArgumentError("expected scores, got NaN in the predictions")
            return 2, (found > self.threshold).astype(np.int64)
        labels = integers(found, "predictions")
        if labels.size and labels.min() < 0:
            raise LabelRangeError(f"expected class labels >= 0 as predictions, got {labels.min()}")
        return None, labels

    def _counted_labels(self, answers: np.ndarray, guesses: np.ndarray, factors: np.ndarray | None, classes: int | None) -> Labels:
        counted = self._counted(answers)
        if counted is not None:
            answers, guesses = answers[counted], guesses[counted]
            factors = None if factors is None else factors[counted]
        if classes is None:
            classes = int(max(answers.max(), guesses.max())) + 1 if answers.size else 0
        check_range(answers, classes)
        return Labels(answers, guesses, factors, classes)

    def scores(self, predictions: Any, targets: Any, weights: Any) -> Scores:
        """Return the scores of every class, the class axis last. Class labels in place of scores are refused."""
        found, wanted = numbers(predictions, "predictions"), numbers(targets, "targets")
        if found.dtype.kind != "f":
            raise ArgumentTypeError(f"expected floating-point scores as predictions, got dtype {found.dtype}")
        axis = self._class_axis(found, wanted)
        factors = flat_weights(weights, wanted.shape)
        answers = integers(wanted, "targets").reshape(-1)
        flat = found.reshape(-1, 1) if axis is None else np.moveaxis(found, axis, -1).reshape(answers.size, found.shape[axis])
        counted = self._counted(answers)
        if counted is not None:
            answers, flat = answers[counted], flat[counted]
            factors = None if factors is None else factors[counted]
        # the minimum of numbers among which is a NaN is NaN
        if flat.size and np.isnan(flat.min()):
            raise InvalidArgumentError("expected scores, got NaN in the predictions")
        check_range(answers, max(2, flat.shape[1]))
        return Scores(answers, flat, factors)

    def _counted(self, answers: np.ndarray) -> np.ndarray | None:
        """Return which targets count, or None if all do."""
        if self.ignore_index is None:
            return None
        counted: np.ndarray = answers != self.ignore_index
        return None if counted.all() else counted

    def _class_axis(self, found: np.ndarray, wanted: np.ndarray) -> int | None:
        """Return the axis that predictions have and targets do not, or None when the shapes are equal."""
        if found.shape == wanted.shape:
            return None
        possible = [1, found.ndim - 1] if self.class_axis is None else [self.class_axis % max(1, found.ndim)]
        for axis in possible:
            if found.ndim == wanted.ndim + 1 and found.shape[:axis] + found.shape[axis + 1 :] == wanted.shape and axis > 0:
                return axis
        where = "classes in axis 1 or in the last axis" if self.class_axis is None else f"classes in axis {self.class_axis}"
        raise InvalidArgumentError(f"expected predictions of the targets' shape {[*wanted.shape]}, or with {where} besides, got {[*found.shape]}")


def row_blocks(rows: int, columns: int) -> Iterator[slice]:
    """Yield slices of rows that have BLOCK elements or one row each, so that temporary arrays stay in the cache."""
    step = max(1, BLOCK // max(1, columns))
    for start in range(0, rows, step):
        yield slice(start, start + step)


def check_range(labels: np.ndarray, classes: int) -> None:
    """Refuse labels outside of [0, classes)."""
    if labels.size and (labels.min() < 0 or labels.max() >= classes):
        wrong = int(labels.min() if labels.min() < 0 else labels.max())
        raise LabelRangeError(f"expected targets from 0 to {classes - 1}, got {wrong}")
