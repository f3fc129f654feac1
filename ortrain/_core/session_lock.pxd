from cpython.pythread cimport PyThread_type_lock
from ortrain._core.engine cimport EngineHandle

cdef class Lock:
    cdef unsigned long owner
    cdef Py_ssize_t depth, waiting
    cdef bint is_shut
    cdef PyThread_type_lock gate
    cdef EngineHandle handle
    cdef object __weakref__

    cdef bint take_if_free(self) noexcept
    cdef void leave(self) noexcept
