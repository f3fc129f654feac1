"""The conversion rule: what an input of each dtype accepts, and how errors name the value that is refused."""

import numpy as np
import pytest

from ortrain.data import as_loader
from ortrain.data.conversion import SMALL, Conversion, all_finite
from ortrain.errors import InputTypeError, InvalidArgumentError
from tests.data_loading.fakes import Dataset

ROWS = slice(0, None)


def converted(values, dtype):
    array = values if isinstance(values, np.ndarray) else np.array(values)
    return Conversion("x", dtype)(array, ROWS)


ACCEPTED = [
    ("float32", np.arange(4, dtype=np.uint8)), ("float32", np.arange(4)), ("float32", np.array([True, False])), ("float32", np.array([0.5, 0.25])),
    ("float32", np.array([0.5], np.float16)), ("float32", np.array([0.5], ">f4")), ("float64", np.array([0.5], np.float32)),
    ("float16", np.array([0.5], np.float32)), ("int64", np.arange(4, dtype=np.uint8)), ("int64", np.array([1.0, -2.0])), ("int64", np.array([True])),
    ("int32", np.array([2**31 - 1, -(2**31)])), ("int64", np.array([2**63 - 1], np.uint64)), ("int8", np.array([127.0, -128.0], np.float32)),
    ("uint8", np.array([0, 255])), ("bool", np.array([0, 1])), ("bool", np.array([0.0, 1.0])), ("bool", np.array([True])),
]


@pytest.mark.parametrize(("dtype", "values"), ACCEPTED, ids=lambda value: f"{value.dtype}-{value.tolist()}" if isinstance(value, np.ndarray) else value)
def test_values_that_an_input_can_hold_keep_their_value(dtype, values):
    result = converted(values, dtype)
    assert result.dtype == np.dtype(dtype)
    assert result.tolist() == values.tolist()


OUT_OF_RANGE = [("int32", np.array([[0, 2**31]])), ("int64", np.array([[0, 2**63]], np.uint64)), ("uint8", np.array([[0, -1]])), ("bool", np.array([[0, 2]])),
                ("int64", np.array([[0.0, 2.0**63]])), ("int32", np.array([[0, 2.0**31]], np.float32)), ("int8", np.array([[0, -129.0]])),
                ("int64", np.array([[0, np.inf]]))]


@pytest.mark.parametrize(("dtype", "values"), OUT_OF_RANGE, ids=lambda value: f"{value.dtype}" if isinstance(value, np.ndarray) else value)
def test_numbers_out_of_range_are_refused_with_their_position(dtype, values):
    with pytest.raises(InvalidArgumentError, match=rf"expected values of {dtype}, .* in 'x', got .* in sample 0, position \[1\]"):
        converted(values, dtype)


@pytest.mark.parametrize("value", [0.5, np.nan, 1e-9])
def test_floats_that_are_no_whole_numbers_are_refused_for_integers(value):
    with pytest.raises(InvalidArgumentError, match=r"expected whole numbers \(int64\) in 'x', got .* in sample 2$"):
        converted([1.0, 2.0, value], "int64")


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("size", [3, SMALL])
def test_numbers_that_are_not_finite_are_refused_with_sample_and_position(value, size):
    array = np.zeros((4, size, 2), np.float32)
    array[3, 2, 1] = value
    with pytest.raises(InvalidArgumentError, match=rf"expected finite numbers in 'x', got {value} in sample 3, position \[2, 1\] \(check_finite=False"):
        converted(array, "float32")
    assert np.array_equal(Conversion("x", "float32", finite=False)(array, ROWS), array, equal_nan=True)


def test_a_float_too_large_for_the_input_is_refused_as_infinite():
    with pytest.raises(InvalidArgumentError, match="expected finite numbers in 'x', got inf in sample 1"):
        converted([1.0, 1e300], "float32")


