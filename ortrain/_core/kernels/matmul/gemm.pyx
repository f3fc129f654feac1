"""The float32 GEMM of this instruction set. It has no kernels of its own: ortrain._core.engine takes the addresses in GEMM and offers them to kernels."""
from libc.stdint cimport int64_t
from ortrain._core.kernel cimport Engine

cdef extern from "matmul/implicit_gemm.h" nogil:
    ctypedef struct ImplicitGemm:
        pass

cdef extern from "matmul/amx_gemm.h" nogil:
    void packed_gemm(int transpose_a, int transpose_b, int64_t m, int64_t n, int64_t k, float alpha, const float *a, int64_t lda,
                     const float *b, int64_t ldb, int accumulate, float *c, int64_t ldc, const float *bias, int relu, float *workspace)
    void parallel_gemm(const Engine *engine, int transpose_a, int transpose_b, int64_t m, int64_t n, int64_t k, float alpha, const float *a, int64_t lda,
                       const float *b, int64_t ldb, int accumulate, float *c, int64_t ldc, const float *bias, int relu)
    int amx_gemm(const Engine *engine, int transpose_a, int transpose_b, int64_t m, int64_t n, int64_t k, float alpha, const float *a, int64_t lda,
                 const float *b, int64_t ldb, int accumulate, float *c, int64_t ldc, const float *bias, int relu)
    void amx_implicit_gemm(const Engine *engine, const ImplicitGemm *product)
    int enable_amx()
    size_t PACKED_FLOATS

KERNELS = {}
# Addresses of the GEMM on the calling worker, on all workers and on AMX tiles, and of the implicit GEMM; whether AMX can be used; floats of packing space
# per worker.
GEMM = {"packed_gemm": <size_t>&packed_gemm, "parallel_gemm": <size_t>&parallel_gemm, "amx_gemm": <size_t>&amx_gemm,
        "implicit_gemm": <size_t>&amx_implicit_gemm, "amx": bool(enable_amx()), "workspace_floats": PACKED_FLOATS}
