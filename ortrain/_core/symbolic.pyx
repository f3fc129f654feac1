"""Symbolic sizes: integers computed from the sizes of the inputs.

Planning with them records every decision that depends on a size, so that a plan can be specialized to other sizes for which all decisions keep their
outcome."""
from libc.stdint cimport INT64_MAX, INT64_MIN, int64_t
from libc.stdlib cimport free, malloc, realloc
from cpython.object cimport Py_EQ, Py_GE, Py_GT, Py_LE, Py_LT, Py_NE
from ortrain._core.size_expressions cimport (MAXIMUM, MINIMUM, PRODUCT, QUOTIENT, REMAINDER, SUM, SYMBOL, AffineExpr, add_overflows, apply_operation,
                                             evaluate_affine, floor_divide, multiply_overflows)

cdef extern from "Python.h":
    object PyLong_FromLongLong(long long value)
    long long PyLong_AsLongLongAndOverflow(object value, int *overflow) except? -1
    bint PyLong_Check(object value)

cdef enum:
    MAX_NODES = 1 << 14                  # evaluating more takes as long as running the program
    FIRST_PROBE = 10007                  # a prime that no size of a model is likely to be, nor a product or quotient of two


cdef bint as_int64(object value, int64_t *result) except *:
    """Store an int in result; return False if value is no int or overflows int64."""
    cdef int overflow = 0
    if not PyLong_Check(value):
        return False
    result[0] = PyLong_AsLongLongAndOverflow(value, &overflow)
    return overflow == 0


