"""Metrics of regressions."""

from __future__ import annotations

import math

import numpy as np

from ortrain.errors import InvalidArgumentError
from ortrain.metrics.arrays import flat_weights, same_shape
from ortrain.metrics.base import Metric, RatioMetric


class _MeanError(RatioMetric):
    """A mean over all elements of the targets. Predictions have the targets' shape, or one more axis of size 1 at the end."""

    higher_is_better = False

    def update(self, predictions: np.ndarray, targets: np.ndarray, weights: np.ndarray | None = None) -> None:
        found, wanted = same_shape(predictions, targets)
        factors = flat_weights(weights, wanted.shape)
        self._add(self._error(found.astype(np.float64) - wanted).reshape(-1), factors)

    def _error(self, difference: np.ndarray) -> np.ndarray:
        raise NotImplementedError


class MeanAbsoluteError(_MeanError):
    """The mean of |prediction - target| over all elements."""

    def __init__(self, *, name: str = "mean-absolute-error") -> None:
        super().__init__(name)

    def _error(self, difference: np.ndarray) -> np.ndarray:
        error: np.ndarray = np.abs(difference)
        return error


class MeanSquaredError(_MeanError):
    """The mean of (prediction - target)² over all elements."""

    def __init__(self, *, name: str = "mean-squared-error") -> None:
        super().__init__(name)

    def _error(self, difference: np.ndarray) -> np.ndarray:
        error: np.ndarray = np.square(difference)
        return error


class RootMeanSquaredError(MeanSquaredError):
    """The square root of the mean squared error over all elements; with several outputs, the root of their common mean."""

    def __init__(self, *, name: str = "root-mean-squared-error") -> None:
        super().__init__(name=name)

    def result(self) -> float:
        return math.sqrt(super().result())


class R2(Metric):
    """The coefficient of determination: 1 - (sum of squared residuals) / (sum of squared deviations of the targets from their mean).

    With several outputs, axes 1 and up, it is the mean over outputs. An output whose targets are all equal counts 1 if every prediction is exact, else 0,
    as in scikit-learn. The result is NaN for fewer than two samples. Weights are one per sample."""

    def __init__(self, *, name: str = "r2") -> None:
        super().__init__(name)

    def reset(self) -> None:
        self._samples = 0
        self._weight = 0.0
        self._origin = self._mean = self._deviation = self._residual = np.zeros(0)

    def update(self, predictions: np.ndarray, targets: np.ndarray, weights: np.ndarray | None = None) -> None:
        found, wanted = same_shape(predictions, targets)
        wanted_rows = wanted.reshape(len(wanted), -1).astype(np.float64)
        found_rows = found.reshape(wanted_rows.shape).astype(np.float64)
        factors = flat_weights(weights, wanted.shape[:1])
        if self._samples and wanted_rows.shape[1] != self._mean.size:
            raise InvalidArgumentError(f"expected {self._mean.size} outputs per sample as before, got {wanted_rows.shape[1]}")
        if len(wanted) == 0:
            return
        if not self._samples:
            self._origin = wanted_rows[0].copy()
            self._mean = self._deviation = self._residual = np.zeros(self._origin.size)
        self._merge(found_rows, wanted_rows, np.ones(len(wanted)) if factors is None else factors)
        self._samples += len(wanted)

    def _merge(self, found: np.ndarray, wanted: np.ndarray, factors: np.ndarray) -> None:
        """Add rows by the pairwise update of Chan, Golub and LeVeque (1983). Targets are counted from the first one, so that equal targets have a deviation
        of exactly 0."""
        weight = float(factors.sum())
        if weight == 0:
            return
        shifted = wanted - self._origin
        mean = factors @ shifted / weight
        total = self._weight + weight
        step = mean - self._mean
        self._deviation = self._deviation + factors @ np.square(shifted - mean) + np.square(step) * (self._weight * weight / total)
        self._residual = self._residual + factors @ np.square(wanted - found)
        self._mean = self._mean + step * (weight / total)
        self._weight = total

    def result(self) -> float:
        if self._samples < 2 or self._weight == 0:
            return float("nan")
        varied = self._deviation > 0
        shares = np.divide(self._residual, self._deviation, out=np.where(self._residual > 0, 1.0, 0.0), where=varied)
        return float(np.mean(1 - shares))
