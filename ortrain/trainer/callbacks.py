"""Callbacks: what a trainer calls while it trains, and the callbacks that ortrain brings for stopping and freezing."""

from __future__ import annotations

import fnmatch
import io
import math
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np

from ortrain import metrics
from ortrain.errors import ArgumentTypeError, InvalidArgumentError
from ortrain.formats.atomic_files import replace_file
from ortrain.trainer.records import LOSS, VALIDATION, EpochRecord, History, StepRecord


class TrainerInterface(Protocol):
    """What callbacks may use of a trainer."""

    @property
    def session(self) -> Any:
        """The TrainingSession in training."""

    @property
    def epoch(self) -> int:
        """Completed epochs of the run."""

    @property
    def step(self) -> int:
        """Completed optimizer steps of the run."""

    @property
    def epochs(self) -> int:
        """The number of epochs at which training ends."""

    @property
    def steps_per_epoch(self) -> int | None:
        """Optimizer steps of one epoch, None if the data do not tell."""

    @property
    def history(self) -> History:
        """The records of all completed epochs, of resumed runs too."""

    @property
    def settings(self) -> Mapping[str, Any]:
        """What the run was started with; JSON can hold it."""

    @property
    def output_folder(self) -> Path | None:
        """Where the run writes its files."""

    @property
    def rank(self) -> int:
        """The number of this process among the workers of a parallel run; that of rank 0, which is also that of a single process, writes the files."""

    def stop(self, reason: str) -> None:
        """End training after the current epoch."""

    def save_weights(self) -> Any:
        """Return a copy of the current parameters."""

    def restore_weights(self, saved: Any) -> None:
        """Set the parameters to what save_weights returned."""


class Callback:
    """Is called at the events of a training run; override the methods of interest, all of which do nothing here.

    In a parallel run every worker calls its callbacks, with the same records. One that acts for the run as a whole, such as a logger, says so by
    rank_zero_only = True."""

    rank_zero_only: bool = False
    """Whether rank 0 alone calls the callback."""

    def on_fit_begin(self, trainer: TrainerInterface) -> None:
        """Training begins, or continues a resumed run."""

    def on_epoch_begin(self, trainer: TrainerInterface) -> None:
        """An epoch begins; `trainer.epoch` epochs are complete."""

    def on_gradients(self, trainer: TrainerInterface, batches: int) -> None:
        """An optimizer step is about to begin: `session.gradient_buffers()` are the gradients that it scales, clips and uses.

        batches: how many train steps have added them up; with accumulation="mean" the optimizer step divides them by it. In a parallel run they are those of
        all workers, unless each takes steps by itself."""

    def on_step_end(self, trainer: TrainerInterface, record: StepRecord) -> None:
        """An optimizer step is complete."""

    def on_evaluation_end(self, trainer: TrainerInterface, results: dict[str, float]) -> None:
        """An evaluation on validation data is complete. results: "loss", then metrics by name."""

    def on_epoch_end(self, trainer: TrainerInterface, record: EpochRecord) -> None:
        """An epoch, with its evaluation, is complete; `trainer.history` ends with its record."""

    def on_fit_end(self, trainer: TrainerInterface) -> None:
        """Training ends, without an exception."""

    def on_exception(self, trainer: TrainerInterface, error: BaseException) -> None:
        """Training ends with an exception, KeyboardInterrupt included."""

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed run needs to know; JSON can hold it."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what state_dict returned, before on_fit_begin of a resumed run."""


HOOKS = tuple(name for name in vars(Callback) if name.startswith("on_"))


class LambdaCallback(Callback):
    """Calls functions at events: LambdaCallback(on_epoch_end=lambda trainer, record: print(record)).

    hooks: functions by the names of Callback's methods, with their parameters.
    Raises InvalidArgumentError for other names, ArgumentTypeError for what is not callable."""

    def __init__(self, **hooks: Callable[..., Any]) -> None:
        for name, hook in hooks.items():
            if name not in HOOKS:
                raise InvalidArgumentError(f"expected names among {', '.join(HOOKS)}, got {name!r}")
            if not callable(hook):
                raise ArgumentTypeError(f"expected a function for {name}, got {type(hook).__name__}")
        for name, hook in hooks.items():
            setattr(self, name, hook)


