"""Affine expressions of symbolic sizes and the operations between them, in int64 with overflow checks."""
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
    MINIMUM
    MAXIMUM

cdef struct AffineExpr:                   # coefficient * nodes[node] + offset
    int64_t coefficient
    int64_t offset
    Py_ssize_t node


cdef inline int64_t floor_divide(int64_t a, int64_t b) noexcept nogil:
    """Return a // b rounded towards negative infinity, as Python does; b is neither 0 nor -1."""
    cdef int64_t quotient = a // b        # C rounds towards zero
    return quotient - 1 if a % b != 0 and (a < 0) != (b < 0) else quotient


cdef inline bint evaluate_affine(const AffineExpr *expr, const int64_t *values, int64_t *result) noexcept nogil:
    """Store coefficient * values[node] + offset in result; return False if it overflows int64."""
    return not multiply_overflows(expr.coefficient, values[expr.node], result) and not add_overflows(result[0], expr.offset, result)


cdef inline bint apply_operation(int operation, int64_t left, int64_t right, int64_t *result) noexcept nogil:
    """Store the result of an operation on two values in result; return False on int64 overflow and for divisors 0 and -1."""
    if operation == SUM:
        return not add_overflows(left, right, result)
    if operation == PRODUCT:
        return not multiply_overflows(left, right, result)
    if operation == MINIMUM or operation == MAXIMUM:
        result[0] = left if (left < right) == (operation == MINIMUM) else right
        return True
    if right == 0 or right == -1:
        return False
    result[0] = floor_divide(left, right)
    if operation == REMAINDER:
        result[0] = left - result[0] * right
    return True
