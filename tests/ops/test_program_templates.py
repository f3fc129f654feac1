"""Program templates, operator by operator: a specialized program equals the one planned for its sizes, or has the same results where sizes are 1."""

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


def template_of(sample, resized: Resized) -> tuple[ProgramTemplate, Program]:
    """Return a template and the program that it was planned as."""
    sizes = SymbolicSizes(tuple(resized.sizes))
    program, _ = program_of(sample, resized.arrays, 1, resized.symbolic_type_of(sizes, resized.arrays))
    return ProgramTemplate(program, sizes, resized.axes(), lambda symbols: None, []), program


def results(program: Program, inputs) -> list[bytes] | type[Exception]:
    """Return the bytes of the outputs, or the type of the error raised."""
    program.bind_arena(arena_for(program))
    try:
        return [y.tobytes() for y in program.try_run(inputs)]
    except RuntimeError as error:
        return type(error)


def is_equivalent(program: Program, other: Program, inputs) -> bool:
    """Return True if two programs are equal or have the same results; with fixed sizes, planning leaves out axes of size 1."""
    return program.layout == other.layout or results(program, inputs) == results(other, inputs)


def check(sample, resized: Resized) -> int:
    """Assert that specialized programs equal planned ones; return the number of sizes for which the template held."""
    n_specialized = 0
    template, program = template_of(sample, resized)
    assert is_equivalent(program, program_of(sample, resized.arrays, 1)[0], tuple(resized.arrays[i] for i in resized.inputs))
    for growth in GROWTHS:
        if max((math.prod(growth(size) for size in resized.arrays[i].shape) for i in resized.inputs), default=0) > MAX_ELEMENTS:
            continue
        arrays = resized.resize(growth)
        found = template.find(tuple(arrays[i] for i in resized.inputs))
        if found is not None:
            other = plan_or_none(sample, arrays, resized.symbolic_type_of(SymbolicSizes(tuple(map(growth, resized.sizes))), arrays))
            assert other is not None, "a program was specialized for sizes that planning rejects"
            assert found.layout == other.layout
            n_specialized += 1
    return n_specialized


@pytest.mark.parametrize("sample", all_samples())
def test_a_specialized_program_equals_the_planned_one(sample):
    arrays = cast(sample, "float32")
    all_symbolic = Resized(sample, arrays)
    for only in (None, *all_symbolic.sizes):
        check(sample, Resized(sample, arrays, only))


def check_single(sample, resized: Resized) -> bool:
    """Assert that the program for size 1 has the results of the planned one; return True if it differs from that."""
    arrays = resized.resize(lambda size: 1)
    inputs, other = tuple(arrays[i] for i in resized.inputs), plan_or_none(sample, arrays)
    found = template_of(sample, resized)[0].find(inputs)
    assert found is None or other is not None, "a program was specialized for sizes that planning rejects"
    assert found is None or is_equivalent(found, other, inputs)
    return found is not None and found.layout != other.layout


@pytest.mark.parametrize("sample", all_samples())
def test_a_template_for_many_elements_gives_correct_results_for_one(sample):
    all_symbolic = Resized(sample, cast(sample, "float32"))
    for only in (None, *all_symbolic.sizes):
        check_single(sample, Resized(sample, all_symbolic.arrays, only))


@pytest.mark.parametrize("op_type", [
    "Relu", "Add", "MatMul", "Gemm", "Conv", "ConvGrad", "BatchNormalization", "MaxPool", "Softmax", "LayerNormalization", "Transpose", "ReduceMean", "Reshape",
    "Slice", "Gather", "LSTM", "SoftmaxCrossEntropyLoss"])
def test_common_operators_specialize_to_other_sizes(op_type):
    samples = [parameter.values[0] for parameter in all_samples() if parameter.values[0].op_type == op_type]
    assert any(check(sample, Resized(sample, cast(sample, "float32"), only)) for sample in samples
               for only in Resized(sample, cast(sample, "float32")).sizes)
