"""RoiAlign, MaxRoiPool and their gradients; the loops are in roi_pooling.h."""
from ortrain._core.kernel cimport KernelArgs

cdef extern from "pooling/roi_pooling.h" nogil:
    int roi_align(const KernelArgs *args)
    int roi_align_grad(const KernelArgs *args)
    int max_roi_pool(const KernelArgs *args)
    int max_roi_pool_grad(const KernelArgs *args)

REAL = ("float32", "float64")

# name -> (address, dtypes of input 0)
KERNELS = {
    "roi_align": (<size_t>&roi_align, REAL),
    "roi_align_grad": (<size_t>&roi_align_grad, REAL),
    "max_roi_pool": (<size_t>&max_roi_pool, REAL),
    "max_roi_pool_grad": (<size_t>&max_roi_pool_grad, REAL),
}
