"""Convolution and its gradients on planes [n, c, h, w], for convolutions that stand alone; the loops are in planes/*.h."""
from ortrain._core.kernel cimport KernelArgs

cdef extern from "planes/planes.h" nogil:
    int planes_conv(const KernelArgs *args)
    int planes_conv_grad(const KernelArgs *args)

REAL = ("float32", "float64")

# name -> (address, dtypes of input 0)
KERNELS = {
    "planes_conv": (<size_t>&planes_conv, REAL),
    "planes_conv_grad": (<size_t>&planes_conv_grad, REAL),
}
