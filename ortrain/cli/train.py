"""The command train: trains a model on files, and writes, or resumes, the folder of a run."""

from __future__ import annotations

import argparse
import importlib.util
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

from ortrain import lora
from ortrain.cli import FAILED, INTERRUPTED
from ortrain.cli.options import NOT_SETTINGS, OPTIONS, add_options, complete, given_options
from ortrain.cli.setup import check_run, class_weights, make_trainer, open_data, options_of, trainer_settings
from ortrain.cli.workers import make_strategy
from ortrain.distributed import Launcher, SingleProcess, Strategy
from ortrain.distributed.workers import Workers
from ortrain.errors import InvalidArgumentError, OrtrainError
from ortrain.formats.artifact_names import CHECKPOINT
from ortrain.formats.onnx_files import write_model
from ortrain.runs import Run, RunSettings, Split, TrainingData
from ortrain.runs.folder import ADAPTER, CURVE, HISTORY_TABLE, LOG, MERGED, TENSORBOARD, TRAINED, remove_run
from ortrain.runtime.seed import set_seed
from ortrain.trainer import Callback, PrivacyBudget, Trainer
from ortrain.trainer.callbacks import TrainerInterface


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    command.usage = "%(prog)s model.onnx DATA --loss LOSS --out DIR [option ...]\n       %(prog)s --resume --out DIR [option ...]"
    command.add_argument("model", nargs="?", metavar="model.onnx", help="A forward model, without a loss.")
    command.add_argument("data", nargs="?", metavar="DATA",
                         help="A folder with one subfolder of images per class, a table (.csv or .parquet), or arrays named like the model's inputs (.npz).")
    add_options(command)


def run(options: argparse.Namespace) -> int | None:
    """Train, or resume, and write the folder of the run. Return INTERRUPTED after Ctrl-C."""
    given = given_options(options)
    if "out" not in given:
        options.parser.error("expected --out, the folder of the run")
    folder = Path(given["out"])
    if given.get("resume") and given.get("overwrite"):
        options.parser.error("expected --resume or --overwrite, got both")
    for name in () if given.get("resume") else ("model", "data", "loss"):
        if name not in given:
            options.parser.error({"model": "expected a model", "data": "expected a data file or folder", "loss": "expected --loss, one of "
                                  + ", ".join(OPTIONS["loss"].how["choices"])}[name])
    strategy = make_strategy(given)
    workers = Workers(SingleProcess() if isinstance(strategy, Launcher) else strategy)
    if isinstance(strategy, Launcher) and "data" in given:
        given["data"] = os.path.abspath(given["data"])      # the workers that it starts may have another current folder
    try:
        with workers.together():
            return _resume(options, folder, given, strategy) if given.get("resume") else _start(folder, complete(given), strategy)
    except OrtrainError:
        if workers.rank == 0:
            raise
        return FAILED                                       # rank 0 says why


# ---- a new run


def _start(folder: Path, settings: dict[str, Any], strategy: Strategy | Launcher) -> int | None:
    if not settings["overwrite"] and (Run.is_in(folder) or (folder / CHECKPOINT).exists()):
        raise InvalidArgumentError(f"expected another --out, --resume or --overwrite: {str(folder)!r} holds a run already")
    if folder.exists() and not folder.is_dir():
        raise InvalidArgumentError(f"expected a folder as --out, got the file {str(folder)!r}")
    set_seed(settings["seed"])
    output: dict[str, Any] = {"folder": folder, "overwrite": settings["overwrite"], "progress": not settings["quiet"], "strategy": strategy}
    trainer = make_trainer(settings, **output)
    preprocessing, held_out, data = open_data(trainer, settings)
    if settings["class_weight"]:
        weights = class_weights(settings["class_weight"], trainer, data)
        trainer.close()
        trainer = make_trainer(settings, class_weight=weights, **output)
    with trainer:
        check_run(trainer, data)
        samples = _samples(data, held_out)
        kept = {key: value for key, value in settings.items() if key in OPTIONS and key not in NOT_SETTINGS}
        stored = RunSettings(os.path.abspath(settings["model"]), os.path.abspath(settings["data"]), preprocessing, held_out, samples, kept)
        if settings["overwrite"] and trainer.rank == 0:
            remove_run(folder)
        return _fit(trainer, data, settings, folder, [_StoreSettings(stored, folder.absolute())])


def _samples(data: TrainingData, held_out: Split) -> int | None:
    """Return the number of samples of the data file."""
    part = data.validation.samples or 0 if data.validation is not None and held_out.share else 0
    return None if data.training.samples is None else data.training.samples + part


