"""What clients add to their gradients: the proximal term of FedProx, and the control variates of SCAFFOLD."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from ortrain.runtime.flat_buffers import FlatBuffer, flat_buffers_of
from ortrain.trainer.callbacks import Callback, TrainerInterface
from ortrain.training.session import TrainingSession


class GradientTerm(Callback):
    """Changes the gradients of the parameters that clients share, in flat buffers.

    session: the one that trains. personal: parameters that are left alone."""

    def __init__(self, session: TrainingSession, personal: Iterable[str] = ()) -> None:
        self._left_out = session.state.masked | set(personal)
        self._parameters = list(flat_buffers_of(session.state.trainable_segments, self._left_out))
        self._scratch = [np.empty_like(parameter.array) for parameter in self._parameters]
        self._gradients: list[FlatBuffer] = []

    def gradients(self, session: TrainingSession) -> list[FlatBuffer]:
        """Return the gradients, in the layout of the parameters. Raises the errors of gradient_buffers: they cannot be changed with optimizer_in_backward."""
        if not self._gradients:
            session.gradient_buffers()                      # from now on train steps keep all gradients
            self._gradients = list(flat_buffers_of(session.state.gradient_segments, self._left_out))
        return self._gradients


class ProximalTerm(GradientTerm):
    """Adds the gradient of mu / 2 |w - w_global|^2 to the gradients before every optimizer step, so that clients with different data drift apart less.

    session: its parameters are the global ones now. personal: parameters without a global value, which the term leaves out. Losses are without the term.

    Source: T. Li and others, Federated Optimization in Heterogeneous Networks (2020)."""

    def __init__(self, session: TrainingSession, mu: float, personal: Iterable[str] = ()) -> None:
        super().__init__(session, personal)
        self.mu = mu
        self._global = [buffer.array.copy() for buffer in self._parameters]

    def on_gradients(self, trainer: TrainerInterface, batches: int) -> None:
        """Add the term's gradient, as often as there are gradients of batches."""
        for gradient, parameter, center, scratch in zip(self.gradients(trainer.session), self._parameters, self._global, self._scratch, strict=True):
            np.subtract(parameter.array, center, out=scratch)
            scratch *= scratch.dtype.type(self.mu * batches)
            gradient.array += scratch


class ControlVariateTerm(GradientTerm):
    """Adds the difference of two control variates to the gradients before every optimizer step, so that clients with different data go the way of all of them.

    session: the one that trains. control_variate: c, an estimate of the gradient over the data of all clients. own: c_i, that over this client's data, which
    is taken away. Both have arrays for the trainable parameters, and maybe for others. personal: parameters that the term leaves out.

    Source: S. P. Karimireddy and others, SCAFFOLD: Stochastic Controlled Averaging for Federated Learning (2020)."""

    def __init__(self, session: TrainingSession, control_variate: Mapping[str, np.ndarray], own: Mapping[str, np.ndarray],
                 personal: Iterable[str] = ()) -> None:
        super().__init__(session, personal)
        self._correction = [self._like(parameter) for parameter in self._parameters]
        for correction in self._correction:
            for name in correction.offsets:
                correction.view(name)[...] = control_variate[name] - own[name]
        self._sum = [self._like(parameter) for parameter in self._parameters]
        self._steps = 0

    @staticmethod
    def _like(buffer: FlatBuffer) -> FlatBuffer:
        return FlatBuffer(np.zeros_like(buffer.array), buffer.offsets, buffer.shapes)

    def on_gradients(self, trainer: TrainerInterface, batches: int) -> None:
        """Add up the gradients of the client's own data, then the correction, as often as there are gradients of batches."""
        for gradient, total, correction, scratch in zip(self.gradients(trainer.session), self._sum, self._correction, self._scratch, strict=True):
            number = scratch.dtype.type(batches)
            total.array += np.divide(gradient.array, number, out=scratch)
            gradient.array += np.multiply(correction.array, number, out=scratch)
        self._steps += 1

    def mean_gradients(self) -> dict[str, np.ndarray]:
        """Return the client's next control variate: by parameter, the mean over all optimizer steps of the gradients without correction.

        After steps of SGD without clipping, momentum and weight decay it is the paper's second option, c_i - c + (w_global - w) / (steps * learning rate)."""
        return {name: total.view(name) / total.array.dtype.type(max(self._steps, 1)) for total in self._sum for name in total.offsets}
