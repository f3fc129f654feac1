"""Products on AMX tiles have the bits of a reference in NumPy, which rounds and adds as the kernels and the processor do: in three bfloat16 parts, and in one.

Without AMX they run on emulated tiles (test_amx_emulation.py)."""

from itertools import product

import numpy as np
import pytest

from ortrain._core.engine import EngineHandle, call_kernel
from ortrain._core.kernel_table import kernels
from ortrain.ops.shared.conv_algorithms import suits_amx
from ortrain.runtime.segments import aligned_zeros
from tests.core.test_bfloat16_products import engine, rounded
from tests.core.test_convolution import has_amx
from tests.core.test_products import infinite

pytestmark = has_amx
rng = np.random.default_rng(17)
PANEL, STEP = 32, 32
CHUNK_STEPS = {1: 16, 3: 8}
"""Parts -> steps of 32 of a chunk of the depth, whose sums are added to those of the chunks before (common/tuning.h)."""
SLICED_STEPS, SLICED_BLOCKS, FEW_PANELS = 64, 32, 3
PRODUCTS_OF_PARTS = {1: [(0, 0)], 3: [(0, 2), (0, 1), (1, 1), (1, 0), (2, 0), (0, 0)]}
SHAPES = [
    (64, 64, 256), (61, 125, 513), (92, 157, 300), (250, 90, 70), (1030, 61, 65),                # edges in all directions, one operand or the other stays
    (300, 270, 129), (50, 700, 600), (330, 60, 1090),                                             # several parts of C, and chunks
    (64, 96, 2560), (60, 90, 2310), (250, 61, 2100),                                              # slices of the depth
]
ROUNDED_FIRST = [(300, 40, 100), (129, 17, 61), (2000, 24, 33), (70, 9, 700), (600, 100, 90), (45, 56, 3000), (33, 90, 1025)]
"""Products of one part whose operands are rounded before they are multiplied (matmul/tiled_gemm.h): deep ones in blocks where the first is transposed."""
LEAST_SIDE, LEAST_DEPTH, LEAST_PRODUCTS, LEAST_WEIGHTS, MOST_PACKED, LEAST_ROWS, MOST_WEIGHTS, DEPTH_OF_BLOCK = 8, 24, 1 << 17, 512, 1 << 19, 128, 1 << 15, 512


