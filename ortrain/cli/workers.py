"""Workers on the command line: the strategy that connects or starts them, and what they exchange."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ortrain.cli.common import made_by_name
from ortrain.distributed import (
    BFloat16Synchronization,
    DiLoCo,
    Launcher,
    LocalSGD,
    OptimizerSharding,
    OverlappedSynchronization,
    Ray,
    Strategy,
    Synchronization,
    TopKSynchronization,
)
from ortrain.distributed.workers import STRATEGIES, strategy_of
from ortrain.errors import InvalidArgumentError

RAY = "ray"
STRATEGY_NAMES = (*STRATEGIES, RAY)
SYNCHRONIZATIONS: dict[str, type[Synchronization]] = {
    "overlapped": OverlappedSynchronization, "bfloat16": BFloat16Synchronization, "top-k": TopKSynchronization, "local-sgd": LocalSGD, "diloco": DiLoCo,
    "sharded-optimizer": OptimizerSharding}
"""Name -> what it stands for; its keyword arguments are --synchronization-options."""


def make_strategy(given: Mapping[str, Any]) -> Strategy | Launcher:
    """Return the strategy of the options strategy, workers and threads as they are given.

    Raises InvalidArgumentError for Ray without a number of workers and for a number without Ray, MissingPackageError."""
    name, workers = given.get("strategy"), given.get("workers")
    if name == RAY:
        if workers is None:
            raise InvalidArgumentError("expected --workers, how many Ray is to start, with --strategy ray")
        return Ray(workers, cpus=given.get("threads") or 1)
    if workers is not None:
        raise InvalidArgumentError(f"expected --workers with --strategy ray alone: mpiexec -n {workers} starts as many for --strategy mpi")
    return strategy_of(name)


def make_synchronization(settings: Mapping[str, Any]) -> Synchronization | None:
    """Return what workers exchange; None for gradients before every optimizer step. Raises InvalidArgumentError for options that it does not have."""
    name, options = settings["synchronization"], dict(settings["synchronization_options"] or {})
    if name is None:
        if options:
            raise InvalidArgumentError(f"expected --synchronization for its options {sorted(options)}")
        return None
    made: Synchronization = made_by_name("synchronization", name, SYNCHRONIZATIONS, options)
    return made
