"""The arrays of a sample in other sizes, and programs for them."""

from __future__ import annotations

import numpy as np

from ortrain._core.symbolic import SymbolicSizes
from ortrain.errors import OrtrainError
from ortrain.ir import TensorType
from ortrain.ops.training import WRITTEN
from tests.ops.harness import program_of


class Resized:
    """The arrays of a sample, of which the user inputs have symbolic sizes: one symbol per distinct size.

    only: the one size that is symbolic, None for all."""

    def __init__(self, sample, arrays, only: int | None = None) -> None:
        not_inputs = {*sample.constants, *WRITTEN.get(sample.op_type, ())}
        self.arrays, self.inputs = arrays, [i for i, x in enumerate(arrays) if x is not None and i not in not_inputs]
        self.sizes = sorted({size for i in self.inputs for size in arrays[i].shape if size > 0 and only in (None, size)})

    def symbolic_type_of(self, sizes: SymbolicSizes, arrays):
        """Return a function from one of these arrays (those of the sample, or resized ones) to its type with symbolic sizes."""
        shapes = {id(arrays[i]): self.arrays[i].shape for i in self.inputs}

        def type_of(x: np.ndarray) -> TensorType:
            axes = zip(shapes[id(x)], x.shape, strict=True)
            shape = tuple(sizes.symbol(self.sizes.index(original)) if original in self.sizes else size for original, size in axes)
            return TensorType(TensorType.of(x).dtype, shape)

        return type_of

    def resize(self, growth) -> list[np.ndarray | None]:
        """Return arrays of other sizes: random floats, and zeros for integers, which may be indices."""
        rng = np.random.default_rng(len(self.sizes))
        shapes = {i: [growth(size) if size in self.sizes else size for size in self.arrays[i].shape] for i in self.inputs}
        return [x if i not in shapes else (rng.standard_normal if x.dtype.kind == "f" else np.zeros)(shapes[i]).astype(x.dtype)
                for i, x in enumerate(self.arrays)]

    def axes(self) -> list[tuple[int, int, int]]:
        """Return (input, axis, symbol) of all axes with symbolic sizes."""
        return [(number, axis, self.sizes.index(size)) for number, i in enumerate(self.inputs) for axis, size in enumerate(self.arrays[i].shape)
                if size in self.sizes]


def plan_or_none(sample, arrays, type_of=TensorType.of):
    """Plan a program; None for sizes that planning rejects."""
    try:
        return program_of(sample, arrays, 1, type_of)[0]
    except (OrtrainError, ValueError, IndexError, ZeroDivisionError, OverflowError, AssertionError):
        return None
