from ortrain._core.kernel cimport Engine

cdef class EngineHandle:
    cdef Engine engine
    cdef public bint direct_convolution      # of SessionOptions, for those who plan
    cdef object __weakref__
