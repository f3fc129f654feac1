"""Puts a program together: tensors first, then steps, then all at once as C arrays."""
from libc.stdint cimport int64_t
from libc.stdlib cimport calloc
from ortrain._core.engine cimport EngineHandle
from ortrain._core.builtin_kernels cimport PythonStep
from ortrain._core.kernel cimport ORTRAIN_MAX_RANK, Kernel, Tensor
from ortrain._core.program cimport FLUSH_SUBNORMALS, Program
from ortrain._core.symbolic cimport SymbolicInt

from ortrain._core.arrays import know_extension
from ortrain._core.builtin_kernels import KERNELS
from ortrain.dtypes import NUMBERS

MAX_AXES = ORTRAIN_MAX_RANK


cdef class ProgramBuilder:
    """The program to be, and what its steps are to work on. Sizes may be symbolic: where they stand is taken down."""

    def __init__(self, EngineHandle handle not None):
        self.program = Program(handle)
        self.tensors, self.steps, self.blocks, self.numbers, self.input_ids, self.output_ids, self.direct = [], [], [], [], [], [], []

    def add_block(self, size, Py_ssize_t first, Py_ssize_t last, bint kept=False):
        """Adds a piece of the arena in bytes, in use from one step to another, both included; returns its number. kept: it lies at the beginning, before all others."""
        self.blocks.append((size, first, last, kept))
        return len(self.blocks) - 1

    def add_tensor(self, str dtype, tuple dims, Py_ssize_t block=-1, size_t address=0, int input=-1, tuple numbers=()):
        """Adds a tensor in a block of the arena, at a fixed address, that is a user input, or that the program holds itself, of these numbers of int64; returns its
        own. Raises ValueError for more than MAX_AXES axes."""
        if len(dims) > ORTRAIN_MAX_RANK:
            raise ValueError(f"expected at most {ORTRAIN_MAX_RANK} axes, got {len(dims)}")
        know_extension(dtype)
        self.tensors.append((NUMBERS[dtype], dims, block, address, input, len(self.numbers) if numbers else -1))
        self.numbers.extend(numbers)
        return len(self.tensors) - 1

    def add_step(self, str name, size_t address, list inputs, list outputs, tuple ints=(), tuple floats=(), Py_ssize_t scratch=-1, bint flush=False):
        """Adds a kernel call on tensors (numbers, -1: absent) with its packed attributes and the block that is its scratch memory; returns the step's number.
        flush: subnormal numbers are zero to it."""
        self.steps.append((address, inputs, outputs, ints, floats, scratch, flush))
        self.program.step_names.append(name)
        return len(self.steps) - 1

    def add_python_step(self, str name, object function, list inputs, list outputs):
        """Adds a call of a Python function: arrays (None: absent) -> a sequence of one array per output; returns the step's number."""
        step = PythonStep(function)
        self.program.keep_alive.append(step)
        number = self.add_step(name, <size_t>KERNELS["python"], inputs, outputs, (<size_t><void *>step,))
        self.program.python_steps[number] = step
        return number

    def set_inputs(self, list ids):
        """The tensors that are the user inputs, in the order of the call."""
        self.input_ids = ids

    def set_outputs(self, list ids):
        """The tensors that are handed to the user, in order."""
        self.output_ids = ids

    def add_direct(self, int step, list ids, size_t address):
        """While gradients are overwritten, `step` is skipped and the tensors `ids` lie at `address`, the gradient itself."""
        self.direct.append((step, set(ids), address))

    cdef int64_t take(self, object value, int64_t *where) except? -1:
        """Writes a number down, and takes down where if it is symbolic."""
        if isinstance(value, SymbolicInt):
            self.program.patches.append((<char *>where - self.program.memory, value))
            where[0] = (<SymbolicInt>value).number
        else:
            where[0] = value
        return where[0]

    cdef object describe(self, Tensor *t, tuple kind):
        cdef int i
        t.dtype = kind[0]
        dims = kind[1]
        t.rank = len(dims)
        count = 1
        for i in range(t.rank):
            self.take(dims[i], &t.dims[i])
            count = count * dims[i]
        self.take(count, &t.count)
        t.data = <void *><size_t>kind[3] if kind[5] < 0 else <void *>(self.program.numbers + <Py_ssize_t>kind[5])

    def finish(self):
        """The program, whose steps are C arrays now, and whose blocks have their places in the arena."""
        cdef Program p = self.program
        self.count()
        p.memory_bytes = p.carve(NULL)
        p.memory = <char *>calloc(p.memory_bytes, 1)
        if p.memory == NULL:
            raise MemoryError
        p.carve(p.memory)
        for i, value in enumerate(self.numbers):
            self.take(value, &p.numbers[<Py_ssize_t>i])
        for i, (size, first, last, kept) in enumerate(self.blocks):
            self.take(size, &p.pieces[<Py_ssize_t>i].size)
            p.pieces[<Py_ssize_t>i].first, p.pieces[<Py_ssize_t>i].last, p.pieces[<Py_ssize_t>i].kept = first, last, kept
        slots = self.lay_out_steps()
        self.lay_out_interface()
        self.lay_out_direct(slots)
        p.find_places()
        p.built = True
        return p

    cdef object count(self):
        """How much there is of everything."""
        cdef Program p = self.program
        p.n_steps, p.n_pieces, p.n_direct = len(self.steps), len(self.blocks), len(self.direct)
        p.n_inputs, p.n_outputs, p.n_numbers = len(self.input_ids), len(self.output_ids), len(self.numbers)
        p.deferred_updates, p.deferred_gradients = min(p.deferred_updates, p.n_steps), min(p.deferred_gradients, p.n_steps)
        uses = [0] * len(self.tensors)
        for _, ins, outs, ints, floats, _, _ in self.steps:
            p.n_slots += len(ins) + len(outs)
            p.n_ints += len(ints)
            p.n_floats += len(floats)
            for number in (*ins, *outs):
                if number >= 0:
                    uses[number] += 1
        p.n_input_slots = sum([times for times, tensor in zip(uses, self.tensors) if tensor[4] >= 0])
        p.n_direct_slots = sum([uses[number] for _, ids, _ in self.direct for number in ids])

    cdef dict lay_out_steps(self):
        """Writes the steps down; tensor -> its slots."""
        cdef Program p = self.program
        cdef Py_ssize_t i, slot = 0, n_ints = 0, n_floats = 0, n_input_slots = 0
        slots = {}
        for i, (address, ins, outs, ints, floats, scratch, flush) in enumerate(self.steps):
            p.functions[i] = <Kernel><size_t>address
            p.modes[i] = FLUSH_SUBNORMALS if flush else 0
            p.args[i].inputs, p.args[i].n_inputs = p.slots + slot, len(ins)
            p.args[i].outputs, p.args[i].n_outputs = p.slots + slot + len(ins), len(outs)
            p.args[i].ints, p.args[i].floats = p.ints + n_ints, p.floats + n_floats
            p.args[i].engine = &p.handle.engine
            p.scratch_piece[i] = scratch
            for number in [*ins, *outs]:
                p.slot_piece[slot] = -1
                if number >= 0:
                    kind = self.tensors[number]
                    self.describe(&p.slots[slot], kind)
                    p.slot_piece[slot] = kind[2]
                    slots.setdefault(number, []).append(slot)
                    if kind[4] >= 0:
                        p.input_slot[n_input_slots], p.input_index[n_input_slots] = slot, kind[4]
                        n_input_slots += 1
                slot += 1
            for value in ints:
                self.take(value, &p.ints[n_ints])
                n_ints += 1
            for value in floats:
                p.floats[n_floats] = value
                n_floats += 1
        return slots

    cdef object lay_out_interface(self):
        """Writes down what the inputs and outputs are."""
        cdef Program p = self.program
        cdef Py_ssize_t i
        for i in range(p.n_inputs):
            self.describe(&p.inputs[i], self.tensors[self.input_ids[i]])
        for i in range(p.n_outputs):
            kind = self.tensors[self.output_ids[i]]
            self.describe(&p.outputs[i], kind)
            p.output_source[i] = -2 - kind[4] if kind[4] >= 0 else -1
            p.output_piece[i] = kind[2]

    cdef object lay_out_direct(self, dict slots):
        """Writes down what is computed in gradients themselves while they are overwritten."""
        cdef Program p = self.program
        cdef Py_ssize_t i, n = 0
        for i, (step, ids, address) in enumerate(sorted(self.direct, key=lambda each: each[0])):
            p.direct_step[i] = step
            p.direct_function[i] = p.functions[step]
            for number in ids:
                for slot in slots.get(number, ()):
                    p.direct_slot[n] = slot
                    p.direct_address[n] = <void *><size_t>address
                    n += 1
            if step < p.deferred_updates:
                p.n_direct_now, p.n_direct_slots_now = i + 1, n
