"""A case of the operator benchmark: one operator at one size. Needs only NumPy, because PyTorch's environment imports the cases, too."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Draw = Callable[[np.random.Generator], np.ndarray]
Input = tuple[int, ...] | Draw | np.ndarray | None
"""An input: the shape of normally distributed float32 numbers, a function that draws it, a constant, or None where it is absent."""


CACHE_LINE = 64
"""Bytes."""


@dataclass(frozen=True)
class Case:
    """One operator on inputs of one size.

    inputs: constants (shapes, axes) are initializers of the model. peer: the same operator in PyTorch, called with the module `torch` and the inputs as
    tensors, without the constants; None where PyTorch has no such operator. label: names the size and what is special about it. gradients: inputs whose
    gradients are computed; None for all float32 ones that are not constants. transcendentals: evaluations of exp, log, ... in the forward pass and in the
    gradient. products: multiplications of the forward pass, where they may decide its time; the gradient with respect to each of two factors has as many.
    outputs: number of outputs, of which the first one carries a gradient."""

    operator: str
    inputs: Sequence[Input]
    peer: Callable[..., Any] | None = None
    attributes: dict[str, Any] = field(default_factory=dict)
    label: str = ""
    gradients: tuple[int, ...] | None = None
    transcendentals: tuple[int, int] = (0, 0)
    products: int = 0
    outputs: int = 1
    domain: str = ""
    opset: int = 18

    @property
    def name(self) -> str:
        """The operator and the label, unique among all cases."""
        return f"{self.operator} {self.label or 'x'.join(map(str, self.inputs[0] if isinstance(self.inputs[0], tuple) else ()))}".strip()

    def arrays(self) -> list[np.ndarray | None]:
        """Return the inputs, the same in every process."""
        rng = np.random.default_rng(zlib.crc32(self.name.encode()))
        drawn = [rng.standard_normal(x, np.float32) if isinstance(x, tuple) else x(rng) if callable(x) else x for x in self.inputs]
        return [None if x is None else aligned(x) for x in drawn]

    def is_constant(self, index: int) -> bool:
        """Return whether an input is an initializer."""
        return isinstance(self.inputs[index], np.ndarray)

    def differentiated(self, arrays: Sequence[np.ndarray | None]) -> list[int]:
        """Return the inputs whose gradients are computed."""
        if self.gradients is not None:
            return list(self.gradients)
        return [i for i, x in enumerate(arrays) if x is not None and x.dtype == np.float32 and not self.is_constant(i)]


def aligned(array: np.ndarray) -> np.ndarray:
    """Return a contiguous copy that begins on a cache line, as values of a network do in both runtimes. NumPy's own arrays rarely do."""
    raw = np.empty(array.nbytes + CACHE_LINE, np.uint8)
    start = -raw.ctypes.data % CACHE_LINE
    copy = raw[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


def output_gradient(shape: Sequence[int]) -> np.ndarray:
    """Return the gradient of the first output from which the backward pass starts, the same in every process."""
    return aligned(np.random.default_rng(7).standard_normal(shape, np.float32))


def positive(*shape: int) -> Draw:
    """Return a function that draws numbers between 0.1 and 0.9."""
    return lambda rng: rng.uniform(0.1, 0.9, shape).astype(np.float32)


def integers(high: int, *shape: int) -> Draw:
    """Return a function that draws indices below `high`."""
    return lambda rng: rng.integers(0, high, shape)


def mask(*shape: int) -> Draw:
    """Return a function that draws booleans, which follow no pattern that a branch predictor learns."""
    return lambda rng: rng.random(shape) < 0.5


def constant(*values: float) -> np.ndarray:
    """Return a constant of integers, or of float32 where a value is not an integer."""
    return np.array(values, np.int64 if all(isinstance(v, int) for v in values) else np.float32)
