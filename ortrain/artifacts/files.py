"""The artifacts of a training session, in memory and as files."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path

from ortrain.formats.artifact_names import CHECKPOINT, EVAL_MODEL, NOMINAL_CHECKPOINT, OPTIMIZER_MODEL, TRAINING_MODEL
from ortrain.formats.checkpoint import write_checkpoint
from ortrain.formats.checkpoint_contents import Checkpoint
from ortrain.formats.onnx_files import to_message, write_model
from ortrain.formats.ort_writer import required_operators, serialize_ort_model
from ortrain.ir import Model


@dataclass(slots=True)
class Artifacts:
    """Everything a training session needs, in memory."""

    training: Model
    eval: Model
    optimizer: Model | None
    checkpoint: Checkpoint

    def models(self) -> dict[str, Model]:
        """The models by file name; the optimizer model only where there is one."""
        made = {TRAINING_MODEL: self.training, EVAL_MODEL: self.eval, OPTIMIZER_MODEL: self.optimizer}
        return {name: model for name, model in made.items() if model is not None}

    def write(self, directory: str | os.PathLike[str], prefix: str = "", nominal: bool = False) -> None:
        """Write the models and the checkpoint into an existing directory.

        prefix: put before every file name. nominal: also write a nominal checkpoint, which holds names and dtypes but no values."""
        folder = Path(directory)
        for name, model in self.models().items():
            write_model(model, folder / f"{prefix}{name}")
        write_checkpoint(self.checkpoint, folder / f"{prefix}{CHECKPOINT}")
        if nominal:
            write_checkpoint(replace(self.checkpoint, nominal=True), folder / f"{prefix}{NOMINAL_CHECKPOINT}")

    def in_ort_format(self, prefix: str = "") -> dict[str, bytes]:
        """Serialize the models in the ORT format that onnxruntime-training 1.19 reads, with the lists of operators for its reduced builds.

        Returns file name -> content. Raises InvalidModelError for operators that onnxruntime-training does not have."""
        files: dict[str, bytes] = {}
        for file_name, model in self.models().items():
            message, name = to_message(model), f"{prefix}{Path(file_name).stem}"
            files[f"{name}.ort"] = serialize_ort_model(message)
            files[f"{name}.required_operators.config"] = required_operators(message, f"{name}.ort").encode()
        return files
