"""Every sample's kernel agrees with its NumPy oracle in float64 and float32, is deterministic, and stays within its memory."""

import importlib
from dataclasses import replace

import numpy as np
import pytest

from ortrain.ops.registry.record import REGISTRY
from tests.ops.harness import (
    arena_for,
    cast,
    expected_outputs,
    in_place_outputs,
    program_of,
    redzone_ranges,
    redzones,
    run_between_guards,
    run_in_place,
    run_kernel,
    run_program,
)
from tests.ops.resized import Resized, plan_or_none
from tests.ops.samples import FAMILIES

NAN_BYTE = 0xFF
"""Memory filled with this byte reads as not-a-number in every floating-point type."""


def all_samples():
    """Return all samples of all families as test parameters."""
    found = []
    for family in FAMILIES:
        try:
            module = importlib.import_module(f"tests.ops.samples.{family}")
        except ModuleNotFoundError:
            continue
        for number, sample in enumerate(module.SAMPLES):
            found.append(pytest.param(sample, id=f"{family}-{sample.op_type}-{number}{'-' + sample.label if sample.label else ''}"))
    return found


@pytest.mark.parametrize("sample", all_samples())
@pytest.mark.parametrize("dtype, tolerance", [("float64", 1e-10), ("float32", 2e-5)])
def test_a_kernel_agrees_with_its_oracle(sample, dtype, tolerance):
    outputs = run_kernel(sample, dtype)
    for actual, expected in zip(outputs, expected_outputs(sample, cast(sample, dtype)), strict=False):
        if expected is None:
            continue
        expected = np.asarray(expected)
        assert actual.shape == expected.shape
        scale = max(1.0, float(np.abs(expected).max())) if expected.size and expected.dtype.kind == "f" else 1.0
        np.testing.assert_allclose(actual, expected, rtol=tolerance, atol=tolerance * scale)


@pytest.mark.parametrize("sample", all_samples())
def test_any_number_of_threads_gives_the_same_bits(sample):
    for one, three in zip(run_kernel(sample, "float32", 1), run_kernel(sample, "float32", 3), strict=True):
        assert one.tobytes() == three.tobytes()


@pytest.mark.parametrize("sample", [case for case in all_samples() if in_place_outputs(case.values[0], cast(case.values[0], "float32"))])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_a_kernel_gives_the_same_bits_in_place(sample, dtype):
    for in_place, out_of_place in zip(run_in_place(sample, dtype), run_kernel(sample, dtype), strict=True):
        assert in_place.tobytes() == out_of_place.tobytes()


def every_second(array, axis):
    """Return every second element along a negative axis, or the array itself where it broadcasts along that axis."""
    if array is None or np.ndim(array) < -axis or np.shape(array)[axis] == 1:
        return array
    return np.take(array, range(0, np.shape(array)[axis], 2), axis)


@pytest.mark.parametrize("sample", [case for case in all_samples() if REGISTRY[case.values[0].domain, case.values[0].op_type].elementwise])
def test_an_elementwise_operator_computes_some_elements_as_among_all(sample):
    (everything,) = run_kernel(sample)
    for axis in range(-everything.ndim, 0):
        (some,) = run_kernel(replace(sample, inputs=[every_second(x, axis) for x in sample.inputs]))
        np.testing.assert_allclose(some, every_second(everything, axis), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("sample", all_samples())
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_a_kernel_stays_within_its_memory(sample, dtype):
    """It writes only outputs and scratch memory, and reads no uninitialized memory, which is filled with not-a-number."""
    arrays = cast(sample, dtype)
    expected = run_program(sample, arrays, 1)
    program, arena, given = program_between_redzones(sample, arrays)
    for actual, usual in zip(program.try_run(given), expected, strict=True):
        assert actual.tobytes() == usual.tobytes()
    assert all((arena[zone] == NAN_BYTE).all() for zone in redzone_ranges(program))


def program_between_redzones(sample, arrays):
    """Return a program whose memory is filled with not-a-number, this memory, and the inputs of the program."""
    with redzones():
        program, given = program_of(sample, arrays, 1)
    arena = arena_for(program)
    arena[:] = NAN_BYTE
    program.bind_arena(arena)
    return program, arena, given


@pytest.mark.parametrize("sample", all_samples())
def test_a_kernel_computes_in_the_memory_of_the_caller(sample):
    """Outputs of more than 64 bytes, which most samples have after they are enlarged, are computed at any address that suits their element type."""
    arrays = cast(sample, "float32")
    for these in (arrays, Resized(sample, arrays).resize(lambda size: size + 2)):
        if plan_or_none(sample, these) is not None:
            check_in_memory_of_the_caller(sample, these)


def check_in_memory_of_the_caller(sample, arrays) -> None:
    try:
        expected = run_program(sample, arrays, 1)
    except RuntimeError:
        return
    program, arena, given = program_between_redzones(sample, arrays)
    assert run_between_guards(program, given, expected, NAN_BYTE) == [y.tobytes() for y in expected]
    assert all((arena[zone] == NAN_BYTE).all() for zone in redzone_ranges(program))
