"""How private a training was: the accountant, and the callback that logs its figure and ends training within a budget."""

from __future__ import annotations

import functools
import math
import secrets
from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np

from ortrain.data import DataLoader
from ortrain.data.poisson import PoissonLoader
from ortrain.errors import InvalidArgumentError
from ortrain.packages import require
from ortrain.runtime.differential_privacy import DifferentialPrivacy
from ortrain.trainer.callbacks import Callback, TrainerInterface
from ortrain.trainer.records import EpochRecord, StepRecord
from ortrain.trainer.settings import TrainerSettings
from ortrain.training.session import TrainingSession

PURPOSE = "the accountant of differential privacy"
EPSILON = "epsilon"
"""The name of the figure in the records of epochs."""
SAMPLE_RATE = "sample_rate"
"""In the settings of a run, the probability of a sample to be in the batch of an optimizer step."""


# ---- private sessions in a trainer


def check_processes(session: TrainingSession, are_several: bool) -> None:
    """Raise InvalidArgumentError for a private session that several processes would train: each would add noise of its own."""
    if session.noise is not None and are_several:
        raise InvalidArgumentError("expected one process for a session with differential privacy, got a strategy for several")


def sampled_by_chance(session: TrainingSession, loader: DataLoader, options: TrainerSettings) -> DataLoader:
    """Return a loader with Poisson sampling for a private session that wants it, by random numbers that nobody knows unless the noise has a seed."""
    privacy = session.options.differential_privacy
    if privacy is None or not privacy.poisson_sampling:
        return loader
    return PoissonLoader(loader, options.accumulate, [secrets.randbits(128) if privacy.seed is None else privacy.seed, options.seed])


def prepare_noise(session: TrainingSession, loader: DataLoader) -> dict[str, float]:
    """Tell a private session the expected batch size where its options do not; return what settings of a run say of privacy."""
    if session.noise is not None and session.noise.settings.expected_batch_size is None:
        session.noise.expected_batch_size = loader.batch_size
    return {SAMPLE_RATE: loader.sample_rate} if isinstance(loader, PoissonLoader) else {}


# ---- the accountant


class PrivacyAccountant:
    """Adds up what optimizer steps of differentially private training spend, by Renyi differential privacy (the accountant of Google's dp-accounting).

    Neighbouring data sets differ by adding or removing one sample. Source: I. Mironov, K. Talwar and L. Zhang, Renyi Differential Privacy of the Sampled
    Gaussian Mechanism (2019)."""

    def __init__(self) -> None:
        self.steps: Counter[tuple[float, float]] = Counter()
        """(noise multiplier, sample rate) -> the number of optimizer steps with both."""

    def step(self, noise_multiplier: float, sample_rate: float, steps: int = 1) -> None:
        """Count optimizer steps. sample_rate: the probability of a sample to be in the batch of a step. Raises InvalidArgumentError for values out of range."""
        if not (noise_multiplier > 0 and math.isfinite(noise_multiplier)):
            raise InvalidArgumentError(f"expected a noise_multiplier above 0, since nothing is private without noise, got {noise_multiplier!r}")
        if not 0 < sample_rate <= 1:
            raise InvalidArgumentError(f"expected a sample_rate above 0 and up to 1, got {sample_rate!r}")
        if isinstance(steps, bool) or not isinstance(steps, int) or steps < 0:
            raise InvalidArgumentError(f"expected steps as an integer of at least 0, got {steps!r}")
        self.steps[noise_multiplier, sample_rate] += steps

    def epsilon(self, delta: float) -> float:
        """Return the epsilon for which all steps together are (epsilon, delta)-differentially private.

        Raises InvalidArgumentError for a delta that is not between 0 and 1, MissingPackageError without dp-accounting."""
        if not 0 < delta < 1:
            raise InvalidArgumentError(f"expected a delta above 0 and below 1, got {delta!r}")
        spent = {kind: steps for kind, steps in self.steps.items() if steps}
        renyi = require("dp_accounting.rdp", "privacy", PURPOSE)
        if not spent:
            return 0.0
        divergences = {kind: _divergences_of_a_step(*kind) for kind in spent}
        orders = next(iter(divergences.values()))[0]
        total = sum(steps * divergences[kind][1] for kind, steps in spent.items())
        return float(renyi.compute_epsilon(orders, total, delta)[0])


