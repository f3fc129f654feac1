"""Less common activations and their gradients; the loops are one line each in activation.h."""
from ortrain._core.kernel cimport KernelArgs

cdef extern from "elementwise/activation.h" nogil:
    int ot_elu(const KernelArgs *args)
    int ot_elu_grad(const KernelArgs *args)
    int ot_celu(const KernelArgs *args)
    int ot_celu_grad(const KernelArgs *args)
    int ot_selu(const KernelArgs *args)
    int ot_selu_grad(const KernelArgs *args)
    int ot_softplus(const KernelArgs *args)
    int ot_softplus_grad(const KernelArgs *args)
    int ot_softsign(const KernelArgs *args)
    int ot_softsign_grad(const KernelArgs *args)
    int ot_mish(const KernelArgs *args)
    int ot_mish_grad(const KernelArgs *args)
    int ot_hard_sigmoid(const KernelArgs *args)
    int ot_hard_sigmoid_grad(const KernelArgs *args)
    int ot_hard_swish(const KernelArgs *args)
    int ot_hard_swish_grad(const KernelArgs *args)
    int ot_thresholded_relu(const KernelArgs *args)
    int ot_thresholded_relu_grad(const KernelArgs *args)
    int ot_shrink(const KernelArgs *args)
    int ot_shrink_grad(const KernelArgs *args)
    int ot_prelu(const KernelArgs *args)
    int ot_prelu_grad(const KernelArgs *args)
    int ot_prelu_slope_grad(const KernelArgs *args)

REAL = ("float32", "float64")

# name -> (address, dtypes of input 0)
KERNELS = {
    "elu": (<size_t>&ot_elu, REAL),
    "elu_grad": (<size_t>&ot_elu_grad, REAL),
    "celu": (<size_t>&ot_celu, REAL),
    "celu_grad": (<size_t>&ot_celu_grad, REAL),
    "selu": (<size_t>&ot_selu, REAL),
    "selu_grad": (<size_t>&ot_selu_grad, REAL),
    "softplus": (<size_t>&ot_softplus, REAL),
    "softplus_grad": (<size_t>&ot_softplus_grad, REAL),
    "softsign": (<size_t>&ot_softsign, REAL),
    "softsign_grad": (<size_t>&ot_softsign_grad, REAL),
    "mish": (<size_t>&ot_mish, REAL),
    "mish_grad": (<size_t>&ot_mish_grad, REAL),
    "hard_sigmoid": (<size_t>&ot_hard_sigmoid, REAL),
    "hard_sigmoid_grad": (<size_t>&ot_hard_sigmoid_grad, REAL),
    "hard_swish": (<size_t>&ot_hard_swish, REAL),
    "hard_swish_grad": (<size_t>&ot_hard_swish_grad, REAL),
    "thresholded_relu": (<size_t>&ot_thresholded_relu, REAL),
    "thresholded_relu_grad": (<size_t>&ot_thresholded_relu_grad, REAL),
    "shrink": (<size_t>&ot_shrink, REAL),
    "shrink_grad": (<size_t>&ot_shrink_grad, REAL),
    "prelu": (<size_t>&ot_prelu, REAL),
    "prelu_grad": (<size_t>&ot_prelu_grad, REAL),
    "prelu_slope_grad": (<size_t>&ot_prelu_slope_grad, REAL),
}
