"""LabelEncoder of the domain ai.onnx.ml, which maps keys (strings or numbers) to values by a table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ortrain.dtypes import name_of, numpy_dtype
from ortrain.ir import TensorType
from ortrain.ops.registry.record import InferenceContext, KernelCall, LoweringContext, operator

ML_DOMAIN = "ai.onnx.ml"
LIST_DTYPES = {"strings": "string", "int64s": "int64", "floats": "float32"}
"""Suffix of the attributes keys_… and values_… -> dtype of their elements."""
DEFAULTS: dict[str, tuple[str, Any]] = {"string": ("default_string", "_Unused"), "int64": ("default_int64", -1), "float32": ("default_float", -0.0)}


@dataclass(frozen=True)
class LookupTable:
    """The table of a LabelEncoder."""

    values: dict[Any, Any]
    missing: Any
    """The value of an element that is not a key."""
    dtype: str
    """The dtype of the values."""


def table_of(c: InferenceContext) -> LookupTable:
    """Return the table of a LabelEncoder node. Its keys and values are attributes that hold numbers, strings or a tensor."""
    (keys, _), (values, dtype) = _list(c, "keys"), _list(c, "values")
    if len(keys) != len(values):
        raise c.error(f"expected as many keys as values, got {len(keys)} and {len(values)}")
    default = c.attribute("default_tensor")
    if default is None:
        attribute, constant = DEFAULTS.get(dtype, ("", 0))
        default = c.attribute(attribute, constant)
    return LookupTable(dict(zip(keys, values, strict=True)), _decoded(np.asarray(default).reshape(-1).tolist()[0]), dtype)


def _list(c: InferenceContext, role: str) -> tuple[list[Any], str]:
    """Return the attribute `role`_… as a list, and the dtype of its elements. role: "keys" or "values"."""
    suffix = next((suffix for suffix in (*LIST_DTYPES, "tensor") if c.attribute(f"{role}_{suffix}") is not None), None)
    if suffix is None:
        raise c.error(f"expected a list of {role}, got none")
    items = c.attribute(f"{role}_{suffix}")
    array = items.reshape(-1) if isinstance(items, np.ndarray) else None
    return [_decoded(item) for item in (items if array is None else array.tolist())], LIST_DTYPES[suffix] if array is None else name_of(array.dtype)


def _decoded(item: Any) -> Any:
    return item.decode("utf-8") if isinstance(item, bytes) else item


def encode(table: LookupTable, x: np.ndarray) -> np.ndarray:
    """Return the table's value for every element of x; NaN matches a NaN key."""
    nan_value = next((value for key, value in table.values.items() if key != key), table.missing)
    values = [nan_value if key != key else table.values.get(_decoded(key), table.missing) for key in x.ravel().tolist()]
    return np.array(values, numpy_dtype(table.dtype)).reshape(x.shape)


def evaluate_label_encoder(c: InferenceContext) -> list[np.ndarray]:
    return [encode(table_of(c), c.constant_value(0))]


def lower_label_encoder(c: LoweringContext) -> KernelCall:
    table = table_of(c)
    return KernelCall("python", function=lambda x: [encode(table, x)])


@operator("LabelEncoder", domain=ML_DOMAIN, lower=lower_label_encoder, evaluate=evaluate_label_encoder, differentiable=False)
def label_encoder(c: InferenceContext) -> list[TensorType]:
    """y[i] = the value of key x[i] in the table, or the default value (computed in Python)"""
    return [TensorType(table_of(c).dtype, c.shape(0))]
