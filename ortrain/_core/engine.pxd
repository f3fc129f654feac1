from ortrain._core.kernel cimport Engine

cdef class EngineHandle:
    cdef Engine engine
    cdef object __weakref__
