"""A program: a flat array of kernel calls over tensors at fixed places, run by one loop without the interpreter."""
from libc.stdint cimport int64_t, uint8_t
from libc.stdlib cimport free
from libc.string cimport memmove
cimport numpy as cnp
from cpython.tuple cimport PyTuple_GET_ITEM, PyTuple_GET_SIZE
from ortrain._core.arrays cimport numpy_type_of, same_dtype
from ortrain._core.engine cimport SHORT, EngineHandle
from ortrain._core.builtin_kernels cimport STATUS_PYTHON_FAILED, skip
from ortrain._core.kernel cimport DTYPE_INT64, ORTRAIN_MAX_RANK, STATUS_OK, Kernel, KernelArgs, Tensor
from ortrain._core.memory_planner cimport Piece, aligned, place

import numpy as np

from ortrain.dtypes import NAMES

cnp.import_array()


cdef extern from "threads.h" nogil:
    int64_t pool_clock()


# what a run reports that its RunOptions stopped; kernels have codes of their own in kernel.h
cdef enum:
    STATUS_TERMINATED = 100
TERMINATED = STATUS_TERMINATED


cdef inline void *part(char *memory, size_t *end, Py_ssize_t count, size_t size) noexcept nogil:
    """Memory for so many elements from `end` on, which is moved behind them."""
    cdef size_t begin = end[0]
    end[0] = (begin + count * size + 63) & ~<size_t>63
    return NULL if memory == NULL else memory + begin


