"""Places in the arena, for other compiled modules."""
from libc.stdint cimport int64_t

cdef struct Piece:                        # memory in use from step `first` to step `last`, both included
    int64_t size                          # bytes, as asked for
    Py_ssize_t first
    Py_ssize_t last
    Py_ssize_t kept                       # whether it lies at the beginning, before all others
    int64_t offset

cpdef int64_t aligned(int64_t size) noexcept nogil
cdef int64_t place(Piece *pieces, Py_ssize_t count) noexcept nogil
