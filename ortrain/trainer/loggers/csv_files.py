"""CSV files."""

from __future__ import annotations

import csv
import json
import os
from pathlib import Path
from typing import TextIO

from ortrain.errors import ArtifactNotFoundError, InvalidStateError
from ortrain.formats.atomic_files import replace_file
from ortrain.trainer.callbacks import TrainerInterface
from ortrain.trainer.loggers.base import Logger
from ortrain.trainer.records import EpochRecord, StepRecord

STEP_COLUMNS = ["step", "epoch", "loss", "learning_rate", "gradient_norm"]


class CSVLogger(Logger):
    """Writes run.csv with a row per epoch, the columns of History.to_dict; run-steps.csv with a row per `every` steps: step, epoch, loss, learning_rate,
    gradient_norm; and run-settings.json.

    path: the file of epochs, which names the others; its folder has to exist. every: None for no file of steps.
    A new run replaces the files. A resumed one continues them and drops rows of steps that it runs again.

    Raises ArtifactNotFoundError when the folder does not exist, InvalidStateError when a resumed run finds a file of steps that is none."""

    def __init__(self, path: str | os.PathLike[str], every: int | None = 10) -> None:
        super().__init__(every)
        self.path = Path(path)
        self.steps_path = self.path.with_name(f"{self.path.stem}-steps{self.path.suffix}")
        self.settings_path = self.path.with_name(f"{self.path.stem}-settings.json")
        self._file: TextIO | None = None

    def _open(self, trainer: TrainerInterface) -> None:
        if not self.path.parent.is_dir():
            raise ArtifactNotFoundError(f"expected an existing folder to write {self.path.name!r} into, got {str(self.path.parent)!r}")
        kept = self._kept_rows(trainer.step) if self.every is not None and trainer.step and self.steps_path.exists() else []
        replace_file(self.settings_path, json.dumps(dict(trainer.settings), indent=2).encode())
        trainer.history.to_csv(self.path)
        if self.every is not None:
            lines = [",".join(row) for row in (STEP_COLUMNS, *kept)]
            replace_file(self.steps_path, "".join(f"{line}\n" for line in lines).encode())
            self._file = open(self.steps_path, "a", newline="", encoding="utf-8")  # noqa: SIM115

    def _kept_rows(self, last: int) -> list[list[str]]:
        """Return the rows of earlier steps. The last line may have been cut off by a crash."""
        with open(self.steps_path, newline="", encoding="utf-8") as file:
            rows = list(csv.reader(file))
        if not rows or rows[0] != STEP_COLUMNS:
            raise InvalidStateError(f"expected {str(self.steps_path)!r} to be the file of steps of the run that is resumed, with the columns {STEP_COLUMNS}")
        return [row for row in rows[1:] if len(row) == len(STEP_COLUMNS) and row[0].isdecimal() and int(row[0]) <= last]

    def _write_step(self, record: StepRecord) -> None:
        assert self._file is not None, "expected an open file: steps are written between on_fit_begin and the end of training"
        norm = "" if record.gradient_norm is None else record.gradient_norm
        self._file.write(f"{record.step},{record.epoch},{record.loss},{record.learning_rate},{norm}\n")

    def on_epoch_end(self, trainer: TrainerInterface, record: EpochRecord) -> None:
        # from the whole history, so that the columns fit all rows
        trainer.history.to_csv(self.path)
        if self._file is not None:
            self._file.flush()

    def _close(self, failed: bool) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
