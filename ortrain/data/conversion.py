"""Values to NumPy arrays, and arrays to the dtypes of a session's inputs; the rule is in the docstring of ortrain.data."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ortrain.dtypes import numpy_dtype
from ortrain.errors import ArgumentTypeError, InputTypeError, InvalidArgumentError

Rows = np.ndarray | slice | str
"""Which samples a batch holds, to name them in errors: their numbers, a range of them, or words for the batch."""

SMALL = 4096
"""Arrays up to this number of elements are checked for NaN and infinity directly: the detour over their sum saves nothing."""
CHUNK = 1 << 22
"""Elements that the check of a whole array looks at in one go."""


# ---- values to arrays

def as_array(value: Any, name: str) -> np.ndarray:
    """Return a value as an array: arrays and memory maps as they are, tensors without their gradients, anything with __array__ or __dlpack__, numbers,
    and nested sequences of these. Shares memory where the value allows it.

    name: the input's name, for errors. Raises InvalidArgumentError for ragged sequences and missing values, ArgumentTypeError for other objects."""
    if isinstance(value, np.ndarray):
        return _without_mask(value, name) if isinstance(value, np.ma.MaskedArray) else value if value.dtype != object else _unpacked(value, name)
    if callable(getattr(value, "detach", None)) and callable(getattr(value, "cpu", None)):
        return _from_tensor(value, name)
    if hasattr(value, "__array__"):
        return as_array(np.asarray(value), name)
    if hasattr(value, "__dlpack__"):
        return np.asarray(np.from_dlpack(value))
    if isinstance(value, list | tuple | range):
        return _from_sequence(value, name)
    if hasattr(value, "toarray"):
        raise ArgumentTypeError(f"expected a dense array for {name!r}, got the sparse {type(value).__name__}: its method toarray makes one")
    if isinstance(value, bool | int | float | complex | str | bytes):
        return np.asarray(value)
    raise ArgumentTypeError(f"expected an array, a tensor, a number or a sequence of these for {name!r}, got {type(value).__name__}")


def _from_tensor(tensor: Any, name: str) -> np.ndarray:
    """A torch tensor, which may require gradients, be on a device, or have a dtype that NumPy does not know."""
    plain = tensor.detach().cpu()
    if str(plain.dtype).endswith("bfloat16"):
        plain = plain.float()
    try:
        return np.asarray(plain.numpy())
    except TypeError as error:
        raise ArgumentTypeError(f"expected a dense tensor for {name!r}, got one that NumPy cannot hold: {error}") from error


def _from_sequence(values: Sequence[Any], name: str) -> np.ndarray:
    if values and not is_nested_numbers(values[0]):
        return _stacked(values, name)
    try:
        return as_array(np.asarray(values), name)
    except ValueError as error:
        raise InvalidArgumentError(f"expected values of one shape for {name!r}, got a ragged sequence: {error}") from error


def _stacked(values: Iterable[Any], name: str) -> np.ndarray:
    arrays = [as_array(value, name) for value in values]
    for number, array in enumerate(arrays):
        if array.shape != arrays[0].shape:
            raise InvalidArgumentError(f"expected values of one shape for {name!r}, got {list(arrays[0].shape)} for the first and {list(array.shape)} for "
                                       f"number {number}")
    return np.stack(arrays)


def _without_mask(value: np.ma.MaskedArray, name: str) -> np.ndarray:
    masked = int(np.count_nonzero(np.ma.getmaskarray(value)))
    if masked:
        raise InvalidArgumentError(f"expected {name!r} without missing values, got a masked array with {masked} masked elements")
    return np.asarray(value.data)


def _unpacked(value: np.ndarray, name: str) -> np.ndarray:
    """An object array as numbers or as a stack of arrays where its elements are such; strings stay as they are."""
    if not value.size or any(isinstance(element, str | bytes) for element in value.flat):
        return value
    for number, element in enumerate(value):
        if element is None:
            raise InvalidArgumentError(f"expected {name!r} without missing values, got None in sample {number}")
    if value.ndim == 1 and not is_nested_numbers(value[0]):
        return _stacked(value, name)
    try:
        numbers = np.array(value.tolist())
    except ValueError as error:
        raise InvalidArgumentError(f"expected values of one shape for {name!r}, got a ragged array: {error}") from error
    if numbers.dtype == object:
        raise ArgumentTypeError(f"expected numbers for {name!r}, got Python objects, the first of type {type(value.flat[0]).__name__}")
    return numbers


def is_nested_numbers(value: Any) -> bool:
    """Whether a value is a number or text, or a list or tuple that holds only such at any depth; one path is looked at, not all elements."""
    while isinstance(value, list | tuple) and value:
        value = value[0]
    return isinstance(value, bool | int | float | complex | str | bytes | np.generic | list | tuple)


# ---- arrays to the session's dtypes

def all_finite(array: np.ndarray) -> bool:
    """Whether no element is NaN or infinite. Large arrays are summed first, since a finite sum proves it without a temporary array."""
    if array.size > SMALL:
        with np.errstate(all="ignore"):
            if math.isfinite(float(np.add.reduce(array, axis=None, dtype=np.float32 if array.itemsize < 4 else None))):
                return True
    return bool(np.isfinite(array).all())


