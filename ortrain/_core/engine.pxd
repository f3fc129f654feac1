from ortrain._core.kernel cimport Engine

cdef class EngineHandle:
    cdef Engine engine
    cdef public list recording            # None, or what a profiler gathers: (Program or Call, moments int64 [steps + 1])
    cdef public bint direct_convolution      # of SessionOptions, for those who plan
    cdef object __weakref__
