"""The training loop: shuffled batches, evaluation, history, learning curve, checkpoints and exact resume.

A resumed run computes the numbers of an uninterrupted one: the order of samples depends on (seed, epoch) only, random masks on the number of steps,
and the checkpoint holds parameters, running statistics, the optimizer's state and the history."""

from __future__ import annotations

import io
import json
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from ortrain.errors import InvalidArgumentError, InvalidStateError
from ortrain.formats.atomic_files import replace_file
from ortrain.training.schedules import LinearSchedule
from ortrain.training.session import TrainingSession

Arrays = Any
"""One array, a sequence of arrays, or a mapping from input name to array; axis 0 is the sample axis."""

EPOCH, STEP, BEST_LOSS, SEED, HISTORY = "epoch", "step", "best_loss", "seed", "history"
"""Names of the checkpoint's properties."""
REFRESH = 0.2
"""Seconds between two refreshes of the progress bar."""


@dataclass(frozen=True, slots=True)
class EpochRecord:
    """The results of one epoch. Accuracies are None when the session returns no logits; validation figures are None without validation data."""

    epoch: int
    step: int
    loss: float
    accuracy: float | None
    validation_loss: float | None
    validation_accuracy: float | None
    learning_rate: float
    seconds: float

    def __str__(self) -> str:
        parts = [f"epoch {self.epoch}", f"loss {self.loss:.4f}"]
        if self.accuracy is not None:
            parts.append(f"accuracy {self.accuracy:.2%}")
        if self.validation_loss is not None:
            parts.append(f"validation loss {self.validation_loss:.4f}")
        if self.validation_accuracy is not None:
            parts.append(f"validation accuracy {self.validation_accuracy:.2%}")
        return ", ".join([*parts, f"{self.seconds:.1f} s"])


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The mean loss over all samples, and the share of correct classes where the session returns logits."""

    loss: float
    accuracy: float | None


Callback = Callable[["Trainer", EpochRecord], Any]
"""Called after each epoch with the trainer and the epoch's record; training ends when it returns True."""


