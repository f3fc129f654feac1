"""Optimizer updates: kernels bound to the flat segments of parameters, gradients and moments."""
from libc.stdint cimport int64_t
from libc.string cimport memset
cimport numpy as cnp
from ortrain._core.engine cimport MAX_ELEMENTS_WITH_GIL, EngineHandle
from ortrain._core.kernel cimport Kernel, KernelArgs
from ortrain._core.program cimport FLUSH_SUBNORMALS, FloatMode, float_mode, set_float_mode

import numpy as np

from ortrain.dtypes import NUMBERS

cnp.import_array()


cdef extern from "operating_system.h" nogil:
    int64_t monotonic_clock()


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

    def __init__(self, EngineHandle handle not None, size_t address, list inputs, object outputs=(), tuple ints=(), tuple floats=(),
                 cnp.ndarray scratch=None):
        """Bind a kernel.

        address: of the kernel. inputs, outputs: C-contiguous arrays; None for absent ones. ints, floats: its attributes. scratch: its working memory,
        64-byte aligned."""
        cdef Py_ssize_t i, axis
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
            for axis in range(x.ndim):
                self.tensors[i].dims[axis] = x.shape[axis]
        for i, value in enumerate(ints):
            self.ints[i] = value
        for i, value in enumerate(floats):
            self.floats[i] = value
        self.scratch = scratch
        self.args.scratch = NULL if scratch is None else cnp.PyArray_DATA(scratch)
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
            timestamps[0] = monotonic_clock()
        if self.tensors[0].count <= MAX_ELEMENTS_WITH_GIL:
            self.call()
        else:
            with nogil:
                self.call()
        if timestamps != NULL:
            timestamps[1] = monotonic_clock()
        return 0


cdef class Progress:
    """What updates read from outside: the learning rate and the number of the optimizer step, once per scale of the learning rate.

    rows: float64 [scales, 2], the arrays [learning rate, step] that kernels are bound to."""

    def __init__(self, scales=(1.0,)):
        """Create the rows. scales: factors of the learning rate, one row each."""
        self.scales = np.array(scales, np.float64)
        self.rows = np.zeros((len(self.scales), 2))

    cdef void set(self, double rate, double step) noexcept:
        """Set the learning rate, which each row multiplies by its scale, and the step's number, from 1."""
        cdef double *rows = <double *>cnp.PyArray_DATA(self.rows)
        cdef double *scales = <double *>cnp.PyArray_DATA(self.scales)
        cdef Py_ssize_t i
        for i in range(cnp.PyArray_DIM(self.rows, 0)):
            rows[2 * i], rows[2 * i + 1] = rate * scales[i], step


cdef class OptimizerUpdate:
    """The update of an optimizer step: one kernel over all flat segments, or over all parameters."""

    def __init__(self, list calls, Progress progress not None):
        """Bind an update.

        calls: BoundKernels with their attributes. progress: from whose rows the kernels read the learning rate and the number of the step."""
        self.calls, self.progress = calls, progress

    cpdef int run(self, double rate, double step) except -1:
        """Run all calls. rate: learning rate. step: number of the optimizer step, from 1."""
        cdef BoundKernel call
        self.progress.set(rate, step)
        for call in self.calls:
            call.execute()
        return 0
