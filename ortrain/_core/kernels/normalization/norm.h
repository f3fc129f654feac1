/* Batch and layer normalization. Batch: x [n, c, d], ints n, c, d, one work item per channel. Layer: x [rows, size]. */
#ifndef ORTRAIN_NORM_H
#define ORTRAIN_NORM_H
#include <math.h>
#include "kernel.h"

enum { NORM_LANES = 16 };

/* result = sum over k < n of value, sixteen lanes, one order */
#define NORM_SUM(R, result, n, value)                                                                             \
    R result; { R lanes[NORM_LANES] = {0}; int64_t k = 0; result = 0;                                             \
        for (; k + NORM_LANES <= n; ) for (int l = 0; l < NORM_LANES; l++, k++) lanes[l] += value;                \
        for (; k < n; k++) result += value;                                                                       \
        for (int l = 0; l < NORM_LANES; l++) result += lanes[l]; }

#define DATA(R, list, i) ((R *)args->list[i].data)
#define MAYBE(R, i) (args->n_outputs > i ? DATA(R, outputs, i) : NULL)

static inline int64_t layer_rows(int64_t size) { return 8192 / (size > 0 ? size : 1) + 1; }

#define NORM(R, ROOT)                                                                                             \
/* y = scale (x - mean) / sqrt(var + epsilon) + bias, of running statistics; floats: epsilon */                   \
static void batch_norm_##R(void *context, int64_t c, int64_t worker)                                              \
{                                                                                                                 \
    const KernelArgs *args = context; int64_t n = args->ints[0], channels = args->ints[1], d = args->ints[2]; (void)worker; \
    R a = DATA(R, inputs, 1)[c] / ROOT(DATA(R, inputs, 4)[c] + (R)args->floats[0]), b = DATA(R, inputs, 2)[c] - DATA(R, inputs, 3)[c] * a; \
    for (int64_t i = 0; i < n; i++) {                                                                             \
        const R *x = DATA(R, inputs, 0) + (i * channels + c) * d; R *y = DATA(R, outputs, 0) + (i * channels + c) * d; \
        for (int64_t k = 0; k < d; k++) y[k] = a * x[k] + b;                                                      \
    }                                                                                                             \
}                                                                                                                 \
/* the same of the batch's statistics; outputs y, new running mean and variance, batch mean, 1 / deviation; floats: epsilon, momentum. \
 * Sums run over x - x[0], each image in R, the images in double: cancellation stays small and the order fixed */ \