cdef class Program:
    """Built by an ProgramBuilder, or derived by a ProgramTemplate from one that was; then try_run() as often as wanted."""

    def __init__(self, EngineHandle handle not None):
        self.handle = handle
        self.keep_alive, self.step_names, self.python_steps, self.patches = [], [], {}, []
        self.failed_step = -1
        self.first_write = 0
        self.stoppable = self.deferred_updates = self.deferred_gradients = <Py_ssize_t>((~<size_t>0) >> 1)

    def __dealloc__(self):
        free(self.memory)

    def cause(self):
        """The exception of the Python step that failed last, None when it was no such step."""
        return self.python_steps[self.failed_step].error if self.failed_status == STATUS_PYTHON_FAILED else None

    @property
    def plan(self):
        """What the program was made from. That of one which was derived, or planned for symbolic sizes, is made when it is asked for."""
        if self.planned is None and self.template is not None:
            self.planned = self.template.plan_of(self)
        return self.planned

    @plan.setter
    def plan(self, plan):
        self.planned = plan

    @property
    def places(self):
        """(offset, size) of all blocks of the arena, in bytes."""
        return [(self.pieces[i].offset, self.pieces[i].size) for i in range(self.n_pieces)]

    cdef object tensor_as_laid_out(self, const Tensor *t, int64_t where):
        return t.dtype, tuple([t.dims[i] for i in range(t.rank)]), t.count, where

    cdef object slot_as_laid_out(self, Py_ssize_t slot):
        """A tensor of a step; of a constant shape what it holds, too."""
        cdef Tensor *t = &self.slots[slot]
        cdef bint constant = self.arena_offset[slot] < 0 and t.dtype == DTYPE_INT64 and t.count <= ORTRAIN_MAX_RANK and t.data != NULL
        for i in range(self.n_input_slots):
            constant = constant and self.input_slot[i] != slot
        held = [(<int64_t *>t.data)[i] for i in range(t.count)] if constant else []
        return self.tensor_as_laid_out(t, self.arena_offset[slot]), held

    @property
    def layout(self):
        """All that it runs on, for a comparison of programs that nobody has run: addresses of constants and of objects are left out."""
        cdef Py_ssize_t i, j, slot
        cdef KernelArgs *a
        steps = []
        for i in range(self.n_steps):
            a = &self.args[i]
            slot = a.inputs - self.slots
            tensors = [self.slot_as_laid_out(j) for j in range(slot, slot + a.n_inputs + a.n_outputs)]
            end = self.args[i + 1].ints if i + 1 < self.n_steps else self.ints + self.n_ints
            ints = [] if i in self.python_steps else [a.ints[j] for j in range(end - a.ints)]
            steps.append((self.step_names[i], tensors, ints, self.scratch_offset[i]))
        inputs = [self.tensor_as_laid_out(&self.inputs[i], 0) for i in range(self.n_inputs)]
        outputs = [self.tensor_as_laid_out(&self.outputs[i], self.output_source[i]) for i in range(self.n_outputs)]
        floats = [self.floats[i] for i in range(self.n_floats)]
        direct = [(self.direct_slot[i], self.direct_offset[i]) for i in range(self.n_direct_slots)]
        return steps, inputs, outputs, floats, direct, self.places, self.arena_bytes, self.held_bytes, self.first_lost, self.is_short

    cdef size_t carve(self, char *memory) noexcept:
        """Points all arrays into one piece of memory; returns how many bytes it has to have. Pointers from array to array are not its business."""
        cdef size_t end = 0
        self.functions = <Kernel *>part(memory, &end, self.n_steps, sizeof(Kernel))
        self.args = <KernelArgs *>part(memory, &end, self.n_steps, sizeof(KernelArgs))
        self.modes = <FloatMode *>part(memory, &end, self.n_steps, sizeof(FloatMode))
        self.slots = <Tensor *>part(memory, &end, self.n_slots, sizeof(Tensor))
        self.ints = <int64_t *>part(memory, &end, self.n_ints, sizeof(int64_t))
        self.floats = <double *>part(memory, &end, self.n_floats, sizeof(double))
        self.numbers = <int64_t *>part(memory, &end, self.n_numbers, sizeof(int64_t))
        self.input_slot = <Py_ssize_t *>part(memory, &end, self.n_input_slots, sizeof(Py_ssize_t))
        self.input_index = <Py_ssize_t *>part(memory, &end, self.n_input_slots, sizeof(Py_ssize_t))
        self.inputs = <Tensor *>part(memory, &end, self.n_inputs, sizeof(Tensor))
        self.outputs = <Tensor *>part(memory, &end, self.n_outputs, sizeof(Tensor))
        self.output_source = <int64_t *>part(memory, &end, self.n_outputs, sizeof(int64_t))
        self.output_piece = <Py_ssize_t *>part(memory, &end, self.n_outputs, sizeof(Py_ssize_t))
        self.direct_step = <Py_ssize_t *>part(memory, &end, self.n_direct, sizeof(Py_ssize_t))
        self.direct_function = <Kernel *>part(memory, &end, self.n_direct, sizeof(Kernel))
        self.direct_slot = <Py_ssize_t *>part(memory, &end, self.n_direct_slots, sizeof(Py_ssize_t))
        self.direct_address = <void **>part(memory, &end, self.n_direct_slots, sizeof(void *))
        self.direct_offset = <int64_t *>part(memory, &end, self.n_direct_slots, sizeof(int64_t))
        self.pieces = <Piece *>part(memory, &end, self.n_pieces, sizeof(Piece))
        self.slot_piece = <Py_ssize_t *>part(memory, &end, self.n_slots, sizeof(Py_ssize_t))
        self.arena_offset = <int64_t *>part(memory, &end, self.n_slots, sizeof(int64_t))
        self.scratch_piece = <Py_ssize_t *>part(memory, &end, self.n_steps, sizeof(Py_ssize_t))
        self.scratch_offset = <int64_t *>part(memory, &end, self.n_steps, sizeof(int64_t))
        return end

    cdef void *moved(self, void *data, Program first) noexcept:
        """Where data are that lay at some place in another program: elsewhere, if that was in its own memory."""
        cdef char *where = <char *>data
        return self.memory + (where - first.memory) if first.memory <= where < first.memory + first.memory_bytes else data

    cdef void become(self, Program first) except *:
        """Takes over what another program is, in a memory of its own that holds it already but for sizes."""
        cdef Py_ssize_t i
        self.handle, self.keep_alive, self.step_names, self.python_steps = first.handle, first.keep_alive, first.step_names, first.python_steps
        self.deferred_names, self.input_names = first.deferred_names, first.input_names
        self.n_steps, self.n_slots, self.n_ints, self.n_floats, self.n_numbers = first.n_steps, first.n_slots, first.n_ints, first.n_floats, first.n_numbers
        self.n_inputs, self.n_outputs, self.n_pieces, self.n_input_slots = first.n_inputs, first.n_outputs, first.n_pieces, first.n_input_slots
        self.n_direct, self.n_direct_slots = first.n_direct, first.n_direct_slots
        self.n_direct_now, self.n_direct_slots_now = first.n_direct_now, first.n_direct_slots_now
        self.first_write, self.stoppable = first.first_write, first.stoppable
        self.deferred_updates, self.deferred_gradients = first.deferred_updates, first.deferred_gradients
        self.failed_step = -1
        self.memory_bytes = self.carve(self.memory)
        for i in range(self.n_steps):
            self.args[i].inputs = self.slots + (first.args[i].inputs - first.slots)
            self.args[i].outputs = self.slots + (first.args[i].outputs - first.slots)
            self.args[i].ints = self.ints + (first.args[i].ints - first.ints)
            self.args[i].floats = self.floats + (first.args[i].floats - first.floats)
        if self.n_numbers:
            for i in range(self.n_slots):
                self.slots[i].data = self.moved(self.slots[i].data, first)
            for i in range(self.n_outputs):
                self.outputs[i].data = self.moved(self.outputs[i].data, first)
        self.find_places()
        self.built = True

    cdef void find_places(self) except *:
        """Gives every block its place in the arena, and says so wherever it matters."""
        cdef Py_ssize_t i, count = 0
        self.arena_bytes = place(self.pieces, self.n_pieces)
        if self.arena_bytes < 0:
            raise MemoryError
        for i in range(self.n_slots):
            self.arena_offset[i] = self.pieces[self.slot_piece[i]].offset if self.slot_piece[i] >= 0 else -1
            count += self.slots[i].count
        for i in range(self.n_steps):
            self.scratch_offset[i] = self.pieces[self.scratch_piece[i]].offset if self.scratch_piece[i] >= 0 else -1
        for i in range(self.n_outputs):
            if self.output_piece[i] >= 0:
                self.output_source[i] = self.pieces[self.output_piece[i]].offset
        for i in range(self.n_direct_slots):
            self.direct_offset[i] = self.arena_offset[self.direct_slot[i]]
        self.held_bytes = self.first_lost = 0
        for i in range(self.n_pieces):
            if self.pieces[i].kept:
                self.held_bytes = max(self.held_bytes, self.pieces[i].offset + aligned(self.pieces[i].size))
        if self.held_bytes:
            self.first_lost = min([self.pieces[i].first for i in range(self.n_pieces) if self.pieces[i].offset < self.held_bytes])
        self.is_short = not self.python_steps and count <= SHORT

    cpdef object bind_arena(self, cnp.ndarray arena):
        """Points every tensor and scratch buffer into the arena (uint8, 64-byte aligned, at least room()), which becomes the handle's: programs bound to
        another run again when they are bound again, so that none keeps memory which the others have left."""
        if arena is None or not self.built or arena.nbytes < self.room():
            raise ValueError(f"expected a finished program and an arena of {self.room()} bytes, got {None if arena is None else arena.nbytes}")
        self.handle.arena = arena
        self.base = self.first_byte()
        self.point_into(<uint8_t *>cnp.PyArray_DATA(arena) + self.base)

    cdef Py_ssize_t first_byte(self) noexcept:
        """Where in the arena the program's part begins: behind what a train step has left there for its deferred steps, unless it has such steps itself."""
        return 0 if self.held_bytes else self.handle.held_bytes

    cpdef Py_ssize_t room(self) noexcept:
        """The bytes that an arena has to have for it."""
        return self.first_byte() + self.arena_bytes

    cdef void point_into(self, uint8_t *arena) noexcept nogil:
        cdef Py_ssize_t i
        self.arena = arena
        for i in range(self.n_slots):
            if self.arena_offset[i] >= 0:
                self.slots[i].data = self.arena + self.arena_offset[i]
        for i in range(self.n_steps):
            self.args[i].scratch = self.arena + self.scratch_offset[i] if self.scratch_offset[i] >= 0 else NULL
        self.set_overwriting(False, False)

    cdef void set_overwriting(self, bint now, bint deferred) noexcept nogil:
        """Whether gradients are computed in their own place: those of the run itself, and deferred ones."""
        cdef Py_ssize_t i
        cdef bint overwrite
        for i in range(self.n_direct):
            overwrite = now if i < self.n_direct_now else deferred
            self.functions[self.direct_step[i]] = skip if overwrite else self.direct_function[i]
        for i in range(self.n_direct_slots):
            overwrite = now if i < self.n_direct_slots_now else deferred
            self.slots[self.direct_slot[i]].data = self.direct_address[i] if overwrite else <void *>(self.arena + self.direct_offset[i])
        self.overwriting, self.overwriting_deferred = now, deferred

    cdef bint is_bound(self) noexcept:
        """Whether the handle's arena is where the program's tensors lie."""
        arena = self.handle.arena
        return (arena is not None and self.base == self.first_byte() and self.arena == <uint8_t *>cnp.PyArray_DATA(<cnp.ndarray>arena) + self.base
                and cnp.PyArray_NBYTES(<cnp.ndarray>arena) >= self.base + self.arena_bytes)

    cdef bint accepts(self, tuple values) noexcept:
        """Whether the program can run on these inputs as they are."""
        cdef Py_ssize_t i
        cdef int d
        cdef cnp.ndarray x
        cdef object value
        if PyTuple_GET_SIZE(values) != self.n_inputs or not self.is_bound():
            return False
        for i in range(self.n_inputs):
            value = <object>PyTuple_GET_ITEM(values, i)
            if not cnp.PyArray_CheckExact(value):
                return False
            x = <cnp.ndarray>value
            if (cnp.PyArray_NDIM(x) != self.inputs[i].rank or not cnp.PyArray_ISCARRAY_RO(x)
                    or not same_dtype(cnp.PyArray_TYPE(x), self.inputs[i].dtype)):
                return False
            for d in range(self.inputs[i].rank):
                if cnp.PyArray_DIMS(x)[d] != self.inputs[i].dims[d]:
                    return False
        return True

    def try_run(self, tuple values, bint overwrite=False, const uint8_t[::1] terminate=None, list out=None, bint complete=True):
        """The outputs as fresh arrays; None when the inputs are not exactly what the program was planned for, or the arena is another than it was bound to.

        terminate: one byte that another thread may set: the run then stops before its next step, unless it is past `stoppable`. out: arrays that receive the outputs, which misfit()
        has checked. complete: whether deferred gradients are computed as well.
        Raises RuntimeError with the failed step in `failed_step` when a guard refuses or the run was stopped."""
        if not self.accepts(values):
            return None
        if self.execute(values, overwrite, NULL if terminate is None else &terminate[0], complete) != STATUS_OK:
            raise RuntimeError(self.step_names[self.failed_step])
        return self.results(values, out)

    cdef int execute(self, tuple values, bint overwrite, const uint8_t *stop, bint complete=True) except -1:
        """Runs the steps on inputs that it accepts, deferred gradients among them if complete; the status, with `failed_step` and `failed_status` where it is
        not 0."""
        cdef Py_ssize_t i
        cdef int status
        cdef int64_t *moments = self.handle.moments_of(self, self.n_steps)
        if overwrite != self.overwriting or (overwrite and complete) != self.overwriting_deferred:
            self.set_overwriting(overwrite, overwrite and complete)
        for i in range(self.n_input_slots):
            self.slots[self.input_slot[i]].data = cnp.PyArray_DATA(<cnp.ndarray>PyTuple_GET_ITEM(values, self.input_index[i]))
        status = self.run_section(0, self.deferred_updates, stop, moments)
        if status == STATUS_OK and complete and self.deferred_gradients < self.n_steps:
            status = self.run_section(self.deferred_gradients, self.n_steps, NULL, moments)
        return status

    cdef int run_deferred(self, Py_ssize_t first, Py_ssize_t end) except -1:
        """Runs deferred steps of the run before, which overwrote gradients; whatever ran in between has left alone what they read."""
        if not self.is_bound():
            self.bind_arena(self.handle.arena)
        if self.overwriting_deferred:
            self.set_overwriting(self.overwriting, False)
        return self.run_section(first, end, NULL, self.handle.moments_of(self, self.n_steps))

    cdef int run_section(self, Py_ssize_t first, Py_ssize_t end, const uint8_t *stop, int64_t *moments) except -1:
        """Runs steps from `first` up to `end`, measured if there is a place for moments."""
        cdef int status
        self.handle.running = True
        self.handle.runs += 1
        if self.is_short and moments == NULL:
            status = self.run_alone(first, end, stop)
        else:
            with nogil:
                status = self.run_steps(first, end, stop) if moments == NULL else self.run_timed(first, end, stop, moments)
        self.handle.running = False
        if status != STATUS_OK:
            self.failed_status = status
        return status

    cdef int run_step(self, Py_ssize_t i, FloatMode outside, FloatMode *mode) noexcept nogil:
        """Runs one step in its float mode; `mode` is the thread's at present."""
        cdef FloatMode wanted = outside | self.modes[i]
        if wanted != mode[0]:
            mode[0] = wanted
            set_float_mode(wanted)
        return self.functions[i](&self.args[i])

    cdef int run_steps(self, Py_ssize_t first, Py_ssize_t end, const uint8_t *stop) noexcept nogil:
        """Runs steps up to one that fails, or until `stop` is set."""
        cdef Py_ssize_t i
        cdef int status = STATUS_OK
        cdef FloatMode outside = float_mode(), mode = outside
        for i in range(first, end):
            status = STATUS_TERMINATED if stop != NULL and i < self.stoppable and stop[0] != 0 else self.run_step(i, outside, &mode)
            if status != STATUS_OK:
                self.failed_step = i
                break
        set_float_mode(outside)
        return status

    cdef int run_alone(self, Py_ssize_t first, Py_ssize_t end, const uint8_t *stop) noexcept:
        """The same with the interpreter's lock held, on this thread alone: another might need that lock, for SciPy's BLAS is fetched when a product asks for it."""
        cdef void *pool = self.handle.engine.pool
        self.handle.engine.pool = NULL
        status = self.run_steps(first, end, stop)
        self.handle.engine.pool = pool
        return status

    cdef int run_timed(self, Py_ssize_t first, Py_ssize_t end, const uint8_t *stop, int64_t *moments) noexcept nogil:
        """The same, and the time in nanoseconds at the start and after every step."""
        cdef Py_ssize_t i
        cdef int status = STATUS_OK
        cdef FloatMode outside = float_mode(), mode = outside
        moments[first] = pool_clock()
        for i in range(first, end):
            status = STATUS_TERMINATED if stop != NULL and i < self.stoppable and stop[0] != 0 else self.run_step(i, outside, &mode)
            moments[i + 1] = pool_clock()
            if status != STATUS_OK:
                self.failed_step = i
                break
        set_float_mode(outside)
        return status

    cdef int run_on(self, void **inputs) noexcept nogil:
        """Runs the steps on inputs that are known to fit, for a program that is part of another."""
        cdef Py_ssize_t i
        cdef int status
        for i in range(self.n_input_slots):
            self.slots[self.input_slot[i]].data = inputs[self.input_index[i]]
        status = self.run_steps(0, self.n_steps, NULL)
        if status != STATUS_OK:
            self.failed_status = status
        return status

    cdef void *output_data(self, Py_ssize_t index, void **inputs) noexcept nogil:
        """Where an output lies after a run on these inputs."""
        if self.output_source[index] >= 0:
            return self.arena + self.output_source[index]
        return self.outputs[index].data if self.output_source[index] == -1 else inputs[-2 - self.output_source[index]]

    def misfit(self, list out not None):
        """What is wrong with arrays that are to receive the outputs (None: a fresh one is made): (number, dtype name, shape) of the first, or None."""
        cdef Py_ssize_t i
        for i in range(self.n_outputs):
            if out[i] is None:
                continue
            shape = tuple([self.outputs[i].dims[d] for d in range(self.outputs[i].rank)])
            fits = (isinstance(out[i], np.ndarray) and same_dtype(cnp.PyArray_TYPE(<cnp.ndarray>out[i]), self.outputs[i].dtype)
                    and out[i].shape == shape and cnp.PyArray_ISCARRAY(<cnp.ndarray>out[i]))
            if not fits:
                return i, NAMES[self.outputs[i].dtype], shape
        return None

    cdef list results(self, tuple values, list out_arrays):
        """The outputs, copied out of the arena into the given arrays (checked by misfit) or into fresh ones."""
        cdef Py_ssize_t i
        cdef cnp.npy_intp dims[8]
        cdef int d
        cdef cnp.ndarray out
        cdef void *source
        cdef list found = []
        for i in range(self.n_outputs):
            for d in range(self.outputs[i].rank):
                dims[d] = self.outputs[i].dims[d]
            if out_arrays is not None and out_arrays[i] is not None:
                out = <cnp.ndarray>out_arrays[i]
            else:
                out = cnp.PyArray_EMPTY(self.outputs[i].rank, dims, numpy_type_of(self.outputs[i].dtype), 0)
            if self.output_source[i] >= 0:
                source = self.arena + self.output_source[i]
            elif self.output_source[i] == -1:
                source = self.outputs[i].data
            else:
                source = cnp.PyArray_DATA(<cnp.ndarray>PyTuple_GET_ITEM(values, -2 - self.output_source[i]))
            memmove(cnp.PyArray_DATA(out), source, cnp.PyArray_NBYTES(out))     # an input may be the output's own array
            found.append(out)
        return found
