"""C interface of the memory planner."""
from libc.stdint cimport int64_t

cdef struct Block:                        # a piece of the arena, live from step `first` to step `last`, both included
    int64_t size                          # requested bytes, not rounded up
    Py_ssize_t first
    Py_ssize_t last
    Py_ssize_t is_retained                # 1: read by deferred steps of a later call, placed at the beginning of the arena
    int64_t offset                        # in the arena, assigned by the planner

cpdef int64_t aligned(int64_t size) noexcept nogil
cdef int64_t assign_offsets(Block *blocks, Py_ssize_t count) noexcept nogil
