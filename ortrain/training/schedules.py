"""Learning-rate schedules: the learning rate as a function of the completed optimizer steps.

All of them can begin with a linear warm-up from 0. `make_schedule` makes one by name; a session takes any through `register_schedule`."""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from ortrain.errors import ArgumentTypeError, InvalidArgumentError
from ortrain.runtime.numbers import check_count, check_learning_rate, check_number


class Schedule(Protocol):
    """What sessions need of a schedule."""

    @property
    def initial_learning_rate(self) -> float:
        """The learning rate that checkpoints store."""

    def rate(self, step: int) -> float:
        """Return the learning rate after `step` completed optimizer steps."""


@dataclass(frozen=True, slots=True)
class LinearSchedule:
    """Linear warm-up from 0 to `initial_learning_rate`, then linear decay to 0 (LinearLRScheduler of onnxruntime-training).

    Raises ParameterTypeError or InvalidArgumentError for a learning rate that is no number, negative or not finite."""

    warmup_step_count: int
    total_step_count: int
    initial_learning_rate: float

    def __post_init__(self) -> None:
        check_learning_rate(self.initial_learning_rate)

    def rate(self, step: int) -> float:
        """Return the learning rate after `step` completed optimizer steps."""
        if step < self.warmup_step_count:
            factor = step / max(1, self.warmup_step_count)
        else:
            factor = max(0.0, (self.total_step_count - step) / max(1, self.total_step_count - self.warmup_step_count))
        return self.initial_learning_rate * factor


@dataclass(frozen=True)
class WarmupSchedule:
    """A linear warm-up from 0 to `learning_rate`, then what `after_warmup` says.

    learning_rate: the highest one. warmup_steps: optimizer steps of the warm-up, 0 for none.

    Schedules raise ArgumentTypeError, ParameterTypeError or InvalidArgumentError for arguments of a wrong type or out of range."""

    learning_rate: float
    warmup_steps: int = field(default=0, kw_only=True)

    def __post_init__(self) -> None:
        check_learning_rate(self.learning_rate)
        check_count(self.warmup_steps, "warmup_steps")

    @property
    def initial_learning_rate(self) -> float:
        """The learning rate that checkpoints store."""
        return self.learning_rate

    def rate(self, step: int) -> float:
        """Return the learning rate after `step` completed optimizer steps."""
        if step < self.warmup_steps:
            return self.learning_rate * step / self.warmup_steps
        return self.after_warmup(step - self.warmup_steps)

    def after_warmup(self, step: int) -> float:
        """Return the learning rate `step` optimizer steps after the warm-up."""
        raise NotImplementedError


@dataclass(frozen=True)
class ConstantSchedule(WarmupSchedule):
    """The same learning rate in every step."""

    def after_warmup(self, step: int) -> float:
        return self.learning_rate