class Trainer:
    """Trains a session on arrays in memory.

    seed: determines the order of the samples. checkpoint: file written after each epoch, optimizer state included.
    linear_schedule: decay the session's learning rate linearly to 0 over all epochs, after `warmup_steps` steps of linear growth from 0.
    progress: show a tqdm bar, or plain lines where tqdm is not installed.
    resume: continue a run; the session must have been created from a checkpoint that a Trainer wrote.

    Raises InvalidStateError when there is nothing to resume, InvalidArgumentError when the seed differs from the checkpoint's."""

    def __init__(self, session: TrainingSession, *, seed: int = 0, checkpoint: str | os.PathLike[str] | None = None,
                 linear_schedule: bool = False, warmup_steps: int = 0, progress: bool = True, resume: bool = False) -> None:
        if seed < 0:
            raise InvalidArgumentError(f"expected a seed >= 0, got {seed}")
        self.session = session
        self.seed = seed
        self.checkpoint = checkpoint
        self.linear_schedule = linear_schedule
        self.warmup_steps = warmup_steps
        self.progress = progress
        self.learning_rate = session.learning_rate if session.has_optimizer else 0.0        # evaluation needs no learning rate
        """The learning rate that a schedule starts from."""
        self.epoch = 0
        """Completed epochs."""
        self.step = 0
        """Completed optimizer steps."""
        self.best_loss = math.inf
        """The lowest validation loss of an epoch so far (training loss without validation data)."""
        self.history: list[EpochRecord] = []
        if resume:
            self._restore()

    def _restore(self) -> None:
        properties = self.session.properties
        try:
            self.epoch, self.step, seed = int(properties[EPOCH]), int(properties[STEP]), int(properties[SEED])
            self.history = [EpochRecord(**record) for record in json.loads(str(properties[HISTORY]))]
        except (KeyError, TypeError, ValueError) as error:
            raise InvalidStateError(f"expected a checkpoint that a Trainer wrote, got one with properties {sorted(properties)}") from error
        if seed != self.seed:
            raise InvalidArgumentError(f"expected the seed {seed} of the run to be resumed, got {self.seed}")
        self.best_loss = min(map(_score, self.history), default=math.inf)
        self.session.train_steps = self.step

    # ---- training

    def fit(self, data: Arrays, targets: Arrays, epochs: int, batch_size: int = 32, *, validation: tuple[Arrays, Arrays] | None = None,
            callbacks: Sequence[Callback] = ()) -> list[EpochRecord]:
        """Train until `epochs` epochs are complete, counted from the beginning of the run, and return the history.

        data, targets: the training model's inputs in its order, or mappings by name. The last batch of an epoch may be smaller.
        validation: (data, targets), evaluated after each epoch with the eval model.

        Raises InvalidArgumentError for invalid arguments, InvalidStateError when the loss is not finite, and the errors of train_step."""
        arrays = self._arrays(data, targets)
        held_out = None if validation is None else self._arrays(*validation)
        if epochs < 1 or batch_size < 1:
            raise InvalidArgumentError(f"expected epochs and batch_size >= 1, got {epochs} and {batch_size}")
        steps = -(-len(arrays[0]) // batch_size)
        schedule = LinearSchedule(self.warmup_steps, epochs * steps, self.learning_rate) if self.linear_schedule else None
        while self.epoch < epochs:
            record = self._run_epoch(arrays, held_out, epochs, batch_size, schedule)
            self.history.append(record)
            self.best_loss = min(self.best_loss, _score(record))
            self._save()
            answers = [callback(self, record) for callback in callbacks]
            if any(answer is True for answer in answers):
                break
        return self.history

    def _run_epoch(self, arrays: list[np.ndarray], held_out: list[np.ndarray] | None, epochs: int, batch_size: int,
                   schedule: LinearSchedule | None) -> EpochRecord:
        started, session, count = time.perf_counter(), self.session, len(arrays[0])
        mean = _Mean()
        order = np.random.default_rng([self.seed, self.epoch]).permutation(count)
        with _Progress(self.progress, f"epoch {self.epoch + 1}/{epochs}", -(-count // batch_size)) as bar:
            for start in range(0, count, batch_size):
                batch = [array[order[start : start + batch_size]] for array in arrays]
                if schedule is not None:
                    session.learning_rate = schedule.rate(self.step)
                results = session.train_step(*batch)
                mean.add(results, batch[-1])
                if not math.isfinite(mean.loss):
                    raise InvalidStateError(f"expected a finite loss, got {mean.loss} in step {self.step + 1} (epoch {self.epoch + 1}): "
                                            f"try a lower learning rate than {session.learning_rate:g}")
                session.optimizer_step()
                session.lazy_reset_grad()
                self.step += 1
                bar.update(str(mean))
            evaluation = None if held_out is None else self._evaluate(held_out, batch_size)
            self.epoch += 1
            record = EpochRecord(self.epoch, self.step, mean.loss, mean.accuracy, evaluation.loss if evaluation else None,
                                 evaluation.accuracy if evaluation else None, session.learning_rate, time.perf_counter() - started)
            bar.finish(record)
        return record

    def _save(self) -> None:
        state = self.session.state
        state.set_property(EPOCH, self.epoch)
        state.set_property(STEP, self.step)
        state.set_property(BEST_LOSS, self.best_loss)
        state.set_property(SEED, self.seed)
        state.set_property(HISTORY, json.dumps([asdict(record) for record in self.history]))
        if self.checkpoint is not None:
            self.session.save_checkpoint(self.checkpoint, include_optimizer_state=True)

    # ---- evaluation

    def evaluate(self, data: Arrays, targets: Arrays, batch_size: int = 256) -> Evaluation:
        """Return the mean loss and the accuracy on the given samples, computed by the eval model."""
        if batch_size < 1:
            raise InvalidArgumentError(f"expected batch_size >= 1, got {batch_size}")
        return self._evaluate(self._arrays(data, targets), batch_size)

    def _evaluate(self, arrays: list[np.ndarray], batch_size: int) -> Evaluation:
        mean = _Mean()
        for batch in batches(arrays, batch_size):
            mean.add(self.session.eval_step(*batch), batch[-1])
        return Evaluation(mean.loss, mean.accuracy)

    # ---- data

    def _arrays(self, data: Arrays, targets: Arrays) -> list[np.ndarray]:
        """Return the session's inputs in its order, checked to have the same number of samples. Targets come last."""
        names = self.session.input_names()
        target_count = len(targets) if isinstance(targets, Mapping | list | tuple) else 1
        split = max(0, len(names) - target_count)
        arrays = [*_in_order(data, names[:split], "data"), *_in_order(targets, names[split:], "targets")]
        if len(arrays) != len(names):
            raise InvalidArgumentError(f"expected arrays for the inputs {names}, got {len(arrays)}")
        for name, array in zip(names, arrays, strict=True):
            if array.ndim == 0 or len(array) != len(arrays[0]) or len(array) == 0:
                raise InvalidArgumentError(f"expected as many samples in every array, at least one; {names[0]!r} has shape "
                                           f"{list(arrays[0].shape)}, {name!r} has {list(array.shape)}")
        return arrays


def _score(record: EpochRecord) -> float:
    return record.loss if record.validation_loss is None else record.validation_loss


def _in_order(values: Arrays, names: Sequence[str], what: str) -> list[np.ndarray]:
    if isinstance(values, Mapping):
        if set(values) != set(names):
            raise InvalidArgumentError(f"expected {what} named {list(names)}, got {sorted(values)}")
        return [np.asarray(values[name]) for name in names]
    if isinstance(values, list | tuple):
        return [np.asarray(value) for value in values]
    return [np.asarray(values)]


def batches(arrays: Sequence[np.ndarray], size: int) -> Iterator[list[np.ndarray]]:
    """Yield the arrays in batches of `size` samples, in order; the last batch may be smaller."""
    for start in range(0, len(arrays[0]), size):
        yield [array[start : start + size] for array in arrays]


def right_answers(outputs: Sequence[np.ndarray], target: np.ndarray) -> tuple[int, int] | None:
    """Return (correct, total) for the first output that is logits [n, classes, ...] of integer labels [n, ...]; None when there is none."""
    if target.dtype.kind not in "iu":
        return None
    for logits in outputs:
        if logits.ndim == target.ndim + 1 and logits.shape[:1] + logits.shape[2:] == target.shape:
            return int(np.count_nonzero(logits.argmax(axis=1) == target)), target.size
    return None


class _Mean:
    """Running mean of loss and accuracy over the samples of an epoch."""

    def __init__(self) -> None:
        self._loss = 0.0
        self._samples = self._right = self._answers = 0

    def add(self, results: Sequence[np.ndarray], target: np.ndarray) -> None:
        """Add one batch. results: the loss, then the additional outputs."""
        self._loss += float(results[0]) * len(target)
        self._samples += len(target)
        answers = right_answers(results[1:], target)
        if answers is not None:
            self._right += answers[0]
            self._answers += answers[1]

    @property
    def loss(self) -> float:
        return self._loss / max(1, self._samples)

    @property
    def accuracy(self) -> float | None:
        return self._right / self._answers if self._answers else None

    def __str__(self) -> str:
        return f"loss {self.loss:.4f}" + ("" if self.accuracy is None else f", accuracy {self.accuracy:.2%}")


class _Progress:
    """A tqdm bar for one epoch, a plain line where tqdm is not installed, nothing when not wanted."""

    def __init__(self, wanted: bool, label: str, total: int) -> None:
        self._wanted, self._bar, self._shown = wanted, None, 0.0
        if wanted:
            try:
                from tqdm import tqdm
            except ImportError:
                return
            self._bar = tqdm(total=total, desc=label, unit="batch", mininterval=REFRESH)

    def __enter__(self) -> _Progress:
        return self

    def update(self, text: str) -> None:
        """Advance by one batch."""
        if self._bar is not None:
            now = time.perf_counter()
            if now - self._shown > REFRESH / 4:
                self._shown = now
                self._bar.set_postfix_str(text, refresh=False)
            self._bar.update()

    def finish(self, record: EpochRecord) -> None:
        """Show the record of the finished epoch."""
        if self._bar is not None:
            self._bar.set_postfix_str(str(record).partition(", ")[2].rpartition(", ")[0])
        elif self._wanted:
            print(record, flush=True)

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.close()


def save_learning_curve(history: Sequence[EpochRecord], path: str | os.PathLike[str]) -> bool:
    """Plot loss and accuracy over the epochs into a PNG file; return False when matplotlib is not installed."""
    try:
        from matplotlib.figure import Figure
        from matplotlib.ticker import MaxNLocator, PercentFormatter
    except ImportError:
        return False
    panels = [("loss", [("training", "loss"), ("validation", "validation_loss")])]
    if any(record.accuracy is not None for record in history):
        panels.append(("accuracy", [("training", "accuracy"), ("validation", "validation_accuracy")]))
    figure = Figure(figsize=(5.5 * len(panels), 4), layout="constrained")
    for axes, (title, curves) in zip(np.atleast_1d(figure.subplots(1, len(panels))), panels, strict=True):
        for label, field in curves:
            points = [(record.epoch, getattr(record, field)) for record in history if getattr(record, field) is not None]
            if points:
                axes.plot(*zip(*points, strict=True), marker="o", markersize=3, label=label)
        axes.set(title=title, xlabel="epoch")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.grid(alpha=0.3)
        axes.legend()
        if title == "accuracy":
            axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    image = io.BytesIO()
    figure.savefig(image, format="png", dpi=120)
    replace_file(path, image.getvalue())
    return True
