"""Optimizer algorithms, one record each: the operator of optimizer models, the update operator of one parameter, the kernel and the hyperparameters.

To add an algorithm, write its kernel in _core/kernels/training/training.h, add its record here, and give it a block in ortrain.onnxblock.optim."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

LEARNING_RATE, STEP, PARAMETERS, GRADIENTS = "learning_rate", "step", "params", "gradients"
"""Graph inputs that every optimizer model has, before its moments."""


@dataclass(frozen=True, slots=True)
class OptimizerAlgorithm:
    """One algorithm. Its kernel takes the weights, the gradient, progress = [learning rate, step number], the mask and the moments."""

    operator: str
    """The operator of optimizer models; its inputs are sequences with one tensor per parameter."""
    update: str
    """The operator of ortrain's own domain that updates one parameter."""
    kernel: str
    moments: tuple[str, ...]
    """The inputs of optimizer models that hold moments, one sequence each; checkpoints store as many tensors per parameter."""
    floats: Mapping[str, float] = field(default_factory=dict)
    """Floating-point attribute -> default, in the order in which the kernel reads them."""
    ints: Mapping[str, int] = field(default_factory=dict)
    """Integer attribute -> default, in the order in which the kernel reads them."""
    uses_moments: bool = True
    """False for an algorithm that neither reads nor writes the moments which its checkpoints store."""
    operations: int = 0
    """Floating-point operations per parameter."""
    gemm_update: int | None = None
    """The algorithm's number in kernels/training/gemm_update.h; None where the update cannot be fused into the GEMM that computes a weight gradient."""

    @property
    def inputs(self) -> list[str]:
        """The inputs of an optimizer model, in order."""
        return [LEARNING_RATE, STEP, PARAMETERS, GRADIENTS, *self.moments]

    @property
    def node_inputs(self) -> list[str]:
        """The inputs of the operator's node; an algorithm without moments does not read the step either."""
        return self.inputs if self.uses_moments else [LEARNING_RATE, PARAMETERS, GRADIENTS]

    @property
    def used_moments(self) -> int:
        """The number of moments that the update of a parameter takes."""
        return len(self.moments) if self.uses_moments else 0

    def float_values(self, attributes: Mapping[str, Any]) -> tuple[float, ...]:
        """Return the floats that the kernel gets for a node's attributes."""
        return tuple(float(attributes.get(name, default)) for name, default in self.floats.items())

    def int_values(self, attributes: Mapping[str, Any]) -> tuple[int, ...]:
        """Return the ints that the kernel gets for a node's attributes."""
        return tuple(int(attributes.get(name, default)) for name, default in self.ints.items())


ADAMW = OptimizerAlgorithm(
    "AdamWOptimizer", "AdamWUpdate", "adamw", ("first_order_moments", "second_order_moments"),
    {"alpha": 0.9, "beta": 0.999, "epsilon": 1e-8, "weight_decay": 1e-2}, {"correct_bias": 1, "adam_mode": 0}, operations=14, gemm_update=1)
SGD = OptimizerAlgorithm("SGDOptimizerV2", "SGDUpdate", "sgd", ("first_order_moments",), uses_moments=False, operations=2, gemm_update=0)

ALGORITHMS = {algorithm.operator: algorithm for algorithm in (ADAMW, SGD)}
"""Operator of optimizer models -> algorithm."""
UPDATES = {algorithm.update: algorithm for algorithm in ALGORITHMS.values()}
"""Operator that updates one parameter -> algorithm."""
