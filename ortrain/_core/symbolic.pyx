"""Sizes that follow from those of the inputs: a plan that is made with them says what it would have been for other inputs, and for which it is another one."""
from libc.stdint cimport INT64_MAX, INT64_MIN, int64_t
from libc.stdlib cimport free, malloc, realloc
from cpython.object cimport Py_EQ, Py_GE, Py_GT, Py_LE, Py_LT, Py_NE
from ortrain._core.size_expressions cimport (LARGER, PRODUCT, QUOTIENT, REMAINDER, SMALLER, SUM, SYMBOL, Linear, add_overflows, floor_quotient, linear, multiply_overflows,
                                  operate)

cdef extern from "Python.h":
    object PyLong_FromLongLong(long long value)
    long long PyLong_AsLongLongAndOverflow(object value, int *overflow) except? -1
    bint PyLong_Check(object value)

cdef enum:
    MAX_NODES = 1 << 14                  # beyond which evaluating them takes as long as steps do


cdef bint as_number(object value, int64_t *result) except *:
    """Whether a value is a plain int that int64 holds."""
    cdef int overflow = 0
    if not PyLong_Check(value):
        return False
    result[0] = PyLong_AsLongLongAndOverflow(value, &overflow)
    return overflow == 0


cdef class SymbolicSizes:
    """The sizes of some inputs, what was computed of them, and what was found out about it.

    Every result is a node: a product, a quotient, a remainder, a sum or the smaller or larger of two that are linear in earlier nodes. Every comparison narrows what
    a node may be; whoever asks for the plain number narrows it to that. For other sizes of which no node leaves its limits, the same computation takes the same
    decisions. What spares() was asked has limits of its own: beyond them the plan is right, and may hold more memory than need be."""

    def __init__(self, tuple numbers):
        """numbers: the symbols' values at hand, at least 1 as all others: what is empty is planned by itself."""
        cdef Linear none = Linear(0, 0, 0)
        self.known, self.excluded = {}, {}
        for number in numbers:
            self.bound(self.add_node(SYMBOL, none, none, number), 1, INT64_MAX)
        self.n_symbols = self.n_nodes

    def __dealloc__(self):
        free(self.nodes)
        free(self.holes)
        free(self.values)

    @property
    def numbers(self):
        """The symbols' values at hand."""
        return tuple([self.values[i] for i in range(self.n_symbols)])

    def symbol(self, Py_ssize_t index):
        """A symbol as a SymbolicInt."""
        if not 0 <= index < self.n_symbols:
            raise IndexError(f"expected a symbol below {self.n_symbols}, got {index}")
        return self.made(1, index, 0)

    def limits(self, Py_ssize_t index, bint sparing=True):
        """(least, greatest) number of a symbol with which all decisions stay what they were, as far as they hang on it alone. sparing: those of spares() too."""
        if not 0 <= index < self.n_symbols:
            raise IndexError(f"expected a symbol below {self.n_symbols}, got {index}")
        hard, spare = self.nodes[index].decided, self.nodes[index].spared
        return (max(hard.low, spare.low), min(hard.high, spare.high)) if sparing else (hard.low, hard.high)

    def holds_for(self, tuple numbers, bint sparing=True):
        """Whether for these numbers all decisions are known to be what they were. sparing: those of spares() too."""
        cdef int64_t *values = evaluated(self, numbers, sparing)
        free(values)
        return values != NULL

    cdef Py_ssize_t add_node(self, int operation, Linear left, Linear right, int64_t value) except -1:
        cdef Py_ssize_t room
        if self.n_nodes == self.node_room:
            room = 2 * self.node_room + 64
            nodes = <Node *>realloc(self.nodes, room * sizeof(Node))
            if nodes == NULL:
                raise MemoryError
            self.nodes = nodes
            values = <int64_t *>realloc(self.values, room * sizeof(int64_t))
            if values == NULL:
                raise MemoryError
            self.values, self.node_room = values, room
        self.nodes[self.n_nodes] = Node(operation, left, right, Limits(INT64_MIN, INT64_MAX), Limits(INT64_MIN, INT64_MAX))
        self.values[self.n_nodes] = value
        self.n_nodes += 1
        if self.n_nodes > MAX_NODES:
            self.failed = True
        return self.n_nodes - 1

    cdef object made(self, int64_t coefficient, Py_ssize_t node, int64_t offset):
        """coefficient * node + offset: a plain int where it hangs on no node."""
        cdef SymbolicInt result
        if coefficient == 0:
            return PyLong_FromLongLong(offset)
        result = SymbolicInt.__new__(SymbolicInt)
        result.sizes = self
        result.term = Linear(coefficient, offset, node)
        if not linear(&result.term, self.values, &result.number):
            return coefficient * pinned(self.made(1, node, 0)) + offset
        return result

    cdef object bound(self, Py_ssize_t node, int64_t low, int64_t high):
        cdef Limits *limits = &self.nodes[node].spared if self.spares_only else &self.nodes[node].decided
        if self.sealed:
            return
        limits.low = max(limits.low, low)
        limits.high = min(limits.high, high)

    cdef object exclude(self, Py_ssize_t node, int64_t value):
        key = (node, value)
        if self.sealed or key in self.excluded or not self.nodes[node].decided.low <= value <= self.nodes[node].decided.high:
            return
        if self.n_holes == self.hole_room:
            room = 2 * self.hole_room + 16
            holes = <Hole *>realloc(self.holes, <size_t>room * sizeof(Hole))
            if holes == NULL:
                raise MemoryError
            self.holes, self.hole_room = holes, room
        self.excluded[key] = True
        self.holes[self.n_holes] = Hole(node, value)
        self.n_holes += 1

    cdef bint evaluate(self, const int64_t *symbols, int64_t *values, bint sparing) noexcept nogil:
        """Computes all nodes for other symbols; False where some decision would be another, or may be."""
        cdef Py_ssize_t i
        cdef int64_t left, right
        cdef Node *node
        if self.failed:
            return False
        for i in range(self.n_nodes):
            node = &self.nodes[i]
            if node.operation == SYMBOL:
                values[i] = symbols[i]
            elif not (linear(&node.left, values, &left) and linear(&node.right, values, &right) and operate(node.operation, left, right, &values[i])):
                return False
            if values[i] < node.decided.low or values[i] > node.decided.high or sparing and (values[i] < node.spared.low or values[i] > node.spared.high):
                return False
        for i in range(self.n_holes):
            if values[self.holes[i].node] == self.holes[i].value:
                return False
        return True


