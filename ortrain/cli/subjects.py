"""What evaluate and predict work on: a run, a folder with artifacts or a forward model, with the data in the form that it takes."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np

from ortrain.cli.common import positive, session_options, size
from ortrain.data import DataLoader
from ortrain.data.columns import all_columns
from ortrain.data.files import kind_of, read_npz
from ortrain.errors import InvalidArgumentError, InvalidStateError
from ortrain.ir import Model
from ortrain.loading.loader import load_model
from ortrain.runs import DataOptions, ModelInputs, Run, Split
from ortrain.runs.folder import MERGED, TRAINED
from ortrain.runs.loaders import fit_preprocessing, fixed_batch, labelled_loader
from ortrain.runs.tables import find_target
from ortrain.trainer import Trainer
from ortrain.training.session import TrainingSession

DATA_OPTIONS = ("target", "features", "image_size", "resize", "mean", "std")


def add_subject_options(command: argparse.ArgumentParser) -> None:
    """Add the options for data of what is no run, and the number of threads."""
    group = command.add_argument_group("data of a model or of artifacts; a run has its own settings")
    group.add_argument("--target", metavar="NAME", help="The target's column or array. Without it, the one named labels, target, label or y.")
    group.add_argument("--features", nargs="+", metavar="COLUMN", help="The columns of a table to be used. Without it, all but the target.")
    group.add_argument("--image-size", type=size, metavar="HEIGHTxWIDTH", help="The size of images, where the model leaves it open.")
    group.add_argument("--resize", choices=("squash", "crop", "pad"), help="How images get their size. Default: squash.")
    group.add_argument("--mean", nargs="+", type=float, metavar="NUMBER", help="Is subtracted from pixels, which are between 0 and 1. Default: 0.")
    group.add_argument("--std", nargs="+", type=positive, metavar="NUMBER", help="Divides pixels after --mean. Default: 1.")
    command.add_argument("--threads", type=int, metavar="N", help="Threads of the session. Without it, the physical cores, at most 8.")


def data_options(options: argparse.Namespace) -> DataOptions:
    """Return how data are to be read for what is no run: columns keep their values."""
    given = {name: getattr(options, name) for name in DATA_OPTIONS if getattr(options, name) is not None}
    return DataOptions(standardize=False, **given)


def run_of(options: argparse.Namespace) -> Run | None:
    """Return the run that a path names, which may be the folder or the trained model in it; None for anything else.

    Ends the program when options say again what the run knows."""
    path = Path(options.path)
    folder = path if path.is_dir() else path.parent
    if not Run.is_in(folder) or not path.is_dir() and path.name not in (TRAINED, MERGED):
        return None
    wrong = [f"--{name.replace('_', '-')}" for name in (*DATA_OPTIONS, "loss") if getattr(options, name, None) is not None]
    if wrong:
        options.parser.error(f"expected {', '.join(wrong)} for a model only: the run in {str(folder)!r} has its own settings")
    return Run.open(folder)


def labelled_subject(options: argparse.Namespace) -> tuple[Trainer, DataLoader]:
    """Return a trainer and a loader with targets. Raises InvalidStateError for artifacts without an eval model."""
    threads = session_options(options.threads)
    found = run_of(options)
    if found is not None:
        metrics = options.metrics or found.settings.options.get("metrics") or "auto"
        trainer = found.trainer(metrics, threads)
        return trainer, found.labelled(options.data, trainer, options.batch_size)
    if options.loss is not None and Path(options.path).is_dir():
        options.parser.error("expected --loss for a forward model only: artifacts have a loss of their own")
    trainer = _of_artifacts(options, threads) if Path(options.path).is_dir() else _of_model(options, threads)
    preprocessing = fit_preprocessing(options.data, ModelInputs.of(trainer.session, trainer.roles), data_options(options), Split())
    batch_size = fixed_batch(trainer.session.eval_model or trainer.session.training_model, trainer.roles.evaluation) or options.batch_size
    return trainer, labelled_loader(preprocessing, options.data, trainer.roles.evaluation, trainer.roles.dtypes, batch_size)


def _of_artifacts(options: argparse.Namespace, threads: Any) -> Trainer:
    session = TrainingSession.from_artifacts(options.path, options=threads)
    if session.eval_model is None:
        raise InvalidStateError(f"expected an eval model in {options.path!r}, found none")
    return Trainer(session, metrics=options.metrics or "auto", progress=False)


def _of_model(options: argparse.Namespace, threads: Any) -> Trainer:
    model = load_model(options.path)
    return Trainer.from_model(model, loss=options.loss or _likely_loss(options, model), optimizer=None, metrics=options.metrics or "auto", progress=False,
                              additional_output_names=list(model.graph.outputs), options=threads)


def _likely_loss(options: argparse.Namespace, model: Model) -> str:
    """Return cross-entropy for classes, mse for other targets."""
    kind = kind_of(options.data)
    if kind == "folder":
        return "cross-entropy"
    if kind == ".npy":
        raise InvalidArgumentError(f"expected a folder of images, or a file of named arrays or columns (.npz, .csv or .parquet), got {options.data!r}")
    columns = read_npz(options.data) if kind == ".npz" else all_columns(options.data)
    target = columns[find_target(columns, options.target, ModelInputs(list(model.graph.inputs), [], model.graph.types))]
    return "mse" if np.asarray(target).dtype.kind == "f" else "cross-entropy"
