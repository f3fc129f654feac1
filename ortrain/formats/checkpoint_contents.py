"""The contents of a checkpoint, independent of the form in which it is stored."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

Property = int | float | str


@dataclass(slots=True)
class OptimizerGroup:
    """The optimizer's progress: completed steps, the schedule's initial rate, parameter name -> moment name -> values."""

    step: int = 0
    initial_learning_rate: float = 0.0
    momentums: dict[str, dict[str, np.ndarray]] = field(default_factory=dict)


@dataclass(slots=True)
class Checkpoint:
    """The tables of a checkpoint file. A nominal checkpoint has names and dtypes only (arrays of shape [])."""

    trainable: dict[str, np.ndarray] = field(default_factory=dict)
    frozen: dict[str, np.ndarray] = field(default_factory=dict)
    properties: dict[str, Property] = field(default_factory=dict)
    optimizer_groups: dict[str, OptimizerGroup] = field(default_factory=dict)
    nominal: bool = False
    version: int = 2
    external: bool = False
    """Whether the parameters are in a file of their own, `<path>.data`."""
    bare: bool = False
    """Whether there is no table of optimizer groups, as artifact generation writes it."""


def moment_name(number: int) -> str:
    """Return the name of a moment of the optimizer, counted from 0."""
    return f"momentum{number}"
