"""A program: a flat array of kernel calls over tensors at fixed places, run by one loop without the interpreter."""
from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy, memmove, memset
cimport numpy as cnp
from cpython.tuple cimport PyTuple_GET_ITEM, PyTuple_GET_SIZE
from ortrain._core.arrays cimport array_at, array_over, numpy_type_of, same_dtype
from ortrain._core.engine cimport SHORT, EngineHandle
from ortrain._core.kernel cimport DTYPE_INT32, ORTRAIN_MAX_RANK, STATUS_INDEX_OUT_OF_RANGE, STATUS_OK, Kernel, KernelArgs, Tensor

import numpy as np

from ortrain._core.arrays import know_extension
from ortrain.dtypes import NAMES, NUMBERS

cnp.import_array()


cdef extern from "threads.h" nogil:
    int64_t pool_clock()


cdef int check_range(const KernelArgs *a) noexcept nogil:
    """Refuses when an element of indices [n] (int64 or int32) is neither in [low, high) nor the ignored value. ints: low, high, has_ignored, ignored."""
    cdef Tensor *x = &a.inputs[0]
    cdef int64_t i, v
    cdef int64_t low = a.ints[0], high = a.ints[1], ignored = a.ints[3]
    cdef bint has_ignored = a.ints[2] != 0
    for i in range(x.count):
        v = (<int32_t *>x.data)[i] if x.dtype == DTYPE_INT32 else (<int64_t *>x.data)[i]
        if (v < low or v >= high) and not (has_ignored and v == ignored):
            return STATUS_INDEX_OUT_OF_RANGE
    return STATUS_OK


cdef int copy(const KernelArgs *a) noexcept nogil:
    """outputs[0] = inputs[0], byte for byte; ints: size of one element."""
    memcpy(a.outputs[0].data, a.inputs[0].data, a.inputs[0].count * a.ints[0])
    return STATUS_OK


cdef int skip(const KernelArgs *a) noexcept nogil:
    """Does nothing: stands in for an accumulation whose value was computed in place."""
    return STATUS_OK


cdef class PythonStep:
    """A step that is a Python callable, and the exception with which it last failed."""

    cdef object function
    cdef public object error

    def __init__(self, function):
        self.function = function

    cdef void run(self, const KernelArgs *a) except *:
        cdef Py_ssize_t i
        cdef Tensor *t
        cdef cnp.ndarray target
        results = self.function(*[array_at(&a.inputs[i]) for i in range(a.n_inputs)])
        if len(results) < a.n_outputs:
            raise ValueError(f"expected {a.n_outputs} outputs, got {len(results)}")
        for i in range(a.n_outputs):
            t = &a.outputs[i]
            if t.data == NULL:
                continue
            if results[i] is None:
                memset(t.data, 0, t.count * cnp.PyArray_DescrFromType(numpy_type_of(t.dtype)).itemsize)
                continue
            target = <cnp.ndarray>array_over(t)
            value = np.asarray(results[i])
            if value.shape != (<object>target).shape or value.dtype != (<object>target).dtype:
                raise ValueError(f"expected output {i} as {(<object>target).dtype}{list((<object>target).shape)}, got {value.dtype}{list(value.shape)}")
            target[...] = value


cdef int run_python(const KernelArgs *a) noexcept with gil:
    step = <PythonStep><void *><size_t>a.ints[0]
    try:
        step.run(a)
    except BaseException as error:
        step.error = error
        return STATUS_PYTHON_FAILED
    return STATUS_OK


cdef int python(const KernelArgs *a) noexcept nogil:
    """Takes the interpreter's lock and calls a PythonStep; ints: its address (the program keeps it alive)."""
    return run_python(a)


# what a run reports that its RunOptions stopped; kernels have codes of their own in kernel.h
cdef enum:
    STATUS_TERMINATED = 100
    STATUS_PYTHON_FAILED = 101
TERMINATED = STATUS_TERMINATED
PYTHON_FAILED = STATUS_PYTHON_FAILED
MOST_AXES = ORTRAIN_MAX_RANK

# name -> address; the planner puts these in by itself
KERNELS = {"check_range": <size_t>&check_range, "copy": <size_t>&copy, "python": <size_t>&python}


