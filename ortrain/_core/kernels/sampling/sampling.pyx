"""GridSample, the im2col matrix of a deformable convolution, and their gradients; the loops are in sampling.h."""
from ortrain._core.kernel cimport KernelArgs

cdef extern from "sampling/sampling.h" nogil:
    int grid_sample(const KernelArgs *args)
    int grid_sample_grad(const KernelArgs *args)
    int deformable_columns(const KernelArgs *args)
    int deformable_columns_grad(const KernelArgs *args)

REAL = ("float32", "float64")

# name -> (address, dtypes of input 0)
KERNELS = {
    "grid_sample": (<size_t>&grid_sample, REAL),
    "grid_sample_grad": (<size_t>&grid_sample_grad, REAL),
    "deformable_columns": (<size_t>&deformable_columns, REAL),
    "deformable_columns_grad": (<size_t>&deformable_columns_grad, REAL),
}
