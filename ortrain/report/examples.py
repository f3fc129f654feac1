"""What a run does on its validation data: figures, confusion matrix, and the examples that are most wrong."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ortrain.data import DataLoader
from ortrain.data.columns import all_columns
from ortrain.data.images import ImageFolder
from ortrain.data.sources import RandomAccessPart
from ortrain.metrics import ConfusionMatrix
from ortrain.runs import Run
from ortrain.runs.images import ImagePreprocessing
from ortrain.runs.predictions import class_probabilities
from ortrain.runs.tables import TablePreprocessing
from ortrain.trainer import Trainer

WORST = 12
"""Examples that are shown."""
MAX_CLASSES = 1000
MAX_FEATURES = 8
"""Columns of a table that are shown of an example."""


@dataclass(frozen=True, slots=True)
class Example:
    """A sample that the run predicts badly.

    name: the file or the row. target, prediction: in words. error: in words. image: its file, None for tables. features: (column, value) of a table."""

    name: str
    target: str
    prediction: str
    error: str
    image: Path | None = None
    features: list[tuple[str, str]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Findings:
    """What an evaluation found. what: the data in words. confusion: int64 [classes, classes], rows are targets; None for other targets."""

    what: str
    samples: int
    figures: dict[str, float]
    classes: list[str]
    confusion: np.ndarray | None
    examples: list[Example]


def examined(run: Run) -> Findings:
    """Evaluate a run on its validation data. Raises ArtifactNotFoundError or InvalidStateError when there are none any more, and the errors of reading."""
    with run.trainer(metrics=run.settings.options.get("metrics") or "auto") as trainer:
        loader, what = run.validation(trainer)
        figures = trainer.evaluate(loader)
        scores, targets = _scores(trainer, loader)
    if scores is None:
        return Findings(what, loader.samples or len(targets), figures, [], None, [])
    known = run.settings.preprocessing.classes
    is_class = targets.ndim == 1 and targets.dtype.kind in "iu" and scores.ndim == 2 and 2 <= scores.shape[1] <= MAX_CLASSES
    classes = [str(name) for name in (known if known is not None else range(scores.shape[1] if is_class else 0))]
    confusion = _confusion(scores, targets) if is_class else None
    return Findings(what, len(targets), figures, classes, confusion, _worst(run, loader, scores, targets, classes, is_class))


def _scores(trainer: Trainer, loader: DataLoader) -> tuple[np.ndarray | None, np.ndarray]:
    """Return what metrics compare: (predictions, targets) of all samples; None for predictions of different shapes."""
    roles, session = trainer.roles, trainer.session
    order = [loader.names.index(name) for name in roles.evaluation]
    output = session.output_names(training=False).index(roles.predictions) if roles.predictions else 0
    scores, targets = [], []
    for batch in loader.epoch(0):
        results = session.eval_step(*(batch[place] for place in order))
        scores.append(results[output])
        targets.append(batch[loader.names.index(roles.targets[0])])
    if not roles.predictions or len({array.shape[1:] for array in scores}) > 1:
        return None, targets[0]
    return np.concatenate(scores), np.concatenate(targets)


def _confusion(scores: np.ndarray, targets: np.ndarray) -> np.ndarray:
    matrix = ConfusionMatrix(scores.shape[1])
    matrix.update(scores, targets)
    return matrix.matrix


def _worst(run: Run, loader: DataLoader, scores: np.ndarray, targets: np.ndarray, classes: Sequence[str], is_class: bool) -> list[Example]:
    if is_class:
        probabilities = class_probabilities(scores, run.settings.options.get("loss"))
        certain = probabilities if probabilities is not None else scores.astype(np.float64)
        inside = np.clip(targets, 0, scores.shape[1] - 1)
        badness = certain.max(axis=1) - certain[np.arange(len(targets)), inside]
    elif scores.size == targets.size:
        badness = np.abs(scores.astype(np.float64).reshape(len(targets), -1) - targets.reshape(len(targets), -1)).mean(axis=1)
    else:
        return []
    worst = [int(number) for number in np.argsort(-badness, kind="stable")[:WORST] if badness[number] > 0]
    rows = loader.source.rows if isinstance(loader.source, RandomAccessPart) else np.arange(len(targets))
    describe = _descriptions(run, rows[worst])
    found = []
    for place, number in enumerate(worst):
        name, image, features = describe[place]
        if is_class:
            predicted = int(scores[number].argmax())
            target, prediction = (classes[label] if 0 <= label < len(classes) else str(label) for label in (int(targets[number]), predicted))
            error = "" if probabilities is None else f"{probabilities[number, predicted]:.0%}"
        else:
            target, prediction = _short(targets[number]), _short(scores[number])
            error = f"off by {badness[number]:.4g}"
        found.append(Example(name, target, prediction, error, image, features))
    return found


def _short(values: np.ndarray) -> str:
    flat = np.ravel(values)
    return ", ".join(f"{value:.4g}" for value in flat[:4]) + (", …" if len(flat) > 4 else "")


def _descriptions(run: Run, rows: np.ndarray) -> list[tuple[str, Path | None, list[tuple[str, str]]]]:
    """Return (name, image, features) of samples by their numbers in the data file."""
    settings = run.settings
    path = settings.validation.path or settings.data
    preprocessing: Any = settings.preprocessing
    if isinstance(preprocessing, ImagePreprocessing):
        files = ImageFolder(path, preprocessing.size).files
        return [(str(files[row].relative_to(path)), files[row], []) for row in rows.tolist()]
    if isinstance(preprocessing, TablePreprocessing):
        columns = all_columns(path)
        encoding = preprocessing.encoding
        names = [*(column.name for column in encoding.numbers), *(column.name for column in encoding.categories)][:MAX_FEATURES]
        return [(f"row {row}", None, [(name, _cell(columns[name][row])) for name in names]) for row in rows.tolist()]
    return [(f"sample {row}", None, []) for row in rows.tolist()]


def _cell(value: Any) -> str:
    if value is None or value != value:
        return "–"
    return f"{value:.4g}" if isinstance(value, float | np.floating) else str(value)
