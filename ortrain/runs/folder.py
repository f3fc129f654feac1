"""The folder of a run: its settings, and its trained model as a trainer."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ortrain import __version__
from ortrain.data import DataLoader
from ortrain.errors import ArtifactNotFoundError, InvalidStateError
from ortrain.formats.artifact_names import CHECKPOINT, MODELS
from ortrain.formats.atomic_files import replace_file
from ortrain.formats.onnx_files import read_model
from ortrain.runs.loaders import Split, fixed_batch, labelled_loader, restore_preprocessing, unlabelled_loader, validation_loader
from ortrain.runs.preprocessing import Preprocessing
from ortrain.trainer import History, Trainer
from ortrain.trainer.callbacks import BEST_WEIGHTS
from ortrain.trainer.checkpoints import AVERAGE, BEST, HISTORY
from ortrain.trainer.checkpoints import SETTINGS as TRAINER_SETTINGS
from ortrain.trainer.records import EpochRecord
from ortrain.training.session import TrainingSession

SETTINGS, TRAINED, MERGED, ADAPTER, CURVE, HISTORY_TABLE, REPORT = (
    "settings.json", "trained.onnx", "merged.onnx", "adapter", "learning_curve.png", "history.csv", "report.html")
LOG, TENSORBOARD = "log.csv", "tensorboard"
FORMAT = 1
"""The version of settings.json."""


@dataclass(frozen=True, slots=True)
class RunSettings:
    """What a run was trained on and with. model, data: absolute paths. samples: of the data. options: those of the command line, by name."""

    model: str
    data: str
    preprocessing: Preprocessing
    validation: Split
    samples: int | None
    options: dict[str, Any] = field(default_factory=dict)

    def write(self, folder: Path) -> None:
        """Write the settings into a run's folder."""
        values = {"format": FORMAT, "ortrain": __version__, "model": self.model, "data": self.data, "preprocessing": self.preprocessing.to_dict(),
                  "validation": asdict(self.validation), "samples": self.samples, "options": self.options}
        replace_file(folder / SETTINGS, json.dumps(values, indent=1).encode())

    def check_samples(self, found: int | None) -> None:
        """Raise InvalidStateError when the data have another number of samples than they had."""
        if self.samples is not None and found != self.samples:
            raise InvalidStateError(f"expected the {self.samples} samples of the run in {self.data!r}, got {found}: the data have changed")

    @classmethod
    def read(cls, folder: Path) -> RunSettings:
        """Read the settings of a run. Raises ArtifactNotFoundError for a folder without them, InvalidStateError for such as cannot be read."""
        path = folder / SETTINGS
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise ArtifactNotFoundError(f"expected a run, which has {SETTINGS}, in {str(folder)!r}, got {error.strerror or error}") from error
        except ValueError as error:
            raise InvalidStateError(f"expected the settings of a run in {str(path)!r}, got a file that cannot be read: {error}") from error
        if not isinstance(values, Mapping) or values.get("format") != FORMAT:
            raise InvalidStateError(f"expected the settings of a run in format {FORMAT} in {str(path)!r}, got another file or format")
        try:
            return cls(values["model"], values["data"], restore_preprocessing(values["preprocessing"]), Split(**values["validation"]), values["samples"],
                       dict(values["options"]))
        except (KeyError, TypeError, ValueError) as error:
            raise InvalidStateError(f"expected the settings of a run in {str(path)!r}, got some that do not fit: {error}") from error


class Run:
    """A run that `python -m ortrain train` has written into a folder.

    folder: of the run. settings: what it was trained on and with."""

    def __init__(self, folder: Path, settings: RunSettings) -> None:
        self.folder = folder
        self.settings = settings

    @classmethod
    def open(cls, folder: str | os.PathLike[str]) -> Run:
        """Open a run. Raises ArtifactNotFoundError for a folder without a run, InvalidStateError for damaged settings."""
        return cls(Path(folder), RunSettings.read(Path(folder)))

    @staticmethod
    def is_in(folder: str | os.PathLike[str]) -> bool:
        """Return whether a folder holds a run."""
        return (Path(folder) / SETTINGS).is_file()

    def history(self) -> History:
        """Return the records of all epochs. Raises InvalidStateError when they cannot be read."""
        path = self.folder / HISTORY
        try:
            return History(EpochRecord.from_dict(record) for record in json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError) as error:
            raise InvalidStateError(f"expected the history of a run in {str(path)!r}, got none that can be read: {error}") from error

    def trainer(self, metrics: Any = "auto", options: Any = None) -> Trainer:
        """Return a trainer, for evaluation and prediction, with the weights of the run's trained model.

        metrics: as for Trainer. options: SessionOptions. The weights are those of trained.onnx, which after early stopping are the best ones, and
        otherwise, where there is no such file yet, those of the checkpoint."""
        session = TrainingSession.from_artifacts(self.folder, options=options)
        trained = self.folder / TRAINED
        if trained.is_file():
            weights = read_model(str(trained)).graph.initializers
            for name in session.state.names():
                if name in weights:
                    session.parameters[name] = weights[name]
        return Trainer(session, metrics=metrics, progress=False)

    def labelled(self, path: str | os.PathLike[str], trainer: Trainer, batch_size: int = 256) -> DataLoader:
        """Return a loader for trainer.evaluate over a file or folder with targets."""
        return labelled_loader(self.settings.preprocessing, path, trainer.roles.evaluation, trainer.roles.dtypes, _batch_size(trainer, batch_size))

    def unlabelled(self, path: str | os.PathLike[str], trainer: Trainer, batch_size: int = 256) -> DataLoader:
        """Return a loader for trainer.predict over a file or folder; targets in it are not read."""
        return unlabelled_loader(self.settings.preprocessing, path, trainer.roles.forward, trainer.roles.dtypes, _batch_size(trainer, batch_size))

    def validation(self, trainer: Trainer, batch_size: int = 256) -> tuple[DataLoader, str]:
        """Return (a loader over the run's validation data, what they are).

        Raises ArtifactNotFoundError when the data are not where they were, InvalidStateError when the run had none or the data have changed."""
        settings, held_out = self.settings, self.settings.validation
        if held_out.path is not None:
            return self.labelled(held_out.path, trainer, batch_size), held_out.path
        if not held_out.share:
            raise InvalidStateError("expected a run with validation data, got one that was trained on all samples")
        whole = self.labelled(settings.data, trainer, batch_size)
        settings.check_samples(whole.samples)
        part = validation_loader(settings.preprocessing, settings.data, trainer.roles, held_out, _batch_size(trainer, batch_size))
        return part, f"{held_out.share:.0%} of {settings.data}"


def _batch_size(trainer: Trainer, wanted: int) -> int:
    return fixed_batch(trainer.session.training_model, trainer.roles.training) or wanted


def remove_run(folder: Path) -> None:
    """Remove the files of a run from its folder, and nothing else."""
    log = LOG.removesuffix(".csv")
    patterns = (*MODELS, CHECKPOINT, f"{BEST}*", f"{AVERAGE}.*.npz", f"{BEST_WEIGHTS}.*.npy", f"{CHECKPOINT}-epoch-*", HISTORY,
                TRAINER_SETTINGS, SETTINGS, TRAINED, MERGED, CURVE, HISTORY_TABLE, REPORT, LOG, f"{log}-steps.csv", f"{log}-settings.json")
    for pattern in patterns:
        for path in folder.glob(pattern):
            path.unlink()
    for name in (ADAPTER, TENSORBOARD):
        shutil.rmtree(folder / name, ignore_errors=True)