cdef class SymbolicSizes:
    """The symbols of a plan, the expressions computed from them, and the values for which the plan holds.

    An expression is a node: the sum, product, quotient, remainder, minimum or maximum of two affine expressions of earlier nodes. Every comparison narrows the
    bounds of a node; a conversion to int narrows them to a single value. While no node leaves its bounds, the same planning code takes the same decisions for
    other sizes. Decisions of memory_at_least() have separate bounds: outside of them the plan is still correct, but may use more memory than necessary."""

    def __init__(self, tuple hints):
        """Create one symbol per hint.

        hints: the values of the symbols that the plan is made with. All symbols are at least 1; empty inputs are planned separately."""
        cdef AffineExpr none = AffineExpr(0, 0, 0)
        self.node_of_key, self.excluded_keys = {}, set()
        for hint in hints:
            self.narrow(self.add_node(SYMBOL, none, none, hint), 1, INT64_MAX)
        self.n_symbols = self.n_nodes

    def __dealloc__(self):
        free(self.nodes)
        free(self.excluded)
        free(self.values)
        free(self.probes)

    @property
    def hints(self):
        """The values of the symbols that the plan is made with."""
        return tuple([self.values[i] for i in range(self.n_symbols)])

    def symbol(self, Py_ssize_t index):
        """Return a symbol as a SymbolicInt."""
        if not 0 <= index < self.n_symbols:
            raise IndexError(f"expected a symbol below {self.n_symbols}, got {index}")
        return self.make_int(1, index, 0)

    def bounds(self, Py_ssize_t index, bint check_memory=True):
        """Return (lowest, highest) value of a symbol for which the decisions that depend on it alone keep their outcome.

        check_memory: include the decisions of memory_at_least()."""
        if not 0 <= index < self.n_symbols:
            raise IndexError(f"expected a symbol below {self.n_symbols}, got {index}")
        correctness, memory = self.nodes[index].bounds, self.nodes[index].memory_bounds
        return (max(correctness.low, memory.low), min(correctness.high, memory.high)) if check_memory else (correctness.low, correctness.high)

    def holds_for(self, tuple symbol_values, bint check_memory=True):
        """Return True if all decisions have the same outcome for these values of the symbols.

        check_memory: include the decisions of memory_at_least()."""
        cdef int64_t *values = evaluate_nodes(self, symbol_values, check_memory)
        free(values)
        return values != NULL

    cdef Py_ssize_t add_node(self, int operation, AffineExpr left, AffineExpr right, int64_t value) except -1:
        """Append a node with its hint; return its index."""
        cdef Py_ssize_t capacity
        if self.n_nodes == self.node_capacity:
            capacity = 2 * self.node_capacity + 64
            nodes = <Node *>realloc(self.nodes, capacity * sizeof(Node))
            if nodes == NULL:
                raise MemoryError
            self.nodes = nodes
            values = <int64_t *>realloc(self.values, capacity * sizeof(int64_t))
            if values == NULL:
                raise MemoryError
            self.values = values
            probes = <int64_t *>realloc(self.probes, capacity * sizeof(int64_t))
            if probes == NULL:
                raise MemoryError
            self.probes, self.node_capacity = probes, capacity
        self.nodes[self.n_nodes] = Node(operation, left, right, Interval(INT64_MIN, INT64_MAX), Interval(INT64_MIN, INT64_MAX))
        self.values[self.n_nodes], self.probes[self.n_nodes] = value, self.probe_of(operation, &left, &right)
        self.n_nodes += 1
        if self.n_nodes > MAX_NODES:
            self.is_disabled = True
        return self.n_nodes - 1

    cdef int64_t probe_of(self, int operation, AffineExpr *left, AffineExpr *right) noexcept:
        """Return the probe of the next node; that of a node without an int64 value is as good as any that few others have."""
        cdef int64_t a, b, result = 0
        if operation != SYMBOL and evaluate_affine(left, self.probes, &a) and evaluate_affine(right, self.probes, &b) and apply_operation(operation, a, b, &result):
            return result
        return FIRST_PROBE + 12 * self.n_nodes

    cdef object make_int(self, int64_t coefficient, Py_ssize_t node, int64_t offset):
        """Return coefficient * node + offset: a SymbolicInt, or an int if the coefficient is 0 or the hint overflows int64."""
        cdef SymbolicInt result
        if coefficient == 0:
            return PyLong_FromLongLong(offset)
        result = SymbolicInt.__new__(SymbolicInt)
        result.sizes = self
        result.expr = AffineExpr(coefficient, offset, node)
        if not evaluate_affine(&result.expr, self.values, &result.hint):
            return coefficient * guard_int(self.make_int(1, node, 0)) + offset
        return result

    cdef object narrow(self, Py_ssize_t node, int64_t low, int64_t high):
        """Restrict a node to low..high, both included."""
        cdef Interval *bounds = &self.nodes[node].memory_bounds if self.is_memory_decision else &self.nodes[node].bounds
        if self.is_frozen:
            return
        bounds.low = max(bounds.low, low)
        bounds.high = min(bounds.high, high)

    cdef object exclude(self, Py_ssize_t node, int64_t value):
        """Record a value that a node must not have."""
        key = (node, value)
        if self.is_frozen or key in self.excluded_keys or not self.nodes[node].bounds.low <= value <= self.nodes[node].bounds.high:
            return
        if self.n_excluded == self.excluded_capacity:
            capacity = 2 * self.excluded_capacity + 16
            excluded = <ExcludedValue *>realloc(self.excluded, <size_t>capacity * sizeof(ExcludedValue))
            if excluded == NULL:
                raise MemoryError
            self.excluded, self.excluded_capacity = excluded, capacity
        self.excluded_keys.add(key)
        self.excluded[self.n_excluded] = ExcludedValue(node, value)
        self.n_excluded += 1

    cdef bint evaluate(self, const int64_t *symbols, int64_t *values, bint check_memory) noexcept nogil:
        """Compute all nodes for other values of the symbols; return False if the outcome of a decision changes or int64 overflows."""
        cdef Py_ssize_t i
        cdef int64_t left, right
        cdef Node *node
        if self.is_disabled:
            return False
        for i in range(self.n_nodes):
            node = &self.nodes[i]
            if node.operation == SYMBOL:
                values[i] = symbols[i]
            elif not (evaluate_affine(&node.left, values, &left) and evaluate_affine(&node.right, values, &right)
                      and apply_operation(node.operation, left, right, &values[i])):
                return False
            if values[i] < node.bounds.low or values[i] > node.bounds.high:
                return False
            if check_memory and (values[i] < node.memory_bounds.low or values[i] > node.memory_bounds.high):
                return False
        for i in range(self.n_excluded):
            if values[self.excluded[i].node] == self.excluded[i].value:
                return False
        return True


