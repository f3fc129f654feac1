"""The session lock: one thread at a time uses a session, and no operator in Python re-enters it while a program runs."""
from cpython.pythread cimport (NOWAIT_LOCK, WAIT_LOCK, PyThread_acquire_lock, PyThread_allocate_lock, PyThread_free_lock, PyThread_get_thread_ident,
                               PyThread_release_lock, PyThread_type_lock)
from ortrain._core.engine cimport EngineHandle

from ortrain._core.fork_handlers import register_after_fork
from ortrain.errors import InvalidStateError

cdef extern from *:
    """
    #define LOAD(address) __atomic_load_n(address, __ATOMIC_SEQ_CST)
    #define STORE(address, value) __atomic_store_n(address, value, __ATOMIC_SEQ_CST)
    #define ADD(address, value) __atomic_add_fetch(address, value, __ATOMIC_SEQ_CST)
    static inline int TAKE(Py_ssize_t *address, Py_ssize_t value)
    {
        Py_ssize_t free = 0;
        return __atomic_compare_exchange_n(address, &free, value, 0, __ATOMIC_SEQ_CST, __ATOMIC_RELAXED);
    }
    """
    Py_ssize_t load "LOAD"(const Py_ssize_t *address) noexcept nogil
    void store "STORE"(Py_ssize_t *address, Py_ssize_t value) noexcept nogil
    Py_ssize_t add "ADD"(Py_ssize_t *address, Py_ssize_t value) noexcept nogil
    bint take_if_free "TAKE"(Py_ssize_t *address, Py_ssize_t value) noexcept nogil      # *address = value if it was 0


cdef class Lock:
    """A reentrant lock like threading.RLock, with or without a GIL, which compiled code acquires and releases in some 10 ns without contention.

    `owner` is the lock: 0 or the thread that holds it. `gate` is only used by threads that wait: an owner who leaves opens it once if there are any. A thread
    that waits is let in before the last owner gets in again.

    handle: the engine whose programs run under the lock. While one runs, its thread can only get here from an operator in Python; `with` then raises
    InvalidStateError, because the program and its memory are in use."""

    def __cinit__(self, EngineHandle handle not None):
        self.handle = handle
        self.close_new_gate()
        register_after_fork(self)

    def __dealloc__(self):
        if self.gate != NULL:
            PyThread_free_lock(self.gate)

    cdef int close_new_gate(self) except -1:
        """Set `gate` to a new lock, and lock it."""
        cdef PyThread_type_lock gate = PyThread_allocate_lock()
        if gate == NULL:
            raise MemoryError
        PyThread_acquire_lock(gate, NOWAIT_LOCK)
        self.gate = gate

    cdef bint is_owner(self) noexcept:
        return load(&self.owner) == <Py_ssize_t>PyThread_get_thread_ident()

    cdef bint take(self) noexcept:
        """Become the owner and return True, unless there is one."""
        if not take_if_free(&self.owner, <Py_ssize_t>PyThread_get_thread_ident()):
            return False
        self.depth = 1
        return True

    cdef bint try_acquire(self) noexcept:
        """Acquire the lock and return True, unless another thread owns or waits for it or this thread is running a program."""
        if self.is_owner():
            if self.handle.is_running:
                return False
            self.depth += 1
            return True
        return load(&self.n_waiting) == 0 and self.take()

    cdef void release(self) noexcept:
        """Release the lock once; let a thread that waits in after the last release."""
        self.depth -= 1
        if self.depth == 0:
            store(&self.owner, 0)
            if load(&self.n_waiting) > 0:
                PyThread_release_lock(self.gate)

    cdef void wait(self) noexcept:
        """Acquire the lock after the threads that wait already.

        The first thread that waits tries the lock again before it sleeps, because its owner may have left before it saw that somebody waits. Those behind it
        need not: the thread in front of them is among the waiting when it takes the lock, and opens the gate when it leaves."""
        cdef bint is_first = add(&self.n_waiting, 1) == 1
        while not (is_first and self.take()):
            is_first = True
            with nogil:
                PyThread_acquire_lock(self.gate, WAIT_LOCK)
        add(&self.n_waiting, -1)

    def __enter__(self):
        if self.try_acquire():
            return
        if self.is_owner():
            raise InvalidStateError("expected no call of a session by an operator in Python or a callback for gradients, while the session is running it")
        self.wait()

    def __exit__(self, *_):
        self.release()

    def after_fork(self):
        """Drop other owners and waiting threads in a forked child, where they do not exist."""
        self.close_new_gate()                           # the old one may be in use by a thread that does not exist in the child
        self.n_waiting = 0
        if not self.is_owner():
            self.owner, self.depth, self.handle.is_running = 0, 0, False
