"""Operators that select, clip or normalize propagate not-a-number, so that a diverged training run stays visible."""

import numpy as np
import pytest

from tests.ops.harness import run_kernel
from tests.ops.samples import Sample

X = np.random.default_rng(0).standard_normal((1, 2, 6, 37))
X[0, 1, 3, 20] = np.nan
SAMPLES = [Sample("Relu", [X], None),
           Sample("Clip", [X, np.array(-1.0), np.array(1.0)], None, constants=(1, 2)), Sample("ReduceMax", [X], None, {"axes": (3,)}),
           Sample("ReduceMin", [X], None, {"axes": (2,)}), Sample("ReduceMax", [X], None), Sample("GlobalMaxPool", [X], None),
           Sample("MaxPool", [X], None, {"kernel_shape": (2, 2), "strides": (2, 2)}), Sample("Softmax", [X], None), Sample("LogSoftmax", [X], None),
           Sample("LeakyRelu", [X], None), Sample("Sign", [X], None), Sample("MatMul", [X[0], np.ones((37, 3))], None), Sample("Gelu", [X], None, opset=20)]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("sample", SAMPLES, ids=lambda s: s.op_type)
def test_not_a_number_is_propagated(sample, dtype):
    (y,) = run_kernel(sample, dtype)
    assert np.isnan(y).any()
    assert not np.isnan(y).all() or y.size == 1


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("axes", [(0,), (1,), (0, 1)])
@pytest.mark.parametrize("operator, expected", [("ReduceMax", np.max), ("ReduceMin", np.min)])
def test_extremes_of_long_rows_and_columns_find_a_not_a_number_anywhere(operator, expected, axes, dtype):
    x = np.random.default_rng(1).standard_normal((75, 217))
    x[5, 7], x[6, 8], x[:, 9], x[10] = np.inf, -np.inf, np.inf, -np.inf
    for row, column in ((0, 0), (1, 33), (2, 63), (3, 64), (40, 100), (60, 195), (64, 210), (74, 216)):   # within and after blocks of rows and of lanes
        spoiled = x.copy()
        spoiled[row, column] = np.nan
        (y,) = run_kernel(Sample(operator, [spoiled], None, {"axes": axes, "keepdims": 0}), dtype)
        np.testing.assert_array_equal(y, expected(spoiled.astype(dtype), axis=axes))
