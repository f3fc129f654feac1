"""C interface of optimizer updates."""
from libc.stdint cimport int64_t
cimport numpy as cnp
from ortrain._core.engine cimport EngineHandle
from ortrain._core.kernel cimport Kernel, KernelArgs, Tensor

cdef class BoundKernel:
    cdef EngineHandle handle
    cdef KernelArgs args
    cdef Tensor tensors[8]
    cdef double floats[8]
    cdef int64_t ints[4]
    cdef Kernel function
    cdef list arrays
    cdef object scratch

    cdef void call(self) noexcept nogil
    cdef int execute(self) except -1

cdef class Progress:
    cdef readonly cnp.ndarray rows
    cdef readonly cnp.ndarray scales

    cdef void set(self, double rate, double step) noexcept

cdef class OptimizerUpdate:
    cdef list calls
    cdef Progress progress

    cpdef int run(self, double rate, double step) except -1
