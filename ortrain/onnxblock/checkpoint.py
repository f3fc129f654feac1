"""Checkpoints from and to onnx protos."""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np

from ortrain.dtypes import NAMES
from ortrain.errors import InvalidArgumentError, InvalidCheckpointError, InvalidStateError
from ortrain.formats.checkpoint import read_checkpoint, write_checkpoint
from ortrain.formats.checkpoint_contents import Checkpoint
from ortrain.packages import onnx
from ortrain.passes.half_precision import round_to_half

Tensors = Sequence["onnx.TensorProto"]


def save_checkpoint(parameters: tuple[Tensors, Tensors], path: str | os.PathLike[str], nominal_checkpoint: bool = False) -> None:
    """Write the (trainable, frozen) parameters as a checkpoint; a nominal one holds names and dtypes only.

    Raises InvalidArgumentError without parameters, InvalidCheckpointError when a name occurs twice."""
    if parameters is None:
        raise InvalidArgumentError("No checkpoint parameters provided. Expected (trainable, frozen) lists of onnx.TensorProto.")
    trainable, frozen = parameters
    names = [tensor.name for tensor in (*trainable, *frozen)]
    if len(set(names)) < len(names):
        raise InvalidCheckpointError(f"Duplicated tensor proto named {next(name for name in names if names.count(name) > 1)}")
    write_checkpoint(Checkpoint(_arrays(trainable), _arrays(frozen), nominal=nominal_checkpoint), path)


def _arrays(tensors: Tensors) -> dict[str, np.ndarray]:
    return {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in tensors}


def load_checkpoint_to_model(path: str | os.PathLike[str], model: onnx.ModelProto) -> None:
    """Overwrite, in place, those initializers of the model that the checkpoint has. Half-precision initializers are rounded.

    Raises InvalidStateError for a nominal checkpoint or values too large for half precision, ArtifactNotFoundError, InvalidCheckpointError."""
    checkpoint = read_checkpoint(path)
    if checkpoint.nominal:
        raise InvalidStateError("Cannot load a nominal checkpoint to a model proto. Expected a checkpoint with values.")
    values = checkpoint.trainable | checkpoint.frozen
    for tensor in model.graph.initializer:
        if tensor.name in values:
            tensor.CopyFrom(onnx.numpy_helper.from_array(round_to_half(tensor.name, values[tensor.name], NAMES.get(tensor.data_type, "")), tensor.name))
