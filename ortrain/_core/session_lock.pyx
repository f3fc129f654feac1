"""Who may use a session: one thread at a time, and none out of the middle of a program."""
from cpython.pythread cimport (NOWAIT_LOCK, WAIT_LOCK, PyThread_acquire_lock, PyThread_allocate_lock, PyThread_free_lock, PyThread_get_thread_ident,
                               PyThread_release_lock, PyThread_type_lock)
from ortrain._core.engine cimport EngineHandle

from ortrain._core.fork_handlers import renew_in_children
from ortrain.errors import InvalidStateError


cdef class Lock:
    """What threading.RLock is, at a tenth of its price where no other thread wants it: the interpreter's lock guards who has this one, and threads wait at a gate that
    is shut only when somebody comes.

    handle: of the programs that are run under the lock. While one of them runs, its thread can come here only out of an operator in Python, and is refused: the
    program's memory, and the program itself, are in use. `with` raises InvalidStateError then."""

    def __cinit__(self, EngineHandle handle not None):
        self.handle = handle
        self.gate = PyThread_allocate_lock()
        if self.gate == NULL:
            raise MemoryError
        renew_in_children(self)

    def __dealloc__(self):
        if self.gate != NULL:
            PyThread_free_lock(self.gate)

    cdef bint take_if_free(self) noexcept:
        """Takes the lock if no other thread has it or waits for it, and no program of this thread's runs."""
        cdef unsigned long me = PyThread_get_thread_ident()
        if self.depth == 0 and self.waiting == 0:
            self.owner = me
        elif self.depth == 0 or self.owner != me or self.handle.running:
            return False
        self.depth += 1
        return True

    cdef void leave(self) noexcept:
        self.depth -= 1
        if self.depth == 0 and self.is_shut:
            self.is_shut = False
            PyThread_release_lock(self.gate)

    def __enter__(self):
        if self.take_if_free():
            return
        if self.depth > 0 and self.owner == PyThread_get_thread_ident():
            raise InvalidStateError("expected no call of a session by an operator in Python that the session is running")
        if self.depth > 0 and not self.is_shut:         # on behalf of who has it, and will open it
            PyThread_acquire_lock(self.gate, NOWAIT_LOCK)
            self.is_shut = True
        self.waiting += 1
        with nogil:
            PyThread_acquire_lock(self.gate, WAIT_LOCK)
        self.waiting -= 1
        self.owner, self.depth, self.is_shut = PyThread_get_thread_ident(), 1, True

    def __exit__(self, *_):
        self.leave()

    def after_fork(self):
        """In a forked child: whoever else held the lock or waited for it is not there any more."""
        cdef PyThread_type_lock gate
        mine = self.depth > 0 and self.owner == PyThread_get_thread_ident()
        gate = PyThread_allocate_lock()                 # the old one may be held by a thread that is gone
        if gate == NULL:
            raise MemoryError
        self.gate, self.is_shut, self.waiting = gate, False, 0
        if not mine:
            self.depth, self.handle.running = 0, False
