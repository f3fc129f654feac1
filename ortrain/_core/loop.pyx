"""Loop and Scan: run the program of a body repeatedly, without the Python interpreter."""
from libc.stdint cimport int64_t, uint8_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy
from ortrain._core.kernel cimport STATUS_OK, KernelArgs
from ortrain._core.memory_planner cimport aligned
from ortrain._core.program cimport Program


cdef class LoopBody:
    """The body of a Loop or Scan node, and how its inputs and outputs change between iterations.

    Inputs of the body, one per input of the step: for a Loop (`is_loop`) iteration number and condition, where the step has trip count and initial condition;
    states; a slice of each scan input; captured values. Outputs of the body: for a Loop the condition; states; a slice of each scan output.
    Outputs of the step: final states; scan outputs."""

    cdef readonly Program body
    cdef bint is_loop
    cdef Py_ssize_t n_states, n_scan_inputs, n_scan_outputs
    cdef int64_t trip_count               # -1: given by the first input of the step, unlimited if that is absent
    cdef int64_t *sizes                   # in bytes: of the states, then of slices of scan inputs and scan outputs
    cdef uint8_t *is_reversed             # per scan input, then per scan output: the last slice comes first
    cdef uint8_t *in_place                # per state: the body updates it in place
    cdef void **inputs                    # addresses of the inputs of the body
    cdef uint8_t *bound_scratch           # the scratch memory that the program of the body points into

    def __init__(self, Program body not None, bint is_loop, int64_t trip_count, list states, list scan_inputs, list scan_outputs, list is_reversed):
        """Prepare a body.

        is_loop: True for Loop, False for Scan. trip_count: -1 if unknown. states: bytes of each. scan_inputs, scan_outputs: bytes of a slice of each.
        is_reversed: per scan input, then per scan output: slices are processed from the last to the first."""
        cdef Py_ssize_t i
        self.body, self.is_loop, self.trip_count = body, is_loop, trip_count
        self.n_states, self.n_scan_inputs, self.n_scan_outputs = len(states), len(scan_inputs), len(scan_outputs)
        sizes = [*states, *scan_inputs, *scan_outputs]
        self.sizes = <int64_t *>calloc(len(sizes) + 1, sizeof(int64_t))
        self.is_reversed = <uint8_t *>calloc(len(is_reversed) + 1, 1)
        self.in_place = <uint8_t *>calloc(self.n_states + 1, 1)
        self.inputs = <void **>calloc(body.n_inputs + 1, sizeof(void *))
        if not (self.sizes and self.is_reversed and self.in_place and self.inputs):
            raise MemoryError
        for i in range(self.n_states):
            self.in_place[i] = body.output_source[self.first_state_output() + i] == -2 - (self.first_state_input() + i)
        for i, size in enumerate(sizes):
            self.sizes[i] = size
        for i, value in enumerate(is_reversed):
            self.is_reversed[i] = value

    def __dealloc__(self):
        free(self.sizes)
        free(self.is_reversed)
        free(self.in_place)
        free(self.inputs)

    cdef Py_ssize_t first_state_input(self) noexcept nogil:
        """Return the index of the first state among the inputs of body and step."""
        return 2 if self.is_loop else 0

    cdef Py_ssize_t first_state_output(self) noexcept nogil:
        """Return the index of the first state among the outputs of the body."""
        return 1 if self.is_loop else 0

    @property
    def scratch(self):
        """Bytes of working memory: the arena of the body and two buffers per state."""
        return aligned(self.body.arena_bytes) + 2 * sum(aligned(self.sizes[i]) for i in range(self.n_states))

    @property
    def address(self):
        """The integer by which the kernel receives this object."""
        return <size_t><void *>self

    @property
    def error(self):
        """The exception of the Python step of the body that failed last."""
        return self.body.python_error()

    cdef int64_t trip_count_of(self, const KernelArgs *a) noexcept nogil:
        """Return the maximum number of iterations of a call of the step."""
        if self.trip_count >= 0:
            return self.trip_count
        return (<int64_t *>a.inputs[0].data)[0] if a.inputs[0].data != NULL else <int64_t>1 << 62

    cdef void bind(self, uint8_t *scratch) noexcept nogil:
        """Point the program of the body into the scratch memory of the step."""
        if self.bound_scratch != scratch:
            self.body.bind_pointers(scratch)
            self.bound_scratch = scratch