@dataclass(frozen=True)
class _DecaySchedule(WarmupSchedule):
    """A schedule that ends after a number of steps and then stays at its last learning rate. total_steps: including the warm-up."""

    total_steps: int
    final_learning_rate: float = field(default=0.0, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count(self.total_steps, "total_steps", 1)
        check_learning_rate(self.final_learning_rate)

    def progress(self, step: int) -> float:
        """Return which share of the decay is over, from 0 to 1, `step` optimizer steps after the warm-up."""
        return min(1.0, step / max(1, self.total_steps - self.warmup_steps))


@dataclass(frozen=True)
class CosineSchedule(_DecaySchedule):
    """Cosine decay to `final_learning_rate` over total_steps (Loshchilov and Hutter, SGDR, 2017).

    cycles: times that the decay starts again from the highest learning rate, all of the same length; 1 for no restart."""

    cycles: int = field(default=1, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count(self.cycles, "cycles", 1)

    def after_warmup(self, step: int) -> float:
        progress = self.progress(step)
        within = progress * self.cycles % 1.0 if progress < 1.0 else 1.0
        return self.final_learning_rate + (self.learning_rate - self.final_learning_rate) * 0.5 * (1 + math.cos(math.pi * within))


@dataclass(frozen=True)
class PolynomialSchedule(_DecaySchedule):
    """Decay to `final_learning_rate` over total_steps by (1 - progress)^power; power 1 is linear."""

    power: float = field(default=1.0, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number(self.power, "power", positive=True)

    def after_warmup(self, step: int) -> float:
        return self.final_learning_rate + (self.learning_rate - self.final_learning_rate) * float((1 - self.progress(step)) ** self.power)


@dataclass(frozen=True)
class OneCycleSchedule(WarmupSchedule):
    """One cycle: up from learning_rate / initial_divisor to learning_rate, then down to learning_rate / (initial_divisor final_divisor), both along half a
    cosine (Smith and Topin, Super-Convergence, 2018; the defaults and the steps are those of PyTorch's OneCycleLR).

    warmup_steps: of the way up; 0 takes 30 % of total_steps."""

    total_steps: int
    initial_divisor: float = field(default=25.0, kw_only=True)
    final_divisor: float = field(default=1e4, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count(self.total_steps, "total_steps", 1)
        check_number(self.initial_divisor, "initial_divisor", positive=True)
        check_number(self.final_divisor, "final_divisor", positive=True)

    def rate(self, step: int) -> float:
        """Return the learning rate after `step` completed optimizer steps."""
        lowest, last = self.learning_rate / self.initial_divisor, self.total_steps - 1
        top = float(self.warmup_steps) if self.warmup_steps else 0.3 * self.total_steps - 1
        if step <= top:
            return _between(lowest, self.learning_rate, step / top if top > 0 else 1.0)
        return _between(self.learning_rate, lowest / self.final_divisor, min(1.0, (step - top) / (last - top)) if last > top else 1.0)


def _between(start: float, end: float, progress: float) -> float:
    """Return the value on half a cosine from start to end."""
    return end + (start - end) / 2 * (1 + math.cos(math.pi * progress))


@dataclass(frozen=True)
class StepSchedule(WarmupSchedule):
    """The learning rate times `factor` every `step_size` optimizer steps after the warm-up."""

    step_size: int
    factor: float = field(default=0.1, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count(self.step_size, "step_size", 1)
        check_number(self.factor, "factor")

    def after_warmup(self, step: int) -> float:
        return self.learning_rate * self.factor ** (step // self.step_size)


@dataclass(frozen=True)
class MultiStepSchedule(WarmupSchedule):
    """The learning rate times `factor` at each milestone. milestones: increasing numbers of optimizer steps after the warm-up."""

    milestones: Sequence[int]
    factor: float = field(default=0.1, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        milestones = tuple(check_count(milestone, "milestone", 1) for milestone in self.milestones)
        if list(milestones) != sorted(set(milestones)):
            raise InvalidArgumentError(f"expected increasing milestones, got {list(milestones)}")
        object.__setattr__(self, "milestones", milestones)
        check_number(self.factor, "factor")

    def after_warmup(self, step: int) -> float:
        return self.learning_rate * self.factor ** sum(step >= milestone for milestone in self.milestones)


@dataclass(frozen=True)
class ExponentialSchedule(WarmupSchedule):
    """The learning rate times `factor` with every optimizer step after the warm-up. factor: above 0; 0.999 halves the rate in 693 steps."""

    factor: float

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number(self.factor, "factor", positive=True)

    def after_warmup(self, step: int) -> float:
        return self.learning_rate * self.factor**step


class PlateauSchedule:
    """A learning rate that shrinks when a metric stops improving (ReduceLROnPlateau of PyTorch and Keras). Call `update` with the metric after each evaluation.

    learning_rate: the first one. factor: of each reduction, in (0, 1). patience: evaluations without improvement that are tolerated. threshold: relative
    improvement that counts. mode: "min" or "max", what is better. cooldown: evaluations after a reduction that are not counted. final_learning_rate: the lowest
    one. warmup_steps: optimizer steps of a linear warm-up from 0.

    Raises ArgumentTypeError, ParameterTypeError or InvalidArgumentError for arguments of a wrong type or out of range."""

    def __init__(self, learning_rate: float, *, factor: float = 0.1, patience: int = 10, threshold: float = 1e-4, mode: str = "min", cooldown: int = 0,
                 final_learning_rate: float = 0.0, warmup_steps: int = 0) -> None:
        self.initial_learning_rate = self.current_learning_rate = check_learning_rate(learning_rate)
        self.factor, self.threshold = check_number(factor, "factor", positive=True), check_number(threshold, "threshold")
        self.patience, self.cooldown = check_count(patience, "patience"), check_count(cooldown, "cooldown")
        self.final_learning_rate, self.warmup_steps = check_learning_rate(final_learning_rate), check_count(warmup_steps, "warmup_steps")
        if self.factor >= 1:
            raise InvalidArgumentError(f"expected a factor below 1, got {factor:g}")
        if mode not in ("min", "max"):
            raise InvalidArgumentError(f"expected a mode of 'min' or 'max', got {mode!r}")
        self.mode = mode
        self.best: float | None = None
        """The best metric so far."""
        self.bad_updates = 0
        """Updates without improvement since the best one, the last reduction or the end of its cooldown."""
        self.cooling = 0
        """Updates until the cooldown ends."""

    def rate(self, step: int) -> float:
        """Return the learning rate after `step` completed optimizer steps."""
        return self.current_learning_rate * (step / self.warmup_steps if step < self.warmup_steps else 1.0)

    def update(self, metric: float) -> float:
        """Take the metric of an evaluation and return the learning rate from now on; NaN counts as no improvement.

        Raises ArgumentTypeError for what is no number."""
        if isinstance(metric, bool) or not isinstance(metric, int | float | np.floating | np.integer):
            raise ArgumentTypeError(f"expected a number as metric, got {type(metric).__name__}")
        if self._is_better(float(metric)):
            self.best, self.bad_updates = float(metric), 0
        else:
            self.bad_updates += 1
        if self.cooling:
            self.cooling, self.bad_updates = self.cooling - 1, 0
        if self.bad_updates > self.patience:
            self.current_learning_rate = max(self.current_learning_rate * self.factor, min(self.final_learning_rate, self.current_learning_rate))
            self.bad_updates, self.cooling = 0, self.cooldown
        return self.current_learning_rate

    def _is_better(self, metric: float) -> bool:
        if math.isnan(metric) or self.best is None:
            return not math.isnan(metric)
        least = abs(self.best) * self.threshold
        return metric < self.best - least if self.mode == "min" else metric > self.best + least

    def state_dict(self) -> dict[str, float | int | None]:
        """Return what updates have changed, for load_state_dict; JSON can hold it."""
        return {name: getattr(self, name) for name in ("current_learning_rate", "best", "bad_updates", "cooling")}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state_dict(). Raises InvalidArgumentError when it has other entries, and as the constructor for wrong values."""
        if set(state) != set(self.state_dict()):
            raise InvalidArgumentError(f"expected the state of a plateau schedule with {sorted(self.state_dict())}, got {sorted(state)}")
        rate, best = check_learning_rate(state["current_learning_rate"]), state["best"]
        bad, cooling = check_count(state["bad_updates"], "bad_updates"), check_count(state["cooling"], "cooling")
        self.best = None if best is None else float(best)
        self.current_learning_rate, self.bad_updates, self.cooling = rate, bad, cooling


SCHEDULES: dict[str, type[Any]] = {
    "constant": ConstantSchedule, "linear": LinearSchedule, "cosine": CosineSchedule, "one_cycle": OneCycleSchedule, "step": StepSchedule,
    "multi_step": MultiStepSchedule, "exponential": ExponentialSchedule, "polynomial": PolynomialSchedule, "plateau": PlateauSchedule,
}
"""Name -> schedule."""


def check_schedule(schedule: Any) -> None:
    """Raise InvalidArgumentError for what is neither the name of a schedule nor an object with a method rate."""
    if isinstance(schedule, str):
        if schedule.replace("-", "_") not in SCHEDULES:
            raise InvalidArgumentError(f"expected a schedule among {', '.join(SCHEDULES)}, got {schedule!r}")
    elif not hasattr(schedule, "rate"):
        raise InvalidArgumentError(f"expected the name of a schedule or an object with a method rate(step), got {schedule!r}")


def make_schedule(name: str, total_steps: int, learning_rate: float, warmup_steps: int = 0, **options: Any) -> Schedule:
    """Return a schedule by name: constant, linear, cosine, one_cycle, step, multi_step, exponential, polynomial or plateau; hyphens are underscores.

    total_steps: optimizer steps of the training, for schedules that end. learning_rate: the highest one. warmup_steps: of a linear warm-up from 0.
    options: further arguments of the schedule's class.

    Raises InvalidArgumentError for an unknown name or option, with the known ones, and the errors of the class."""
    name = name.replace("-", "_")
    check_schedule(name)
    check_count(total_steps, "total_steps", 1)
    schedule = SCHEDULES[name]
    arguments: dict[str, Any] = {"learning_rate": learning_rate, "warmup_steps": warmup_steps, "total_steps": total_steps}
    if schedule is LinearSchedule:
        arguments = {"initial_learning_rate": learning_rate, "warmup_step_count": check_count(warmup_steps, "warmup_steps"), "total_step_count": total_steps}
    known = inspect.signature(schedule).parameters
    arguments = {key: value for key, value in arguments.items() if key in known}
    wrong = [option for option in options if option not in known or option in arguments]
    missing = [key for key, parameter in known.items() if parameter.default is parameter.empty and key not in arguments and key not in options]
    if wrong or missing:
        allowed = [f"{key} (required)" if key in missing else key for key in known if key not in arguments]
        raise InvalidArgumentError(f"expected options among {', '.join(allowed)} for the schedule {name!r}, got {sorted(options)}")
    made: Schedule = schedule(**arguments, **options)
    return made
