"""The packed float32 product of this instruction set; ortrain._core.engine calls it through GEMM."""
from libc.stdint cimport int64_t
from ortrain._core.kernel cimport Engine

cdef extern from "matmul/amx_gemm.h" nogil:
    void packed_sgemm(int ta, int tb, int64_t m, int64_t n, int64_t k, const float *a, int64_t lda, const float *b, int64_t ldb, int accumulate,
                      float *c, int64_t ldc, const float *bias, int relu, float *workspace)
    void parallel_sgemm(const Engine *engine, int ta, int tb, int64_t m, int64_t n, int64_t k, float alpha, const float *a, int64_t lda,
                        const float *b, int64_t ldb, int accumulate, float *c, int64_t ldc, const float *bias, int relu)
    int amx_sgemm(const Engine *engine, int ta, int tb, int64_t m, int64_t n, int64_t k, float alpha, const float *a, int64_t lda,
                    const float *b, int64_t ldb, int accumulate, float *c, int64_t ldc, const float *bias, int relu)
    void window_product(const Engine *engine, const void *product)
    int allow_tiles()
    size_t PACKED_FLOATS

KERNELS = {}
# the addresses of the product on one worker, on all, and on bfloat16 tiles, whether there are such tiles, and packing space in floats per worker
GEMM = {"packed_sgemm": <size_t>&packed_sgemm, "parallel_sgemm": <size_t>&parallel_sgemm, "amx_sgemm": <size_t>&amx_sgemm, "window_product": <size_t>&window_product,
            "amx": bool(allow_tiles()), "workspace_floats": PACKED_FLOATS}
