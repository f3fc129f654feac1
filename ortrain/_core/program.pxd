"""C interface of programs, for the builder, templates, loops and the fast path."""
from libc.stdint cimport int32_t, int64_t, uint8_t
cimport numpy as cnp
from ortrain._core.engine cimport EngineHandle
from ortrain._core.kernel cimport Kernel, KernelArgs, Tensor
from ortrain._core.memory_planner cimport Block

cdef extern from "float_mode.h" nogil:
    ctypedef unsigned int FloatMode
    FloatMode FLUSH_SUBNORMALS
    FloatMode float_mode()
    void set_float_mode(FloatMode mode)


cdef class Program:
    cdef EngineHandle handle
    cdef Py_ssize_t n_steps, n_slots, n_ints, n_floats, n_inputs, n_outputs, n_blocks, n_elidable
    cdef char *memory                     # one allocation that holds all arrays below
    cdef size_t memory_bytes
    cdef Kernel *functions
    cdef KernelArgs *args
    cdef FloatMode *float_modes           # per step: the bits that it adds to the caller's mode
    cdef Tensor *slots                    # inputs and outputs of all steps, one step after another
    cdef int64_t *ints
    cdef double *floats
    cdef int64_t *size_constants          # data of constant tensors whose elements depend on symbolic sizes
    cdef Py_ssize_t n_size_constants
    cdef Py_ssize_t *input_slot           # slots that hold a user input, and the index of that input
    cdef Py_ssize_t *input_index
    cdef Py_ssize_t n_input_slots
    cdef Tensor *inputs                   # expected dtype and dims of the user inputs
    cdef Tensor *outputs                  # dtype, dims and, for fixed ones, address of the user outputs
    cdef int64_t *output_source           # >= 0: arena offset; -1: fixed address; -2 - i: user input i
    cdef Py_ssize_t *output_block         # -1 for an output outside of the arena
    cdef Py_ssize_t *movable_slot         # slots of the blocks that hold one output and nothing that deferred steps read, in the order of the outputs
    cdef Py_ssize_t *movable_end          # per output: the end of its slots among them
    cdef void **moved_to                  # per output: the caller's memory that its slots point to, NULL for the arena
    cdef Py_ssize_t n_movable_slots
    cdef Py_ssize_t *elidable_step        # gradient accumulations that are skipped while gradients are overwritten
    cdef Kernel *elidable_function        # their kernels
    cdef Py_ssize_t *gradient_slot        # slots that then point to the gradient itself instead of the arena
    cdef void **gradient_address
    cdef int64_t *gradient_offset         # their offset in the arena otherwise
    cdef Py_ssize_t n_gradient_slots
    cdef Py_ssize_t n_immediate_elidable, n_immediate_gradient_slots     # the first ones belong to steps that are not deferred
    cdef bint is_overwriting, is_overwriting_deferred, is_built
    cdef bint keeps_gil                   # so short that it runs with the GIL held
    cdef uint8_t *arena                   # where the program's blocks start
    cdef Py_ssize_t arena_base            # the same as an offset in the engine's arena
    cdef Block *blocks                    # of the arena
    cdef Py_ssize_t *slot_block           # per slot, -1 outside of the arena
    cdef int64_t *arena_offset
    cdef Py_ssize_t *scratch_block        # per step, -1 for none
    cdef int64_t *scratch_offset
    cdef list patches                     # (offset in `memory`, symbolic size)
    cdef public object template           # the ProgramTemplate, None for a program without symbolic sizes
    cdef object cached_plan
    cdef tuple symbol_values              # values of the template's symbols
    cdef public object deferred_names     # the parameters whose gradients a run defers
    cdef public list input_names
    cdef public dict python_steps
    cdef public list keep_alive
    cdef readonly int64_t arena_bytes
    cdef public list step_names
    cdef public Py_ssize_t failed_step
    cdef public int failed_status
    cdef public Py_ssize_t first_write_step        # the first step that writes to state that outlives the run
    cdef public Py_ssize_t deferred_updates_start  # steps from here to deferred_gradients_start compute a gradient and update its parameter
    cdef public Py_ssize_t deferred_gradients_start        # steps from here on accumulate deferred gradients
    cdef readonly int64_t retained_bytes           # at the beginning of the arena: what deferred steps read
    cdef public Py_ssize_t first_clobbering_step   # the first step that overwrites what an earlier run retained there
    cdef public Py_ssize_t n_interruptible_steps   # a run may be stopped before any of the first n steps; the rest run as a whole

    cdef size_t lay_out_arrays(self, char *memory) noexcept
    cdef void *relocate(self, void *data, Program base) noexcept
    cdef void copy_from(self, Program base) except *
    cdef void assign_memory(self) except *
    cpdef Py_ssize_t required_arena_bytes(self) noexcept
    cpdef object bind_arena(self, cnp.ndarray arena)
    cdef void bind_pointers(self, uint8_t *arena) noexcept nogil
    cdef void set_gradient_overwrite(self, bint immediate, bint deferred) noexcept nogil
    cdef Py_ssize_t arena_start(self) noexcept
    cdef bint is_bound(self) noexcept
    cdef bint accepts(self, tuple values) noexcept
    cdef int execute(self, bint overwrite, const uint8_t *terminate_flag, bint all_gradients=*) except -1
    cdef int run_deferred(self, Py_ssize_t first, Py_ssize_t end) except -1
    cdef int run_step(self, Py_ssize_t i, FloatMode caller_mode, FloatMode *mode) noexcept nogil
    cdef int run_range(self, Py_ssize_t first, Py_ssize_t end, const uint8_t *terminate_flag, int64_t *timestamps) except -1
    cdef int run_steps(self, Py_ssize_t first, Py_ssize_t end, const uint8_t *terminate_flag) noexcept nogil
    cdef int run_steps_with_gil(self, Py_ssize_t first, Py_ssize_t end, const uint8_t *terminate_flag) noexcept
    cdef int run_steps_timed(self, Py_ssize_t first, Py_ssize_t end, const uint8_t *terminate_flag, int64_t *timestamps) noexcept nogil
    cdef int run_nested(self, void **inputs) noexcept nogil
    cdef void *output_data(self, Py_ssize_t index, void **inputs) noexcept nogil
    cpdef bint fits_outputs(self, list out) noexcept
    cdef bint fits_output(self, Py_ssize_t i, object array) noexcept
    cdef void point_inputs(self, tuple values) noexcept
    cdef list make_outputs(self, list out)
    cdef bint overlaps_state(self, const char *start, Py_ssize_t size) except -1
    cdef bint can_compute_in(self, Py_ssize_t index, cnp.ndarray array, tuple values, list outputs) except -1
    cdef void move_outputs(self, tuple values, list out, list outputs) except *
    cdef list run_into(self, tuple values, list out, bint overwrite, const uint8_t *terminate_flag, bint all_gradients)
    cdef void copy_outputs(self, tuple values, list outputs) noexcept
