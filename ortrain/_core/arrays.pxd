"""C interface of the conversions between tensors and NumPy arrays."""
from libc.stdint cimport int32_t
from ortrain._core.kernel cimport Tensor

cdef int numpy_type_number(int32_t dtype) except -1
cdef bint is_same_dtype(int numpy_type, int32_t dtype) noexcept
cdef Py_ssize_t tensor_bytes(const Tensor *t) except -1
cdef object array_view(const Tensor *t)
cdef object array_copy(const Tensor *t)
