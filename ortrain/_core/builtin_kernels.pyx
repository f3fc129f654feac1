"""Kernels that the planner inserts: copies, and calls of Python functions."""
from libc.string cimport memcpy, memset
cimport numpy as cnp
from ortrain._core.arrays cimport array_copy, array_view, tensor_bytes
from ortrain._core.kernel cimport STATUS_OK, KernelArgs, Tensor

import numpy as np

cnp.import_array()


cdef int copy(const KernelArgs *a) noexcept nogil:
    """Copy inputs[0] to outputs[0] byte for byte. ints: size of one element."""
    memcpy(a.outputs[0].data, a.inputs[0].data, a.inputs[0].count * a.ints[0])
    return STATUS_OK


cdef int no_op(const KernelArgs *a) noexcept nogil:
    """Do nothing: replaces an accumulation whose gradient is computed in place."""
    return STATUS_OK


cdef class PythonStep:
    """A step that calls a Python function. error: the exception with which it failed last."""

    def __init__(self, function):
        self.function = function

    cdef void run(self, const KernelArgs *a) except *:
        """Call the function with copies of the inputs and store its results; None results become zeros."""
        cdef Py_ssize_t i
        cdef Tensor *t
        cdef cnp.ndarray target
        results = self.function(*[array_copy(&a.inputs[i]) for i in range(a.n_inputs)])
        if len(results) < a.n_outputs:
            raise ValueError(f"expected {a.n_outputs} outputs, got {len(results)}")
        for i in range(a.n_outputs):
            t = &a.outputs[i]
            if t.data == NULL:
                continue
            if results[i] is None:
                memset(t.data, 0, tensor_bytes(t))
                continue
            target = <cnp.ndarray>array_view(t)
            value = np.asarray(results[i])
            if value.shape != (<object>target).shape or value.dtype != (<object>target).dtype:
                raise ValueError(f"expected output {i} as {(<object>target).dtype}{list((<object>target).shape)}, got {value.dtype}{list(value.shape)}")
            target[...] = value


cdef int run_python(const KernelArgs *a) noexcept with gil:
    """Run a PythonStep; keep its exception and return STATUS_PYTHON_FAILED if it raises."""
    step = <PythonStep><void *><size_t>a.ints[0]
    try:
        step.run(a)
    except BaseException as error:
        step.error = error
        return STATUS_PYTHON_FAILED
    return STATUS_OK


cdef int call_python(const KernelArgs *a) noexcept nogil:
    """Call a PythonStep with the GIL. ints: its address; the program keeps the object alive."""
    return run_python(a)


PYTHON_FAILED = STATUS_PYTHON_FAILED
# name -> address
KERNELS = {"copy": <size_t>&copy, "python": <size_t>&call_python}