cdef class Program:
    """Built by ortrain.plan: tensors first, then steps, then finish(); then try_run() as often as wanted."""

    def __init__(self, EngineHandle handle not None):
        self.handle = handle
        self.tensors, self.steps, self.input_ids, self.output_ids, self.direct = [], [], [], [], []
        self.keep_alive, self.step_names, self.python_steps = [], [], {}
        self.failed_step = -1
        self.first_write = 0
        self.stoppable = self.late_updates = self.late_gradients = <Py_ssize_t>((~<size_t>0) >> 1)

    def __dealloc__(self):
        free(self.functions)
        free(self.args)
        free(self.modes)
        free(self.slots)
        free(self.ints)
        free(self.floats)
        free(self.input_slot)
        free(self.input_index)
        free(self.inputs)
        free(self.outputs)
        free(self.output_source)
        free(self.direct_step)
        free(self.direct_function)
        free(self.direct_slot)
        free(self.direct_address)
        free(self.direct_offset)
        free(self.arena_offset)
        free(self.scratch_offset)

    def add_tensor(self, str dtype, tuple dims, int64_t offset=-1, size_t address=0, int input=-1):
        """Adds a tensor in the arena (offset), at a fixed address, or that is a user input; returns its number. Raises ValueError for more than MOST_AXES axes."""
        if len(dims) > ORTRAIN_MAX_RANK:
            raise ValueError(f"expected at most {ORTRAIN_MAX_RANK} axes, got {len(dims)}")
        know_extension(dtype)
        self.tensors.append((NUMBERS[dtype], dims, offset, address, input))
        return len(self.tensors) - 1

    def add_step(self, str name, size_t address, list inputs, list outputs, tuple ints=(), tuple floats=(), int64_t scratch=-1, bint flush=False):
        """Adds a kernel call on tensors (numbers, -1: absent) with its packed attributes and scratch offset; returns the step's number.
        flush: subnormal numbers are zero to it."""
        self.steps.append((address, inputs, outputs, ints, floats, scratch, flush))
        self.step_names.append(name)
        return len(self.steps) - 1

    def add_python_step(self, str name, object function, list inputs, list outputs):
        """Adds a call of a Python function: arrays (None: absent) -> a sequence of one array per output; returns the step's number."""
        step = PythonStep(function)
        self.keep_alive.append(step)
        number = self.add_step(name, <size_t>&python, inputs, outputs, (<size_t><void *>step,))
        self.python_steps[number] = step
        return number

    def cause(self):
        """The exception of the Python step that failed last, None when it was no such step."""
        return self.python_steps[self.failed_step].error if self.failed_status == STATUS_PYTHON_FAILED else None

    def set_inputs(self, list ids):
        """The tensors that are the user inputs, in the order of the call."""
        self.input_ids = ids

    def set_outputs(self, list ids):
        """The tensors that are handed to the user, in order."""
        self.output_ids = ids

    def add_direct(self, int step, list ids, size_t address):
        """While gradients are overwritten, `step` is skipped and the tensors `ids` lie at `address`, the gradient itself."""
        self.direct.append((step, set(ids), address))

    cdef void describe(self, Tensor *t, tuple kind) except *:
        cdef int i
        memset(t, 0, sizeof(Tensor))
        t.dtype = kind[0]
        dims = kind[1]
        t.rank = len(dims)
        t.count = 1
        for i in range(t.rank):
            t.dims[i] = dims[i]
            t.count *= t.dims[i]
        t.data = <void *><size_t>kind[3]

    def finish(self, int64_t arena_bytes):
        """Lays the steps out as C arrays; nothing can be added afterwards."""
        cdef Py_ssize_t i, slot = 0, n_ints = 0, n_floats = 0
        self.arena_bytes = arena_bytes
        self.n_steps = len(self.steps)
        self.late_updates, self.late_gradients = min(self.late_updates, self.n_steps), min(self.late_gradients, self.n_steps)
        for _, ins, outs, ints, floats, _, _ in self.steps:
            self.n_slots += len(ins) + len(outs)
            n_ints += len(ints)
            n_floats += len(floats)
        self.functions = <Kernel *>calloc(self.n_steps + 1, sizeof(Kernel))
        self.args = <KernelArgs *>calloc(self.n_steps + 1, sizeof(KernelArgs))
        self.modes = <FloatMode *>calloc(self.n_steps + 1, sizeof(FloatMode))
        self.slots = <Tensor *>calloc(self.n_slots + 1, sizeof(Tensor))
        self.arena_offset = <int64_t *>calloc(self.n_slots + 1, sizeof(int64_t))
        self.scratch_offset = <int64_t *>calloc(self.n_steps + 1, sizeof(int64_t))
        self.ints = <int64_t *>calloc(n_ints + 1, sizeof(int64_t))
        self.floats = <double *>calloc(n_floats + 1, sizeof(double))
        self.input_slot = <Py_ssize_t *>calloc(self.n_slots + 1, sizeof(Py_ssize_t))
        self.input_index = <Py_ssize_t *>calloc(self.n_slots + 1, sizeof(Py_ssize_t))
        if not (self.functions and self.args and self.modes and self.slots and self.arena_offset and self.scratch_offset and self.ints and self.floats
                and self.input_slot and self.input_index):
            raise MemoryError
        n_ints = n_floats = 0
        slot_of = {}
        for i, (address, ins, outs, ints, floats, scratch, flush) in enumerate(self.steps):
            self.functions[i] = <Kernel><size_t>address
            self.modes[i] = FLUSH_SUBNORMALS if flush else 0
            self.args[i].inputs = self.slots + slot
            self.args[i].outputs = self.slots + slot + len(ins)
            self.args[i].n_inputs = len(ins)
            self.args[i].n_outputs = len(outs)
            self.args[i].ints = self.ints + n_ints
            self.args[i].floats = self.floats + n_floats
            self.args[i].engine = &self.handle.engine
            self.scratch_offset[i] = scratch
            for number in [*ins, *outs]:
                self.arena_offset[slot] = -1
                if number >= 0:
                    kind = self.tensors[number]
                    self.describe(&self.slots[slot], kind)
                    self.arena_offset[slot] = kind[2]
                    slot_of.setdefault(number, []).append(slot)
                    if kind[4] >= 0:
                        self.input_slot[self.n_input_slots] = slot
                        self.input_index[self.n_input_slots] = kind[4]
                        self.n_input_slots += 1
                slot += 1
            for value in ints:
                self.ints[n_ints] = value
                n_ints += 1
            for value in floats:
                self.floats[n_floats] = value
                n_floats += 1
        self.is_short = not self.python_steps and sum([self.slots[i].count for i in range(self.n_slots)]) <= SHORT
        self._lay_out_interface()
        self._lay_out_direct(slot_of)
        self.steps, self.tensors = [], []
        self.built = True

    def _lay_out_interface(self):
        cdef Py_ssize_t i
        self.n_inputs, self.n_outputs = len(self.input_ids), len(self.output_ids)
        self.inputs = <Tensor *>calloc(self.n_inputs + 1, sizeof(Tensor))
        self.outputs = <Tensor *>calloc(self.n_outputs + 1, sizeof(Tensor))
        self.output_source = <int64_t *>calloc(self.n_outputs + 1, sizeof(int64_t))
        if not (self.inputs and self.outputs and self.output_source):
            raise MemoryError
        for i in range(self.n_inputs):
            self.describe(&self.inputs[i], self.tensors[self.input_ids[i]])
        for i in range(self.n_outputs):
            kind = self.tensors[self.output_ids[i]]
            self.describe(&self.outputs[i], kind)
            self.output_source[i] = -2 - kind[4] if kind[4] >= 0 else kind[2]

    def _lay_out_direct(self, dict slot_of):
        cdef Py_ssize_t i, n = 0
        self.n_direct = len(self.direct)
        total = sum(len(slot_of.get(number, ())) for _, ids, _ in self.direct for number in ids)
        self.direct_step = <Py_ssize_t *>calloc(self.n_direct + 1, sizeof(Py_ssize_t))
        self.direct_function = <Kernel *>calloc(self.n_direct + 1, sizeof(Kernel))
        self.direct_slot = <Py_ssize_t *>calloc(total + 1, sizeof(Py_ssize_t))
        self.direct_address = <void **>calloc(total + 1, sizeof(void *))
        self.direct_offset = <int64_t *>calloc(total + 1, sizeof(int64_t))
        if not (self.direct_step and self.direct_function and self.direct_slot and self.direct_address and self.direct_offset):
            raise MemoryError
        for i, (step, ids, address) in enumerate(sorted(self.direct, key=lambda each: each[0])):
            self.direct_step[i] = step
            self.direct_function[i] = self.functions[step]
            for number in ids:
                for slot in slot_of.get(number, ()):
                    self.direct_slot[n] = slot
                    self.direct_address[n] = <void *><size_t>address
                    self.direct_offset[n] = self.arena_offset[slot]
                    n += 1
            if step < self.late_updates:
                self.n_direct_now, self.n_direct_slots_now = i + 1, n
        self.n_direct_slots = n

    def bind_arena(self, cnp.ndarray arena not None):
        """Points every tensor and scratch buffer into the arena (uint8, 64-byte aligned, at least room()), which becomes the handle's: programs bound to
        another run again when they are bound again, so that none keeps memory which the others have left."""
        if not self.built or arena.nbytes < self.room():
            raise ValueError(f"expected a finished program and an arena of {self.room()} bytes, got {arena.nbytes}")
        self.handle.arena = arena
        self.base = self.first_byte()
        self.point_into(<uint8_t *>cnp.PyArray_DATA(arena) + self.base)

    cdef Py_ssize_t first_byte(self) noexcept:
        """Where in the arena the program's part begins: behind what a train step has left there for its late steps, unless it has such steps itself."""
        return 0 if self.held_bytes else self.handle.held_bytes

    def room(self):
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

    cdef void set_overwriting(self, bint now, bint late) noexcept nogil:
        """Whether gradients are computed in their own place: those of the run itself, and late ones."""
        cdef Py_ssize_t i
        cdef bint overwrite
        for i in range(self.n_direct):
            overwrite = now if i < self.n_direct_now else late
            self.functions[self.direct_step[i]] = skip if overwrite else self.direct_function[i]
        for i in range(self.n_direct_slots):
            overwrite = now if i < self.n_direct_slots_now else late
            self.slots[self.direct_slot[i]].data = self.direct_address[i] if overwrite else <void *>(self.arena + self.direct_offset[i])
        self.overwriting, self.overwriting_late = now, late

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
        has checked. complete: whether late gradients are computed as well.
        Raises RuntimeError with the failed step in `failed_step` when a guard refuses or the run was stopped."""
        if not self.accepts(values):
            return None
        if self.execute(values, overwrite, NULL if terminate is None else &terminate[0], complete) != STATUS_OK:
            raise RuntimeError(self.step_names[self.failed_step])
        return self.results(values, out)

    cdef int execute(self, tuple values, bint overwrite, const uint8_t *stop, bint complete=True) except -1:
        """Runs the steps on inputs that it accepts, late gradients among them if complete; the status, with `failed_step` and `failed_status` where it is
        not 0."""
        cdef Py_ssize_t i
        cdef int status
        cdef int64_t *moments = self.handle.moments_of(self, self.n_steps)
        if overwrite != self.overwriting or (overwrite and complete) != self.overwriting_late:
            self.set_overwriting(overwrite, overwrite and complete)
        for i in range(self.n_input_slots):
            self.slots[self.input_slot[i]].data = cnp.PyArray_DATA(<cnp.ndarray>PyTuple_GET_ITEM(values, self.input_index[i]))
        status = self.run_section(0, self.late_updates, stop, moments)
        if status == STATUS_OK and complete and self.late_gradients < self.n_steps:
            status = self.run_section(self.late_gradients, self.n_steps, NULL, moments)
        return status

    cdef int run_late(self, Py_ssize_t first, Py_ssize_t end) except -1:
        """Runs late steps of the run before, which overwrote gradients; whatever ran in between has left alone what they read."""
        if not self.is_bound():
            self.bind_arena(self.handle.arena)
        if self.overwriting_late:
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
