"""Evaluation and prediction over a data set."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ortrain.data import DataLoader
from ortrain.errors import InvalidArgumentError
from ortrain.trainer.construction import InputRoles
from ortrain.trainer.loop import RunningMetrics
from ortrain.training.session import TrainingSession


def evaluate_batches(session: TrainingSession, loader: DataLoader, running: RunningMetrics, roles: InputRoles) -> dict[str, float]:
    """Return the mean loss and the metrics over all batches of a loader. running: begins with them. Raises the errors of eval_step."""
    order = [loader.names.index(name) for name in roles.evaluation]
    predictions = session.output_names(training=False).index(roles.predictions) if running.metrics and roles.predictions else 0
    target = loader.names.index(roles.targets[0])
    for batch in loader.epoch(0):
        if batch:                                           # a worker's part of a small batch may be none
            results = session.eval_step(*(batch[position] for position in order))
            running.add(float(results[0]), len(batch[target]), results[predictions] if predictions else None, batch[target])
        running.combine()
    running.gather()
    if not running.samples:
        raise InvalidArgumentError("expected at least one sample to evaluate, got none")
    return running.results()


def predict_batches(session: TrainingSession, loader: DataLoader, output_names: Sequence[str] | None) -> list[np.ndarray]:
    """Return the outputs of the forward model over all batches, joined along their first axis. Raises the errors of predict."""
    parts = [session.predict(*batch, output_names=output_names) for batch in loader.epoch(0)]
    if not parts:
        raise InvalidArgumentError("expected at least one sample to predict, got none")
    return [np.concatenate(arrays) if len(arrays) > 1 else arrays[0] for arrays in zip(*parts, strict=True)]
