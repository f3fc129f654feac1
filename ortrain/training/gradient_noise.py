"""What a session does for differential privacy beside clipping: the scale of the sum of gradients, and the noise."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from ortrain.errors import InvalidStateError
from ortrain.passes.sample_clipping import GRADIENT_SCALE, MAX_NORM
from ortrain.runtime.differential_privacy import DifferentialPrivacy

BLOCK = 1 << 16
"""Elements that get noise at a time, so that it stays in the cache."""


class GradientNoise:
    """The part of a session that differential privacy needs. settings: those of the session."""

    def __init__(self, settings: DifferentialPrivacy) -> None:
        self.settings = settings
        self.inputs = {MAX_NORM: np.full(1, settings.max_grad_norm, np.float32), GRADIENT_SCALE: np.zeros(1, np.float32)}
        """The inputs of the training model that belong to it."""
        self._random = np.random.default_rng(settings.seed)
        self._step: int | None = None
        """The number of train steps when noise was last added."""
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
        self._step = None

    def add(self, gradients: Iterable[np.ndarray], train_steps: int) -> None:
        """Add the noise of one optimizer step to flat gradients, unless that was done after the last train step. train_steps: how many there were."""
        if self._step == train_steps:
            return
        self._step = train_steps
        deviation = self.settings.noise_multiplier * self.settings.max_grad_norm * float(self.inputs[GRADIENT_SCALE][0])
        if not deviation:
            return
        for array in gradients:
            for start in range(0, len(array), BLOCK):
                block = array[start : start + BLOCK]
                block += self._random.standard_normal(len(block), np.float32) * np.float32(deviation)
