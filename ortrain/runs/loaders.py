"""Loaders for training, validation, evaluation and prediction on files, each with the preprocessing of the run."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from ortrain.data import DataLoader, as_loader, split
from ortrain.data.files import kind_of
from ortrain.data.sources import RandomAccess
from ortrain.errors import InvalidArgumentError
from ortrain.ir import Model
from ortrain.runs.images import ImagePreprocessing
from ortrain.runs.preprocessing import DataOptions, ModelInputs, Preprocessing
from ortrain.runs.tables import ArrayPreprocessing, TablePreprocessing
from ortrain.trainer import Trainer
from ortrain.trainer.construction import InputRoles
from ortrain.trainer.data_checks import check_data
from ortrain.trainer.trainer import EVALUATION_BATCH_SIZE


@dataclass(frozen=True, slots=True)
class Split:
    """Where validation data come from: a share of the samples, chosen by the seed, or a file of their own. Neither means that there are none."""

    share: float = 0.0
    path: str | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.share < 1:
            raise InvalidArgumentError(f"expected a share of at least 0 and below 1 for validation, got {self.share}")

    @property
    def has_samples(self) -> bool:
        """Whether there are validation data."""
        return bool(self.share) or self.path is not None

    @classmethod
    def of(cls, text: str, seed: int) -> Split:
        """Return the split for a share or a path."""
        try:
            share = float(text)
        except ValueError:
            kind_of(text)
            return cls(path=os.path.abspath(text), seed=seed)
        return cls(share=share, seed=seed)

    def to_dict(self) -> dict[str, Any]:
        """Return the split as JSON can hold it."""
        return asdict(self)


def fit_preprocessing(path: str | os.PathLike[str], inputs: ModelInputs, options: DataOptions, held_out: Split) -> Preprocessing:
    """Return the preprocessing that training data need. Raises ArtifactNotFoundError without a file, InvalidArgumentError for one that does not fit."""
    kind = kind_of(path)
    if kind == "folder":
        return ImagePreprocessing.fit(path, inputs, options)
    if kind in (".csv", ".parquet"):
        return TablePreprocessing.fit(path, inputs, options, held_out.share, held_out.seed)
    if kind != ".npz":
        raise InvalidArgumentError(f"expected a folder of images, or a file of named arrays or columns (.npz, .csv or .parquet), got {os.fspath(path)!r}")
    return ArrayPreprocessing(options.target)


def restore_preprocessing(values: Mapping[str, Any]) -> Preprocessing:
    """Return the preprocessing that its to_dict described. Raises InvalidArgumentError for anything else."""
    kinds: dict[str, type[Any]] = {kind.kind: kind for kind in (ArrayPreprocessing, ImagePreprocessing, TablePreprocessing)}
    try:
        made: Preprocessing = kinds[values["kind"]].restored({name: value for name, value in values.items() if name != "kind"})
    except (KeyError, TypeError) as error:
        raise InvalidArgumentError(f"expected the description of a preprocessing, got one that cannot be read: {error!r}") from error
    return made


@dataclass(frozen=True, slots=True)
class TrainingData:
    """The loaders of a run."""

    training: DataLoader
    validation: DataLoader | None

    @classmethod
    def open(cls, preprocessing: Preprocessing, path: str | os.PathLike[str], trainer: Trainer, held_out: Split, batch_size: int, seed: int) -> TrainingData:
        """Return loaders for training and validation data. Classes have the same shares in both parts where the target is one class per sample."""
        roles = trainer.roles
        whole = labelled_loader(preprocessing, path, roles.training, roles.dtypes, batch_size, seed=seed, training=True)
        evaluation_size = fixed_batch(trainer.session.training_model, roles.training) or max(batch_size, EVALUATION_BATCH_SIZE)
        if held_out.path is not None:
            return cls(whole, labelled_loader(preprocessing, held_out.path, roles.evaluation, roles.dtypes, evaluation_size))
        if not held_out.share:
            return cls(whole, None)
        training, _ = _parts(whole, held_out)
        return cls(training, validation_loader(preprocessing, path, roles, held_out, evaluation_size))


def validation_loader(preprocessing: Preprocessing, path: str | os.PathLike[str], roles: InputRoles, held_out: Split,
                      batch_size: int = EVALUATION_BATCH_SIZE) -> DataLoader:
    """Return a loader over the samples of a data file that a run holds out, in the order of the file."""
    _, part = _parts(labelled_loader(preprocessing, path, roles.evaluation, roles.dtypes, batch_size), held_out)
    return part


def _parts(loader: DataLoader, held_out: Split) -> tuple[DataLoader, DataLoader]:
    labels = class_labels(loader)
    training, validation = split(loader, held_out.share, held_out.seed, False if labels is None else labels)
    return training, validation


def class_labels(loader: DataLoader) -> np.ndarray | None:
    """Return the classes of all samples, [n]; None where the target is not one of some classes per sample."""
    source = loader.source
    if not isinstance(source, RandomAccess):
        return None
    labels = source.targets()
    if labels.dtype.kind not in "iu" or labels.ndim != 1 or 2 * len(np.unique(labels)) > len(labels):
        return None
    return labels


def labelled_loader(preprocessing: Preprocessing, path: str | os.PathLike[str], names: list[str], dtypes: Mapping[str, str],
                    batch_size: int = EVALUATION_BATCH_SIZE, *, seed: int = 0, training: bool = False) -> DataLoader:
    """Return a loader with the inputs `names`, targets included. training: shuffled, and with random changes of images."""
    data, targets = preprocessing.labelled(path, names, augment=training)
    return as_loader(data, targets, names=names, dtypes={name: dtypes[name] for name in names if name in dtypes}, batch_size=batch_size, shuffle=training,
                     seed=seed)


def unlabelled_loader(preprocessing: Preprocessing, path: str | os.PathLike[str], names: list[str], dtypes: Mapping[str, str],
                      batch_size: int = EVALUATION_BATCH_SIZE) -> DataLoader:
    """Return a loader with the inputs `names` of the forward model, in the order of the file."""
    return as_loader(preprocessing.unlabelled(path, names), names=names, dtypes={name: dtypes[name] for name in names if name in dtypes},
                     batch_size=batch_size, shuffle=False)


def fixed_batch(model: Model, names: Sequence[str]) -> int | None:
    """Return the batch size that a model fixes in the inputs `names`, None where it accepts any."""
    for name in names:
        kind = model.graph.types.get(name)
        if kind is not None and kind.shape and isinstance(kind.shape[0], int):
            return kind.shape[0]
    return None


def _check_batches(trainer: Trainer, data: TrainingData) -> None:
    """Raise InvalidArgumentError when a model fixes its batch and the data have batches of another size."""
    fixed = fixed_batch(trainer.session.training_model, trainer.roles.training)
    loaders = [data.training] if data.validation is None else [data.training, data.validation]
    if fixed is None or all(loader.batch_size == fixed and loader.samples is not None and loader.samples % fixed == 0 for loader in loaders):
        return
    raise InvalidArgumentError(f"expected a model that takes any number of samples, got one with batches of {fixed} that cannot be opened (python -m ortrain "
                               f"doctor says why): give it data for whole batches of {fixed} only")


def check_fits(trainer: Trainer, data: TrainingData) -> None:
    """Evaluate one batch of the training data, with the lowest and the highest label in it, without changing anything.

    Raises the errors of eval_step, such as InputShapeError and LabelRangeError, before a run writes anything."""
    _check_batches(trainer, data)
    loader, roles = data.training, trainer.roles
    check_data(trainer.session, loader, roles.training, training=True)
    batch = next(iter(loader.epoch(0)))
    labels = class_labels(loader)
    source = loader.source
    if labels is not None and isinstance(source, RandomAccess):
        rows = np.concatenate([[labels.argmin(), labels.argmax()], np.arange(len(labels))])[: len(batch[0])]
        batch = [conversion(array, "the data") for conversion, array in zip(loader.conversions, source.read(rows, (0, 0)), strict=True)]
    trainer.session.eval_step(*(batch[loader.names.index(name)] for name in roles.evaluation))
