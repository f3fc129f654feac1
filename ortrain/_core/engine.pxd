from libc.stdint cimport int64_t
from ortrain._core.kernel cimport Engine

# Elements, of all steps together, up to which a run keeps the interpreter's lock: giving it up and taking it back costs 0.1 µs, of a step of 1.5 µs, and
# what runs on so few elements is done before another thread would get it.
cdef enum:
    SHORT = 1 << 14

cdef class EngineHandle:
    cdef Engine engine
    cdef public object arena             # the working memory that all programs of a session share, an array of bytes
    cdef public list recording            # None, or what a profiler gathers: (Program or BoundKernel, moments int64 [steps + 1])
    # of SessionOptions, for those who plan
    cdef public bint winograd
    cdef public double rematerialization
    # at the arena's beginning, what train steps leave there for their deferred steps: programs without such steps stay behind it
    cdef public int64_t held_bytes
    cdef readonly int64_t runs           # of programs, also of parts of one, that were begun
    cdef bint running                    # a program: not to be run, replaced or freed by an operator in Python that is a part of it
    cdef object __weakref__

    cdef int64_t *moments_of(self, object what, Py_ssize_t steps) except? NULL
