"""Softmax cross-entropy and focal loss kernels; the loops are in loss.h, linear_cross_entropy.h and softmax_focal_loss.h."""
from ortrain._core.kernel cimport KernelArgs

cdef extern from "training/loss.h" nogil:
    int softmax_cross_entropy_loss(const KernelArgs *args)
    int softmax_cross_entropy_loss_grad(const KernelArgs *args)
    int loss_and_gradient(const KernelArgs *args)
    int linear_cross_entropy(const KernelArgs *args)

cdef extern from "training/softmax_focal_loss.h" nogil:
    int softmax_focal_loss(const KernelArgs *args)
    int softmax_focal_loss_grad(const KernelArgs *args)

# name -> (address, dtypes of input 0)
KERNELS = {
    "softmax_cross_entropy_loss": (<size_t>&softmax_cross_entropy_loss, ("float32", "float64")),
    "softmax_cross_entropy_loss_grad": (<size_t>&softmax_cross_entropy_loss_grad, ("float32", "float64")),
    "loss_and_gradient": (<size_t>&loss_and_gradient, ("float32", "float64")),
    "linear_cross_entropy": (<size_t>&linear_cross_entropy, ("float32", "float64")),
    "softmax_focal_loss": (<size_t>&softmax_focal_loss, ("float32", "float64")),
    "softmax_focal_loss_grad": (<size_t>&softmax_focal_loss_grad, ("float32", "float64")),
}
