"""Numbers that are linear in others, and the operations on them that are nodes of their own: int64, which says when it does not hold a result."""
from libc.stdint cimport int64_t

cdef extern from "overflow.h" nogil:
    bint multiply_overflows(int64_t a, int64_t b, int64_t *result)
    bint add_overflows(int64_t a, int64_t b, int64_t *result)

cdef enum:
    SYMBOL
    SUM
    PRODUCT
    QUOTIENT
    REMAINDER
    SMALLER
    LARGER

cdef struct Linear:                       # coefficient * nodes[node] + offset
    int64_t coefficient
    int64_t offset
    Py_ssize_t node


cdef inline int64_t floor_quotient(int64_t a, int64_t b) noexcept nogil:
    """As Python divides; b is neither 0 nor -1."""
    cdef int64_t quotient = a // b        # C's: towards zero
    return quotient - 1 if a % b != 0 and (a < 0) != (b < 0) else quotient


cdef inline bint linear(const Linear *term, const int64_t *values, int64_t *result) noexcept nogil:
    """coefficient * value + offset; False where no int64 holds it."""
    return not multiply_overflows(term.coefficient, values[term.node], result) and not add_overflows(result[0], term.offset, result)


cdef inline bint operate(int operation, int64_t left, int64_t right, int64_t *result) noexcept nogil:
    """The value of a node; False where no int64 holds it."""
    if operation == SUM:
        return not add_overflows(left, right, result)
    if operation == PRODUCT:
        return not multiply_overflows(left, right, result)
    if operation == SMALLER or operation == LARGER:
        result[0] = left if (left < right) == (operation == SMALLER) else right
        return True
    if right == 0 or right == -1:
        return False
    result[0] = floor_quotient(left, right)
    if operation == REMAINDER:
        result[0] = left - result[0] * right
    return True
