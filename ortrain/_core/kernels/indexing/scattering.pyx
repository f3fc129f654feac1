"""Scatter with multiplication, maximum and minimum, and the gradient of the multiplication; the loops are in scattering.h."""
from ortrain._core.kernel cimport KernelArgs

cdef extern from "indexing/scattering.h" nogil:
    int scatter_elements_reduce(const KernelArgs *args)
    int scatter_nd_reduce(const KernelArgs *args)
    int scatter_elements_product_grad(const KernelArgs *args)
    int scatter_nd_product_grad(const KernelArgs *args)

NUMBER, REAL = ("float32", "float64", "int32", "int64"), ("float32", "float64")

# name -> (address, dtypes of input 0)
KERNELS = {
    "scatter_elements_reduce": (<size_t>&scatter_elements_reduce, NUMBER),
    "scatter_nd_reduce": (<size_t>&scatter_nd_reduce, NUMBER),
    "scatter_elements_product_grad": (<size_t>&scatter_elements_product_grad, REAL),
    "scatter_nd_product_grad": (<size_t>&scatter_nd_product_grad, REAL),
}
