cimport numpy as cnp
from ortrain._core.engine cimport EngineHandle
from ortrain._core.session_lock cimport Lock
from ortrain._core.program cimport Program
from ortrain._core.optimizer_update cimport OptimizerUpdate

cdef class FastPath:
    cdef EngineHandle handle
    cdef readonly Lock lock
    cdef object state, masked, refusal, updates, deferred, deferred_masked
    cdef Program program
    cdef readonly Program pending        # whose deferred gradients the last train step has left to who needs them
    cdef object updated_names                    # the deferred names of what was pending when the update_kernel was made: it leaves out what that updates
    cdef OptimizerUpdate update_kernel
    cdef cnp.ndarray reset_flag, progress
    cdef public bint defers_gradients         # whether train steps may do so
    cdef public bint overwrite, gradients_valid
    cdef readonly bint awaits_optimizer  # a train step has updated the parameters, and no optimizer step has followed it
    cdef public double learning_rate

    cpdef bint begin(self) except -1
    cpdef bint end(self)
    cpdef bint completes(self)
    cpdef object finished(self, Program program, bint overwrote)
    cpdef object failed(self, Program program)
    cpdef object lose_gradients(self)
    cpdef object run_deferred_updates(self)
    cpdef list train(self, tuple values)
