"""The trainer: from a model and data to a better model, with evaluation, checkpoints and exact resume."""

from __future__ import annotations

import inspect
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ortrain.data import DataLoader, as_loader, split
from ortrain.distributed.batch_normalization import SynchronizedBatchNormalization
from ortrain.distributed.strategy import Launcher
from ortrain.distributed.synchronization import Synchronization
from ortrain.distributed.workers import Workers, strategy_of
from ortrain.errors import InvalidArgumentError
from ortrain.metrics import Metric
from ortrain.passes.specialization import InputShapes
from ortrain.runtime.numbers import check_count
from ortrain.runtime.options import SessionOptions
from ortrain.runtime.state import DEFAULT_LEARNING_RATE
from ortrain.trainer.callbacks import Callback, EarlyStopping
from ortrain.trainer.checkpoints import AVERAGE, PROPERTY, SYNCHRONIZATION, CheckpointFolder, Progress
from ortrain.trainer.construction import check_sample_weight, input_roles, make_metrics, new_session
from ortrain.trainer.data_checks import check_data
from ortrain.trainer.evaluation import evaluate_batches, predict_batches
from ortrain.trainer.launched import fit_in_workers
from ortrain.trainer.learning_rate_finder import LearningRateCurve, find_learning_rate
from ortrain.trainer.loop import EpochLoop, RunningMetrics, StopSignal
from ortrain.trainer.parallel_loop import ParallelEpochLoop, ParallelMetrics, prepare_worker
from ortrain.trainer.privacy import check_processes, prepare_noise, sampled_by_chance
from ortrain.trainer.progress import ProgressBar
from ortrain.trainer.records import LOSS, VALIDATION, EpochRecord, History
from ortrain.trainer.settings import WORKERS, TrainerSettings, check_callbacks
from ortrain.training.schedules import Schedule, make_schedule
from ortrain.training.session import TrainingSession
from ortrain.training.weight_average import WeightAverage

if TYPE_CHECKING:
    from ortrain.loading.loader import ModelSource

EVALUATION_BATCH_SIZE = 256