@dataclass(frozen=True, slots=True)
class Conversion:
    """Converts batches of one input. dtype: a name of ortrain.dtypes, None to keep every dtype. finite: refuse NaN and infinity in floats."""

    name: str
    dtype: str | None = None
    finite: bool = True
    wanted: np.dtype | None = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "wanted", None if self.dtype is None else numpy_dtype(self.dtype))

    def __call__(self, array: np.ndarray, rows: Rows, checked: bool = False) -> np.ndarray:
        """Return a C-contiguous batch of the input's dtype. array [samples, ...]; rows: which samples these are; checked: `check` has passed for them.

        Raises InputTypeError for a kind of values that the input cannot take, InvalidArgumentError for values that it cannot."""
        converted = array if self.wanted is None or array.dtype == self.wanted else self._cast(array, rows, checked)
        if self.finite and not checked and converted.dtype.kind == "f" and not all_finite(converted):
            self._refuse(~np.isfinite(converted), converted, rows, "finite numbers", " (check_finite=False turns this check off)")
        return converted if converted.flags.c_contiguous else np.ascontiguousarray(converted)

    def check(self, array: np.ndarray) -> None:
        """Check a whole array [samples, ...] for what __call__ refuses, a piece at a time. Raises the same errors."""
        wanted = array.dtype if self.wanted is None else self.wanted
        exact = array.dtype == wanted and not (self.finite and wanted.kind == "f")
        if exact or array.dtype.kind in "biu" and wanted.kind == "f" and wanted.itemsize >= 4:
            return
        step = max(1, CHUNK // max(1, math.prod(array.shape[1:])))
        for start in range(0, len(array), step):
            rows = slice(start, min(start + step, len(array)))
            self(array[rows], rows)

    def _cast(self, array: np.ndarray, rows: Rows, checked: bool) -> np.ndarray:
        wanted, given = self.wanted, array.dtype
        assert wanted is not None
        if self.dtype == "string":
            return self._strings(array, rows)
        if given.kind in "OUS":
            raise InputTypeError(f"expected {self.dtype} for {self.name!r}, got text or other objects{_example(array)}: encode them as numbers first "
                                 "(ortrain.data.tables.Table does so for columns)")
        extension = given.kind == "V" and given.names is None           # ml_dtypes: bfloat16 and narrower floats
        if given.kind not in "biuf" and not extension or wanted.kind == "c":
            raise InputTypeError(f"expected {self.dtype} for {self.name!r}, got {given}")
        if wanted.kind in "fV":
            with np.errstate(over="ignore"):                            # what overflows is infinite, and refused as such
                return array.astype(wanted)
        if checked or np.can_cast(given, wanted):
            return array.astype(wanted)
        return self._integers(array.astype(np.float32) if extension else array, rows)

    def _integers(self, array: np.ndarray, rows: Rows) -> np.ndarray:
        """Integers or booleans of numbers that have them as exact values."""
        wanted = self.wanted
        assert wanted is not None
        low, high = (0, 1) if wanted.kind == "b" else (int(np.iinfo(wanted).min), int(np.iinfo(wanted).max))
        # compared as floats, the highest 64-bit number rounds up to one that does not fit
        above = array >= 2.0 ** (high.bit_length()) if array.dtype.kind == "f" and high > 1 else array > high
        outside = above | (array < low)
        if outside.any():
            self._refuse(outside, array, rows, f"values of {self.dtype}, {low} to {high}", "")
        with np.errstate(invalid="ignore"):
            converted = array.astype(wanted)
        inexact = converted != array
        if inexact.any():
            self._refuse(inexact, array, rows, f"whole numbers ({self.dtype})", "")
        return converted

    def _strings(self, array: np.ndarray, rows: Rows) -> np.ndarray:
        if array.dtype.kind in "US":
            return array.astype(object)
        odd = np.fromiter((not isinstance(value, str | bytes) for value in array.flat), bool, array.size).reshape(array.shape)
        if array.dtype != object or odd.any():
            raise InputTypeError(f"expected text for {self.name!r}, got {array.dtype} values{_example(array[odd]) if array.dtype == object else ''}")
        return array

    def _refuse(self, wrong: np.ndarray, array: np.ndarray, rows: Rows, expected: str, remedy: str) -> None:
        position = np.argwhere(wrong)[0]
        place = f", position {position[1:].tolist()}" if len(position) > 1 else ""
        raise InvalidArgumentError(f"expected {expected} in {self.name!r}, got {array[tuple(position)].item()} in "
                                   f"{sample_name(rows, int(position[0]))}{place}{remedy}")


def sample_name(rows: Rows, index: int) -> str:
    """Name sample `index` of a batch for an error."""
    if isinstance(rows, str):
        return f"sample {index} of {rows}"
    return f"sample {int(rows.start) + index if isinstance(rows, slice) else int(rows[index])}"


def _example(array: np.ndarray) -> str:
    return f" such as {array.ravel()[:1].tolist()[0]!r}" if array.size else ""
