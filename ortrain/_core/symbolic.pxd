"""C interface of symbolic sizes: a program builder records where they occur in a program."""
from libc.stdint cimport int64_t
from ortrain._core.size_expressions cimport AffineExpr

cdef struct Interval:
    int64_t low
    int64_t high


cdef struct Node:                         # a symbol, or the result of an operation on two affine expressions
    int operation
    AffineExpr left
    AffineExpr right
    Interval bounds                       # values with which all recorded decisions keep their outcome
    Interval memory_bounds                # the same for decisions that affect only memory use


cdef struct ExcludedValue:                # a value with which a comparison for equality has another outcome
    Py_ssize_t node
    int64_t value


cdef class SymbolicSizes:
    cdef Node *nodes
    cdef ExcludedValue *excluded
    cdef int64_t *values                  # hints of the nodes: their values for the sizes that the plan is made with
    cdef int64_t *probes                  # values of the nodes for other, fixed values of the symbols, which tell identities from coincidences
    cdef readonly Py_ssize_t n_symbols, n_nodes, n_excluded
    cdef Py_ssize_t node_capacity, excluded_capacity
    cdef dict node_of_key                 # (operation, both operands) -> node: equal expressions share a node
    cdef set excluded_keys                # (node, value) of all excluded values
    cdef readonly bint is_disabled        # holds_for() is False for all sizes
    cdef bint is_frozen                   # planning is over: later decisions are not recorded
    cdef bint is_memory_decision          # decisions are recorded in memory_bounds

    cdef Py_ssize_t add_node(self, int operation, AffineExpr left, AffineExpr right, int64_t value) except -1
    cdef int64_t probe_of(self, int operation, AffineExpr *left, AffineExpr *right) noexcept
    cdef object make_int(self, int64_t coefficient, Py_ssize_t node, int64_t offset)
    cdef object narrow(self, Py_ssize_t node, int64_t low, int64_t high)
    cdef object exclude(self, Py_ssize_t node, int64_t value)
    cdef bint evaluate(self, const int64_t *symbols, int64_t *values, bint check_memory) noexcept nogil


cdef class SymbolicInt:
    cdef SymbolicSizes sizes
    cdef AffineExpr expr
    cdef int64_t hint                     # its value for the sizes that the plan is made with


cdef int64_t *evaluate_nodes(SymbolicSizes sizes, tuple symbol_values, bint check_memory) except? NULL
