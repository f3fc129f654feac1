"""C interface of the program builder."""
from libc.stdint cimport int64_t
from ortrain._core.kernel cimport Tensor
from ortrain._core.program cimport Program


cdef class ProgramBuilder:
    cdef readonly Program program
    cdef list tensors, steps, blocks, size_constants, input_ids, output_ids, elidable

    cdef int64_t write_size(self, object value, int64_t *target) except? -1
    cdef object write_tensor(self, Tensor *t, tuple spec)
    cdef object set_counts(self)
    cdef dict write_steps(self)
    cdef set movable_blocks(self)
    cdef object write_inputs_and_outputs(self)
    cdef object write_elidable(self, dict slots)
