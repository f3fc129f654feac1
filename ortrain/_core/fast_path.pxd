"""C interface of the fast path."""
from libc.stdint cimport uint8_t
cimport numpy as cnp
from ortrain._core.engine cimport EngineHandle
from ortrain._core.session_lock cimport Lock
from ortrain._core.program cimport Program
from ortrain._core.optimizer_update cimport OptimizerUpdate, Progress

cdef class FastPath:
    cdef EngineHandle handle
    cdef readonly Lock lock
    cdef object state
    cdef object make_error               # (program, inputs) -> the exception for a failed step
    cdef Program program                 # of the last train step, None to take the slow path
    cdef readonly Program pending        # the program of the last train step if its deferred gradients are not computed yet
    cdef OptimizerUpdate optimizer_update            # of the last optimizer step, None to take the slow path
    cdef object updated_names            # the parameters that optimizer_update leaves to the deferred updates, None for none
    cdef object backward_updates         # the Updates of train steps (optimizer in backward), None without
    cdef object mask                     # the frozen parameters for which backward_updates or optimizer_update was set up
    cdef object deferred_updates, deferred_mask          # the Updates of deferred steps, and their frozen parameters
    cdef cnp.ndarray reset_flag
    cdef Progress progress               # of backward_updates, None without
    cdef public bint defers_gradients    # whether train steps may defer gradients
    cdef public bint overwrite           # whether the next train step overwrites gradients
    cdef public bint gradients_valid
    cdef readonly bint awaits_optimizer  # a train step has updated the parameters, and the optimizer step for it has not been called
    cdef public double learning_rate

    cpdef bint begin_train_step(self) except -1
    cpdef bint consume_backward_update(self)
    cpdef bint needs_all_gradients(self)
    cpdef object finish_train_step(self, Program program, bint overwrote)
    cpdef object fail_train_step(self, Program program)
    cpdef object invalidate_gradients(self)
    cpdef object run_deferred_updates(self)
    cpdef list train(self, tuple values)
    cdef list train_into(self, tuple values, list out, const uint8_t *terminate_flag)
