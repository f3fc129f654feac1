"""A fit in workers that a launcher starts, away from the trainer whose fit it is: what they are sent, and what comes back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ortrain.distributed.strategy import Launcher, Strategy
from ortrain.formats.artifact_names import CHECKPOINT
from ortrain.runtime.state import TrainingState
from ortrain.trainer.checkpoints import PROPERTY
from ortrain.trainer.settings import TrainerSettings
from ortrain.training.copying import SessionParts

if TYPE_CHECKING:
    from ortrain.trainer.trainer import Trainer


@dataclass(slots=True)
class Outcome:
    """What a trainer has reached at the end of its fit."""

    parameters: dict[str, np.ndarray]
    moments: list[dict[str, np.ndarray]]
    optimizer_step: int
    initial_learning_rate: float
    properties: dict[str, Any]
    average: dict[str, np.ndarray] | None
    settings: dict[str, Any]
    stopped: str | None

    @classmethod
    def of(cls, trainer: Trainer) -> Outcome:
        """Return what a trainer has reached. Its state has all moments."""
        state = trainer.session.state
        return cls({name: view for segment in state.parameter_segments() for name, view in segment.views.items()},
                   [{name: view for segment in moment for name, view in segment.views.items()} for moment in state.moments], state.optimizer_step,
                   state.initial_learning_rate, state.properties, None if trainer.average is None else trainer.average.state_dict(), trainer.settings,
                   trainer.stopped)

    def give_to(self, trainer: Trainer) -> None:
        """Let another trainer of the same model have reached it."""
        state = trainer.session.state
        for segment in state.parameter_segments():
            _fill(segment.views, self.parameters)
        for moment, arrays in zip(state.moments, self.moments, strict=True):
            for segment in moment:
                _fill(segment.views, arrays)
        state.optimizer_step, state.initial_learning_rate = self.optimizer_step, self.initial_learning_rate
        state.properties.update(self.properties)
        if trainer.average is not None and self.average is not None:
            trainer.average.load_state_dict(self.average)
        trainer.settings.update(self.settings)
        trainer.stopped = self.stopped


def _fill(views: Mapping[str, np.ndarray], arrays: Mapping[str, np.ndarray]) -> None:
    for name, view in views.items():
        view[...] = arrays[name]


@dataclass(slots=True)
class LaunchedFit:
    """The work of each worker: a fit by a trainer of its own, which goes on from the last checkpoint where workers are started anew."""

    kind: type[Trainer]
    parts: SessionParts
    settings: TrainerSettings
    folder: Path | None
    predictions: str | None
    arguments: Mapping[str, Any]
    """Of fit."""
    described: Mapping[str, Any]
    """What the trainer says that the run is made with."""

    def __call__(self, strategy: Strategy, attempt: int) -> Outcome | None:
        """Fit; return the outcome on rank 0."""
        session = self.parts.restore(TrainingState.load(self.folder / CHECKPOINT) if attempt and self.folder is not None else None)
        resume = PROPERTY in session.state.properties
        settings = {entry.name: getattr(self.settings, entry.name) for entry in fields(self.settings)} | {"strategy": strategy}
        with self.kind(session, folder=self.folder, resume=resume, overwrite=not resume, predictions=self.predictions, **settings) as trainer:
            trainer.settings |= self.described
            trainer.fit(**self.arguments)
            with trainer.whole_state():
                return Outcome.of(trainer) if strategy.rank == 0 else None


def fit_in_workers(trainer: Trainer, launcher: Launcher, arguments: Mapping[str, Any]) -> None:
    """Make the fit of a trainer in workers, and let it have reached what they have. arguments: of Trainer.fit.

    Raises WorkerFailedError, and the error that all workers have."""
    parts = SessionParts.of(trainer.session)
    if not parts.options.intra_op_num_threads:
        parts.options = replace(parts.options, intra_op_num_threads=launcher.cpus)
    folder = None if trainer.output_folder is None else trainer.output_folder.resolve()
    outcome = launcher.run(LaunchedFit(type(trainer), parts, replace(trainer.options, strategy=None), folder, trainer.roles.predictions, arguments,
                                       trainer.settings))
    outcome.give_to(trainer)
