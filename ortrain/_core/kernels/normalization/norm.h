/* Batch normalization of x [n, c, d] (ints: n, c, d; a work item is one channel) and, in group_norm.h, group normalization. */
#ifndef ORTRAIN_NORM_H
#define ORTRAIN_NORM_H
#include <math.h>
#include "kernel.h"
#include "common/compiler.h"

enum { NORM_LANES = 16 };

/* R result = sum over k < n of value, in 16 lanes and a fixed order */
#define NORM_SUM(R, result, n, value)                                                              \
    R result; { R lanes[NORM_LANES] = {0}; int64_t k = 0; result = 0;                              \
        for (; k + NORM_LANES <= n; ) for (int l = 0; l < NORM_LANES; l++, k++) lanes[l] += value; \
        for (; k < n; k++) result += value;                                                        \
        for (int l = 0; l < NORM_LANES; l++) result += lanes[l]; }

#define DATA(R, list, i) ((R *)args->list[i].data)
#define OPTIONAL_OUTPUT(R, i) (args->n_outputs > i ? DATA(R, outputs, i) : NULL)

#define NORM(R, SQRT)                                                                                                                                  \
/* y = scale (x - mean) / sqrt(var + epsilon) + bias with the running statistics; floats: epsilon. */                                                  \
static void batch_norm_##R(void *context, int64_t c, int64_t worker)                                                                                   \
{                                                                                                                                                      \
    const KernelArgs *args = context; int64_t n = args->ints[0], channels = args->ints[1], d = args->ints[2]; (void)worker;                            \
    R a = DATA(R, inputs, 1)[c] / SQRT(DATA(R, inputs, 4)[c] + (R)args->floats[0]), b = DATA(R, inputs, 2)[c] - DATA(R, inputs, 3)[c] * a;             \
    for (int64_t i = 0; i < n; i++) {                                                                                                                  \
        const R *x = DATA(R, inputs, 0) + (i * channels + c) * d; R *y = DATA(R, outputs, 0) + (i * channels + c) * d;                                 \
        for (int64_t k = 0; k < d; k++) y[k] = a * x[k] + b;                                                                                           \
    }                                                                                                                                                  \
}                                                                                                                                                      \
/* The same with the batch's statistics -> (y, new running mean, new running variance, batch mean, 1 / standard deviation); floats: epsilon, momentum. \
 * Sums are of x - x[0], in R for each image and in double over the images: cancellation stays small, and the order of additions is fixed. */          \
