"""Every sample's kernel computes what its NumPy oracle says, in float64 and in float32."""

import importlib

import numpy as np
import pytest

from ortrain.ops import FAMILIES
from tests.ops.harness import arena_for, cast, expected, gaps_of, kept_apart, program_of, run_in_place, run_kernel, run_program, written_over

UNTOUCHED = 0xFF


def all_samples():
    for family in FAMILIES:
        try:
            module = importlib.import_module(f"tests.ops.samples.{family}")
        except ModuleNotFoundError:
            continue
        for number, sample in enumerate(module.SAMPLES):
            yield pytest.param(sample, id=f"{family}-{sample.op_type}-{number}{'-' + sample.label if sample.label else ''}")


@pytest.mark.parametrize("sample", all_samples())
@pytest.mark.parametrize("dtype, tolerance", [("float64", 1e-10), ("float32", 2e-5)])
def test_kernel_computes_its_oracle(sample, dtype, tolerance):
    got = run_kernel(sample, dtype)
    for actual, wanted in zip(got, expected(sample, cast(sample, dtype)), strict=False):
        if wanted is None:
            continue
        wanted = np.asarray(wanted)
        assert actual.shape == wanted.shape
        scale = max(1.0, float(np.abs(wanted).max())) if wanted.size and wanted.dtype.kind == "f" else 1.0
        np.testing.assert_allclose(actual, wanted, rtol=tolerance, atol=tolerance * scale)


@pytest.mark.parametrize("sample", all_samples())
def test_any_number_of_threads_gives_the_same_bits(sample):
    for alone, together in zip(run_kernel(sample, "float32", 1), run_kernel(sample, "float32", 3), strict=True):
        assert alone.tobytes() == together.tobytes()


@pytest.mark.parametrize("sample", [case for case in all_samples() if written_over(case.values[0], cast(case.values[0], "float32"))])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_kernels_write_over_an_input_what_they_write_elsewhere(sample, dtype):
    for over, elsewhere in zip(run_in_place(sample, dtype), run_kernel(sample, dtype), strict=True):
        assert over.tobytes() == elsewhere.tobytes()


@pytest.mark.parametrize("sample", all_samples())
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_kernels_keep_to_their_memory(sample, dtype):
    """None writes beyond its outputs and scratch memory, none reads what nobody wrote: all memory is not-a-number before."""
    arrays = cast(sample, dtype)
    usual = run_program(sample, arrays, 1)
    with kept_apart():
        program, given = program_of(sample, arrays, 1)
    arena = arena_for(program)
    arena[:] = UNTOUCHED
    program.bind_arena(arena)
    for alone, together in zip(program.try_run(given), usual, strict=True):
        assert alone.tobytes() == together.tobytes()
    assert all((arena[gap] == UNTOUCHED).all() for gap in gaps_of(program))
