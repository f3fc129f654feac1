"""Tensors as NumPy arrays: NumPy type numbers of dtypes, and views and copies of tensors."""
from libc.stdint cimport int32_t
cimport numpy as cnp
from ortrain._core.kernel cimport Tensor

from ortrain.dtypes import EXTENSIONS, NAMES, NUMBERS, numpy_dtype

cnp.import_array()

cdef extern from *:
    """
    #include <stdlib.h>                 /* defines __GLIBC__ where the C library is glibc */
    #ifdef __GLIBC__
    #include <malloc.h>
    static void return_free_memory(void) { malloc_trim(0); }
    #else
    static void return_free_memory(void) {}
    #endif
    """
    void return_free_memory() nogil


def release_free_memory():
    """Return freed heap memory to the system, where the C library keeps it (glibc): after reading a model of 430 MB it holds 300 MB in pieces."""
    with nogil:
        return_free_memory()


# NumPy type number of the dtypes of ml_dtypes, by ONNX dtype: NumPy assigns them when ml_dtypes is imported
cdef int[32] extension_types


def register_extension_dtype(str dtype):
    """Store the NumPy type number of a dtype of ml_dtypes; required before tensors of this dtype are created. Other dtypes need nothing."""
    if dtype in EXTENSIONS:
        extension_types[NUMBERS[dtype]] = numpy_dtype(dtype).num


cdef int numpy_type_number(int32_t dtype) except -1:
    """Return the NumPy type number of an ONNX dtype. Raises ValueError for a dtype without one."""
    # a chain of comparisons instead of a dict: this runs for every output of every step
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


cdef bint is_same_dtype(int numpy_type, int32_t dtype) noexcept:
    """Return True if a NumPy type number stands for an ONNX dtype."""
    if dtype == 1:
        return numpy_type == cnp.NPY_FLOAT32
    if dtype == 7:          # NumPy has distinct type numbers for C types of equal size (int64: long and long long)
        return numpy_type == cnp.NPY_LONGLONG or sizeof(long) == 8 and numpy_type == cnp.NPY_LONG
    if dtype == 11:
        return numpy_type == cnp.NPY_FLOAT64
    if dtype == 6:
        return numpy_type == cnp.NPY_INT or sizeof(long) == 4 and numpy_type == cnp.NPY_LONG
    if dtype == 9:
        return numpy_type == cnp.NPY_BOOL
    if dtype == 2:
        return numpy_type == cnp.NPY_UINT8
    if dtype == 3:
        return numpy_type == cnp.NPY_INT8
    return numpy_type_number(dtype) == numpy_type


cdef Py_ssize_t tensor_bytes(const Tensor *t) except -1:
    """Return the bytes of the elements of a tensor."""
    return t.count * cnp.PyArray_DescrFromType(numpy_type_number(t.dtype)).itemsize


cdef object array_view(const Tensor *t):
    """Return a view of a tensor as an array."""
    cdef cnp.npy_intp dims[8]
    cdef int d
    for d in range(t.rank):
        dims[d] = t.dims[d]
    return cnp.PyArray_SimpleNewFromData(t.rank, dims, numpy_type_number(t.dtype), t.data)


cdef object array_copy(const Tensor *t):
    """Return a copy of a tensor as an array, None if it is absent; a Python function may keep it while the arena is reused."""
    return None if t.data == NULL else array_view(t).copy()