BEST_WEIGHTS = "early-stopping"
"""What the names of the files of best weights begin with, beside the checkpoint of a run."""
EPOCH_DIGITS = 4


class EarlyStopping(Callback):
    """Stops training when a figure has not improved for `patience` epochs.

    monitor: the figure: "loss" or the name of a metric, with the prefix "validation_" on validation data. patience: at least 1.
    min_delta: the change, at least 0, that counts as an improvement only when exceeded.
    mode: "min" or "max"; "auto" follows from the monitored figure: losses are to fall, for metrics see ortrain.metrics.higher_is_better.
    restore_best: set the parameters of the best epoch when training ends. In a run with a folder they are written there, so that a resumed run has them too;
    after a resume without that file the last weights stay, with a warning.

    NaN is no improvement. Raises InvalidArgumentError for these values, for a monitor whose mode is unknown, and, after the first epoch, for one that
    records do not have."""

    def __init__(self, monitor: str = f"{VALIDATION}{LOSS}", patience: int = 5, *, min_delta: float = 0.0, mode: Literal["auto", "min", "max"] = "auto",
                 restore_best: bool = True) -> None:
        if isinstance(patience, bool) or not isinstance(patience, int) or patience < 1:
            raise InvalidArgumentError(f"expected an integer patience >= 1, got {patience!r}")
        if not (math.isfinite(min_delta) and min_delta >= 0):
            raise InvalidArgumentError(f"expected a min_delta >= 0, got {min_delta}")
        if mode not in ("auto", "min", "max"):
            raise InvalidArgumentError(f'expected mode to be "auto", "min" or "max", got {mode!r}')
        self.monitor = monitor
        self.patience = patience
        self.min_delta = min_delta
        self.restore_best = restore_best
        self._sign = (-1.0 if _rises(monitor) else 1.0) if mode == "auto" else {"min": 1.0, "max": -1.0}[mode]
        self._forget()

    def _forget(self) -> None:
        self.best: float | None = None
        """The best figure so far."""
        self.best_epoch = 0
        """The epoch it is of; 0 before the first one."""
        self.waited = 0
        """Epochs since then."""
        self._weights: Any = None

    def on_fit_begin(self, trainer: TrainerInterface) -> None:
        if trainer.epoch == 0:
            self._forget()
            for path in [] if trainer.output_folder is None or trainer.rank else trainer.output_folder.glob(f"{self._file}*.npy"):
                path.unlink()                           # of a run that this one replaces

    def on_epoch_end(self, trainer: TrainerInterface, record: EpochRecord) -> None:
        figures = record.figures
        if self.monitor not in figures:
            raise InvalidArgumentError(f"expected to monitor one of {', '.join(figures)}, got {self.monitor!r}")
        value = figures[self.monitor]
        if self._improves(value):
            self.best, self.best_epoch, self.waited = value, record.epoch, 0
            if self.restore_best:
                self._weights = trainer.save_weights()
                if trainer.output_folder is not None and trainer.rank == 0:
                    self._write_weights(trainer.output_folder)
            return
        self.waited += 1
        if self.waited >= self.patience:
            best = "no finite value" if self.best is None else f"{self.best:.4g} in epoch {self.best_epoch}"
            trainer.stop(f"{self.monitor} has not improved for {self.waited} epochs (best: {best})")

    def _improves(self, value: float) -> bool:
        if self.best is None:
            return math.isfinite(value)
        return self._sign * (self.best - value) > self.min_delta

    def on_fit_end(self, trainer: TrainerInterface) -> None:
        if not self.restore_best or not self.waited or not self.best_epoch:
            return
        if self._weights is None and trainer.output_folder is not None:
            self._weights = self._read_weights(trainer.output_folder)
        if self._weights is None:
            warnings.warn(f"the parameters of the best epoch, {self.best_epoch}, were lost when the run was resumed; those of the last epoch are kept",
                          stacklevel=2)
            return
        trainer.restore_weights(self._weights)

    # ---- the best weights of a run with a folder

    @property
    def _file(self) -> str:
        """The name of the file of the best weights, without the number of their epoch."""
        return f"{BEST_WEIGHTS}.{re.sub(r'[^A-Za-z0-9_-]', '_', self.monitor)}-{'min' if self._sign > 0 else 'max'}-epoch-"

    def _write_weights(self, folder: Path) -> None:
        """Write the best weights, and remove those that neither this nor the last checkpoint can refer to."""
        content = io.BytesIO()
        np.save(content, self._weights, allow_pickle=False)
        folder.mkdir(parents=True, exist_ok=True)
        written = sorted(folder.glob(f"{self._file}*.npy"))
        replace_file(folder / f"{self._file}{self.best_epoch:0{EPOCH_DIGITS}}.npy", content.getvalue())
        for path in written[:-1]:
            path.unlink()

    def _read_weights(self, folder: Path) -> np.ndarray | None:
        path = folder / f"{self._file}{self.best_epoch:0{EPOCH_DIGITS}}.npy"
        if not path.exists():
            return None
        weights: np.ndarray = np.load(path, allow_pickle=False)
        return weights

    def state_dict(self) -> dict[str, Any]:
        return {"best": self.best, "best_epoch": self.best_epoch, "waited": self.waited}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        try:
            best = None if state["best"] is None else float(state["best"])
            best_epoch, waited = int(state["best_epoch"]), int(state["waited"])
        except (KeyError, TypeError, ValueError) as error:
            raise InvalidArgumentError(f"expected best, best_epoch and waited as the state of EarlyStopping, got {state!r}") from error
        self._forget()
        self.best, self.best_epoch, self.waited = best, best_epoch, waited


