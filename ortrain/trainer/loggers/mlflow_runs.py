"""Runs of MLflow."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Mapping
from typing import Any

from ortrain.packages import require
from ortrain.trainer.callbacks import TrainerInterface
from ortrain.trainer.loggers.base import RunLogger, flattened

BATCH = 500
"""Figures that are sent together: the server takes at most 1000, and a call takes as long as hundreds of figures."""
PARAMETERS = 100
"""Settings that the server takes at a time."""
MAX_VALUE = 500
"""Characters of a setting, which every version of MLflow takes."""
FORBIDDEN = re.compile(r"[^\w\-./ ]")


class MLflowLogger(RunLogger):
    """Writes figures as metrics and settings as parameters of an MLflow run, which it creates.

    experiment: its name; it is created where it does not exist. run_name: None for a name that MLflow makes up.
    tracking_uri: where MLflow stores runs, for example "sqlite:///runs.db" or a server; None for MLflow's own default. tags: of the run. every: see Logger.
    The run ends as FINISHED, or FAILED when training ends with an exception. A run that is resumed under the same logger goes on in the same MLflow run; its
    id is in the state of the callback. Figures are sent in batches. Characters that MLflow does not take in names become "_"; settings are cut at 500
    characters.

    Raises InvalidStateError when mlflow is missing; errors of MLflow pass through."""

    def __init__(self, experiment: str = "ortrain", run_name: str | None = None, *, tracking_uri: str | None = None, tags: Mapping[str, str] | None = None,
                 every: int | None = 10) -> None:
        super().__init__(every)
        self.experiment = experiment
        self.run_name = run_name
        self.tags = dict(tags or {})
        self._entities = require("mlflow.entities", "mlflow", "MLflowLogger")
        self._client = require("mlflow.tracking", "mlflow", "MLflowLogger").MlflowClient(tracking_uri)
        self._waiting: list[Any] = []

    def _open(self, trainer: TrainerInterface) -> None:
        if self.goes_on(trainer):
            self._client.update_run(self.run_id, "RUNNING")
            return
        found = self._client.get_experiment_by_name(self.experiment)
        identifier = found.experiment_id if found is not None else self._client.create_experiment(self.experiment)
        self.run_id = self._client.create_run(identifier, run_name=self.run_name, tags=self.tags).info.run_id
        parameters = [self._entities.Param(_allowed(name), str(value)[:MAX_VALUE]) for name, value in flattened(trainer.settings)]
        try:
            for start in range(0, len(parameters), PARAMETERS):
                self._client.log_batch(self.run_id, params=parameters[start : start + PARAMETERS])
        except BaseException:
            self._client.set_terminated(self.run_id, "FAILED")
            raise

    def _write(self, figures: Mapping[str, float], step: int) -> None:
        now = int(time.time() * 1000)
        # databases hold no NaN
        self._waiting += [self._entities.Metric(_allowed(name), float(value), now, step) for name, value in figures.items() if math.isfinite(value)]
        if len(self._waiting) >= BATCH:
            self._flush()

    def _flush(self) -> None:
        waiting, self._waiting = self._waiting, []
        for start in range(0, len(waiting), BATCH):
            self._client.log_batch(self.run_id, metrics=waiting[start : start + BATCH])

    def _close(self, failed: bool) -> None:
        try:
            self._flush()
        finally:
            self._client.set_terminated(self.run_id, "FAILED" if failed else "FINISHED")


def _allowed(name: str) -> str:
    return FORBIDDEN.sub("_", name)
