/* The one signature that every kernel has, in plain C so that a C library can stand on it.
 *
 * A kernel is `int kernel(const KernelArgs *args)`: it computes args->outputs from args->inputs, allocates nothing, checks
 * nothing that the plan has checked, and returns STATUS_OK or the code of a refusal (only guards refuse). */
#ifndef ORTRAIN_KERNEL_H
#define ORTRAIN_KERNEL_H
#include <stddef.h>
#include <stdint.h>

#define ORTRAIN_MAX_RANK 8

/* dtype codes are ONNX's TensorProto.DataType numbers */
enum { DTYPE_FLOAT32 = 1, DTYPE_UINT8 = 2, DTYPE_INT8 = 3, DTYPE_INT32 = 6, DTYPE_INT64 = 7, DTYPE_BOOL = 9, DTYPE_FLOAT16 = 10,
       DTYPE_FLOAT64 = 11, DTYPE_BFLOAT16 = 16 };

enum { STATUS_OK = 0, STATUS_INDEX_OUT_OF_RANGE = 1 };

typedef struct Tensor {
    void *data;                       /* C order, contiguous; NULL for an absent optional input or output */
    int64_t count;                    /* product of dims; 1 for a scalar */
    int64_t dims[ORTRAIN_MAX_RANK];
    int32_t rank;
    int32_t dtype;
} Tensor;

struct WindowProduct;                 /* matmul/implicit_gemm.h */

typedef void (*WorkItem)(void *context, int64_t item, int64_t worker);

/* What a running program offers its kernels. */
typedef struct Engine {
    void *pool;
    int32_t workers;                  /* threads that may run items; never decides how work is split */
    /* runs work(context, 0..items-1, worker); returns when all are done. Runs inline when items is 1 or the pool is NULL. */
    void (*parallel_for)(const struct Engine *engine, WorkItem work, void *context, int64_t items);
    /* C[m,n] (ldc) = alpha * op(A) op(B) + beta * C, row-major; op(X) is X^T when the flag is set; float32 and float64.
     * bias [n] or NULL is added to each row, then negative values become 0 if relu. beta is 0 or 1. */
    void (*gemm_float32)(const struct Engine *engine, int transpose_a, int transpose_b, int64_t m, int64_t n, int64_t k, float alpha,
                         const float *a, int64_t lda, const float *b, int64_t ldb, float beta, float *c, int64_t ldc,
                         const float *bias, int relu);
    void (*gemm_float64)(const struct Engine *engine, int transpose_a, int transpose_b, int64_t m, int64_t n, int64_t k, double alpha,
                         const double *a, int64_t lda, const double *b, int64_t ldb, double beta, double *c, int64_t ldc,
                         const double *bias, int relu);
    /* the same on the calling worker alone, for use inside a work item */
    void (*gemm_float32_serial)(const struct Engine *engine, int64_t worker, int transpose_a, int transpose_b, int64_t m, int64_t n, int64_t k,
                                float alpha, const float *a, int64_t lda, const float *b, int64_t ldb, float beta, float *c, int64_t ldc,
                                const float *bias, int relu);
    void (*gemm_float64_serial)(const struct Engine *engine, int64_t worker, int transpose_a, int transpose_b, int64_t m, int64_t n, int64_t k,
                                double alpha, const double *a, int64_t lda, const double *b, int64_t ldb, double beta, double *c, int64_t ldc,
                                const double *bias, int relu);
    float *workspaces;                /* gemm packing buffers, one of workspace_floats per worker, and one that they share */
    int64_t workspace_floats;
    int64_t shared_workspace;         /* its number */
    int32_t amx;           /* whether gemm_float32 may use the processor's (matmul/amx_tiles.h); only then may there be called: */
    void (*window_product)(const struct Engine *engine, const struct WindowProduct *product);
    uint64_t seed;                    /* of the session */
    uint64_t run_index;               /* counts train steps: the counter of counter-based random numbers */
} Engine;

typedef struct KernelArgs {
    Tensor *inputs;
    Tensor *outputs;
    const int64_t *ints;              /* packed by the record's lower() */
    const double *floats;
    void *scratch;                    /* 64-byte aligned, of the size lower() asked for; NULL if none */
    const Engine *engine;
    int32_t n_inputs;
    int32_t n_outputs;
} KernelArgs;

typedef int (*Kernel)(const KernelArgs *args);

#endif
