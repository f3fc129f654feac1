"""Scaled dot-product attention and its gradients; the loops are in attention.h."""
from ortrain._core.kernel cimport KernelArgs

cdef extern from "attention/attention.h" nogil:
    int attention(const KernelArgs *args)
    int attention_grad(const KernelArgs *args)

# name -> (address, dtypes of input 0)
KERNELS = {
    "attention": (<size_t>&attention, ("float32", "float64")),
    "attention_grad": (<size_t>&attention_grad, ("float32", "float64")),
}
