"""The learning-rate range test: a short training whose learning rate grows from step to step."""

from __future__ import annotations

import io
import math
import os
from dataclasses import dataclass

from ortrain.data import DataLoader
from ortrain.errors import InvalidArgumentError, InvalidStateError
from ortrain.formats.atomic_files import replace_file
from ortrain.packages import require
from ortrain.training.session import TrainingSession

SMOOTHING = 0.9
"""Decay of the moving average of the loss, corrected for its start as Adam's moments are."""
DIVERGED = 4.0
"""The test ends where the smoothed loss exceeds its lowest value by this factor."""
LEAST_STEPS = 5


@dataclass(frozen=True, slots=True)
class LearningRateCurve:
    """The smoothed loss of each step of a learning-rate range test."""

    learning_rates: list[float]
    losses: list[float]

    @property
    def suggestion(self) -> float:
        """A tenth of the learning rate with the lowest loss: at the lowest point itself the loss is about to rise (J. Howard and S. Gugger, fastai)."""
        return self.learning_rates[min(range(len(self.losses)), key=self.losses.__getitem__)] / 10

    def plot(self, path: str | os.PathLike[str]) -> None:
        """Draw loss over learning rate into a PNG file. Needs matplotlib."""
        figure = require("matplotlib.figure", "plot", "plots").Figure(figsize=(5.5, 4), layout="constrained")
        axes = figure.subplots()
        axes.plot(self.learning_rates, self.losses)
        axes.axvline(self.suggestion, linestyle="--", color="gray", label=f"suggestion {self.suggestion:.2g}")
        axes.set(xscale="log", xlabel="learning rate", ylabel="smoothed loss", title="learning-rate range test")
        axes.grid(alpha=0.3)
        axes.legend()
        image = io.BytesIO()
        figure.savefig(image, format="png", dpi=120)
        replace_file(path, image.getvalue())


def find_learning_rate(session: TrainingSession, loader: DataLoader, lowest: float, highest: float, steps: int) -> LearningRateCurve:
    """Run the test and restore parameters, optimizer state, learning rate and the count of steps, whatever happens.

    Raises InvalidArgumentError for limits that are no range, InvalidStateError when fewer than LEAST_STEPS steps had a finite loss, and for a session whose
    optimizer is sharded."""
    if not (0 < lowest < highest < math.inf):
        raise InvalidArgumentError(f"expected 0 < lowest < highest as learning rates, got {lowest} and {highest}")
    if steps < LEAST_STEPS:
        raise InvalidArgumentError(f"expected at least {LEAST_STEPS} steps, got {steps}")
    session.state.check_whole("a search for a learning rate")
    saved, rate, count = session.state.snapshot(), session.learning_rate, session.train_steps
    rates: list[float] = []
    losses: list[float] = []
    smoothed, epoch = 0.0, 0
    growth = (highest / lowest) ** (1 / (steps - 1))
    try:
        while len(rates) < steps:
            before = len(rates)
            for batch in loader.epoch(epoch):
                session.learning_rate = lowest * growth ** len(rates)
                session.lazy_reset_grad()
                loss = float(session.train_step(*batch)[0])
                smoothed = SMOOTHING * smoothed + (1 - SMOOTHING) * loss
                corrected = smoothed / (1 - SMOOTHING ** (len(rates) + 1))
                if not math.isfinite(loss) or losses and corrected > DIVERGED * min(losses):
                    return _curve(rates, losses)
                rates.append(session.learning_rate)
                losses.append(corrected)
                session.optimizer_step()
                if len(rates) == steps:
                    break
            epoch += 1
            if len(rates) == before:
                raise InvalidArgumentError("expected at least one batch, got none")
        return _curve(rates, losses)
    finally:
        session.lazy_reset_grad()
        session.state.restore(saved)
        session.learning_rate, session.train_steps = rate, count


def _curve(rates: list[float], losses: list[float]) -> LearningRateCurve:
    if len(rates) < LEAST_STEPS:
        raise InvalidStateError(f"expected at least {LEAST_STEPS} steps with a finite loss, got {len(rates)}: begin with a lower learning rate")
    return LearningRateCurve(rates, losses)


