"""The settings of differentially private training."""

from __future__ import annotations

from dataclasses import dataclass

from ortrain.runtime.numbers import check_count, check_number


@dataclass(frozen=True, slots=True)
class DifferentialPrivacy:
    """Training that is private for single samples (DP-SGD): the gradient of each sample is clipped, and noise is added to their sum.

    noise_multiplier: the standard deviation of the normal noise in each element of the sum of gradients, over max_grad_norm; at least 0.
    max_grad_norm: the limit of the L2 norm of a sample's gradient by all trained parameters together.
    expected_batch_size: what the sum is divided by, whether the loss is a mean or a sum over samples; None takes the batch size of Trainer.fit, and has to be
    given where a program calls train_step itself. The size of the single batch would tell something about the data.
    poisson_sampling: whether Trainer.fit puts each sample into each batch by chance, independently, so that batches differ in size. That is what accountants
    take for granted that speak of subsampling.
    seed: of the noise, for the same noise again in tests. None takes the operating system's random numbers; with a known seed nothing is private.

    The noise comes from a cryptographically secure generator, ChaCha20. That of floating-point numbers, whose lowest bits may tell more than the theory of real
    numbers allows (Mironov, 2012), is not prevented; and Trainer.fit samples by NumPy's generator, which is not cryptographically secure.

    Raises ArgumentTypeError for what is no number, and InvalidArgumentError for other numbers.
    Source: M. Abadi and others, Deep Learning with Differential Privacy (2016)."""

    noise_multiplier: float
    max_grad_norm: float
    expected_batch_size: int | None = None
    poisson_sampling: bool = True
    seed: int | None = None

    def __post_init__(self) -> None:
        check_number(self.noise_multiplier, "noise_multiplier")
        check_number(self.max_grad_norm, "max_grad_norm", positive=True)
        for name, least in {"expected_batch_size": 1, "seed": 0}.items():
            if (value := getattr(self, name)) is not None:
                check_count(value, name, least)
