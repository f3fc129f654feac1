"""From a model's scores to classes with their names and probabilities."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ortrain.runs.folder import RunSettings
from ortrain.trainer import Trainer

SOFTMAX_LOSSES = ("cross-entropy", "focal")
"""Losses whose scores become probabilities by a softmax."""


@dataclass(frozen=True, slots=True)
class ClassPredictions:
    """Predicted classes. numbers: int64 [n]. names: of the same classes. probabilities: of the predicted classes, float64 [n]; None where the loss does not
    make scores probabilities. class_names: of all classes. output_width: scores per sample."""

    numbers: np.ndarray
    names: list[Any]
    probabilities: np.ndarray | None
    class_names: Sequence[Any]
    output_width: int


def class_predictions(scores: np.ndarray, trainer: Trainer, settings: RunSettings) -> ClassPredictions | None:
    """Return the classes for scores [n, classes]; None where the run does not predict one of some classes per sample."""
    target = trainer.roles.dtypes.get(trainer.roles.targets[0], "")
    if scores.ndim != 2 or scores.shape[1] < 2 or not target.startswith(("int", "uint")):
        return None
    classes = settings.preprocessing.classes
    names = classes if classes is not None else range(scores.shape[1])
    numbers = scores.argmax(axis=1)
    probabilities = class_probabilities(scores, settings.options.get("loss"))
    chosen = None if probabilities is None else probabilities[np.arange(len(numbers)), numbers]
    return ClassPredictions(numbers, [names[number] if number < len(names) else int(number) for number in numbers], chosen, names, scores.shape[1])


def class_probabilities(scores: np.ndarray, loss: str | None) -> np.ndarray | None:
    """Return float64 [n, classes], which sum to 1 in every row; None where the loss does not tell."""
    if loss == "nll":
        found: np.ndarray = np.exp(scores.astype(np.float64))
        return found
    if loss not in SOFTMAX_LOSSES:
        return None
    shifted = np.exp(scores.astype(np.float64) - scores.max(axis=1, keepdims=True))
    return np.asarray(shifted / shifted.sum(axis=1, keepdims=True))
