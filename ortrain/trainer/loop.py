"""The loop over the batches of an epoch, and the signal that ends it. That of several workers is in ortrain.trainer.parallel_loop.

It is the part of the trainer that runs in every step. What need not happen at every step is gathered: predictions wait until METRIC_SAMPLES of them are
there, which makes an accuracy cost 2 instead of 12 microseconds a step for batches of 16."""

from __future__ import annotations

import copy
import math
import signal
import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ortrain.data import DataLoader
from ortrain.errors import InvalidStateError
from ortrain.metrics import Metric
from ortrain.runtime.values import find_non_finite
from ortrain.trainer.callbacks import Callback
from ortrain.trainer.records import EpochRecord, StepRecord
from ortrain.training.schedules import Schedule

if TYPE_CHECKING:
    from ortrain.trainer.checkpoints import Progress
    from ortrain.trainer.trainer import Trainer

METRIC_SAMPLES = 4096
METRIC_ELEMENTS = 1 << 20
"""Waiting predictions are given to the metrics from so many samples, or elements, on."""


class RunningMetrics:
    """The mean loss and the metrics of an epoch, fed batch by batch.

    metrics: are used themselves, so that their owner can look at more than the figure afterwards, such as ConfusionMatrix.matrix."""

    def __init__(self, metrics: Sequence[Metric]) -> None:
        self.metrics = list(metrics)
        self.reset()

    def reset(self) -> None:
        """Begin a new epoch."""
        self.loss_sum, self.samples = 0.0, 0
        self._predictions: list[np.ndarray] = []
        self._targets: list[np.ndarray] = []
        self._waiting = self._elements = 0
        for metric in self.metrics:
            metric.reset()

    def add(self, loss: float, samples: int, predictions: np.ndarray | None, targets: np.ndarray) -> None:
        """Add a batch. predictions: what the metrics look at; None without metrics."""
        self.loss_sum += loss * samples
        self.samples += samples
        if predictions is None:
            return
        self._predictions.append(predictions)
        self._targets.append(targets)
        self._waiting += samples
        self._elements += predictions.size
        if self._waiting >= METRIC_SAMPLES or self._elements >= METRIC_ELEMENTS:
            self.flush()

    def flush(self) -> None:
        """Give the waiting predictions to the metrics."""
        if not self._predictions:
            return
        batches = list(zip(self._predictions, self._targets, strict=True))
        self._predictions, self._targets, self._waiting, self._elements = [], [], 0, 0
        same_shape = len({(p.shape[1:], t.shape[1:]) for p, t in batches}) == 1
        if same_shape and len(batches) > 1:
            batches = [(np.concatenate([p for p, _ in batches]), np.concatenate([t for _, t in batches]))]
        for predictions, targets in batches:
            for metric in self.metrics:
                metric.update(predictions, targets)

    @property
    def loss(self) -> float:
        """The mean loss per sample so far."""
        return self.loss_sum / self.samples if self.samples else math.nan

    def combine(self) -> None:
        """Add the batches of other workers since the last call; there are none in a single process."""

    def gather(self) -> None:
        """Give the metrics the predictions of other workers; there are none in a single process."""

    def results(self) -> dict[str, float]:
        """Return the mean loss, then each metric by name."""
        self.flush()
        return {"loss": self.loss} | {metric.name: metric.result() for metric in self.metrics}


