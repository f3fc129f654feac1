"""LinearLRScheduler: linear warm-up and decay."""

from __future__ import annotations

from ortrain.api.optimizer import Optimizer
from ortrain.errors import ParameterTypeError
from ortrain.schedule import LinearSchedule


class LinearLRScheduler:
    """Learning rate from 0 to `initial_lr` over the warm-up steps, then linearly to 0 (old package: onnxruntime.training.api.LinearLRScheduler).

    The old Python class swapped the two counts on their way to its engine; this one means what it says."""

    def __init__(self, optimizer: Optimizer, warmup_step_count: int, total_step_count: int, initial_lr: float) -> None:
        for count in (warmup_step_count, total_step_count):
            if isinstance(count, bool) or not isinstance(count, int):
                raise ParameterTypeError(f"expected an int as step count, got {type(count).__name__}")
        self._session = optimizer._session
        self._session.register_schedule(LinearSchedule(warmup_step_count, total_step_count, float(initial_lr)))

    def step(self) -> None:
        """Sets the rate for the optimizer steps completed so far."""
        self._session.schedule_step()
