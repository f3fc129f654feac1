"""The fast path of a training loop: train step, optimizer step and reset while they repeat with the same shapes, arena and optimizer.

A session tries it first; None or False as a result means that the call has to take the slow path, through the runner and the optimizer."""
from libc.stdint cimport uint8_t
cimport cython
cimport numpy as cnp
from ortrain._core.engine cimport EngineHandle
from ortrain._core.program_template cimport find_ready_program
from ortrain._core.session_lock cimport Lock
from ortrain._core.program cimport Program
from ortrain._core.optimizer_update cimport OptimizerUpdate, Progress

cnp.import_array()


cdef object deferred_names_of(Program program):
    """Return the parameters whose gradients a program defers; None for None."""
    return None if program is None else program.deferred_names


@cython.final
cdef class FastPath:
    """The state of a session that train steps, optimizer steps and resets change, and their fast path.

    state: the TrainingState, for its count of optimizer steps and its frozen parameters. reset_flag: bool [1], the input of the training
    model that chooses between overwriting and accumulating gradients."""

    def __init__(self, EngineHandle handle not None, object state, cnp.ndarray reset_flag not None, double learning_rate):
        self.handle, self.state, self.reset_flag, self.learning_rate = handle, state, reset_flag, learning_rate
        self.lock = Lock(handle)
        self.overwrite = self.gradients_valid = True
        self.awaits_optimizer = False
        self.defers_gradients = True

    def set_backward_updates(self, object updates):
        """Set the Updates of train steps that update parameters in their backward pass, None for train steps that only accumulate gradients."""
        self.invalidate()
        self.backward_updates = updates
        self.progress = None if updates is None else updates.progress
        self.mask = None

    def set_deferred_updates(self, object updates):
        """Set the Updates of deferred steps."""
        self.deferred_updates, self.deferred_mask = updates, None

    def remember_program(self, Program program, object make_error):
        """Use the program that ran last for the next train step; None to take the slow path.

        make_error: called with the program and its inputs when a step fails, returns the exception to raise."""
        self.program, self.make_error = program, make_error

    def remember_update(self, OptimizerUpdate optimizer_update, object masked):
        """Use the update that ran last for the next optimizer step while the frozen parameters are `masked`; None to take the slow path."""
        self.optimizer_update, self.mask, self.updated_names = optimizer_update, masked, deferred_names_of(self.pending)

    cpdef bint begin_train_step(self) except -1:
        """Prepare the updates that the next train step applies.

        False if the step must not run: it would update parameters without an optimizer step and a reset since the last one."""
        if self.progress is None:
            return True
        if self.awaits_optimizer or not self.overwrite:
            return False
        if self.state.masked != self.mask:
            self.mask = frozenset(self.state.masked)
            self.backward_updates.mask(self.mask)
        self.progress.set(self.learning_rate, self.state.optimizer_step + 1)
        return True

    cpdef bint consume_backward_update(self):
        """Count a train step that has updated parameters as followed by its optimizer step; False if there is none."""
        awaited = self.awaits_optimizer
        self.awaits_optimizer = False
        return awaited

    def invalidate(self):
        """Make the next train step and optimizer step take the slow path."""
        self.program = self.optimizer_update = self.make_error = None

    def reset(self):
        """Make the next train step overwrite the gradients. Waits for a step of another thread, but not for the one that runs an operator that calls this."""
        cdef bint acquired = self.lock.try_acquire()
        if not acquired and not self.lock.is_owner():
            with self.lock:
                return self.reset()
        self.overwrite = self.gradients_valid = True
        if acquired:
            self.lock.release()

    cpdef bint needs_all_gradients(self):
        """Return True if the next train step must not defer gradients: they are accumulated, or have been read before."""
        return not (self.defers_gradients and self.overwrite)

    cpdef object finish_train_step(self, Program program, bint overwrote):
        """Update the state after a train step. overwrote: a step that accumulated leaves a reset in effect that came while it ran."""
        self.pending = program if overwrote and self.defers_gradients and program.deferred_gradients_start < program.n_steps else None
        if overwrote:
            self.gradients_valid, self.overwrite = True, False
        if self.progress is not None:
            self.awaits_optimizer = True
            self.state.optimizer_step += 1
        self.handle.count_train_step()

    cpdef object fail_train_step(self, Program program):
        """Update the state after a train step of which a step failed."""
        if program.failed_step >= program.first_write_step:
            self.gradients_valid = False
        if self.pending is not None and program.retained_bytes and program.failed_step >= program.first_clobbering_step:
            self.invalidate_gradients()

    cpdef object invalidate_gradients(self):
        """Mark the gradients invalid until the next train step that overwrites them."""
        self.pending, self.gradients_valid = None, False

    def materialize_deferred_gradients(self):
        """Compute the gradients that the last train step has deferred. The caller holds the lock."""
        cdef Program program = self.pending
        if program is not None:
            (<uint8_t *>cnp.PyArray_DATA(self.reset_flag))[0] = True
            program.run_deferred(program.deferred_gradients_start, program.n_steps)
            self.pending = None

    cpdef object run_deferred_updates(self):
        """Update the parameters whose gradients the last train step has deferred, as part of an optimizer step. The caller holds the lock."""
        cdef Progress progress
        if self.pending is None:
            return
        if self.state.masked != self.deferred_mask:
            self.deferred_mask = frozenset(self.state.masked)
            self.deferred_updates.mask(self.deferred_mask)
        progress = self.deferred_updates.progress
        progress.set(self.learning_rate, self.state.optimizer_step + 1)
        self.pending.run_deferred(self.pending.deferred_updates_start, self.pending.deferred_gradients_start)

    def call(self, tuple values):
        """Run train() and return a single output as it is, several as a tuple, None for the slow path."""
        cdef list results = self.train(values)
        if results is None:
            return None
        return results[0] if len(results) == 1 else tuple(results)

    cpdef list train(self, tuple values):
        """Run a train step with the last program or one of its templates; return its outputs.

        None for the slow path: if no program fits the inputs, another thread uses the session, or deferred gradients have to be computed first."""
        return self.train_into(values, None, NULL)

    cdef list train_into(self, tuple values, list out, const uint8_t *terminate_flag):
        """As train(), with arrays that receive outputs (None for new ones) and a byte that stops the step when another thread sets it; NULL for none.

        None also if an array cannot receive its output, or the byte is set at the start."""
        cdef Program program
        cdef bint overwrite
        cdef list results
        if not self.lock.try_acquire():
            return None
        try:
            program, overwrite, make_error = self.program, self.overwrite, self.make_error
            if program is not None and not program.accepts(values):
                program = find_ready_program(program, values)
            if program is None or out is not None and not program.fits_outputs(out) or terminate_flag != NULL and terminate_flag[0]:
                return None
            if not self.begin_train_step() or self.pending is not None and not overwrite:
                return None
            (<uint8_t *>cnp.PyArray_DATA(self.reset_flag))[0] = overwrite
            results = program.run_into(values, out, overwrite, terminate_flag, self.needs_all_gradients())
            if results is None:
                self.fail_train_step(program)
                raise make_error(program, values) from program.python_error()
            self.program = program
            self.finish_train_step(program, overwrite)
            return results
        finally:
            self.lock.release()

    def update(self):
        """Run an optimizer step with the last update; False for the slow path."""
        cdef OptimizerUpdate optimizer_update
        if not self.lock.try_acquire():
            return False
        try:
            optimizer_update = self.optimizer_update
            if self.program is not None and self.consume_backward_update():
                return True
            if optimizer_update is None or not self.gradients_valid:
                return False
            if self.state.masked != self.mask or deferred_names_of(self.pending) != self.updated_names:
                return False
            self.run_deferred_updates()
            step = self.state.optimizer_step + 1
            optimizer_update.run(self.learning_rate, step)
            self.state.optimizer_step = step
            return True
        finally:
            self.lock.release()