cdef int64_t *evaluated(SymbolicSizes sizes, tuple numbers, bint sparing) except? NULL:
    """The values of all nodes for these numbers, to be freed; NULL where some decision would be another, or may be."""
    cdef Py_ssize_t i
    cdef int64_t *values
    if len(numbers) != sizes.n_symbols:
        raise ValueError(f"expected {sizes.n_symbols} numbers, got {len(numbers)}")
    given = [<int64_t>number for number in numbers]
    values = <int64_t *>malloc((sizes.n_nodes + 1) * sizeof(int64_t))
    if values == NULL:
        raise MemoryError
    for i in range(sizes.n_symbols):                         # the first nodes are the symbols
        values[i] = given[i]
    if not sizes.evaluate(values, values, sparing):
        free(values)
        return NULL
    return values


cdef object pinned(object value):
    """The plain number: of a symbolic one, which from now on is to be no other."""
    cdef SymbolicInt x
    if not isinstance(value, SymbolicInt):
        return value
    x = <SymbolicInt>value
    x.sizes.bound(x.term.node, x.sizes.values[x.term.node], x.sizes.values[x.term.node])
    return PyLong_FromLongLong(x.number)


def plain(value):
    """The number for the sizes at hand, of which nothing is to follow: for choices that change no result."""
    return PyLong_FromLongLong((<SymbolicInt>value).number) if isinstance(value, SymbolicInt) else value


def spares(left, right):
    """Whether left >= right, where that decides about memory alone: what follows has to be right whatever the answer."""
    cdef SymbolicSizes sizes
    for value in (left, right):
        if isinstance(value, SymbolicInt):
            sizes = (<SymbolicInt>value).sizes
            sizes.spares_only = True
            try:
                return left >= right
            finally:
                sizes.spares_only = False
    return left >= right


cdef object combined(int operation, SymbolicInt like, object left, object right):
    """A node for two numbers, of which at least one is symbolic."""
    cdef Linear a, b
    cdef int64_t value, x, y
    cdef SymbolicSizes sizes = like.sizes
    if sizes.sealed or not as_term(sizes, left, &a, &x) or not as_term(sizes, right, &b, &y) or not operate(operation, x, y, &value):
        return None
    key = (operation, a.coefficient, a.node, a.offset, b.coefficient, b.node, b.offset)
    node = sizes.known.get(key)
    if node is None:
        node = sizes.known[key] = sizes.add_node(operation, a, b, value)
    return sizes.made(1, node, 0)


