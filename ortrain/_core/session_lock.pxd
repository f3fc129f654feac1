"""C interface of the session lock."""
from cpython.pythread cimport PyThread_type_lock
from ortrain._core.engine cimport EngineHandle

cdef class Lock:
    cdef unsigned long owner
    cdef Py_ssize_t depth, n_waiting
    cdef bint is_gate_locked
    cdef PyThread_type_lock gate
    cdef EngineHandle handle
    cdef object __weakref__

    cdef bint try_acquire(self) noexcept
    cdef void release(self) noexcept
