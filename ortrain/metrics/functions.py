"""Functions of targets and predictions, such as those of scikit-learn, as metrics."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np

from ortrain.errors import ArgumentTypeError, InvalidArgumentError
from ortrain.metrics.arrays import ClassRule, flat_weights, numbers
from ortrain.metrics.base import Metric

SMALLER_IS_BETTER = ("_error", "_loss", "_deviance")
LARGER_IS_BETTER = ("_score",)


class FunctionMetric(Metric):
    """A function(targets, predictions) -> float, called once with all samples of the epoch, which are kept until then.

    What the function receives follows from the targets' dtype:

    - integers or booleans are a classification: the function receives class labels, flat, int64: the class of the highest score, or, where there is one
      score per target, class 1 if it is above the threshold, 0 by default. With needs_scores=True it receives the model's output as it is.
    - floating-point numbers are a regression: the function receives the model's output as it is, unless a threshold is given, which makes it a binary
      classification.

    name: by default that of the function. higher_is_better: by default as scikit-learn names its functions: True for names that end in "_score", False for
    "_error", "_loss" and "_deviance". ignore_index, class_axis: as in Accuracy, for class labels only.
    Weights are passed as the keyword sample_weight.

    Raises ArgumentTypeError for what is not callable, InvalidArgumentError where higher_is_better is needed, and, on update, for weights that the
    function does not take."""

    def __init__(self, function: Callable[..., Any], name: str | None = None, *, higher_is_better: bool | None = None, needs_scores: bool = False,
                 threshold: float | None = None, ignore_index: int | None = None, class_axis: int | None = None) -> None:
        if not callable(function):
            raise ArgumentTypeError(f"expected a function of targets and predictions, got {type(function).__name__}")
        if needs_scores and (threshold is not None or ignore_index is not None):
            raise InvalidArgumentError("expected no threshold and no ignore_index with needs_scores=True, which passes predictions on as they are")
        self.function = function
        self.needs_scores = needs_scores
        self._threshold = threshold
        self._rule = ClassRule(threshold or 0.0, ignore_index, class_axis)
        called = str(getattr(function, "__name__", type(function).__name__))
        self.higher_is_better = direction(called) if higher_is_better is None else higher_is_better
        super().__init__(name or called)

    def reset(self) -> None:
        self._batches: list[tuple[np.ndarray, np.ndarray, np.ndarray | None]] = []

    def update(self, predictions: np.ndarray, targets: np.ndarray, weights: np.ndarray | None = None) -> None:
        if weights is not None and not _takes_weights(self.function):
            raise InvalidArgumentError(f"expected no weights for the metric {self.name!r}: its function has no parameter sample_weight")
        found, wanted = numbers(predictions, "predictions"), numbers(targets, "targets")
        if self._batches and (weights is None) != (self._batches[0][2] is None):
            raise InvalidArgumentError("expected weights in every update or in none")
        if not self.needs_scores and (wanted.dtype.kind in "biu" or self._threshold is not None):
            labels = self._rule.labels(found, wanted, weights)
            self._batches.append((labels.targets.copy(), labels.predictions.copy(), labels.weights))
            return
        if len(found) != len(wanted):
            raise InvalidArgumentError(f"expected as many predictions as targets, got {len(found)} and {len(wanted)}")
        # functions of scikit-learn take one weight per sample
        self._batches.append((wanted.copy(), found.copy(), flat_weights(weights, wanted.shape[:1])))

    def result(self) -> float:
        if not sum(len(targets) for targets, _, _ in self._batches):
            return float("nan")
        targets, predictions = (np.concatenate([batch[part] for batch in self._batches]) for part in (0, 1))
        weights = [batch[2] for batch in self._batches if batch[2] is not None]
        keywords = {"sample_weight": np.concatenate(weights)} if weights else {}
        value = self.function(targets, predictions, **keywords)
        if np.ndim(value) != 0:
            raise ArgumentTypeError(f"expected one number from the function of the metric {self.name!r}, got shape {list(np.shape(value))}")
        return float(value)


def direction(name: str) -> bool:
    """Return whether a function is better when higher, as scikit-learn names its functions. Raises InvalidArgumentError when the name does not tell."""
    if name.endswith(LARGER_IS_BETTER):
        return True
    if name.endswith(SMALLER_IS_BETTER):
        return False
    raise InvalidArgumentError(f"expected higher_is_better=True or False: the name {name!r} ends in neither of {[*LARGER_IS_BETTER, *SMALLER_IS_BETTER]}")


def _takes_weights(function: Callable[..., Any]) -> bool:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return False
    return any(p.name == "sample_weight" or p.kind is p.VAR_KEYWORD for p in parameters)
