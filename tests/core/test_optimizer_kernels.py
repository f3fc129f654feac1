"""The sweeps over flat segments: accumulation, AdamW in both modes, SGD, norm and scaling, against NumPy."""

import numpy as np
import pytest

from ortrain._core.engine import call_kernel
from ortrain._core.kernel_table import kernels

N = 40_001      # three work items and a rest
rng = np.random.default_rng(8)


def run(name, inputs, outputs=(), ints=(), floats=()):
    assert call_kernel(kernels()[name, inputs[0].dtype.name], list(inputs), list(outputs), tuple(ints), tuple(floats)) == 0


@pytest.fixture(params=["float32", "float64"])
def dtype(request):
    return request.param


def draw(dtype, count):
    return [rng.standard_normal(N).astype(dtype) for _ in range(count)]


@pytest.mark.parametrize("overwrite", [False, True, None])
def test_the_accumulator_adds_or_overwrites(dtype, overwrite):
    buffer, value = draw(dtype, 2)
    wanted = value.copy() if overwrite else buffer + value
    run("accumulate", [buffer, value, None if overwrite is None else np.array([overwrite])], [np.zeros(1, bool)])
    np.testing.assert_array_equal(buffer, wanted)


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
    run("adamw", [w, g, m, v], ints=(correct, mode), floats=(lr, b1, b2, eps, decay, step))
    tolerance = 1e-5 if dtype == "float32" else 1e-12
    for actual, wanted in ((w, x), (m, gm), (v, gv)):
        np.testing.assert_allclose(actual, wanted, rtol=tolerance, atol=tolerance)


def test_sgd_norm_and_scaling(dtype):
    w, g = draw(dtype, 2)
    wanted = w - np.array(0.5, dtype) * g
    run("sgd", [w, g], floats=(0.5,))
    np.testing.assert_allclose(w, wanted, rtol=1e-6)
    square = np.zeros(1)
    run("squared_norm", [g], [square])
    assert square[0] == pytest.approx(float((g.astype(float) ** 2).sum()), rel=1e-12)
    scaled = g * np.array(0.25, dtype)
    run("scale_in_place", [g], floats=(0.25,))
    np.testing.assert_array_equal(g, scaled)
