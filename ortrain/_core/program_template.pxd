"""Families of programs as other compiled modules see them."""
from libc.stdint cimport int64_t
from ortrain._core.program cimport Program
from ortrain._core.symbolic cimport SymbolicSizes
from ortrain._core.size_expressions cimport Linear

cdef struct Patch:                        # a number in a program's memory that follows from symbols
    Py_ssize_t where                      # in bytes
    Linear term


cdef class ProgramTemplate:
    cdef SymbolicSizes sizes
    cdef Program first
    cdef Patch *patches
    cdef Py_ssize_t n_patches
    cdef int *symbol_of                   # per axis of every input: its symbol, -1 for a size that stays
    cdef int64_t *numbers                 # the symbols of the inputs in hand; behind them all nodes
    cdef dict programs                    # by symbols, the least recently used first
    cdef object plan_for
    cdef list templates                         # the families of the same model, the one that was used last at the end

    cpdef Program find(self, tuple values, bint sparing=*)
    cdef object read(self, tuple values)
    cdef Program derived(self, tuple symbols, bint sparing)


cpdef Program related(list templates, tuple values)
cdef bint fits(Program program)
cdef Program relative(Program program, tuple values)
