"""Kernels that the planner puts in, for other compiled modules."""
from ortrain._core.kernel cimport KernelArgs

# a status beside those of kernel.h
cdef enum:
    STATUS_PYTHON_FAILED = 101

cdef int skip(const KernelArgs *a) noexcept nogil


cdef class PythonStep:
    cdef object function
    cdef public object error

    cdef void run(self, const KernelArgs *a) except *
