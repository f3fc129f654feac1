"""Operators that give names numbers: ai.onnx.ml LabelEncoder."""

from __future__ import annotations

from typing import Any

import numpy as np

from ortrain.ir import TensorType
from ortrain.ops.record import InferenceContext, KernelCall, LoweringContext, operator

MACHINE_LEARNING = "ai.onnx.ml"
DTYPES = {"strings": "string", "int64s": "int64", "floats": "float32"}
DEFAULTS: dict[str, tuple[str, Any]] = {"strings": ("default_string", "_Unused"), "int64s": ("default_int64", -1), "floats": ("default_float", -0.0)}


def table_of(c: InferenceContext) -> tuple[dict[Any, Any], str]:
    """(key -> value, kind of the values) of a LabelEncoder's attributes."""
    found = {role: next((kind for kind in DTYPES if c.attribute(f"{role}_{kind}") is not None), None) for role in ("keys", "values")}
    keys, values = found["keys"], found["values"]
    if keys is None or values is None:
        raise c.error("expected one list of keys and one of values")
    lists = [c.attribute(f"{role}_{kind}") for role, kind in (("keys", keys), ("values", values))]
    if len(lists[0]) != len(lists[1]):
        raise c.error(f"expected as many keys as values, got {len(lists[0])} and {len(lists[1])}")
    return dict(zip(*(map(_plain, items) for items in lists), strict=True)), values


def _plain(item: Any) -> Any:
    return item.decode("utf-8") if isinstance(item, bytes) else item


def encode(table: dict[Any, Any], default: Any, dtype: str, x: np.ndarray) -> np.ndarray:
    """Every element looked up; a NaN among the keys finds a NaN."""
    nan = next((value for key, value in table.items() if key != key), default)
    found = [nan if key != key else table.get(_plain(key), default) for key in x.ravel().tolist()]
    return np.array(found, object if dtype == "string" else dtype).reshape(x.shape)


def evaluate_label_encoder(c: InferenceContext) -> list[np.ndarray]:
    table, values = table_of(c)
    attribute, default = DEFAULTS[values]
    return [encode(table, _plain(c.attribute(attribute, default)), DTYPES[values], c.known(0))]


def lower_label_encoder(c: LoweringContext) -> KernelCall:
    table, values = table_of(c)
    attribute, default = DEFAULTS[values]
    missing, dtype = _plain(c.attribute(attribute, default)), DTYPES[values]
    return KernelCall("python", function=lambda x: [encode(table, missing, dtype, x)])


@operator("LabelEncoder", domain=MACHINE_LEARNING, lower=lower_label_encoder, evaluate=evaluate_label_encoder, differentiable=False)
def label_encoder(c: InferenceContext) -> list[TensorType]:
    """The value of each key, or the default (a step in Python: dictionaries are what it is about)"""
    return [TensorType(DTYPES[table_of(c)[1]], c.shape(0))]
