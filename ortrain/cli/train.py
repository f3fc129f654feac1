"""train: trains a forward model on the arrays of an .npz file, named as the model's inputs, plus the target."""

from __future__ import annotations

import argparse
import importlib.util
import json
from pathlib import Path
from typing import Any

import numpy as np

from ortrain.cli.common import LOSSES, OPTIMIZERS, add_weight_arguments, session_arrays
from ortrain.data.files import read_arrays
from ortrain.errors import InvalidArgumentError
from ortrain.formats.artifact_names import CHECKPOINT
from ortrain.formats.atomic_files import replace_file
from ortrain.loading.loader import load_model
from ortrain.runtime.seed import set_seed
from ortrain.runtime.state import DEFAULT_LEARNING_RATE
from ortrain.trainer.trainer import Trainer
from ortrain.training.session import TrainingSession

SETTINGS = "settings.json"
DEFAULTS = {"loss": None, "optimizer": "adamw", "epochs": 10, "batch_size": 32, "learning_rate": DEFAULT_LEARNING_RATE, "validation_split": 0.1, "seed": 0,
            "target": None}


def add_arguments(command: argparse.ArgumentParser) -> None:
    def option(name: str, text: str, **how: Any) -> None:
        default = DEFAULTS[name.removeprefix("--").replace("-", "_")]
        command.add_argument(name, help=text + ("" if default is None else f" (default: {default})"), **how)

    command.add_argument("model", metavar="model.onnx", help="a forward model; its first output goes to the loss")
    command.add_argument("data", metavar="data.npz", help="arrays named as the model's inputs, plus the target; also a .csv or .parquet file")
    option("--loss", "required, except with --resume", choices=LOSSES)
    option("--optimizer", "the optimizer", choices=OPTIMIZERS)
    option("--epochs", "epochs in total", type=int)
    option("--batch-size", "samples in a step", type=int)
    option("--learning-rate", "step size of the optimizer", type=float)
    option("--validation-split", "share of the samples that is held out for validation", type=float)
    option("--seed", "of the split, the order of samples and random masks", type=int)
    option("--target", "name of the target's array (default: labels or target)", metavar="NAME")
    add_weight_arguments(command)
    command.add_argument("--out", required=True, metavar="DIR", help="folder for artifacts, checkpoint, history and trained model")
    group = command.add_mutually_exclusive_group()
    group.add_argument("--resume", action="store_true", help="continue the run in DIR, with its settings unless others are given")
    group.add_argument("--overwrite", action="store_true", help="replace a run that DIR holds")
    command.add_argument("--quiet", action="store_true", help="no progress")


def run(options: argparse.Namespace) -> None:
    """Train, or resume, and write the run's folder."""
    folder = Path(options.out)
    settings = _settings(options, folder)
    data = read_arrays(options.data)
    set_seed(settings["seed"])
    session = TrainingSession.from_artifacts(folder) if options.resume else _new_session(options, settings)
    with session:
        session.learning_rate = settings["learning_rate"]
        inputs, target = session_arrays(data, session.input_names(), settings["target"], session.training_model)
        train, held_out = _split(len(target), settings["validation_split"], settings["seed"])
        # the folder is touched only after the arrays have been checked
        if not options.resume:
            folder.mkdir(parents=True, exist_ok=True)
            session.save_artifacts(folder)
        replace_file(folder / SETTINGS, json.dumps(settings, indent=1).encode())
        trainer = Trainer(session, folder=folder, seed=settings["seed"], progress=not options.quiet, resume=options.resume, overwrite=options.overwrite)
        validation = ([x[held_out] for x in inputs], target[held_out]) if len(held_out) else None
        trainer.fit([x[train] for x in inputs], target[train], epochs=settings["epochs"], batch_size=settings["batch_size"], validation=validation)
        _write_results(trainer, folder)


def _settings(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Return the run's settings: the command line's, then those of the run to be resumed, then the defaults."""
    settings: dict[str, Any] = dict(DEFAULTS)
    if options.resume:
        try:
            settings |= json.loads((folder / SETTINGS).read_text())
        except (OSError, ValueError) as error:
            raise InvalidArgumentError(f"expected a run to resume in {str(folder)!r}, got: {error}") from error
    elif (folder / CHECKPOINT).exists() and not options.overwrite:
        raise InvalidArgumentError(f"expected another --out, --resume or --overwrite: {str(folder)!r} holds a run already")
    settings |= {name: getattr(options, name) for name in DEFAULTS if getattr(options, name) is not None}
    if settings["loss"] is None:
        raise InvalidArgumentError(f"expected --loss, one of {', '.join(LOSSES)}")
    for name in ("epochs", "batch_size", "learning_rate"):
        if not settings[name] > 0:
            raise InvalidArgumentError(f"expected --{name.replace('_', '-')} above 0, got {settings[name]}")
    seed, share = settings["seed"], settings["validation_split"]
    if seed < 0 or not 0 <= share < 1:
        raise InvalidArgumentError(f"expected --seed >= 0 and --validation-split in [0, 1), got {seed} and {share}")
    return settings


def _new_session(options: argparse.Namespace, settings: dict[str, Any]) -> TrainingSession:
    model = load_model(options.model)
    scores = model.graph.outputs[:1]
    return TrainingSession.from_model(
        model, loss=LOSSES[settings["loss"]], optimizer=OPTIMIZERS[settings["optimizer"]], requires_grad=options.requires_grad,
        frozen_params=options.frozen, loss_input_names=scores, additional_output_names=scores)


def _split(count: int, share: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return (training, held-out) sample numbers, in file order."""
    order = np.random.default_rng(seed).permutation(count)
    held_out = round(count * share)
    if held_out == count:
        raise InvalidArgumentError(f"expected samples to train on, got {count} and a validation split of {share}")
    return np.sort(order[held_out:]), np.sort(order[:held_out])


def _write_results(trainer: Trainer, folder: Path) -> None:
    trainer.session.export(folder / "trained.onnx", trainer.session.output_names(training=False)[1:])
    drawn = importlib.util.find_spec("matplotlib") is not None
    if drawn:
        trainer.history.plot(folder / "learning_curve.png")
    print(trainer.history[-1])
    print(f"written to {folder}: trained.onnx, checkpoint, history.json" + (", learning_curve.png" if drawn else ""))
