"""Optimizer algorithms, one record each: the operator of optimizer models, the update operator of one parameter, the kernel and the hyperparameters.

To add an algorithm, write its kernel in _core/kernels/training/, add its record here, and give it a block in ortrain.onnxblock.optim."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any

from ortrain.ops.registry.record import MICROSOFT, ORTRAIN

LEARNING_RATE, STEP, PARAMETERS, GRADIENTS = "learning_rate", "step", "params", "gradients"
"""Graph inputs that every optimizer model has, before its moments."""
WEIGHT_DECAY = "weight_decay"
"""The hyperparameter that parameter groups may set for their parameters."""

Sizes = tuple[int, ...]


def like_weights(sizes: Sizes) -> Sizes:
    """Return the shape of a moment with one element per weight."""
    return sizes


@dataclass(frozen=True, slots=True)
class Moment:
    """One moment of an algorithm: what an optimizer keeps for each parameter from step to step."""

    name: str
    """The input of optimizer models that holds it, a sequence with one tensor per parameter."""
    shape: Callable[[Sizes], Sizes] = like_weights
    """From the shape of a parameter to that of its moment."""
    needed_for: str | None = None
    """The hyperparameter without which (0) the moment does not exist; None for a moment that always does."""


@dataclass(frozen=True, slots=True)
class OptimizerAlgorithm:
    """One algorithm. Its kernel takes the weights, the gradient, progress = [learning rate, step number], the mask and the moments."""

    operator: str
    """The operator of optimizer models; its inputs are sequences with one tensor per parameter."""
    update: str
    """The operator of ortrain's own domain that updates one parameter."""
    kernel: str
    moments: tuple[Moment, ...]
    """In the order of the kernel; checkpoints store moment k of a parameter under the name momentum<k>."""
    floats: Mapping[str, float] = field(default_factory=dict)
    """Floating-point attribute -> default, in the order in which the kernel reads them."""
    ints: Mapping[str, int] = field(default_factory=dict)
    """Integer attribute -> default, in the order in which the kernel reads them."""
    domain: str = ORTRAIN
    """The domain of the operator."""
    uses_moments: bool = True
    """False for an algorithm that neither reads nor writes the moments which its checkpoints store."""
    operations: int = 0
    """Floating-point operations per parameter."""
    gemm_update: int | None = None
    """The algorithm's number in kernels/training/gemm_update.h; None where the update cannot be fused into the GEMM that computes a weight gradient."""
    per_tensor: bool = False
    """Whether the update of an element depends on the whole tensor, so that the kernel must be called once per parameter, with the parameter's shape, instead
    of once per flat segment."""
    scratch: Callable[[Sizes], int] | None = None
    """From the shape of a parameter to the elements of working memory that the kernel needs; None for none."""

    @property
    def used_moments(self) -> int:
        """The number of moments that the update of a parameter takes at most."""
        return len(self.moments) if self.uses_moments else 0

    def present_moments(self, attributes: Mapping[str, Any]) -> tuple[Moment | None, ...]:
        """Return the moments, None in place of those that a node's attributes leave out."""
        known = {**self.floats, **self.ints, **attributes}
        return tuple(moment if moment.needed_for is None or known[moment.needed_for] else None for moment in self.moments)

    def inputs(self, attributes: Mapping[str, Any]) -> list[str]:
        """Return the inputs of an optimizer model, in order. attributes: of the operator's node."""
        return [LEARNING_RATE, STEP, PARAMETERS, GRADIENTS, *(moment.name for moment in self.present_moments(attributes) if moment is not None)]

    def node_inputs(self, attributes: Mapping[str, Any]) -> list[str]:
        """Return the inputs of the operator's node, "" for absent ones; an algorithm without moments does not read the step either."""
        if not self.uses_moments:
            return [LEARNING_RATE, PARAMETERS, GRADIENTS]
        moments = ["" if moment is None else moment.name for moment in self.present_moments(attributes)]
        while moments and not moments[-1]:
            moments.pop()
        return [LEARNING_RATE, STEP, PARAMETERS, GRADIENTS, *moments]

    def float_values(self, attributes: Mapping[str, Any]) -> tuple[float, ...]:
        """Return the floats that the kernel gets for a node's attributes."""
        return tuple(float(attributes.get(name, default)) for name, default in self.floats.items())

    def int_values(self, attributes: Mapping[str, Any]) -> tuple[int, ...]:
        """Return the ints that the kernel gets for a node's attributes."""
        return tuple(int(attributes.get(name, default)) for name, default in self.ints.items())


def sizes_without_columns(sizes: Sizes) -> Sizes:
    """Return the shape of Adafactor's means over columns; weights of rank 0 and 1 are not factored."""
    return sizes[:-1] if len(sizes) > 1 else sizes


