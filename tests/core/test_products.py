"""Products through their one door: all shapes, transposes and epilogues agree with NumPy, with the same bits for any number of workers."""

import numpy as np
import pytest

from ortrain._core.engine import EngineHandle, call_kernel
from ortrain._core.kernel_table import kernels

rng = np.random.default_rng(11)
SHAPES = [
    (1, 1, 1), (1, 17, 300), (3, 5, 7), (8, 48, 16), (64, 500, 784), (64, 10, 500), (10, 500, 64), (500, 10, 64), (129, 97, 513), (40, 1000, 3),
    (700, 300, 90), (5, 4000, 33), (300, 24, 144), (16, 14, 64), (193, 16, 40), (2, 2, 2000),
    # large enough for items that share what is packed: rows, columns, chunks of either, thin ones, ends of every width
    (300, 97, 90), (300, 145, 90), (300, 193, 60), (300, 387, 40), (230, 1100, 300), (9000, 10, 64), (10, 9000, 64), (150, 600, 200),
    (1, 1500, 900), (1, 9, 40), (3000, 3, 150),
    # several blocks of depth in several chunks, runs packed behind the tiles with and without a rest, results past the caches
    (400, 300, 1100), (100, 1000, 1500), (320, 260, 2100), (264, 150, 1300), (96, 480, 1030), (2200, 1008, 40),
    # one row and depth 1, with ends of every kind, and large enough for several items
    (1, 4, 32), (1, 32, 16), (1, 31, 9), (1, 3, 5), (32, 16, 1), (33, 29, 1), (5, 3, 1), (1300, 900, 1),
    *(tuple(int(v) for v in rng.integers(1, 260, 3)) for _ in range(40)),
]


def gemm(handle, a, b, c, m, n, k, ta, tb, alpha=1.0, beta=1.0, bias=False):
    out = np.full((m, n), np.nan, a.dtype)
    strides = (0, 1) if bias else (n, 1)
    address = kernels()["gemm", a.dtype.name]
    assert call_kernel(address, [a, b, c], [out], (m, n, k, ta, tb, *strides, int(c is not None)), (alpha, beta), 0, handle) == 0
    return out


@pytest.mark.parametrize("m, n, k", SHAPES)
def test_a_product_is_what_numpy_says_for_any_number_of_workers(m, n, k):
    handles = [EngineHandle(workers) for workers in (1, 2, 3)]
    for ta in (0, 1):
        for tb in (0, 1):
            a, b = rng.standard_normal((k, m) if ta else (m, k)), rng.standard_normal((n, k) if tb else (k, n))
            exact = (a.T if ta else a) @ (b.T if tb else b)
            single = [x.astype(np.float32) for x in (a, b)]
            row, full = rng.standard_normal(n), rng.standard_normal((m, n))
            for c, wanted, bias in ((None, exact, False), (row, exact + row, True), (full, exact + full, False)):
                c32 = None if c is None else c.astype(np.float32)
                found = [gemm(handle, *single, c32, m, n, k, ta, tb, bias=bias) for handle in handles]
                np.testing.assert_allclose(found[0], wanted, atol=2e-6 * (k + 1) + 1e-6 * np.abs(wanted).max())
                for other in found[1:]:
                    np.testing.assert_array_equal(found[0], other)
            np.testing.assert_allclose(gemm(handles[1], *single, None, m, n, k, ta, tb, alpha=0.5), 0.5 * exact, atol=2e-6 * (k + 1))
            np.testing.assert_allclose(gemm(handles[1], a, b, full, m, n, k, ta, tb, 0.5, 2.0), 0.5 * exact + 2 * full, atol=1e-10 * (k + 1))
