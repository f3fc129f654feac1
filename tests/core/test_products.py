"""GEMM: all shapes, transposes and epilogues agree with NumPy and are bitwise equal for any number of workers."""

import numpy as np
import pytest

from ortrain._core.engine import EngineHandle, call_kernel
from ortrain._core.kernel_table import kernels
from ortrain.runtime.segments import aligned_zeros
from tests.core.test_convolution import has_amx, session

rng = np.random.default_rng(11)
SHAPES = [
    (1, 1, 1), (1, 17, 300), (3, 5, 7), (8, 48, 16), (64, 500, 784), (64, 10, 500), (10, 500, 64), (500, 10, 64), (129, 97, 513), (40, 1000, 3),
    (700, 300, 90), (5, 4000, 33), (300, 24, 144), (16, 14, 64), (193, 16, 40), (2, 2, 2000),
    # large enough for work items that share packed operands: split by rows, by columns, in chunks of either; thin ones; remainders of every width
    (300, 97, 90), (300, 145, 90), (300, 193, 60), (300, 387, 40), (230, 1100, 300), (9000, 10, 64), (10, 9000, 64), (150, 600, 200),
    (1, 1500, 900), (1, 9, 40), (3000, 3, 150),
    # a last panel that overlaps the one before: in place, packed with others, and in each work item
    (1300, 30, 50), (1300, 21, 60), (60, 1003, 40), (65, 65, 32),
    # several depth blocks in several chunks, panels packed behind the tiles with and without remainder, non-temporal stores
    (400, 300, 1100), (100, 1000, 1500), (320, 260, 2100), (264, 150, 1300), (96, 480, 1030), (2200, 1008, 40),
    # few rows or columns, in one and in several work items and depth blocks
    (2, 700, 300), (3, 40, 64), (8, 1030, 1100), (14, 2100, 130), (13, 16, 70), (4, 1100, 1000), (3, 1030, 1100), (1030, 6, 1100), (900, 13, 300),
    # one row or depth 1, with remainders of every kind, and large enough for several work items
    (1, 4, 32), (1, 32, 16), (1, 31, 9), (1, 3, 5), (32, 16, 1), (33, 29, 1), (5, 3, 1), (1300, 900, 1), (1, 300, 93), (2, 1500, 93), (3, 290, 88),
    (600, 2064, 1),
    *(tuple(int(v) for v in rng.integers(1, 260, 3)) for _ in range(40)),
]
# for AMX tiles: stationary rows or stationary columns, one chunk and several, more result blocks than fit the tiles, remainders of every kind, swapped
# operands in one chunk and in several, non-temporal stores, and two depth slices with an even and an odd number of chunks
TILED_SHAPES = [
    (64, 500, 784), (700, 300, 90), (1100, 230, 300), (2100, 60, 600), (50, 2100, 600), (600, 620, 1300), (130, 1200, 64), (97, 125, 513), (512, 512, 128),
    (64, 96, 8192), (1030, 61, 70), (92, 1030, 250), (1100, 1552, 70), (60, 250, 2310), (250, 61, 2200),
]


def engine_without_amx(workers):
    handle = EngineHandle(workers)
    handle.amx = False
    return handle


def gemm(handle, a, b, c, m, n, k, ta, tb, alpha=1.0, beta=1.0, bias=False):
    out = aligned_zeros(m * n, a.dtype).reshape(m, n)       # aligned as in a plan: non-temporal stores require it
    out[:] = np.nan
    strides = (0, 1) if bias else (n, 1)
    address = kernels()["gemm", a.dtype.name]
    assert call_kernel(address, [a, b, c], [out], (m, n, k, ta, tb, *strides, int(c is not None)), (alpha, beta), 0, handle) == 0
    return out


@pytest.mark.parametrize("m, n, k, make_engine", [*((*shape, engine_without_amx) for shape in SHAPES + TILED_SHAPES),
                                                  *(pytest.param(*shape, EngineHandle, marks=has_amx) for shape in TILED_SHAPES)])
