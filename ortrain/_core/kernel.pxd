"""Cython declarations of kernel.h."""
from libc.stdint cimport int32_t, int64_t, uint64_t

cdef extern from "kernel.h" nogil:
    enum:
        ORTRAIN_MAX_RANK
        DTYPE_FLOAT32, DTYPE_UINT8, DTYPE_INT8, DTYPE_INT32, DTYPE_INT64, DTYPE_BOOL, DTYPE_FLOAT64
        STATUS_OK, STATUS_INDEX_OUT_OF_RANGE

    ctypedef struct Tensor:
        void *data
        int64_t count
        int64_t dims[8]
        int32_t rank
        int32_t dtype

    ctypedef void (*WorkItem)(void *context, int64_t item, int64_t worker) noexcept nogil

    ctypedef struct Engine:
        void *pool
        int32_t workers
        void (*parallel_for)(const Engine *engine, WorkItem work, void *context, int64_t items) noexcept nogil
        void (*gemm_float32)(const Engine *engine, int transpose_a, int transpose_b, int64_t m, int64_t n, int64_t k, float alpha,
                             const float *a, int64_t lda, const float *b, int64_t ldb, float beta, float *c, int64_t ldc,
                             const float *bias, int relu) noexcept nogil
        void (*gemm_float64)(const Engine *engine, int transpose_a, int transpose_b, int64_t m, int64_t n, int64_t k, double alpha,
                             const double *a, int64_t lda, const double *b, int64_t ldb, double beta, double *c, int64_t ldc,
                             const double *bias, int relu) noexcept nogil
        void (*gemm_float32_serial)(const Engine *engine, int64_t worker, int transpose_a, int transpose_b, int64_t m, int64_t n, int64_t k,
                                    float alpha, const float *a, int64_t lda, const float *b, int64_t ldb, float beta, float *c,
                                    int64_t ldc, const float *bias, int relu) noexcept nogil
        void (*gemm_float64_serial)(const Engine *engine, int64_t worker, int transpose_a, int transpose_b, int64_t m, int64_t n, int64_t k,
                                    double alpha, const double *a, int64_t lda, const double *b, int64_t ldb, double beta, double *c,
                                    int64_t ldc, const double *bias, int relu) noexcept nogil
        void (*transpose)(void *to, const void *from_, int64_t size, int64_t m, int64_t n, int64_t to_m, int64_t from_n) noexcept nogil
        float *workspaces
        int64_t workspace_floats
        int64_t shared_workspace
        int32_t bfloat16
        int32_t rounds
        int32_t amx
        void *implicit_gemm
        uint64_t seed
        uint64_t run_index
        void *pack_step_weights
        void *step_gemm

    ctypedef struct KernelArgs:
        Tensor *inputs
        Tensor *outputs
        const int64_t *ints
        const double *floats
        void *scratch
        const Engine *engine
        int32_t n_inputs
        int32_t n_outputs

    ctypedef int (*Kernel)(const KernelArgs *args) noexcept nogil

ctypedef fused real:
    float
    double
