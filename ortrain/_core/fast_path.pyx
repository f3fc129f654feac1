"""The three calls of a training loop, as long as they repeat: what a session asks before it goes the long way."""
from libc.stdint cimport uint8_t
cimport cython
cimport numpy as cnp
from ortrain._core.engine cimport EngineHandle
from ortrain._core.program_template cimport relative
from ortrain._core.session_lock cimport Lock
from ortrain._core.program cimport Program
from ortrain._core.optimizer_update cimport OptimizerUpdate

cnp.import_array()


cdef object deferred_names(Program program):
    """The parameters whose gradients a program has left until later."""
    return None if program is None else program.deferred_names


@cython.final
cdef class FastPath:
    """What a train step, an optimizer step and a reset change in a session, and the way they take while shapes, arena and optimizer stay what they were.

    state: the TrainingState, for its count of optimizer steps and its mask. reset_flag: bool [1], the training model's input that says whether gradients
    are overwritten."""

    def __init__(self, EngineHandle handle not None, object state, cnp.ndarray reset_flag not None, double learning_rate):
        self.handle, self.state, self.reset_flag, self.learning_rate = handle, state, reset_flag, learning_rate
        self.lock = Lock(handle)
        self.overwrite = self.gradients_valid = True
        self.awaits_optimizer = False
        self.defers_gradients = True

    def update_in_backward(self, object updates):
        """From now on train steps update parameters. updates: their Updates, or None for train steps that only accumulate gradients."""
        self.forget()
        self.updates = updates
        self.progress = None if updates is None else updates.progress
        self.masked = None

    def set_deferred_updates(self, object updates):
        """From now on deferred updates are these Updates."""
        self.deferred, self.deferred_masked = updates, None

    def repeat(self, Program program, object refusal):
        """Takes the program that ran last, or None for none, for the next train step. refusal: called with the program and the inputs when a step of it fails,
        gives the exception that says so."""
        self.program, self.refusal = program, refusal

    def repeat_update(self, OptimizerUpdate update_kernel, object masked):
        """Takes the update_kernel that ran last for the next optimizer step, while the state's mask is `masked`; None for none."""
        self.update_kernel, self.masked, self.updated_names = update_kernel, masked, deferred_names(self.pending)

    cpdef bint begin(self) except -1:
        """Makes parameters ready to be updated by the next train step; False when it may not run: without optimizer step and reset after the one before."""
        cdef double *progress
        if self.progress is None:
            return True
        if self.awaits_optimizer or not self.overwrite:
            return False
        if self.state.masked != self.masked:
            self.masked = frozenset(self.state.masked)
            self.updates.mask(self.masked)
        progress = <double *>cnp.PyArray_DATA(self.progress)
        progress[0], progress[1] = self.learning_rate, self.state.optimizer_step + 1
        return True

    cpdef bint end(self):
        """Ends a train step that has updated parameters; False when there was none."""
        awaited = self.awaits_optimizer
        self.awaits_optimizer = False
        return awaited

    def forget(self):
        """Lets the next steps go the long way."""
        self.program = self.update_kernel = self.refusal = None

    def reset(self):
        """The next train step overwrites the gradients."""
        self.overwrite = self.gradients_valid = True

    cpdef bint completes(self):
        """Whether the next train step accumulates all gradients: when they are added up, and once somebody has asked for them."""
        return not (self.defers_gradients and self.overwrite)

    cpdef object finished(self, Program program, bint overwrote):
        """What a train step that is complete leaves behind; a reset that came while it ran stays where it added to the gradients."""
        self.pending = program if overwrote and self.defers_gradients and program.deferred_gradients < program.n_steps else None
        if overwrote:
            self.gradients_valid, self.overwrite = True, False
        if self.progress is not None:
            self.awaits_optimizer = True
            self.state.optimizer_step += 1
        self.handle.engine.run_index += 1

    cpdef object failed(self, Program program):
        """What a train step leaves behind that a step of a program refused."""
        if program.failed_step >= program.first_write:
            self.gradients_valid = False
        if self.pending is not None and program.held_bytes and program.failed_step >= program.first_lost:
            self.lose_gradients()

    cpdef object lose_gradients(self):
        """There are none until the next train step that overwrites them."""
        self.pending, self.gradients_valid = None, False

    def settle(self):
        """Accumulates the deferred gradients that the last train step has left. The caller has the lock."""
        cdef Program program = self.pending
        if program is not None:
            (<uint8_t *>cnp.PyArray_DATA(self.reset_flag))[0] = True
            program.run_deferred(program.deferred_gradients, program.n_steps)
            self.pending = None

    cpdef object run_deferred_updates(self):
        """Updates the parameters whose gradients the last train step has left, as the optimizer step that this is a part of. The caller has the lock."""
        cdef double *progress
        if self.pending is None:
            return
        if self.state.masked != self.deferred_masked:
            self.deferred_masked = frozenset(self.state.masked)
            self.deferred.mask(self.deferred_masked)
        progress = <double *>cnp.PyArray_DATA(<cnp.ndarray>self.deferred.progress)
        progress[0], progress[1] = self.learning_rate, self.state.optimizer_step + 1
        self.pending.run_deferred(self.pending.deferred_updates, self.pending.deferred_gradients)

    def call(self, tuple values):
        """As train; one output bare, several as a tuple."""
        cdef list results = self.train(values)
        if results is None:
            return None
        return results[0] if len(results) == 1 else tuple(results)

    cpdef list train(self, tuple values):
        """A train step with the last program, or one of its template; the outputs, or None when it has to go the long way: for other inputs, or while another thread
        is in the session."""
        cdef Program program = self.program
        cdef bint overwrite
        refusal = self.refusal
        if program is None or not self.lock.take_if_free():
            return None
        try:
            overwrite = self.overwrite
            if not program.accepts(values):
                program = relative(program, values)
            if program is None or not self.begin() or self.pending is not None and not overwrite:
                return None
            (<uint8_t *>cnp.PyArray_DATA(self.reset_flag))[0] = overwrite
            if program.execute(values, overwrite, NULL, self.completes()) != 0:
                self.failed(program)
                raise refusal(program, values) from program.cause()
            self.program = program
            self.finished(program, overwrite)
            return program.results(values, None)
        finally:
            self.lock.leave()

    def update(self):
        """An optimizer step with the last update_kernel; False when it has to go the long way."""
        cdef OptimizerUpdate update_kernel = self.update_kernel
        if self.program is not None and self.end():
            return True
        if update_kernel is None or not self.gradients_valid or not self.lock.take_if_free():
            return False
        try:
            if self.state.masked != self.masked or deferred_names(self.pending) != self.updated_names:
                return False
            self.run_deferred_updates()
            step = self.state.optimizer_step + 1
            update_kernel.run(self.learning_rate, step)
            self.state.optimizer_step = step
            return True
        finally:
            self.lock.leave()
