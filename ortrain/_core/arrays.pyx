"""Tensors as NumPy arrays: what NumPy calls each dtype, and arrays over a tensor's memory."""
from libc.stdint cimport int32_t
cimport numpy as cnp
from ortrain._core.kernel cimport Tensor

from ortrain.dtypes import EXTENSIONS, NAMES, NUMBERS, numpy_dtype

cnp.import_array()

# NumPy's numbers of the types that it has through ml_dtypes, by ONNX's numbers: they are given out when that package is imported
cdef int[32] extension_types


def know_extension(str dtype):
    """Looks up NumPy's number of a dtype that it has through ml_dtypes, before a tensor of it is made."""
    if dtype in EXTENSIONS:
        extension_types[NUMBERS[dtype]] = numpy_dtype(dtype).num


cdef int numpy_type_of(int32_t dtype) except -1:
    # a chain, not a dict: this runs for every output of every step
    if dtype == 1:
        return cnp.NPY_FLOAT32
    if dtype == 7:
        return cnp.NPY_INT64
    if dtype == 11:
        return cnp.NPY_FLOAT64
    if dtype == 6:
        return cnp.NPY_INT32
    if dtype == 9:
        return cnp.NPY_BOOL
    if dtype == 2:
        return cnp.NPY_UINT8
    if dtype == 3:
        return cnp.NPY_INT8
    if dtype == 4:
        return cnp.NPY_UINT16
    if dtype == 5:
        return cnp.NPY_INT16
    if dtype == 10:
        return cnp.NPY_FLOAT16
    if dtype == 12:
        return cnp.NPY_UINT32
    if dtype == 13:
        return cnp.NPY_UINT64
    if dtype == 14:
        return cnp.NPY_COMPLEX64
    if dtype == 15:
        return cnp.NPY_COMPLEX128
    if 16 <= dtype < 32 and extension_types[dtype]:
        return extension_types[dtype]
    raise ValueError(f"expected a dtype that programs have, got {NAMES.get(dtype, dtype)}")


cdef bint same_dtype(int numpy_type, int32_t dtype) noexcept:
    """Whether a NumPy type is that of a dtype."""
    if dtype == 1:
        return numpy_type == cnp.NPY_FLOAT32
    if dtype == 7:          # a C type has one number and another C type of its size has another, whatever their dtype says
        return numpy_type == cnp.NPY_INT64 or numpy_type == cnp.NPY_LONGLONG
    if dtype == 11:
        return numpy_type == cnp.NPY_FLOAT64
    if dtype == 6:
        return numpy_type == cnp.NPY_INT32 or numpy_type == cnp.NPY_INT or sizeof(long) == 4 and numpy_type == cnp.NPY_LONG
    if dtype == 9:
        return numpy_type == cnp.NPY_BOOL
    if dtype == 2:
        return numpy_type == cnp.NPY_UINT8
    if dtype == 3:
        return numpy_type == cnp.NPY_INT8
    return numpy_type_of(dtype) == numpy_type


cdef object array_over(const Tensor *t):
    """The tensor's own memory as an array."""
    cdef cnp.npy_intp dims[8]
    cdef int d
    for d in range(t.rank):
        dims[d] = t.dims[d]
    return cnp.PyArray_SimpleNewFromData(t.rank, dims, numpy_type_of(t.dtype), t.data)


cdef object array_at(const Tensor *t):
    """A copy of a tensor as an array, None when it is absent: a callable may keep what it is given, the arena moves on."""
    return None if t.data == NULL else array_over(t).copy()