static void batch_norm_train_##R(void *context, int64_t c, int64_t worker)                                        \
{                                                                                                                 \
    const KernelArgs *args = context; int64_t n = args->ints[0], channels = args->ints[1], d = args->ints[2]; (void)worker; \
    const R *all = DATA(R, inputs, 0) + c * d; double sum = 0, square = 0, count = (double)n * (double)d; \
    R shift = count > 0 ? all[0] : 0;                                                                             \
    for (int64_t i = 0; i < n; i++) {                                                                             \
        const R *x = all + i * channels * d;                                                                      \
        NORM_SUM(R, s, d, (x[k] - shift)) sum += s;                                                               \
        NORM_SUM(R, q, d, (x[k] - shift) * (x[k] - shift)) square += q;                                           \
    }                                                                                                             \
    double offset = sum / count, mean = shift + offset, variance = square / count - offset * offset;              \
    if (variance < 0) variance = 0;                                                                               \
    if (count == 0) { mean = DATA(R, inputs, 3)[c]; variance = DATA(R, inputs, 4)[c]; }  /* nothing has no statistics: the running ones stay */ \
    double inverse = 1 / sqrt(variance + args->floats[0]), momentum = args->floats[1];                            \
    R a = (R)(DATA(R, inputs, 1)[c] * inverse), b = (R)(DATA(R, inputs, 2)[c] - mean * DATA(R, inputs, 1)[c] * inverse); \
    for (int64_t i = 0; i < n; i++) {                                                                             \
        const R *x = all + i * channels * d; R *y = DATA(R, outputs, 0) + (i * channels + c) * d;                 \
        for (int64_t k = 0; k < d; k++) y[k] = a * x[k] + b;                                                      \
    }                                                                                                             \
    if (MAYBE(R, 1)) MAYBE(R, 1)[c] = (R)(DATA(R, inputs, 3)[c] * momentum + mean * (1 - momentum));              \
    if (MAYBE(R, 2)) MAYBE(R, 2)[c] = (R)(DATA(R, inputs, 4)[c] * momentum + variance * (1 - momentum));          \
    if (MAYBE(R, 3)) MAYBE(R, 3)[c] = (R)mean;                                                                    \
    if (MAYBE(R, 4)) MAYBE(R, 4)[c] = (R)inverse;                                                                 \
}                                                                                                                 \
/* (dy, x, scale, mean, 1 / deviation) -> (dx, dscale, dbias) */                                                  \
static void batch_norm_grad_##R(void *context, int64_t c, int64_t worker)                                         \
{                                                                                                                 \
    const KernelArgs *args = context; int64_t n = args->ints[0], channels = args->ints[1], d = args->ints[2]; (void)worker; \
    R mean = DATA(R, inputs, 3)[c], inverse = DATA(R, inputs, 4)[c], scale = DATA(R, inputs, 2)[c];               \
    double sum = 0, dot = 0, count = (double)n * (double)d;                                                       \
    for (int64_t i = 0; i < n; i++) {                                                                             \
        const R *dy = DATA(R, inputs, 0) + (i * channels + c) * d, *x = DATA(R, inputs, 1) + (i * channels + c) * d; \
        NORM_SUM(R, s, d, dy[k]) sum += s;                                                                        \
        NORM_SUM(R, q, d, dy[k] * (x[k] - mean)) dot += q;                                                        \
    }                                                                                                             \
    dot *= inverse;                                                                                               \
    if (MAYBE(R, 1)) MAYBE(R, 1)[c] = (R)dot;                                                                     \
    if (MAYBE(R, 2)) MAYBE(R, 2)[c] = (R)sum;                                                                     \
    if (!MAYBE(R, 0)) return;                                                                                     \
    R a = scale * inverse, b = (R)(dot / count) * inverse, e = (R)(sum / count);                                  \
    for (int64_t i = 0; i < n; i++) {                                                                             \
        const R *dy = DATA(R, inputs, 0) + (i * channels + c) * d, *x = DATA(R, inputs, 1) + (i * channels + c) * d; \
        R *dx = DATA(R, outputs, 0) + (i * channels + c) * d;                                                     \
        for (int64_t k = 0; k < d; k++) dx[k] = a * (dy[k] - e - (x[k] - mean) * b);                              \
    }                                                                                                             \
}                                                                                                                 \
/* x [rows, size] -> (y, mean, 1 / deviation); ints: rows, size; floats: epsilon; an item is a block of rows */   \
static void layer_norm_##R(void *context, int64_t item, int64_t worker)                                           \
{                                                                                                                 \
    const KernelArgs *args = context; int64_t rows = args->ints[0], size = args->ints[1], per = layer_rows(size), end = (item + 1) * per; (void)worker; \
    const R *scale = DATA(R, inputs, 1), *bias = args->n_inputs > 2 ? DATA(R, inputs, 2) : NULL;                  \
    for (int64_t r = item * per; r < end && r < rows; r++) {                                                      \
        const R *x = DATA(R, inputs, 0) + r * size; R *y = DATA(R, outputs, 0) + r * size;                        \
        NORM_SUM(R, sum, size, x[k]) R mean = sum / size;                                                         \
        NORM_SUM(R, square, size, (x[k] - mean) * (x[k] - mean)) R inverse = 1 / ROOT(square / size + (R)args->floats[0]); \
        if (bias) for (int64_t k = 0; k < size; k++) y[k] = (x[k] - mean) * inverse * scale[k] + bias[k];         \
        else for (int64_t k = 0; k < size; k++) y[k] = (x[k] - mean) * inverse * scale[k];                        \
        if (MAYBE(R, 1)) MAYBE(R, 1)[r] = mean;                                                                   \
        if (MAYBE(R, 2)) MAYBE(R, 2)[r] = inverse;                                                                \
    }                                                                                                             \
}                                                                                                                 \
/* (dy, x, scale, mean, 1 / deviation) -> (dx, dscale, dbias); ints: rows, size, rows of a block; scratch: per block dscale, dbias */ \
static void layer_norm_grad_##R(void *context, int64_t item, int64_t worker)                                      \
{                                                                                                                 \
    const KernelArgs *args = context; int64_t rows = args->ints[0], size = args->ints[1], per = args->ints[2], end = (item + 1) * per; (void)worker; \
    const R *scale = DATA(R, inputs, 2); R *ds = (R *)args->scratch + 2 * size * item, *db = ds + size;           \
    for (int64_t k = 0; k < 2 * size; k++) ds[k] = 0;                                                             \
    for (int64_t r = item * per; r < end && r < rows; r++) {                                                      \
        const R *dy = DATA(R, inputs, 0) + r * size, *x = DATA(R, inputs, 1) + r * size;                          \
        R mean = DATA(R, inputs, 3)[r], inverse = DATA(R, inputs, 4)[r], *dx = MAYBE(R, 0);                       \
        NORM_SUM(R, sum, size, dy[k] * scale[k])                                                                  \
        NORM_SUM(R, dot, size, dy[k] * scale[k] * (x[k] - mean))                                                  \
        R e = sum / size, b = dot * inverse * inverse / size;                                                     \
        for (int64_t k = 0; k < size; k++) { ds[k] += dy[k] * (x[k] - mean) * inverse; db[k] += dy[k]; }          \
        if (dx) for (int64_t k = 0; k < size; k++) dx[r * size + k] = inverse * (dy[k] * scale[k] - e - (x[k] - mean) * b); \
    }                                                                                                             \
}                                                                                                                 \
static void layer_norm_sums_##R(const KernelArgs *args, int64_t blocks)                                           \
{                                                                                                                 \
    int64_t size = args->ints[1]; const R *parts = args->scratch; R *ds = MAYBE(R, 1), *db = MAYBE(R, 2);         \
    for (int64_t k = 0; k < size; k++) { if (ds) ds[k] = 0; if (db) db[k] = 0; }                                  \
    for (int64_t i = 0; i < blocks; i++)                                                                          \
        for (int64_t k = 0; k < size; k++) { if (ds) ds[k] += parts[2 * size * i + k]; if (db) db[k] += parts[2 * size * i + size + k]; } \
}


