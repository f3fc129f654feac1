"""Cast converts float16 and bfloat16 exactly to float32, and float32 to them with rounding to nearest even, on every processor.

Narrower types are cast by ONNX's reference implementation."""

import numpy as np
import pytest
from onnx import helper

import ortrain
from ortrain.dtypes import NUMBERS, numpy_dtype

HALF_TYPES = ("float16", "bfloat16")


def dtype_or_skip(name):
    """Return a NumPy dtype by name; skip the test where ml_dtypes lacks it."""
    try:
        return numpy_dtype(name)
    except TypeError as error:
        pytest.skip(str(error))


def cast(x, name):
    """Return x cast by a model of one Cast node."""
    source = helper.make_tensor_value_info("x", NUMBERS[x.dtype.name], list(x.shape))
    target = helper.make_tensor_value_info("y", NUMBERS[name], list(x.shape))
    graph = helper.make_graph([helper.make_node("Cast", ["x"], ["y"], to=NUMBERS[name])], "g", [source], [target])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    return ortrain.InferenceSession(model).run(None, {"x": x})[0]


def assert_same_bits(actual, expected):
    """Assert that two arrays are equal bit for bit, except that any not-a-number equals any other."""
    assert actual.dtype == expected.dtype
    is_number = ~np.isnan(expected.astype(np.float32))
    unsigned = f"u{expected.dtype.itemsize}"
    np.testing.assert_array_equal(actual.view(unsigned)[is_number], expected.view(unsigned)[is_number])
    assert np.isnan(actual.astype(np.float32)[~is_number]).all()


@pytest.mark.parametrize("name", HALF_TYPES)
def test_every_half_precision_number_is_converted_exactly_to_float32(name):
    x = np.arange(2**16, dtype=np.uint16).view(dtype_or_skip(name))
    assert_same_bits(cast(x, "float32"), x.astype(np.float32))


@pytest.mark.filterwarnings("ignore:overflow encountered in cast", "ignore:invalid value encountered in cast")
@pytest.mark.parametrize("name", HALF_TYPES)
def test_float32_is_rounded_to_the_nearest_half_precision_number_with_ties_to_even(name):
    halves = np.arange(2**15, dtype=np.uint16).view(dtype_or_skip(name)).astype(np.float32)
    midpoints = (halves[:-1].astype(np.float64) + halves[1:]) / 2
    ties = midpoints[np.isfinite(midpoints)].astype(np.float32)
    bits = np.random.default_rng(0).integers(0, 2**32, 200_000, dtype=np.uint32).view(np.float32)
    tiny = np.random.default_rng(1).standard_normal(100_000).astype(np.float32) * 1e-5    # many are subnormal in float16
    x = np.concatenate([halves, ties, np.nextafter(ties, np.float32(0)), np.nextafter(ties, np.float32(np.inf)), bits, tiny,
                        np.array([65504, 65519.996, 65520, 1e38, np.inf, np.nan], np.float32)])
    x = np.concatenate([x, -x])
    assert_same_bits(cast(x, name), x.astype(dtype_or_skip(name)))


@pytest.mark.parametrize("name", ["float64", "int64", "int8", "bool"])
def test_other_types_are_converted_to_float16(name):
    x = np.array([0, 1, 2, 100]).astype(name)
    np.testing.assert_array_equal(cast(x, "float16"), x.astype(np.float16))


@pytest.mark.parametrize(("name", "expected"), [("float8_e4m3fn", [0.5, -448, 448, 2.25]), ("float8_e5m2", [0.5, -1024, 57344, 2.0]), ("int4", [0, -8, 7, 2])])
def test_types_of_at_most_eight_bits_saturate(name, expected):
    x = np.array([0.5, -1000, 1e6, 2.2], np.float32) if name.startswith("float") else np.array([0, -8, 7, 2], np.float32)
    actual = cast(x, name)
    assert actual.dtype == dtype_or_skip(name)
    np.testing.assert_array_equal(actual.astype(np.float32), expected)
