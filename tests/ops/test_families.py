"""A program that is derived for other sizes is the one that would be planned for them, operator by operator."""

from __future__ import annotations

import math

import numpy as np
import pytest

from ortrain._core.family import Family
from ortrain._core.symbolic import SymbolicSizes
from ortrain.errors import OrtrainError
from ortrain.ir import TensorType
from ortrain.ops.training import WRITTEN
from tests.ops.harness import cast, program_of
from tests.ops.test_kernels import all_samples

MOST_ELEMENTS = 1 << 22
GROWTHS = (lambda size: size + 1, lambda size: 2 * size, lambda size: 3 * size + 5, lambda size: max(1, size // 2), lambda size: 40 * size)


class Resized:
    """A sample's arrays, of which those that the user gives have symbols for sizes (or for one of them): equal sizes are the same."""

    def __init__(self, sample, arrays, only: int | None = None) -> None:
        taken = {*sample.constants, *WRITTEN.get(sample.op_type, ())}
        self.arrays, self.given = arrays, [i for i, x in enumerate(arrays) if x is not None and i not in taken]
        self.numbers = sorted({size for i in self.given for size in arrays[i].shape if size > 0 and only in (None, size)})

    def symbolic(self, sizes: SymbolicSizes):
        def type_of(x: np.ndarray) -> TensorType:
            return TensorType(TensorType.of(x).dtype, tuple(sizes.symbol(self.numbers.index(size)) if size in self.numbers else size for size in x.shape))

        return type_of

    def grown(self, growth) -> list[np.ndarray | None]:
        """Arrays of other sizes, of zeros that nobody reads."""
        return [np.zeros([growth(size) if size in self.numbers else size for size in x.shape], x.dtype) if i in self.given else x
                for i, x in enumerate(self.arrays)]

    def axes(self) -> list[tuple[int, int, int]]:
        return [(number, axis, self.numbers.index(size)) for number, i in enumerate(self.given) for axis, size in enumerate(self.arrays[i].shape)
                if size in self.numbers]


def planned(sample, arrays):
    try:
        return program_of(sample, arrays, 1)[0]
    except (OrtrainError, ValueError, IndexError, ZeroDivisionError, OverflowError, AssertionError):
        return None


def check(sample, resized: Resized) -> int:
    """How many sizes a program was derived for, each of which is the one that is planned."""
    derived = 0
    sizes = SymbolicSizes(tuple(resized.numbers))
    program, _ = program_of(sample, resized.arrays, 1, resized.symbolic(sizes))
    family = Family(program, sizes, resized.axes(), lambda symbols: None, [])
    assert program.layout == program_of(sample, resized.arrays, 1)[0].layout
    for growth in GROWTHS:
        if max((math.prod(growth(size) for size in resized.arrays[i].shape) for i in resized.given), default=0) > MOST_ELEMENTS:
            continue
        arrays = resized.grown(growth)
        found = family.find(tuple(arrays[i] for i in resized.given))
        if found is not None:
            other = planned(sample, arrays)
            assert other is not None, "a program was derived for sizes that are refused"
            assert found.layout == other.layout
            derived += 1
    return derived


@pytest.mark.parametrize("sample", all_samples())
def test_a_derived_program_is_the_one_that_would_be_planned(sample):
    arrays = cast(sample, "float32")
    everything = Resized(sample, arrays)
    for only in (None, *everything.numbers):
        check(sample, Resized(sample, arrays, only))


@pytest.mark.parametrize("op_type", [
    "Relu", "Add", "MatMul", "Gemm", "Conv", "ConvGrad", "BatchNormalization", "MaxPool", "Softmax", "LayerNormalization", "Transpose", "ReduceMean", "Reshape",
    "Slice", "Gather", "LSTM", "SoftmaxCrossEntropyLoss"])
def test_ordinary_operators_are_not_bound_to_their_sizes(op_type):
    samples = [parameter.values[0] for parameter in all_samples() if parameter.values[0].op_type == op_type]
    assert any(check(sample, Resized(sample, cast(sample, "float32"), only)) for sample in samples
               for only in Resized(sample, cast(sample, "float32")).numbers)
