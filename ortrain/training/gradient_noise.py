"""What a session does for differential privacy beside clipping: the scale of the sum of gradients, and the noise."""

from __future__ import annotations

import secrets
from collections.abc import Iterable

import numpy as np

from ortrain._core.engine import EngineHandle
from ortrain._core.kernel_table import kernels
from ortrain._core.optimizer_update import BoundKernel
from ortrain.errors import InvalidStateError
from ortrain.passes.sample_clipping import GRADIENT_SCALE, MAX_NORM
from ortrain.runtime.differential_privacy import DifferentialPrivacy

KEY_BYTES = 32


class GradientNoise:
    """The part of a session that differential privacy needs. settings, handle: those of the session.

    The noise is normal numbers from the key stream of ChaCha20. Its key is the operating system's random numbers, or follows from the seed; no two optimizer
    steps share a nonce."""

    def __init__(self, settings: DifferentialPrivacy, handle: EngineHandle) -> None:
        self.settings, self._handle = settings, handle
        self.inputs = {MAX_NORM: np.full(1, settings.max_grad_norm, np.float32), GRADIENT_SCALE: np.zeros(1, np.float32)}
        """The inputs of the training model that belong to it."""
        key = secrets.token_bytes(KEY_BYTES) if settings.seed is None else np.random.SeedSequence(settings.seed).generate_state(KEY_BYTES // 4).tobytes()
        self._seed = np.concatenate([np.frombuffer(key, np.uint32), np.zeros(2, np.uint32)])
        """The key [8], and the nonce [2], which counts calls of the kernel."""
        self._count = 0
        self._calls: dict[tuple[int, int], BoundKernel] = {}
        """The kernel calls that add noise, by address and size of the gradients."""
        self._step = -1
        """The number of steps when noise was last added."""
        if settings.expected_batch_size is not None:
            self.expected_batch_size = settings.expected_batch_size

    @property
    def expected_batch_size(self) -> int | None:
        """What the sums of gradients are divided by; None until it is known."""
        scale = float(self.inputs[GRADIENT_SCALE][0])
        return round(1 / scale) if scale else None

    @expected_batch_size.setter
    def expected_batch_size(self, value: int) -> None:
        self.inputs[GRADIENT_SCALE][0] = 1 / value

    def check(self) -> None:
        """Raise InvalidStateError while the expected batch size is not known."""
        if self.expected_batch_size is None:
            raise InvalidStateError("expected DifferentialPrivacy(expected_batch_size=...) for train steps outside of Trainer.fit, got None")

    def forget(self) -> None:
        """Let add() add noise again: the gradients have become others without a train step."""
        self._step = -1

    def add(self, gradients: Iterable[np.ndarray], steps: int) -> None:
        """Add the noise of one optimizer step to flat gradients, unless that was done after the last step. steps: how many there were, ever more."""
        if self._step == steps:
            return
        self._step = steps
        deviation = self.settings.noise_multiplier * self.settings.max_grad_norm * float(self.inputs[GRADIENT_SCALE][0])
        if not deviation:
            return
        for array in gradients:
            self._seed[8:] = (self._count & 0xFFFFFFFF, self._count >> 32)
            self._count += 1
            key = array.ctypes.data, array.size
            if key not in self._calls:
                self._calls[key] = BoundKernel(self._handle, kernels()["gradient_noise", array.dtype.name], [array, self._seed])
            self._calls[key].run(deviation)
