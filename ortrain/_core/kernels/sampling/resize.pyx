"""Interpolation along one axis and its gradient; the loops are in resize.h."""
from ortrain._core.kernel cimport KernelArgs

cdef extern from "sampling/resize.h" nogil:
    int resample(const KernelArgs *args)
    int resample_grad(const KernelArgs *args)

REAL = ("float32", "float64")

# name -> (address, dtypes of input 0)
KERNELS = {
    "resample": (<size_t>&resample, REAL),
    "resample_grad": (<size_t>&resample_grad, REAL),
}
