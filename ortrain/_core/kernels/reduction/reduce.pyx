"""Reductions, and the gradient of extremes; the loops are in reduce.h and extremes.h."""
from ortrain._core.kernel cimport KernelArgs

cdef extern from "reduction/reduce.h" nogil:
    int reduce_sum(const KernelArgs *args)
    int reduce_mean(const KernelArgs *args)
    int reduce_sum_square(const KernelArgs *args)
    int reduce_prod(const KernelArgs *args)
    int reduce_max(const KernelArgs *args)
    int reduce_min(const KernelArgs *args)

cdef extern from "reduction/extremes.h" nogil:
    int extreme_shares(const KernelArgs *args)

NUMBER = ("float32", "float64", "int64", "int32")

# name -> (address, dtypes of input 0)
KERNELS = {
    "reduce_sum": (<size_t>&reduce_sum, NUMBER),
    "reduce_mean": (<size_t>&reduce_mean, NUMBER[:2]),
    "reduce_sum_square": (<size_t>&reduce_sum_square, NUMBER),
    "reduce_prod": (<size_t>&reduce_prod, NUMBER),
    "reduce_max": (<size_t>&reduce_max, NUMBER),
    "reduce_min": (<size_t>&reduce_min, NUMBER),
    "extreme_shares": (<size_t>&extreme_shares, NUMBER[:2]),
}
