"""Tensors of the facades: created over the caller's memory, read back, described."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ortrain._facade_runtime.arguments import integer, listed, texts
from ortrain._facade_runtime.lifetime import Holder
from ortrain.dtypes import EXTENSIONS, NAMES, NUMBERS, name_of, numpy_dtype
from ortrain.errors import ArgumentTypeError, InvalidArgumentError
from ortrain.runtime.flat_buffers import FlatBuffer
from ortrain.runtime.values import OrtValue


@dataclass(frozen=True)
class TypeAndShape:
    """The element type and the shape of a tensor."""

    dtype: str
    shape: tuple[int, ...]

    @classmethod
    def of(cls, array: np.ndarray) -> TypeAndShape:
        """Return the type and shape of an array."""
        return cls(name_of(array.dtype), tuple(int(size) for size in array.shape))

    @property
    def element_type(self) -> int:
        """The number of the element type in ONNX (TensorProto.DataType)."""
        return NUMBERS[self.dtype]

    @property
    def element_count(self) -> int:
        """The number of elements."""
        return int(np.prod(self.shape, dtype=np.int64))


class TypeAndShapeHolder(Holder[TypeAndShape]):
    """Holds a type and shape."""

    @property
    def _info(self) -> TypeAndShape:
        return self._open()


def shape_of(shape: Any, length: int | None = None) -> tuple[int, ...]:
    """Return a shape of non-negative sizes."""
    sizes = tuple(integer(size, "shape") for size in listed(shape, "shape", length))
    if any(size < 0 for size in sizes):
        raise InvalidArgumentError(f"expected sizes of at least 0 in shape, got {list(sizes)}")
    return sizes


def dtype_of(element_type: Any) -> str:
    """Return the dtype name of an element type's ONNX number. Raises InvalidArgumentError for a number without a NumPy dtype."""
    number = integer(element_type, "the element type")
    name = NAMES.get(number)
    if name is None or name in EXTENSIONS:
        raise InvalidArgumentError(f"expected the number of an element type, got {number}")
    return name


def tensor_over(memory: Any, shape: Any, element_type: Any = None, length: int | None = None, rank: int | None = None,
                memory_info: object = None) -> OrtValue:
    """Return a tensor that shares the caller's memory.

    memory: a NumPy array or another contiguous buffer. element_type: ONNX number; None uses the memory's dtype. length (the memory's size in bytes),
    rank (the length of shape) and memory_info are checked where the language passes them.
    Raises ArgumentTypeError for memory that cannot be shared, InvalidArgumentError for sizes that differ."""
    sizes = shape_of(shape, rank)
    try:
        view = np.asarray(memoryview(memory))
    except (TypeError, ValueError) as error:
        raise ArgumentTypeError(f"expected memory that can be shared (a NumPy array, bytearray, array.array), got {type(memory).__name__}: "
                                "numpy.array(...) makes some") from error
    if not view.flags.c_contiguous:
        raise ArgumentTypeError("expected contiguous memory, got an array with strides: numpy.ascontiguousarray(...) copies it")
    wanted = name_of(view.dtype) if element_type is None else dtype_of(element_type)
    if wanted != name_of(view.dtype):
        if "string" in (wanted, name_of(view.dtype)) or view.nbytes % numpy_dtype(wanted).itemsize:
            raise InvalidArgumentError(f"expected memory of {wanted} elements, got {view.nbytes} bytes of {view.dtype}")
        view = view.reshape(-1).view(np.uint8).view(numpy_dtype(wanted))
    if length is not None and length != view.nbytes:
        raise InvalidArgumentError(f"expected {length} bytes of data, as its length says, got {view.nbytes}")
    if int(np.prod(sizes, dtype=object)) != view.size:
        raise InvalidArgumentError(f"expected memory for shape {list(sizes)}, {int(np.prod(sizes, dtype=object))} elements, got {view.size} elements")
    return OrtValue(view.reshape(sizes))


def allocated_tensor(shape: Any, element_type: Any, rank: int | None = None, allocator: object = None) -> OrtValue:
    """Return a tensor of zeros (empty strings) in newly allocated memory, whichever allocator is passed."""
    dtype = dtype_of(element_type)
    sizes = shape_of(shape, rank)
    return OrtValue(np.full(sizes, "", object) if dtype == "string" else np.zeros(sizes, numpy_dtype(dtype)))


def flat(value: OrtValue, writable: bool = True) -> np.ndarray:
    """Return the elements of a tensor, [n], sharing its memory."""
    view = value.numpy().reshape(-1)
    if not writable:
        view = view.view()
        view.flags.writeable = False
    return view


def buffer_value(buffer: FlatBuffer) -> OrtValue:
    """Return a tensor over the memory of a flat buffer, [n]."""
    return OrtValue(buffer.array)


def buffer_view(buffer: FlatBuffer, name: str) -> OrtValue:
    """Return a tensor over the part of a flat buffer that belongs to a parameter. Raises ParameterNotFoundError for one that it does not hold."""
    return OrtValue(buffer.view(name))


def fill_strings(value: OrtValue, strings: Any, length: int | None = None) -> None:
    """Store strings in a string tensor. Raises ArgumentTypeError for another tensor, InvalidArgumentError for another number of strings."""
    array = value.numpy()
    if name_of(array.dtype) != "string":
        raise ArgumentTypeError(f"expected a tensor of strings, got {array.dtype}")
    found = texts(strings, "s", length)
    if len(found) != array.size:
        raise InvalidArgumentError(f"expected {array.size} strings for shape {list(array.shape)}, got {len(found)}")
    array.reshape(-1)[:] = found


def dimensions(info: TypeAndShape, length: int | None = None) -> list[int]:
    """Return the sizes of a shape; `length` of them where the language specifies how many."""
    if length is not None and length != len(info.shape):
        raise InvalidArgumentError(f"expected room for {len(info.shape)} dimensions, got {length}")
    return list(info.shape)
