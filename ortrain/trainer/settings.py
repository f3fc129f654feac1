"""The settings of a trainer, checked when it is made."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from ortrain.distributed.synchronization import Synchronization
from ortrain.errors import InvalidArgumentError
from ortrain.runtime.numbers import check_count, check_number
from ortrain.trainer.callbacks import Callback, EarlyStopping
from ortrain.training.schedules import check_schedule

AUTOMATIC = "auto"
"""As metrics: accuracy for integer targets, none for others."""

WORKERS = "workers"
"""In the settings of a parallel run, the number of its workers."""

OF_FIT = {"epochs": "epochs", "num_epochs": "epochs", "num_train_epochs": "epochs", "batch_size": "batch_size", "validation": "validation",
          "validation_data": "validation", "validation_split": "validation", "shuffle": "shuffle"}
"""Names that a trainer does not take -> the argument of fit that they stand for."""
SHORT = {"lr": "learning_rate", "early_stopping_patience": "patience", "gradient_accumulation_steps": "accumulate", "max_grad_norm": "clip_norm",
         "lr_scheduler": "schedule", "scheduler": "schedule", "ema": "weight_average"}
"""Names of other libraries -> the setting here."""


@dataclass(frozen=True, slots=True)
class TrainerSettings:
    """The keyword arguments of a Trainer.

    seed: determines the order of the samples and the split of validation data.
    metrics: names, metrics or functions (targets, predictions) -> float; "auto" is accuracy for integer targets, none for others.
    schedule: a name such as "cosine", or a schedule. warmup_steps: optimizer steps of linear growth from 0. schedule_options: further arguments of a
    schedule given by name.
    accumulate: batches whose gradients make one optimizer step. accumulation: "mean" averages their gradients, "sum" adds them up.
    clip_norm: limit of the gradients' common norm. clip_value: limit of each gradient element.
    parameter_groups: ortrain.ParameterGroup objects, for learning rates, weight decay and frozen weights by name.
    weight_average: decay of an exponential moving average of the weights, with which evaluate, predict and export then work; None for none.
    patience: epochs without a better monitored figure after which training ends and the best weights are restored; None trains all epochs.
    monitor: the figure of early stopping and of the best checkpoint: "validation_loss", "loss", or a metric's name.
    keep_last, keep_best: numbers of recent and of best checkpoints to keep beside the latest. save_every_steps: also save after so many optimizer steps.
    callbacks: ortrain.trainer.Callback objects. progress: show a progress bar.
    strategy: how several processes train one model, each on its part of the data: "mpi", an ortrain.distributed.Strategy, or None for one process.
    An ortrain.distributed.Launcher, such as Ray, starts them in fit.
    synchronized_batch_normalization: normalize the batches of all workers by their common statistics, instead of each by its own.
    synchronization: what they exchange, and when: an ortrain.distributed.Synchronization; None sums gradients before every optimizer step."""

    seed: int = 0
    metrics: Any = AUTOMATIC
    schedule: Any = None
    warmup_steps: int = 0
    schedule_options: Mapping[str, Any] = field(default_factory=dict)
    accumulate: int = 1
    accumulation: str = "mean"
    clip_norm: float | None = None
    clip_value: float | None = None
    parameter_groups: Sequence[Any] = ()
    weight_average: float | None = None
    patience: int | None = None
    monitor: str = "validation_loss"
    keep_last: int = 0
    keep_best: int = 1
    save_every_steps: int | None = None
    callbacks: Sequence[Callback] = ()
    progress: bool = True
    strategy: Any = None
    synchronization: Synchronization | None = None
    synchronized_batch_normalization: bool = False

    @classmethod
    def of(cls, settings: Mapping[str, Any], others: Collection[str] = ()) -> TrainerSettings:
        """Return checked settings. others: arguments that stand beside them. Raises InvalidArgumentError for an unknown name, with the one that may have been
        meant, or an invalid value."""
        known = {entry.name for entry in fields(cls)}
        unknown = sorted(set(settings) - known)
        if unknown:
            hints = "; ".join(filter(None, (_hint(name, [*others, *sorted(known)]) for name in unknown)))
            raise InvalidArgumentError(f"expected settings named {sorted(known)}, got {unknown}" + (f": {hints}" if hints else ""))
        return cls(**settings)

    def __post_init__(self) -> None:
        for name, least in {"seed": 0, "warmup_steps": 0, "accumulate": 1, "keep_last": 0, "keep_best": 0}.items():
            check_count(getattr(self, name), name, least)
        for name in ("patience", "save_every_steps"):
            if (value := getattr(self, name)) is not None:
                check_count(value, name, 1)
        for name in ("clip_norm", "clip_value"):
            if (value := getattr(self, name)) is not None:
                check_number(value, name, positive=True)
        if (decay := self.weight_average) is not None and check_number(decay, "weight_average", positive=True) >= 1:
            raise InvalidArgumentError(f"expected weight_average as a decay below 1, got {decay!r}")
        if self.accumulation not in ("mean", "sum"):
            raise InvalidArgumentError(f"expected 'mean' or 'sum' as accumulation, got {self.accumulation!r}")
        if self.warmup_steps and self.schedule is None:
            object.__setattr__(self, "schedule", "constant")
        if self.schedule is not None:
            check_schedule(self.schedule)
        if not isinstance(self.synchronization, Synchronization | None):
            raise InvalidArgumentError(f"expected an ortrain.distributed.Synchronization as synchronization, got {self.synchronization!r}")
        if self.weight_average is not None and self.synchronization is not None and not self.synchronization.sums_gradients:
            raise InvalidArgumentError("expected no weight_average with workers that take steps by themselves, whose averages would differ, got "
                                       f"{type(self.synchronization).__name__}")
        if self.synchronized_batch_normalization and self.synchronization is not None and not self.synchronization.has_free_steps:
            raise InvalidArgumentError("expected no synchronized batch normalization with workers that exchange gradients during train steps or train by "
                                       f"themselves, got {type(self.synchronization).__name__}")
        check_callbacks(self.callbacks)

    def default_callbacks(self) -> list[Callback]:
        """Return the callbacks that settings stand for."""
        return [] if self.patience is None else [EarlyStopping(monitor=self.monitor, patience=self.patience)]

    def described(self) -> dict[str, Any]:
        """Return the settings that differ from their defaults, as JSON values."""
        return {entry.name: _described(getattr(self, entry.name)) for entry in fields(self)
                if entry.name not in ("callbacks", "progress", "strategy", "synchronization") and getattr(self, entry.name)}


def check_callbacks(callbacks: Sequence[Any]) -> None:
    """Raise InvalidArgumentError for callbacks that are none."""
    for callback in callbacks:
        if not isinstance(callback, Callback):
            raise InvalidArgumentError(f"expected Callback objects as callbacks, got {type(callback).__name__}: wrap a function in LambdaCallback")


def _hint(name: str, known: Sequence[str]) -> str:
    """Say what may have been meant by an unknown name."""
    if name in OF_FIT:
        return f"{OF_FIT[name]} is an argument of fit"
    close = [meant for meant in (SHORT.get(name, ""),) if meant in known] or difflib.get_close_matches(name, known, 1)
    return f"did you mean {close[0]!r} by {name!r}?" if close else ""


def _described(value: Any) -> Any:
    if isinstance(value, str | int | float | bool) or value is None:
        return value
    if isinstance(value, Mapping):
        return {str(key): _described(entry) for key, entry in value.items()}
    if isinstance(value, Sequence):
        return [_described(entry) for entry in value]
    return getattr(value, "name", None) or getattr(value, "__name__", None) or repr(value)
