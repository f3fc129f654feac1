"""One sample list per operator family; every operator test runs from them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Sample:
    """One operator on one set of inputs.

    inputs: arrays (float64 for float tensors; the tests cast to float32 where they need it), None for an absent optional input.
    oracle: the same arrays -> expected outputs (a tuple, or one array), in NumPy; an entry None is not compared.
    gradient: False for operators that carry none; indices: the float inputs whose gradient is checked (default: all float inputs).
    """

    op_type: str
    inputs: Sequence[np.ndarray | None]
    oracle: Callable[..., Any]
    attributes: dict[str, Any] = field(default_factory=dict)
    domain: str = ""
    outputs: int = 1
    opset: int = 17
    gradient: bool = True
    indices: Sequence[int] | None = None
    constants: Sequence[int] = ()
    """Inputs given as initializers (shapes, axes)."""
    label: str = ""


@dataclass(frozen=True)
class Refusal:
    """Inputs that inference must refuse with ShapeInferenceError (or the named error)."""

    op_type: str
    inputs: Sequence[np.ndarray | None]
    attributes: dict[str, Any] = field(default_factory=dict)
    domain: str = ""
    opset: int = 17
    constants: Sequence[int] = ()
    match: str = "expected"
