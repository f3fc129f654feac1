"""What a run leaves behind: one record per step and epoch, and the history of all epochs."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from ortrain.errors import InvalidArgumentError
from ortrain.formats.atomic_files import replace_file
from ortrain.packages import require
from ortrain.trainer.html import figure_text, history_html, panels

LOSS = "loss"
VALIDATION = "validation_"
"""Prefix of figures on validation data, where they stand beside those on training data."""


@dataclass(frozen=True, slots=True)
class StepRecord:
    """The results of one optimizer step.

    step: completed optimizer steps of the run. epoch: the epoch the step belongs to, from 1. gradient_norm: None where it was not computed."""

    step: int
    epoch: int
    loss: float
    learning_rate: float
    gradient_norm: float | None


@dataclass(frozen=True, slots=True)
class EpochRecord:
    """The results of one epoch.

    epoch: its number, from 1. step: completed optimizer steps of the run. training, validation: "loss", then metrics by name; validation is empty without
    validation data. learning_rate: that of the last step. seconds: how long training and evaluation took. samples: training samples of the epoch."""

    epoch: int
    step: int
    training: dict[str, float]
    validation: dict[str, float]
    learning_rate: float
    seconds: float
    samples: int

    @property
    def loss(self) -> float:
        """The mean training loss."""
        return self.training[LOSS]

    @property
    def validation_loss(self) -> float | None:
        """The mean validation loss, None without validation data."""
        return self.validation.get(LOSS)

    @property
    def figures(self) -> dict[str, float]:
        """All figures by name, those on validation data with the prefix "validation_": loss, accuracy, validation_loss, validation_accuracy, ..."""
        return {**self.training, **{f"{VALIDATION}{name}": value for name, value in self.validation.items()}}

    def __str__(self) -> str:
        named = [f"{name.replace('_', ' ')} {figure_text(value)}" for name, value in self.figures.items()]
        return ", ".join([f"epoch {self.epoch}", *named, f"learning rate {self.learning_rate:.3g}", f"{self.seconds:.1f} s"])

    def to_dict(self) -> dict[str, Any]:
        """Return the record as a dictionary that json.dumps accepts."""
        return {entry.name: getattr(self, entry.name) for entry in fields(self)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> EpochRecord:
        """Return the record that to_dict made into `values`. Raises InvalidArgumentError for anything else."""
        names = [field.name for field in fields(cls)]
        if set(values) != set(names):
            raise InvalidArgumentError(f"expected an epoch record with {names}, got {sorted(map(str, values))}")
        try:
            training, validation = ({str(name): float(value) for name, value in values[part].items()} for part in ("training", "validation"))
            record = cls(int(values["epoch"]), int(values["step"]), training, validation, float(values["learning_rate"]), float(values["seconds"]),
                         int(values["samples"]))
        except (AttributeError, TypeError, ValueError) as error:
            raise InvalidArgumentError(f"expected an epoch record of numbers, got {dict(values)}") from error
        if LOSS not in training:
            raise InvalidArgumentError(f"expected an epoch record with a training loss, got {sorted(training)}")
        return record


class History(list[EpochRecord]):
    """The records of all epochs, in order."""

    def to_dict(self) -> dict[str, list[Any]]:
        """Return column name -> values, one per epoch, for pandas.DataFrame and the like: epoch, step, the figures, learning_rate, seconds, samples.

        A figure that an epoch does not have is None."""
        names = list(dict.fromkeys(name for record in self for name in record.figures))
        return {"epoch": [record.epoch for record in self], "step": [record.step for record in self],
                **{name: [record.figures.get(name) for record in self] for name in names},
                "learning_rate": [record.learning_rate for record in self], "seconds": [record.seconds for record in self],
                "samples": [record.samples for record in self]}

    def to_csv(self, path: str | os.PathLike[str]) -> None:
        """Write a CSV file with one row per epoch and the columns of to_dict; figures that an epoch does not have are empty."""
        columns = self.to_dict()
        text = io.StringIO(newline="")
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows(zip(*columns.values(), strict=True))
        replace_file(path, text.getvalue().encode())

    def plot(self, path: str | os.PathLike[str]) -> None:
        """Draw the figures over the epochs into an image file, one panel per figure, training beside validation; the suffix says the format.

        Needs matplotlib. Raises InvalidArgumentError for a suffix that matplotlib does not know."""
        figure = require("matplotlib.figure", "plot", "plots").Figure
        integer_ticks = require("matplotlib.ticker", "plot", "plots").MaxNLocator
        drawn = panels(self)
        canvas = figure(figsize=(5.5 * max(1, len(drawn)), 4), layout="constrained")
        for number, (name, curves) in enumerate(drawn.items(), 1):
            axes = canvas.add_subplot(1, len(drawn), number)
            for label, points in curves.items():
                axes.plot(*zip(*points, strict=True), marker="o", markersize=3, label=label)
            axes.set(title=name, xlabel="epoch")
            axes.xaxis.set_major_locator(integer_ticks(integer=True))
            axes.grid(alpha=0.3)
            axes.legend()
        image, suffix = io.BytesIO(), os.path.splitext(os.fspath(path))[1].lstrip(".") or "png"
        if suffix not in canvas.canvas.get_supported_filetypes():
            raise InvalidArgumentError(f"expected an image file, for example .png or .svg, got {os.fspath(path)!r}")
        canvas.savefig(image, format=suffix, dpi=120)
        replace_file(path, image.getvalue())

    def _repr_html_(self) -> str:
        return history_html(self)
