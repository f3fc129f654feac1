"""Sequences of kernels that run block by block; the loops are in fused.h."""
from ortrain._core.kernel cimport KernelArgs

cdef extern from "fused/fused.h" nogil:
    int fused(const KernelArgs *args)

# name -> (address, dtypes of input 0)
KERNELS = {
    "fused": (<size_t>&fused, ("float32", "float64", "int64", "int32", "uint8", "int8", "bool")),
}
