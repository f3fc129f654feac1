"""C interface of the built-in kernels."""
from ortrain._core.kernel cimport KernelArgs

# a status in addition to those of kernel.h
cdef enum:
    STATUS_PYTHON_FAILED = 101

cdef int no_op(const KernelArgs *a) noexcept nogil


cdef class PythonStep:
    cdef object function
    cdef public object error

    cdef void run(self, const KernelArgs *a) except *
