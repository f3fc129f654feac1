/* Running sums and products along one axis: ints are outer, size, inner, exclusive, reverse. */
#ifndef ORTRAIN_CUMULATIVE_H
#define ORTRAIN_CUMULATIVE_H
#include "kernel.h"

/* y[o, j, i] = x[o, 0, i] op … op x[o, j, i], without the last of them if exclusive, from the end if reverse; an item is one o */
#define RUNNING(NAME, R, START, OP)                                                                   \
static void NAME##_##R##_item(void *context, int64_t o, int64_t worker)                               \
{                                                                                                     \
    const KernelArgs *args = context; const int64_t *p = args->ints, n = p[1], inner = p[2]; (void)worker; \
    const R *x = (const R *)args->inputs[0].data + o * n * inner; R *y = (R *)args->outputs[0].data + o * n * inner; \
    for (int64_t j = 0; j < n; j++) {                                                                 \
        int64_t at = (p[4] ? n - 1 - j : j) * inner, before = (p[4] ? n - j : j - 1) * inner;          \
        for (int64_t i = 0; i < inner; i++) {                                                         \
            R so_far = j ? y[before + i] : START;                                                     \
            y[at + i] = p[3] ? (j ? so_far OP x[before + i] : START) : so_far OP x[at + i];           \
        }                                                                                             \
    }                                                                                                 \
}
#define RUNNING_ALL(NAME, START, OP)                                                                  \
RUNNING(NAME, float, START, OP) RUNNING(NAME, double, START, OP) RUNNING(NAME, int64_t, START, OP) RUNNING(NAME, int32_t, START, OP) \
static int NAME(const KernelArgs *args)                                                               \
{                                                                                                     \
    int32_t d = args->inputs[0].dtype;                                                                \
    args->engine->parallel_for(args->engine, d == DTYPE_FLOAT32 ? NAME##_float_item : d == DTYPE_FLOAT64 ? NAME##_double_item \
        : d == DTYPE_INT64 ? NAME##_int64_t_item : NAME##_int32_t_item, (void *)args, args->ints[0]); \
    return STATUS_OK;                                                                                 \
}
RUNNING_ALL(running_sum, 0, +)
RUNNING_ALL(running_product, 1, *)

/* dx of (dy, x) for a running product: the product of what comes before an element (first pass) times the sum over all that follow of dy times the
 * product of what lies between (second pass); an item is one o */
enum { COLUMNS_AT_ONCE = 64 };
#define RUNNING_PRODUCT_GRAD(R)                                                                       \
static void running_product_grad_##R##_item(void *context, int64_t o, int64_t worker)                 \
{                                                                                                     \
    const KernelArgs *args = context; const int64_t *p = args->ints, n = p[1], inner = p[2]; (void)worker; \
    const R *dy = (const R *)args->inputs[0].data + o * n * inner, *x = (const R *)args->inputs[1].data + o * n * inner; \
    R *dx = (R *)args->outputs[0].data + o * n * inner;                                               \
    for (int64_t first = 0; first < inner; first += COLUMNS_AT_ONCE) {                                \
        int64_t width = inner - first < COLUMNS_AT_ONCE ? inner - first : COLUMNS_AT_ONCE; R kept[COLUMNS_AT_ONCE]; \
        for (int64_t i = 0; i < width; i++) kept[i] = 1;                                              \
        for (int64_t j = 0; j < n; j++) {                                                             \
            int64_t at = (p[4] ? n - 1 - j : j) * inner + first;                                      \
            for (int64_t i = 0; i < width; i++) { dx[at + i] = kept[i]; kept[i] *= x[at + i]; }       \
        }                                                                                             \
        for (int64_t i = 0; i < width; i++) kept[i] = 0;                                              \
        for (int64_t j = n - 1; j >= 0; j--) {                                                        \
            int64_t at = (p[4] ? n - 1 - j : j) * inner + first;                                      \
            if (p[3]) for (int64_t i = 0; i < width; i++) { dx[at + i] *= kept[i]; kept[i] = dy[at + i] + x[at + i] * kept[i]; } \
            else for (int64_t i = 0; i < width; i++) { kept[i] += dy[at + i]; dx[at + i] *= kept[i]; kept[i] *= x[at + i]; } \
        }                                                                                             \
    }                                                                                                 \
}
RUNNING_PRODUCT_GRAD(float)
RUNNING_PRODUCT_GRAD(double)
static int running_product_grad(const KernelArgs *args)
{
    args->engine->parallel_for(args->engine, args->inputs[0].dtype == DTYPE_FLOAT32 ? running_product_grad_float_item : running_product_grad_double_item,
                               (void *)args, args->ints[0]);
    return STATUS_OK;
}
#endif