cdef int64_t *evaluate_nodes(SymbolicSizes sizes, tuple symbol_values, bint check_memory) except? NULL:
    """Return the values of all nodes for these values of the symbols, which the caller frees; NULL if a decision may have another outcome."""
    cdef Py_ssize_t i
    cdef int64_t *values
    if len(symbol_values) != sizes.n_symbols:
        raise ValueError(f"expected {sizes.n_symbols} symbol values, got {len(symbol_values)}")
    converted = [<int64_t>value for value in symbol_values]
    values = <int64_t *>malloc((sizes.n_nodes + 1) * sizeof(int64_t))
    if values == NULL:
        raise MemoryError
    for i in range(sizes.n_symbols):                         # the first nodes are the symbols
        values[i] = converted[i]
    if not sizes.evaluate(values, values, check_memory):
        free(values)
        return NULL
    return values


cdef object guard_int(object value):
    """Return the value as an int; the plan then holds only for sizes that give a SymbolicInt this value."""
    cdef SymbolicInt x
    if not isinstance(value, SymbolicInt):
        return value
    x = <SymbolicInt>value
    x.sizes.narrow(x.expr.node, x.sizes.values[x.expr.node], x.sizes.values[x.expr.node])
    return PyLong_FromLongLong(x.hint)


def size_hint(value):
    """Return the value as an int without restricting the plan to it: only for choices that do not change results."""
    return PyLong_FromLongLong((<SymbolicInt>value).hint) if isinstance(value, SymbolicInt) else value


def memory_at_least(left, right):
    """Return left >= right for a decision that affects only memory use: the plan must be correct with either answer."""
    cdef SymbolicSizes sizes
    for value in (left, right):
        if isinstance(value, SymbolicInt):
            sizes = (<SymbolicInt>value).sizes
            sizes.is_memory_decision = True
            try:
                return left >= right
            finally:
                sizes.is_memory_decision = False
    return left >= right


cdef object combine(int operation, SymbolicInt like, object left, object right):
    """Return the node of an operation on two integers, at least one of them symbolic; None if an operand or the result has no int64 value.

    like: one of the symbolic operands, whose SymbolicSizes receive the node."""
    cdef AffineExpr a, b
    cdef int64_t value, x, y
    cdef SymbolicSizes sizes = like.sizes
    if sizes.is_frozen or not as_affine(sizes, left, &a, &x) or not as_affine(sizes, right, &b, &y) or not apply_operation(operation, x, y, &value):
        return None
    key = (operation, a.coefficient, a.node, a.offset, b.coefficient, b.node, b.offset)
    node = sizes.node_of_key.get(key)
    if node is None:
        node = sizes.node_of_key[key] = sizes.add_node(operation, a, b, value)
    return sizes.make_int(1, node, 0)


cdef bint as_affine(SymbolicSizes sizes, object value, AffineExpr *expr, int64_t *hint) except *:
    """Store an integer as an affine expression and its hint; return False if it overflows int64 or belongs to other SymbolicSizes."""
    cdef SymbolicInt x
    if not isinstance(value, SymbolicInt):
        expr[0] = AffineExpr(0, 0, 0)
        if not as_int64(value, &expr.offset):
            return False
        hint[0] = expr.offset
        return True
    x = <SymbolicInt>value
    expr[0], hint[0] = x.expr, x.hint
    return x.sizes is sizes


