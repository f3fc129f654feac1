"""Tensors of ONNX files become the arrays that the onnx package makes of them, and external data is read from the model's folder only."""

import os
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from ortrain.dtypes import EXTENSIONS, NAMES, NUMBERS, numpy_dtype
from ortrain.errors import InvalidModelError
from ortrain.formats.onnx_tensors import from_array, to_array
from ortrain.formats.protobuf import serialize

NUMERIC = [name for name in NAMES.values() if name != "string"]
LIMITS = {"uint4": 4, "int4": 4, "uint2": 2, "int2": 2}


def known(name: str) -> np.dtype:
    """Return the NumPy dtype of a name. Skips where the installed onnx and ml_dtypes do not have it."""
    try:
        dtype = numpy_dtype(name)
    except TypeError as error:
        pytest.skip(str(error))
    if NUMBERS[name] not in TensorProto.DataType.values():
        pytest.skip(f"onnx {onnx.__version__} has no {name}")
    return dtype


def array_of(name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Return an array with elements of all bits."""
    dtype, random = known(name), np.random.default_rng(len(name))
    if name == "bool":
        return random.random(shape) < 0.5
    if name in LIMITS or name.startswith("float4"):
        return random.integers(0, 2 ** LIMITS.get(name, 4), shape).astype(np.uint8).view(dtype)
    if name in EXTENSIONS:
        return random.standard_normal(shape).astype(dtype)
    return (100 * random.standard_normal((*shape, 2))).view(np.complex128)[..., 0].astype(dtype) if dtype.kind == "c" else (
        100 * random.standard_normal(shape)).astype(dtype)


def assert_same(left: np.ndarray, right: np.ndarray) -> None:
    assert (left.dtype, left.shape) == (right.dtype, right.shape)
    assert left.tobytes() == right.tobytes()


@pytest.mark.parametrize("shape", [(), (5,), (3, 3), (2, 0)], ids=str)
@pytest.mark.parametrize("name", NUMERIC)
def test_an_array_is_written_and_read_as_the_onnx_package_does(name, shape):
    array = array_of(name, shape)
    theirs = numpy_helper.from_array(array, "w")
    ours = from_array(array, "w")
    assert b"".join(serialize(ours)) == theirs.SerializeToString(deterministic=True)
    for tensor in (ours, theirs):
        assert_same(to_array(tensor, None), array)


@pytest.mark.parametrize("name", NUMERIC)
def test_elements_outside_of_raw_data_are_read_as_the_onnx_package_does(name):
    array = array_of(name, (3, 3))
    field = helper.tensor_dtype_to_field(NUMBERS[name])
    if name in LIMITS or name.startswith("float4"):
        elements = list(numpy_helper.from_array(array).raw_data)
    elif field == "int32_data" and array.dtype.kind not in "iu":
        elements = array.view(f"u{array.dtype.itemsize}").ravel().tolist()
    else:
        elements = array.ravel().view(array.real.dtype).tolist()
    tensor = TensorProto(dims=array.shape, data_type=NUMBERS[name], **{field: elements})
    assert_same(to_array(tensor, None), array)
    assert_same(to_array(tensor, None), numpy_helper.to_array(tensor))


def test_text_is_read_and_written():
    array = np.array([["a", "é"]], object)
    assert to_array(from_array(array, "w"), None).tolist() == array.tolist()
    assert b"".join(serialize(from_array(array, "w"))) == numpy_helper.from_array(array, "w").SerializeToString()


def test_an_array_of_the_other_byte_order_is_written_as_a_file_has_it():
    assert bytes(from_array(np.array([1, 2], ">f4")).raw_data) == np.array([1, 2], "<f4").tobytes()


@pytest.mark.parametrize("array", [np.array(["2026-01-01"], "datetime64[D]"), np.zeros(2, "V4")], ids=lambda array: str(array.dtype))
def test_a_dtype_that_onnx_does_not_have_is_refused(array):
    with pytest.raises(InvalidModelError, match="expected a dtype that ONNX has"):
        from_array(array)


def test_a_segment_is_refused():
    with pytest.raises(InvalidModelError, match="whole tensors"):
        to_array(TensorProto(dims=[1], data_type=1, segment=TensorProto.Segment(begin=0, end=1)), None)


# ---- external data


def external(**entries) -> TensorProto:
    tensor = TensorProto(dims=[2], data_type=TensorProto.FLOAT, name="w", data_location=TensorProto.EXTERNAL)
    for key, value in entries.items():
        tensor.external_data.add(key=key, value=str(value))
    return tensor


@pytest.fixture
def folder(tmp_path) -> Path:
    """A folder of a model with a file of data, inside a folder with another one."""
    (tmp_path / "secret").write_bytes(bytes(8))
    made = tmp_path / "model"
    (made / "inner").mkdir(parents=True)
    (made / "inner" / "data").write_bytes(bytes(4) + np.array([1, 2], np.float32).tobytes())
    return made


def test_external_data_is_read_from_a_part_of_a_file(folder):
    for entries in ({"offset": 4, "length": 8}, {"offset": 4}):
        assert to_array(external(location="inner/data", **entries), folder).tolist() == [1, 2]


def test_a_link_to_a_file_in_the_same_folder_is_followed(folder):
    (folder / "link").symlink_to(folder / "inner" / "data")
    assert to_array(external(location="link", offset=4), folder).tolist() == [1, 2]


@pytest.mark.parametrize("entries, what", [
    ({"location": "../secret"}, "in the folder of the model"), ({"location": "link"}, "in the folder of the model"),
    ({"location": "inner"}, "in the folder of the model"), ({"location": "pipe"}, "in the folder of the model"),
    ({"location": "nothing"}, "in the folder of the model"), ({"location": "a\0b"}, "can be read"), ({}, "expected a location"),
    ({"location": "inner/data", "offset": 5}, "elements"), ({"location": "inner/data", "offset": 13}, "bytes 13 to 12"),
    ({"location": "inner/data", "offset": 8, "length": 8}, "bytes 8 to 16"), ({"location": "inner/data", "offset": -4}, "an offset and a length"),
    ({"location": "inner/data", "length": "1_0"}, "an offset and a length"), ({"location": "inner/data", "length": 10**30}, "a file of 12 bytes"),
], ids=str)
def test_external_data_that_is_not_in_the_models_folder_or_does_not_fit_is_refused(folder, entries, what):
    (folder / "link").symlink_to(folder.parent / "secret")
    os.mkfifo(folder / "pipe")
    with pytest.raises(InvalidModelError, match=what):
        to_array(external(**entries), folder)


def test_external_data_needs_a_folder():
    with pytest.raises(InvalidModelError, match="got the model alone"):
        to_array(external(location="data"), None)
