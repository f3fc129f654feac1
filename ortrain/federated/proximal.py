"""The proximal term of FedProx."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from ortrain.trainer.callbacks import Callback, TrainerInterface
from ortrain.training.flat_buffers import FlatBuffer, flat_buffers_of
from ortrain.training.session import TrainingSession


class ProximalTerm(Callback):
    """Adds the gradient of mu / 2 |w - w_global|^2 to the gradients before every optimizer step, so that clients with different data drift apart less.

    session: its parameters are the global ones now. personal: parameters without a global value, which the term leaves out. Losses are without the term.

    Source: T. Li and others, Federated Optimization in Heterogeneous Networks (2020)."""

    def __init__(self, session: TrainingSession, mu: float, personal: Iterable[str] = ()) -> None:
        self.mu = mu
        self._left_out = session.state.masked | set(personal)
        self._parameters = list(flat_buffers_of(session.state.trainable_segments, self._left_out))
        self._global = [buffer.array.copy() for buffer in self._parameters]
        self._scratch = [np.empty_like(array) for array in self._global]
        self._gradients: list[FlatBuffer] = []

    def on_gradients(self, trainer: TrainerInterface, batches: int) -> None:
        """Add the term's gradient, as often as there are gradients of batches."""
        if not self._gradients:
            trainer.session.gradient_buffers()              # from now on train steps keep all gradients
            self._gradients = list(flat_buffers_of(trainer.session.state.gradient_segments, self._left_out))
        for gradient, parameter, center, scratch in zip(self._gradients, self._parameters, self._global, self._scratch, strict=True):
            np.subtract(parameter.array, center, out=scratch)
            scratch *= scratch.dtype.type(self.mu * batches)
            gradient.array += scratch
