"""Learning-rate schedules."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LinearSchedule:
    """Linear warm-up from 0 to `initial_learning_rate`, then linear decay to 0 (LinearLRScheduler of onnxruntime-training)."""

    warmup_step_count: int
    total_step_count: int
    initial_learning_rate: float

    def rate(self, step: int) -> float:
        """Return the learning rate after `step` completed optimizer steps."""
        if step < self.warmup_step_count:
            factor = step / max(1, self.warmup_step_count)
        else:
            factor = max(0.0, (self.total_step_count - step) / max(1, self.total_step_count - self.warmup_step_count))
        return self.initial_learning_rate * factor