def _rises(monitor: str) -> bool:
    """Return whether a monitored figure is to rise. Raises InvalidArgumentError when its name does not tell."""
    name = monitor.removeprefix(VALIDATION)
    if name == LOSS:
        return False
    try:
        return metrics.higher_is_better(name)
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f'expected mode="min" or mode="max" for the monitor {monitor!r}, whose name does not tell') from error


class GradualUnfreezing(Callback):
    """Freezes parameters at first and unfreezes them epoch by epoch, output layers first (ULMFiT, Howard and Ruder 2018).

    schedule: epoch, from 1 -> pattern or patterns of the parameters that are trained from this epoch on: {1: "head.*", 3: "layer4.*", 5: "*"}. Patterns are
    those of fnmatch. A parameter of several patterns is trained from the earliest epoch on; one of no pattern stays as it is.

    Raises InvalidArgumentError for an epoch below 1, and when training begins for a pattern that fits no trainable parameter."""

    def __init__(self, schedule: Mapping[int, str | Sequence[str]]) -> None:
        if not isinstance(schedule, Mapping):
            raise ArgumentTypeError(f"expected a mapping of epochs to patterns, got {type(schedule).__name__}")
        self.schedule: dict[int, tuple[str, ...]] = {}
        for epoch, patterns in sorted(schedule.items()):
            if isinstance(epoch, bool) or not isinstance(epoch, int) or epoch < 1:
                raise InvalidArgumentError(f"expected epochs >= 1 in the schedule, got {epoch!r}")
            self.schedule[epoch] = (patterns,) if isinstance(patterns, str) else tuple(patterns)
        self._names: dict[int, list[str]] = {}

    def on_fit_begin(self, trainer: TrainerInterface) -> None:
        trainable = list(trainer.session.state.trainable)
        names: dict[int, list[str]] = {}
        taken: set[str] = set()
        for epoch, patterns in self.schedule.items():
            matches = {pattern: fnmatch.filter(trainable, pattern) for pattern in patterns}
            for pattern, found in matches.items():
                if not found:
                    raise InvalidArgumentError(f"expected a pattern of trainable parameters, got {pattern!r}; they are {', '.join(trainable[:20])}"
                                               + (", ..." if len(trainable) > 20 else ""))
            names[epoch] = sorted({name for found in matches.values() for name in found} - taken)
            taken.update(names[epoch])
        self._names = names
        current = trainer.epoch + 1
        trainer.session.freeze(*[name for epoch, group in names.items() if epoch > current for name in group])
        trainer.session.unfreeze(*[name for epoch, group in names.items() if epoch <= current for name in group])

    def on_epoch_begin(self, trainer: TrainerInterface) -> None:
        trainer.session.unfreeze(*self._names.get(trainer.epoch + 1, []))