class _StoreSettings(Callback):
    """Writes the settings when nothing can refuse the run any more."""

    rank_zero_only = True

    def __init__(self, settings: RunSettings, folder: Path) -> None:
        self.settings = settings
        self.folder = folder

    def on_fit_begin(self, trainer: TrainerInterface) -> None:
        self.settings.write(self.folder)


# ---- a resumed run


def _resume(options: argparse.Namespace, folder: Path, given: dict[str, Any], strategy: Strategy | Launcher) -> int | None:
    found = Run.open(folder)
    stored = found.settings.options | {"model": found.settings.model, "data": found.settings.data}
    settings = complete(given, stored)
    for name in given:
        option = OPTIONS.get(name)
        same = os.path.abspath(given[name]) == stored[name] if name in ("model", "data") else _same(given[name], stored.get(name))
        if not same and name not in NOT_SETTINGS and not (option is not None and option.continues):
            options.parser.error(f"expected --resume with the run's own {name.replace('_', '-')} {stored.get(name)}, got {given[name]}: of a resumed run, only "
                                 + ", ".join(known.name for known in OPTIONS.values() if known.continues) + " may change")
    settings |= {"model": stored["model"], "data": stored["data"]}
    set_seed(settings["seed"])
    trainer = Trainer.from_artifacts(folder, resume=True, options=options_of(settings, strategy), progress=not settings["quiet"], strategy=strategy,
                                     **trainer_settings(settings))
    with trainer:
        _, held_out, data = open_data(trainer, settings, found.settings.preprocessing)
        found.settings.check_samples(_samples(data, held_out))
        check_run(trainer, data)
        if trainer.epoch >= settings["epochs"] and trainer.rank == 0:
            print(f"the run has completed {trainer.epoch} epochs already: give a larger --epochs to continue it")
        kept = {key: value for key, value in settings.items() if key in OPTIONS and key not in NOT_SETTINGS}
        return _fit(trainer, data, settings, folder, [_StoreSettings(replace(found.settings, options=kept), folder.absolute())])


def _same(given: Any, stored: Any) -> bool:
    """Whether two values are the same after a round trip through JSON, which has no tuples."""
    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: plain(entry) for key, entry in value.items()}
        return [plain(entry) for entry in value] if isinstance(value, list | tuple) else value

    return bool(plain(given) == plain(stored))


# ---- training and results


def _fit(trainer: Trainer, data: TrainingData, settings: dict[str, Any], folder: Path, callbacks: list[Callback]) -> int | None:
    trainer.settings |= {name: settings[name] for name in ("loss", "optimizer")}
    budget = [] if settings["delta"] is None else [PrivacyBudget(settings["delta"], settings["max_epsilon"])]
    trainer.fit(data.training, epochs=settings["epochs"], batch_size=settings["batch_size"], validation=data.validation,
                callbacks=[*callbacks, *budget, *_loggers(settings["log"] or [], folder.absolute())])
    interrupted = trainer.stopped is not None and trainer.stopped.startswith("interrupted")
    if trainer.rank == 0:
        _write_results(trainer, settings, folder)
        if interrupted:
            print(f"interrupted; saved after {trainer.step} steps. Continue with: python -m ortrain train --resume --out {folder}")
        elif trainer.stopped is not None:
            print(f"stopped early: {trainer.stopped}")
    return INTERRUPTED if interrupted else None


def _loggers(names: list[str], folder: Path) -> list[Callback]:
    from ortrain.trainer.loggers import CSVLogger, TensorBoardLogger

    return [CSVLogger(folder / LOG) if name == "csv" else TensorBoardLogger(folder / TENSORBOARD) for name in dict.fromkeys(names)]


def _write_results(trainer: Trainer, settings: dict[str, Any], folder: Path) -> None:
    trainer.export(folder / TRAINED)
    written = [TRAINED, CHECKPOINT]
    if trainer.history:
        trainer.history.to_csv(folder / HISTORY_TABLE)
        written.append(HISTORY_TABLE)
        if importlib.util.find_spec("matplotlib") is not None:
            trainer.history.plot(folder / CURVE)
            written.append(CURVE)
        if settings["quiet"]:                               # otherwise the progress has shown it
            print(trainer.history[-1])
    if settings["lora"]:
        lora.save(folder / TRAINED, folder / ADAPTER)
        written.append(ADAPTER)
        if not any(adapter.quantized for adapter in lora.adapters(folder / TRAINED)):
            write_model(lora.merge(folder / TRAINED), folder / MERGED)
            written.append(MERGED)
    print(f"written to {folder}: {', '.join(written)}")
