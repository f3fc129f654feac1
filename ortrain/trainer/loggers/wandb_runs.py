"""Runs of Weights & Biases."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from ortrain.packages import require
from ortrain.trainer.callbacks import TrainerInterface
from ortrain.trainer.loggers.base import RunLogger


class WandbLogger(RunLogger):
    """Writes figures and settings into a run of Weights & Biases, which it creates.

    project, run_name, tags: of the run; None for a name that wandb makes up. folder: where wandb keeps its files; None for the current folder.
    mode: "online", "offline" (files only) or "disabled"; None for what WANDB_MODE says, or online. every: see Logger.
    The run ends with exit code 0, or 1 when training ends with an exception. A resumed run goes on under the same id, which is in the state of the callback.

    Raises InvalidStateError when wandb is missing; errors of wandb pass through."""

    def __init__(self, project: str = "ortrain", run_name: str | None = None, *, tags: Sequence[str] = (), folder: str | os.PathLike[str] | None = None,
                 mode: Literal["online", "offline", "disabled"] | None = None, every: int | None = 10) -> None:
        super().__init__(every)
        self.project = project
        self.run_name = run_name
        self.tags = tuple(tags)
        self.folder = None if folder is None else os.fspath(folder)
        self.mode = mode
        self._wandb = require("wandb", "wandb", "WandbLogger")
        self._run: Any = None

    def _open(self, trainer: TrainerInterface) -> None:
        goes_on = self.goes_on(trainer)
        # runs that the caller has open stay open
        self._run = self._wandb.init(project=self.project, name=self.run_name, tags=self.tags, dir=self.folder, mode=self.mode,
                                     config=dict(trainer.settings), reinit="create_new", id=self.run_id if goes_on else None,
                                     resume="allow" if goes_on else None)
        self.run_id = self._run.id

    def _write(self, figures: Mapping[str, float], step: int) -> None:
        self._run.log(dict(figures), step=step)

    def _close(self, failed: bool) -> None:
        run, self._run = self._run, None
        run.finish(exit_code=1 if failed else 0)
