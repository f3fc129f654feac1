"""Softmax, log-softmax and their gradients; the loops are in softmax.h."""
from ortrain._core.kernel cimport KernelArgs

cdef extern from "normalization/softmax.h" nogil:
    int softmax(const KernelArgs *args)
    int log_softmax(const KernelArgs *args)
    int softmax_grad(const KernelArgs *args)
    int log_softmax_grad(const KernelArgs *args)

# name -> (address, dtypes of input 0)
KERNELS = {
    "softmax": (<size_t>&softmax, ("float32", "float64")),
    "log_softmax": (<size_t>&log_softmax, ("float32", "float64")),
    "softmax_grad": (<size_t>&softmax_grad, ("float32", "float64")),
    "log_softmax_grad": (<size_t>&log_softmax_grad, ("float32", "float64")),
}