cdef object add(object left, object right, int64_t sign):
    """Return left + sign * right, of which at least one is symbolic."""
    cdef SymbolicInt x = <SymbolicInt>left if isinstance(left, SymbolicInt) else <SymbolicInt>right
    cdef AffineExpr a, b
    cdef int64_t i, j, coefficient, offset
    if not as_affine(x.sizes, left, &a, &i) or not as_affine(x.sizes, right, &b, &j):
        return add_ints(left, right, sign)
    if multiply_overflows(b.coefficient, sign, &b.coefficient) or multiply_overflows(b.offset, sign, &b.offset) or add_overflows(a.offset, b.offset, &offset):
        return add_ints(left, right, sign)
    if a.coefficient != 0 and b.coefficient != 0 and a.node != b.node:
        if a.node > b.node:
            a, b = b, a
        a.offset = b.offset = 0
        found = combine(SUM, x, x.sizes.make_int(a.coefficient, a.node, 0), x.sizes.make_int(b.coefficient, b.node, 0))
        return add_ints(left, right, sign) if found is None else found + PyLong_FromLongLong(offset)
    if add_overflows(a.coefficient, b.coefficient, &coefficient):
        return add_ints(left, right, sign)
    return x.sizes.make_int(coefficient, a.node if a.coefficient != 0 else b.node, offset)


cdef object add_ints(object left, object right, int64_t sign):
    """Return left + sign * right as an int."""
    return guard_int(left) + guard_int(right) if sign > 0 else guard_int(left) - guard_int(right)


cdef object multiply(object left, object right):
    """Return left * right, of which at least one is symbolic."""
    cdef SymbolicInt x = <SymbolicInt>left if isinstance(left, SymbolicInt) else <SymbolicInt>right
    cdef object other = right if isinstance(left, SymbolicInt) else left
    cdef int64_t factor, coefficient, offset
    if isinstance(other, SymbolicInt):
        if not is_ordered(left, right):
            left, right = right, left
        found = combine(PRODUCT, x, left, right)
        return guard_int(left) * guard_int(right) if found is None else found
    if as_int64(other, &factor) and not multiply_overflows(x.expr.coefficient, factor, &coefficient) and not multiply_overflows(x.expr.offset, factor, &offset):
        return x.sizes.make_int(coefficient, x.expr.node, offset)
    return guard_int(left) * guard_int(right)


cdef bint is_ordered(SymbolicInt left, SymbolicInt right) noexcept:
    """Return True if left comes first in the canonical order of factors, which makes a * b and b * a the same node."""
    if left.expr.node != right.expr.node:
        return left.expr.node < right.expr.node
    if left.expr.coefficient != right.expr.coefficient:
        return left.expr.coefficient < right.expr.coefficient
    return left.expr.offset <= right.expr.offset


