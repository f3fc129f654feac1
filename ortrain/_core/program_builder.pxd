"""The builder of programs, for its own module: it has C methods."""
from libc.stdint cimport int64_t
from ortrain._core.kernel cimport Tensor
from ortrain._core.program cimport Program


cdef class ProgramBuilder:
    cdef readonly Program program
    cdef list tensors, steps, blocks, numbers, input_ids, output_ids, direct

    cdef int64_t take(self, object value, int64_t *where) except? -1
    cdef object describe(self, Tensor *t, tuple kind)
    cdef object count(self)
    cdef dict lay_out_steps(self)
    cdef object lay_out_interface(self)
    cdef object lay_out_direct(self, dict slots)
