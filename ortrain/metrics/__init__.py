"""Metrics, accumulated over whole epochs. They need NumPy only; `get` returns one by its name."""

from ortrain.metrics.base import Metric
from ortrain.metrics.classification import F1, Accuracy, ConfusionMatrix, Perplexity, Precision, Recall, TopKAccuracy
from ortrain.metrics.functions import FunctionMetric
from ortrain.metrics.names import get, get_all, higher_is_better
from ortrain.metrics.ranking import AUROC
from ortrain.metrics.regression import R2, MeanAbsoluteError, MeanSquaredError, RootMeanSquaredError

__all__ = ["AUROC", "F1", "R2", "Accuracy", "ConfusionMatrix", "FunctionMetric", "MeanAbsoluteError", "MeanSquaredError", "Metric", "Perplexity",
           "Precision", "Recall", "RootMeanSquaredError", "TopKAccuracy", "get", "get_all", "higher_is_better"]
