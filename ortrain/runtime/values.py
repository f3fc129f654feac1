"""OrtValue, and the conversion of user inputs to arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ortrain.dtypes import NUMBERS, name_of, numpy_dtype
from ortrain.errors import InputTypeError, UnsupportedDeviceError
from ortrain.ir import TensorType

_TENSOR_NAMES = {"float32": "float", "float64": "double"}


class OrtValue:
    """A tensor on a device, as onnxruntime's OrtValue. The only device is "cpu"."""

    def __init__(self, array: np.ndarray) -> None:
        self._array = array

    @staticmethod
    def ortvalue_from_numpy(numpy_obj: np.ndarray, device_type: str = "cpu", device_id: int = 0) -> OrtValue:
        """Create a value that shares a C-contiguous array's memory; other arrays are copied. Raises UnsupportedDeviceError for a device other than
        "cpu"."""
        check_device(device_type)
        return OrtValue(np.ascontiguousarray(numpy_obj).reshape(np.shape(numpy_obj)))

    @staticmethod
    def ortvalue_from_shape_and_type(shape: Sequence[int], element_type: Any = np.float32, device_type: str = "cpu", device_id: int = 0) -> OrtValue:
        """Create a zeroed value of a shape and NumPy dtype."""
        check_device(device_type)
        return OrtValue(np.zeros(shape, element_type))

    def numpy(self) -> np.ndarray:
        """Return the tensor as an array that shares the value's memory."""
        return self._array

    def shape(self) -> list[int]:
        return list(self._array.shape)

    def data_type(self) -> str:
        """Return the type in ONNX's notation, such as "tensor(float)"."""
        name = name_of(self._array.dtype)
        return f"tensor({_TENSOR_NAMES.get(name, name)})"

    def element_type(self) -> int:
        """Return the number of the element type in ONNX's TensorProto.DataType."""
        return NUMBERS[name_of(self._array.dtype)]

    def device_name(self) -> str:
        return "cpu"

    def is_tensor(self) -> bool:
        return True

    def has_value(self) -> bool:
        return True

    def data_ptr(self) -> int:
        """Return the address of the first element."""
        return int(self._array.ctypes.data)

    def update_inplace(self, np_arr: np.ndarray) -> None:
        """Copy an array of the same shape and dtype into the value."""
        if np_arr.shape != self._array.shape or np_arr.dtype != self._array.dtype:
            raise InputTypeError(f"expected {self._array.dtype}{list(self._array.shape)}, got {np_arr.dtype}{list(np_arr.shape)}")
        self._array[...] = np_arr

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self._array, dtype, copy=copy)

    def __dlpack__(self, **options: Any) -> Any:
        return self._array.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._array.__dlpack_device__()

    def __repr__(self) -> str:
        return f"OrtValue({self.data_type()}, shape={self.shape()})"


def check_device(device: str) -> None:
    """Raise UnsupportedDeviceError for anything but "cpu"."""
    if str(device).split(":")[0].lower() != "cpu":
        raise UnsupportedDeviceError(f"Unsupported device type: expected 'cpu', got {device!r}")


def as_array(value: Any, dtype: str, where: str) -> np.ndarray:
    """Convert an input (array, OrtValue of either package, __array__, __dlpack__, list) to a C-contiguous array. Tensors that require gradients, as in
    PyTorch, are detached first.

    Raises InputTypeError when it is none of these or its dtype is not `dtype`; lists are converted to that dtype."""
    if isinstance(value, np.ndarray):
        array = value
    elif isinstance(value, OrtValue):
        array = value.numpy()
    elif value is None or isinstance(value, str | bytes | dict):
        raise InputTypeError(f"expected an array of {dtype} for {where}, got {type(value).__name__}")
    else:
        array = _foreign_array(value, dtype, where)
    if name_of(array.dtype) != dtype:
        raise InputTypeError(f"expected an array of {dtype} for {where}, got {array.dtype}")
    if type(array) is not np.ndarray or not array.flags.c_contiguous or not array.flags.aligned or not array.dtype.isnative:
        array = np.array(array, numpy_dtype(dtype), order="C")
    return array


def _foreign_array(value: Any, dtype: str, where: str) -> np.ndarray:
    """Return an object of another library, or a list, as an array."""
    try:
        if getattr(value, "requires_grad", False) is True and callable(getattr(value, "detach", None)):
            value = value.detach()
        if callable(getattr(value, "numpy", None)) and callable(getattr(value, "data_type", None)):
            return np.asarray(value.numpy())
        if hasattr(value, "__array__"):
            return np.asarray(value)
        if hasattr(value, "__dlpack__"):
            return np.from_dlpack(value)
        return np.asarray(value, numpy_dtype(dtype))
    # foreign libraries raise errors of their own, for instance for tensors on other devices
    except (AttributeError, BufferError, NotImplementedError, OverflowError, RuntimeError, TypeError, ValueError) as error:
        raise InputTypeError(f"expected an array of {dtype} for {where}, got {type(value).__name__}: {error}") from error


def find_non_finite(name: str, array: np.ndarray) -> str | None:
    """Describe the first NaN or infinity in an array of samples [n, ...]: the input `name`, the sample and the index in it; None where all elements are
    finite or not floating-point numbers."""
    array = np.asarray(array)
    if array.dtype.kind not in "fcV" or array.dtype.names is not None or name_of(array.dtype) not in NUMBERS:
        return None
    bad = ~np.isfinite(array)
    count = int(np.count_nonzero(bad))
    if count == 0:
        return None
    place = [int(index) for index in np.unravel_index(int(bad.argmax()), bad.shape)]
    value = float(array[tuple(place)])
    what = "NaN" if value != value else "infinity" if value > 0 else "-infinity"
    where = f" in sample {place[0]}" + (f" at index {place[1:]}" if len(place) > 1 else "") if place else ""
    return f"{what} in input {name!r}{where}" + (f", the first of {count} elements that are not finite" if count > 1 else "")


def as_object(value: Any, kind: TensorType, where: str) -> Any:
    """Convert a sequence to a list of arrays, and an optional to its value or None. Raises InputTypeError for anything else."""
    if value is None and kind.optional:
        return None
    if not kind.sequence:
        return as_array(value, kind.dtype, where)
    if not isinstance(value, list | tuple):
        raise InputTypeError(f"expected a list of arrays of {kind.dtype} for {where}, got {type(value).__name__}")
    return [as_array(item, kind.dtype, f"element {index} of {where}") for index, item in enumerate(value)]