class Trainer:
    """Trains a session: epochs over a data set, evaluation, schedules, checkpoints, early stopping, metrics and callbacks.

    session: the TrainingSession to train; Trainer.from_model creates one from a forward model.
    predictions: the output that metrics compare with the targets, by default the first one after the loss.
    settings: keyword arguments with the names and defaults of TrainerSettings, such as schedule="cosine", metrics=["accuracy"], patience=3.
    folder: receives the run: artifacts, checkpoints, history and settings; None keeps nothing on disk.
    resume: continue the run whose checkpoint the session was created from, exactly where it was saved, also in the middle of an epoch.
    overwrite: let fit replace a run that the folder holds.

    Raises ArgumentTypeError or InvalidArgumentError for an invalid setting, InvalidStateError when there is nothing to resume."""

    def __init__(self, session: TrainingSession, *, folder: str | os.PathLike[str] | None = None, resume: bool = False, overwrite: bool = False,
                 predictions: str | None = None, **settings: Any) -> None:
        self.session = session
        self.options = TrainerSettings.of(settings)
        self.launcher = self.options.strategy if isinstance(self.options.strategy, Launcher) else None
        """Starts the workers in which fit trains; None where this process trains by itself or is one of them."""
        self.workers = Workers(strategy_of(None if self.launcher is not None else self.options.strategy))
        """The processes that train together; a single one without a strategy, and with one that launches workers."""
        self.rank = self.workers.rank
        """The number of this process among the workers, from 0."""
        self.synchronization = self.options.synchronization or Synchronization()
        """What the workers exchange, and when."""
        check_processes(session, self.workers.are_several or self.launcher is not None)
        self.roles = input_roles(session, predictions)
        self._replaces_run = resume or overwrite
        self.metrics: list[Metric] = make_metrics(self.options.metrics, self.roles)
        self.output_folder = None if folder is None else Path(folder)
        self.checkpoints = CheckpointFolder(self.output_folder, self.options, writes=self.rank == 0)
        self.learning_rate = session.learning_rate if session.has_optimizer else 0.0
        """The learning rate that a schedule starts from."""
        self.epoch = 0
        """Completed epochs."""
        self.step = 0
        """Completed optimizer steps."""
        self.batch = 0
        """Completed batches of the current epoch."""
        self.epochs = 0
        """The epochs of the current or last fit."""
        self.steps_per_epoch: int | None = None
        """Optimizer steps of an epoch; None where the data do not tell."""
        self.history = History()
        self.settings: dict[str, Any] = self.options.described()
        """What the run was made with, for loggers and reports; JSON values only."""
        self.stopped: str | None = None
        """Why the last fit ended early; None if it ran to its end."""
        if self.workers.are_several:
            self.settings[WORKERS] = self.workers.size
            prepare_worker(session, self.rank)
            self.synchronization.prepare(session, self.workers)
        self.batch_normalization = (SynchronizedBatchNormalization(session, self.workers)
                                    if self.workers.are_several and self.options.synchronized_batch_normalization else None)
        self.average = WeightAverage(session, self.options.weight_average) if self.options.weight_average else None
        self.running: RunningMetrics | None = None
        """The loss and the metrics of the current epoch so far."""
        self._replaces_artifacts = overwrite
        self._schedule: Schedule | None = None
        self._callbacks: list[Callback] = []
        self._resumed: Progress | None = None
        if self.options.parameter_groups:
            session.set_parameter_groups(self.options.parameter_groups)
        session.clip_norm, session.clip_value = self.options.clip_norm, self.options.clip_value
        if resume:
            self._resume()

    @classmethod
    def from_model(cls, model: ModelSource, *, loss: Any = None, optimizer: Any = "adamw", learning_rate: float = DEFAULT_LEARNING_RATE,
                   folder: str | os.PathLike[str] | None = None, overwrite: bool = False, requires_grad: str | Sequence[str] | None = None,
                   frozen_params: str | Sequence[str] | None = None, loss_options: Mapping[str, Any] | None = None, class_weight: Any = None,
                   sample_weight: bool = False, loss_input_names: Sequence[str] | None = None, additional_output_names: Sequence[str] | None = None,
                   input_shapes: InputShapes | None = None, input_values: Mapping[str, Any] | None = None, num_classes: int | None = None,
                   options: SessionOptions | None = None, **settings: Any) -> Trainer:
        """Create a trainer straight from a forward model.

        model: a path, bytes, an onnx.ModelProto or an ortrain.ir.Model.
        loss: a name such as "cross-entropy", a LossType, an onnxblock loss, or None when the model's first output is the loss.
        loss_options: arguments of a loss given by name, such as {"label_smoothing": 0.1}. class_weight: float [classes], one factor per class.
        sample_weight: whether fit is going to pass a weight for each sample.
        optimizer: a name such as "adamw", an OptimType or an onnxblock optimizer. learning_rate: its step size.
        requires_grad, frozen_params: names or globs of weights, as for generate_artifacts; "head" stands for the last layers.
        input_shapes: as for TrainingSession.from_model; None opens a fixed batch where it can be proved that the model computes each sample on its own, so
        that batches may have any size, and {} keeps the model's own shapes.
        num_classes: give the model a new head with so many outputs first, as ortrain.replace_head does; with requires_grad="head" it is trained alone.
        loss_input_names, additional_output_names, input_values, options: as for TrainingSession.from_model.
        The other parameters are those of Trainer. Warns where the loss would apply a softmax or sigmoid a second time. Raises the errors of Trainer, of
        generate_artifacts and of replace_head."""
        checked = TrainerSettings.of(settings, list(inspect.signature(cls.from_model).parameters))
        session, predictions = new_session(
            model, loss=loss, optimizer=optimizer, learning_rate=learning_rate, class_weight=class_weight, sample_weight=sample_weight,
            loss_options=loss_options, requires_grad=_listed(requires_grad), frozen_params=_listed(frozen_params), wants_metrics=bool(checked.metrics),
            loss_input_names=loss_input_names, additional_output_names=additional_output_names, input_shapes=input_shapes, input_values=input_values,
            num_classes=num_classes, seed=checked.seed, options=options)
        return cls(session, folder=folder, overwrite=overwrite, predictions=predictions, **settings)

    @classmethod
    def from_artifacts(cls, directory: str | os.PathLike[str], *, learning_rate: float | None = None, resume: bool = False, overwrite: bool = False,
                       options: Any = None, **settings: Any) -> Trainer:
        """Create a trainer on a folder of artifacts, into which it also writes its checkpoints; `resume` continues the run that the folder holds."""
        session = TrainingSession.from_artifacts(directory, options=options)
        if learning_rate is not None:
            session.learning_rate = learning_rate
        trainer = cls(session, folder=directory, resume=resume, overwrite=overwrite, **settings)
        trainer._replaces_artifacts = False              # the session was made from them
        return trainer

    # ---- training

    def fit(self, data: Any, targets: Any = None, *, epochs: int = 1, batch_size: int = 32, validation: Any = None, sample_weight: Any = None,
            steps_per_epoch: int | None = None, shuffle: bool = True, drop_last: bool = False, prefetch: int | None = None, check_finite: bool = True,
            callbacks: Sequence[Callback] = ()) -> History:
        """Train until `epochs` epochs are complete, counted from the beginning of the run, and return the history.

        data, targets: whatever ortrain.data.as_loader reads: arrays, mappings by input name, data frames, iterables of batches, files and folders.
        validation: (data, targets), anything that as_loader reads, or a share of the samples such as 0.1 to hold out; evaluated after each epoch.
        sample_weight: float [n], for a loss that was made with sample_weight=True.
        steps_per_epoch: batches of an epoch, required for data of unknown length. drop_last: leave out a last batch that is smaller than batch_size.
        prefetch: batches that a background thread prepares in advance; None chooses, 0 is no thread. check_finite: refuse NaN and infinity in the data.
        callbacks: further callbacks for this call.

        Ctrl-C ends training after the running step, as if the run had been complete: the checkpoint is saved and the history returned; a second one
        interrupts at once. A later call begins the epoch anew that an earlier one has left half way.

        With a strategy, every worker makes this call with the same arguments, and reads its own part of each batch. batch_size is that of a worker: a step
        trains on as many times the samples as there are workers. WorkerFailedError takes the place of an error that not all workers have. With a Launcher, such
        as Ray, the program makes the call once, and workers train on copies of session, data and callbacks; Ctrl-C ends it at once.

        Before anything is trained or written, raises ArgumentTypeError for sizes that are no whole numbers, InvalidArgumentError for data that do not fit, for
        a folder that holds another run and for an unknown figure to be monitored, and for arrays in memory the input errors of train_step and LabelRangeError.
        Raises InvalidStateError when the loss is not finite, and the errors of train_step."""
        how = {"steps_per_epoch": steps_per_epoch, "shuffle": shuffle, "drop_last": drop_last, "prefetch": prefetch,
               "check_finite": check_finite}
        if self.launcher is not None:
            self._fit_in_workers(self.launcher, {"data": data, "targets": targets, "epochs": epochs, "batch_size": batch_size, "validation": validation,
                                                 "sample_weight": sample_weight, "callbacks": callbacks} | how)
            return self.history
        with self.workers.together():
            check_count(epochs, "epochs", 1)
            check_count(batch_size, "batch_size", 1)
            check_callbacks(callbacks)
            check_sample_weight(self.roles, targets, sample_weight)
            loader, held_out = self._training_data(data, targets, validation, batch_size, sample_weight=sample_weight, **how)
            self._check_monitors([*self.options.callbacks, *callbacks, *self.options.default_callbacks()], held_out is not None)
            self._start(loader, epochs, batch_size, callbacks)
            with self._checkpoint():
                self.checkpoints.write_artifacts(self.session, self._replaces_artifacts)
            self._replaces_artifacts = False
            self._run_epochs(loader, held_out)
        return self.history

    def _fit_in_workers(self, launcher: Launcher, arguments: Mapping[str, Any]) -> None:
        if not self._replaces_run:
            self.checkpoints.check_unused()
            self._replaces_run = True
        if self._resumed is None:
            self.session.properties.pop(PROPERTY, None)     # of another run
        self.checkpoints.write_artifacts(self.session, self._replaces_artifacts)
        self._replaces_artifacts = False
        fit_in_workers(self, launcher, arguments)
        self._take(Progress.read(self.session.state))

    def _training_data(self, data: Any, targets: Any, validation: Any, batch_size: int, **how: Any) -> tuple[DataLoader, DataLoader | None]:
        """Return the checked loaders of training data, this worker's part of them, and of validation data."""
        loader = self._loader(data, targets, batch_size, self.roles.training, **how)
        held_out = None
        if isinstance(validation, float):
            loader, held_out = split(loader, validation, self.options.seed)
        elif validation is not None:
            held_out = self.evaluation_loader(*_pair(validation), batch_size=max(batch_size, EVALUATION_BATCH_SIZE))
        loader = sampled_by_chance(self.session, self._own_part(loader), self.options)
        check_data(self.session, loader, self.roles.training, training=True)
        if held_out is not None:
            check_data(self.session, held_out, self.roles.evaluation, training=False)
        return loader, held_out

    def _own_part(self, loader: DataLoader) -> DataLoader:
        return loader.shard(self.rank, self.workers.size) if self.workers.are_several else loader

    def _run_epochs(self, loader: DataLoader, held_out: DataLoader | None) -> None:
        with self._running(), StopSignal(self) as signal:
            kind = ParallelEpochLoop if self.workers.are_several else EpochLoop
            loop = kind(self, loader, self._schedule, self._callbacks, signal)
            if self._resumed is not None:
                loop.continue_from(self._resumed)
                self._resumed = None
            while self.epoch < self.epochs and self.stopped is None:
                self._each(lambda callback: callback.on_epoch_begin(self))
                if not loop.run():
                    break
                self._end_epoch(loop, held_out)
                self.stopped = self.workers.agree(self.stopped)
            self.save()

    def _start(self, loader: DataLoader, epochs: int, batch_size: int, callbacks: Sequence[Callback]) -> None:
        options = self.options
        if not self._replaces_run:
            self.checkpoints.check_unused()
            self._replaces_run = True
        if self._resumed is None:
            self.batch = 0                                  # an epoch that an earlier call has left half way begins anew
        if self.workers.are_several:
            self._start_together(loader, epochs)
        batches = loader.batches_per_epoch
        self.epochs, self.stopped = epochs, None
        self.steps_per_epoch = None if batches is None else -(-batches // options.accumulate)
        self._schedule = self._make_schedule()
        every = [*options.callbacks, *callbacks, *options.default_callbacks(), *([ProgressBar()] if options.progress else [])]
        self._callbacks = [callback for callback in every if self.rank == 0 or not callback.rank_zero_only]
        self.settings |= {"epochs": epochs, "batch_size": batch_size, "samples": loader.samples, "learning_rate": self.learning_rate}
        self.settings |= prepare_noise(self.session, loader)
        if self._resumed is not None:
            self._resumed.restore_callbacks(self._callbacks)
            self._resumed.restore_schedule(self._schedule)

    def _start_together(self, loader: DataLoader, epochs: int) -> None:
        """Check that all workers are about to train the same model in the same way, and give them the parameters, moments and averages of rank 0."""
        session, options = self.session, self.options
        segments = session.state.segments() if session.state.sharding is None else session.state.parameter_segments()
        self.workers.check_same(
            synchronization=type(self.synchronization).__name__,
            model=([(segment.shapes, segment.dtype) for segment in segments], [len(moment) for moment in session.state.moments]),
            frozen_parameters=sorted(session.state.masked), seed_of_rounding=session.state.rounding_seed,
            number_of_samples=loader.samples, batches=loader.batches_per_epoch, epochs=epochs, progress=(self.epoch, self.step, self.batch),
            accumulation=(options.accumulate, options.accumulation), seed=options.seed, names_of_metrics=[metric.name for metric in self.metrics])
        averages = [] if self.average is None else self.average.segments
        self.workers.broadcast([segment.array for segment in (*segments, *averages)])
        self.synchronization.start(session, self.workers)
        if self._resumed is not None and self.synchronization.state_dict():
            self.synchronization.load_state_dict(self.checkpoints.read_arrays(SYNCHRONIZATION, "the outer momentum", session.state))

    def figures(self, has_validation: bool) -> list[str]:
        """Return the names of the figures that each epoch has, and that callbacks can monitor."""
        names = [LOSS, *(metric.name for metric in self.metrics)]
        return [*names, *(f"{VALIDATION}{name}" for name in names if has_validation)]

    def _check_monitors(self, callbacks: Sequence[Callback], has_validation: bool) -> None:
        """Raise InvalidArgumentError for early stopping by a figure that no epoch is going to have."""
        figures = self.figures(has_validation)
        for callback in callbacks:
            if isinstance(callback, EarlyStopping) and callback.monitor not in figures:
                remedy = "" if has_validation or not callback.monitor.startswith(VALIDATION) else " without validation data: give fit some, or set monitor"
                raise InvalidArgumentError(f"expected to monitor one of {', '.join(figures)}, got {callback.monitor!r}{remedy}")

    def _make_schedule(self) -> Schedule | None:
        options = self.options
        if options.schedule is None:
            return None
        if not isinstance(options.schedule, str):
            schedule: Schedule = options.schedule
            return schedule
        if self.steps_per_epoch is None:
            raise InvalidArgumentError(f"expected steps_per_epoch for the schedule {options.schedule!r}, since the data do not tell how many batches they have")
        return make_schedule(options.schedule, self.epochs * self.steps_per_epoch, self.learning_rate, options.warmup_steps, **options.schedule_options)

    def _end_epoch(self, loop: EpochLoop, held_out: DataLoader | None) -> None:
        validation: dict[str, float] = {}
        self._synchronize()
        if held_out is not None:
            validation = self._evaluate(held_out)
            self._each(lambda callback: callback.on_evaluation_end(self, validation))
        self.epoch += 1
        self.batch = 0
        record = loop.record(validation)
        self.history.append(record)
        if self._schedule is not None and hasattr(self._schedule, "update"):
            self._schedule.update(record.validation.get("loss", record.loss))
        self._each(lambda callback: callback.on_epoch_end(self, record))
        with self._checkpoint():
            self.checkpoints.keep(self, record)

    def whole_state(self) -> AbstractContextManager[None]:
        """Return the context in which rank 0 has all moments of the optimizer. All workers enter it together."""
        return self.synchronization.checkpoint() if self.workers.are_several else nullcontext()

    def _checkpoint(self) -> AbstractContextManager[None]:
        """Return the context in which rank 0 writes a checkpoint."""
        return nullcontext() if self.output_folder is None else self.whole_state()

    def _synchronize(self) -> None:
        """Give all workers the same parameters and figures, and the means of their running statistics, which each has of its own samples."""
        if self.workers.are_several and self.running is not None:
            self.running.combine()
            self.synchronization.synchronize()
            self.workers.average([buffer.array for buffer in self.session.running_statistics_buffers()])

    @contextmanager
    def _running(self) -> Iterator[None]:
        """Tell the callbacks that a fit begins and ends, also when it fails."""
        started: list[Callback] = []
        try:
            for callback in self._callbacks:
                started.append(callback)
                callback.on_fit_begin(self)
            yield
        except BaseException as error:
            for callback in started:
                callback.on_exception(self, error)
            raise
        self._each(lambda callback: callback.on_fit_end(self))

    def _each(self, call: Any) -> None:
        for callback in self._callbacks:
            call(callback)

    def stop(self, reason: str = "a callback asked for it") -> None:
        """End training after the running step; what was trained is kept and saved."""
        self.stopped = reason

    # ---- evaluation

    def evaluate(self, data: Any, targets: Any = None, *, batch_size: int = EVALUATION_BATCH_SIZE, metrics: Sequence[Any] | None = None) -> dict[str, float]:
        """Return the mean loss, as "loss", and each metric by name on a data set, computed by the eval model.

        data, targets: as in fit. metrics: names or metrics that replace those of the trainer. With a strategy, every worker makes this call, evaluates its part
        and returns the figures of the whole. Raises InvalidStateError without an eval model."""
        with self.workers.together():
            check_count(batch_size, "batch_size", 1)
            chosen = self.metrics if metrics is None else make_metrics(metrics, self.roles)
            return self._evaluate(self.evaluation_loader(data, targets, batch_size=batch_size), chosen)

    def _evaluate(self, loader: DataLoader, metrics: Sequence[Metric] | None = None) -> dict[str, float]:
        chosen = self.metrics if metrics is None else metrics
        running = ParallelMetrics(chosen, self.workers) if self.workers.are_several else RunningMetrics(chosen)
        with self._averaged():
            return evaluate_batches(self.session, self._own_part(loader), running, self.roles)

    def predict(self, data: Any, *, batch_size: int = EVALUATION_BATCH_SIZE, output_names: Sequence[str] | None = None) -> np.ndarray | list[np.ndarray]:
        """Return the forward model's outputs for a data set without targets: one array if there is one output, a list otherwise.

        With a strategy, a worker predicts by itself, for all samples."""
        check_count(batch_size, "batch_size", 1)
        loader = self._loader(data, None, batch_size, self.roles.forward, shuffle=False)
        with self._averaged():
            results = predict_batches(self.session, loader, output_names)
        return results[0] if len(results) == 1 else results

    @contextmanager
    def _averaged(self) -> Iterator[None]:
        """Use the averaged weights in the block, where the run has them."""
        if self.average is None or self.step == 0:
            yield
        else:
            with self.average.applied():
                yield

    def find_learning_rate(self, data: Any, targets: Any = None, *, batch_size: int = 32, lowest: float = 1e-7, highest: float = 10.0,
                           steps: int = 100) -> LearningRateCurve:
        """Train with growing learning rates and return the curve of the loss with a suggestion; weights and optimizer state are as before afterwards.

        lowest, highest: the learning rates of the first and the last step. steps: how many there are. Source: L. N. Smith, Cyclical Learning Rates for
        Training Neural Networks (2017)."""
        check_count(batch_size, "batch_size", 1)
        check_count(steps, "steps", 1)
        loader = self._loader(data, targets, batch_size, self.roles.training)
        return find_learning_rate(self.session, loader, lowest, highest, steps)

    # ---- weights and files

    def save_weights(self) -> np.ndarray:
        """Return a copy of all parameters, frozen ones and running statistics included, and of the averaged weights if there are any, for restore_weights."""
        weights = self.session.to_buffer(trainable_only=False)
        if self.average is None:
            return weights
        with self.average.applied():
            return np.concatenate([weights, self.session.to_buffer(trainable_only=True)])

    def restore_weights(self, saved: np.ndarray) -> None:
        """Set all parameters to what save_weights returned."""
        size = self.session.parameters_size(trainable_only=False)
        self.session.from_buffer(saved[:size], trainable_only=False)
        if self.average is not None:
            with self.average.applied():
                self.session.from_buffer(saved[size:], trainable_only=True)

    def save(self) -> None:
        """Write the run's checkpoint into its folder; without a folder only the state's properties are updated.

        With a strategy, every worker makes this call, and rank 0 writes."""
        self._synchronize()
        with self._checkpoint():
            self.checkpoints.save(self)

    def export(self, path: str | os.PathLike[str], output_names: Sequence[str] | None = None) -> None:
        """Write the trained forward model for inference, with averaged weights if the run has them. Of several workers, only rank 0 writes."""
        if self.rank:
            return
        with self._averaged():
            self.session.export(path, output_names if output_names is not None else self.roles.outputs or None)

    def progress(self) -> Progress:
        """Return what a checkpoint holds of the run besides parameters and optimizer state."""
        if self.launcher is not None and self._resumed is not None:
            return self._resumed                            # callbacks and schedule are those of the workers
        return Progress.of(self, self._callbacks, self._schedule)

    def _resume(self) -> None:
        self._take(Progress.read(self.session.state))
        if self.average is not None:
            self.average.load_state_dict(self.checkpoints.read_arrays(AVERAGE, "the averaged weights", self.session.state))

    def _take(self, progress: Progress) -> None:
        """Be where a run is that has this progress."""
        self._resumed = progress
        if self._resumed.seed != self.options.seed:
            raise InvalidArgumentError(f"expected the seed {self._resumed.seed} of the run to be resumed, got {self.options.seed}")
        size = self.workers.size if self.launcher is None else self.launcher.workers
        if self._resumed.batch and self._resumed.workers != size:
            raise InvalidArgumentError(f"expected {self._resumed.workers} workers to resume a run in the middle of an epoch, got {size}")
        self.epoch, self.step, self.batch = self._resumed.epoch, self._resumed.step, self._resumed.batch
        self.learning_rate = self._resumed.base_learning_rate
        self.session.learning_rate = self._resumed.learning_rate
        self.history[:] = [EpochRecord.from_dict(record) for record in self._resumed.history]
        self.session.train_steps = self._resumed.train_steps

    def close(self) -> None:
        """Close the session."""
        self.session.close()

    def __repr__(self) -> str:
        trainable = self.session.state.trainable
        return (f"Trainer(inputs {', '.join(self.roles.forward)}; targets {', '.join(self.roles.targets)}; {sum(array.size for array in trainable.values()):,} "
                f"numbers in {len(trainable)} trained tensors; {self.epoch} epochs and {self.step} steps completed)")

    def __enter__(self) -> Trainer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---- data

    def _loader(self, data: Any, targets: Any, batch_size: int, names: Sequence[str], **how: Any) -> DataLoader:
        chosen = {"seed": self.options.seed} | {name: value for name, value in how.items() if value is not None}
        dtypes = {name: self.roles.dtypes[name] for name in names}
        return as_loader(data, targets, names=names, dtypes=dtypes, batch_size=batch_size, **chosen)

    def evaluation_loader(self, data: Any, targets: Any = None, *, batch_size: int = EVALUATION_BATCH_SIZE) -> DataLoader:
        """Return a loader that reads the inputs of the eval model, in order and without shuffling."""
        return self._loader(data, targets, batch_size, self.roles.evaluation, shuffle=False)


def _pair(validation: Any) -> tuple[Any, Any]:
    """Return (data, targets) of what fit got as validation."""
    if isinstance(validation, tuple):
        if len(validation) != 2:
            raise InvalidArgumentError(f"expected (data, targets) as validation, got a tuple of {len(validation)}")
        return validation
    return validation, None


def _listed(names: str | Sequence[str] | None) -> Sequence[str] | None:
    """Return one name or pattern as a list of one."""
    return [names] if isinstance(names, str) else names
