"""Kernels over flat segments against NumPy: accumulation, AdamW in both modes, SGD, norm and scaling."""

import numpy as np
import pytest

from ortrain._core.engine import call_kernel
from ortrain._core.kernel_table import kernels

N = 40_001      # three work items and a remainder
rng = np.random.default_rng(8)


def run(name, inputs, outputs=(), ints=(), floats=()):
    assert call_kernel(kernels()[name, inputs[0].dtype.name], list(inputs), list(outputs), tuple(ints), tuple(floats)) == 0


@pytest.fixture(params=["float32", "float64"])
def dtype(request):
    return request.param


def draw(dtype, count):
    return [rng.standard_normal(N).astype(dtype) for _ in range(count)]


@pytest.mark.parametrize("overwrite", [False, True, None])
def test_accumulate_adds_or_overwrites(dtype, overwrite):
    buffer, value = draw(dtype, 2)
    expected = value.copy() if overwrite else buffer + value
    run("accumulate", [buffer, value, None if overwrite is None else np.array([overwrite])], [np.zeros(1, bool)])
    np.testing.assert_array_equal(buffer, expected)


@pytest.mark.parametrize("mode, correct", [(1, 1), (1, 0), (0, 1)])
def test_adamw_follows_its_formula(dtype, mode, correct):
    w, g, m, v = draw(dtype, 4)
    v = np.abs(v)
    lr, b1, b2, eps, decay, step = 0.01, 0.9, 0.99, 1e-6, 0.1, 3
    x, gm, gv = w.astype(float), b1 * m.astype(float) + (1 - b1) * g.astype(float), b2 * v.astype(float) + (1 - b2) * g.astype(float) ** 2
    c1, c2 = (1 - b1**step, 1 - b2**step) if correct else (1, 1)
    if mode:
        x = x - lr * np.sqrt(c2) / c1 * gm / (np.sqrt(gv) + eps)
        x = x - lr * decay * x
    else:
        x = x - lr * decay * x
        x = x - lr * gm / (c1 * (np.sqrt(gv / c2) + eps))
    run("adamw", [w, g, np.array([lr, step]), None, m, v], ints=(correct, mode), floats=(b1, b2, eps, decay))
    tolerance = 1e-5 if dtype == "float32" else 1e-12
    for actual, expected in ((w, x), (m, gm), (v, gv)):
        np.testing.assert_allclose(actual, expected, rtol=tolerance, atol=tolerance)


def test_sgd_norm_and_scaling(dtype):
    w, g = draw(dtype, 2)
    expected = w - np.array(0.5, dtype) * g
    run("sgd", [w, g, np.array([0.5, 1])])
    np.testing.assert_allclose(w, expected, rtol=1e-6)
    square = np.zeros(1)
    run("squared_norm", [g], [square])
    assert square[0] == pytest.approx(float((g.astype(float) ** 2).sum()), rel=1e-12)
    scaled = g * np.array(0.25, dtype)
    run("scale_in_place", [g], floats=(0.25,))
    np.testing.assert_array_equal(g, scaled)


@pytest.mark.parametrize("name", ["adamw", "sgd"])
def test_a_mask_leaves_weights_and_moments_unchanged(dtype, name):
    arrays, updated = draw(dtype, 4 if name == "adamw" else 2), np.zeros(1, bool)
    before = [array.copy() for array in arrays]
    run(name, [*arrays[:2], np.array([0.5, 1]), np.array([True]), *arrays[2:]], [updated], (1, 0), (0.9, 0.99, 1e-8, 0.1))
    assert updated[0]
    for array, old in zip(arrays, before, strict=True):
        np.testing.assert_array_equal(array, old)


@pytest.mark.parametrize("ta, tb", [(1, 0), (0, 0), (0, 1), (1, 1)])
@pytest.mark.parametrize("name", ["adamw", "sgd"])
@pytest.mark.parametrize("rows", [70, 32, 7])
def test_gemm_update_in_blocks_equals_an_update_with_the_whole_gradient(name, ta, tb, rows):
    m, n, k = 70, 33, 20
    a, b = rng.standard_normal((m, k)).astype(np.float32), rng.standard_normal((k, n)).astype(np.float32)
    weights, first, second = (np.abs(rng.standard_normal((m, n))).astype(np.float32) for _ in range(3))
    moments = [first, second] if name == "adamw" else []
    progress, attributes = np.array([0.5, 3]), (0.9, 0.99, 1e-8, 0.1)
    expected = [array.copy() for array in (weights, *moments)]
    run(name, [expected[0], a @ b, progress, None, *expected[1:]], ints=(1, 0), floats=attributes)
    factors = [np.ascontiguousarray(x.T) if transposed else x for x, transposed in ((a, ta), (b, tb))]
    scratch = rows * n * 4
    status = call_kernel(kernels()["gemm_update", "float32"], [*factors, weights, None, progress, None, *moments], [np.zeros(1, bool)],
                         (m, n, k, ta, tb, int(name == "adamw"), rows, 1, 0), attributes, scratch)
    assert status == 0
    for array, reference in zip((weights, *moments), expected, strict=True):
        np.testing.assert_allclose(array, reference, rtol=1e-4, atol=1e-5)
