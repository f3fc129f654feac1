"""The float64 GEMM of this instruction set, which ortrain._core.engine offers to kernels as it does that of gemm.pyx."""
from libc.stdint cimport int64_t
from ortrain._core.kernel cimport Engine

cdef extern from "matmul/gemm_float64.h" nogil:
    void packed_gemm(int transpose_a, int transpose_b, int64_t m, int64_t n, int64_t k, double alpha, const double *a, int64_t lda,
                     const double *b, int64_t ldb, int accumulate, double *c, int64_t ldc, const double *bias, int relu, double *workspace)
    void parallel_gemm(const Engine *engine, int transpose_a, int transpose_b, int64_t m, int64_t n, int64_t k, double alpha, const double *a, int64_t lda,
                       const double *b, int64_t ldb, int accumulate, double *c, int64_t ldc, const double *bias, int relu)
    size_t PACKED_FLOATS

KERNELS = {}
GEMM = {"packed_gemm": <size_t>&packed_gemm, "parallel_gemm": <size_t>&parallel_gemm, "workspace_floats": PACKED_FLOATS}
