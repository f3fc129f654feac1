"""A program as other compiled modules see it: a loop runs its body's."""
from libc.stdint cimport int32_t, int64_t, uint8_t
cimport numpy as cnp
from ortrain._core.engine cimport EngineHandle
from ortrain._core.kernel cimport Kernel, KernelArgs, Tensor
from ortrain._core.memory_planner cimport Piece

cdef extern from "float_mode.h" nogil:
    ctypedef unsigned int FloatMode
    FloatMode FLUSH_SUBNORMALS
    FloatMode float_mode()
    void set_float_mode(FloatMode mode)


cdef class Program:
    cdef EngineHandle handle
    cdef Py_ssize_t n_steps, n_slots, n_ints, n_floats, n_inputs, n_outputs, n_pieces, n_direct
    cdef char *memory                     # of all that follows
    cdef size_t memory_bytes
    cdef Kernel *functions
    cdef KernelArgs *args
    cdef FloatMode *modes                 # what each step adds to the caller's
    cdef Tensor *slots                    # the tensors of all steps, one after another
    cdef int64_t *ints
    cdef double *floats
    cdef int64_t *numbers                 # tensors that are constants of symbolic sizes
    cdef Py_ssize_t n_numbers
    cdef Py_ssize_t *input_slot           # (input, slot) pairs
    cdef Py_ssize_t *input_index
    cdef Py_ssize_t n_input_slots
    cdef Tensor *inputs                   # what each user input must look like
    cdef Tensor *outputs                  # where each user output lies
    cdef int64_t *output_source           # >= 0: arena offset; -1: fixed; -2 - i: user input i
    cdef Py_ssize_t *output_piece         # -1 when not in the arena
    cdef Py_ssize_t *direct_step          # accumulations that may be skipped when gradients are overwritten
    cdef Kernel *direct_function
    cdef Py_ssize_t *direct_slot          # slots that then write to the gradient itself
    cdef void **direct_address
    cdef int64_t *direct_offset
    cdef Py_ssize_t n_direct_slots
    cdef Py_ssize_t n_direct_now, n_direct_slots_now     # those that are not deferred
    cdef bint overwriting, overwriting_deferred, built
    cdef bint is_short                    # done before another thread would miss the interpreter's lock
    cdef uint8_t *arena
    cdef Py_ssize_t base                  # where in the handle's arena the program's begins
    cdef Piece *pieces                    # of the arena
    cdef Py_ssize_t *slot_piece           # per slot, -1 when not in the arena
    cdef int64_t *arena_offset
    cdef Py_ssize_t *scratch_piece        # per step, -1 for none
    cdef int64_t *scratch_offset
    cdef list patches                     # (place in the memory, symbolic number)
    cdef public object template             # of programs that differ in sizes alone, None where there is none
    cdef object planned
    cdef tuple symbols                    # of its template, what they are here
    cdef public object deferred_names         # the parameters whose gradients a run leaves until later
    cdef public list input_names
    cdef public dict python_steps
    cdef public list keep_alive
    cdef readonly int64_t arena_bytes
    cdef public list step_names
    cdef public Py_ssize_t failed_step
    cdef public int failed_status
    cdef public Py_ssize_t first_write
    cdef public Py_ssize_t deferred_updates, deferred_gradients  # the first steps of what a run leaves until later: updates that compute their gradient, and gradients
    cdef readonly int64_t held_bytes          # at the arena's beginning, which deferred steps read
    cdef public Py_ssize_t first_lost     # the first step that writes over what an earlier run has left there
    cdef public Py_ssize_t stoppable      # steps before which a run may be stopped: those from here on are done as a whole

    cdef object slot_as_laid_out(self, Py_ssize_t slot)
    cdef object tensor_as_laid_out(self, const Tensor *t, int64_t where)
    cdef size_t carve(self, char *memory) noexcept
    cdef void *moved(self, void *data, Program first) noexcept
    cdef void become(self, Program first) except *
    cdef void find_places(self) except *
    cpdef Py_ssize_t room(self) noexcept
    cpdef object bind_arena(self, cnp.ndarray arena)
    cdef void point_into(self, uint8_t *arena) noexcept nogil
    cdef void set_overwriting(self, bint now, bint deferred) noexcept nogil
    cdef Py_ssize_t first_byte(self) noexcept
    cdef bint is_bound(self) noexcept
    cdef bint accepts(self, tuple values) noexcept
    cdef int execute(self, tuple values, bint overwrite, const uint8_t *stop, bint complete=*) except -1
    cdef int run_deferred(self, Py_ssize_t first, Py_ssize_t end) except -1
    cdef int run_step(self, Py_ssize_t i, FloatMode outside, FloatMode *mode) noexcept nogil
    cdef int run_section(self, Py_ssize_t first, Py_ssize_t end, const uint8_t *stop, int64_t *moments) except -1
    cdef int run_steps(self, Py_ssize_t first, Py_ssize_t end, const uint8_t *stop) noexcept nogil
    cdef int run_alone(self, Py_ssize_t first, Py_ssize_t end, const uint8_t *stop) noexcept
    cdef int run_timed(self, Py_ssize_t first, Py_ssize_t end, const uint8_t *stop, int64_t *moments) noexcept nogil
    cdef int run_on(self, void **inputs) noexcept nogil
    cdef void *output_data(self, Py_ssize_t index, void **inputs) noexcept nogil
    cdef list results(self, tuple values, list out_arrays)
