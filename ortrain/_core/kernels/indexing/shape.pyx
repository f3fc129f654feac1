"""Kernels that copy or generate elements: strided copies (Transpose, Expand, Tile, Slice, Pad), constants and ranges."""
from libc.stdint cimport int32_t, int64_t, uint8_t
from ortrain._core.kernel cimport (DTYPE_BOOL, DTYPE_FLOAT32, DTYPE_FLOAT64, DTYPE_INT32, DTYPE_INT64, Engine, KernelArgs,
                                   STATUS_OK, Tensor)

cdef extern from "common/memory.h" nogil:
    int64_t element_size(int32_t dtype)
    void fill_block(const Engine *engine, void *to, const void *value, int64_t size, int64_t count)
    void zero_block(const Engine *engine, void *to, int64_t bytes)

cdef extern from "indexing/transposes.h" nogil:
    void transpose_plane(void *to, const void *from_, int64_t size, int64_t m, int64_t n, int64_t to_m, int64_t from_n)

cdef extern from "indexing/strided_copies.h" nogil:
    void copy_strided(const Engine *engine, void *to, const void *from_, int64_t size, const int64_t *ints)

cdef extern from "indexing/padding.h" nogil:
    void pad_tensor(const Engine *engine, char *y, const char *x, int64_t size, const int64_t *ints, const void *value)
    int pad_grad(const KernelArgs *a)


cdef int strided_copy(const KernelArgs *a) noexcept nogil:
    """y[to + i * to_strides] = x[from + i * from_strides] for each index i of a box that covers y; ints as in indexing/strided_copies.h."""
    copy_strided(a.engine, a.outputs[0].data, a.inputs[0].data, element_size(a.inputs[0].dtype), a.ints)
    return STATUS_OK


cdef int strided_copies(const KernelArgs *a) noexcept nogil:
    """Copy a box of each input to a box of y, as strided_copy does; ints: number of inputs, then the ints of each copy. The boxes cover y."""
    cdef const int64_t *ints = a.ints + 1
    cdef int64_t k, size = element_size(a.outputs[0].dtype)
    for k in range(a.ints[0]):
        copy_strided(a.engine, a.outputs[0].data, a.inputs[k].data, size, ints)
        ints += 3 + 3 * ints[0]
    return STATUS_OK


cdef int strided_place(const KernelArgs *a) noexcept nogil:
    """y = zeros, with x copied to a strided box as in strided_copy."""
    cdef int64_t size = element_size(a.inputs[0].dtype)
    zero_block(a.engine, a.outputs[0].data, a.outputs[0].count * size)
    copy_strided(a.engine, a.outputs[0].data, a.inputs[0].data, size, a.ints)
    return STATUS_OK


cdef void store(void *data, int32_t dtype, int64_t index, int64_t integer, double number) noexcept nogil:
    """data[index] = number, or integer for an integer dtype."""
    if dtype == DTYPE_FLOAT32:
        (<float *>data)[index] = <float>number
    elif dtype == DTYPE_FLOAT64:
        (<double *>data)[index] = number
    elif dtype == DTYPE_INT64:
        (<int64_t *>data)[index] = integer
    elif dtype == DTYPE_INT32:
        (<int32_t *>data)[index] = <int32_t>integer
    elif dtype == DTYPE_BOOL:
        (<uint8_t *>data)[index] = 1 if integer else 0
    else:
        (<uint8_t *>data)[index] = <uint8_t>integer


cdef int pad(const KernelArgs *a) noexcept nogil:
    """y = x padded as indexing/padding.h says; the constant is the scalar of input 2, or floats[0] if it is absent."""
    cdef int64_t size = element_size(a.inputs[0].dtype)
    cdef double element = 0
    cdef void *value = &element
    if a.n_inputs > 2 and a.inputs[2].data != NULL:
        value = a.inputs[2].data
    else:
        store(&element, a.inputs[0].dtype, 0, 0, a.floats[0])
    pad_tensor(a.engine, <char *>a.outputs[0].data, <const char *>a.inputs[0].data, size, a.ints, value)
    return STATUS_OK


cdef int place(const KernelArgs *a) noexcept nogil:
    """y = zeros around x, as indexing/padding.h says."""
    cdef double zero = 0
    pad_tensor(a.engine, <char *>a.outputs[0].data, <const char *>a.inputs[0].data, element_size(a.inputs[0].dtype), a.ints, &zero)
    return STATUS_OK


cdef int write_constant(const KernelArgs *a) noexcept nogil:
    """outputs = the elements in floats or ints (by the dtype of each output), consecutively."""
    cdef int64_t i, at = 0
    cdef int32_t k
    cdef Tensor *y
    for k in range(a.n_outputs):
        y = &a.outputs[k]
        if y.data == NULL:
            continue
        for i in range(y.count):
            if y.dtype == DTYPE_FLOAT32 or y.dtype == DTYPE_FLOAT64:
                store(y.data, y.dtype, i, 0, a.floats[at])
            else:
                store(y.data, y.dtype, i, a.ints[at], 0)
            at += 1
    return STATUS_OK


cdef int fill_constant(const KernelArgs *a) noexcept nogil:
    """y = one element, in floats or ints by the dtype of y."""
    cdef double element = 0
    cdef Tensor *y = &a.outputs[0]
    if y.dtype == DTYPE_FLOAT32 or y.dtype == DTYPE_FLOAT64:
        store(&element, y.dtype, 0, 0, a.floats[0])
    else:
        store(&element, y.dtype, 0, a.ints[0], 0)
    fill_block(a.engine, y.data, &element, element_size(y.dtype), y.count)
    return STATUS_OK


cdef int range_values(const KernelArgs *a) noexcept nogil:
    """(start, limit, delta) -> y [n] = start + i * delta."""
    cdef int64_t i
    cdef Tensor *y = &a.outputs[0]
    cdef void *start = a.inputs[0].data
    cdef void *delta = a.inputs[2].data
    for i in range(y.count):
        if y.dtype == DTYPE_FLOAT32:
            (<float *>y.data)[i] = (<float *>start)[0] + <float>i * (<float *>delta)[0]
        elif y.dtype == DTYPE_FLOAT64:
            (<double *>y.data)[i] = (<double *>start)[0] + <double>i * (<double *>delta)[0]
        elif y.dtype == DTYPE_INT64:
            (<int64_t *>y.data)[i] = (<int64_t *>start)[0] + i * (<int64_t *>delta)[0]
        else:
            (<int32_t *>y.data)[i] = (<int32_t *>start)[0] + <int32_t>i * (<int32_t *>delta)[0]
    return STATUS_OK


ALL = ("float32", "float64", "int32", "int64", "bool", "uint8", "int8")
# name -> (address, dtypes of input 0)
KERNELS = {
    "strided_copy": (<size_t>&strided_copy, ALL),
    "strided_copies": (<size_t>&strided_copies, ALL),
    "strided_place": (<size_t>&strided_place, ALL),
    "pad": (<size_t>&pad, ALL),
    "place": (<size_t>&place, ALL),
    "pad_grad": (<size_t>&pad_grad, ("float32", "float64")),
    "write_constant": (<size_t>&write_constant, ALL),
    "fill_constant": (<size_t>&fill_constant, ALL),
    "range_values": (<size_t>&range_values, ("float32", "float64", "int32", "int64")),
}
# The address of what ortrain._core.engine offers to kernels as Engine.transpose.
TRANSPOSE = <size_t>&transpose_plane
