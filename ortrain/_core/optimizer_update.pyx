"""Sweeps of a kernel over the flat segments of the state: what an optimizer does."""
from libc.stdint cimport int64_t
from libc.string cimport memset
cimport numpy as cnp
from ortrain._core.engine cimport SHORT, EngineHandle
from ortrain._core.kernel cimport Kernel, KernelArgs
from ortrain._core.program cimport FLUSH_SUBNORMALS, FloatMode, float_mode, set_float_mode

from ortrain.dtypes import NUMBERS

cnp.import_array()


cdef extern from "threads.h" nogil:
    int64_t pool_clock()


cdef class BoundKernel:
    """One kernel on fixed arrays, for the optimizer's sweeps over flat segments."""

    @property
    def address(self):
        """The kernel's."""
        return <size_t>self.function

    @property
    def operands(self):
        """The arrays, inputs first; None for those that are absent."""
        return tuple(self.arrays)

    def __init__(self, EngineHandle handle not None, size_t address, list inputs, object outputs=(), tuple ints=()):
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
        """Calls the kernel with these floating-point attributes."""
        cdef Py_ssize_t i
        for i in range(len(floats)):
            self.floats[i] = floats[i]
        self.execute()

    cdef void call(self) noexcept nogil:
        """Calls the kernel, to which subnormal numbers are zero."""
        cdef FloatMode outside = float_mode()
        set_float_mode(outside | FLUSH_SUBNORMALS)
        self.function(&self.args)
        set_float_mode(outside)

    cdef int execute(self) except -1:
        """Calls the kernel with the attributes that it has."""
        cdef int64_t *moments = self.handle.moments_of(self, 1)
        if moments != NULL:
            moments[0] = pool_clock()
        if self.tensors[0].count <= SHORT:
            self.call()
        else:
            with nogil:
                self.call()
        if moments != NULL:
            moments[1] = pool_clock()
        return 0


cdef class OptimizerUpdate:
    """An optimizer's update: one kernel over all runs of the parameters."""

    def __init__(self, list calls, cnp.ndarray progress not None, tuple attributes=()):
        """calls: a BoundKernel per run. progress: float64 [2], from which they read the learning rate and which step it is. attributes: of all calls."""
        cdef BoundKernel call
        self.calls, self.progress = calls, progress
        for call in calls:
            for i, value in enumerate(attributes):
                call.floats[i] = value

    cpdef int run(self, double rate, double step) except -1:
        """Updates all runs."""
        cdef BoundKernel call
        cdef double *progress = <double *>cnp.PyArray_DATA(self.progress)
        progress[0], progress[1] = rate, step
        for call in self.calls:
            call.execute()
        return 0
