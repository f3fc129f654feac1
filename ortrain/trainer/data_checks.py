"""What is wrong with data in memory and can be known before the first step: shapes, and labels that are no classes of the model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ortrain.data import DataLoader
from ortrain.data.sources import RandomAccess
from ortrain.dtypes import numpy_dtype
from ortrain.errors import InputRankError, LabelRangeError, OrtrainError
from ortrain.ir import Model
from ortrain.ops.registry.shape_inference import infer
from ortrain.trainer.construction import ignored_label, label_losses
from ortrain.training.session import TrainingSession


def check_data(session: TrainingSession, loader: DataLoader, names: Sequence[str], *, training: bool) -> None:
    """Raise the error that a later batch of arrays in memory would raise: that of train_step or eval_step for shapes, LabelRangeError for labels.

    names: the inputs of the training or the eval model, in its order. Labels are read once; data that are not in memory are not read."""
    arrays = loader.source.in_memory if isinstance(loader.source, RandomAccess) else None
    if arrays is None:
        return
    given = dict(zip(loader.names, arrays, strict=True))
    model = session.training_model if training or session.eval_model is None else session.eval_model
    ranges = label_ranges(session.eval_model or session.training_model)
    for name, (classes, _) in ranges.items():
        if name in given and given[name].ndim > 1 and given[name].ndim == len(model.graph.types[name].shape or ()) + 1 and given[name].shape[-1] == classes:
            raise InputRankError(f"expected the number of a class for each sample in {name!r}, got {list(given[name].shape)}: of one-hot labels pass "
                                 "labels.argmax(-1), or train on shares of classes by loss_options={'soft_labels': True}")
    _check_shapes(session, loader, [given[name] for name in names], [model.graph.types[name].dtype for name in names], training)
    for name, (classes, ignored) in ranges.items():
        if name in given:
            _check_labels(name, given[name], classes, ignored)


def label_ranges(model: Model) -> dict[str, tuple[int, int]]:
    """Return input -> (number of classes, ignored label) for the inputs that are labels of a loss."""
    losses = label_losses(model)
    if not losses:
        return {}
    try:
        types = infer(model)
    except OrtrainError:                              # planning reports the error
        return {}
    shapes = {label: types[loss.inputs[0]].shape for label, loss in losses.items()}
    return {label: (shape[1], ignored_label(losses[label])) for label, shape in shapes.items()
            if shape is not None and len(shape) > 1 and isinstance(shape[1], int)}


def _check_shapes(session: TrainingSession, loader: DataLoader, arrays: Sequence[np.ndarray], dtypes: Sequence[str], training: bool) -> None:
    """Check the shapes of the first and of the last batch of an epoch."""
    if "string" in dtypes:
        return
    for count in sorted(loader.batch_sizes(), reverse=True):
        batch: list[Any] = [np.empty((count, *array.shape[1:]), numpy_dtype(dtype)) for array, dtype in zip(arrays, dtypes, strict=True)]
        session.check_inputs(*batch, training=training)


def _check_labels(name: str, labels: np.ndarray, classes: int, ignored: int) -> None:
    if labels.dtype.kind not in "iuf" or not labels.size or (labels.min() >= 0 and labels.max() < classes):
        return
    wrong = ((labels < 0) | (labels >= classes)) & (labels != ignored)
    if not wrong.any():
        return
    position = tuple(np.argwhere(wrong)[0])
    raise LabelRangeError(f"expected labels in {name!r} from 0 to {classes - 1}, since the model has {classes} scores, got {labels[position].item()} in sample "
                          f"{position[0]} ({ignored} stands for a label to ignore; a model gets a new last layer for other classes by num_classes)")