def panels(size):
    return -(-size // PANEL)


def parts_of(x, parts):
    """Return the bfloat16 numbers of which float32 numbers are the sum, or the one to which they are rounded."""
    if parts == 1:
        return [rounded(x)]
    found = []
    for _ in range(2):                                                                            # to nearest; the third part is exact
        found.append(((x.view(np.uint32) + np.uint32(0x8000)) & np.uint32(0xFFFF0000)).view(np.float32))
        x = x - found[-1]
    return [*found, x]


def add_product(sums, a, b, firsts, seconds):
    """Return sums + a b, as tdpbf16ps does for pairs: the first and the second numbers of the depth's pairs are summed apart."""
    halves = []
    for depths in (firsts, seconds):
        half = np.zeros_like(sums)
        for depth in depths:
            half += a[:, depth, None] * b[depth]                                                  # products of two bfloat16 numbers are exact in float32
        halves.append(half)
    return sums + (halves[0] + halves[1])


def slices_of(m, n, k, parts):
    """Return the chunks of each slice of the depth: their first step and the one after the last."""
    steps, longest = panels(k), CHUNK_STEPS[parts]
    length = -(-steps // -(-steps // longest))
    chunks = [(first, min(first + length, steps)) for first in range(0, steps, length)]
    sliced = len(chunks) >= SLICED_STEPS // longest and panels(m) * panels(n) <= SLICED_BLOCKS
    return [chunks[: len(chunks) // 2], chunks[len(chunks) // 2 :]] if sliced else [chunks]


def is_swapped(m, n, ta, tb):
    """Return whether the transposed product is computed, because fewer panels are transposed then while they are packed."""
    before, after = panels(m) * ta + panels(n) * tb, panels(n) * (not tb) + panels(m) * (not ta)
    return after <= FEW_PANELS and after < before


def reference(a, b, parts, swapped):
    """Return the product of a [m, k] and b [k, n] in float32."""
    if swapped:
        return reference(b.T, a.T, parts, swapped=False).T
    (m, k), n = a.shape, b.shape[1]
    padding = (0, panels(k) * STEP - k)
    of_a, of_b = (parts_of(np.ascontiguousarray(x), parts) for x in (np.pad(a, ((0, 0), padding)), np.pad(b, (padding, (0, 0)))))
    of_slices = []
    for chunks in slices_of(m, n, k, parts):
        of_chunks = []
        for first, end in chunks:
            sums = np.zeros((m, n), np.float32)
            for start in range(first * STEP, end * STEP, STEP):
                for i, j in PRODUCTS_OF_PARTS[parts]:
                    pairs = range(start, start + STEP // 2), range(start + STEP // 2, start + STEP)
                    sums = add_product(sums, of_a[i], of_b[j], *pairs)
            of_chunks.append(sums)
        of_slices.append(sum(of_chunks[1:], of_chunks[0]))
    return sum(of_slices[1:], of_slices[0])


def is_rounded_first(m, n, k, ta, tb):
    """Return whether the operands of a product in one part are rounded before they are multiplied."""
    least = min(m, n) >= LEAST_SIDE and k >= LEAST_DEPTH and m * n * k >= LEAST_PRODUCTS and (not ta or m * n >= LEAST_WEIGHTS)
    in_panels = suits_amx(m, n, k) and (m * n > MOST_WEIGHTS if ta else n * k > MOST_PACKED or m < LEAST_ROWS)
    return least and not in_panels and not (ta and tb)


def product_of_adjacent_pairs(a, b, length):
    """Return the product of a [m, k] and b [k, n] in one chain of sums, in steps of an even length."""
    sums = np.zeros((a.shape[0], b.shape[1]), np.float32)
    for start in range(0, a.shape[1], length):
        sums = add_product(sums, a, b, range(start, start + length, 2), range(start + 1, start + length, 2))
    return sums


def rounded_first(a, b, ta, alpha, addend):
    """Return alpha a b + addend where operands are rounded first: in blocks of the depth if the first is transposed."""
    k = a.shape[1]
    if not ta:
        depth = next(depth for depth in range(k + k % 2, 2 * k + 2, 2) if depth % (2 * panels(depth)) == 0)
        blocks, length = [(0, k)], depth // panels(depth)
    else:
        count = -(-k // DEPTH_OF_BLOCK)
        block = panels(-(-k // count)) * STEP
        blocks, length = [(first, min(first + block, k)) for first in range(0, k, block)], STEP
    for first, end in blocks:
        padding = (0, -(end - first) % length)
        of_a, of_b = (rounded(np.pad(x, pad)) for x, pad in ((a[:, first:end], ((0, 0), padding)), (b[first:end], (padding, (0, 0)))))
        sums = np.float32(alpha) * product_of_adjacent_pairs(of_a, of_b, length)
        addend = sums if addend is None else addend + sums
    return addend


def expected_product(a, b, ta, tb, parts, alpha=1.0, addend=None):
    """Return alpha a b + addend in float32, by the way of summing that a product of these sizes has."""
    m, n, k = a.shape[0], b.shape[1], a.shape[1]
    if parts == 1 and is_rounded_first(m, n, k, ta, tb):
        return rounded_first(a, b, ta, alpha, addend)
    found = reference(a, b, parts, is_swapped(m, n, ta, tb)) * np.float32(alpha)
    return found if addend is None else found + addend


def engines(parts, workers=(1, 2, 3)):
    return [engine(count, tiles=True) if parts == 1 else EngineHandle(count) for count in workers]


def operands(m, n, k):
    return rng.standard_normal((m, k)).astype(np.float32), rng.standard_normal((k, n)).astype(np.float32)


def stored(x, transposed):
    return np.ascontiguousarray(x.T) if transposed else x


def gemm(handle, a, b, ta, tb, *, addend=None, alpha=1.0, relu=False):
    """Return op(a) op(b) times alpha, plus a row or a matrix, from the engine's kernel."""
    (m, k), n = (a.shape[::-1] if ta else a.shape), b.shape[0] if tb else b.shape[1]
    y = aligned_zeros(m * n, np.dtype(np.float32)).reshape(m, n)
    strides = (n, 1) if addend is not None and addend.ndim == 2 else (0, 1)
    ints = (m, n, k, ta, tb, *strides, int(addend is not None), int(relu))
    assert call_kernel(kernels()["gemm", "float32"], [a, b, addend], [y], ints, (alpha, 1.0), 0, handle) == 0
    return y


@pytest.mark.parametrize("m, n, k, parts", [(*shape, parts) for parts in (1, 3) for shape in SHAPES] + [(*shape, 1) for shape in ROUNDED_FIRST])
def test_a_product_has_the_bits_of_the_reference_for_any_number_of_workers(m, n, k, parts):
    a, b = operands(m, n, k)
    for ta, tb in product((0, 1), repeat=2):
        if parts == 1 and ta and tb and not suits_amx(m, n, k):
            continue                                                                              # in float32 vectors
        expected = expected_product(a, b, ta, tb, parts)
        for handle in engines(parts):
            np.testing.assert_array_equal(gemm(handle, stored(a, ta), stored(b, tb), ta, tb), expected)


@pytest.mark.parametrize("m, n, k, parts", [(*shape, parts) for parts in (1, 3) for shape in [(92, 157, 300), (330, 60, 1090), (60, 90, 2310)]]
                         + [(*shape, 1) for shape in [(300, 40, 100), (45, 56, 3000)]])
def test_what_follows_a_product_is_computed_in_float32(m, n, k, parts):
    a, b = operands(m, n, k)
    row, full = rng.standard_normal(n).astype(np.float32), rng.standard_normal((m, n)).astype(np.float32)
    for ta, tb in product((0, 1), repeat=2):
        if parts == 1 and ta and tb and not suits_amx(m, n, k):
            continue
        expected, given = expected_product(a, b, ta, tb, parts), (stored(a, ta), stored(b, tb), ta, tb)
        scaled, added = expected_product(a, b, ta, tb, parts, 0.3), expected_product(a, b, ta, tb, parts, 1.0, full)
        for handle in engines(parts, (1, 2)):
            np.testing.assert_array_equal(gemm(handle, *given, alpha=0.3), scaled)
            np.testing.assert_array_equal(gemm(handle, *given, addend=full), added)
            np.testing.assert_array_equal(gemm(handle, *given, addend=row), expected + row)
            np.testing.assert_array_equal(gemm(handle, *given, addend=row, relu=True), np.maximum(expected + row, 0))
            np.testing.assert_array_equal(gemm(handle, *given, relu=True), np.maximum(expected, 0))


@pytest.mark.parametrize("m, n, k, parts", [(61, 125, 513, 1), (61, 125, 513, 3), (300, 270, 129, 1), (300, 270, 129, 3), (300, 40, 100, 1)])
def test_operands_and_results_may_be_parts_of_larger_matrices(m, n, k, parts):
    a, b = operands(m, n, k)
    for ta, tb in product((0, 1), repeat=2):
        if parts == 1 and ta and tb and not suits_amx(m, n, k):
            continue
        first, second = (np.pad(stored(x, flag), ((2, 1), (3, 5)), constant_values=np.nan) for x, flag in ((a, ta), (b, tb)))
        for handle in engines(parts, (1, 2)):
            y = np.full((m, n + 7), 4, np.float32)
            steps, offsets = (first.shape[1], second.shape[1], n + 7), (2 * first.shape[1] + 3, 2 * second.shape[1] + 3)
            assert call_kernel(kernels()["matmul", "float32"], [first, second], [y], (m, n, k, ta, tb, 1, 0, *steps, *offsets), (1.0,), 0, handle) == 0
            np.testing.assert_array_equal(y[:, :n], expected_product(a, b, ta, tb, parts))
            assert (y[:, n:] == 4).all()


@pytest.mark.parametrize("m, n, k", [(7, 900, 100), (900, 7, 100), (900, 100, 23), (40, 40, 80)])
def test_products_that_are_too_small_for_tiles_stay_in_float32(m, n, k):
    a, b = operands(m, n, k)
    for ta, tb in product((0, 1), repeat=2):
        given = stored(a, ta), stored(b, tb), ta, tb
        np.testing.assert_array_equal(gemm(engine(tiles=True), *given), gemm(EngineHandle(), *given))


def test_one_part_is_rounded_to_nearest_even_and_subnormal_numbers_and_sums_to_zero():
    tie, tiny = np.float32(2.0**-8), np.finfo(np.float32).tiny
    numbers = np.array([1, 1 + tie, 1 + 3 * tie, 1 + tie + 2.0**-23, 1 + tie - 2.0**-23, -1 - tie, tiny, tiny / 2, -tiny / 4, 3e38, np.finfo(np.float32).max,
                        -0.0, np.inf, -np.inf, np.nan], np.float32)
    a, b = np.zeros((160, 64), np.float32), np.zeros((64, 128), np.float32)
    a[: len(numbers), 5], a[20, 6], a[21, [6, 40]] = numbers, 1, 1
    b[5, 0], b[6, 1], b[40, 1] = 1, tiny, -1.5 * tiny
    found = gemm(engine(tiles=True), a, b, 0, 0)
    np.testing.assert_array_equal(found[: len(numbers), 0], rounded(numbers))
    assert found[20, 1] == tiny and found[21, 1] == 0


def test_infinities_and_nans_spread_from_one_part_as_in_float32():
    a, b = operands(230, 300, 600)
    infinite(a, b.T)
    with np.errstate(invalid="ignore"):
        expected = rounded(a).astype(np.float64) @ rounded(b).astype(np.float64)
    finite = np.isfinite(expected)
    assert 0 < np.count_nonzero(~finite) < finite.size // 2
    for ta, tb in product((0, 1), repeat=2):
        found = gemm(engine(tiles=True), stored(a, ta), stored(b, tb), ta, tb)
        np.testing.assert_array_equal(found[~finite], expected[~finite])
        np.testing.assert_allclose(found[finite], expected[finite], atol=1e-3)


def test_auto_chooses_one_part():
    handle = EngineHandle()
    handle.precision = "auto"
    assert handle.precision == "bfloat16"


def test_a_product_in_one_part_differs_from_one_in_pairs_by_the_order_of_its_sums_only():
    a, b = operands(130, 140, 900)
    tiles, pairs = engine(tiles=True), engine()
    found, expected = gemm(tiles, a, b, 0, 0), gemm(pairs, a, b, 0, 0)
    assert not np.array_equal(found, expected)
    np.testing.assert_allclose(found, expected, atol=2e-4)
