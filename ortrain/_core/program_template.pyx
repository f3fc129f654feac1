"""Program templates: a program planned with symbolic sizes, specialized to other input sizes without planning."""
from libc.stdint cimport int64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy
cimport numpy as cnp
from cpython.tuple cimport PyTuple_GET_ITEM, PyTuple_GET_SIZE
from ortrain._core.arrays cimport is_same_dtype
from ortrain._core.kernel cimport ORTRAIN_MAX_RANK, Tensor
from ortrain._core.program cimport Program
from ortrain._core.symbolic cimport SymbolicInt, evaluate_nodes
from ortrain._core.size_expressions cimport evaluate_affine

from ortrain._core.symbolic import size_hint

cnp.import_array()

cdef enum:
    MAX_PROGRAMS = 8                      # cached per template: specializing one takes a few microseconds
    MAX_TEMPLATES = 32                    # per model: bounds the memory of models whose plans hold for a single size each


cdef object value_of(SymbolicInt size, list nodes):
    """Return a symbolic size, given the values of all nodes."""
    return size.expr.coefficient * nodes[size.expr.node] + size.expr.offset


cdef class ProgramTemplate:
    """A plan with symbolic sizes, and the programs specialized from it.

    base_program: the finished program that was planned. axes: (input, axis, symbol) of every input axis with a symbolic size. plan_at: called with a function
    that maps symbolic sizes to ints, returns the plan for these sizes. templates: the templates of the same model, to which this one is added."""

    def __init__(self, Program base_program not None, SymbolicSizes sizes not None, list axes, object plan_at, list templates not None):
        cdef Py_ssize_t i
        cdef SymbolicInt size
        self.base_program, self.sizes, self.plan_at, self.programs = base_program, sizes, plan_at, {}
        self.n_patches = len(base_program.patches)
        self.patches = <Patch *>calloc(self.n_patches + 1, sizeof(Patch))
        self.symbol_of_axis = <int *>calloc(base_program.n_inputs * ORTRAIN_MAX_RANK + 1, sizeof(int))
        self.values = <int64_t *>calloc(sizes.n_symbols + sizes.n_nodes + 1, sizeof(int64_t))
        if not (self.patches and self.symbol_of_axis and self.values):
            raise MemoryError
        for i in range(base_program.n_inputs * ORTRAIN_MAX_RANK):
            self.symbol_of_axis[i] = -1
        for index, axis, symbol in axes:
            self.symbol_of_axis[index * ORTRAIN_MAX_RANK + axis] = symbol
        for i, (offset, value) in enumerate(base_program.patches):
            size = value
            if size.sizes is not sizes:
                raise ValueError("expected a program that was planned with these symbolic sizes")
            self.patches[i] = Patch(offset, size.expr)
        base_program.patches = []
        sizes.is_frozen = True
        base_program.template, base_program.symbol_values, base_program.cached_plan = self, sizes.hints, None
        self.programs[base_program.symbol_values] = base_program
        if base_program.python_steps:         # the body of a loop was planned for these sizes only
            sizes.is_disabled = True
        self.templates = templates
        templates.append(self)
        del templates[:-MAX_TEMPLATES]

    def __dealloc__(self):
        free(self.patches)
        free(self.symbol_of_axis)
        free(self.values)

    def plan_of(self, Program program not None):
        """Return the plan of a program of this template, with ints for sizes."""
        cdef int64_t *values
        if program is self.base_program:
            plan = self.plan_at(size_hint)
        else:
            values = evaluate_nodes(self.sizes, program.symbol_values, False)
            assert values != NULL, "expected a program of this template"
            node_values = [values[i] for i in range(self.sizes.n_nodes)]
            free(values)
            plan = self.plan_at(lambda size: value_of(<SymbolicInt>size, node_values))
        plan.arena_bytes = program.arena_bytes
        return plan

    cpdef Program find(self, tuple values, bint check_memory=True):
        """Return the program for the shapes of these inputs, or None if the template does not hold for them.

        check_memory: a newly specialized program equals the one that would be planned. Without it the program may need more memory than that, but not more than
        the current arena."""
        cdef Program program
        symbol_values = self.match_symbols(values)
        if symbol_values is None:
            return None
        program = self.programs.pop(symbol_values, None)
        if program is None:
            program = self.specialize(<tuple>symbol_values, check_memory)
        if program is not None:
            self.programs[symbol_values] = program
            if len(self.programs) > MAX_PROGRAMS:
                del self.programs[next(iter(self.programs))]
        return program

    cdef object match_symbols(self, tuple values):
        """Return the values of the symbols that these inputs have, or None if their number, types, ranks, layouts or fixed sizes do not match."""
        cdef Py_ssize_t i, n = self.base_program.n_inputs
        cdef int axis, symbol
        cdef int64_t size
        cdef Tensor *expected
        cdef cnp.ndarray x
        if PyTuple_GET_SIZE(values) != n:
            return None
        for i in range(self.sizes.n_symbols):
            self.values[i] = -1
        for i in range(n):
            value = <object>PyTuple_GET_ITEM(values, i)
            if not cnp.PyArray_CheckExact(value):
                return None
            x, expected = <cnp.ndarray>value, &self.base_program.inputs[i]
            if cnp.PyArray_NDIM(x) != expected.rank or not cnp.PyArray_ISCARRAY_RO(x) or not is_same_dtype(cnp.PyArray_TYPE(x), expected.dtype):
                return None
            for axis in range(expected.rank):
                symbol, size = self.symbol_of_axis[i * ORTRAIN_MAX_RANK + axis], cnp.PyArray_DIMS(x)[axis]
                if symbol >= 0 and self.values[symbol] < 0:
                    self.values[symbol] = size
                if size != (expected.dims[axis] if symbol < 0 else self.values[symbol]):
                    return None
        return tuple([self.values[i] for i in range(self.sizes.n_symbols)])

    cdef Program specialize(self, tuple symbol_values, bint check_memory):
        """Return a new program for the symbols that match_symbols() found last, or None if the plan may differ for them.

        Without check_memory also None if the program needs more than the current arena."""
        cdef Program base = self.base_program, program
        cdef int64_t *values = self.values + self.sizes.n_symbols
        cdef Py_ssize_t i
        if not self.sizes.evaluate(self.values, values, check_memory):
            return None
        program = Program.__new__(Program)
        program.memory = <char *>malloc(base.memory_bytes)
        if program.memory == NULL:
            raise MemoryError
        memcpy(program.memory, base.memory, base.memory_bytes)
        for i in range(self.n_patches):
            if not evaluate_affine(&self.patches[i].expr, values, <int64_t *>(program.memory + self.patches[i].offset)):
                return None
        program.copy_from(base)
        program.template, program.symbol_values = self, symbol_values
        return program if check_memory or fits_arena(program) else None


