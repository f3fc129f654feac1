"""Tensors of ONNX's file format <-> NumPy arrays, and the files beside a model that hold the data of tensors."""

from __future__ import annotations

import os
from collections.abc import Sequence
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from ortrain.dtypes import NAMES, NUMBERS, name_of, numpy_dtype
from ortrain.errors import InvalidModelError
from ortrain.formats.onnx_messages import StringStringEntryProto, TensorProto

MIN_EXTERNAL_BYTES = 1024
"""Bytes: smaller tensors stay in the model file when the others go to the external data file."""
PAGE = 4096
"""Bytes: tensors in an external data file begin on a page, so that readers can map them."""

DATA_FIELDS: dict[str, tuple[str, type]] = {
    "float32": ("float_data", np.float32), "complex64": ("float_data", np.float32), "float64": ("double_data", np.float64),
    "complex128": ("double_data", np.float64), "int64": ("int64_data", np.int64), "uint64": ("uint64_data", np.uint64), "uint32": ("uint64_data", np.uint64),
}
"""The field that holds the elements of a tensor without raw data, and its dtype. All other dtypes are in int32_data, those of 16 bits and less as bits."""
BITS = {"uint4": 4, "int4": 4, "float4_e2m1fn": 4, "uint2": 2, "int2": 2}
"""The dtypes of which a byte of a file holds several elements, the first in the lowest bits."""


def to_array(tensor: Any, folder: Path | None) -> np.ndarray:
    """Convert a TensorProto, this package's or that of the onnx package, to an array.

    folder: where external data is, None for a model without a path. Raises InvalidModelError where the data do not fit the tensor."""
    if any(dim < 0 for dim in tensor.dims):
        raise InvalidModelError(f"expected dimensions >= 0, got {list(tensor.dims)} (tensor {tensor.name!r})")
    if tensor.data_type not in NAMES or tensor.HasField("segment"):
        what = "whole tensors, not segments" if tensor.HasField("segment") else f"a known element type, got {tensor.data_type}"
        raise InvalidModelError(f"expected {what} (tensor {tensor.name!r})")
    name, dims = NAMES[tensor.data_type], tuple(tensor.dims)
    raw = tensor.raw_data if tensor.HasField("raw_data") else None
    if uses_external_data(tensor):
        raw = external_data(tensor, folder)
    try:
        if name == "string":
            return np.array([str(text, "utf-8") for text in tensor.string_data], object).reshape(dims)
        return (_from_fields(tensor, name, dims) if raw is None else _from_bytes(raw, name, dims)).reshape(dims)
    except (ValueError, TypeError, OverflowError) as error:
        raise InvalidModelError(f"expected tensor {tensor.name!r} to hold {list(dims)} elements of {name}, got: {error}") from error


def _from_bytes(raw: bytes | memoryview, name: str, dims: Sequence[int]) -> np.ndarray:
    """Return the elements in raw data, which are a view of it unless it is a part of something larger."""
    dtype = numpy_dtype(name)
    if name in BITS:
        return _unpacked(np.frombuffer(raw, np.uint8), BITS[name], prod(dims)).view(dtype)
    if name == "bool":
        return np.asarray(np.frombuffer(raw, np.uint8) != 0)
    array = np.frombuffer(raw, dtype)
    is_part = isinstance(raw, memoryview) and raw.nbytes < memoryview(raw.obj).nbytes
    return array.copy() if is_part else array


def _from_fields(tensor: Any, name: str, dims: Sequence[int]) -> np.ndarray:
    """Return the elements in the field for the tensor's dtype."""
    dtype = numpy_dtype(name)
    if name in DATA_FIELDS:
        field, stored = DATA_FIELDS[name]
        elements: np.ndarray = np.array(getattr(tensor, field), stored)
        return elements.view(dtype) if dtype.kind == "c" else elements.astype(dtype, copy=False)
    bits = np.array(tensor.int32_data, np.int32).astype(f"u{dtype.itemsize}")
    if name in BITS:
        return _unpacked(bits, BITS[name], prod(dims)).view(dtype)
    return np.asarray(bits != 0) if name == "bool" else bits.view(dtype)


