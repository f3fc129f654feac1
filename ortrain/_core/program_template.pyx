"""Families of programs that differ in the sizes of their inputs alone: one is planned, the others are derived from it without the planner."""
from libc.stdint cimport int64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy
cimport numpy as cnp
from cpython.tuple cimport PyTuple_GET_ITEM, PyTuple_GET_SIZE
from ortrain._core.arrays cimport same_dtype
from ortrain._core.kernel cimport ORTRAIN_MAX_RANK, Tensor
from ortrain._core.program cimport Program
from ortrain._core.symbolic cimport SymbolicInt, evaluated
from ortrain._core.size_expressions cimport linear

from ortrain._core.symbolic import plain

cnp.import_array()

cdef enum:
    MAX_PROGRAMS = 8                     # of a template, kept: another costs a few microseconds
    MAX_TEMPLATES = 32                    # of a model, where a plan may hold for one size alone


cdef object number_of(SymbolicInt number, list nodes):
    return number.term.coefficient * nodes[number.term.node] + number.term.offset


cdef class ProgramTemplate:
    """The programs that a plan for symbolic sizes stands for.

    first: the program that was planned, finished. axes: (input, axis, symbol) of every axis of the inputs that is one. plan_for: called with a function from
    symbolic numbers to plain ones, gives the plan. templates: the families of the same model, to which it is added."""

    def __init__(self, Program first not None, SymbolicSizes sizes not None, list axes, object plan_for, list templates not None):
        cdef Py_ssize_t i
        cdef SymbolicInt number
        self.first, self.sizes, self.plan_for, self.programs = first, sizes, plan_for, {}
        self.n_patches = len(first.patches)
        self.patches = <Patch *>calloc(self.n_patches + 1, sizeof(Patch))
        self.symbol_of = <int *>calloc(first.n_inputs * ORTRAIN_MAX_RANK + 1, sizeof(int))
        self.numbers = <int64_t *>calloc(sizes.n_symbols + sizes.n_nodes + 1, sizeof(int64_t))
        if not (self.patches and self.symbol_of and self.numbers):
            raise MemoryError
        for i in range(first.n_inputs * ORTRAIN_MAX_RANK):
            self.symbol_of[i] = -1
        for index, axis, symbol in axes:
            self.symbol_of[index * ORTRAIN_MAX_RANK + axis] = symbol
        for i, (where, value) in enumerate(first.patches):
            number = value
            if number.sizes is not sizes:
                raise ValueError("expected a program that was planned for these sizes")
            self.patches[i] = Patch(where, number.term)
        first.patches = []
        sizes.sealed = True
        first.template, first.symbols, first.planned = self, sizes.numbers, None
        self.programs[first.symbols] = first
        if first.python_steps:                # a loop's body was planned for these sizes
            sizes.failed = True
        self.templates = templates
        templates.append(self)
        del templates[:-MAX_TEMPLATES]

    def __dealloc__(self):
        free(self.patches)
        free(self.symbol_of)
        free(self.numbers)

    def plan_of(self, Program program not None):
        """The plan of a program of the template."""
        cdef int64_t *values
        if program is self.first:
            plan = self.plan_for(plain)
        else:
            values = evaluated(self.sizes, program.symbols, False)
            assert values != NULL, "expected a program of this template"
            numbers = [values[i] for i in range(self.sizes.n_nodes)]
            free(values)
            plan = self.plan_for(lambda number: number_of(<SymbolicInt>number, numbers))
        plan.arena_bytes = program.arena_bytes
        return plan

    cpdef Program find(self, tuple values, bint sparing=True):
        """The program for these inputs; None where they are of no shape that the template has one for.

        sparing: if a new one is derived, it is the one that would be planned; else it may need more memory than that, but no more than there is."""
        cdef Program program
        symbols = self.read(values)
        if symbols is None:
            return None
        program = self.programs.pop(symbols, None)
        if program is None:
            program = self.derived(<tuple>symbols, sparing)
        if program is not None:
            self.programs[symbols] = program
            if len(self.programs) > MAX_PROGRAMS:
                del self.programs[next(iter(self.programs))]
        return program

    cdef object read(self, tuple values):
        """The symbols of these inputs; None where they are not what the template's programs take."""
        cdef Py_ssize_t i, n = self.first.n_inputs
        cdef int axis, symbol
        cdef int64_t size
        cdef Tensor *wanted
        cdef cnp.ndarray x
        if PyTuple_GET_SIZE(values) != n:
            return None
        for i in range(self.sizes.n_symbols):
            self.numbers[i] = -1
        for i in range(n):
            value = <object>PyTuple_GET_ITEM(values, i)
            if not cnp.PyArray_CheckExact(value):
                return None
            x, wanted = <cnp.ndarray>value, &self.first.inputs[i]
            if cnp.PyArray_NDIM(x) != wanted.rank or not cnp.PyArray_ISCARRAY_RO(x) or not same_dtype(cnp.PyArray_TYPE(x), wanted.dtype):
                return None
            for axis in range(wanted.rank):
                symbol, size = self.symbol_of[i * ORTRAIN_MAX_RANK + axis], cnp.PyArray_DIMS(x)[axis]
                if symbol >= 0 and self.numbers[symbol] < 0:
                    self.numbers[symbol] = size
                if size != (wanted.dims[axis] if symbol < 0 else self.numbers[symbol]):
                    return None
        return tuple([self.numbers[i] for i in range(self.sizes.n_symbols)])

    cdef Program derived(self, tuple symbols, bint sparing):
        """The program for the symbols that were read last; None where the plan for them may be another, or has to be."""
        cdef Program first = self.first, program
        cdef int64_t *values = self.numbers + self.sizes.n_symbols
        cdef Py_ssize_t i
        if not self.sizes.evaluate(self.numbers, values, sparing):
            return None
        program = Program.__new__(Program)
        program.memory = <char *>malloc(first.memory_bytes)
        if program.memory == NULL:
            raise MemoryError
        memcpy(program.memory, first.memory, first.memory_bytes)
        for i in range(self.n_patches):
            if not linear(&self.patches[i].term, values, <int64_t *>(program.memory + self.patches[i].where)):
                return None
        program.become(first)
        program.template, program.symbols = self, symbols
        return program if sparing or fits(program) else None


cdef bint fits(Program program):
    """Whether it can run in the memory that there is."""
    return program.handle.arena is not None and program.room() <= program.handle.arena.nbytes


cpdef Program related(list templates, tuple values):
    """The program for these inputs among those of some families, of which the one that has it becomes the last; None where there is none.

    What spares memory is not chosen anew where the memory is there: planning takes as long as hundreds of steps of a small network."""
    cdef Py_ssize_t i
    cdef ProgramTemplate template
    cdef Program found
    for sparing in (True, False):
        for i in range(len(templates) - 1, -1, -1):
            template = templates[i]
            found = template.find(values, sparing)
            if found is not None:
                if i < len(templates) - 1:
                    templates.append(templates.pop(i))
                return found
    return None


cdef Program relative(Program program, tuple values):
    """The program for these inputs that was planned for the same model, or is derived from one, ready to run; None where there is none, or where it needs a
    larger arena first."""
    cdef Program found
    if program.template is None:
        return None
    found = related((<ProgramTemplate>program.template).templates, values)
    if found is None or not fits(found):
        return None
    found.handle.held_bytes = max(found.handle.held_bytes, found.held_bytes)
    if not found.is_bound():
        found.bind_arena(found.handle.arena)
    return found
