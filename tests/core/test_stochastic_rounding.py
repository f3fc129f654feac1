"""Updates of weights and moments in bfloat16: the float32 update, and a stochastic rounding that NumPy repeats bit for bit."""

import numpy as np
import pytest

from ortrain._core.engine import EngineHandle
from ortrain._core.kernel_table import load_kernels, supported_instruction_sets
from ortrain._core.optimizer_update import BoundKernel
from ortrain.dtypes import numpy_dtype
from ortrain.ops.registry.optimizers import ADAMW, ALGORITHMS, SGD

pytest.importorskip("ml_dtypes")

BFLOAT16 = numpy_dtype("bfloat16")
MASK = 2**64 - 1
CASES = [("adamw", {}), ("adamw", {"adam_mode": 1}), ("sgd", {}), ("adam", {"weight_decay": 0.1}), ("momentum", {"nesterov": 1}),
         ("momentum", {"momentum": 0.0}), ("lion", {}), ("rmsprop", {}), ("rmsprop", {"centered": 1}), ("rmsprop", {"momentum": 0.9}),
         ("rmsprop", {"centered": 1, "momentum": 0.9}), ("adagrad", {})]
BY_KERNEL = {algorithm.kernel: algorithm for algorithm in ALGORITHMS.values()}


# ---- the reference


def mix64(x):
    x = (x + 0x9E3779B97F4A7C15) & MASK
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & MASK
    x = (x ^ x >> 27) * 0x94D049BB133111EB & MASK
    return x ^ x >> 31


def mix32(x):
    x = (x ^ x >> np.uint32(16)) * np.uint32(0x7FEB352D)
    x = (x ^ x >> np.uint32(15)) * np.uint32(0x846CA68B)
    return x ^ x >> np.uint32(16)


def random_bits(seed, step, stream, elements):
    """Return 32 random bits for each element number, which are below 2^33 here."""
    bits = np.empty(len(elements), np.uint32)
    for block in (0, 1):
        chosen = elements >> 32 == block
        key = mix64(mix64(mix64(mix64(seed) ^ step) ^ stream) ^ block)
        low = (elements[chosen] & 0xFFFFFFFF).astype(np.uint32)
        bits[chosen] = mix32(mix32(low * np.uint32(0x9E3779B9) + np.uint32(key & 0xFFFFFFFF)) + np.uint32(key >> 32))
    return bits


def rounded(values, random):
    """Return float32 numbers in bfloat16, after adding 16 random bits to those that it lacks."""
    bits = values.view(np.uint32)
    magnitude = bits & np.uint32(0x7FFFFFFF)
    changed = np.where(magnitude < 0x7F800000, bits + random, np.where(magnitude > 0x7F800000, bits | np.uint32(0x400000), bits))
    return (changed >> np.uint32(16)).astype(np.uint16).view(BFLOAT16)


# ---- running kernels


def update(table, algorithm, options, arrays, gradient, *, step=1, seed=5, first=0, threads=1, mask=None):
    """Update weights and moments, float32 or bfloat16, in place. arrays: weights and moments, None for absent ones."""
    weights, *moments = arrays
    rounding = (seed, first) if weights.dtype == BFLOAT16 else ()
    handle = EngineHandle(threads, 0)
    kernel = table[algorithm.kernel, weights.dtype.name]
    BoundKernel(handle, kernel, [weights, gradient, np.array([0.01, step]), mask, *moments], [], (*rounding, *algorithm.int_values(options)),
                algorithm.float_values(options)).run()
    handle.close()


def example(algorithm, options, count, seed=0):
    """Return (weights and moments in bfloat16, gradient)."""
    rng = np.random.default_rng(seed)
    gradient = (rng.standard_normal(count) * 10.0 ** rng.integers(-6, 3, count)).astype(np.float32)
    moments = [None if moment is None else np.abs(rng.standard_normal(count)).astype(BFLOAT16) for moment in algorithm.present_moments(options)]
    while moments and (moments[-1] is None or not algorithm.uses_moments):
        moments.pop()
    return [rng.standard_normal(count).astype(BFLOAT16), *moments], gradient


@pytest.fixture(params=supported_instruction_sets())
def table(request):
    return load_kernels(request.param)