def _unpacked(data: np.ndarray, bits: int, count: int) -> np.ndarray:
    """Return one byte for each of `count` elements of some bits."""
    per_byte = 8 // bits
    if len(data) != -(-count // per_byte):
        raise ValueError(f"{len(data)} bytes for {count} elements of {bits} bits")
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    return (data[:, np.newaxis] >> shifts & np.uint8(2**bits - 1)).reshape(-1)[:count]


def _packed(array: np.ndarray, bits: int) -> np.ndarray:
    """Return bytes that hold several elements of some bits each."""
    per_byte = 8 // bits
    elements = np.zeros(-(-array.size // per_byte) * per_byte, np.uint8)
    elements[: array.size] = array.reshape(-1).view(np.uint8) & np.uint8(2**bits - 1)
    return np.asarray(np.bitwise_or.reduce(elements.reshape(-1, per_byte) << np.arange(0, 8, bits, dtype=np.uint8), axis=1))


def from_array(array: np.ndarray, name: str = "") -> TensorProto:
    """Convert an array to a tensor, which shares its memory where it is contiguous. Raises InvalidModelError for a dtype that ONNX does not have."""
    dtype = name_of(array.dtype)
    if dtype not in NUMBERS:
        raise InvalidModelError(f"expected a dtype that ONNX has, got {array.dtype} (tensor {name!r})")
    tensor = TensorProto(dims=list(array.shape), data_type=NUMBERS[dtype], name=name or None)
    if dtype == "string":
        tensor.string_data = [text if isinstance(text, bytes) else str(text).encode() for text in array.ravel()]
    else:
        tensor.raw_data = _bytes_of(array)
    return tensor


def _bytes_of(array: np.ndarray) -> memoryview:
    """Return the elements of an array as a file has them."""
    bits = BITS.get(name_of(array.dtype))
    native = array.astype(array.dtype.newbyteorder("<"), copy=False) if array.dtype.byteorder == ">" else array
    content = np.ascontiguousarray(native) if bits is None else _packed(np.ascontiguousarray(native), bits)
    return content.reshape(-1).view(np.uint8).data


# ---- external data


def uses_external_data(tensor: Any) -> bool:
    """Return whether the data of a TensorProto are in another file."""
    return bool(tensor.data_location == TensorProto.DataLocation.EXTERNAL)


def external_range(tensor: Any) -> tuple[str, int, int | None]:
    """Return (location, first byte, length; None for the rest of the file) of a tensor's external data. Raises InvalidModelError for other entries."""
    entries = {entry.key: entry.value for entry in tensor.external_data}
    offset, length = entries.get("offset", "0"), entries.get("length")
    if not entries.get("location") or not all(number.isdecimal() for number in (offset, length or "0")):
        raise InvalidModelError(f"expected a location, an offset and a length of external data, got {entries} (tensor {tensor.name!r})")
    return entries["location"], int(offset), None if length is None else int(length)


def external_data(tensor: Any, folder: Path | None) -> memoryview:
    """Read the data of a tensor from the file beside the model that has them. Raises InvalidModelError where there is no such file in the model's folder,
    symbolic links followed, or where it is too short."""
    if folder is None:
        raise InvalidModelError(f"expected a path for a model with external data (tensor {tensor.name!r}), got the model alone")
    location, offset, length = external_range(tensor)
    try:
        root = os.path.realpath(folder)
        path = os.path.realpath(os.path.join(root, location))
        if os.path.commonpath([root, path]) != root or not os.path.isfile(path):
            raise InvalidModelError(f"expected a file in the folder of the model as the location of external data, got {location!r} (tensor {tensor.name!r})")
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            stop = size if length is None else offset + length
            if not offset <= stop <= size:
                raise InvalidModelError(f"expected bytes {offset} to {stop} of {location!r}, got a file of {size} bytes (tensor {tensor.name!r})")
            memory = np.empty(stop - offset, np.uint8)
            file.seek(offset)
            if file.readinto(memory.data) != memory.size:
                raise InvalidModelError(f"expected {location!r} not to shrink while it is read (tensor {tensor.name!r})")
    except (OSError, ValueError) as error:
        if isinstance(error, InvalidModelError):
            raise
        raise InvalidModelError(f"expected external data that can be read at {location!r} (tensor {tensor.name!r}): {error}") from error
    return memory.data.toreadonly()


class ExternalData:
    """Collects the tensors of an external data file."""

    def __init__(self, location: str) -> None:
        self.location = location
        self.size = 0
        self.chunks: list[bytes | memoryview] = []

    def tensor(self, array: np.ndarray, name: str) -> TensorProto:
        """Return a tensor whose data is in the file; small tensors and strings contain their data."""
        tensor = from_array(array, name)
        if array.nbytes < MIN_EXTERNAL_BYTES or array.dtype.hasobject:
            return tensor
        gap = -self.size % PAGE
        content = tensor.__dict__.pop("raw_data")
        self.chunks += [bytes(gap), content]
        tensor.data_location = TensorProto.DataLocation.EXTERNAL
        entries = {"location": self.location, "offset": str(self.size + gap), "length": str(len(content))}
        tensor.external_data = [StringStringEntryProto(key=key, value=value) for key, value in entries.items()]
        self.size += gap + len(content)
        return tensor
