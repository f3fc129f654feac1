"""C interface of program templates."""
from libc.stdint cimport int64_t
from ortrain._core.program cimport Program
from ortrain._core.symbolic cimport SymbolicSizes
from ortrain._core.size_expressions cimport AffineExpr

cdef struct Patch:                        # an int64 in a program's memory that depends on symbols
    Py_ssize_t offset                     # in bytes
    AffineExpr expr


cdef class ProgramTemplate:
    cdef SymbolicSizes sizes
    cdef Program base_program             # the program that was planned, from which others are copied
    cdef Patch *patches
    cdef Py_ssize_t n_patches
    cdef int *symbol_of_axis              # per axis of every input: its symbol, -1 for a fixed size
    cdef int64_t *values                  # the symbols of the inputs that were matched last, then the values of all nodes
    cdef dict programs                    # values of the symbols -> Program, the least recently used first
    cdef object plan_at
    cdef list templates                   # all templates of the model, the most recently used one last

    cpdef Program find(self, tuple values, bint check_memory=*)
    cdef object match_symbols(self, tuple values)
    cdef Program specialize(self, tuple symbol_values, bint check_memory)


cpdef Program find_program(list templates, tuple values)
cdef bint fits_arena(Program program)
cdef Program find_ready_program(Program program, tuple values)
