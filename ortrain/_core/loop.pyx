"""Loop and Scan: a body's program, run again and again without the interpreter."""
from libc.stdint cimport int64_t, uint8_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy
from ortrain._core.kernel cimport STATUS_OK, KernelArgs
from ortrain._core.memory_planner cimport aligned
from ortrain._core.program cimport Program


cdef class Iteration:
    """What a step needs to know to run a body.

    The body's inputs are those of the step, one by one: for a Loop (`counts`) the number of the iteration and the condition in the place of the step's
    trip count and first condition; the states; a slice of each scanned input; captured values. Its outputs: for a Loop the condition; the states; a slice of
    each collected output. The step's outputs: the last states, the collected outputs."""

    cdef readonly Program body
    cdef bint counts
    cdef Py_ssize_t n_states, n_scanned, n_collected
    cdef int64_t trips                    # -1: the step's first input says it, or nothing does
    cdef int64_t *sizes                   # in bytes: of states, of slices scanned, of slices collected
    cdef uint8_t *backwards               # per scanned, per collected: the last slice first?
    cdef uint8_t *in_place                # per state: it comes out where it went in
    cdef void **inputs                    # of the body
    cdef uint8_t *bound                   # the scratch memory that the body's program points into

    def __init__(self, Program body not None, bint counts, int64_t trips, list states, list scanned, list collected, list backwards):
        """states, scanned, collected: sizes in bytes, slices for the latter two. trips: -1 when unknown."""
        cdef Py_ssize_t i
        self.body, self.counts, self.trips = body, counts, trips
        self.n_states, self.n_scanned, self.n_collected = len(states), len(scanned), len(collected)
        sizes = [*states, *scanned, *collected]
        self.sizes = <int64_t *>calloc(len(sizes) + 1, sizeof(int64_t))
        self.backwards = <uint8_t *>calloc(len(backwards) + 1, 1)
        self.in_place = <uint8_t *>calloc(self.n_states + 1, 1)
        self.inputs = <void **>calloc(body.n_inputs + 1, sizeof(void *))
        if not (self.sizes and self.backwards and self.in_place and self.inputs):
            raise MemoryError
        for i in range(self.n_states):
            self.in_place[i] = body.output_source[self.said() + i] == -2 - (self.first() + i)
        for i, size in enumerate(sizes):
            self.sizes[i] = size
        for i, value in enumerate(backwards):
            self.backwards[i] = value

    def __dealloc__(self):
        free(self.sizes)
        free(self.backwards)
        free(self.in_place)
        free(self.inputs)

    cdef Py_ssize_t first(self) noexcept nogil:
        """The position of the first state among the inputs."""
        return 2 if self.counts else 0

    cdef Py_ssize_t said(self) noexcept nogil:
        """The position of the first state among the body's outputs."""
        return 1 if self.counts else 0

    @property
    def scratch(self):
        """Bytes of working memory: the body's arena, and two places for each state."""
        return aligned(self.body.arena_bytes) + 2 * sum(aligned(self.sizes[i]) for i in range(self.n_states))

    @property
    def address(self):
        """What the kernel finds this object by."""
        return <size_t><void *>self

    @property
    def error(self):
        """The exception of the body's Python step that failed last."""
        return self.body.cause()

    cdef int64_t trips_of(self, const KernelArgs *a) noexcept nogil:
        if self.trips >= 0:
            return self.trips
        return (<int64_t *>a.inputs[0].data)[0] if a.inputs[0].data != NULL else <int64_t>1 << 62

    cdef void bind(self, uint8_t *scratch) noexcept nogil:
        if self.bound != scratch:
            self.body.point_into(scratch)
            self.bound = scratch


cdef int run(Iteration self, const KernelArgs *a) noexcept nogil:
    """The iterations, then the last states."""
    cdef Py_ssize_t first = self.first(), i
    cdef int64_t k = 0, trips = self.trips_of(a), position
    cdef uint8_t going = 1
    cdef void **inputs = self.inputs
    cdef int status
    self.bind(<uint8_t *>a.scratch)
    for i in range(self.body.n_inputs):
        inputs[i] = a.inputs[i].data
    if self.counts:
        inputs[0], inputs[1] = &k, &going
        if a.inputs[1].data != NULL:
            going = (<uint8_t *>a.inputs[1].data)[0]
    begin(self, a)
    while going and k < trips:
        for i in range(self.n_scanned):
            position = trips - 1 - k if self.backwards[i] else k
            inputs[first + self.n_states + i] = <uint8_t *>a.inputs[first + self.n_states + i].data + position * self.sizes[self.n_states + i]
        status = self.body.run_on(inputs)
        if status != STATUS_OK:
            return status
        collect(self, a, k, trips)
        if self.counts:
            going = (<uint8_t *>self.body.output_data(0, inputs))[0]
        hand_on(self, a, k)
        k += 1
    for i in range(self.n_states):
        if a.outputs[i].data != NULL:
            memcpy(a.outputs[i].data, inputs[first + i], self.sizes[i])
    return STATUS_OK


cdef uint8_t *buffers(Iteration self, const KernelArgs *a) noexcept nogil:
    """Where the states' places lie, two for each."""
    return <uint8_t *>a.scratch + aligned(self.body.arena_bytes)


cdef void begin(Iteration self, const KernelArgs *a) noexcept nogil:
    """Copies the states that are changed in place: what they start with is others' too."""
    cdef Py_ssize_t i, first = self.first()
    cdef uint8_t *place = buffers(self, a)
    for i in range(self.n_states):
        if self.in_place[i]:
            memcpy(place, self.inputs[first + i], self.sizes[i])
            self.inputs[first + i] = place
        place += 2 * aligned(self.sizes[i])


cdef void hand_on(Iteration self, const KernelArgs *a, int64_t k) noexcept nogil:
    """Makes the states at the end of iteration k those at the start of the next, in the places that iteration k did not read: a state may come out as it, or
    as another, went in."""
    cdef Py_ssize_t i, first = self.first(), said = self.said()
    cdef uint8_t *place = buffers(self, a)
    for i in range(self.n_states):
        if not self.in_place[i]:
            memcpy(place + (k % 2) * aligned(self.sizes[i]), self.body.output_data(said + i, self.inputs), self.sizes[i])
        place += 2 * aligned(self.sizes[i])
    place = buffers(self, a)
    for i in range(self.n_states):
        if not self.in_place[i]:
            self.inputs[first + i] = place + (k % 2) * aligned(self.sizes[i])
        place += 2 * aligned(self.sizes[i])


cdef void collect(Iteration self, const KernelArgs *a, int64_t k, int64_t trips) noexcept nogil:
    """Puts the slices of iteration k into the outputs that collect them."""
    cdef Py_ssize_t i, number
    cdef int64_t size, position
    for i in range(self.n_collected):
        number = self.n_states + i
        size = self.sizes[self.n_states + self.n_scanned + i]
        position = trips - 1 - k if self.backwards[self.n_scanned + i] else k
        if a.outputs[number].data != NULL:
            memcpy(<uint8_t *>a.outputs[number].data + position * size, self.body.output_data(self.said() + number, self.inputs), size)


# without references: the step's program keeps the object alive
ctypedef int (*Run)(void *self, const KernelArgs *a) noexcept nogil


cdef int iterate(const KernelArgs *a) noexcept nogil:
    """Runs an Iteration; ints: its address."""
    return (<Run><void *>run)(<void *><size_t>a.ints[0], a)


KERNELS = {"iterate": <size_t>&iterate}