def test_gemm_agrees_with_numpy_for_any_number_of_workers(m, n, k, make_engine):
    handles = [make_engine(workers) for workers in (1, 2, 3)]
    for ta in (0, 1):
        for tb in (0, 1):
            a, b = rng.standard_normal((k, m) if ta else (m, k)), rng.standard_normal((n, k) if tb else (k, n))
            exact = (a.T if ta else a) @ (b.T if tb else b)
            row, full = rng.standard_normal(n), rng.standard_normal((m, n))
            for dtype, unit in ((np.float32, 1e-6), (np.float64, 1e-15)):
                first, second = (x.astype(dtype) for x in (a, b))
                for c, expected, bias in ((None, exact, False), (row, exact + row, True), (full, exact + full, False)):
                    addend = None if c is None else c.astype(dtype)
                    results = [gemm(handle, first, second, addend, m, n, k, ta, tb, bias=bias) for handle in handles]
                    np.testing.assert_allclose(results[0], expected, atol=2 * unit * (k + 1) + unit * np.abs(expected).max())
                    for other in results[1:]:
                        np.testing.assert_array_equal(results[0], other)
                np.testing.assert_allclose(gemm(handles[1], first, second, None, m, n, k, ta, tb, alpha=0.5), 0.5 * exact, atol=2 * unit * (k + 1))
                expected = 0.5 * exact + 2 * full
                np.testing.assert_allclose(gemm(handles[1], first, second, full.astype(dtype), m, n, k, ta, tb, 0.5, 2.0), expected,
                                           atol=2 * unit * (k + 1) + unit * np.abs(expected).max())


def spoiled_products(m, n, k, spoil, handles):
    """For each combination of transposes, yield the product of normal random operands modified by `spoil(a, b)`: in float64, and from each engine.

    spoil: modifies a [m, k] and b [n, k] in place."""
    for ta in (0, 1):
        for tb in (0, 1):
            a, b = rng.standard_normal((m, k)).astype(np.float32), rng.standard_normal((n, k)).astype(np.float32)
            spoil(a, b)
            with np.errstate(invalid="ignore", over="ignore"):
                exact = a.astype(np.float64) @ b.T.astype(np.float64)
            operands = np.ascontiguousarray(a.T) if ta else a, b if tb else np.ascontiguousarray(b.T)
            yield exact, [gemm(handle, *operands, None, m, n, k, ta, tb) for handle in handles]


@has_amx
@pytest.mark.parametrize("m, n, k", TILED_SHAPES)
def test_amx_rounds_at_most_as_much_as_vectors(m, n, k):
    for exact, (tiles, vectors) in spoiled_products(m, n, k, lambda a, b: None, [EngineHandle(), engine_without_amx(1)]):
        assert not np.array_equal(tiles, vectors), "not computed with AMX"
        errors = [np.sqrt(np.mean((found - exact) ** 2)) for found in (tiles, vectors)]
        assert errors[0] <= errors[1]


def infinite(a, b):
    a[3, 7], a[40, 11], b[5, 2] = np.inf, -np.inf, np.nan


def near_the_largest(a, b):
    a[3, 7] = np.finfo(np.float32).max
    b[:, 7] *= 1e-3


def overflowing(a, b):
    a[70], b[9] = 1e38, 1e3


def tiny(a, b):
    a *= np.float32(1e-36)
    b *= np.float32(1e30)


@has_amx
@pytest.mark.parametrize("m, n, k", [(230, 300, 600), (230, 50, 600), (90, 300, 600), (90, 130, 2200)])
@pytest.mark.parametrize("spoil", [infinite, near_the_largest, overflowing, tiny])
def test_amx_handles_numbers_outside_of_the_range_of_three_bfloat16_like_float32(spoil, m, n, k):
    handles = [EngineHandle(1), EngineHandle(2), EngineHandle(5), engine_without_amx(1)]
    for exact, (one, two, five, vectors) in spoiled_products(m, n, k, spoil, handles):
        np.testing.assert_array_equal(one, two)
        np.testing.assert_array_equal(one, five)
        np.testing.assert_array_equal(np.isfinite(one), np.isfinite(vectors))
        if spoil is infinite:
            np.testing.assert_array_equal(one[~np.isfinite(one)], vectors[~np.isfinite(one)])
        assert np.isfinite(one).sum() > one.size // 2
        finite = np.isfinite(one)
        np.testing.assert_allclose(one[finite], exact[finite], rtol=1e-5, atol=1e-6 * np.abs(exact[finite]).max())


@has_amx
def test_amx_loses_less_than_the_smallest_normal_number_per_tiny_element():
    def some_tiny(a, b):
        a[::2] *= np.float32(1e-36)

    for exact, (tiles,) in spoiled_products(130, 140, 600, some_tiny, [EngineHandle()]):
        np.testing.assert_allclose(tiles[::2], exact[::2], rtol=0, atol=30 * 2.0**-126)      # 600 errors of random sign: their sum is about 24 times one error
        np.testing.assert_allclose(tiles[1::2], exact[1::2], rtol=0, atol=5e-5)


def test_amx_can_be_disabled_for_a_session():
    assert session()._handle.amx == EngineHandle().amx
    assert not session(enable_amx=False)._handle.amx
