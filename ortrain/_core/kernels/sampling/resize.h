/* Interpolation along one axis and its gradient: y[o, j, i] = sum over k of weight[j, k] x[o, index[j, k], i].
 *
 * ints: outer, size of x, size of y, inner, taps, then index [size of y, taps]; floats: weight [size of y, taps]. */
#ifndef ORTRAIN_RESIZE_H
#define ORTRAIN_RESIZE_H
#include "kernel.h"

enum { RESIZE_CHUNK = 8192 };      /* approximate number of elements of y (or dx) of a work item, enough for a second thread to pay */

typedef struct { int64_t outer, n, m, inner, taps; const int64_t *index; const double *weight; } Resample;

static inline Resample resample_from_args(const KernelArgs *args)
{
    const int64_t *p = args->ints;
    return (Resample){ p[0], p[1], p[2], p[3], p[4], p + 5, args->floats };
}
static inline int64_t rows_per_item(int64_t row) { return row > 0 && row < RESIZE_CHUNK ? RESIZE_CHUNK / row : 1; }

#define RESAMPLE(R)                                                                                             \
static void resample_##R##_item(void *context, int64_t item, int64_t worker)                                    \
{                                                                                                               \
    const KernelArgs *args = context; Resample r = resample_from_args(args); (void)worker;                      \
    int64_t rows = rows_per_item(r.inner), row = item * rows, end = row + rows, total = r.outer * r.m;          \
    const R *x = args->inputs[0].data; R *y = args->outputs[0].data;                                            \
    if (end > total) end = total;                                                                               \
    for (; row < end; row++) {                                                                                  \
        int64_t o = row / r.m, j = row % r.m; R *out = y + row * r.inner;                                       \
        for (int64_t i = 0; i < r.inner; i++) out[i] = 0;                                                       \
        for (int64_t k = 0; k < r.taps; k++) {                                                                  \
            const R *in = x + (o * r.n + r.index[j * r.taps + k]) * r.inner; R w = (R)r.weight[j * r.taps + k]; \
            if (w != 0) for (int64_t i = 0; i < r.inner; i++) out[i] += w * in[i];                              \
        }                                                                                                       \
    }                                                                                                           \
}                                                                                                               \
static void resample_grad_##R##_item(void *context, int64_t item, int64_t worker)                               \
{                                                                                                               \
    const KernelArgs *args = context; Resample r = resample_from_args(args); (void)worker;                      \
    int64_t rows = rows_per_item(r.n * r.inner), o = item * rows, end = o + rows;                               \
    const R *dy = args->inputs[0].data; R *dx = args->outputs[0].data;                                          \
    if (end > r.outer) end = r.outer;                                                                           \
    for (; o < end; o++) {                                                                                      \
        for (int64_t i = 0; i < r.n * r.inner; i++) dx[o * r.n * r.inner + i] = 0;                              \
        for (int64_t j = 0; j < r.m; j++) for (int64_t k = 0; k < r.taps; k++) {                                \
            R *out = dx + (o * r.n + r.index[j * r.taps + k]) * r.inner; R w = (R)r.weight[j * r.taps + k];     \
            const R *in = dy + (o * r.m + j) * r.inner;                                                         \
            if (w != 0) for (int64_t i = 0; i < r.inner; i++) out[i] += w * in[i];                              \
        }                                                                                                       \
    }                                                                                                           \
}
RESAMPLE(float)
RESAMPLE(double)

static int resample(const KernelArgs *args)
{
    Resample r = resample_from_args(args); int64_t rows = rows_per_item(r.inner);
    args->engine->parallel_for(args->engine, args->inputs[0].dtype == DTYPE_FLOAT32 ? resample_float_item : resample_double_item, (void *)args,
                               (r.outer * r.m + rows - 1) / rows);
    return STATUS_OK;
}
static int resample_grad(const KernelArgs *args)
{
    Resample r = resample_from_args(args); int64_t rows = rows_per_item(r.n * r.inner);
    args->engine->parallel_for(args->engine, args->inputs[0].dtype == DTYPE_FLOAT32 ? resample_grad_float_item : resample_grad_double_item, (void *)args,
                               (r.outer + rows - 1) / rows);
    return STATUS_OK;
}
#endif
