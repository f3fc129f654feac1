"""The loop over the batches of an epoch for several workers, each of which trains on its part of every batch.

A group of batches that makes one optimizer step costs one exchange of a few numbers, by which failures and wishes to stop become known too, and one
all-reduce of the gradients. Batches that are accumulated before it cost none, and steps that each worker takes by itself (LocalSGD) neither."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING

import numpy as np

from ortrain.data.loader import BatchShard, DataLoader
from ortrain.distributed.synchronization import scale
from ortrain.distributed.workers import Workers
from ortrain.errors import InvalidArgumentError
from ortrain.metrics import Metric
from ortrain.trainer.callbacks import Callback
from ortrain.trainer.loop import METRIC_ELEMENTS, METRIC_SAMPLES, EpochLoop, RunningMetrics, StopSignal
from ortrain.training.schedules import Schedule
from ortrain.training.session import TrainingSession

if TYPE_CHECKING:
    from ortrain.trainer.trainer import Trainer

SEED_STEP = 0x9E3779B97F4A7C15
"""Between the seeds of two workers: 2^64 divided by the golden ratio, so that no seed of another run is near one of these."""


class ParallelMetrics(RunningMetrics):
    """The mean loss and the metrics over the batches of all workers, the same on each of them."""

    def __init__(self, metrics: Sequence[Metric], workers: Workers) -> None:
        self.workers = workers
        super().__init__(metrics)

    def reset(self) -> None:
        super().reset()
        self._own_loss, self._own_samples = 0.0, 0

    def add(self, loss: float, samples: int, predictions: np.ndarray | None, targets: np.ndarray) -> None:
        self._own_loss += loss * samples
        self._own_samples += samples
        if predictions is not None:
            self._predictions.append(predictions)
            self._targets.append(targets)
            self._waiting += samples
            self._elements += predictions.size

    def flush(self) -> None:
        """Leave the waiting predictions where they are: gather() gives the metrics those of all workers at once."""

    def combine(self) -> None:
        self.combined_with()

    def combined_with(self, *figures: float) -> list[float]:
        """Add the batches of all workers since the last call; return the sums of further figures over the workers."""
        loss, samples, waiting, elements, *sums = self.workers.sum(self._own_loss, self._own_samples, self._waiting, self._elements, *figures)
        self._own_loss, self._own_samples = 0.0, 0
        self.loss_sum += loss
        self.samples += int(samples)
        if waiting >= METRIC_SAMPLES or elements >= METRIC_ELEMENTS:
            self.gather()
        return sums

    def gather(self) -> None:
        if not self.metrics:
            return
        self._predictions, self._targets = self.workers.gather_arrays(self._predictions), self.workers.gather_arrays(self._targets)
        super().flush()


class ParallelEpochLoop(EpochLoop):
    """Runs epochs over the batches of a sharded loader, together with the other workers.

    A gradient is the mean over the samples of a batch, and that of a shard counts by its share of the batch's samples, so that a step is that of one process
    with the whole batch, to rounding."""

    running: ParallelMetrics

    def __init__(self, trainer: Trainer, loader: DataLoader, schedule: Schedule | None, callbacks: Sequence[Callback], stop: StopSignal) -> None:
        super().__init__(trainer, loader, schedule, callbacks, stop)
        self._share = 0.0
        """By what the gradients added up so far are to be multiplied before they are summed over the workers; 0 without any."""
        self._batches = 0
        """Batches since the last optimizer step."""
        self.synchronization = trainer.synchronization

    def _make_running(self, metrics: Sequence[Metric]) -> ParallelMetrics:
        return ParallelMetrics(metrics, self.trainer.workers)

    def run(self) -> bool:
        self._share, self._batches = 0.0, 0
        complete = super().run()
        if complete:
            self.running.combine()
            self.running.gather()
        return complete

    def _train_step(self, batch: Sequence[np.ndarray]) -> float:
        """Run a train step on this worker's part of a batch; return its loss, multiplied by the part's share of the samples where gradients are summed."""
        assert isinstance(batch, BatchShard)
        self._batches += 1
        share = len(batch[self.target]) / batch.samples if batch and self.synchronization.sums_gradients else 1.0
        if batch:
            if self._share not in (0.0, share):
                for buffer in self.trainer.session.gradient_buffers():
                    scale(buffer, self._share / share)
            self._share = share
        is_last = self._batches == self.trainer.options.accumulate
        normalization = self.trainer.batch_normalization
        with (self.synchronization.backward(self._share) if is_last else nullcontext(), nullcontext() if normalization is None else normalization.step(share)):
            return super()._train_step(batch) * share if batch else 0.0

    def _optimizer_step(self, batches: int, loss: float) -> bool:
        """As of a single process, where one worker's wish to stop reaches all of them with the next step that is due."""
        agreed: str | None = None
        is_due = self.synchronization.is_due(self.trainer.step + 1)
        if is_due:
            reason = self.trainer.stopped or self.stop.received
            loss, count, wishes = self.running.combined_with(loss, float(self._share != 0), float(reason is not None))
            agreed = self.trainer.workers.first(reason) if wishes else None
            if not self.synchronization.sums_gradients:
                loss /= count or 1.0
        buffers = self.trainer.session.gradient_buffers()
        if self.synchronization.sums_gradients:
            self.synchronization.sum_gradients(buffers, self._share)
        elif not self._share:
            for buffer in buffers:
                scale(buffer, 0)
        self._share, self._batches = 0.0, 0
        super()._optimizer_step(batches, loss)
        if is_due:
            self.synchronization.synchronize()
        self.trainer.stopped = agreed or self.trainer.stopped
        return agreed is not None

    def _update(self, batches: int) -> None:
        super()._update(batches)
        self.synchronization.gather_parameters()


def prepare_worker(session: TrainingSession, rank: int) -> None:
    """Give the session of a worker random masks of its own. Raises InvalidArgumentError for one without gradients to sum up."""
    if session.options.optimizer_in_backward:
        raise InvalidArgumentError("expected a session without optimizer_in_backward for several workers, whose gradients are summed before the optimizer step")
    session.keep_gradients()                                # so that not even the first step is planned for deferred ones
    session._handle.seed = (session._handle.seed + rank * SEED_STEP) % 2**64
