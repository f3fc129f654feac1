"""Tensors as NumPy arrays."""
from libc.stdint cimport int32_t
from ortrain._core.kernel cimport Tensor

cdef int numpy_type_of(int32_t dtype) except -1
cdef bint same_dtype(int numpy_type, int32_t dtype) noexcept
cdef object array_over(const Tensor *t)
cdef object array_at(const Tensor *t)
