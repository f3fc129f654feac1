/* Cumulative sums and products along one axis. ints: outer, size, inner, exclusive, reverse. */
#ifndef ORTRAIN_CUMULATIVE_H
#define ORTRAIN_CUMULATIVE_H
#include "kernel.h"

/* y[o, j, i] = x[o, 0, i] op ... op x[o, j, i], without x[o, j, i] if exclusive, from the end if reverse. A work item is one o. */
#define CUMULATIVE(NAME, R, IDENTITY, OP)                                                                            \
static void NAME##_##R##_item(void *context, int64_t o, int64_t worker)                                              \
{                                                                                                                    \
    const KernelArgs *args = context; const int64_t *p = args->ints, n = p[1], inner = p[2]; (void)worker;           \
    const R *x = (const R *)args->inputs[0].data + o * n * inner; R *y = (R *)args->outputs[0].data + o * n * inner; \
    for (int64_t j = 0; j < n; j++) {                                                                                \
        int64_t at = (p[4] ? n - 1 - j : j) * inner, before = (p[4] ? n - j : j - 1) * inner;                        \
        for (int64_t i = 0; i < inner; i++) {                                                                        \
            R previous = j ? y[before + i] : IDENTITY;                                                               \
            y[at + i] = p[3] ? (j ? previous OP x[before + i] : IDENTITY) : previous OP x[at + i];                   \
        }                                                                                                            \
    }                                                                                                                \
}
#define CUMULATIVE_KERNEL(NAME, IDENTITY, OP)                                                                                 \
CUMULATIVE(NAME, float, IDENTITY, OP) CUMULATIVE(NAME, double, IDENTITY, OP) CUMULATIVE(NAME, int64_t, IDENTITY, OP) CUMULATIVE(NAME, int32_t, IDENTITY, OP) \
static int NAME(const KernelArgs *args)                                                                                       \
{                                                                                                                             \
    int32_t d = args->inputs[0].dtype;                                                                                        \
    args->engine->parallel_for(args->engine, d == DTYPE_FLOAT32 ? NAME##_float_item : d == DTYPE_FLOAT64 ? NAME##_double_item \
        : d == DTYPE_INT64 ? NAME##_int64_t_item : NAME##_int32_t_item, (void *)args, args->ints[0]);                         \
    return STATUS_OK;                                                                                                         \
}
CUMULATIVE_KERNEL(running_sum, 0, +)
CUMULATIVE_KERNEL(running_product, 1, *)

/* (dy, x) -> dx of a cumulative product, without divisions: a first pass stores the product of the elements before each one, a second pass in the other
 * direction multiplies it by the sum, over the results after it, of dy times the product of the elements between. A work item is one o. */
enum { COLUMN_BLOCK = 64 };
#define CUMULATIVE_PRODUCT_GRAD(R)                                                                                                                    \
static void running_product_grad_##R##_item(void *context, int64_t o, int64_t worker)                                                                 \
{                                                                                                                                                     \
    const KernelArgs *args = context; const int64_t *p = args->ints, n = p[1], inner = p[2]; (void)worker;                                            \
    const R *dy = (const R *)args->inputs[0].data + o * n * inner, *x = (const R *)args->inputs[1].data + o * n * inner;                              \
    R *dx = (R *)args->outputs[0].data + o * n * inner;                                                                                               \
    for (int64_t first = 0; first < inner; first += COLUMN_BLOCK) {                                                                                   \
        int64_t width = inner - first < COLUMN_BLOCK ? inner - first : COLUMN_BLOCK; R accumulator[COLUMN_BLOCK];                                     \
        for (int64_t i = 0; i < width; i++) accumulator[i] = 1;                                                                                       \
        for (int64_t j = 0; j < n; j++) {                                                                                                             \
            int64_t at = (p[4] ? n - 1 - j : j) * inner + first;                                                                                      \
            for (int64_t i = 0; i < width; i++) { dx[at + i] = accumulator[i]; accumulator[i] *= x[at + i]; }                                         \
        }                                                                                                                                             \
        for (int64_t i = 0; i < width; i++) accumulator[i] = 0;                                                                                       \
        for (int64_t j = n - 1; j >= 0; j--) {                                                                                                        \
            int64_t at = (p[4] ? n - 1 - j : j) * inner + first;                                                                                      \
            if (p[3]) for (int64_t i = 0; i < width; i++) { dx[at + i] *= accumulator[i]; accumulator[i] = dy[at + i] + x[at + i] * accumulator[i]; } \
            else for (int64_t i = 0; i < width; i++) { accumulator[i] += dy[at + i]; dx[at + i] *= accumulator[i]; accumulator[i] *= x[at + i]; }     \
        }                                                                                                                                             \
    }                                                                                                                                                 \
}
CUMULATIVE_PRODUCT_GRAD(float)
CUMULATIVE_PRODUCT_GRAD(double)
static int running_product_grad(const KernelArgs *args)
{
    args->engine->parallel_for(args->engine, args->inputs[0].dtype == DTYPE_FLOAT32 ? running_product_grad_float_item : running_product_grad_double_item,
                               (void *)args, args->ints[0]);
    return STATUS_OK;
}
#endif
