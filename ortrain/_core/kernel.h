/* The signature of all kernels, in plain C so that C libraries can use it.
 *
 * A kernel is `int kernel(const KernelArgs *args)`: it computes args->outputs from args->inputs, allocates no memory, does not
 * repeat checks of the planner, and returns STATUS_OK; guards may return another status. */
#ifndef ORTRAIN_KERNEL_H
#define ORTRAIN_KERNEL_H
#include <stddef.h>
#include <stdint.h>

#define ORTRAIN_MAX_RANK 8

/* the values of ONNX's TensorProto.DataType */
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

struct ImplicitGemm;                 /* matmul/implicit_gemm.h */

typedef void (*WorkItem)(void *context, int64_t item, int64_t worker);

/* Services for kernels of a running program. */
typedef struct Engine {
    void *pool;
    int32_t workers;                  /* threads that may run items; results must not depend on it */
    /* runs work(context, i, worker) for i in 0..items-1 and waits for all; inline if items is 1 or the pool is NULL */
    void (*parallel_for)(const struct Engine *engine, WorkItem work, void *context, int64_t items);
    /* C[m,n] (ldc) = alpha * op(A) op(B) + beta * C, row-major; op(X) is X^T when the flag is set; float32 and float64.
     * bias [n] or NULL is added to each row, then negative values become 0 if relu. beta is 0 or 1. alpha is 1 with beta, bias or ReLU. */
    void (*gemm_float32)(const struct Engine *engine, int transpose_a, int transpose_b, int64_t m, int64_t n, int64_t k, float alpha,
                         const float *a, int64_t lda, const float *b, int64_t ldb, float beta, float *c, int64_t ldc,
                         const float *bias, int relu);
    void (*gemm_float64)(const struct Engine *engine, int transpose_a, int transpose_b, int64_t m, int64_t n, int64_t k, double alpha,
                         const double *a, int64_t lda, const double *b, int64_t ldb, double beta, double *c, int64_t ldc,
                         const double *bias, int relu);
    /* the same on the calling worker only, for use inside a work item */
    void (*gemm_float32_serial)(const struct Engine *engine, int64_t worker, int transpose_a, int transpose_b, int64_t m, int64_t n, int64_t k,
                                float alpha, const float *a, int64_t lda, const float *b, int64_t ldb, float beta, float *c, int64_t ldc,
                                const float *bias, int relu);
    void (*gemm_float64_serial)(const struct Engine *engine, int64_t worker, int transpose_a, int transpose_b, int64_t m, int64_t n, int64_t k,
                                double alpha, const double *a, int64_t lda, const double *b, int64_t ldb, double beta, double *c, int64_t ldc,
                                const double *bias, int relu);
    /* to[i * to_m + j] = from[i + j * from_n], i < m, j < n, for elements of `size` bytes, on the calling worker */
    void (*transpose)(void *to, const void *from, int64_t size, int64_t m, int64_t n, int64_t to_m, int64_t from_n);
    float *workspaces;                /* GEMM packing buffers of workspace_floats each: one per worker and a shared one */
    int64_t workspace_floats;
    int64_t shared_workspace;         /* index of the shared buffer */
    int32_t bfloat16;                 /* whether gemm_float32, gemm_float32_serial and step_gemm round their operands to bfloat16 on vector units */
    int32_t rounds;                   /* whether products take bfloat16 operands, on AMX tiles or on vector units */
    int32_t amx;                      /* whether AMX tiles may be used (matmul/amx_tiles.h); implicit_gemm requires them, or bfloat16 */
    void (*implicit_gemm)(const struct Engine *engine, const struct ImplicitGemm *product);
    uint64_t seed;                    /* of the session */
    uint64_t run_index;               /* number of train steps: the counter of counter-based random numbers */
    /* if rounds: packs the weights of a recurrent layer, and multiplies by them, on the calling worker (matmul/step_gemm.h) */
    void (*pack_step_weights)(const float *weights, int transposed, int64_t depth, int64_t columns, void *panels);
    void (*step_gemm)(const struct Engine *engine, int64_t worker, int64_t rows, int64_t columns, int64_t depth, const float *a, int64_t lda,
                      const void *panels, int accumulate, float *c, int64_t ldc);
} Engine;

typedef struct KernelArgs {
    Tensor *inputs;
    Tensor *outputs;
    const int64_t *ints;              /* attributes packed by the lowering of the operator */
    const double *floats;
    void *scratch;                    /* working memory, 64-byte aligned, of the size that the lowering requests; NULL for none */
    const Engine *engine;
    int32_t n_inputs;
    int32_t n_outputs;
} KernelArgs;

typedef int (*Kernel)(const KernelArgs *args);

#endif
