"""The gradients of a state as a whole: their norm, and how an optimizer step scales and clips them before it uses them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence, Set

import numpy as np

from ortrain._core.engine import EngineHandle
from ortrain._core.kernel_table import kernels
from ortrain._core.optimizer_update import BoundKernel
from ortrain.runtime.state import TrainingState

CLIP_EPSILON = 1e-6
"""Added to the norm before dividing, as InplaceClipGradNorm does."""


class Gradients:
    """The gradients of the trainable parameters that are not frozen, as far as this process updates them. state: bound."""

    def __init__(self, state: TrainingState, handle: EngineHandle) -> None:
        self.state, self.handle = state, handle
        self.scale = 1.0
        """Factor that an optimizer step applies first."""
        self.max_value: float | None = None
        """Limit of the absolute value of each element, applied second."""
        self.max_norm: float | None = None
        """Limit of the common L2 norm, applied third."""
        self.last_norm: float | None = None
        """The norm before clipping by it in the last optimizer step that clipped by it."""
        self.add_up: Callable[[float], float] | None = None
        """Adds up a number over the processes that divide the parameters; None where this one has all."""
        self._without: frozenset[str] | None = None
        self._norms: list[tuple[BoundKernel, np.ndarray]] = []
        self._scales: list[BoundKernel] = []
        self._limits: list[BoundKernel] = []

    @property
    def are_changed(self) -> bool:
        """Whether optimizer steps scale or clip gradients."""
        return self.scale != 1.0 or self.max_value is not None or self.max_norm is not None

    def prepare(self, without: Set[str]) -> None:
        """Prepare kernel calls over the gradients of all parameters but those named in `without`."""
        if self._without == without:
            return
        self._without = frozenset(without)
        self._norms, self._scales, self._limits = [], [], []
        for segment in self.state.updated_gradient_segments:
            for start, end in segment.runs(without):
                gradient, square, dtype = segment.array[start:end], np.zeros(1, np.float64), segment.dtype.name
                self._norms.append((BoundKernel(self.handle, kernels()["squared_norm", dtype], [gradient], [square]), square))
                self._scales.append(BoundKernel(self.handle, kernels()["scale_in_place", dtype], [gradient]))
                self._limits.append(BoundKernel(self.handle, kernels()["clip_in_place", dtype], [gradient]))

    def forget(self) -> None:
        """Prepare kernel calls anew, since the parameters that this process updates are others."""
        self._without = None

    def norm(self) -> float:
        """Return the common L2 norm of the gradients that prepare() selected."""
        total = 0.0
        for call, square in self._norms:
            call.run()
            total += float(square[0])
        return math.sqrt(total if self.add_up is None else self.add_up(total))

    def change(self, max_norms: Sequence[float] = ()) -> None:
        """Scale and clip the gradients that prepare() selected, in place. max_norms: further limits of the norm, from the optimizer model."""
        if self.scale != 1.0:
            self._multiply(self.scale)
        if self.max_value is not None:
            for call in self._limits:
                call.run(self.max_value)
        for limit in (*(() if self.max_norm is None else (self.max_norm,)), *max_norms):
            self._clip(limit)

    def _clip(self, max_norm: float) -> None:
        """Scale the gradients so that their norm is at most max_norm."""
        self.last_norm = self.norm()
        factor = min(1.0, max_norm / (self.last_norm + CLIP_EPSILON))
        if factor < 1.0:
            self._multiply(factor)

    def _multiply(self, factor: float) -> None:
        for call in self._scales:
            call.run(factor)
