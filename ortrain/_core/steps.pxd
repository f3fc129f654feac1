cimport numpy as cnp
from cpython.pythread cimport PyThread_type_lock
from ortrain._core.engine cimport EngineHandle
from ortrain._core.program cimport Program
from ortrain._core.sweep cimport Sweep

cdef class Lock:
    cdef unsigned long owner
    cdef Py_ssize_t depth, waiting
    cdef bint is_shut
    cdef PyThread_type_lock gate

    cdef bint take_if_free(self) noexcept
    cdef void leave(self) noexcept

cdef class Steps:
    cdef EngineHandle handle
    cdef readonly Lock lock
    cdef object state, masked, refusal, updates
    cdef Program program
    cdef Sweep sweep
    cdef cnp.ndarray reset_flag, progress
    cdef public bint overwrite, gradients_valid
    cdef readonly bint awaits_optimizer  # a train step has updated the parameters, and no optimizer step has followed it
    cdef public double learning_rate

    cpdef bint begin(self) except -1
    cpdef bint end(self)
    cpdef object finished(self, bint overwrote)
    cpdef list train(self, tuple values)
