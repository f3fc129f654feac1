"""Symbolic sizes as other compiled modules see them: a program takes down where they stand in it."""
from libc.stdint cimport int64_t
from ortrain._core.size_expressions cimport Linear

cdef struct Limits:
    int64_t low
    int64_t high


cdef struct Node:                         # what an operation on two linear terms gives; a symbol has none
    int operation
    Linear left
    Linear right
    Limits decided                        # what its value has to be for all that was decided to be decided again
    Limits spared                         # and for what decides about memory alone


cdef struct Hole:                         # a value that a node must not have
    Py_ssize_t node
    int64_t value


cdef class SymbolicSizes:
    cdef Node *nodes
    cdef Hole *holes
    cdef int64_t *values                  # of the nodes, for the sizes in hand
    cdef readonly Py_ssize_t n_symbols, n_nodes, n_holes
    cdef Py_ssize_t node_room, hole_room
    cdef dict known, excluded
    cdef readonly bint failed
    cdef bint sealed                      # what is decided from now on is no part of the plan
    cdef bint spares_only                 # what is decided now is about memory alone

    cdef Py_ssize_t add_node(self, int operation, Linear left, Linear right, int64_t value) except -1
    cdef object made(self, int64_t coefficient, Py_ssize_t node, int64_t offset)
    cdef object bound(self, Py_ssize_t node, int64_t low, int64_t high)
    cdef object exclude(self, Py_ssize_t node, int64_t value)
    cdef bint evaluate(self, const int64_t *symbols, int64_t *values, bint sparing) noexcept nogil


cdef class SymbolicInt:
    cdef SymbolicSizes sizes
    cdef Linear term
    cdef int64_t number                   # its value for the sizes in hand


cdef int64_t *evaluated(SymbolicSizes sizes, tuple numbers, bint sparing) except? NULL
