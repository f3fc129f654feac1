/* Softmax, log-softmax and their gradients over x [outer, size, inner]; ints: outer, size, inner. */
#ifndef ORTRAIN_SOFTMAX_H
#define ORTRAIN_SOFTMAX_H
#include <math.h>
#include "kernel.h"
#include "common/vector_math.h"

enum { SOFTMAX_CHUNK = 8192, SUM_LANES = 16 };

#define SOFT_EXP(x) _Generic((x), float: ot_expf, double: exp)(x)
#define SOFT_LOG(x) _Generic((x), float: logf, double: log)(x)

/* R result = sum over k < n of value, in 16 lanes and a fixed order */
#define LANE_SUM(R, result, n, value)                                                            \
    R result; { R lanes[SUM_LANES] = {0}; int64_t k = 0; result = 0;                             \
        for (; k + SUM_LANES <= n; ) for (int l = 0; l < SUM_LANES; l++, k++) lanes[l] += value; \
        for (; k < n; k++) result += value;                                                      \
        for (int l = 0; l < SUM_LANES; l++) result += lanes[l]; }

#define ROWS_PER_ITEM(size) (SOFTMAX_CHUNK / ((size) > 0 ? (size) : 1) + 1)

#define ROW_LOOP(NAME, R, HAS_INPUT1, CONTIGUOUS, STRIDED)                                                                             \
static void NAME##_##R(void *context, int64_t item, int64_t worker)                                                                    \
{                                                                                                                                      \
    const KernelArgs *args = context; int64_t size = args->ints[1], inner = args->ints[2], rows = args->ints[0] * inner; (void)worker; \
    int64_t row = item * ROWS_PER_ITEM(size), end = row + ROWS_PER_ITEM(size); if (end > rows) end = rows;                             \
    for (; row < end; row++) {                                                                                                         \
        int64_t base = row / inner * size * inner + row % inner;                                                                       \
        const R *a = (const R *)args->inputs[0].data + base, *b = HAS_INPUT1 ? (const R *)args->inputs[1].data + base : a;             \
        R *y = (R *)args->outputs[0].data + base; (void)b;                                                                             \
        if (inner == 1) { const int64_t step = 1; CONTIGUOUS } else { const int64_t step = inner; STRIDED }                            \
    }                                                                                                                                  \
}
#define SOFTMAX_KERNEL(NAME, HAS_INPUT1, BODY) ROW_LOOP(NAME, float, HAS_INPUT1, BODY(float), BODY(float))                            \
ROW_LOOP(NAME, double, HAS_INPUT1, BODY(double), BODY(double))                                                                        \
static int NAME(const KernelArgs *args)                                                                                               \
{                                                                                                                                     \
    int64_t rows = args->ints[0] * args->ints[2], per_item = ROWS_PER_ITEM(args->ints[1]);                                            \
    if (args->ints[1] > 0)                                                                                                            \
        args->engine->parallel_for(args->engine, args->inputs[0].dtype == DTYPE_FLOAT32 ? NAME##_float : NAME##_double, (void *)args, \
                                   (rows + per_item - 1) / per_item);                                                                 \
    return STATUS_OK;                                                                                                                 \
}
#define ROW_MAX(R) R row_max = a[0]; for (int64_t k = 1; k < size; k++) row_max = a[k * step] > row_max ? a[k * step] : row_max;
#define SOFTMAX_BODY(R) ROW_MAX(R) for (int64_t k = 0; k < size; k++) y[k * step] = SOFT_EXP((R)(a[k * step] - row_max)); \
    LANE_SUM(R, sum, size, y[k * step]) R scale = 1 / sum; for (int64_t k = 0; k < size; k++) y[k * step] *= scale;
#define LOG_SOFTMAX_BODY(R) ROW_MAX(R) LANE_SUM(R, sum, size, SOFT_EXP((R)(a[k * step] - row_max))) \
    R shift = row_max + SOFT_LOG(sum); for (int64_t k = 0; k < size; k++) y[k * step] = a[k * step] - shift;
#define SOFTMAX_GRAD_BODY(R) LANE_SUM(R, dot, size, a[k * step] * b[k * step]) \
    for (int64_t k = 0; k < size; k++) y[k * step] = b[k * step] * (a[k * step] - dot);
#define LOG_SOFTMAX_GRAD_BODY(R) LANE_SUM(R, sum, size, a[k * step]) \
    for (int64_t k = 0; k < size; k++) y[k * step] = a[k * step] - SOFT_EXP(b[k * step]) * sum;

SOFTMAX_KERNEL(softmax, 0, SOFTMAX_BODY)
SOFTMAX_KERNEL(log_softmax, 0, LOG_SOFTMAX_BODY)
SOFTMAX_KERNEL(softmax_grad, 1, SOFTMAX_GRAD_BODY)
SOFTMAX_KERNEL(log_softmax_grad, 1, LOG_SOFTMAX_GRAD_BODY)
#endif
