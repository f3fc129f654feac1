"""Elementwise kernels: arithmetic, comparisons, activations and their gradients; the loops are one line each in elementwise.h."""
from ortrain._core.kernel cimport KernelArgs

cdef extern from "elementwise/elementwise.h" nogil:
    int ot_relu(const KernelArgs *args)
    int ot_leaky_relu(const KernelArgs *args)
    int ot_sigmoid_kernel(const KernelArgs *args)
    int ot_tanh(const KernelArgs *args)
    int ot_erf(const KernelArgs *args)
    int ot_exp(const KernelArgs *args)
    int ot_log(const KernelArgs *args)
    int ot_sqrt(const KernelArgs *args)
    int ot_reciprocal(const KernelArgs *args)
    int ot_sin(const KernelArgs *args)
    int ot_cos(const KernelArgs *args)
    int ot_tan(const KernelArgs *args)
    int ot_asin(const KernelArgs *args)
    int ot_acos(const KernelArgs *args)
    int ot_atan(const KernelArgs *args)
    int ot_sinh(const KernelArgs *args)
    int ot_cosh(const KernelArgs *args)
    int ot_asinh(const KernelArgs *args)
    int ot_acosh(const KernelArgs *args)
    int ot_atanh(const KernelArgs *args)
    int ot_floor(const KernelArgs *args)
    int ot_ceil(const KernelArgs *args)
    int ot_round(const KernelArgs *args)
    int ot_gelu(const KernelArgs *args)
    int ot_fast_gelu(const KernelArgs *args)
    int ot_quick_gelu(const KernelArgs *args)
    int ot_clip(const KernelArgs *args)
    int ot_is_nan(const KernelArgs *args)
    int ot_is_inf(const KernelArgs *args)
    int ot_neg(const KernelArgs *args)
    int ot_abs(const KernelArgs *args)
    int ot_sign(const KernelArgs *args)
    int ot_not(const KernelArgs *args)
    int ot_add(const KernelArgs *args)
    int ot_max(const KernelArgs *args)
    int ot_min(const KernelArgs *args)
    int ot_mod(const KernelArgs *args)
    int ot_max_grad(const KernelArgs *args)
    int ot_min_grad(const KernelArgs *args)
    int ot_sub(const KernelArgs *args)
    int ot_mul(const KernelArgs *args)
    int ot_div(const KernelArgs *args)
    int ot_equal(const KernelArgs *args)
    int ot_less(const KernelArgs *args)
    int ot_less_or_equal(const KernelArgs *args)
    int ot_greater(const KernelArgs *args)
    int ot_greater_or_equal(const KernelArgs *args)
    int ot_and(const KernelArgs *args)
    int ot_or(const KernelArgs *args)
    int ot_xor(const KernelArgs *args)
    int ot_pow(const KernelArgs *args)
    int ot_relu_grad(const KernelArgs *args)
    int ot_leaky_relu_grad(const KernelArgs *args)
    int ot_sigmoid_grad(const KernelArgs *args)
    int ot_tanh_grad(const KernelArgs *args)
    int ot_gelu_grad(const KernelArgs *args)
    int ot_fast_gelu_grad(const KernelArgs *args)
    int ot_quick_gelu_grad(const KernelArgs *args)
    int ot_where(const KernelArgs *args)
    int ot_cast(const KernelArgs *args)
    int ot_scale(const KernelArgs *args)
    int ot_sum(const KernelArgs *args)

REAL = ("float32", "float64")
NUMBER = (*REAL, "int64", "int32")
ALL = (*NUMBER, "uint8", "int8", "bool")