cdef bint as_term(SymbolicSizes sizes, object value, Linear *term, int64_t *number) except *:
    """A number as a linear term; False for what is none, or is of other sizes."""
    cdef SymbolicInt x
    if not isinstance(value, SymbolicInt):
        term[0] = Linear(0, 0, 0)
        if not as_number(value, &term.offset):
            return False
        number[0] = term.offset
        return True
    x = <SymbolicInt>value
    term[0], number[0] = x.term, x.number
    return x.sizes is sizes


cdef object add(object left, object right, int64_t sign):
    """left + sign * right"""
    cdef SymbolicInt x = <SymbolicInt>left if isinstance(left, SymbolicInt) else <SymbolicInt>right
    cdef Linear a, b
    cdef int64_t i, j, coefficient, offset
    if not as_term(x.sizes, left, &a, &i) or not as_term(x.sizes, right, &b, &j):
        return plainly(left, right, sign)
    if multiply_overflows(b.coefficient, sign, &b.coefficient) or multiply_overflows(b.offset, sign, &b.offset) or add_overflows(a.offset, b.offset, &offset):
        return plainly(left, right, sign)
    if a.coefficient != 0 and b.coefficient != 0 and a.node != b.node:
        if a.node > b.node:
            a, b = b, a
        a.offset = b.offset = 0
        found = combined(SUM, x, x.sizes.made(a.coefficient, a.node, 0), x.sizes.made(b.coefficient, b.node, 0))
        return plainly(left, right, sign) if found is None else found + PyLong_FromLongLong(offset)
    if add_overflows(a.coefficient, b.coefficient, &coefficient):
        return plainly(left, right, sign)
    return x.sizes.made(coefficient, a.node if a.coefficient != 0 else b.node, offset)


cdef object plainly(object left, object right, int64_t sign):
    """The same without symbols."""
    return pinned(left) + pinned(right) if sign > 0 else pinned(left) - pinned(right)


cdef object multiply(object left, object right):
    cdef SymbolicInt x = <SymbolicInt>left if isinstance(left, SymbolicInt) else <SymbolicInt>right
    cdef object other = right if isinstance(left, SymbolicInt) else left
    cdef int64_t factor, coefficient, offset
    if isinstance(other, SymbolicInt):
        if not earlier(left, right):
            left, right = right, left
        found = combined(PRODUCT, x, left, right)
        return pinned(left) * pinned(right) if found is None else found
    if as_number(other, &factor) and not multiply_overflows(x.term.coefficient, factor, &coefficient) and not multiply_overflows(x.term.offset, factor, &offset):
        return x.sizes.made(coefficient, x.term.node, offset)
    return pinned(left) * pinned(right)


cdef bint earlier(SymbolicInt left, SymbolicInt right) noexcept:
    """One of the two orders of factors, so that a * b is b * a."""
    if left.term.node != right.term.node:
        return left.term.node < right.term.node
    if left.term.coefficient != right.term.coefficient:
        return left.term.coefficient < right.term.coefficient
    return left.term.offset <= right.term.offset