@functools.cache
def _divergences_of_a_step(noise_multiplier: float, sample_rate: float) -> tuple[np.ndarray, np.ndarray]:
    """Return orders, and of each the Renyi divergence of one step, which adds up over steps. It takes a tenth of a second."""
    accounting, renyi = (require(module, "privacy", PURPOSE) for module in ("dp_accounting", "dp_accounting.rdp"))
    accountant = renyi.RdpAccountant()
    accountant.compose(accounting.PoissonSampledDpEvent(sample_rate, accounting.GaussianDpEvent(noise_multiplier)))
    return np.asarray(accountant.orders), np.asarray(accountant.rdp)


class PrivacyBudget(Callback):
    """Counts the optimizer steps of a private training, adds "epsilon" to the record of each epoch, and ends training before it exceeds a budget.

    delta: the probability that epsilon does not hold, well below 1 / the number of samples. max_epsilon: the budget; None for none. Place it before loggers,
    which then log the figure. A resumed run goes on counting.

    Raises InvalidArgumentError for values out of range, and, when training begins, for a session without noise or Poisson sampling and for a budget that is
    spent; MissingPackageError without dp-accounting."""

    def __init__(self, delta: float, max_epsilon: float | None = None) -> None:
        if max_epsilon is not None and not max_epsilon > 0:
            raise InvalidArgumentError(f"expected a max_epsilon above 0, got {max_epsilon!r}")
        self.delta, self.max_epsilon = delta, max_epsilon
        self.accountant = PrivacyAccountant()
        self.accountant.epsilon(delta)                      # checks delta, and finds the package
        self._kind = 0.0, 0.0
        self._left = math.inf

    @property
    def epsilon(self) -> float:
        """What all steps so far have spent."""
        return self.accountant.epsilon(self.delta)

    def on_fit_begin(self, trainer: TrainerInterface) -> None:
        privacy, rate = trainer.session.options.differential_privacy, trainer.settings.get(SAMPLE_RATE)
        if not isinstance(privacy, DifferentialPrivacy) or not privacy.noise_multiplier or rate is None:
            raise InvalidArgumentError("expected SessionOptions(differential_privacy=DifferentialPrivacy(...)) with noise and Poisson sampling for a privacy "
                                       f"budget, got {privacy}")
        self._kind = privacy.noise_multiplier, rate
        if self.max_epsilon is not None:
            self._left = self._affordable_steps(self.max_epsilon)
            if not self._left:
                raise InvalidArgumentError(f"expected a max_epsilon that allows for a step, got {self.max_epsilon}, of which {self.epsilon:.3g} are spent")

    def _affordable_steps(self, budget: float) -> int:
        """Return how many further steps stay within the budget, by bisection; at most a thousand million."""
        low, high = 0, 1
        while high < 10**9 and self._after(high) <= budget:
            low, high = high, 2 * high
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self._after(middle) <= budget else (low, middle)
        return low

    def _after(self, steps: int) -> float:
        accountant = PrivacyAccountant()
        accountant.steps = Counter(self.accountant.steps)
        accountant.step(*self._kind, steps)
        return accountant.epsilon(self.delta)

    def on_step_end(self, trainer: TrainerInterface, record: StepRecord) -> None:
        self.accountant.step(*self._kind)
        self._left -= 1
        if self._left <= 0:
            trainer.stop(f"the privacy budget is spent: epsilon {self.epsilon:.3g} for delta {self.delta:g}")

    def on_epoch_end(self, trainer: TrainerInterface, record: EpochRecord) -> None:
        record.training[EPSILON] = self.epsilon

    def state_dict(self) -> dict[str, Any]:
        return {"steps": [[noise_multiplier, sample_rate, steps] for (noise_multiplier, sample_rate), steps in self.accountant.steps.items()]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.accountant = PrivacyAccountant()
        try:
            for noise_multiplier, sample_rate, steps in state["steps"]:
                self.accountant.step(noise_multiplier, sample_rate, steps)
        except (KeyError, TypeError, ValueError) as error:
            raise InvalidArgumentError(f"expected noise multipliers, sample rates and steps as the state of PrivacyBudget, got {state!r}") from error
