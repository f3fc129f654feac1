"""The float32 functions of the elementwise kernels against float64 on every instruction set, from zero through subnormal numbers to infinity.

The bounds are in ulp, units in the last place of the exact result, and those that the comments in _core/kernels/common state."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import scipy.special

from ortrain._core.engine import EngineHandle, call_kernel
from ortrain._core.kernel_table import load_kernels, supported_instruction_sets

STRIDE = 4099
"""Step between the bit patterns that are tested: a prime number, so that the low bits vary."""
LEAST_NORMAL = np.finfo(np.float32).tiny
FLUSHED = -87.33
"""Below, the exponential is 0 or, in a sigmoid, a constant near 1e-38."""
BOUNDS = {
    "exp": (np.exp, 1), "log": (np.log, 1), "tanh": (np.tanh, 3), "erf": (scipy.special.erf, 2), "elu": (lambda x: np.where(x < 0, np.expm1(x), x), 2),
    "softplus": (lambda x: np.logaddexp(x, 0), 3), "sigmoid": (scipy.special.expit, 3), "sinh": (np.sinh, 4), "cosh": (np.cosh, 4), "asinh": (np.arcsinh, 2),
    "acosh": (np.arccosh, 2), "atanh": (np.arctanh, 2), "sin": (np.sin, 2), "cos": (np.cos, 2), "tan": (np.tan, 3), "asin": (np.arcsin, 3),
    "acos": (np.arccos, 2), "atan": (np.arctan, 2),
}
"""Kernel -> the function in float64 and the bound of its error."""
SPECIAL = np.array([0, 1e-45, 1e-39, LEAST_NORMAL, 3e-4, np.log(2) / 2, 0.5, np.pi / 4, 1, np.pi / 2, 2, np.pi, 87.33, 88.72283, 88.72284, 89.4159, 89.5, 104,
                    355, 4096, 8388607.5, 16777215, 16777216, 67108864, 16367173 * 2.0**72, 3e38, np.inf, np.nan], np.float32)
"""Numbers at which functions change their formula or overflow. 16367173 * 2**72 is the closest of all to a multiple of pi / 2."""
EXPONENTS = np.array([0, 0.5, 1, 1.5, 2, 3, 7, 1e-45, 1e-20, 1e38, 8388607, 8388607.5, 8388609, 16777215, 16777216, 33554432, np.inf, np.nan], np.float32)


@pytest.fixture(params=supported_instruction_sets())
def table(request):
    return load_kernels(request.param)


def with_both_signs(x):
    """Return x with its neighbors, and all of these negated."""
    near = np.concatenate([x, np.nextafter(x, np.float32(np.inf)), np.nextafter(x, np.float32(-np.inf))])
    return np.concatenate([near, -near])


@functools.cache
def numbers_to_check():
    """Return numbers of all magnitudes and special ones."""
    return np.concatenate([np.arange(0, 1 << 32, STRIDE, np.uint32).view(np.float32), with_both_signs(SPECIAL)])


def run(table, kernel, *inputs, floats=(1.0, 1.0)):
    """Return the output of an elementwise kernel of arrays of one length."""
    y = np.empty_like(inputs[0])
    strides = [1] * len(inputs)
    assert call_kernel(table[kernel, "float32"], list(inputs), [y], (1, y.size, *strides), floats, 0, EngineHandle(1)) == 0
    return y


def check(y, exact, bound, flushed=None):
    """Check float32 results against exact ones.

    bound: of the error, in ulp. flushed: where a subnormal result may be 0."""
    with np.errstate(over="ignore", invalid="ignore"):
        rounded = exact.astype(np.float32)
        special = ~np.isfinite(rounded) | (rounded == 0)
        np.testing.assert_array_equal(y[special], rounded[special])
        number = special & ~np.isnan(rounded)
        np.testing.assert_array_equal(np.signbit(y[number]), np.signbit(rounded[number]))
        compared = ~special if flushed is None else ~special & ~(flushed & (y == 0))
        error = np.abs(y[compared].astype(np.float64) - exact[compared]) / np.spacing(np.abs(rounded[compared])).astype(np.float64)
    assert error.max() <= bound, f"expected an error of at most {bound} ulp, got {error.max()} for {y[compared][error.argmax()]}"


@pytest.mark.parametrize("kernel", BOUNDS)
def test_a_function_stays_within_its_stated_error_for_all_magnitudes_and_special_values(table, kernel):
    function, bound = BOUNDS[kernel]
    x = numbers_to_check()
    if kernel in ("sigmoid", "softplus"):
        x = x[(x > FLUSHED) | (x == -np.inf) & (kernel == "softplus")]
    with np.errstate(all="ignore"):
        exact = np.asarray(function(x.astype(np.float64)))
    check(run(table, kernel, x), exact, bound, np.abs(exact) < 2 * LEAST_NORMAL if kernel == "exp" else None)


def test_powers_follow_ieee_for_all_pairs_of_special_values(table):
    x, y = (v.ravel() for v in np.meshgrid(with_both_signs(SPECIAL), with_both_signs(EXPONENTS)))
    with np.errstate(all="ignore"):
        exact = np.power(x.astype(np.float64), y.astype(np.float64))
    check(run(table, "pow", x, y), exact, 1)


def test_powers_stay_within_one_ulp(table):
    rng = np.random.default_rng(5)
    x = np.exp2(rng.uniform(-20, 20, 400_000)).astype(np.float32)
    y = (rng.uniform(-126, 127.9, x.size) / np.log2(x)).clip(-1e6, 1e6).astype(np.float32)
    check(run(table, "pow", x, y), np.power(x.astype(np.float64), y.astype(np.float64)), 1)


def test_powers_of_small_integers_are_exact(table):
    x, y = (v.ravel().astype(np.float32) for v in np.meshgrid(np.arange(-13, 14), np.arange(0, 6)))
    np.testing.assert_array_equal(run(table, "pow", x, y), x**y)


@pytest.mark.parametrize("exponent", [-1, -0.5, 0, 0.5, 1, 2, 2.5, 3])
def test_a_power_with_one_exponent_for_all_numbers_follows_ieee(table, exponent):
    x = numbers_to_check()
    y = np.empty_like(x)
    assert call_kernel(table["pow", "float32"], [x, np.array(exponent, np.float32)], [y], (1, x.size, 1, 0), (), 0, EngineHandle(1)) == 0
    with np.errstate(all="ignore"):
        check(y, np.power(x.astype(np.float64), np.full(x.size, exponent)), 2)      # NumPy takes the square root for a scalar 0.5


@pytest.mark.parametrize("truncated, function", [(1.0, np.fmod), (0.0, np.mod)])
def test_the_remainder_is_exact_for_quotients_of_all_magnitudes(table, truncated, function):
    rng = np.random.default_rng(6)
    bits = rng.integers(0, 1 << 32, (2, 200_000), np.uint32).view(np.float32)
    near = (rng.standard_normal((2, 200_000)) * 100).astype(np.float32)
    special = np.meshgrid(with_both_signs(SPECIAL), with_both_signs(SPECIAL))
    a, b = (np.concatenate([u, v, w.ravel(), v.round()]) for u, v, w in zip(bits, near, special, strict=True))
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(run(table, "mod", a, b, floats=(truncated,)), function(a, b))


@pytest.mark.parametrize("kernel", ["sin", "tan", "asin", "atan", "sinh", "asinh", "atanh", "tanh", "erf", "elu"])
def test_odd_functions_keep_the_sign_of_zero(table, kernel):
    np.testing.assert_array_equal(np.signbit(run(table, kernel, np.array([0.0, -0.0] * 20, np.float32))), [False, True] * 20)


def test_swish_within_a_normalization_is_as_exact_as_the_sigmoid(table):
    """By the kernel that normalizes x again, with a mean of 0, a deviation of 1, a scale of 1 and a bias of -0, which keeps the sign of zeros."""
    x = numbers_to_check()
    x = x[np.abs(x) < 87]
    x = np.concatenate([x, np.zeros(-x.size % 16, np.float32)]).reshape(1, -1, 16)
    (scale, bias), (mean, inverse), y = np.array([[1.0], [-0.0]], np.float32).repeat(16, 1), np.array([[[0]], [[1]]], np.float32), np.empty_like(x)
    ints, floats = (x.shape[1], 16, 64, 3, 8, 1, 1), (1e-5, 0.9, -np.inf, np.inf, 1.0)
    scratch = 8 * 2 * 16 * -(-x.shape[1] // 64) + 4 * 6 * 8 * 16
    assert call_kernel(table["channels_last_group_norm_again", "float32"], [x, scale, bias, mean, inverse], [y], ints, floats, scratch, EngineHandle(1)) == 0
    exact = x.astype(np.float64) * scipy.special.expit(x.astype(np.float64))
    check(y.ravel(), exact.ravel(), 4, np.abs(exact.ravel()) < 2 * LEAST_NORMAL)


GELU_BOUNDS = dict.fromkeys(("avx512", "avx2", "neon"), (1.2e-7, 1.5e-7, 1e-4))
"""Instruction set with a table of the normal distribution -> the errors of it and of the derivative, and the relative error of Gelu between -5 and 0. Others
compute it with an exponential."""


def gelu_slope(x):
    """Return the derivative of x cdf(x), with the cumulative normal distribution cdf."""
    return scipy.special.ndtr(x) + x * np.exp(-x * x / 2) / np.sqrt(2 * np.pi)


def test_gelu_and_its_gradient_are_as_exact_as_the_normal_distribution_in_float32(table):
    x = numbers_to_check()
    x = x[np.isfinite(x)]
    exact = x.astype(np.float64)
    with np.errstate(over="ignore", under="ignore"):
        cdf_error = np.abs(run(table, "gelu", x) - exact * scipy.special.ndtr(exact)) / np.maximum(np.abs(exact), LEAST_NORMAL)
        slope_error = np.abs(run(table, "gelu_grad", np.ones_like(x), x) - gelu_slope(exact))
    cdf_bound, slope_bound, relative_bound = GELU_BOUNDS.get(table.instruction_set, (3e-7, 4e-7, 2e-3))
    assert cdf_error.max() <= cdf_bound, x[cdf_error.argmax()]
    assert slope_error.max() <= slope_bound, x[slope_error.argmax()]
    relative_error = np.where((x < 0) & (x > -5), cdf_error / scipy.special.ndtr(np.maximum(exact, -5)), 0)
    assert relative_error.max() <= relative_bound, x[relative_error.argmax()]


def test_gelu_keeps_not_a_number_and_passes_no_gradient_far_below_zero(table):
    far = np.array([np.nan, -20, -1e30, 20, 1e30, np.inf], np.float32)
    np.testing.assert_array_equal(run(table, "gelu", far), [np.nan, 0, 0, 20, np.float32(1e30), np.inf])
    np.testing.assert_array_equal(run(table, "gelu_grad", np.full(5, 3, np.float32), far[:5]), [np.nan, 0, 0, 3, 3])


@pytest.mark.parametrize("kernel", ["gelu", "gelu_grad"])
def test_gelu_of_an_element_does_not_depend_on_its_place(table, kernel):
    rng = np.random.default_rng(3)
    inputs = [rng.standard_normal(67).astype(np.float32) * 3 for _ in range(2 if kernel == "gelu_grad" else 1)]
    whole = run(table, kernel, *inputs)
    for count in range(1, 36):
        np.testing.assert_array_equal(run(table, kernel, *(np.ascontiguousarray(x[7:7 + count]) for x in inputs)), whole[7:7 + count])
