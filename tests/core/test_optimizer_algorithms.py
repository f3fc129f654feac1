"""Kernels of the optimizers against NumPy over several steps: formulas, threads, masks, shapes and hyperparameters."""

import numpy as np
import pytest

from ortrain._core.engine import EngineHandle, call_kernel
from ortrain._core.kernel_table import kernels, load_kernels, supported_instruction_sets
from ortrain.ops.registry.optimizers import ADAMW, ALGORITHMS, SGD
from tests.core.optimizer_references import REFERENCES

BY_KERNEL = {algorithm.kernel: algorithm for algorithm in ALGORITHMS.values()}
MATRIX, VECTOR, CONV, LARGE = (37, 70), (129,), (6, 5, 3, 3), (260, 181)
CASES = [
    *[("adam", VECTOR, {}), ("adam", VECTOR, {"weight_decay": 0.1}), ("adam", LARGE, {"weight_decay": 0.1, "decoupled": 1, "beta1": 0.8, "epsilon": 1e-4})],
    *[("momentum", VECTOR, {}), ("momentum", VECTOR, {"nesterov": 1}), ("momentum", LARGE, {"dampening": 0.3, "weight_decay": 0.1}),
      ("momentum", VECTOR, {"momentum": 0.0, "weight_decay": 0.1}), ("momentum", VECTOR, {"nesterov": 1, "weight_decay": 0.1, "decoupled": 1})],
    *[("lion", VECTOR, {}), ("lion", LARGE, {"weight_decay": 0.1, "beta1": 0.95})],
    *[("rmsprop", VECTOR, {}), ("rmsprop", LARGE, {"momentum": 0.9}), ("rmsprop", VECTOR, {"centered": 1, "weight_decay": 0.1}),
      ("rmsprop", VECTOR, {"centered": 1, "momentum": 0.5, "alpha": 0.9}), ("rmsprop", VECTOR, {"weight_decay": 0.1, "decoupled": 1})],
    *[("adagrad", VECTOR, {}), ("adagrad", LARGE, {"learning_rate_decay": 0.1, "weight_decay": 0.1}), ("adagrad", VECTOR, {"weight_decay": 1, "decoupled": 1})],
    *[("lamb", VECTOR, {}), ("lamb", LARGE, {"weight_decay": 0.0}), ("lamb", MATRIX, {"correct_bias": 0})],
    *[("adafactor", shape, options) for shape in (MATRIX, VECTOR, CONV, LARGE, (), (1, 300), (300, 1))
      for options in ({}, {"scale_parameter": 1, "relative_step": 1, "weight_decay": 0.1}, {"clip_threshold": 0.1})],
    *[("muon", shape, options) for shape in (MATRIX, MATRIX[::-1], VECTOR, CONV, (), (1, 30))
      for options in ({}, {"nesterov": 0, "match_rms": 0, "weight_decay": 0.1}, {"newton_schulz_steps": 2, "momentum": 0.8})],
]
TOLERANCES = {"float32": 2e-5, "float64": 1e-11}


def moments_of(algorithm, options, shape, dtype="float64"):
    """Return zeroed moments, None for those that the hyperparameters leave out."""
    return [None if moment is None else np.zeros(moment.shape(shape), dtype) for moment in algorithm.present_moments(options)]


def run(algorithm, options, weights, gradient, rate, step, moments, *, mask=None, handle=None, table=None):
    elements = 0 if algorithm.scratch is None else algorithm.scratch(weights.shape)
    progress, updated = np.array([rate, step]), np.zeros(1, bool)
    address = (table or kernels())[algorithm.kernel, weights.dtype.name]
    assert call_kernel(address, [weights, gradient, progress, mask, *moments], [updated], algorithm.int_values(options), algorithm.float_values(options),
                       elements * weights.itemsize, handle) == 0
    assert updated[0]


def several_steps(algorithm, options, shape, dtype, **settings):
    """Return weights and moments after five steps with gradients that change their sizes."""
    rng = np.random.default_rng(4)
    weights, moments = rng.standard_normal(shape).astype(dtype), moments_of(algorithm, options, shape, dtype)
    weights = np.asarray(weights)
    for step in range(1, 6):
        gradient = np.asarray((rng.standard_normal(shape) * 10.0 ** rng.integers(-3, 2)).astype(dtype))
        run(algorithm, options, weights, gradient, 0.02 / step, step, moments, **settings)
    return [weights, *moments]


def expected_steps(algorithm, options, shape, dtype):
    """Return the same by the reference, from the same values, in float64."""
    rng, reference = np.random.default_rng(4), REFERENCES[algorithm.kernel]
    weights, moments = rng.standard_normal(shape).astype(dtype).astype(float), moments_of(algorithm, options, shape)
    while moments and moments[-1] is None:
        moments.pop()
    for step in range(1, 6):
        gradient = (rng.standard_normal(shape) * 10.0 ** rng.integers(-3, 2)).astype(dtype).astype(float)
        weights = reference(weights, gradient, 0.02 / step, step, *moments, **options)
    return [weights, *moments]


