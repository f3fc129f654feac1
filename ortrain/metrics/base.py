"""What every metric offers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np


class Metric(ABC):
    """A figure that is accumulated over all batches of an epoch.

    The result is that of the whole epoch in one batch, whatever the batches were; it is NaN as long as no sample has counted. An update that is refused
    changes nothing.

    name: what the figure is called in records and logs. higher_is_better: whether training wants to raise it.
    """

    name: str
    higher_is_better: bool = True

    def __init__(self, name: str) -> None:
        self.name = name
        self.reset()

    @abstractmethod
    def reset(self) -> None:
        """Forget all updates."""

    @abstractmethod
    def update(self, predictions: np.ndarray, targets: np.ndarray, weights: np.ndarray | None = None) -> None:
        """Add one batch.

        predictions: what the model computed; each metric says which shapes it takes. targets: the answers wanted, axis 0 is the sample axis.
        weights: None, or numbers >= 0, one per sample [n] or one per target.

        Raises InvalidArgumentError for shapes or weights that do not fit, ArgumentTypeError for dtypes that are not numbers, and LabelRangeError for a
        label that is not one of the classes."""

    @abstractmethod
    def result(self) -> float:
        """Return the figure over all updates since the last reset."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"


class RatioMetric(Metric):
    """A weighted mean: a sum over targets, divided by the sum of their weights."""

    def reset(self) -> None:
        self._sum = self._weight = 0.0

    def _add(self, values: np.ndarray, weights: np.ndarray | None) -> None:
        """Add values [n] with weights [n]; None weighs every value 1."""
        if weights is None:
            self._sum += float(values.sum(dtype=np.float64))
            self._weight += values.size
        else:
            self._sum += float(np.dot(values.astype(np.float64, copy=False), weights))
            self._weight += float(weights.sum())

    def result(self) -> float:
        return self._sum / self._weight if self._weight else float("nan")


def grown(array: np.ndarray, size: int) -> np.ndarray:
    """Return the array with zeros appended along every axis until each has `size` elements; the array itself if it is large enough."""
    missing: Any = max(0, size - array.shape[0])
    return np.pad(array, (0, missing)) if missing else array
