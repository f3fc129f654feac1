"""TensorBoard event files."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ortrain.errors import InvalidArgumentError
from ortrain.packages import require
from ortrain.trainer.callbacks import TrainerInterface
from ortrain.trainer.loggers.base import Logger, flattened

QUEUE, FLUSH_SECONDS = 1000, 10
"""Events that may wait for the writer's thread, and how often it flushes the file."""


class TensorBoardLogger(Logger):
    """Writes an event file with scalars, and the settings as a text, by the writer of the package tensorboard; TensorFlow is not needed.

    folder: what `tensorboard --logdir` is given; it is created. every: see Logger.
    A resumed run adds a file, and TensorBoard drops steps of earlier files that it runs again.

    Raises InvalidStateError when tensorboard is missing, InvalidArgumentError when training begins and the folder is a file."""

    def __init__(self, folder: str | os.PathLike[str], every: int | None = 10) -> None:
        super().__init__(every)
        self.folder = Path(folder)
        self._event = require("tensorboard.compat.proto.event_pb2", "tensorboard", "TensorBoardLogger")
        self._summary = require("tensorboard.compat.proto.summary_pb2", "tensorboard", "TensorBoardLogger")
        self._writer: Any = None

    def _open(self, trainer: TrainerInterface) -> None:
        if self.folder.exists() and not self.folder.is_dir():
            raise InvalidArgumentError(f"expected a folder for event files, got the file {str(self.folder)!r}")
        module = require("tensorboard.summary.writer.event_file_writer", "tensorboard", "TensorBoardLogger")
        self._writer = module.EventFileWriter(str(self.folder), QUEUE, FLUSH_SECONDS)
        if trainer.step:
            # readers drop what earlier files have from this step on
            self._add(trainer.step + 1, session_log=self._event.SessionLog(status=self._event.SessionLog.START))
        self._add(trainer.step, summary=self._summary.Summary(value=[self._settings(trainer.settings)]))

    def _settings(self, settings: Mapping[str, Any]) -> Any:
        """Return the settings as a Markdown table for the text plugin."""
        tensors = require("tensorboard.compat.proto.tensor_pb2", "tensorboard", "TensorBoardLogger")
        types = require("tensorboard.compat.proto.types_pb2", "tensorboard", "TensorBoardLogger")
        rows = [f"| {name} | {str(value).replace('|', chr(92) + '|')} |" for name, value in flattened(settings)]
        text = "\n".join(["| setting | value |", "|---|---|", *rows])
        metadata = self._summary.SummaryMetadata(plugin_data=self._summary.SummaryMetadata.PluginData(plugin_name="text"))
        return self._summary.Summary.Value(tag="settings", metadata=metadata,
                                           tensor=tensors.TensorProto(dtype=types.DT_STRING, string_val=[text.encode()]))

    def _write(self, figures: Mapping[str, float], step: int) -> None:
        values = [self._summary.Summary.Value(tag=name, simple_value=value) for name, value in figures.items()]
        self._add(step, summary=self._summary.Summary(value=values))

    def _add(self, step: int, **content: Any) -> None:
        self._writer.add_event(self._event.Event(wall_time=time.time(), step=step, **content))

    def _flush(self) -> None:
        self._writer.flush()

    def _close(self, failed: bool) -> None:
        self._writer.close()
        self._writer = None
