"""Optimizer updates: kernels bound to the flat segments of parameters, gradients and moments."""
from libc.stdint cimport int64_t
from libc.string cimport memset
cimport numpy as cnp
from ortrain._core.engine cimport MAX_ELEMENTS_WITH_GIL, EngineHandle
from ortrain._core.kernel cimport Kernel, KernelArgs
from ortrain._core.program cimport FLUSH_SUBNORMALS, FloatMode, float_mode, set_float_mode

from ortrain.dtypes import NUMBERS

cnp.import_array()


cdef extern from "threads.h" nogil:
    int64_t pool_clock()


cdef class BoundKernel:
    """A kernel bound to fixed arrays (flat segments), called again and again without marshalling."""

    @property
    def address(self):
        """The address of the kernel."""
        return <size_t>self.function

    @property
    def operands(self):
        """The arrays, inputs first; None for absent ones."""
        return tuple(self.arrays)

    def __init__(self, EngineHandle handle not None, size_t address, list inputs, object outputs=(), tuple ints=()):
        """Bind a kernel.

        address: of the kernel. inputs, outputs: C-contiguous arrays, passed as vectors; None for absent ones. ints: its integer attributes."""
        cdef Py_ssize_t i
        self.handle = handle
        self.arrays = [*inputs, *outputs]
        memset(&self.args, 0, sizeof(KernelArgs))
        for i, array in enumerate(self.arrays):
            if array is None:
                continue
            x = <cnp.ndarray>array
            self.tensors[i].data = cnp.PyArray_DATA(x)
            self.tensors[i].count = x.size
            self.tensors[i].rank = x.ndim
            self.tensors[i].dtype = NUMBERS[x.dtype.name]
            if x.ndim:
                self.tensors[i].dims[0] = x.size
        for i, value in enumerate(ints):
            self.ints[i] = value
        self.args.inputs = self.tensors
        self.args.outputs = self.tensors + len(inputs)
        self.args.n_inputs = len(inputs)
        self.args.n_outputs = len(outputs)
        self.args.ints = self.ints
        self.args.floats = self.floats
        self.args.engine = &handle.engine
        self.function = <Kernel>address

    def run(self, *floats):
        """Call the kernel with these floating-point attributes."""
        cdef Py_ssize_t i
        for i in range(len(floats)):
            self.floats[i] = floats[i]
        self.execute()

    cdef void call(self) noexcept nogil:
        """Call the kernel with subnormal numbers treated as zero."""
        cdef FloatMode caller_mode = float_mode()
        set_float_mode(caller_mode | FLUSH_SUBNORMALS)
        self.function(&self.args)
        set_float_mode(caller_mode)

    cdef int execute(self) except -1:
        """Call the kernel with its current attributes, timed while a profiler records."""
        cdef int64_t *timestamps = self.handle.timestamp_buffer(self, 1)
        if timestamps != NULL:
            timestamps[0] = pool_clock()
        if self.tensors[0].count <= MAX_ELEMENTS_WITH_GIL:
            self.call()
        else:
            with nogil:
                self.call()
        if timestamps != NULL:
            timestamps[1] = pool_clock()
        return 0


cdef class OptimizerUpdate:
    """The update of an optimizer step: one kernel over all flat segments."""

    def __init__(self, list calls, cnp.ndarray progress not None, tuple attributes=()):
        """Bind an update.

        calls: one BoundKernel per segment. progress: float64 [2], the array from which the kernels read learning rate and step number.
        attributes: floating-point attributes of all calls."""
        cdef BoundKernel call
        self.calls, self.progress = calls, progress
        for call in calls:
            for i, value in enumerate(attributes):
                call.floats[i] = value

    cpdef int run(self, double rate, double step) except -1:
        """Update all segments. rate: learning rate. step: number of the optimizer step, from 1."""
        cdef BoundKernel call
        cdef double *progress = <double *>cnp.PyArray_DATA(self.progress)
        progress[0], progress[1] = rate, step
        for call in self.calls:
            call.execute()
        return 0
