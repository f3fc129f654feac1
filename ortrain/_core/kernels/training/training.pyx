"""Accumulation of gradients and optimizers; the loops are in training.h, sweeps.h, tensor_updates.h, gemm_update.h, gradient_noise.h and
stochastic_rounding.h."""
from ortrain._core.kernel cimport KernelArgs

cdef extern from "training/training.h" nogil:
    int accumulate(const KernelArgs *args)
    int adamw(const KernelArgs *args)
    int sgd(const KernelArgs *args)
    int scale_in_place(const KernelArgs *args)
    int clip_in_place(const KernelArgs *args)
    int moving_average(const KernelArgs *args)
    int exchange(const KernelArgs *args)
    int squared_norm(const KernelArgs *args)

cdef extern from "training/optimizers.h" nogil:
    int adam(const KernelArgs *args)
    int momentum(const KernelArgs *args)
    int lion(const KernelArgs *args)
    int rmsprop(const KernelArgs *args)
    int adagrad(const KernelArgs *args)
    int lamb(const KernelArgs *args)
    int adafactor(const KernelArgs *args)
    int muon(const KernelArgs *args)

cdef extern from "training/gradient_noise.h" nogil:
    int gradient_noise(const KernelArgs *args)

cdef extern from "training/gemm_update.h" nogil:
    int gemm_update(const KernelArgs *args)

# name -> (address, dtypes of input 0 it is for)
KERNELS = {
    "accumulate": (<size_t>&accumulate, ("float32", "float64")),
    "adamw": (<size_t>&adamw, ("float32", "float64", "bfloat16")),
    "sgd": (<size_t>&sgd, ("float32", "float64", "bfloat16")),
    "adam": (<size_t>&adam, ("float32", "float64", "bfloat16")),
    "momentum": (<size_t>&momentum, ("float32", "float64", "bfloat16")),
    "lion": (<size_t>&lion, ("float32", "float64", "bfloat16")),
    "rmsprop": (<size_t>&rmsprop, ("float32", "float64", "bfloat16")),
    "adagrad": (<size_t>&adagrad, ("float32", "float64", "bfloat16")),
    "lamb": (<size_t>&lamb, ("float32", "float64")),
    "adafactor": (<size_t>&adafactor, ("float32", "float64")),
    "muon": (<size_t>&muon, ("float32", "float64")),
    "scale_in_place": (<size_t>&scale_in_place, ("float32", "float64")),
    "clip_in_place": (<size_t>&clip_in_place, ("float32", "float64")),
    "gradient_noise": (<size_t>&gradient_noise, ("float32", "float64")),
    "moving_average": (<size_t>&moving_average, ("float32", "float64")),
    "exchange": (<size_t>&exchange, ("float32", "float64")),
    "gemm_update": (<size_t>&gemm_update, ("float32", "float64", "bfloat16")),
    "squared_norm": (<size_t>&squared_norm, ("float32", "float64")),
}
