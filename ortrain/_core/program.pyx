"""Programs: flat arrays of kernel calls on tensors at fixed addresses, run by one loop without the Python interpreter."""
from libc.stdint cimport int64_t, uint8_t
from libc.stdlib cimport free
from libc.string cimport memmove
cimport numpy as cnp
from cpython.list cimport PyList_GET_ITEM
from cpython.tuple cimport PyTuple_GET_ITEM, PyTuple_GET_SIZE
from ortrain._core.arrays cimport numpy_type_number, is_same_dtype, tensor_bytes
from ortrain._core.engine cimport MAX_ELEMENTS_WITH_GIL, EngineHandle
from ortrain._core.builtin_kernels cimport STATUS_PYTHON_FAILED, no_op
from ortrain._core.kernel cimport STATUS_OK, Kernel, KernelArgs, Tensor
from ortrain._core.memory_planner cimport Block, aligned, assign_offsets

from ortrain.dtypes import NAMES

cnp.import_array()


cdef extern from "operating_system.h" nogil:
    int64_t monotonic_clock()


# the status of a run that RunOptions terminated; kernel.h has the codes that kernels return
cdef enum:
    STATUS_TERMINATED = 100
TERMINATED = STATUS_TERMINATED

cdef enum:
    MAX_COPY = 64               # bytes of an output that is copied: that takes less time than to let its steps compute it elsewhere


cdef inline void *take_array(char *memory, size_t *end, Py_ssize_t count, size_t size) noexcept nogil:
    """Return memory for `count` elements at `end`, which moves behind them, rounded up to 64 bytes; NULL if memory is NULL."""
    cdef size_t begin = end[0]
    end[0] = (begin + count * size + 63) & ~<size_t>63
    return NULL if memory == NULL else memory + begin


cdef inline bint overlap(const char *a, Py_ssize_t a_size, const char *b, Py_ssize_t b_size) noexcept nogil:
    """Return True if two ranges of bytes share any."""
    return a < b + b_size and b < a + a_size


cdef inline bint array_overlaps(cnp.ndarray array, const char *start, Py_ssize_t size) noexcept:
    return overlap(<const char *>cnp.PyArray_DATA(array), cnp.PyArray_NBYTES(array), start, size)