NORM(float, sqrtf)
NORM(double, sqrt)

#define SINGLE (args->inputs[0].dtype == DTYPE_FLOAT32)
#define CHANNEL_KERNEL(NAME) static int NAME(const KernelArgs *args)                                              \
{ args->engine->parallel_for(args->engine, SINGLE ? NAME##_float : NAME##_double, (void *)args, args->ints[1]); return STATUS_OK; }
CHANNEL_KERNEL(batch_norm)
CHANNEL_KERNEL(batch_norm_train)
CHANNEL_KERNEL(batch_norm_grad)
static int layer_norm(const KernelArgs *args)
{
    int64_t per = layer_rows(args->ints[1]);
    args->engine->parallel_for(args->engine, SINGLE ? layer_norm_float : layer_norm_double, (void *)args, (args->ints[0] + per - 1) / per);
    return STATUS_OK;
}
static int layer_norm_grad(const KernelArgs *args)
{
    int64_t blocks = (args->ints[0] + args->ints[2] - 1) / args->ints[2];
    args->engine->parallel_for(args->engine, SINGLE ? layer_norm_grad_float : layer_norm_grad_double, (void *)args, blocks);
    if (SINGLE) layer_norm_sums_float(args, blocks); else layer_norm_sums_double(args, blocks);
    return STATUS_OK;
}
#endif
