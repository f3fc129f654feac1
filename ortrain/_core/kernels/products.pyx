"""The packed float32 product of this instruction set; ortrain._core.engine calls it through PRODUCTS."""
from libc.stdint cimport int64_t

cdef extern from "products.h" nogil:
    void packed_sgemm(int ta, int tb, int64_t m, int64_t n, int64_t k, const float *a, int64_t lda, const float *b, int64_t ldb, int accumulate, float *c, int64_t ldc,
                      const float *bias, int relu, float *workspace)
    size_t PACKED_FLOATS

KERNELS = {}
# the address of packed_sgemm and the packing space it needs, in floats per worker
PRODUCTS = {"packed_sgemm": <size_t>&packed_sgemm, "workspace_floats": PACKED_FLOATS}
