/* An optimizer update of a weight matrix whose gradient is a GEMM: the gradient is computed in blocks of rows, each of which is used before the next one is
 * computed, so that it stays in the caches and is never stored as a whole. */
#ifndef ORTRAIN_GEMM_UPDATE_H
#define ORTRAIN_GEMM_UPDATE_H
#include "training/training.h"

enum { GEMM_M, GEMM_N, GEMM_K, GEMM_TRANSPOSE_A, GEMM_TRANSPOSE_B, GEMM_ADAMW, GEMM_BLOCK_ROWS, GEMM_INTS };

/* inputs: the operands a and b of the gradient = op(a) op(b) [m, n], then the inputs of an optimizer kernel (training.h) without the gradient; outputs:
 * updated flag [1] or absent. ints: m, n, k, whether a and b are transposed, whether the optimizer is AdamW, rows of a block, then the optimizer's ints;
 * scratch: a block of the gradient. */
static int gemm_update(const KernelArgs *args)
{
    const int64_t *s = args->ints, m = s[GEMM_M], n = s[GEMM_N], k = s[GEMM_K], lda = s[GEMM_TRANSPOSE_A] ? m : k, ldb = s[GEMM_TRANSPOSE_B] ? k : n;
    const int ta = (int)s[GEMM_TRANSPOSE_A], tb = (int)s[GEMM_TRANSPOSE_B];
    const Engine *engine = args->engine;
    Tensor operands[SECOND_MOMENTS + 1] = {0};
    KernelArgs block = *args;
    block.n_inputs -= 2; block.inputs = operands; block.ints += GEMM_INTS;
    memcpy(operands, args->inputs + 2, (size_t)block.n_inputs * sizeof(Tensor));
    set_updated_flag(args);
    if (skips_update(&block)) return STATUS_OK;
    const int is_float = operands[WEIGHTS].dtype == DTYPE_FLOAT32;
    const int64_t size = is_float ? sizeof(float) : sizeof(double), a_row = (ta ? 1 : lda) * size;
    const char *a = args->inputs[0].data;
    for (int64_t row = 0, rows; row < m; row += rows, a += rows * a_row) {
        rows = s[GEMM_BLOCK_ROWS] < m - row ? s[GEMM_BLOCK_ROWS] : m - row;
        if (is_float) engine->gemm_float32(engine, ta, tb, rows, n, k, 1, (const float *)a, lda, args->inputs[1].data, ldb, 0, args->scratch, n, 0, 0);
        else engine->gemm_float64(engine, ta, tb, rows, n, k, 1, (const double *)a, lda, args->inputs[1].data, ldb, 0, args->scratch, n, 0, 0);
        operands[WEIGHTS].count = rows * n;
        operands[GRADIENTS].data = args->scratch;
        (s[GEMM_ADAMW] ? adamw : sgd)(&block);
        for (int i = 0; i <= SECOND_MOMENTS; i++)
            if (i != LR_AND_STEP && i != SKIP_UPDATE && operands[i].data) operands[i].data = (char *)operands[i].data + rows * n * size;
    }
    return STATUS_OK;
}
#endif