# name -> (address, dtypes of input 0)
KERNELS = {
    "relu": (<size_t>&ot_relu, REAL),
    "leaky_relu": (<size_t>&ot_leaky_relu, REAL),
    "sigmoid": (<size_t>&ot_sigmoid_kernel, REAL),
    "tanh": (<size_t>&ot_tanh, REAL),
    "erf": (<size_t>&ot_erf, REAL),
    "exp": (<size_t>&ot_exp, REAL),
    "log": (<size_t>&ot_log, REAL),
    "sqrt": (<size_t>&ot_sqrt, REAL),
    "reciprocal": (<size_t>&ot_reciprocal, REAL),
    "sin": (<size_t>&ot_sin, REAL),
    "cos": (<size_t>&ot_cos, REAL),
    "tan": (<size_t>&ot_tan, REAL),
    "asin": (<size_t>&ot_asin, REAL),
    "acos": (<size_t>&ot_acos, REAL),
    "atan": (<size_t>&ot_atan, REAL),
    "sinh": (<size_t>&ot_sinh, REAL),
    "cosh": (<size_t>&ot_cosh, REAL),
    "asinh": (<size_t>&ot_asinh, REAL),
    "acosh": (<size_t>&ot_acosh, REAL),
    "atanh": (<size_t>&ot_atanh, REAL),
    "floor": (<size_t>&ot_floor, REAL),
    "ceil": (<size_t>&ot_ceil, REAL),
    "round": (<size_t>&ot_round, REAL),
    "gelu": (<size_t>&ot_gelu, REAL),
    "fast_gelu": (<size_t>&ot_fast_gelu, REAL),
    "quick_gelu": (<size_t>&ot_quick_gelu, REAL),
    "clip": (<size_t>&ot_clip, REAL),
    "is_nan": (<size_t>&ot_is_nan, REAL),
    "is_inf": (<size_t>&ot_is_inf, REAL),
    "neg": (<size_t>&ot_neg, NUMBER),
    "abs": (<size_t>&ot_abs, NUMBER),
    "sign": (<size_t>&ot_sign, NUMBER),
    "not": (<size_t>&ot_not, ("bool",)),
    "add": (<size_t>&ot_add, (*NUMBER, "uint8")),
    "max": (<size_t>&ot_max, (*NUMBER, "uint8")),
    "min": (<size_t>&ot_min, (*NUMBER, "uint8")),
    "mod": (<size_t>&ot_mod, (*NUMBER, "uint8")),
    "max_grad": (<size_t>&ot_max_grad, REAL),
    "min_grad": (<size_t>&ot_min_grad, REAL),
    "sub": (<size_t>&ot_sub, (*NUMBER, "uint8")),
    "mul": (<size_t>&ot_mul, (*NUMBER, "uint8")),
    "div": (<size_t>&ot_div, NUMBER),
    "equal": (<size_t>&ot_equal, (*NUMBER, "uint8", "bool")),
    "less": (<size_t>&ot_less, (*NUMBER, "uint8", "bool")),
    "less_or_equal": (<size_t>&ot_less_or_equal, (*NUMBER, "uint8", "bool")),
    "greater": (<size_t>&ot_greater, (*NUMBER, "uint8", "bool")),
    "greater_or_equal": (<size_t>&ot_greater_or_equal, (*NUMBER, "uint8", "bool")),
    "and": (<size_t>&ot_and, ("bool",)),
    "or": (<size_t>&ot_or, ("bool",)),
    "xor": (<size_t>&ot_xor, ("bool",)),
    "pow": (<size_t>&ot_pow, REAL),
    "relu_grad": (<size_t>&ot_relu_grad, REAL),
    "leaky_relu_grad": (<size_t>&ot_leaky_relu_grad, REAL),
    "sigmoid_grad": (<size_t>&ot_sigmoid_grad, REAL),
    "tanh_grad": (<size_t>&ot_tanh_grad, REAL),
    "gelu_grad": (<size_t>&ot_gelu_grad, REAL),
    "fast_gelu_grad": (<size_t>&ot_fast_gelu_grad, REAL),
    "quick_gelu_grad": (<size_t>&ot_quick_gelu_grad, REAL),
    "where": (<size_t>&ot_where, ("bool",)),
    "cast": (<size_t>&ot_cast, (*ALL, "float16", "bfloat16")),
    "scale": (<size_t>&ot_scale, REAL),
    "sum": (<size_t>&ot_sum, REAL),
}
