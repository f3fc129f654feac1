"""The tensor element types: ONNX numbers, NumPy names, and which of them carry gradients."""

import functools

import numpy as np

# ONNX TensorProto.DataType -> NumPy name
NAMES: dict[int, str] = {
    1: "float32", 2: "uint8", 3: "int8", 4: "uint16", 5: "int16", 6: "int32", 7: "int64", 8: "string", 9: "bool",
    10: "float16", 11: "float64", 12: "uint32", 13: "uint64", 14: "complex64", 15: "complex128", 16: "bfloat16",
    17: "float8_e4m3fn", 18: "float8_e4m3fnuz", 19: "float8_e5m2", 20: "float8_e5m2fnuz", 21: "uint4", 22: "int4", 23: "float4_e2m1fn",
    24: "float8_e8m0fnu", 25: "uint2", 26: "int2",
}
NUMBERS: dict[str, int] = {name: number for number, name in NAMES.items()}

EXTENSIONS = frozenset(name for number, name in NAMES.items() if number >= NUMBERS["bfloat16"])
"""The dtypes that NumPy supports through ml_dtypes, which onnx 1.19 and newer install."""

DIFFERENTIABLE = frozenset({"float32", "float64"})
"""The dtypes through which gradients flow."""

HALVES = frozenset({"float16", "bfloat16"})
"""The 16-bit floats, which programs compute as float32."""

FLOATS = DIFFERENTIABLE | HALVES

BFLOAT16 = "bfloat16"

SMALL_INTEGERS = frozenset({"int8", "uint8", "int4", "uint4", "int2", "uint2"})
"""The dtypes of quantized weights."""


def numpy_dtype(name: str) -> np.dtype:
    """Return the NumPy dtype of a dtype name ("string" is object). Raises TypeError for one of EXTENSIONS where ml_dtypes does not have it."""
    if name in EXTENSIONS:
        try:
            import ml_dtypes

            found: np.dtype = np.dtype(getattr(ml_dtypes, name))
        except (ImportError, AttributeError) as error:
            raise TypeError(f"expected the package ml_dtypes with {name}, which onnx 1.19 and newer install: {error}") from error
        return found
    return np.dtype(object) if name == "string" else np.dtype(name)


def itemsize(name: str) -> int:
    """Return the bytes of an element of a dtype name. That of bfloat16 is known without ml_dtypes, as programs keep activations in it that no user sees."""
    return 2 if name == BFLOAT16 else numpy_dtype(name).itemsize


@functools.cache
def name_of(dtype: np.dtype) -> str:
    """Return the dtype name of a NumPy dtype. Cached, since NumPy builds the name at every call."""
    return "string" if dtype.kind in "OUS" else dtype.name