cdef int run(LoopBody self, const KernelArgs *a) noexcept nogil:
    """Run all iterations and store the final states."""
    cdef Py_ssize_t first = self.first_state_input(), i
    cdef int64_t k = 0, trip_count = self.trip_count_of(a), slice_index
    cdef uint8_t condition = 1
    cdef void **inputs = self.inputs
    cdef int status
    self.bind(<uint8_t *>a.scratch)
    for i in range(self.body.n_inputs):
        inputs[i] = a.inputs[i].data
    if self.is_loop:
        inputs[0], inputs[1] = &k, &condition
        if a.inputs[1].data != NULL:
            condition = (<uint8_t *>a.inputs[1].data)[0]
    copy_initial_states(self, a)
    while condition and k < trip_count:
        for i in range(self.n_scan_inputs):
            slice_index = trip_count - 1 - k if self.is_reversed[i] else k
            inputs[first + self.n_states + i] = <uint8_t *>a.inputs[first + self.n_states + i].data + slice_index * self.sizes[self.n_states + i]
        status = self.body.run_nested(inputs)
        if status != STATUS_OK:
            return status
        store_scan_outputs(self, a, k, trip_count)
        if self.is_loop:
            condition = (<uint8_t *>self.body.output_data(0, inputs))[0]
        carry_states(self, a, k)
        k += 1
    for i in range(self.n_states):
        if a.outputs[i].data != NULL:
            memcpy(a.outputs[i].data, inputs[first + i], self.sizes[i])
    return STATUS_OK


cdef uint8_t *state_buffers(LoopBody self, const KernelArgs *a) noexcept nogil:
    """Return the address of the state buffers, two per state."""
    return <uint8_t *>a.scratch + aligned(self.body.arena_bytes)


cdef void copy_initial_states(LoopBody self, const KernelArgs *a) noexcept nogil:
    """Copy the states that the body updates in place, because other steps may read their initial values too."""
    cdef Py_ssize_t i, first = self.first_state_input()
    cdef uint8_t *buffer = state_buffers(self, a)
    for i in range(self.n_states):
        if self.in_place[i]:
            memcpy(buffer, self.inputs[first + i], self.sizes[i])
            self.inputs[first + i] = buffer
        buffer += 2 * aligned(self.sizes[i])


cdef void carry_states(LoopBody self, const KernelArgs *a, int64_t k) noexcept nogil:
    """Make the states at the end of iteration k the inputs of the next one.

    They go to the buffers that iteration k did not read, because the body may return its input state, or another one, as a new state."""
    cdef Py_ssize_t i, first = self.first_state_input(), first_state_output = self.first_state_output()
    cdef uint8_t *buffer = state_buffers(self, a)
    for i in range(self.n_states):
        if not self.in_place[i]:
            memcpy(buffer + (k % 2) * aligned(self.sizes[i]), self.body.output_data(first_state_output + i, self.inputs), self.sizes[i])
        buffer += 2 * aligned(self.sizes[i])
    buffer = state_buffers(self, a)
    for i in range(self.n_states):
        if not self.in_place[i]:
            self.inputs[first + i] = buffer + (k % 2) * aligned(self.sizes[i])
        buffer += 2 * aligned(self.sizes[i])


cdef void store_scan_outputs(LoopBody self, const KernelArgs *a, int64_t k, int64_t trip_count) noexcept nogil:
    """Copy the slices of iteration k to the scan outputs."""
    cdef Py_ssize_t i, output_index
    cdef int64_t size, slice_index
    for i in range(self.n_scan_outputs):
        output_index = self.n_states + i
        size = self.sizes[self.n_states + self.n_scan_inputs + i]
        slice_index = trip_count - 1 - k if self.is_reversed[self.n_scan_inputs + i] else k
        if a.outputs[output_index].data != NULL:
            memcpy(<uint8_t *>a.outputs[output_index].data + slice_index * size,
                   self.body.output_data(self.first_state_output() + output_index, self.inputs), size)


# called with void * to avoid reference counting without the GIL; the program of the step keeps the object alive
ctypedef int (*Run)(void *self, const KernelArgs *a) noexcept nogil


cdef int iterate(const KernelArgs *a) noexcept nogil:
    """Run a LoopBody. ints: its address."""
    return (<Run><void *>run)(<void *><size_t>a.ints[0], a)


KERNELS = {"iterate": <size_t>&iterate}
