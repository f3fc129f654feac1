"""A program that is derived for other sizes is the one that would be planned for them, operator by operator, or does the same where they are 1."""

from __future__ import annotations

import math

import numpy as np
import pytest

from ortrain._core.program import Program
from ortrain._core.program_template import ProgramTemplate
from ortrain._core.symbolic import SymbolicSizes
from ortrain.errors import OrtrainError
from ortrain.ir import TensorType
from ortrain.ops.training import WRITTEN
from tests.ops.harness import arena_for, cast, program_of
from tests.ops.test_kernels import all_samples

MAX_ELEMENTS = 1 << 22
GROWTHS = (lambda size: size + 1, lambda size: 2 * size, lambda size: 3 * size + 5, lambda size: max(1, size // 2), lambda size: 40 * size)


class Resized:
    """A sample's arrays, of which those that the user gives have symbols for sizes (or for one of them): equal sizes are the same."""

    def __init__(self, sample, arrays, only: int | None = None) -> None:
        taken = {*sample.constants, *WRITTEN.get(sample.op_type, ())}
        self.arrays, self.given = arrays, [i for i, x in enumerate(arrays) if x is not None and i not in taken]
        self.numbers = sorted({size for i in self.given for size in arrays[i].shape if size > 0 and only in (None, size)})

    def open_type(self, sizes: SymbolicSizes, arrays):
        """What to plan for in the place of each of these arrays, which are the sample's or have grown."""
        shapes = {id(arrays[i]): self.arrays[i].shape for i in self.given}

        def type_of(x: np.ndarray) -> TensorType:
            axes = zip(shapes[id(x)], x.shape, strict=True)
            return TensorType(TensorType.of(x).dtype, tuple(sizes.symbol(self.numbers.index(was)) if was in self.numbers else size for was, size in axes))

        return type_of

    def grown(self, growth) -> list[np.ndarray | None]:
        """Arrays of other sizes: floats of any kind, and zeros for what may be an index."""
        rng = np.random.default_rng(len(self.numbers))
        made = {i: [growth(size) if size in self.numbers else size for size in self.arrays[i].shape] for i in self.given}
        return [x if i not in made else (rng.standard_normal if x.dtype.kind == "f" else np.zeros)(made[i]).astype(x.dtype) for i, x in enumerate(self.arrays)]

    def axes(self) -> list[tuple[int, int, int]]:
        return [(number, axis, self.numbers.index(size)) for number, i in enumerate(self.given) for axis, size in enumerate(self.arrays[i].shape)
                if size in self.numbers]


def planned(sample, arrays, type_of=TensorType.of):
    try:
        return program_of(sample, arrays, 1, type_of)[0]
    except (OrtrainError, ValueError, IndexError, ZeroDivisionError, OverflowError, AssertionError):
        return None


def family_of(sample, resized: Resized) -> tuple[ProgramTemplate, Program]:
    """A template, and its first program."""
    sizes = SymbolicSizes(tuple(resized.numbers))
    program, _ = program_of(sample, resized.arrays, 1, resized.open_type(sizes, resized.arrays))
    return ProgramTemplate(program, sizes, resized.axes(), lambda symbols: None, []), program


def results(program: Program, given) -> list[bytes] | type[Exception]:
    program.bind_arena(arena_for(program))
    try:
        return [y.tobytes() for y in program.try_run(given)]
    except RuntimeError as error:
        return type(error)


def does_as(program: Program, other: Program, given) -> bool:
    """Whether a program is another one, or has the same results: axes of one element are left out where their size is not open."""
    return program.layout == other.layout or results(program, given) == results(other, given)


def check(sample, resized: Resized) -> int:
    """How many sizes a program was derived for, each of which is the one that is planned."""
    derived = 0
    template, program = family_of(sample, resized)
    assert does_as(program, program_of(sample, resized.arrays, 1)[0], tuple(resized.arrays[i] for i in resized.given))
    for growth in GROWTHS:
        if max((math.prod(growth(size) for size in resized.arrays[i].shape) for i in resized.given), default=0) > MAX_ELEMENTS:
            continue
        arrays = resized.grown(growth)
        found = template.find(tuple(arrays[i] for i in resized.given))
        if found is not None:
            other = planned(sample, arrays, resized.open_type(SymbolicSizes(tuple(map(growth, resized.numbers))), arrays))
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


def check_single(sample, resized: Resized) -> bool:
    """Whether there is a program for one element that is not the one which would be planned for that alone, and does what that does."""
    arrays = resized.grown(lambda size: 1)
    given, other = tuple(arrays[i] for i in resized.given), planned(sample, arrays)
    found = family_of(sample, resized)[0].find(given)
    assert found is None or other is not None, "a program was derived for sizes that are refused"
    assert found is None or does_as(found, other, given)
    return found is not None and found.layout != other.layout


@pytest.mark.parametrize("sample", all_samples())
def test_a_program_for_many_elements_does_for_one_what_that_for_one_does(sample):
    everything = Resized(sample, cast(sample, "float32"))
    for only in (None, *everything.numbers):
        check_single(sample, Resized(sample, everything.arrays, only))


@pytest.mark.parametrize("op_type", [
    "Relu", "Add", "MatMul", "Gemm", "Conv", "ConvGrad", "BatchNormalization", "MaxPool", "Softmax", "LayerNormalization", "Transpose", "ReduceMean", "Reshape",
    "Slice", "Gather", "LSTM", "SoftmaxCrossEntropyLoss"])
def test_ordinary_operators_are_not_bound_to_their_sizes(op_type):
    samples = [parameter.values[0] for parameter in all_samples() if parameter.values[0].op_type == op_type]
    assert any(check(sample, Resized(sample, cast(sample, "float32"), only)) for sample in samples
               for only in Resized(sample, cast(sample, "float32")).numbers)
