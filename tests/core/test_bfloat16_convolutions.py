"""Convolutions of bfloat16 operands: only operands are rounded, forward and backward, with the same bits for any number of workers."""

from dataclasses import replace

import numpy as np
import pytest

from ortrain.ops.shared import conv_algorithms
from ortrain.ops.shared.conv_algorithms import Method, method_of
from ortrain.ops.shared.conv_geometry import Geometry
from tests.core.test_bfloat16_products import rounded
from tests.core.test_convolution import has_amx
from tests.ops.harness import cast, lowered, run_kernel
from tests.ops.samples.channels_last import backward, forward, transposed

SAME = {"pads": (1, 1, 1, 1)}
CONVOLUTIONS = [
    ((2, 9, 10, 48), (12, 48, 3, 3), SAME),                                                                # whole rows of taps side by side in memory
    ((1, 8, 7, 33), (50, 33, 3, 3), SAME),                                                                 # an odd number of channels
    ((3, 7, 9, 32), (20, 32, 4, 2), {"pads": (1, 0, 0, 1)}),                                             # different pads on each side
    ((2, 11, 12, 32), (64, 32, 3, 3), SAME | {"strides": (2, 2)}),
    ((1, 13, 9, 17), (40, 17, 4, 3), {"strides": (3, 2), "pads": (2, 1, 1, 2)}),
    ((2, 1, 40, 32), (64, 32, 1, 2), {"dilations": (1, 4), "pads": (0, 4, 0, 0)}),
    ((1, 12, 12, 16), (32, 16, 3, 3), {"dilations": (2, 3), "pads": (2, 3, 2, 3), "strides": (2, 1)}),
    ((1, 5, 6, 24), (130, 24, 1, 4), {"pads": (0, 2, 0, 1)}),                                              # more filters than a panel
    ((5, 20, 21, 16), (36, 16, 4, 4), {"strides": (2, 2), "pads": (1, 1, 1, 1)}),                          # several blocks of points
    ((2, 12, 19, 33), (50, 33, 2, 2), {"pads": (1, 0, 0, 1)}),                                             # windows that overlap, of an odd number of channels,
    ((1, 30, 33, 64), (28, 64, 2, 4), {"pads": (0, 1, 1, 2)}),                                             # several bands of an image,
    ((2, 20, 40, 24), (24, 24, 3, 5), {"strides": (2, 1), "pads": (3, 2, 1, 4)}),                          # and more padding than the kernel reaches over
    ((1, 20, 17, 40), (56, 40, 3, 3), {"dilations": (3, 2)}),                                              # without padding
]
WINDOWS = [shape for shape, _, _ in CONVOLUTIONS]
TILED = [
    *CONVOLUTIONS,
    ((2, 31, 29, 64), (96, 64, 3, 3), SAME | {"strides": (2, 2)}),
    ((3, 17, 18, 32), (50, 32, 4, 2), {"pads": (1, 0, 0, 1)}),
    ((1, 24, 23, 64), (128, 64, 3, 3), {"dilations": (2, 3), "pads": (2, 3, 2, 3), "strides": (2, 1)}),
    ((2, 40, 41, 64), (64, 64, 3, 3), SAME | {"strides": (3, 2)}),                                       # classes of pixels with different taps
    ((2, 33, 34, 3), (16, 3, 7, 7), {"strides": (2, 2), "pads": (3, 3, 3, 3)}),                          # channels that are padded to 4,
    ((2, 28, 28, 1), (17, 1, 5, 5), {"pads": (2, 2, 2, 2)}),                                               # and to 2
    *(((2, 1, 90, channels), (9, channels, 1, 21), {"pads": (0, 10, 0, 10)}) for channels in (1, 2, 3)),  # padded further, as tiles cover 21 taps
    ((2, 5, 70, 8), (5, 8, 3, 3), SAME | {"strides": (1, 3)}),                                           # fewer filters than a tile
    ((17, 5, 5, 64), (40, 64, 3, 3), SAME | {"strides": (2, 2)}),                                        # several images in a band
    ((9, 3, 4, 32), (33, 32, 3, 3), SAME),
    ((2, 1, 4000, 32), (33, 32, 1, 5), {"pads": (0, 2, 0, 2)}),                                            # parts of a row
    ((1, 1, 4001, 24), (40, 24, 1, 3), {"strides": (1, 2), "dilations": (1, 5)}),
    ((1, 40, 1300, 16), (24, 16, 3, 3), {"strides": (2, 1)}),
    ((2, 8, 8, 512), (64, 512, 3, 3), SAME),                                                               # few points of many channels: packed windows
]


def with_rounded_inputs(sample):
    """Return a sample whose inputs are bfloat16 numbers."""
    return replace(sample, inputs=[None if x is None else rounded(x.astype(np.float32)).astype(np.float64) for x in sample.inputs])


def check(sample, compared, method=Method.IMPLICIT_GEMM, tiles=False):
    """Compare the outputs `compared` of a sample in bfloat16 with those of rounded inputs in float64. method: of one of them. tiles: on AMX tiles, else in
    pairs."""
    call, _ = lowered(sample, cast(sample, "float32"), tiles, "bfloat16")
    assert method in call.ints[22:]
    direct = replace(with_rounded_inputs(sample), attributes=sample.attributes | {"direct": 1})
    expected, found = run_kernel(direct, "float64"), [run_kernel(sample, "float32", workers, tiles, "bfloat16") for workers in (1, 2, 3)]
    for output in compared:
        np.testing.assert_allclose(found[0][output], expected[output], rtol=1e-5, atol=3e-6 * np.abs(expected[output]).max())
        for other in found[1:]:
            np.testing.assert_array_equal(found[0][output], other[output])


