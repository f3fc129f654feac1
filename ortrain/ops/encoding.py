"""Operators that give names numbers: ai.onnx.ml LabelEncoder."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ortrain.dtypes import name_of, numpy_dtype
from ortrain.ir import TensorType
from ortrain.ops.registry.record import InferenceContext, KernelCall, LoweringContext, operator

MACHINE_LEARNING = "ai.onnx.ml"
DTYPES = {"strings": "string", "int64s": "int64", "floats": "float32"}
DEFAULTS: dict[str, tuple[str, Any]] = {"string": ("default_string", "_Unused"), "int64": ("default_int64", -1), "float32": ("default_float", -0.0)}


@dataclass(frozen=True)
class Table:
    """What a LabelEncoder's attributes say."""

    values: dict[Any, Any]
    missing: Any
    """The value of what is no key."""
    dtype: str


def table_of(c: InferenceContext) -> Table:
    """The table of a LabelEncoder, whose lists are attributes of numbers, of text, or tensors."""
    (keys, _), (values, dtype) = _list(c, "keys"), _list(c, "values")
    if len(keys) != len(values):
        raise c.error(f"expected as many keys as values, got {len(keys)} and {len(values)}")
    default = c.attribute("default_tensor")
    if default is None:
        attribute, constant = DEFAULTS.get(dtype, ("", 0))
        default = c.attribute(attribute, constant)
    return Table(dict(zip(keys, values, strict=True)), _plain(np.asarray(default).reshape(-1).tolist()[0]), dtype)


def _list(c: InferenceContext, role: str) -> tuple[list[Any], str]:
    """The keys or values, and their dtype."""
    kind = next((kind for kind in (*DTYPES, "tensor") if c.attribute(f"{role}_{kind}") is not None), None)
    if kind is None:
        raise c.error(f"expected a list of {role}, got none")
    items = c.attribute(f"{role}_{kind}")
    array = items.reshape(-1) if isinstance(items, np.ndarray) else None
    return [_plain(item) for item in (items if array is None else array.tolist())], DTYPES[kind] if array is None else name_of(array.dtype)


def _plain(item: Any) -> Any:
    return item.decode("utf-8") if isinstance(item, bytes) else item


def encode(table: Table, x: np.ndarray) -> np.ndarray:
    """Every element looked up; a NaN among the keys finds a NaN."""
    nan = next((value for key, value in table.values.items() if key != key), table.missing)
    found = [nan if key != key else table.values.get(_plain(key), table.missing) for key in x.ravel().tolist()]
    return np.array(found, numpy_dtype(table.dtype)).reshape(x.shape)


def evaluate_label_encoder(c: InferenceContext) -> list[np.ndarray]:
    return [encode(table_of(c), c.known(0))]


def lower_label_encoder(c: LoweringContext) -> KernelCall:
    table = table_of(c)
    return KernelCall("python", function=lambda x: [encode(table, x)])


@operator("LabelEncoder", domain=MACHINE_LEARNING, lower=lower_label_encoder, evaluate=evaluate_label_encoder, differentiable=False)
def label_encoder(c: InferenceContext) -> list[TensorType]:
    """The value of each key, or the default (a step in Python: dictionaries are what it is about)"""
    return [TensorType(table_of(c).dtype, c.shape(0))]
