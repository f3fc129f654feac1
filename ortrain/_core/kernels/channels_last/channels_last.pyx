"""Convolution, batch and group normalization and pooling on channels-last tensors [n, h, w, c]; the loops are in channels_last/*.h."""
from ortrain._core.kernel cimport KernelArgs

cdef extern from "channels_last/channels_last.h" nogil:
    int channels_last_conv(const KernelArgs *args)
    int channels_last_conv_grad(const KernelArgs *args)
    int channels_last_norm(const KernelArgs *args)
    int channels_last_norm_train(const KernelArgs *args)
    int channels_last_norm_grad(const KernelArgs *args)
    int channels_last_norm_again(const KernelArgs *args)
    int channels_last_group_norm(const KernelArgs *args)
    int channels_last_group_norm_again(const KernelArgs *args)
    int channels_last_group_norm_grad(const KernelArgs *args)
    int channels_last_max_pool(const KernelArgs *args)
    int channels_last_max_pool_grad(const KernelArgs *args)
    int channels_last_average_pool(const KernelArgs *args)
    int channels_last_average_pool_grad(const KernelArgs *args)

REAL = ("float32", "float64")

# name -> (address, dtypes of input 0)
KERNELS = {
    "channels_last_conv": (<size_t>&channels_last_conv, REAL),
    "channels_last_conv_grad": (<size_t>&channels_last_conv_grad, REAL),
    "channels_last_norm": (<size_t>&channels_last_norm, REAL),
    "channels_last_norm_train": (<size_t>&channels_last_norm_train, REAL),
    "channels_last_norm_grad": (<size_t>&channels_last_norm_grad, REAL),
    "channels_last_norm_again": (<size_t>&channels_last_norm_again, REAL),
    "channels_last_group_norm": (<size_t>&channels_last_group_norm, REAL),
    "channels_last_group_norm_again": (<size_t>&channels_last_group_norm_again, REAL),
    "channels_last_group_norm_grad": (<size_t>&channels_last_group_norm_grad, REAL),
    "channels_last_max_pool": (<size_t>&channels_last_max_pool, REAL),
    "channels_last_max_pool_grad": (<size_t>&channels_last_max_pool_grad, REAL),
    "channels_last_average_pool": (<size_t>&channels_last_average_pool, REAL),
    "channels_last_average_pool_grad": (<size_t>&channels_last_average_pool_grad, REAL),
}
