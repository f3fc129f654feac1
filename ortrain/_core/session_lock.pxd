"""C interface of the session lock."""
from cpython.pythread cimport PyThread_type_lock
from ortrain._core.engine cimport EngineHandle

cdef class Lock:
    cdef Py_ssize_t owner, n_waiting, depth
    cdef PyThread_type_lock gate
    cdef EngineHandle handle
    cdef object __weakref__

    cdef int close_new_gate(self) except -1
    cdef bint is_owner(self) noexcept
    cdef bint take(self) noexcept
    cdef bint try_acquire(self) noexcept
    cdef void release(self) noexcept
    cdef void wait(self) noexcept