def test_finite_numbers_with_an_infinite_sum_are_finite():
    array = np.full(3 * SMALL, np.finfo(np.float32).max)
    assert all_finite(array) and all_finite(np.full(3 * SMALL, np.finfo(np.float16).max))
    array[-1] = np.nan
    assert not all_finite(array)


def test_opposite_infinities_are_found():
    array = np.zeros(2 * SMALL, np.float32)
    array[3], array[5] = np.inf, -np.inf
    assert not all_finite(array)


@pytest.mark.parametrize("values", [np.array(["a", "b"]), np.array(["a", "b"], object), np.array([b"a"])])
def test_text_is_for_string_inputs_only(values):
    assert Conversion("x", "string")(values, ROWS).dtype == object
    for dtype in ("float32", "int64"):
        with pytest.raises(InputTypeError, match=rf"expected {dtype} for 'x', got text or other objects such as .*ortrain.data.tables.Table"):
            converted(values, dtype)


def test_a_string_input_refuses_numbers():
    with pytest.raises(InputTypeError, match="expected text for 'x', got int64 values"):
        converted([1, 2], "string")


@pytest.mark.parametrize("values", [np.array([1j]), np.array(["2020-01-01"], "M8[D]"), np.array([(1, 2.0)], [("a", int), ("b", float)])])
def test_complex_numbers_dates_and_records_are_refused(values):
    with pytest.raises(InputTypeError, match="expected float32 for 'x', got "):
        converted(values, "float32")


def test_bfloat16_and_float32_are_converted_both_ways():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    values = np.array([0.5, 3.0], ml_dtypes.bfloat16)
    assert converted(values, "float32").tolist() == [0.5, 3.0]
    assert converted(np.array([0.5, 3.0]), "bfloat16").dtype == ml_dtypes.bfloat16


def test_an_input_without_a_dtype_keeps_that_of_its_data():
    assert converted(np.arange(3, dtype=np.uint16), None).dtype == np.uint16


def test_arrays_in_memory_are_checked_when_the_loader_is_made():
    x = np.zeros((100, 2), np.float32)
    x[77, 1] = np.nan
    with pytest.raises(InvalidArgumentError, match=r"in 'x', got nan in sample 77, position \[1\]"):
        as_loader(x, np.zeros(100), names=["x", "y"])
    with pytest.raises(InvalidArgumentError, match=r"expected whole numbers \(int64\) in 'y', got 0.5 in sample 99"):
        as_loader(np.ones((100, 2)), np.array([0.0] * 99 + [0.5]), names=["x", "y"], dtypes={"y": "int64"})
    assert np.isnan(np.concatenate([batch[0] for batch in as_loader(x, np.zeros(100), names=["x", "y"], check_finite=False).epoch(0)])).sum() == 1


def test_the_check_of_a_whole_array_finds_a_value_in_any_piece(monkeypatch):
    monkeypatch.setattr("ortrain.data.conversion.CHUNK", 10)
    for sample in (0, 4, 5, 49):
        x = np.zeros((50, 2), np.float32)
        x[sample, 0] = np.inf
        with pytest.raises(InvalidArgumentError, match=rf"got inf in sample {sample}, position"):
            Conversion("x", "float32").check(x)


def test_samples_of_a_dataset_are_named_by_their_number_in_a_shuffled_batch():
    x = np.zeros((20, 2), np.float32)
    x[13, 1] = np.nan
    loader = as_loader(Dataset(x, np.zeros(20, np.int64)), names=["x", "y"], batch_size=8, prefetch=0)
    with pytest.raises(InvalidArgumentError, match=r"in 'x', got nan in sample 13, position \[1\]"):
        list(loader.epoch(0))


def test_batches_are_contiguous():
    x = np.asfortranarray(np.random.default_rng(0).random((8, 5), np.float32))
    for shuffle in (False, True):
        assert all(batch[0].flags.c_contiguous for batch in as_loader(x, np.zeros(8), names=["x", "y"], batch_size=3, shuffle=shuffle).epoch(0))