static void batch_norm_train_##R(void *context, int64_t c, int64_t worker)                                                                             \
{                                                                                                                                                      \
    const KernelArgs *args = context; int64_t n = args->ints[0], channels = args->ints[1], d = args->ints[2]; (void)worker;                            \
    const R *all = DATA(R, inputs, 0) + c * d; double sum = 0, square = 0, count = (double)n * (double)d;                                              \
    R shift = count > 0 ? all[0] : 0;                                                                                                                  \
    for (int64_t i = 0; i < n; i++) {                                                                                                                  \
        const R *x = all + i * channels * d;                                                                                                           \
        NORM_SUM(R, s, d, (x[k] - shift)) sum += s;                                                                                                    \
        NORM_SUM(R, q, d, (x[k] - shift) * (x[k] - shift)) square += q;                                                                                \
    }                                                                                                                                                  \
    double offset = sum / count, mean = shift + offset, variance = square / count - offset * offset;                                                   \
    if (variance < 0) variance = 0;                                                                                                                    \
    if (count == 0) { mean = DATA(R, inputs, 3)[c]; variance = DATA(R, inputs, 4)[c]; }  /* no elements: the running statistics are kept */            \
    double inv_std = 1 / sqrt(variance + args->floats[0]), momentum = args->floats[1];                                                                 \
    R a = (R)(DATA(R, inputs, 1)[c] * inv_std), b = (R)(DATA(R, inputs, 2)[c] - mean * DATA(R, inputs, 1)[c] * inv_std);                               \
    for (int64_t i = 0; i < n; i++) {                                                                                                                  \
        const R *x = all + i * channels * d; R *y = DATA(R, outputs, 0) + (i * channels + c) * d;                                                      \
        for (int64_t k = 0; k < d; k++) y[k] = a * x[k] + b;                                                                                           \
    }                                                                                                                                                  \
    if (OPTIONAL_OUTPUT(R, 1)) OPTIONAL_OUTPUT(R, 1)[c] = (R)(DATA(R, inputs, 3)[c] * momentum + mean * (1 - momentum));                               \
    if (OPTIONAL_OUTPUT(R, 2)) OPTIONAL_OUTPUT(R, 2)[c] = (R)(DATA(R, inputs, 4)[c] * momentum + variance * (1 - momentum));                           \
    if (OPTIONAL_OUTPUT(R, 3)) OPTIONAL_OUTPUT(R, 3)[c] = (R)mean;                                                                                     \
    if (OPTIONAL_OUTPUT(R, 4)) OPTIONAL_OUTPUT(R, 4)[c] = (R)inv_std;                                                                                  \
}                                                                                                                                                      \
/* (dy, x, scale, mean, 1 / standard deviation) -> (dx, dscale, dbias), all optional */                                                                \
static void batch_norm_grad_##R(void *context, int64_t c, int64_t worker)                                                                              \
{                                                                                                                                                      \
    const KernelArgs *args = context; int64_t n = args->ints[0], channels = args->ints[1], d = args->ints[2]; (void)worker;                            \
    R mean = DATA(R, inputs, 3)[c], inv_std = DATA(R, inputs, 4)[c], scale = DATA(R, inputs, 2)[c];                                                    \
    double sum = 0, dot = 0, count = (double)n * (double)d;                                                                                            \
    for (int64_t i = 0; i < n; i++) {                                                                                                                  \
        const R *dy = DATA(R, inputs, 0) + (i * channels + c) * d, *x = DATA(R, inputs, 1) + (i * channels + c) * d;                                   \
        NORM_SUM(R, s, d, dy[k]) sum += s;                                                                                                             \
        NORM_SUM(R, q, d, dy[k] * (x[k] - mean)) dot += q;                                                                                             \
    }                                                                                                                                                  \
    dot *= inv_std;                                                                                                                                    \
    if (OPTIONAL_OUTPUT(R, 1)) OPTIONAL_OUTPUT(R, 1)[c] = (R)dot;                                                                                      \
    if (OPTIONAL_OUTPUT(R, 2)) OPTIONAL_OUTPUT(R, 2)[c] = (R)sum;                                                                                      \
    if (!OPTIONAL_OUTPUT(R, 0)) return;                                                                                                                \
    R a = scale * inv_std, b = (R)(dot / count) * inv_std, e = (R)(sum / count);                                                                       \
    for (int64_t i = 0; i < n; i++) {                                                                                                                  \
        const R *dy = DATA(R, inputs, 0) + (i * channels + c) * d, *x = DATA(R, inputs, 1) + (i * channels + c) * d;                                   \
        R *dx = DATA(R, outputs, 0) + (i * channels + c) * d;                                                                                          \
        for (int64_t k = 0; k < d; k++) dx[k] = a * (dy[k] - e - (x[k] - mean) * b);                                                                   \
    }                                                                                                                                                  \
}

NORM(float, sqrtf)
NORM(double, sqrt)

#define TEMPLATE "normalization/group_norm.h"
#include "common/float_types.h"
BY_TYPE(group_norm) BY_TYPE(group_norm_grad)

#define IS_FLOAT32 (args->inputs[0].dtype == DTYPE_FLOAT32)
#define CHANNEL_KERNEL(NAME) static int NAME(const KernelArgs *args) \
{ args->engine->parallel_for(args->engine, IS_FLOAT32 ? NAME##_float : NAME##_double, (void *)args, args->ints[1]); return STATUS_OK; }
CHANNEL_KERNEL(batch_norm)
CHANNEL_KERNEL(batch_norm_train)
CHANNEL_KERNEL(batch_norm_grad)
#endif
