"""The packed float32 product of this instruction set; ortrain._core.engine calls it through PRODUCTS."""
from libc.stdint cimport int64_t
from ortrain._core.kernel cimport Engine

cdef extern from "product_threads.h" nogil:
    void packed_sgemm(int ta, int tb, int64_t m, int64_t n, int64_t k, const float *a, int64_t lda, const float *b, int64_t ldb, int accumulate,
                      float *c, int64_t ldc, const float *bias, int relu, float *workspace)
    void parallel_sgemm(const Engine *engine, int ta, int tb, int64_t m, int64_t n, int64_t k, float alpha, const float *a, int64_t lda,
                        const float *b, int64_t ldb, int accumulate, float *c, int64_t ldc, const float *bias, int relu)
    size_t PACKED_FLOATS

KERNELS = {}
# the addresses of the product on one worker and on all, and the packing space they need, in floats per worker
PRODUCTS = {"packed_sgemm": <size_t>&packed_sgemm, "parallel_sgemm": <size_t>&parallel_sgemm, "workspace_floats": PACKED_FLOATS}