def sizes_without_rows(sizes: Sizes) -> Sizes:
    """Return the shape of Adafactor's means over rows; weights of rank 0 and 1 have none."""
    return (*sizes[:-2], sizes[-1]) if len(sizes) > 1 else (0,)


def sizes_unless_matrix(sizes: Sizes) -> Sizes:
    """Return the shape of Muon's second moments: matrices have none."""
    return (0,) if len(sizes) > 1 else sizes


def newton_schulz_elements(sizes: Sizes) -> int:
    """Return the elements of working memory of Muon: two matrices of the weights' shape and two squares of its shorter side."""
    if len(sizes) < 2 or not prod(sizes):
        return 0
    count = prod(sizes)
    return 2 * (count + min(sizes[0], count // sizes[0]) ** 2)


FIRST, SECOND = Moment("first_order_moments"), Moment("second_order_moments")

ADAMW = OptimizerAlgorithm(
    "AdamWOptimizer", "AdamWUpdate", "adamw", (FIRST, SECOND),
    {"alpha": 0.9, "beta": 0.999, "epsilon": 1e-8, WEIGHT_DECAY: 1e-2}, {"correct_bias": 1, "adam_mode": 0}, MICROSOFT, operations=14, gemm_update=1)
SGD = OptimizerAlgorithm("SGDOptimizerV2", "SGDUpdate", "sgd", (FIRST,), domain=MICROSOFT, uses_moments=False, operations=2, gemm_update=0)
ADAM = OptimizerAlgorithm(
    "AdamOptimizer", "AdamUpdate", "adam", (FIRST, SECOND),
    {"beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8, WEIGHT_DECAY: 0.0}, {"decoupled": 0}, operations=16, gemm_update=2)
MOMENTUM = OptimizerAlgorithm(
    "MomentumOptimizer", "MomentumUpdate", "momentum", (Moment("first_order_moments", needed_for="momentum"),),
    {"momentum": 0.9, "dampening": 0.0, WEIGHT_DECAY: 0.0}, {"nesterov": 0, "decoupled": 0}, operations=10, gemm_update=3)
LION = OptimizerAlgorithm(
    "LionOptimizer", "LionUpdate", "lion", (FIRST,), {"beta1": 0.9, "beta2": 0.99, WEIGHT_DECAY: 0.0}, operations=10, gemm_update=4)
RMSPROP = OptimizerAlgorithm(
    "RMSpropOptimizer", "RMSpropUpdate", "rmsprop", (SECOND, Moment("gradient_means", needed_for="centered"), Moment("momentums", needed_for="momentum")),
    {"alpha": 0.99, "epsilon": 1e-8, "momentum": 0.0, WEIGHT_DECAY: 0.0}, {"centered": 0, "decoupled": 0}, operations=11, gemm_update=5)
ADAGRAD = OptimizerAlgorithm(
    "AdagradOptimizer", "AdagradUpdate", "adagrad", (Moment("squared_gradient_sums"),),
    {"epsilon": 1e-10, "learning_rate_decay": 0.0, WEIGHT_DECAY: 0.0}, {"decoupled": 0}, operations=9, gemm_update=6)
LAMB = OptimizerAlgorithm(
    "LambOptimizer", "LambUpdate", "lamb", (FIRST, SECOND),
    {"beta1": 0.9, "beta2": 0.999, "epsilon": 1e-6, WEIGHT_DECAY: 0.01}, {"correct_bias": 1}, operations=26, per_tensor=True)
ADAFACTOR = OptimizerAlgorithm(
    "AdafactorOptimizer", "AdafactorUpdate", "adafactor",
    (Moment("row_second_order_moments", sizes_without_columns), Moment("column_second_order_moments", sizes_without_rows)),
    {"decay_rate": -0.8, "epsilon1": 1e-30, "epsilon2": 1e-3, "clip_threshold": 1.0, WEIGHT_DECAY: 0.0}, {"scale_parameter": 0, "relative_step": 0},
    operations=14, per_tensor=True)
MUON = OptimizerAlgorithm(
    "MuonOptimizer", "MuonUpdate", "muon", (FIRST, Moment("second_order_moments", sizes_unless_matrix)),
    {"momentum": 0.95, WEIGHT_DECAY: 0.0, "epsilon": 1e-7, "beta1": 0.9, "beta2": 0.999, "adam_epsilon": 1e-8},
    {"nesterov": 1, "newton_schulz_steps": 5, "match_rms": 1}, operations=14, per_tensor=True, scratch=newton_schulz_elements)

ALGORITHMS = {algorithm.operator: algorithm for algorithm in (ADAMW, SGD, ADAM, MOMENTUM, LION, RMSPROP, ADAGRAD, LAMB, ADAFACTOR, MUON)}
"""Operator of optimizer models -> algorithm."""
UPDATES = {algorithm.update: algorithm for algorithm in ALGORITHMS.values()}
"""Operator that updates one parameter -> algorithm."""
