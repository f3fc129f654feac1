"""Checkpoints of a run: the latest one, the best ones and recent ones, with all that an exact resume needs."""

from __future__ import annotations

import io
import json
import math
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ortrain.errors import InvalidArgumentError, InvalidStateError
from ortrain.formats.artifact_names import CHECKPOINT, TRAINING_MODEL
from ortrain.formats.atomic_files import replace_file
from ortrain.runtime.state import TrainingState
from ortrain.trainer.records import EpochRecord
from ortrain.trainer.settings import TrainerSettings

if TYPE_CHECKING:
    from ortrain.trainer.callbacks import Callback
    from ortrain.trainer.trainer import Trainer
    from ortrain.training.schedules import Schedule
    from ortrain.training.session import TrainingSession

PROPERTY = "ortrain.trainer"
"""The checkpoint's property that holds the progress of the run, as JSON."""
BEST, HISTORY, SETTINGS = "checkpoint.best", "history.json", "trainer.json"
"""File names beside the latest checkpoint."""
AVERAGE, SYNCHRONIZATION = "checkpoint.average", "checkpoint.synchronization"
"""What the names of files of arrays begin with, the averaged weights and what workers keep between steps; the step number of their checkpoint follows."""


@dataclass(frozen=True, slots=True)
class Progress:
    """What a checkpoint holds of a run besides parameters and optimizer state."""

    epoch: int
    step: int
    batch: int
    train_steps: int
    seed: int
    learning_rate: float
    base_learning_rate: float
    loss_sum: float
    samples: int
    workers: int = 1
    history: list[dict[str, Any]] = field(default_factory=list)
    schedule: dict[str, Any] = field(default_factory=dict)
    callbacks: list[dict[str, Any]] = field(default_factory=list)

    @classmethod
    def of(cls, trainer: Trainer, callbacks: Sequence[Callback], schedule: Schedule | None) -> Progress:
        """Return the progress of a trainer."""
        session, running = trainer.session, trainer.running
        return cls(trainer.epoch, trainer.step, trainer.batch, session.train_steps, trainer.options.seed,
                   session.learning_rate if session.has_optimizer else 0.0, trainer.learning_rate,
                   running.loss_sum if running is not None and trainer.batch else 0.0, running.samples if running is not None and trainer.batch else 0,
                   trainer.workers.size,
                   [record.to_dict() for record in trainer.history], _state_of(schedule),
                   [{"type": type(callback).__name__} | callback.state_dict() for callback in callbacks])

    def to_dict(self) -> dict[str, Any]:
        """Return the progress as a dictionary that json.dumps accepts. Nothing is copied, since a long history would be in every epoch."""
        return {entry.name: getattr(self, entry.name) for entry in fields(self)}

    @classmethod
    def read(cls, state: TrainingState) -> Progress:
        """Return the progress that a state's checkpoint holds. Raises InvalidStateError when no Trainer wrote it."""
        try:
            return cls(**json.loads(str(state.properties[PROPERTY])))
        except (KeyError, TypeError, ValueError) as error:
            raise InvalidStateError(f"expected a checkpoint that a Trainer wrote, got one with properties {sorted(state.properties)}") from error

    def restore_callbacks(self, callbacks: Sequence[Callback]) -> None:
        """Give each callback the state that a callback of its type had, in order."""
        saved = [dict(entry) for entry in self.callbacks]
        for callback in callbacks:
            match = next((entry for entry in saved if entry["type"] == type(callback).__name__), None)
            if match is not None:
                saved.remove(match)
                callback.load_state_dict({name: value for name, value in match.items() if name != "type"})

    def restore_schedule(self, schedule: Schedule | None) -> None:
        """Give a schedule with a state, such as Plateau, the state that it had."""
        if schedule is not None and self.schedule and hasattr(schedule, "load_state_dict"):
            schedule.load_state_dict(self.schedule)


def _state_of(schedule: Any) -> dict[str, Any]:
    return schedule.state_dict() if hasattr(schedule, "state_dict") else {}