@pytest.mark.parametrize("x, w, attributes", CONVOLUTIONS, ids=map(str, WINDOWS))
def test_a_convolution_rounds_its_operands_only(x, w, attributes):
    check(forward("", x, w, attributes), [0])


@pytest.mark.parametrize("x, w, attributes", CONVOLUTIONS, ids=map(str, WINDOWS))
def test_the_gradients_of_a_convolution_round_their_operands_only(x, w, attributes):
    check(backward("", x, w, attributes), [0, 1])


@pytest.fixture
def tiles_of_any_size(monkeypatch):
    """Small convolutions are computed on tiles, too."""
    monkeypatch.setattr(conv_algorithms, "TILED_POINTS", 1)
    monkeypatch.setattr(conv_algorithms, "TILED_PRODUCTS", 1)


@has_amx
@pytest.mark.usefixtures("tiles_of_any_size")
@pytest.mark.parametrize("x, w, attributes", TILED, ids=str)
def test_a_convolution_and_its_gradients_on_amx_tiles_round_their_operands_only(x, w, attributes):
    for sample, compared in ((forward("", x, w, attributes), [0]), (backward("", x, w, attributes), [0, 1])):
        check(sample, compared, tiles=True)
        tiles, others = (run_kernel(sample, "float32", tiles=flag, precision="bfloat16") for flag in (True, False))
        assert any(not np.array_equal(tiles[output], others[output]) for output in compared), "not computed with AMX"


@pytest.mark.parametrize("x, w, attributes", [CONVOLUTIONS[0], CONVOLUTIONS[3], CONVOLUTIONS[4]], ids=str)
def test_a_transposed_convolution_rounds_its_operands_only(x, w, attributes):
    check(transposed("", x, w, attributes), [0])


@pytest.mark.parametrize("channels, filters", [(24, 40), (33, 130)])
def test_the_gradient_of_a_pointwise_weight_rounds_its_operands_only(channels, filters):
    check(backward("", (3, 20, 21, channels), (filters, channels, 1, 1), {}), [0, 1], Method.TAP_GEMM)


def test_a_bias_and_a_limit_are_applied_in_float32():
    rng = np.random.default_rng(4)
    sample = forward("", (2, 9, 10, 24), (40, 24, 3, 3), SAME | {"strides": (2, 2)})
    check(replace(sample, inputs=[*sample.inputs[:2], rounded(rng.standard_normal(40).astype(np.float32)).astype(np.float64)],
                  attributes=sample.attributes | {"low": 0.0, "high": 2.0}), [0])


@pytest.mark.parametrize("channels, filters, taps", [(7, 64, (3, 3)), (11, 22, (3, 3)), (64, 64, (1, 1)), (16, 32, (9, 9)), (64, 64, (3, 3)),
                                                     (2080, 64, (3, 2))])
def test_convolutions_that_gain_nothing_or_are_too_deep_have_another_algorithm(channels, filters, taps):
    sample = forward("", (1, 12, 12, channels), (filters, channels, *taps), {})
    call, _ = lowered(sample, cast(sample, "float32"), tiles=False, precision="bfloat16")
    assert call.ints[22] != Method.IMPLICIT_GEMM


@pytest.mark.parametrize("size, channels, filters, taps, strides, tiled", [
    (32, 64, 96, (3, 3), 1, True), (28, 50, 64, (5, 5), 1, True), (40, 3, 16, (3, 3), 1, True), (32, 32, 64, (4, 4), 2, True),
    (8, 8, 16, (3, 3), 1, False), (32, 2, 6, (3, 3), 1, False), (7, 64, 64, (3, 3), 1, False), (40, 64, 64, (1, 1), 1, False)])
def test_tiles_are_chosen_where_they_are_faster_than_what_vectors_compute_in_float32(size, channels, filters, taps, strides, tiled):
    pads = tuple((tap - 1) // 2 for tap in (1, *taps))
    out = [(size + 2 * pad - tap) // strides + 1 for tap, pad in zip(taps, pads[1:], strict=True)]
    v = Geometry(2, 1, size, size, channels, filters, 1, 1, *out, (1, *taps), (1, strides, strides), pads, (1, 1, 1))
    assert (method_of(v, direct=False, tiles=True, pairs=True) == Method.IMPLICIT_GEMM) == tiled


@pytest.mark.usefixtures("tiles_of_any_size")
@pytest.mark.parametrize("channels", [32, 37])
@pytest.mark.parametrize("tiles", [pytest.param(True, marks=has_amx), False])
def test_infinities_spread_to_the_windows_that_read_them(channels, tiles):
    sample = forward("", (1, 8, 8, channels), (24, channels, 3, 3), {"strides": (2, 1)})
    sample.inputs[0][0, 3, 4, 5] = np.inf
    found = run_kernel(sample, "float32", tiles=tiles, precision="bfloat16")[0]
    assert np.isinf(found).any(axis=-1).tolist() == [[[row == 1 and 2 <= column <= 4 for column in range(6)] for row in range(3)]]
