"""The session lock: one thread at a time uses a session, and no operator in Python re-enters it while a program runs."""
from cpython.pythread cimport (NOWAIT_LOCK, WAIT_LOCK, PyThread_acquire_lock, PyThread_allocate_lock, PyThread_free_lock, PyThread_get_thread_ident,
                               PyThread_release_lock, PyThread_type_lock)
from ortrain._core.engine cimport EngineHandle

from ortrain._core.fork_handlers import register_after_fork
from ortrain.errors import InvalidStateError


cdef class Lock:
    """A reentrant lock like threading.RLock, at a tenth of its cost without contention.

    The GIL protects `owner` and `depth`; the underlying lock (`gate`) is only used once another thread waits.

    handle: the engine whose programs run under the lock. While one runs, its thread can only get here from an operator in Python; `with` then raises
    InvalidStateError, because the program and its memory are in use."""

    def __cinit__(self, EngineHandle handle not None):
        self.handle = handle
        self.gate = PyThread_allocate_lock()
        if self.gate == NULL:
            raise MemoryError
        register_after_fork(self)

    def __dealloc__(self):
        if self.gate != NULL:
            PyThread_free_lock(self.gate)

    cdef bint try_acquire(self) noexcept:
        """Acquire the lock and return True, unless another thread owns or waits for it or this thread is running a program."""
        cdef unsigned long thread = PyThread_get_thread_ident()
        if self.depth == 0 and self.n_waiting == 0:
            self.owner = thread
        elif self.depth == 0 or self.owner != thread or self.handle.is_running:
            return False
        self.depth += 1
        return True

    cdef void release(self) noexcept:
        """Release the lock once; wake a waiting thread after the last release."""
        self.depth -= 1
        if self.depth == 0 and self.is_gate_locked:
            self.is_gate_locked = False
            PyThread_release_lock(self.gate)

    def __enter__(self):
        if self.try_acquire():
            return
        if self.depth > 0 and self.owner == PyThread_get_thread_ident():
            raise InvalidStateError("expected no call of a session by an operator in Python that the session is running")
        if self.depth > 0 and not self.is_gate_locked:         # locked for the owner, whose release() unlocks it
            PyThread_acquire_lock(self.gate, NOWAIT_LOCK)
            self.is_gate_locked = True
        self.n_waiting += 1
        with nogil:
            PyThread_acquire_lock(self.gate, WAIT_LOCK)
        self.n_waiting -= 1
        self.owner, self.depth, self.is_gate_locked = PyThread_get_thread_ident(), 1, True

    def __exit__(self, *_):
        self.release()

    def after_fork(self):
        """Drop other owners and waiting threads in a forked child, where they do not exist."""
        cdef PyThread_type_lock gate
        is_owner = self.depth > 0 and self.owner == PyThread_get_thread_ident()
        gate = PyThread_allocate_lock()                 # the old one may be locked by a thread that does not exist in the child
        if gate == NULL:
            raise MemoryError
        self.gate, self.is_gate_locked, self.n_waiting = gate, False, 0
        if not is_owner:
            self.depth, self.handle.is_running = 0, False