class CheckpointFolder:
    """The files of a run. The latest checkpoint is always `checkpoint`, which TrainingSession.from_artifacts reads.

    writes: False for a worker that leaves writing to rank 0."""

    def __init__(self, folder: Path | None, settings: TrainerSettings, writes: bool = True) -> None:
        self.folder = folder
        self.settings = settings
        self.writes = writes

    def check_unused(self) -> None:
        """Raise InvalidArgumentError when the folder holds a run, or is a file."""
        if self.folder is None or not self.writes:
            return
        if self.folder.exists() and not self.folder.is_dir():
            raise InvalidArgumentError(f"expected a folder for the run, got the file {str(self.folder)!r}")
        if (self.folder / SETTINGS).exists():
            raise InvalidArgumentError(f"expected a folder without a run, got {str(self.folder)!r}, which holds one: continue it with resume=True, or "
                                       "replace it with overwrite=True")

    def write_artifacts(self, session: TrainingSession, replace: bool = False) -> None:
        """Write the session's models and its checkpoint into the folder, so that TrainingSession.from_artifacts can open the run.

        replace: also when the folder holds some, which may be those of another model."""
        if self.folder is None or not self.writes or not replace and (self.folder / TRAINING_MODEL).exists():
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        session.save_artifacts(self.folder)

    def save(self, trainer: Trainer) -> None:
        """Write the latest checkpoint, the history and the settings. Each file is replaced atomically."""
        progress = trainer.progress()
        state = trainer.session.state
        state.set_property(PROPERTY, json.dumps(progress.to_dict()))
        if self.folder is None or not self.writes:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        if trainer.average is not None:
            self._write_arrays(AVERAGE, trainer.step, trainer.average.state_dict())
        if kept := trainer.synchronization.state_dict():
            self._write_arrays(SYNCHRONIZATION, trainer.step, kept)
        trainer.session.save_checkpoint(self.folder / CHECKPOINT, include_optimizer_state=trainer.session.has_optimizer)
        replace_file(self.folder / HISTORY, json.dumps(progress.history, indent=1).encode())
        replace_file(self.folder / SETTINGS, json.dumps(trainer.settings, indent=1).encode())

    def _write_arrays(self, name: str, step: int, arrays: Mapping[str, np.ndarray]) -> None:
        """Write arrays into a file of their own, which the checkpoint names by its step, and remove that of the checkpoint before the last."""
        assert self.folder is not None
        content = io.BytesIO()
        np.savez(content, **arrays)      # type: ignore[arg-type]
        replace_file(self.folder / f"{name}.{step}.npz", content.getvalue())
        numbered = sorted((int(found[1]), entry) for entry in self.folder.glob(f"{name}.*.npz") if (found := re.search(r"\.(\d+)\.npz$", entry.name)))
        for _, old in numbered[:-2]:
            old.unlink()

    def read_arrays(self, name: str, what: str, state: TrainingState) -> dict[str, np.ndarray]:
        """Return the arrays that were written with the checkpoint that a state was read from. name: AVERAGE or SYNCHRONIZATION; what: names them in the error.

        Raises InvalidStateError when they are not in the folder."""
        path = None if self.folder is None else self.folder / f"{name}.{Progress.read(state).step}.npz"
        if path is None or not path.exists():
            raise InvalidStateError(f"expected {what} of the run to be resumed in {str(path)!r}, found none")
        with np.load(path, allow_pickle=False) as loaded:
            return {name: loaded[name] for name in loaded.files}

    def keep(self, trainer: Trainer, record: EpochRecord) -> None:
        """Save after an epoch, and keep the best and the recent checkpoints that the settings ask for."""
        self.save(trainer)
        if self.folder is None or not self.writes:
            return
        latest = self.folder / CHECKPOINT
        if self.settings.keep_last:
            _link(latest, self.folder / f"{CHECKPOINT}-epoch-{record.epoch:04d}")
        ranked = sorted(trainer.history, key=lambda entry: (self._badness(trainer, entry), entry.epoch))
        best = [entry.epoch for entry in ranked[: self.settings.keep_best]]
        if record.epoch in best:
            _link(latest, self.folder / (BEST if self.settings.keep_best == 1 else f"{BEST}-epoch-{record.epoch:04d}"))
        recent = {entry.epoch for entry in trainer.history[-self.settings.keep_last :]} if self.settings.keep_last else set()
        self._prune(f"{CHECKPOINT}-epoch-", recent)
        self._prune(f"{BEST}-epoch-", set(best))

    def _badness(self, trainer: Trainer, record: EpochRecord) -> float:
        """Return the monitored figure of an epoch, so that lower is better; the training loss where it has none."""
        monitor = self.settings.monitor.removeprefix("validation_")
        figures = record.training if self.settings.monitor == "loss" or not record.validation else record.validation
        value = figures.get(monitor, record.loss)
        higher_is_better = any(metric.name == monitor and metric.higher_is_better for metric in trainer.metrics)
        if math.isnan(value):
            return math.inf
        return -value if higher_is_better else value

    def _prune(self, prefix: str, kept: set[int]) -> None:
        assert self.folder is not None
        for path in self.folder.glob(f"{prefix}*"):
            if int(path.name.removeprefix(prefix)) not in kept:
                path.unlink()


def _link(source: Path, target: Path) -> None:
    """Make `target` the file that `source` is now, by a hard link where the file system has them. The source is later replaced, never changed."""
    partial = target.with_name(f"{target.name}.partial")
    partial.unlink(missing_ok=True)
    try:
        os.link(source, partial)
    except (AttributeError, OSError):               # Python's os lacks what the system does: WebAssembly has no links
        shutil.copyfile(source, partial)
    os.replace(partial, target)