cdef bint fits_arena(Program program):
    """Return True if the program can run in the current arena of its engine."""
    return program.handle.arena is not None and program.required_arena_bytes() <= program.handle.arena.nbytes


cpdef Program find_program(list templates, tuple values):
    """Return the program of one of these templates for the shapes of the inputs, or None; its template moves to the end of the list.

    If no template holds including its memory decisions, one that holds without them is used as long as the current arena suffices: planning takes as long as
    hundreds of steps of a small network."""
    cdef Py_ssize_t i
    cdef ProgramTemplate template
    cdef Program found
    for check_memory in (True, False):
        for i in range(len(templates) - 1, -1, -1):
            template = templates[i]
            found = template.find(values, check_memory)
            if found is not None:
                if i < len(templates) - 1:
                    templates.append(templates.pop(i))
                return found
    return None


cdef Program find_ready_program(Program program, tuple values):
    """Return a program for the shapes of these inputs from the templates of the program's model, bound to the current arena.

    None if there is no such program or it needs a larger arena."""
    cdef Program found
    if program.template is None:
        return None
    found = find_program((<ProgramTemplate>program.template).templates, values)
    if found is None or not fits_arena(found):
        return None
    found.handle.retained_bytes = max(found.handle.retained_bytes, found.retained_bytes)
    if not found.is_bound():
        found.bind_arena(found.handle.arena)
    return found
