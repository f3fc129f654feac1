"""Cumulative sums and products along one axis; the loops are in cumulative.h."""
from ortrain._core.kernel cimport KernelArgs

cdef extern from "reduction/cumulative.h" nogil:
    int running_sum(const KernelArgs *args)
    int running_product(const KernelArgs *args)
    int running_product_grad(const KernelArgs *args)
    int product_of_others(const KernelArgs *args)

NUMBER = ("float32", "float64", "int64", "int32")

# name -> (address, dtypes of input 0)
KERNELS = {
    "running_sum": (<size_t>&running_sum, NUMBER),
    "running_product": (<size_t>&running_product, NUMBER),
    "running_product_grad": (<size_t>&running_product_grad, ("float32", "float64")),
    "product_of_others": (<size_t>&product_of_others, ("float32", "float64")),
}
