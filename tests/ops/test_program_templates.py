"""Program templates, operator by operator: a specialized program equals the one planned for its sizes, or has the same results where sizes are 1."""

from __future__ import annotations

import math

import pytest

from ortrain._core.program import Program
from ortrain._core.program_layout import layout_of
from ortrain._core.program_template import ProgramTemplate
from ortrain._core.symbolic import SymbolicSizes
from tests.ops.harness import arena_for, cast, program_of
from tests.ops.resized import Resized, plan_or_none
from tests.ops.test_kernels import all_samples

MAX_ELEMENTS = 1 << 22
GROWTHS = (lambda size: size + 1, lambda size: 2 * size, lambda size: 3 * size + 5, lambda size: max(1, size // 2), lambda size: 40 * size)


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
    return layout_of(program) == layout_of(other) or results(program, inputs) == results(other, inputs)


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
            assert layout_of(found) == layout_of(other)
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
    return found is not None and layout_of(found) != layout_of(other)


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
