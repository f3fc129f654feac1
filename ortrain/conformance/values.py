"""JSON encoding of values of cases and of the protocol: tensors, bytes and objects."""

from __future__ import annotations

import base64
import math
from typing import Any

import numpy as np

from ortrain.dtypes import name_of, numpy_dtype
from ortrain.errors import InvalidArgumentError


def is_tensor(value: Any) -> bool:
    """Return whether a JSON value is a tensor."""
    return isinstance(value, dict) and set(value) == {"dtype", "shape", "data"}


def decoded(value: Any) -> Any:
    """Decode a JSON value: tensors to arrays, bytes to bytes. Raises InvalidArgumentError for a malformed tensor."""
    if is_tensor(value):
        try:
            return np.array(value["data"], numpy_dtype(value["dtype"])).reshape(value["shape"])
        except (TypeError, ValueError, OverflowError) as error:
            raise InvalidArgumentError(f"expected a tensor of {value['dtype']} with shape {value['shape']}: {error}") from error
    if isinstance(value, dict) and set(value) == {"bytes"}:
        return base64.b64decode(value["bytes"])
    if isinstance(value, list):
        return [decoded(item) for item in value]
    return value


def encoded(value: Any) -> Any:
    """Encode the result of a call as JSON. Raises TypeError for an object, which has no JSON form."""
    if isinstance(value, np.ndarray):
        return {"dtype": name_of(value.dtype), "shape": list(value.shape), "data": value.ravel().tolist()}
    if isinstance(value, bytes | bytearray | memoryview):
        return {"bytes": base64.b64encode(value).decode("ascii")}
    if isinstance(value, list | tuple):
        return [encoded(item) for item in value]
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, int | float | str):        # enumerations, and strings and numbers from C's allocator
        return next(kind(value) for kind in (bool, int, float, str) if isinstance(value, kind))
    raise TypeError(f"expected a value with a form in JSON, got {type(value).__name__}")


def difference(got: Any, wanted: Any, relative: float, absolute: float) -> str | None:
    """Describe how a result differs from the expected one, or return None; tensors and floats are compared within the tolerance, everything else
    exactly."""
    if is_tensor(wanted) and is_tensor(got):
        if (got["dtype"], got["shape"]) != (wanted["dtype"], wanted["shape"]):
            return f"expected {wanted['dtype']}{wanted['shape']}, got {got['dtype']}{got['shape']}"
        wrong = [(position, pair) for position, pair in enumerate(zip(wanted["data"], got["data"], strict=True)) if not _close(*pair, relative, absolute)]
        return f"expected {wrong[0][1][0]} at {wrong[0][0]}, got {wrong[0][1][1]}" if wrong else None
    if isinstance(wanted, list) and isinstance(got, list) and len(wanted) == len(got):
        return next((said for pair in zip(got, wanted, strict=True) if (said := difference(*pair, relative, absolute))), None)
    if type(wanted) is float and type(got) in (int, float):
        return None if _close(wanted, got, relative, absolute) else f"expected {wanted}, got {got}"
    return None if got == wanted and type(got) is type(wanted) else f"expected {_short(wanted)}, got {_short(got)}"


def _close(wanted: Any, got: Any, relative: float, absolute: float) -> bool:
    if not isinstance(wanted, float):
        return bool(wanted == got)
    return math.isclose(wanted, got, rel_tol=relative, abs_tol=absolute) or (math.isnan(wanted) and math.isnan(got))


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:200]}…"