cdef object divide(int operation, object left, object right):
    """left // right or left % right."""
    cdef SymbolicInt x
    cdef int64_t divisor
    if isinstance(left, SymbolicInt) and as_number(right, &divisor) and divisor > 0:
        x = <SymbolicInt>left
        if x.term.coefficient % divisor == 0:
            if operation == REMAINDER:
                return PyLong_FromLongLong(x.term.offset - floor_quotient(x.term.offset, divisor) * divisor)
            return x.sizes.made(x.term.coefficient // divisor, x.term.node, floor_quotient(x.term.offset, divisor))
    found = combined(operation, <SymbolicInt>(left if isinstance(left, SymbolicInt) else right), left, right)
    if found is None:
        return pinned(left) // pinned(right) if operation == QUOTIENT else pinned(left) % pinned(right)
    return found


cdef bint decide(SymbolicInt x, int operation) except *:
    """Whether x < 0, x <= 0 or x == 0, for the sizes at hand and for all others from now on."""
    if x.term.coefficient == INT64_MIN or x.term.offset == INT64_MIN:
        pinned(x)
    elif operation == Py_EQ:
        decide_zero(x)
    else:
        # x < 0 is x <= -1
        decide_limit(x, -1 - x.term.offset if operation == Py_LT else -x.term.offset, x.number < 0 if operation == Py_LT else x.number <= 0)
    return x.number < 0 if operation == Py_LT else x.number <= 0 if operation == Py_LE else x.number == 0


cdef object decide_zero(SymbolicInt x):
    """Narrows the node of x to those values with which x is 0 if it is now, or is not."""
    if x.number == 0:
        pinned(x)
    elif x.term.offset % x.term.coefficient == 0:
        x.sizes.exclude(x.term.node, -x.term.offset // x.term.coefficient)


cdef object decide_limit(SymbolicInt x, int64_t limit, bint found):
    """Narrows the node of x to those values with which coefficient * node <= limit, if found, or is not."""
    cdef int64_t coefficient = x.term.coefficient, at
    if limit == INT64_MIN and coefficient < 0:
        if coefficient != -1:                               # -1 * node is never that small
            pinned(x)
    elif coefficient > 0:
        at = floor_quotient(limit, coefficient)
        if found:
            x.sizes.bound(x.term.node, INT64_MIN, at)
        else:
            x.sizes.bound(x.term.node, at + 1, INT64_MAX)
    else:
        at = -floor_quotient(limit, -coefficient)            # node >= at, or not
        if found:
            x.sizes.bound(x.term.node, at, INT64_MAX)
        else:
            x.sizes.bound(x.term.node, INT64_MIN, at - 1)


cdef object compared(object left, object right, int operation):
    """A comparison of two numbers, of which at least one is symbolic; NotImplemented for what is no number."""
    if operation == Py_GT or operation == Py_GE:
        return compared(right, left, Py_LT if operation == Py_GT else Py_LE)
    if operation == Py_NE:
        found = compared(left, right, Py_EQ)
        return found if found is NotImplemented else not found
    for value in (left, right):
        if not isinstance(value, (SymbolicInt, int)):
            return pinned(left) < pinned(right) if operation == Py_LT else pinned(left) <= pinned(right) if operation == Py_LE else NotImplemented
    difference = add(left, right, -1)
    if isinstance(difference, SymbolicInt):
        return decide(<SymbolicInt>difference, operation)
    return difference < 0 if operation == Py_LT else difference <= 0 if operation == Py_LE else difference == 0


cdef class SymbolicInt:
    """An int that follows from symbols: calculates and compares as it, says to be one to isinstance, and is one to the type checker.

    It is no subclass: whatever reads an int's value in C would do so unseen. What asks for the plain number (int(), an index, a float, a dict's key, its text) gets
    it, and the SymbolicSizes remember that it is to be that."""

    def __init__(self):
        raise TypeError("expected a SymbolicInt to be made by SymbolicSizes.symbol")

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
        return pinned(self) / pinned(other)

    def __rtruediv__(self, other):
        return pinned(other) / pinned(self)

    def __pow__(self, other, modulo):
        return pow(pinned(self), pinned(other), modulo)

    def __rpow__(self, other, modulo):
        return pow(pinned(other), pinned(self), modulo)

    def __lshift__(self, other):
        return pinned(self) << pinned(other)

    def __rlshift__(self, other):
        return pinned(other) << pinned(self)

    def __rshift__(self, other):
        return pinned(self) >> pinned(other)

    def __rrshift__(self, other):
        return pinned(other) >> pinned(self)

    def __and__(self, other):
        return pinned(self) & pinned(other)

    def __rand__(self, other):
        return pinned(other) & pinned(self)

    def __or__(self, other):
        return pinned(self) | pinned(other)

    def __ror__(self, other):
        return pinned(other) | pinned(self)

    def __xor__(self, other):
        return pinned(self) ^ pinned(other)

    def __rxor__(self, other):
        return pinned(other) ^ pinned(self)

    def __richcmp__(self, other, int operation):
        return compared(self, other, operation)

    def __bool__(self):
        return not decide(self, Py_EQ)

    def __hash__(self):
        return hash(pinned(self))

    def __index__(self):
        return pinned(self)

    def __int__(self):
        return pinned(self)

    def __float__(self):
        return float(pinned(self))

    def __round__(self, digits=None):
        return round(pinned(self), digits)

    def smaller(self, other):
        """min(self, other), without deciding which."""
        found = combined(SMALLER, self, self, other)
        return min(pinned(self), pinned(other)) if found is None else found

    def larger(self, other):
        """max(self, other), without deciding which."""
        found = combined(LARGER, self, self, other)
        return max(pinned(self), pinned(other)) if found is None else found

    def __repr__(self):
        return repr(pinned(self))

    def __format__(self, how):
        return format(pinned(self), how)

    def __getattr__(self, name):
        return getattr(pinned(self), name)