def test_every_algorithm_has_a_reference():
    assert REFERENCES.keys() | {ADAMW.kernel, SGD.kernel} == BY_KERNEL.keys() and {case[0] for case in CASES} == REFERENCES.keys()


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("kernel, shape, options", CASES)
def test_several_steps_follow_the_formula(kernel, shape, options, dtype):
    actual, expected = (steps(BY_KERNEL[kernel], options, shape, dtype) for steps in (several_steps, expected_steps))
    tolerance = TOLERANCES[dtype] * (20 if kernel == "muon" else 1)          # Newton-Schulz iterations amplify rounding errors
    for array, wanted in zip(actual, expected, strict=False):
        if array is not None:
            np.testing.assert_allclose(array, wanted, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("isa", supported_instruction_sets())
@pytest.mark.parametrize("kernel", REFERENCES)
def test_every_instruction_set_follows_the_formula(kernel, isa):
    algorithm = BY_KERNEL[kernel]
    actual, expected = several_steps(algorithm, {}, MATRIX, "float64", table=load_kernels(isa)), expected_steps(algorithm, {}, MATRIX, "float64")
    np.testing.assert_allclose(actual[0], expected[0], rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("kernel", REFERENCES)
def test_any_number_of_threads_gives_the_same_bits(kernel, dtype):
    algorithm, shape = BY_KERNEL[kernel], (530, 257)
    options = {"scale_parameter": 1} if kernel == "adafactor" else {}
    one = several_steps(algorithm, options, shape, dtype, handle=EngineHandle(1))
    for threads in (2, 3):
        for array, other in zip(one, several_steps(algorithm, options, shape, dtype, handle=EngineHandle(threads)), strict=True):
            assert array is other is None or array.tobytes() == other.tobytes()


@pytest.mark.parametrize("kernel", REFERENCES)
def test_a_mask_leaves_weights_and_moments_unchanged(kernel):
    algorithm, rng = BY_KERNEL[kernel], np.random.default_rng(5)
    weights, gradient = rng.standard_normal(MATRIX), rng.standard_normal(MATRIX)
    moments = [None if moment is None else moment + 0.5 for moment in moments_of(algorithm, {}, MATRIX)]
    before = [None if array is None else array.copy() for array in (weights, *moments)]
    run(algorithm, {}, weights, gradient, 0.1, 2, moments, mask=np.array([True]))
    for array, old in zip((weights, *moments), before, strict=True):
        np.testing.assert_array_equal(array, old)
    run(algorithm, {}, weights, gradient, 0.1, 2, moments, mask=np.array([False]))
    assert not np.array_equal(weights, before[0])


@pytest.mark.parametrize("kernel", REFERENCES)
def test_weights_and_gradients_of_zero_give_finite_weights(kernel):
    algorithm = BY_KERNEL[kernel]
    for shape in (MATRIX, VECTOR):
        weights, moments = np.zeros(shape, np.float32), moments_of(algorithm, {}, shape, "float32")
        run(algorithm, {}, weights, np.zeros(shape, np.float32), 0.1, 1, moments)
        assert np.isfinite(weights).all()


def test_the_second_moments_of_adafactor_take_a_row_and_a_column_per_matrix():
    arrays = moments_of(BY_KERNEL["adafactor"], {}, (1000, 800))
    assert sum(array.size for array in arrays) == 1800


@pytest.mark.parametrize("dtype", TOLERANCES)
def test_averages_clipping_and_exchange(dtype):
    rng = np.random.default_rng(6)
    average, value = (rng.standard_normal(40_001).astype(dtype) for _ in range(2))
    expected, old = average + np.array(0.25, dtype) * (value - average), value.copy()
    assert call_kernel(kernels()["moving_average", dtype], [average, value], [], (), (0.25,)) == 0
    np.testing.assert_allclose(average, expected, rtol=1e-5 if dtype == "float32" else 1e-13, atol=1e-6)
    before = average.copy()
    assert call_kernel(kernels()["exchange", dtype], [average, value], []) == 0
    np.testing.assert_array_equal(average, old)
    np.testing.assert_array_equal(value, before)
    value[7] = np.nan
    clipped = np.clip(value, -0.5, 0.5)
    assert call_kernel(kernels()["clip_in_place", dtype], [value], [], (), (0.5,)) == 0
    np.testing.assert_array_equal(value, clipped)
    assert np.isnan(value[7])


def test_the_squared_norm_has_the_same_bits_for_any_number_of_threads():
    x, found = np.random.default_rng(7).standard_normal(16384 * 300 + 5).astype(np.float32), []
    for threads in (1, 2, 3):
        square = np.zeros(1)
        assert call_kernel(kernels()["squared_norm", "float32"], [x], [square], handle=EngineHandle(threads)) == 0
        found.append(float(square[0]))
    assert len(set(found)) == 1 and found[0] == pytest.approx(float((x.astype(float) ** 2).sum()), rel=1e-12)