class EpochLoop:
    """Runs epochs: a train step per batch, and an optimizer step per group of accumulated batches."""

    def __init__(self, trainer: Trainer, loader: DataLoader, schedule: Schedule | None, callbacks: Sequence[Callback], stop: StopSignal) -> None:
        self.trainer = trainer
        self.loader = loader
        self.schedule = schedule
        self.stop = stop
        self.running = trainer.running = self._make_running(copy.deepcopy(trainer.metrics))      # evaluation uses the trainer's own meanwhile
        self.observers = [callback for callback in callbacks if getattr(callback.on_step_end, "__func__", None) is not Callback.on_step_end]
        self.gradient_observers = [callback for callback in callbacks if getattr(callback.on_gradients, "__func__", None) is not Callback.on_gradients]
        self.target = trainer.roles.training.index(trainer.roles.targets[0])
        self.predictions = trainer.session.output_names().index(trainer.roles.predictions) if trainer.metrics and trainer.roles.predictions else 0
        self.started = time.perf_counter()
        self._session_step = trainer.session.train_step
        self._continued = False

    def _make_running(self, metrics: Sequence[Metric]) -> RunningMetrics:
        return RunningMetrics(metrics)

    def continue_from(self, progress: Progress) -> None:
        """Go on with the epoch that was saved half way."""
        self.running.loss_sum, self.running.samples = progress.loss_sum, progress.samples
        self._continued = progress.batch > 0

    def run(self) -> bool:
        """Run the batches of the current epoch that are left; return whether it was completed."""
        trainer, session, options = self.trainer, self.trainer.session, self.trainer.options
        if self._continued:
            self._continued = False
        else:
            self.running.reset()
        self.started = time.perf_counter()
        accumulate, save_every, train_step = options.accumulate, options.save_every_steps, self._train_step
        pending = 0
        losses = 0.0
        batches = self.loader.epoch(trainer.epoch, trainer.batch)
        try:
            for batch in batches:
                if pending == 0 and self.schedule is not None:
                    session.learning_rate = self.schedule.rate(trainer.step)
                losses += train_step(batch)
                pending += 1
                trainer.batch += 1
                if pending < accumulate:
                    continue
                is_stopped = self._optimizer_step(pending, losses / pending)
                pending, losses = 0, 0.0
                if save_every is not None and trainer.step % save_every == 0:
                    trainer.save()
                if is_stopped:
                    return False
            if pending:
                self._optimizer_step(pending, losses / pending)
        finally:
            close = getattr(batches, "close", None)         # of generators and of iterators with a thread
            if close is not None:
                close()
        return True

    def _train_step(self, batch: Sequence[np.ndarray]) -> float:
        """Run a train step and return the loss, for a batch without samples the mean loss so far."""
        if not batch:
            self.trainer.session.train_step_without_samples()
            return self.running.loss
        results = self._session_step(*batch)
        loss, targets, predictions = float(results[0]), batch[self.target], self.predictions
        self.running.add(loss, len(targets), results[predictions] if predictions else None, targets)
        if not math.isfinite(loss):
            self._refuse(loss, batch)
        return loss

    def _optimizer_step(self, batches: int, loss: float) -> bool:
        """Run an optimizer step; return whether training ends after it, for a reason that `trainer.stopped` then says.

        batches: how many gradients have been added up since the last step; loss: their mean loss."""
        trainer, session = self.trainer, self.trainer.session
        if session.noise is not None:
            session.add_noise()                             # before anybody looks at the gradients
        for callback in self.gradient_observers:
            callback.on_gradients(trainer, batches)
        self._update(batches)
        session.lazy_reset_grad()
        trainer.step += 1
        if trainer.average is not None:
            trainer.average.update()
        if self.observers:
            record = StepRecord(trainer.step, trainer.epoch + 1, loss, session.learning_rate, session.last_gradient_norm)
            for callback in self.observers:
                callback.on_step_end(trainer, record)
        if trainer.stopped is None:
            trainer.stopped = self.stop.received
        return trainer.stopped is not None

    def _update(self, batches: int) -> None:
        """Update the parameters from the gradients of so many batches."""
        session = self.trainer.session
        if batches > 1 and self.trainer.options.accumulation == "mean":
            session.gradient_scale = 1.0 / batches
            session.optimizer_step()
            session.gradient_scale = 1.0
        else:
            session.optimizer_step()

    def _refuse(self, loss: float, batch: Sequence[np.ndarray]) -> None:
        """Raise InvalidStateError with the reason for a loss that is not finite: a sample that is not, or too large steps."""
        trainer = self.trainer
        trainer.session.lazy_reset_grad()
        where = f"in step {trainer.step + 1} (epoch {trainer.epoch + 1}, batch {trainer.batch + 1})"
        for name, array in zip(trainer.roles.training, batch, strict=True):
            found = find_non_finite(name, array)
            if found is not None:
                raise InvalidStateError(f"expected finite data, got {found} of the batch {where}, which makes the loss {loss}")
        raise InvalidStateError(f"expected a finite loss, got {loss} {where}, from finite data: try a lower learning rate than "
                                f"{trainer.session.learning_rate:g}, or clip_norm")

    def record(self, validation: dict[str, float]) -> EpochRecord:
        """Return the record of the epoch that has just been completed."""
        trainer = self.trainer
        return EpochRecord(trainer.epoch, trainer.step, self.running.results(), validation, trainer.session.learning_rate,
                           time.perf_counter() - self.started, self.running.samples)


class StopSignal:
    """Turns the first Ctrl-C in a block into a request to stop after the running step; the second one interrupts at once.

    Outside of the main thread, where Python handles no signals, and where a program has its own handler, it changes nothing."""

    def __init__(self, trainer: Trainer) -> None:
        self.trainer = trainer
        self.received: str | None = None
        self._previous: Any = None

    def __enter__(self) -> StopSignal:
        if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            self._previous = signal.signal(signal.SIGINT, self._handle)
        return self

    def _handle(self, *_: Any) -> None:
        if self.received:
            raise KeyboardInterrupt
        self.received = "interrupted by Ctrl-C"

    def __exit__(self, *_: object) -> None:
        if self._previous is not None:
            signal.signal(signal.SIGINT, self._previous)