cdef object exact_quotient(object left, SymbolicInt right):
    """Return left / right where it is exact for all sizes, because left is a multiple of the symbol that right is one of; None for others."""
    cdef SymbolicInt x
    cdef Node product
    if not isinstance(left, SymbolicInt):
        return None
    x = <SymbolicInt>left
    if x.sizes is not right.sizes or right.expr.node >= right.sizes.n_symbols or right.expr.coefficient <= 0 or x.expr.offset != 0 or right.expr.offset != 0:
        return None
    if x.expr.node == right.expr.node and x.expr.coefficient % right.expr.coefficient == 0:
        return PyLong_FromLongLong(x.expr.coefficient // right.expr.coefficient)
    product = x.sizes.nodes[x.expr.node]
    if product.operation != PRODUCT:
        return None
    factors = [x.sizes.make_int(factor.coefficient, factor.node, factor.offset) for factor in (product.left, product.right)]
    for factor, other in (factors, reversed(factors)):
        quotient = exact_quotient(factor, right)
        if quotient is not None:
            return quotient * other * PyLong_FromLongLong(x.expr.coefficient)
    return None


cdef object divide(int operation, object left, object right):
    """Return left // right (QUOTIENT) or left % right (REMAINDER), of which at least one is symbolic."""
    cdef SymbolicInt x
    cdef int64_t divisor
    if isinstance(left, SymbolicInt) and as_int64(right, &divisor) and divisor > 0:
        x = <SymbolicInt>left
        if x.expr.coefficient % divisor == 0:
            if operation == REMAINDER:
                return PyLong_FromLongLong(x.expr.offset - floor_divide(x.expr.offset, divisor) * divisor)
            return x.sizes.make_int(x.expr.coefficient // divisor, x.expr.node, floor_divide(x.expr.offset, divisor))
    if isinstance(right, SymbolicInt):
        quotient = exact_quotient(left, <SymbolicInt>right)
        if quotient is not None:
            return quotient if operation == QUOTIENT else 0
    found = combine(operation, <SymbolicInt>(left if isinstance(left, SymbolicInt) else right), left, right)
    if found is None:
        return guard_int(left) // guard_int(right) if operation == QUOTIENT else guard_int(left) % guard_int(right)
    return found


cdef bint decide(SymbolicInt x, int operation) except *:
    """Return x < 0, x <= 0 or x == 0 (Py_LT, Py_LE, Py_EQ), and restrict the plan to sizes with the same answer."""
    if x.expr.coefficient == INT64_MIN or x.expr.offset == INT64_MIN:
        guard_int(x)
    elif operation == Py_EQ:
        record_equality(x)
    else:
        # coefficient * node + offset < 0 is coefficient * node <= -1 - offset
        record_upper_bound(x, -1 - x.expr.offset if operation == Py_LT else -x.expr.offset, x.hint < 0 if operation == Py_LT else x.hint <= 0)
    return x.hint < 0 if operation == Py_LT else x.hint <= 0 if operation == Py_LE else x.hint == 0


cdef object record_equality(SymbolicInt x):
    """Restrict the node of x to values with which x == 0 keeps its outcome."""
    if x.hint == 0:
        guard_int(x)
    elif x.expr.offset % x.expr.coefficient == 0:
        x.sizes.exclude(x.expr.node, -x.expr.offset // x.expr.coefficient)


cdef object record_upper_bound(SymbolicInt x, int64_t limit, bint found):
    """Restrict the node of x to values with which coefficient * node <= limit has the outcome `found`."""
    cdef int64_t coefficient = x.expr.coefficient, at
    if limit == INT64_MIN and coefficient < 0:
        if coefficient != -1:                               # -node > INT64_MIN for every int64: nothing to record
            guard_int(x)
    elif coefficient > 0:
        at = floor_divide(limit, coefficient)
        if found:
            x.sizes.narrow(x.expr.node, INT64_MIN, at)
        else:
            x.sizes.narrow(x.expr.node, at + 1, INT64_MAX)
    else:
        at = -floor_divide(limit, -coefficient)            # coefficient * node <= limit means node >= at
        if found:
            x.sizes.narrow(x.expr.node, at, INT64_MAX)
        else:
            x.sizes.narrow(x.expr.node, INT64_MIN, at - 1)


cdef object compare(object left, object right, int operation):
    """Return the outcome of a comparison, of which at least one side is symbolic; NotImplemented for == with another type."""
    if operation == Py_GT or operation == Py_GE:
        return compare(right, left, Py_LT if operation == Py_GT else Py_LE)
    if operation == Py_NE:
        found = compare(left, right, Py_EQ)
        return found if found is NotImplemented else not found
    for value in (left, right):
        if not isinstance(value, (SymbolicInt, int)):
            return guard_int(left) < guard_int(right) if operation == Py_LT else guard_int(left) <= guard_int(right) if operation == Py_LE else NotImplemented
    difference = add(left, right, -1)
    if isinstance(difference, SymbolicInt):
        return decide(<SymbolicInt>difference, operation)
    return difference < 0 if operation == Py_LT else difference <= 0 if operation == Py_LE else difference == 0


cdef class SymbolicInt:
    """An integer computed from symbols, used in place of an int: same arithmetic and comparisons, and isinstance(x, int) is True.

    It does not subclass int, because C code would read the value of a subclass without restricting the plan. Every conversion (int(), an index,
    a float, hashing, text) returns the hint and restricts the plan to sizes that give this value."""

    def __init__(self):
        raise TypeError("expected a SymbolicInt to be created by SymbolicSizes.symbol")

    @property
    def __class__(self):
        return int

    def __add__(self, other):
        return add(self, other, 1)

    def __radd__(self, other):
        return add(other, self, 1)

    def __sub__(self, other):
        return add(self, other, -1)

    def __rsub__(self, other):
        return add(other, self, -1)

    def __mul__(self, other):
        return multiply(self, other)

    def __rmul__(self, other):
        return multiply(other, self)

    def __floordiv__(self, other):
        return divide(QUOTIENT, self, other)

    def __rfloordiv__(self, other):
        return divide(QUOTIENT, other, self)

    def __mod__(self, other):
        return divide(REMAINDER, self, other)

    def __rmod__(self, other):
        return divide(REMAINDER, other, self)

    def __divmod__(self, other):
        return divide(QUOTIENT, self, other), divide(REMAINDER, self, other)

    def __rdivmod__(self, other):
        return divide(QUOTIENT, other, self), divide(REMAINDER, other, self)

    def __neg__(self):
        return add(0, self, -1)

    def __pos__(self):
        return self

    def __abs__(self):
        return self if self >= 0 else -self

    def __truediv__(self, other):
        return guard_int(self) / guard_int(other)

    def __rtruediv__(self, other):
        return guard_int(other) / guard_int(self)

    def __pow__(self, other, modulo):
        return pow(guard_int(self), guard_int(other), modulo)

    def __rpow__(self, other, modulo):
        return pow(guard_int(other), guard_int(self), modulo)

    def __lshift__(self, other):
        return guard_int(self) << guard_int(other)

    def __rlshift__(self, other):
        return guard_int(other) << guard_int(self)

    def __rshift__(self, other):
        return guard_int(self) >> guard_int(other)

    def __rrshift__(self, other):
        return guard_int(other) >> guard_int(self)

    def __and__(self, other):
        return guard_int(self) & guard_int(other)

    def __rand__(self, other):
        return guard_int(other) & guard_int(self)

    def __or__(self, other):
        return guard_int(self) | guard_int(other)

    def __ror__(self, other):
        return guard_int(other) | guard_int(self)

    def __xor__(self, other):
        return guard_int(self) ^ guard_int(other)

    def __rxor__(self, other):
        return guard_int(other) ^ guard_int(self)

    def __richcmp__(self, other, int operation):
        return compare(self, other, operation)

    def __bool__(self):
        return not decide(self, Py_EQ)

    def __hash__(self):
        return hash(guard_int(self))

    def __index__(self):
        return guard_int(self)

    def __int__(self):
        return guard_int(self)

    def __float__(self):
        return float(guard_int(self))

    def __round__(self, digits=None):
        return round(guard_int(self), digits)

    def minimum(self, other):
        """Return min(self, other) without recording which one it is."""
        found = combine(MINIMUM, self, self, other)
        return min(guard_int(self), guard_int(other)) if found is None else found

    def maximum(self, other):
        """Return max(self, other) without recording which one it is."""
        found = combine(MAXIMUM, self, self, other)
        return max(guard_int(self), guard_int(other)) if found is None else found

    def surely_equals(self, other):
        """Return whether self == other for all values of the symbols, which is recorded, as far as their probes tell.

        It is for choices that are right, if not the best ones, where False is returned for equal sizes; sizes that happen to be equal now count as different."""
        cdef AffineExpr expr
        cdef int64_t hint, own, others
        if not as_affine(self.sizes, other, &expr, &hint):
            return False
        if not evaluate_affine(&self.expr, self.sizes.probes, &own) or not evaluate_affine(&expr, self.sizes.probes, &others):
            return False
        return own == others and compare(self, other, Py_EQ)

    def __repr__(self):
        return repr(guard_int(self))

    def __format__(self, spec):
        return format(guard_int(self), spec)

    def __getattr__(self, name):
        return getattr(guard_int(self), name)
