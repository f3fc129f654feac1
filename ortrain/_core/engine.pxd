"""C interface of the engine."""
from libc.stdint cimport int64_t
from ortrain._core.kernel cimport Engine

# Total elements of all tensors up to which a run keeps the GIL: releasing and acquiring it costs 0.1 us of a step of 1.5 us, and such a run ends before another
# thread would get it.
cdef enum:
    MAX_ELEMENTS_WITH_GIL = 1 << 14


cdef class EngineHandle:
    cdef Engine engine
    cdef Engine bfloat16_engine          # the same for kernels whose products take bfloat16 operands
    cdef bint is_bfloat16
    cdef public object arena             # uint8: working memory that all programs of a session share, None before the first run
    cdef public list recording            # None, or one entry per profiled run: (Program or BoundKernel, timestamps int64 [steps + 1] in ns)
    # session options that the planner reads
    cdef public bint winograd
    cdef public tuple float32_nodes       # patterns of nodes and operators whose products take float32 operands whatever the precision
    cdef public bint elementwise_fusion
    cdef public double rematerialization
    # bytes at the beginning of the arena that train steps retain for their deferred steps; programs without deferred steps start behind them
    cdef public int64_t retained_bytes
    cdef readonly int64_t n_runs          # programs, or parts of one, that were started
    cdef bint is_running                  # a program runs, so an operator in Python that is part of it must not use the session
    cdef object __weakref__

    cdef void set_pool(self, void *pool) noexcept nogil
    cdef void count_train_step(self) noexcept nogil
    cdef void choose_steps(self) noexcept
    cdef int64_t *timestamp_buffer(self, object source, Py_ssize_t steps) except? NULL
