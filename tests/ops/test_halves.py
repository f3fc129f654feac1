"""float16 and bfloat16 are widened exactly and rounded to nearest even, whatever the processor; narrower types go through ONNX's reference."""

import numpy as np
import pytest
from onnx import helper

import ortrain
from ortrain.dtypes import NUMBERS, numpy_dtype

HALVES = ("float16", "bfloat16")


def half(name):
    """The dtype, or a skip where ml_dtypes does not have it."""
    try:
        return numpy_dtype(name)
    except TypeError as error:
        pytest.skip(str(error))


def cast(x, name):
    """A graph of one Cast, run."""
    source = helper.make_tensor_value_info("x", NUMBERS[x.dtype.name], list(x.shape))
    target = helper.make_tensor_value_info("y", NUMBERS[name], list(x.shape))
    graph = helper.make_graph([helper.make_node("Cast", ["x"], ["y"], to=NUMBERS[name])], "g", [source], [target])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    return ortrain.InferenceSession(model).run(None, {"x": x})[0]


def assert_same_bits(got, wanted):
    """Equal bit for bit, but that one not-a-number is as good as another."""
    assert got.dtype == wanted.dtype
    number = ~np.isnan(wanted.astype(np.float32))
    unsigned = f"u{wanted.dtype.itemsize}"
    np.testing.assert_array_equal(got.view(unsigned)[number], wanted.view(unsigned)[number])
    assert np.isnan(got.astype(np.float32)[~number]).all()


@pytest.mark.parametrize("name", HALVES)
def test_every_half_is_widened_exactly(name):
    every = np.arange(2**16, dtype=np.uint16).view(half(name))
    assert_same_bits(cast(every, "float32"), every.astype(np.float32))


@pytest.mark.filterwarnings("ignore:overflow encountered in cast", "ignore:invalid value encountered in cast")
@pytest.mark.parametrize("name", HALVES)
def test_a_float_is_rounded_to_the_nearest_half_ties_to_even(name):
    halves = np.arange(2**15, dtype=np.uint16).view(half(name)).astype(np.float32)
    between = (halves[:-1].astype(np.float64) + halves[1:]) / 2                           # the ties
    ties = between[np.isfinite(between)].astype(np.float32)
    bits = np.random.default_rng(0).integers(0, 2**32, 200_000, dtype=np.uint32).view(np.float32)
    narrow = np.random.default_rng(1).standard_normal(100_000).astype(np.float32) * 1e-5  # subnormal halves among them
    x = np.concatenate([halves, ties, np.nextafter(ties, np.float32(0)), np.nextafter(ties, np.float32(np.inf)), bits, narrow,
                        np.array([65504, 65519.996, 65520, 1e38, np.inf, np.nan], np.float32)])
    x = np.concatenate([x, -x])
    assert_same_bits(cast(x, name), x.astype(half(name)))


@pytest.mark.parametrize("name", ["float64", "int64", "int8", "bool"])
def test_other_types_become_float16_too(name):
    x = np.array([0, 1, 2, 100]).astype(name)
    np.testing.assert_array_equal(cast(x, "float16"), x.astype(np.float16))


@pytest.mark.parametrize(("name", "wanted"), [("float8_e4m3fn", [0.5, -448, 448, 2.25]), ("float8_e5m2", [0.5, -1024, 57344, 2.0]), ("int4", [0, -8, 7, 2])])
def test_types_of_a_byte_and_less_saturate_as_onnx_says(name, wanted):
    x = np.array([0.5, -1000, 1e6, 2.2], np.float32) if name.startswith("float") else np.array([0, -8, 7, 2], np.float32)
    got = cast(x, name)
    assert got.dtype == half(name)
    np.testing.assert_array_equal(got.astype(np.float32), wanted)
