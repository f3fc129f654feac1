/* A weight matrix updated from the product that is its gradient: the gradient is there piece by piece, and each is spent before the next is made. */
#ifndef ORTRAIN_GEMM_UPDATE_H
#define ORTRAIN_GEMM_UPDATE_H
#include "training/optimizers.h"

enum { GEMM_M, GEMM_N, GEMM_K, GEMM_TRANSPOSE_A, GEMM_TRANSPOSE_B, GEMM_OPTIMIZER, GEMM_PIECE_ROWS, GEMM_INTS };
enum { OPTIMIZER_INTS = 2 };                                /* what is left of the ints after GEMM_INTS and ROUNDING_INTS */

/* the optimizers whose update can be fused, by the numbers that their records have as gemm_update */
static int (*const GEMM_UPDATES[])(const KernelArgs *) = {sgd, adamw, adam, momentum, lion, rmsprop, adagrad};

/* inputs: the factors a and b of the gradient, then what an optimizer's kernel takes, the gradient itself absent; weights [m, n]; outputs: updated [1].
 * ints: m, n, k, transpose a and b, which optimizer it is, rows of a piece of the gradient (in scratch), then for weights of bfloat16 those by which they are
 * rounded, then the optimizer's, as many as OPTIMIZER_INTS. */
static int gemm_update(const KernelArgs *args)
{
    const int64_t *s = args->ints, m = s[GEMM_M], n = s[GEMM_N], k = s[GEMM_K], lda = s[GEMM_TRANSPOSE_A] ? m : k, ldb = s[GEMM_TRANSPOSE_B] ? k : n;
    const int ta = (int)s[GEMM_TRANSPOSE_A], tb = (int)s[GEMM_TRANSPOSE_B];
    const Engine *engine = args->engine;
    Tensor operands[THIRD_MOMENTS + 1] = {0};
    KernelArgs piece = *args;
    int64_t ints[ROUNDING_INTS + OPTIMIZER_INTS];
    piece.n_inputs -= 2; piece.inputs = operands; piece.ints += GEMM_INTS;
    memcpy(operands, args->inputs + 2, (size_t)piece.n_inputs * sizeof(Tensor));
    set_updated_flag(args);
    if (skips_update(&piece)) return STATUS_OK;
    const int is_float = operands[WEIGHTS].dtype != DTYPE_FLOAT64, is_rounded = operands[WEIGHTS].dtype == DTYPE_BFLOAT16;
    const int64_t size = is_float ? sizeof(float) : sizeof(double), kept_size = is_rounded ? 2 : size, a_row = (ta ? 1 : lda) * size;
    if (is_rounded) piece.ints = memcpy(ints, piece.ints, sizeof ints);
    const char *a = args->inputs[0].data;
    for (int64_t row = 0, rows; row < m; row += rows, a += rows * a_row) {
        rows = s[GEMM_PIECE_ROWS] < m - row ? s[GEMM_PIECE_ROWS] : m - row;
        if (is_float) engine->gemm_float32(engine, ta, tb, rows, n, k, 1, (const float *)a, lda, args->inputs[1].data, ldb, 0, args->scratch, n, 0, 0);
        else engine->gemm_float64(engine, ta, tb, rows, n, k, 1, (const double *)a, lda, args->inputs[1].data, ldb, 0, args->scratch, n, 0, 0);
        operands[WEIGHTS].count = rows * n;
        operands[GRADIENTS].data = args->scratch;
        GEMM_UPDATES[s[GEMM_OPTIMIZER]](&piece);
        for (int i = 0; i <= THIRD_MOMENTS; i++)
            if (i != LR_AND_STEP && i != SKIP_UPDATE && operands[i].data) operands[i].data = (char *)operands[i].data + rows * n * kept_size;
        if (is_rounded) ints[FIRST_ELEMENT] += rows * n;
    }
    return STATUS_OK;
}
#endif
