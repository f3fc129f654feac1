"""Program builder: collects blocks, tensors and steps, and writes them as C arrays."""
from libc.stdint cimport int64_t
from libc.stdlib cimport calloc
from ortrain._core.engine cimport EngineHandle
from ortrain._core.builtin_kernels cimport PythonStep
from ortrain._core.kernel cimport ORTRAIN_MAX_RANK, Kernel, Tensor
from ortrain._core.program cimport FLUSH_SUBNORMALS, Program
from ortrain._core.symbolic cimport SymbolicInt

from ortrain._core.arrays import register_extension_dtype
from ortrain._core.builtin_kernels import KERNELS
from ortrain.dtypes import NUMBERS

MAX_AXES = ORTRAIN_MAX_RANK


cdef class ProgramBuilder:
    """Builds one program: add blocks, tensors and steps, set inputs and outputs, then finish().

    Sizes may be SymbolicInts; where they occur in the program is recorded in its `patches`."""

    def __init__(self, EngineHandle handle not None):
        self.program = Program(handle)
        self.tensors, self.steps, self.blocks, self.size_constants, self.input_ids, self.output_ids, self.elidable = [], [], [], [], [], [], []

    def add_block(self, size, Py_ssize_t first, Py_ssize_t last, bint retained=False):
        """Add a block of the arena and return its number.

        size: in bytes. first, last: the steps between which the block is live, both included. retained: deferred steps read it, so it is placed at the
        beginning of the arena."""
        self.blocks.append((size, first, last, retained))
        return len(self.blocks) - 1

    def add_tensor(self, str dtype, tuple dims, Py_ssize_t block=-1, size_t address=0, int input=-1, tuple elements=()):
        """Add a tensor and return its number.

        Its memory is a block of the arena, a fixed address, user input number `input`, or int64 `elements` (which may be symbolic) that the program holds.
        Raises ValueError for more than MAX_AXES axes."""
        if len(dims) > ORTRAIN_MAX_RANK:
            raise ValueError(f"expected at most {ORTRAIN_MAX_RANK} axes, got {len(dims)}")
        register_extension_dtype(dtype)
        self.tensors.append((NUMBERS[dtype], dims, block, address, input, len(self.size_constants) if elements else -1))
        self.size_constants.extend(elements)
        return len(self.tensors) - 1

    def add_step(self, str name, size_t address, list inputs, list outputs, tuple ints=(), tuple floats=(), Py_ssize_t scratch=-1, bint flush=False,
                 bint bfloat16=False):
        """Add a kernel call and return the number of the step.

        inputs, outputs: tensor numbers, -1 for absent. ints, floats: packed attributes. scratch: the block that is its working memory, -1 for none.
        flush: treat subnormal numbers as zero. bfloat16: products take bfloat16 operands."""
        self.steps.append((address, inputs, outputs, ints, floats, scratch, flush, bfloat16))
        self.program.step_names.append(name)
        return len(self.steps) - 1

    def add_python_step(self, str name, object function, list inputs, list outputs):
        """Add a call of a Python function and return the number of the step.

        function: takes one array per input (None for absent), returns a sequence of one array per output."""
        step = PythonStep(function)
        self.program.keep_alive.append(step)
        number = self.add_step(name, <size_t>KERNELS["python"], inputs, outputs, (<size_t><void *>step,))
        self.program.python_steps[number] = step
        return number

    def set_inputs(self, list ids):
        """Set the tensors that are the user inputs, in the order of the call."""
        self.input_ids = ids

    def set_outputs(self, list ids):
        """Set the tensors that are returned to the user, in order."""
        self.output_ids = ids

    def add_elidable_accumulation(self, int step, list ids, size_t address):
        """Register an accumulation that is skipped while gradients are overwritten.

        step: the accumulation. ids: the tensors that then point to `address`, the gradient, so that it is computed in place."""
        self.elidable.append((step, set(ids), address))

    cdef int64_t write_size(self, object value, int64_t *target) except? -1:
        """Store and return a size or its hint; record a patch if it is symbolic."""
        if isinstance(value, SymbolicInt):
            self.program.patches.append((<char *>target - self.program.memory, value))
            target[0] = (<SymbolicInt>value).hint
        else:
            target[0] = value
        return target[0]

    cdef object write_tensor(self, Tensor *t, tuple spec):
        """Write dtype, dims and, for fixed addresses, data of a tensor. spec: the entry of `tensors`."""
        cdef int i
        t.dtype = spec[0]
        dims = spec[1]
        t.rank = len(dims)
        count = 1
        for i in range(t.rank):
            self.write_size(dims[i], &t.dims[i])
            count = count * dims[i]
        self.write_size(count, &t.count)
        t.data = <void *><size_t>spec[3] if spec[5] < 0 else <void *>(self.program.size_constants + <Py_ssize_t>spec[5])

    def finish(self):
        """Write everything as C arrays, assign arena offsets, and return the program."""
        cdef Program p = self.program
        self.set_counts()
        p.memory_bytes = p.lay_out_arrays(NULL)
        p.memory = <char *>calloc(p.memory_bytes, 1)
        if p.memory == NULL:
            raise MemoryError
        p.lay_out_arrays(p.memory)
        for i, value in enumerate(self.size_constants):
            self.write_size(value, &p.size_constants[<Py_ssize_t>i])
        for i, (size, first, last, retained) in enumerate(self.blocks):
            self.write_size(size, &p.blocks[<Py_ssize_t>i].size)
            p.blocks[<Py_ssize_t>i].first, p.blocks[<Py_ssize_t>i].last, p.blocks[<Py_ssize_t>i].is_retained = first, last, retained
        slots = self.write_steps()
        self.write_inputs_and_outputs()
        self.write_elidable(slots)
        p.assign_memory()
        p.is_built = True
        return p

    cdef object set_counts(self):
        """Set the lengths of all arrays of the program."""
        cdef Program p = self.program
        p.n_steps, p.n_blocks, p.n_elidable = len(self.steps), len(self.blocks), len(self.elidable)
        p.n_inputs, p.n_outputs, p.n_size_constants = len(self.input_ids), len(self.output_ids), len(self.size_constants)
        p.deferred_updates_start, p.deferred_gradients_start = min(p.deferred_updates_start, p.n_steps), min(p.deferred_gradients_start, p.n_steps)
        uses = [0] * len(self.tensors)
        for _, ins, outs, ints, floats, *_ in self.steps:
            p.n_slots += len(ins) + len(outs)
            p.n_ints += len(ints)
            p.n_floats += len(floats)
            for number in (*ins, *outs):
                if number >= 0:
                    uses[number] += 1
        p.n_input_slots = sum([n_uses for n_uses, tensor in zip(uses, self.tensors) if tensor[4] >= 0])
        p.n_gradient_slots = sum([uses[number] for _, ids, _ in self.elidable for number in ids])
        movable = self.movable_blocks()
        p.n_movable_slots = sum([n_uses for n_uses, tensor in zip(uses, self.tensors) if tensor[2] in movable])

    cdef set movable_blocks(self):
        """Return the blocks that hold one output, no gradient that may be written in place, and nothing that deferred steps read."""
        written = [self.tensors[number][2] for number in self.output_ids]
        gradients = {self.tensors[number][2] for _, ids, _ in self.elidable for number in ids}
        return {block for block in written if block >= 0 and written.count(block) == 1 and block not in gradients and not self.blocks[block][3]}

    cdef dict write_steps(self):
        """Write the steps; return tensor number -> its slots."""
        cdef Program p = self.program
        cdef Py_ssize_t i, slot = 0, n_ints = 0, n_floats = 0, n_input_slots = 0
        slots = {}
        for i, (address, ins, outs, ints, floats, scratch, flush, bfloat16) in enumerate(self.steps):
            p.functions[i] = <Kernel><size_t>address
            p.float_modes[i] = FLUSH_SUBNORMALS if flush else 0
            p.args[i].inputs, p.args[i].n_inputs = p.slots + slot, len(ins)
            p.args[i].outputs, p.args[i].n_outputs = p.slots + slot + len(ins), len(outs)
            p.args[i].ints, p.args[i].floats = p.ints + n_ints, p.floats + n_floats
            p.args[i].engine = &p.handle.bfloat16_engine if bfloat16 else &p.handle.engine
            p.scratch_block[i] = scratch
            for number in [*ins, *outs]:
                p.slot_block[slot] = -1
                if number >= 0:
                    spec = self.tensors[number]
                    self.write_tensor(&p.slots[slot], spec)
                    p.slot_block[slot] = spec[2]
                    slots.setdefault(number, []).append(slot)
                    if spec[4] >= 0:
                        p.input_slot[n_input_slots], p.input_index[n_input_slots] = slot, spec[4]
                        n_input_slots += 1
                slot += 1
            for value in ints:
                self.write_size(value, &p.ints[n_ints])
                n_ints += 1
            for value in floats:
                p.floats[n_floats] = value
                n_floats += 1
        return slots

    cdef object write_inputs_and_outputs(self):
        """Write the descriptions of the user inputs and outputs, and the slots of outputs that may be computed in the caller's memory."""
        cdef Program p = self.program
        cdef Py_ssize_t i, slot, n = 0
        movable = self.movable_blocks()
        for i in range(p.n_inputs):
            self.write_tensor(&p.inputs[i], self.tensors[self.input_ids[i]])
        for i in range(p.n_outputs):
            spec = self.tensors[self.output_ids[i]]
            self.write_tensor(&p.outputs[i], spec)
            p.output_source[i] = -2 - spec[4] if spec[4] >= 0 else -1
            p.output_block[i] = spec[2]
            for slot in range(p.n_slots if spec[2] in movable else 0):
                if p.slot_block[slot] == spec[2]:
                    p.movable_slot[n] = slot
                    n += 1
            p.movable_end[i] = n

    cdef object write_elidable(self, dict slots):
        """Write the elidable accumulations, in the order of their steps, and the slots of their gradients."""
        cdef Program p = self.program
        cdef Py_ssize_t i, n = 0
        for i, (step, ids, address) in enumerate(sorted(self.elidable, key=lambda entry: entry[0])):
            p.elidable_step[i] = step
            p.elidable_function[i] = p.functions[step]
            for number in ids:
                for slot in slots.get(number, ()):
                    p.gradient_slot[n] = slot
                    p.gradient_address[n] = <void *><size_t>address
                    n += 1
            if step < p.deferred_updates_start:
                p.n_immediate_elidable, p.n_immediate_gradient_slots = i + 1, n
