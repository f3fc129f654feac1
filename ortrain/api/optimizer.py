"""Optimizer: updates a module's parameters."""

from __future__ import annotations

import os

from ortrain.api.module import Module


class Optimizer:
    """Updates the trainable parameters of a module (old package: onnxruntime.training.api.Optimizer).

    Raises ArtifactNotFoundError, InvalidModelError when the file is no optimizer model, InvalidCheckpointError when the checkpoint's optimizer state
    does not fit."""

    def __init__(self, optimizer_uri: str | os.PathLike[str], module: Module) -> None:
        self._session = module._session
        self._session.load_optimizer(optimizer_uri)

    def step(self) -> None:
        """One update from the accumulated gradients."""
        self._session.optimizer_step()

    def set_learning_rate(self, learning_rate: float) -> None:
        """Sets the learning rate of the next steps (it is not part of a checkpoint)."""
        self._session.learning_rate = learning_rate

    def get_learning_rate(self) -> float:
        """The current learning rate; 0.001 at the start."""
        return self._session.learning_rate