cdef class Program:
    """A sequence of kernel calls, built by a ProgramBuilder or specialized by a ProgramTemplate. try_run() runs it any number of times."""

    def __init__(self, EngineHandle handle not None):
        self.handle = handle
        self.keep_alive, self.step_names, self.python_steps, self.patches = [], [], {}, []
        self.failed_step = -1
        self.first_write_step = 0
        self.n_interruptible_steps = self.deferred_updates_start = self.deferred_gradients_start = <Py_ssize_t>((~<size_t>0) >> 1)

    def __dealloc__(self):
        free(self.memory)

    def python_error(self):
        """Return the exception of the Python step that failed last, None if the run failed for another reason."""
        return self.python_steps[self.failed_step].error if self.failed_status == STATUS_PYTHON_FAILED else None

    @property
    def plan(self):
        """The plan that the program was built from. A template computes it on first access for programs with symbolic sizes."""
        if self.cached_plan is None and self.template is not None:
            self.cached_plan = self.template.plan_of(self)
        return self.cached_plan

    @plan.setter
    def plan(self, plan):
        self.cached_plan = plan

    @property
    def block_extents(self):
        """(offset, size) of all blocks of the arena in bytes; sizes are not rounded up."""
        return [(self.blocks[i].offset, self.blocks[i].size) for i in range(self.n_blocks)]

    cdef size_t lay_out_arrays(self, char *memory) noexcept:
        """Point all arrays into one allocation and return the bytes that it needs.

        memory: NULL to compute the size only. Pointers between arrays are set elsewhere."""
        cdef size_t end = 0
        self.functions = <Kernel *>take_array(memory, &end, self.n_steps, sizeof(Kernel))
        self.args = <KernelArgs *>take_array(memory, &end, self.n_steps, sizeof(KernelArgs))
        self.float_modes = <FloatMode *>take_array(memory, &end, self.n_steps, sizeof(FloatMode))
        self.slots = <Tensor *>take_array(memory, &end, self.n_slots, sizeof(Tensor))
        self.ints = <int64_t *>take_array(memory, &end, self.n_ints, sizeof(int64_t))
        self.floats = <double *>take_array(memory, &end, self.n_floats, sizeof(double))
        self.size_constants = <int64_t *>take_array(memory, &end, self.n_size_constants, sizeof(int64_t))
        self.input_slot = <Py_ssize_t *>take_array(memory, &end, self.n_input_slots, sizeof(Py_ssize_t))
        self.input_index = <Py_ssize_t *>take_array(memory, &end, self.n_input_slots, sizeof(Py_ssize_t))
        self.inputs = <Tensor *>take_array(memory, &end, self.n_inputs, sizeof(Tensor))
        self.outputs = <Tensor *>take_array(memory, &end, self.n_outputs, sizeof(Tensor))
        self.output_source = <int64_t *>take_array(memory, &end, self.n_outputs, sizeof(int64_t))
        self.output_block = <Py_ssize_t *>take_array(memory, &end, self.n_outputs, sizeof(Py_ssize_t))
        self.movable_slot = <Py_ssize_t *>take_array(memory, &end, self.n_movable_slots, sizeof(Py_ssize_t))
        self.movable_end = <Py_ssize_t *>take_array(memory, &end, self.n_outputs, sizeof(Py_ssize_t))
        self.moved_to = <void **>take_array(memory, &end, self.n_outputs, sizeof(void *))
        self.elidable_step = <Py_ssize_t *>take_array(memory, &end, self.n_elidable, sizeof(Py_ssize_t))
        self.elidable_function = <Kernel *>take_array(memory, &end, self.n_elidable, sizeof(Kernel))
        self.gradient_slot = <Py_ssize_t *>take_array(memory, &end, self.n_gradient_slots, sizeof(Py_ssize_t))
        self.gradient_address = <void **>take_array(memory, &end, self.n_gradient_slots, sizeof(void *))
        self.gradient_offset = <int64_t *>take_array(memory, &end, self.n_gradient_slots, sizeof(int64_t))
        self.blocks = <Block *>take_array(memory, &end, self.n_blocks, sizeof(Block))
        self.slot_block = <Py_ssize_t *>take_array(memory, &end, self.n_slots, sizeof(Py_ssize_t))
        self.arena_offset = <int64_t *>take_array(memory, &end, self.n_slots, sizeof(int64_t))
        self.scratch_block = <Py_ssize_t *>take_array(memory, &end, self.n_steps, sizeof(Py_ssize_t))
        self.scratch_offset = <int64_t *>take_array(memory, &end, self.n_steps, sizeof(int64_t))
        return end

    cdef void *relocate(self, void *data, Program base) noexcept:
        """Return the address in this program of data of another one; data outside of its memory stay where they are."""
        cdef char *address = <char *>data
        return self.memory + (address - base.memory) if base.memory <= address < base.memory + base.memory_bytes else data

    cdef void copy_from(self, Program base) except *:
        """Become a copy of another program, whose memory has been copied and patched with other sizes."""
        cdef Py_ssize_t i
        self.handle, self.keep_alive, self.step_names, self.python_steps = base.handle, base.keep_alive, base.step_names, base.python_steps
        self.deferred_names, self.input_names = base.deferred_names, base.input_names
        self.n_steps, self.n_slots, self.n_ints, self.n_floats = base.n_steps, base.n_slots, base.n_ints, base.n_floats
        self.n_size_constants = base.n_size_constants
        self.n_inputs, self.n_outputs, self.n_blocks, self.n_input_slots = base.n_inputs, base.n_outputs, base.n_blocks, base.n_input_slots
        self.n_elidable, self.n_gradient_slots, self.n_movable_slots = base.n_elidable, base.n_gradient_slots, base.n_movable_slots
        self.n_immediate_elidable, self.n_immediate_gradient_slots = base.n_immediate_elidable, base.n_immediate_gradient_slots
        self.first_write_step, self.n_interruptible_steps = base.first_write_step, base.n_interruptible_steps
        self.deferred_updates_start, self.deferred_gradients_start = base.deferred_updates_start, base.deferred_gradients_start
        self.failed_step = -1
        self.memory_bytes = self.lay_out_arrays(self.memory)
        for i in range(self.n_steps):
            self.args[i].inputs = self.slots + (base.args[i].inputs - base.slots)
            self.args[i].outputs = self.slots + (base.args[i].outputs - base.slots)
            self.args[i].ints = self.ints + (base.args[i].ints - base.ints)
            self.args[i].floats = self.floats + (base.args[i].floats - base.floats)
        if self.n_size_constants:
            for i in range(self.n_slots):
                self.slots[i].data = self.relocate(self.slots[i].data, base)
            for i in range(self.n_outputs):
                self.outputs[i].data = self.relocate(self.outputs[i].data, base)
        self.assign_memory()
        self.is_built = True

    cdef void assign_memory(self) except *:
        """Assign an offset to every block of the arena, and set everything that depends on the offsets."""
        cdef Py_ssize_t i, count = 0
        self.arena_bytes = assign_offsets(self.blocks, self.n_blocks)
        if self.arena_bytes < 0:
            raise MemoryError
        for i in range(self.n_slots):
            self.arena_offset[i] = self.blocks[self.slot_block[i]].offset if self.slot_block[i] >= 0 else -1
            count += self.slots[i].count
        for i in range(self.n_steps):
            self.scratch_offset[i] = self.blocks[self.scratch_block[i]].offset if self.scratch_block[i] >= 0 else -1
        for i in range(self.n_outputs):
            if self.output_block[i] >= 0:
                self.output_source[i] = self.blocks[self.output_block[i]].offset
        for i in range(self.n_gradient_slots):
            self.gradient_offset[i] = self.arena_offset[self.gradient_slot[i]]
        self.retained_bytes = self.first_clobbering_step = 0
        for i in range(self.n_blocks):
            if self.blocks[i].is_retained:
                self.retained_bytes = max(self.retained_bytes, self.blocks[i].offset + aligned(self.blocks[i].size))
        if self.retained_bytes:
            self.first_clobbering_step = min([self.blocks[i].first for i in range(self.n_blocks) if self.blocks[i].offset < self.retained_bytes])
        self.keeps_gil = not self.python_steps and count <= MAX_ELEMENTS_WITH_GIL

    cpdef object bind_arena(self, cnp.ndarray arena):
        """Point all tensors and scratch buffers into an arena, which becomes the arena of the engine.

        arena: uint8, aligned to 64 bytes, at least required_arena_bytes(). Programs that were bound to another arena have to be bound again before they run, so
        that no program keeps an outgrown arena alive."""
        if arena is None or not self.is_built or arena.nbytes < self.required_arena_bytes():
            raise ValueError(f"expected a finished program and an arena of {self.required_arena_bytes()} bytes, got {None if arena is None else arena.nbytes}")
        self.handle.arena = arena
        self.arena_base = self.arena_start()
        self.bind_pointers(<uint8_t *>cnp.PyArray_DATA(arena) + self.arena_base)

    cdef Py_ssize_t arena_start(self) noexcept:
        """Return the offset in the arena where the program's blocks start.

        A program without deferred steps starts behind the bytes that a train step has retained for its deferred steps."""
        return 0 if self.retained_bytes else self.handle.retained_bytes

    cpdef Py_ssize_t required_arena_bytes(self) noexcept:
        """Return the bytes that an arena needs for the program."""
        return self.arena_start() + self.arena_bytes

    cdef void bind_pointers(self, uint8_t *arena) noexcept nogil:
        """Point all tensors and scratch buffers to their offsets from `arena`."""
        cdef Py_ssize_t i
        self.arena = arena
        for i in range(self.n_slots):
            if self.arena_offset[i] >= 0:
                self.slots[i].data = self.arena + self.arena_offset[i]
        for i in range(self.n_steps):
            self.args[i].scratch = self.arena + self.scratch_offset[i] if self.scratch_offset[i] >= 0 else NULL
        for i in range(self.n_outputs):
            self.moved_to[i] = NULL
        self.set_gradient_overwrite(False, False)

    cdef void set_gradient_overwrite(self, bint immediate, bint deferred) noexcept nogil:
        """Choose whether gradients are written in place instead of accumulated.

        immediate: for the gradients of the run itself. deferred: for deferred gradients."""
        cdef Py_ssize_t i
        cdef bint overwrite
        for i in range(self.n_elidable):
            overwrite = immediate if i < self.n_immediate_elidable else deferred
            self.functions[self.elidable_step[i]] = no_op if overwrite else self.elidable_function[i]
        for i in range(self.n_gradient_slots):
            overwrite = immediate if i < self.n_immediate_gradient_slots else deferred
            self.slots[self.gradient_slot[i]].data = self.gradient_address[i] if overwrite else <void *>(self.arena + self.gradient_offset[i])
        self.is_overwriting, self.is_overwriting_deferred = immediate, deferred

    cdef bint is_bound(self) noexcept:
        """Return True if the tensors point into the current arena of the engine."""
        arena = self.handle.arena
        return (arena is not None and self.arena_base == self.arena_start() and self.arena == <uint8_t *>cnp.PyArray_DATA(<cnp.ndarray>arena) + self.arena_base
                and cnp.PyArray_NBYTES(<cnp.ndarray>arena) >= self.arena_base + self.arena_bytes)

    cdef bint accepts(self, tuple values) noexcept:
        """Return True if the program is bound and these inputs have the planned number, types, shapes and a contiguous layout."""
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
                    or not is_same_dtype(cnp.PyArray_TYPE(x), self.inputs[i].dtype)):
                return False
            for d in range(self.inputs[i].rank):
                if cnp.PyArray_DIMS(x)[d] != self.inputs[i].dims[d]:
                    return False
        return True

    def try_run(self, tuple values, bint overwrite=False, cnp.ndarray terminate=None, list out=None, bint all_gradients=True):
        """Run the program and return its outputs; None if accepts() is False for the inputs.

        overwrite: overwrite gradients instead of accumulating them. terminate: one byte that another thread may set to 1; the run then stops before its next
        interruptible step. out: arrays that receive the outputs, checked by find_output_mismatch(); None for new arrays. Where they share no memory with what the
        program reads, it computes in them, so that they hold anything after an error. all_gradients: compute deferred gradients too.

        Raises RuntimeError when a guard refuses the inputs, a Python step fails or the run is terminated; `failed_step` and `failed_status` tell which."""
        if not self.accepts(values):
            return None
        results = self.run_into(values, out, overwrite, NULL if terminate is None else <const uint8_t *>cnp.PyArray_DATA(terminate), all_gradients)
        if results is None:
            raise RuntimeError(self.step_names[self.failed_step])
        return results

    def try_run_watched(self, tuple values, bint overwrite, cnp.ndarray terminate, list out, list watched not None, object ready not None):
        """As try_run() with all gradients, and a call of ready(i) as soon as no further step reads or writes the memory of the array watched[i], a gradient.

        What ready() raises is raised here, and the other steps have not run then; False is returned where a step fails."""
        cdef int status = STATUS_OK
        cdef Py_ssize_t first = 0, end
        cdef int64_t *timestamps
        cdef list outputs
        cdef const uint8_t *terminate_flag = NULL if terminate is None else <const uint8_t *>cnp.PyArray_DATA(terminate)
        if not self.accepts(values):
            return None
        outputs = self.make_outputs(out)
        self.point_inputs(values)
        self.move_outputs(values, out, outputs)
        timestamps = self.handle.timestamp_buffer(self, self.n_steps)
        if overwrite != self.is_overwriting or overwrite != self.is_overwriting_deferred:
            self.set_gradient_overwrite(overwrite, overwrite)
        for end, index in [*sorted([(self.end_of_use(array), index) for index, array in enumerate(watched)]), (self.n_steps, None)]:
            if first < self.deferred_updates_start:
                status = self.run_range(first, min(end, self.deferred_updates_start), terminate_flag, timestamps)
            if status == STATUS_OK and end > self.deferred_gradients_start:
                status = self.run_range(max(first, self.deferred_gradients_start), end, NULL, timestamps)
            if status != STATUS_OK:
                return False
            first = end
            if index is not None:
                self.handle.is_running = True
                try:
                    ready(index)
                finally:
                    self.handle.is_running = False
        self.copy_outputs(values, outputs)
        return outputs

    def end_of_use(self, cnp.ndarray array not None):
        """Return the number of the step before which the last one that reads or writes an array's memory has run; the number of steps where none does."""
        cdef const char *start = <const char *>cnp.PyArray_DATA(array)
        cdef const char *stop = start + cnp.PyArray_NBYTES(array)
        cdef Py_ssize_t i, k
        for i in range(self.n_steps - 1, -1, -1):
            if self.deferred_updates_start <= i < self.deferred_gradients_start:
                continue
            for k in range(self.args[i].n_inputs):
                if start <= <const char *>self.args[i].inputs[k].data < stop:
                    return i + 1
            for k in range(self.args[i].n_outputs):
                if start <= <const char *>self.args[i].outputs[k].data < stop:
                    return i + 1
        return self.n_steps

    cdef list run_into(self, tuple values, list out, bint overwrite, const uint8_t *terminate_flag, bint all_gradients):
        """Run the steps on accepted inputs; return the outputs, in the arrays of `out` where it has any. None if a step failed, as execute() describes."""
        cdef list outputs = self.make_outputs(out)
        self.point_inputs(values)
        self.move_outputs(values, out, outputs)
        if self.execute(overwrite, terminate_flag, all_gradients) != STATUS_OK:
            return None
        self.copy_outputs(values, outputs)
        return outputs

    cdef void point_inputs(self, tuple values) noexcept:
        """Point the steps to accepted inputs."""
        cdef Py_ssize_t i
        for i in range(self.n_input_slots):
            self.slots[self.input_slot[i]].data = cnp.PyArray_DATA(<cnp.ndarray>PyTuple_GET_ITEM(values, self.input_index[i]))

    cdef int execute(self, bint overwrite, const uint8_t *terminate_flag, bint all_gradients=True) except -1:
        """Run the steps on their inputs; return the status, after setting `failed_step` and `failed_status` if it is not 0.

        all_gradients: compute deferred gradients too."""
        cdef int status
        cdef int64_t *timestamps = self.handle.timestamp_buffer(self, self.n_steps)
        if overwrite != self.is_overwriting or (overwrite and all_gradients) != self.is_overwriting_deferred:
            self.set_gradient_overwrite(overwrite, overwrite and all_gradients)
        status = self.run_range(0, self.deferred_updates_start, terminate_flag, timestamps)
        if status == STATUS_OK and all_gradients and self.deferred_gradients_start < self.n_steps:
            status = self.run_range(self.deferred_gradients_start, self.n_steps, NULL, timestamps)
        return status

    cdef int run_deferred(self, Py_ssize_t first, Py_ssize_t end) except -1:
        """Run deferred steps of the previous overwriting run; the arena still holds what they read."""
        if not self.is_bound():
            self.bind_arena(self.handle.arena)
        if self.is_overwriting_deferred:
            self.set_gradient_overwrite(self.is_overwriting, False)
        return self.run_range(first, end, NULL, self.handle.timestamp_buffer(self, self.n_steps))

    cdef int run_range(self, Py_ssize_t first, Py_ssize_t end, const uint8_t *terminate_flag, int64_t *timestamps) except -1:
        """Run steps first..end-1 with or without the GIL.

        timestamps: int64 [n_steps + 1], NULL while nothing is profiled."""
        cdef int status
        self.handle.is_running = True
        self.handle.n_runs += 1
        if self.keeps_gil and timestamps == NULL:
            status = self.run_steps_with_gil(first, end, terminate_flag)
        else:
            with nogil:
                status = self.run_steps(first, end, terminate_flag) if timestamps == NULL else self.run_steps_timed(first, end, terminate_flag, timestamps)
        self.handle.is_running = False
        if status != STATUS_OK:
            self.failed_status = status
        return status

    cdef int run_step(self, Py_ssize_t i, FloatMode caller_mode, FloatMode *mode) noexcept nogil:
        """Run one step in its float mode. mode: the current mode of the thread, updated."""
        cdef FloatMode needed = caller_mode | self.float_modes[i]
        if needed != mode[0]:
            mode[0] = needed
            set_float_mode(needed)
        return self.functions[i](&self.args[i])

    cdef int run_steps(self, Py_ssize_t first, Py_ssize_t end, const uint8_t *terminate_flag) noexcept nogil:
        """Run steps first..end-1; stop at the first that fails or when terminate_flag is set."""
        cdef Py_ssize_t i
        cdef int status = STATUS_OK
        cdef FloatMode caller_mode = float_mode(), mode = caller_mode
        for i in range(first, end):
            if terminate_flag != NULL and i < self.n_interruptible_steps and terminate_flag[0] != 0:
                status = STATUS_TERMINATED
            else:
                status = self.run_step(i, caller_mode, &mode)
            if status != STATUS_OK:
                self.failed_step = i
                break
        set_float_mode(caller_mode)
        return status

    cdef int run_steps_with_gil(self, Py_ssize_t first, Py_ssize_t end, const uint8_t *terminate_flag) noexcept:
        """Run steps with the GIL held, and therefore on this thread only.

        Programs that keep the GIL are small: waking a worker takes longer than its part of a step."""
        cdef void *pool = self.handle.engine.pool
        self.handle.set_pool(NULL)
        status = self.run_steps(first, end, terminate_flag)
        self.handle.set_pool(pool)
        return status

    cdef int run_steps_timed(self, Py_ssize_t first, Py_ssize_t end, const uint8_t *terminate_flag, int64_t *timestamps) noexcept nogil:
        """Run steps and store the time in nanoseconds at the start and after every step."""
        cdef Py_ssize_t i
        cdef int status = STATUS_OK
        cdef FloatMode caller_mode = float_mode(), mode = caller_mode
        timestamps[first] = monotonic_clock()
        for i in range(first, end):
            if terminate_flag != NULL and i < self.n_interruptible_steps and terminate_flag[0] != 0:
                status = STATUS_TERMINATED
            else:
                status = self.run_step(i, caller_mode, &mode)
            timestamps[i + 1] = monotonic_clock()
            if status != STATUS_OK:
                self.failed_step = i
                break
        set_float_mode(caller_mode)
        return status

    cdef int run_nested(self, void **inputs) noexcept nogil:
        """Run all steps as part of another program, on inputs with known shapes."""
        cdef Py_ssize_t i
        cdef int status
        for i in range(self.n_input_slots):
            self.slots[self.input_slot[i]].data = inputs[self.input_index[i]]
        status = self.run_steps(0, self.n_steps, NULL)
        if status != STATUS_OK:
            self.failed_status = status
        return status

    cdef void *output_data(self, Py_ssize_t index, void **inputs) noexcept nogil:
        """Return the address of an output after a run on these inputs."""
        if self.output_source[index] >= 0:
            return self.arena + self.output_source[index]
        return self.outputs[index].data if self.output_source[index] == -1 else inputs[-2 - self.output_source[index]]

    def find_output_mismatch(self, list out not None):
        """Return (index, dtype name, shape) of the first output that its array cannot receive, or None.

        out: per output an array, or None for a new one."""
        cdef Py_ssize_t i
        for i in range(self.n_outputs):
            if not self.fits_output(i, out[i]):
                return i, NAMES[self.outputs[i].dtype], tuple([self.outputs[i].dims[d] for d in range(self.outputs[i].rank)])
        return None

    cpdef bint fits_outputs(self, list out) noexcept:
        """Return True if there is one array, or None, per output, and each can receive its output."""
        cdef Py_ssize_t i
        if len(out) != self.n_outputs:
            return False
        for i in range(self.n_outputs):
            if not self.fits_output(i, out[i]):
                return False
        return True

    cdef bint fits_output(self, Py_ssize_t i, object array) noexcept:
        """Return True if an array can receive output i, or is None."""
        cdef int d
        if array is None:
            return True
        if (not cnp.PyArray_Check(array) or not is_same_dtype(cnp.PyArray_TYPE(<cnp.ndarray>array), self.outputs[i].dtype)
                or cnp.PyArray_NDIM(<cnp.ndarray>array) != self.outputs[i].rank or not cnp.PyArray_ISCARRAY(<cnp.ndarray>array)):
            return False
        for d in range(self.outputs[i].rank):
            if cnp.PyArray_DIMS(<cnp.ndarray>array)[d] != self.outputs[i].dims[d]:
                return False
        return True

    cdef list make_outputs(self, list out):
        """Return one array per output: those of `out`, new ones for None."""
        cdef Py_ssize_t i
        cdef cnp.npy_intp dims[8]
        cdef int d
        cdef list outputs = []
        for i in range(self.n_outputs):
            if out is not None and out[i] is not None:
                outputs.append(out[i])
                continue
            for d in range(self.outputs[i].rank):
                dims[d] = self.outputs[i].dims[d]
            outputs.append(cnp.PyArray_EMPTY(self.outputs[i].rank, dims, numpy_type_number(self.outputs[i].dtype), 0))
        return outputs

    cdef bint overlaps_state(self, const char *start, Py_ssize_t size) except -1:
        """Return True if memory overlaps that of a constant, a parameter or a gradient of the program."""
        cdef Py_ssize_t i
        for i in range(self.n_slots):
            if self.slot_block[i] < 0 and self.slots[i].data != NULL and overlap(start, size, <char *>self.slots[i].data, tensor_bytes(&self.slots[i])):
                return True
        for i in range(self.n_gradient_slots):
            if overlap(start, size, <char *>self.gradient_address[i], tensor_bytes(&self.slots[self.gradient_slot[i]])):
                return True
        return False

    cdef bint can_compute_in(self, Py_ssize_t index, cnp.ndarray array, tuple values, list outputs) except -1:
        """Return True if steps may write an output to the caller's array, before they have read everything: it shares no memory with anything else."""
        cdef Py_ssize_t i
        cdef char *start = <char *>cnp.PyArray_DATA(array)
        cdef Py_ssize_t size = cnp.PyArray_NBYTES(array)
        for i in range(self.n_inputs):
            if array_overlaps(<cnp.ndarray>PyTuple_GET_ITEM(values, i), start, size):
                return False
        for i in range(self.n_outputs):
            if i != index and array_overlaps(<cnp.ndarray>PyList_GET_ITEM(outputs, i), start, size):
                return False
        return self.moved_to[index] == start or not self.overlaps_state(start, size)

    cdef void move_outputs(self, tuple values, list out, list outputs) except *:
        """Point the steps that compute an output to the array that receives it, where they can compute there.

        Copies of at most MAX_COPY bytes cost less than pointers that change."""
        cdef Py_ssize_t i, k, begin, end = 0
        cdef cnp.ndarray array
        cdef void *target
        cdef uint8_t *place
        for i in range(self.n_outputs):
            begin, end = end, self.movable_end[i]
            array = <cnp.ndarray>PyList_GET_ITEM(outputs, i)
            if begin == end or cnp.PyArray_NBYTES(array) <= MAX_COPY or cnp.PyArray_NBYTES(array) != self.blocks[self.output_block[i]].size:
                continue
            is_new = out is None or out[i] is None
            target = cnp.PyArray_DATA(array) if is_new or self.can_compute_in(i, array, values, outputs) else NULL
            if self.moved_to[i] == target:
                continue
            place = <uint8_t *>target if target != NULL else self.arena + self.output_source[i]
            for k in range(begin, end):
                self.slots[self.movable_slot[k]].data = place
            self.moved_to[i] = target

    cdef void copy_outputs(self, tuple values, list outputs) noexcept:
        """Copy the outputs that were not computed in their arrays."""
        cdef Py_ssize_t i
        cdef cnp.ndarray array
        cdef void *source
        for i in range(self.n_outputs):
            array = <cnp.ndarray>PyList_GET_ITEM(outputs, i)
            if self.moved_to[i] != NULL:
                continue
            if self.output_source[i] >= 0:
                source = self.arena + self.output_source[i]
            elif self.output_source[i] == -1:
                source = self.outputs[i].data
            else:
                source = cnp.PyArray_DATA(<cnp.ndarray>PyTuple_GET_ITEM(values, -2 - self.output_source[i]))
            memmove(cnp.PyArray_DATA(array), source, cnp.PyArray_NBYTES(array))     # memmove: an output array may also be an input
