"""Gradient accumulation and fused optimizer updates; the loops are in training.h and gemm_update.h."""
from ortrain._core.kernel cimport KernelArgs

cdef extern from "training/training.h" nogil:
    int accumulate(const KernelArgs *args)
    int adamw(const KernelArgs *args)
    int sgd(const KernelArgs *args)
    int scale_in_place(const KernelArgs *args)
    int squared_norm(const KernelArgs *args)

cdef extern from "training/gemm_update.h" nogil:
    int gemm_update(const KernelArgs *args)

# name -> (address, dtypes of input 0)
KERNELS = {
    "accumulate": (<size_t>&accumulate, ("float32", "float64")),
    "adamw": (<size_t>&adamw, ("float32", "float64")),
    "sgd": (<size_t>&sgd, ("float32", "float64")),
    "scale_in_place": (<size_t>&scale_in_place, ("float32", "float64")),
    "gemm_update": (<size_t>&gemm_update, ("float32", "float64")),
    "squared_norm": (<size_t>&squared_norm, ("float32", "float64")),
}
