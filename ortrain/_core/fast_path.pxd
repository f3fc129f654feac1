cimport numpy as cnp
from ortrain._core.engine cimport EngineHandle
from ortrain._core.session_lock cimport Lock
from ortrain._core.program cimport Program
from ortrain._core.optimizer_update cimport Sweep

cdef class Steps:
    cdef EngineHandle handle
    cdef readonly Lock lock
    cdef object state, masked, refusal, updates, late, late_masked
    cdef Program program
    cdef readonly Program pending        # whose late gradients the last train step has left to who needs them
    cdef object swept                    # the late names of what was pending when the sweep was made: it leaves out what that updates
    cdef Sweep sweep
    cdef cnp.ndarray reset_flag, progress
    cdef public bint leaves_late         # whether train steps may do so
    cdef public bint overwrite, gradients_valid
    cdef readonly bint awaits_optimizer  # a train step has updated the parameters, and no optimizer step has followed it
    cdef public double learning_rate

    cpdef bint begin(self) except -1
    cpdef bint end(self)
    cpdef bint completes(self)
    cpdef object finished(self, Program program, bint overwrote)
    cpdef object failed(self, Program program)
    cpdef object lose_gradients(self)
    cpdef object update_late(self)
    cpdef list train(self, tuple values)
