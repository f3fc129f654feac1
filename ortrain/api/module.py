"""Module: train and eval steps of a model."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from ortrain.api.checkpoint_state import CheckpointState
from ortrain.options import SessionOptions
from ortrain.session import TrainingSession
from ortrain.values import OrtValue, as_array

PathLike = str | os.PathLike[str]


class Module:
    """Trains and evaluates a model from its artifacts (old package: onnxruntime.training.api.Module).

    train_model_uri, eval_model_uri: paths of the artifacts (bytes and onnx.ModelProto work too). state: the checkpoint state, whose parameters the
    module trains. device: only "cpu". session_options: threads and the like.

    Raises ArtifactNotFoundError, InvalidModelError, InvalidCheckpointError, UnsupportedDeviceError."""

    def __init__(self, train_model_uri: PathLike, state: CheckpointState, eval_model_uri: PathLike | None = None, device: str = "cpu",
                 session_options: SessionOptions | None = None) -> None:
        self.training = True
        self._state = state
        self._session = TrainingSession(train_model_uri, state._state, eval_model_uri, options=session_options, device=device)

    def __call__(self, *user_inputs: Any) -> Any:
        """A train step (forward, backward, accumulation) in training mode, an eval step otherwise.

        Inputs in the order of input_names(): NumPy arrays, OrtValues, anything with __array__ or __dlpack__. Returns one output bare, several as
        a tuple: OrtValues when every input is one, arrays otherwise. Raises the input errors of TrainingSession.train_step."""
        results = self._session.train_step(*user_inputs) if self.training else self._session.eval_step(*user_inputs)
        # arrays, the usual case, are known by the first
        if user_inputs and not isinstance(user_inputs[0], np.ndarray) and all(hasattr(value, "data_type") for value in user_inputs):
            wrapped = tuple(OrtValue(result) for result in results)
            return wrapped[0] if len(wrapped) == 1 else wrapped
        return results[0] if len(results) == 1 else tuple(results)

    def train(self, mode: bool = True) -> Module:
        """Sets training mode (or, with False, evaluation mode); returns self."""
        self.training = mode
        return self

    def eval(self) -> Module:
        """Sets evaluation mode; returns self."""
        return self.train(False)

    def lazy_reset_grad(self) -> None:
        """The next train step overwrites the gradients instead of adding to them."""
        self._session.lazy_reset_grad()

    def get_contiguous_parameters(self, trainable_only: bool = False) -> OrtValue:
        """A copy of the float32 parameters as one tensor [n], in the training model's order."""
        return OrtValue(self._session.to_buffer(trainable_only))

    def get_parameters_size(self, trainable_only: bool = True) -> int:
        """The number of elements of the parameters."""
        return self._session.parameters_size(trainable_only)

    def copy_buffer_to_parameters(self, buffer: Any, trainable_only: bool = True) -> None:
        """Copies a flat float32 tensor [n] into the parameters; completes a nominal state with trainable_only=False.

        Raises ParameterShapeError for another size, InputTypeError for another dtype."""
        self._session.from_buffer(np.asarray(as_array(buffer, "float32", "the parameter buffer")), trainable_only)

    def export_model_for_inferencing(self, inference_model_uri: PathLike, graph_output_names: list[str]) -> None:
        """Writes a model for inference with the current weights, cut to the named outputs. Raises InvalidStateError without an eval model."""
        self._session.export(inference_model_uri, graph_output_names)

    def input_names(self) -> list[str]:
        """User inputs of the training or the eval model, by mode."""
        return self._session.input_names(self.training)

    def output_names(self) -> list[str]:
        """User outputs of the training or the eval model, by mode."""
        return self._session.output_names(self.training)
