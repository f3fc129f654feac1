"""The tensor element types: ONNX numbers, NumPy names, and which of them carry gradients."""

import numpy as np

# ONNX TensorProto.DataType -> NumPy name
NAMES: dict[int, str] = {
    1: "float32", 2: "uint8", 3: "int8", 4: "uint16", 5: "int16", 6: "int32", 7: "int64", 8: "string", 9: "bool",
    10: "float16", 11: "float64", 12: "uint32", 13: "uint64", 14: "complex64", 15: "complex128", 16: "bfloat16",
}
NUMBERS: dict[str, int] = {name: number for number, name in NAMES.items()}

DIFFERENTIABLE = frozenset({"float32", "float64"})
"""The dtypes through which gradients flow."""


def numpy_dtype(name: str) -> np.dtype:
    """The NumPy dtype of a dtype name ("string" is object)."""
    return np.dtype(object) if name == "string" else np.dtype(name)


def name_of(dtype: np.dtype) -> str:
    """The dtype name of a NumPy dtype."""
    return "string" if dtype.kind in "OUS" else dtype.name
