"""ArgMax, ArgMin, TopK and ReverseSequence; the loops are in selection.h."""
from ortrain._core.kernel cimport KernelArgs

cdef extern from "reduction/selection.h" nogil:
    int arg_extreme(const KernelArgs *args)
    int top_k(const KernelArgs *args)
    int reverse_sequence(const KernelArgs *args)

NUMBER = ("float32", "float64", "int64", "int32")

# name -> (address, dtypes of input 0)
KERNELS = {
    "arg_extreme": (<size_t>&arg_extreme, NUMBER),
    "top_k": (<size_t>&top_k, NUMBER),
    "reverse_sequence": (<size_t>&reverse_sequence, ("float32", "float64", "int64", "int32", "bool", "uint8", "int8")),
}
