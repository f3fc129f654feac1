"""Connectionist temporal classification; the loops are in ctc_loss.h."""
from ortrain._core.kernel cimport KernelArgs

cdef extern from "training/ctc_loss.h" nogil:
    int ctc_loss(const KernelArgs *args)

# name -> (address, dtypes of input 0 it is for)
KERNELS = {
    "ctc_loss": (<size_t>&ctc_loss, ("float32", "float64")),
}
