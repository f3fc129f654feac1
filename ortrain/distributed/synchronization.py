"""What workers exchange, and when: gradients in every optimizer step, or parameters every so many steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext

import numpy as np

from ortrain.distributed.workers import Workers
from ortrain.errors import InvalidArgumentError
from ortrain.runtime.flat_buffers import FlatBuffer
from ortrain.runtime.numbers import check_count, check_number
from ortrain.training.session import TrainingSession


class Synchronization:
    """Sums the gradients of all workers before every optimizer step. Subclasses do less often, or send less.

    All workers call the methods together."""

    sums_gradients = True
    """Whether optimizer steps use the gradients of all workers."""
    has_free_steps = True
    """Whether all workers run train steps together and exchange nothing meanwhile, so that a synchronized batch normalization can."""

    def prepare(self, session: TrainingSession, workers: Workers) -> None:
        """Prepare a session to be trained, before its parameters are those of the other workers, when a Trainer is made."""

    def start(self, session: TrainingSession, workers: Workers) -> None:
        """Begin, or continue, to train: the workers have the same parameters."""
        self.session, self.workers = session, workers
        self._synchronized = session.state.optimizer_step

    def is_due(self, step: int) -> bool:
        """Return whether the workers exchange anything with optimizer step number `step`, counted from 1."""
        return True

    def backward(self, share: float) -> AbstractContextManager[None]:
        """Return the context of the last train step before an optimizer step, also of a worker that has no samples for it. share: as in sum_gradients."""
        return nullcontext()

    def sum_gradients(self, buffers: Sequence[FlatBuffer], share: float) -> None:
        """Replace the gradients by their sums over the workers. share: what those of this worker are multiplied by; 0 where it has none."""
        for buffer in buffers:
            scale(buffer, share)
            self.workers.strategy.all_reduce(buffer.array)

    def gather_parameters(self) -> None:
        """Complete the parameters after an optimizer step that has updated a part of them on each worker."""

    def checkpoint(self) -> AbstractContextManager[None]:
        """Return the context in which rank 0 writes a checkpoint; all workers enter it together."""
        return nullcontext()

    def synchronize(self) -> None:
        """Give all workers the same parameters: after an optimizer step that is due, and before evaluations and checkpoints. Only the first call after an
        optimizer step does anything."""
        step = self.session.state.optimizer_step
        if step != self._synchronized:
            self._synchronize()
            self._synchronized = step

    def _synchronize(self) -> None:
        """Parameters are the same after the same steps along the same gradients."""

    def state_dict(self) -> dict[str, np.ndarray]:
        """Return what a resumed run needs to know, the same arrays on all workers."""
        return {}

    def load_state_dict(self, state: Mapping[str, np.ndarray]) -> None:
        """Go on from a state_dict(), after start()."""


def scale(buffer: FlatBuffer, factor: float) -> None:
    """Multiply the array of a buffer; 0 also replaces numbers that are not finite."""
    if factor == 0:
        buffer.array.fill(0)
    elif factor != 1:
        np.multiply(buffer.array, buffer.array.dtype.type(factor), out=buffer.array)


class LocalSGD(Synchronization):
    """Lets every worker take `every` optimizer steps by itself and then averages the parameters, so that workers communicate so much more rarely.

    The moments of the optimizer stay each worker's own. Parameters are also averaged before evaluations and checkpoints; they must be kept in float32.

    Source: S. U. Stich, Local SGD Converges Fast and Communicates Little (2019). Raises InvalidArgumentError unless `every` is at least 1."""

    sums_gradients = False
    has_free_steps = False

    def __init__(self, every: int = 10) -> None:
        self.every = check_count(every, "every", 1)

    def prepare(self, session: TrainingSession, workers: Workers) -> None:
        session.state.check_float32("workers that average parameters")

    def is_due(self, step: int) -> bool:
        return step % self.every == 0

    def _synchronize(self) -> None:
        self.workers.average(self._parameters())

    def _parameters(self) -> list[np.ndarray]:
        return [segment.array for segment in self.session.state.trainable_segments]


class DiLoCo(LocalSGD):
    """Lets every worker take `every` optimizer steps by itself, and then takes an outer step with Nesterov momentum along the mean change of the parameters.

    It tolerates several hundred steps between communications, so that workers may be far apart. learning_rate, momentum: of the outer step.
    The inner optimizer is the session's, AdamW in the source; its moments stay each worker's own. Evaluations and checkpoints take an outer step before them.
    A worker keeps a copy of the parameters and one momentum.

    Source: A. Douillard and others, DiLoCo: Distributed Low-Communication Training of Language Models (2023). Raises InvalidArgumentError for an `every`
    below 1, a learning rate that is not above 0, and a momentum out of [0, 1), ArgumentTypeError for what is no number."""

    def __init__(self, every: int = 100, learning_rate: float = 0.7, momentum: float = 0.9) -> None:
        super().__init__(every)
        self.learning_rate, self.momentum = check_number(learning_rate, "learning_rate", positive=True), check_number(momentum, "momentum")
        if self.momentum >= 1:
            raise InvalidArgumentError(f"expected a momentum in [0, 1), got {self.momentum:g}")

    def start(self, session: TrainingSession, workers: Workers) -> None:
        continues = getattr(self, "session", None) is session
        super().start(session, workers)
        self._outer = [array.copy() for array in self._parameters()]
        if not continues:
            self._velocity = [np.zeros_like(array) for array in self._outer]

    def _synchronize(self) -> None:
        parameters = self._parameters()
        self.workers.average(parameters)
        for array, outer, velocity in zip(parameters, self._outer, self._velocity, strict=True):
            change = outer - array
            velocity *= self.momentum
            velocity += change
            change += self.momentum * velocity
            change *= self.learning_rate
            outer -= change
            array[...] = outer

    def state_dict(self) -> dict[str, np.ndarray]:
        return {f"velocity{number}": array.copy() for number, array in enumerate(self._velocity)}

    def load_state_dict(self, state: Mapping[str, np.ndarray]) -> None:
        for number, array in enumerate(self._velocity):
            array[...] = state[f"velocity{number}"]