@pytest.mark.parametrize("kernel, options", CASES)
def test_an_update_is_that_of_float32_rounded_by_the_reference(table, kernel, options):
    algorithm = BY_KERNEL[kernel]
    for count, first, step in ((1, 0, 1), (37, 64, 2), (1024, 96, 3), (20_001, 2**32 - 10_016, 70_000)):
        arrays, gradient = example(algorithm, options, count)
        wide = [None if array is None else array.astype(np.float32) for array in arrays]
        update(table, algorithm, options, arrays, gradient, step=step, seed=-3, first=first)
        update(table, algorithm, options, wide, gradient, step=step)
        elements = first + np.arange(count)
        for number, (found, exact) in enumerate(zip(arrays, wide, strict=True)):
            if found is not None:
                random = random_bits(-3 & MASK, step, number // 2, elements) >> np.uint32(16 * (number % 2)) & np.uint32(0xFFFF)
                np.testing.assert_array_equal(found.view(np.uint16), rounded(exact, random).view(np.uint16), err_msg=f"{number} of {count}")


def test_threads_and_ranges_change_no_bit(table):
    expected, gradient = example(ADAMW, {}, 70_000)
    threaded, parts = ([array.copy() for array in expected] for _ in range(2))
    update(table, ADAMW, {}, expected, gradient, first=32)
    update(table, ADAMW, {}, threaded, gradient, first=32, threads=3)
    for start, end in ((0, 160), (160, 33_024), (33_024, 70_000)):
        update(table, ADAMW, {}, [array[start:end] for array in parts], gradient[start:end], first=32 + start)
    for one, other, third in zip(expected, threaded, parts, strict=True):
        assert (one.view(np.uint16) == other.view(np.uint16)).all() and (one.view(np.uint16) == third.view(np.uint16)).all()


def test_seeds_and_steps_round_differently_and_right_on_average(table):
    """A step of 0.3 of the distance between two numbers is taken by 0.3 of the elements, whatever the seed."""
    count, taken = 1 << 14, []
    gradient = np.full(count, -0.3 * 2**-7 / 0.01, np.float32)
    for seed, step in ((1, 1), (2, 1), (1, 2)):
        weights = np.ones(count, BFLOAT16)
        update(table, SGD, {}, [weights], gradient, seed=seed, step=step)
        assert set(weights.astype(float)) == {1.0, 1 + 2**-7}
        taken.append(weights > 1)
    deviation = np.sqrt(0.3 * 0.7 / count)
    for one in taken:
        assert abs(one.mean() - 0.3) < 4 * deviation
    for one, other in ((0, 1), (0, 2), (1, 2)):
        assert abs((taken[one] & taken[other]).mean() - 0.09) < 4 * np.sqrt(0.09 * 0.91 / count), "expected independent choices"


def test_neighbouring_elements_and_the_two_moments_round_independently(table):
    count = 1 << 14
    arrays = [np.ones(count, BFLOAT16) for _ in range(3)]
    update(table, ADAMW, {}, arrays, np.full(count, 5, np.float32))
    weights, first, second = (array.astype(float) for array in arrays)
    assert all(len(set(values)) == 2 for values in (weights, first, second))
    for one, other in ((weights, first), (weights, second), (first, second), (weights[:-1], weights[1:]), (first[:-1], first[1:])):
        assert abs(np.corrcoef(one, other)[0, 1]) < 4 / np.sqrt(count)


def test_second_moments_decay_where_rounding_to_nearest_would_keep_them(table):
    assert np.float32(0.999).astype(BFLOAT16) == 1, "rounded to nearest, the second moment would stay 1 for ever"
    arrays = [np.ones(4096, BFLOAT16), np.zeros(4096, BFLOAT16), np.ones(4096, BFLOAT16)]
    gradient = np.zeros(4096, np.float32)
    for step in range(1, 1001):
        update(table, ADAMW, {}, arrays, gradient, step=step)
    assert arrays[2].astype(float).mean() == pytest.approx(0.999**1000, rel=0.02)


def test_infinities_nans_and_zeros_stay(table):
    special = np.array([np.inf, -np.inf, np.nan, 0.0, -0.0], np.float32)
    weights = np.tile(special, 500).astype(BFLOAT16)
    update(table, SGD, {}, [weights], np.zeros(len(weights), np.float32))
    np.testing.assert_array_equal(weights.astype(np.float32), np.tile(special, 500))
    masked = np.ones(9, BFLOAT16)
    update(table, SGD, {}, [masked], np.ones(9, np.float32), mask=np.ones(1, bool))
    assert (masked == 1).all()
