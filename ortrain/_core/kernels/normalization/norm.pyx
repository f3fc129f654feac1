"""Batch, layer, group and RMS normalization; the loops are in norm.h, group_norm.h and layer_norm.h."""
from ortrain._core.kernel cimport KernelArgs

cdef extern from "normalization/norm.h" nogil:
    int batch_norm(const KernelArgs *args)
    int batch_norm_train(const KernelArgs *args)
    int batch_norm_grad(const KernelArgs *args)
    int group_norm(const KernelArgs *args)
    int group_norm_grad(const KernelArgs *args)

cdef extern from "normalization/layer_norm.h" nogil:
    int layer_norm(const KernelArgs *args)
    int layer_norm_grad(const KernelArgs *args)
    int rms_norm(const KernelArgs *args)
    int rms_norm_grad(const KernelArgs *args)

# name -> (address, dtypes of input 0)
KERNELS = {
    "batch_norm": (<size_t>&batch_norm, ("float32", "float64")),
    "batch_norm_train": (<size_t>&batch_norm_train, ("float32", "float64")),
    "batch_norm_grad": (<size_t>&batch_norm_grad, ("float32", "float64")),
    "layer_norm": (<size_t>&layer_norm, ("float32", "float64")),
    "layer_norm_grad": (<size_t>&layer_norm_grad, ("float32", "float64")),
    "group_norm": (<size_t>&group_norm, ("float32", "float64")),
    "group_norm_grad": (<size_t>&group_norm_grad, ("float32", "float64")),
    "rms_norm": (<size_t>&rms_norm, ("float32", "float64")),
    "rms_norm_grad": (<size_t>&rms_norm_grad, ("float32", "float64")),
}
