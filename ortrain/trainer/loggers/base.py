"""What loggers share: when they write, what figures are called, and that they are closed however training ends."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any

from ortrain.errors import InvalidArgumentError
from ortrain.trainer.callbacks import Callback, TrainerInterface
from ortrain.trainer.records import EpochRecord, StepRecord


class Logger(Callback):
    """Base of loggers: subclasses write figures of a step, and are closed when training ends, with an exception or without.

    every: steps of which the loss, learning rate and gradient norm are written; None for none. Epochs and evaluations are always written.

    Figures are called step/loss, step/learning_rate, step/gradient_norm; training/loss and training/<metric>; validation/loss and validation/<metric>;
    epoch/number, epoch/learning_rate, epoch/seconds and epoch/samples_per_second. All are written against the number of optimizer steps."""

    rank_zero_only = True

    def __init__(self, every: int | None = 10) -> None:
        if every is not None and (isinstance(every, bool) or not isinstance(every, int) or every < 1):
            raise InvalidArgumentError(f"expected every to be None or an integer >= 1, got {every!r}")
        self.every = every
        self._opened = False
        self._evaluated_at = -1

    @abstractmethod
    def _open(self, trainer: TrainerInterface) -> None:
        """Start writing, the settings first. A resumed run continues where `trainer.step` is."""

    def _write(self, figures: Mapping[str, float], step: int) -> None:
        """Write figures of a step. Loggers that write whole records override the events below instead."""

    def _flush(self) -> None:
        """Make what was written visible to readers; called after each epoch."""

    @abstractmethod
    def _close(self, failed: bool) -> None:
        """Stop writing. failed: training ended with an exception."""

    # ---- events

    def on_fit_begin(self, trainer: TrainerInterface) -> None:
        self._finish(failed=False)
        self._open(trainer)
        self._opened = True
        self._evaluated_at = -1

    def on_step_end(self, trainer: TrainerInterface, record: StepRecord) -> None:
        if self.every is not None and record.step % self.every == 0:
            self._write_step(record)

    def _write_step(self, record: StepRecord) -> None:
        self._write(step_figures(record), record.step)

    def on_evaluation_end(self, trainer: TrainerInterface, results: dict[str, float]) -> None:
        # an evaluation outside of fit belongs to no run
        if self._opened:
            self._evaluated_at = trainer.step
            self._write(prefixed("validation", results), trainer.step)

    def on_epoch_end(self, trainer: TrainerInterface, record: EpochRecord) -> None:
        figures = epoch_figures(record)
        if self._evaluated_at != record.step:
            figures |= prefixed("validation", record.validation)
        self._write(figures, record.step)
        self._flush()

    def on_fit_end(self, trainer: TrainerInterface) -> None:
        self._finish(failed=False)

    def on_exception(self, trainer: TrainerInterface, error: BaseException) -> None:
        try:
            self._finish(failed=True)
        except Exception as second:
            # the first error is the one to be seen
            error.add_note(f"besides, {type(self).__name__} could not be closed: {second}")

    def _finish(self, failed: bool) -> None:
        if self._opened:
            self._opened = False
            self._close(failed)


class RunLogger(Logger):
    """Base of loggers that write into a run of a tracking service, which goes on when training is resumed."""

    def __init__(self, every: int | None = 10) -> None:
        super().__init__(every)
        self.run_id: str | None = None
        """The id of the service's run, None before training begins."""

    def goes_on(self, trainer: TrainerInterface) -> bool:
        """Return whether training is resumed in the run of run_id."""
        return trainer.step > 0 and self.run_id is not None

    def state_dict(self) -> dict[str, Any]:
        return {"run_id": self.run_id}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        run_id = state.get("run_id")
        if set(state) != {"run_id"} or not isinstance(run_id, str | None):
            raise InvalidArgumentError(f"expected a run_id as the state of {type(self).__name__}, got {state!r}")
        self.run_id = run_id


def prefixed(part: str, figures: Mapping[str, float]) -> dict[str, float]:
    """Return figures named part/name."""
    return {f"{part}/{name}": value for name, value in figures.items()}


def step_figures(record: StepRecord) -> dict[str, float]:
    """Return the figures of a step."""
    figures = {"loss": record.loss, "learning_rate": record.learning_rate}
    if record.gradient_norm is not None:
        figures["gradient_norm"] = record.gradient_norm
    return prefixed("step", figures)


def epoch_figures(record: EpochRecord) -> dict[str, float]:
    """Return the figures of an epoch, without those on validation data."""
    figures = {"number": record.epoch, "learning_rate": record.learning_rate, "seconds": record.seconds}
    if record.seconds > 0:
        figures["samples_per_second"] = record.samples / record.seconds
    return prefixed("training", record.training) | prefixed("epoch", figures)


def flattened(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (name, value) of nested settings, inner names after a dot."""
    for name, value in settings.items():
        if isinstance(value, Mapping):
            yield from flattened(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value
