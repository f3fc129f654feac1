"""Metrics by name."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import partial
from inspect import signature
from typing import Any

from ortrain.errors import ArgumentTypeError, InvalidArgumentError
from ortrain.metrics.base import Metric
from ortrain.metrics.classification import F1, Accuracy, ConfusionMatrix, Perplexity, Precision, Recall, TopKAccuracy
from ortrain.metrics.functions import FunctionMetric, direction
from ortrain.metrics.ranking import AUROC
from ortrain.metrics.regression import R2, MeanAbsoluteError, MeanSquaredError, RootMeanSquaredError

METRICS: dict[str, Callable[..., Metric]] = {
    "accuracy": Accuracy, "precision": Precision, "recall": Recall, "f1": F1, "auroc": AUROC, "confusion-matrix": ConfusionMatrix, "perplexity": Perplexity,
    "mean-absolute-error": MeanAbsoluteError, "mae": MeanAbsoluteError, "mean-squared-error": MeanSquaredError, "mse": MeanSquaredError,
    "root-mean-squared-error": RootMeanSquaredError, "rmse": RootMeanSquaredError, "r2": R2,
    **{f"{name}-{average}": partial(kind, average) for name, kind in (("precision", Precision), ("recall", Recall), ("f1", F1))
       for average in ("macro", "micro", "weighted", "binary")},
}
TOP_K = re.compile(r"top-([1-9]\d{0,5})")


def get(metric: str | Metric | Callable[..., Any], ignore_index: int | None = None) -> Metric:
    """Return a metric by its name, with default settings; a Metric itself; or a function(targets, predictions) as a FunctionMetric.

    ignore_index: the label of targets that do not count, for a metric of class labels that is given by its name. The metric is called what it was asked for
    by. Raises InvalidArgumentError, which lists the names, for an unknown one, and ArgumentTypeError."""
    if isinstance(metric, Metric):
        return metric
    if isinstance(metric, str):
        match = TOP_K.fullmatch(metric)
        if match:
            return TopKAccuracy(int(match[1]), ignore_index=ignore_index)
        if metric not in METRICS:
            raise InvalidArgumentError(f"expected a metric among {', '.join(sorted(METRICS))} and top-K (top-5, for example), got {metric!r}")
        made = METRICS[metric]
        return made(name=metric) if ignore_index is None or "ignore_index" not in signature(made).parameters else made(name=metric, ignore_index=ignore_index)
    if callable(metric) and not isinstance(metric, type):
        return FunctionMetric(metric)
    raise ArgumentTypeError(f"expected the name of a metric, a Metric or a function, got {metric!r}")


def get_all(metrics: Iterable[str | Metric | Callable[..., Any]], ignore_index: int | None = None) -> list[Metric]:
    """Return several metrics, each as get does. Raises InvalidArgumentError when two have the same name, or one is named "loss"."""
    if isinstance(metrics, str):
        raise ArgumentTypeError(f"expected a sequence of metrics, got the str {metrics!r}")
    found = [get(metric, ignore_index) for metric in metrics]
    names = ["loss", *(metric.name for metric in found)]
    for name in names:
        if names.count(name) > 1:
            raise InvalidArgumentError(f"expected metrics of different names, none of them 'loss', got {names[1:]}")
    return found


def higher_is_better(name: str) -> bool:
    """Return whether training wants to raise the metric of this name: one that get knows, or a function as scikit-learn names them.

    Raises InvalidArgumentError when the name does not tell."""
    return get(name).higher_is_better if name in METRICS or TOP_K.fullmatch(name) else direction(name)
