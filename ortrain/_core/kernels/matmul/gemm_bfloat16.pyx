"""The GEMM of bfloat16 operands, which ortrain._core.engine offers to kernels as it does that of gemm.pyx. Operands and results are float32 in memory."""
from libc.stdint cimport int64_t
from ortrain._core.kernel cimport Engine

cdef extern from "matmul/implicit_gemm.h" nogil:
    ctypedef struct ImplicitGemm:
        pass

cdef extern from "matmul/gemm_bfloat16.h" nogil:
    void packed_gemm(int transpose_a, int transpose_b, int64_t m, int64_t n, int64_t k, float alpha, const float *a, int64_t lda,
                     const float *b, int64_t ldb, int accumulate, float *c, int64_t ldc, const float *bias, int relu, void *workspace)
    void parallel_gemm(const Engine *engine, int transpose_a, int transpose_b, int64_t m, int64_t n, int64_t k, float alpha, const float *a, int64_t lda,
                       const float *b, int64_t ldb, int accumulate, float *c, int64_t ldc, const float *bias, int relu)
    int gemm_on_tiles(const Engine *engine, int transpose_a, int transpose_b, int64_t m, int64_t n, int64_t k, float alpha, const float *a, int64_t lda,
                      const float *b, int64_t ldb, int accumulate, float *c, int64_t ldc, const float *bias, int relu)
    int tiled_gemm_serial(const Engine *engine, int64_t worker, int transpose_a, int transpose_b, int64_t m, int64_t n, int64_t k, float alpha, const float *a,
                          int64_t lda, const float *b, int64_t ldb, int accumulate, float *c, int64_t ldc, const float *bias, int relu)
    void pack_tiled_step_weights(const float *weights, int transposed, int64_t depth, int64_t columns, void *panels)
    void tiled_step_gemm(const Engine *engine, int64_t worker, int64_t rows, int64_t columns, int64_t depth, const float *a, int64_t lda,
                         const void *panels, int accumulate, float *c, int64_t ldc)
    void implicit_gemm(const Engine *engine, const ImplicitGemm *product)
    void pack_step_weights(const float *weights, int transposed, int64_t depth, int64_t columns, void *panels)
    void step_gemm(const Engine *engine, int64_t worker, int64_t rows, int64_t columns, int64_t depth, const float *a, int64_t lda, const void *panels,
                   int accumulate, float *c, int64_t ldc)
    size_t PACKED_FLOATS

KERNELS = {}
GEMM = {"packed_gemm": <size_t>&packed_gemm, "parallel_gemm": <size_t>&parallel_gemm, "gemm_on_tiles": <size_t>&gemm_on_tiles,
        "implicit_gemm": <size_t>&implicit_gemm, "pack_step_weights": <size_t>&pack_step_weights, "step_gemm": <size_t>&step_gemm,
        "tiled_gemm_serial": <size_t>&tiled_gemm_serial, "pack_tiled_step_weights": <size_t>&pack_tiled_step_weights,
        "tiled_step_gemm": <size_t>&tiled_step_gemm, "workspace_floats": PACKED_FLOATS}
