/* Accumulation of gradients and optimizer sweeps over flat segments; all in place, in chunks of fixed size. */
#ifndef ORTRAIN_TRAINING_H
#define ORTRAIN_TRAINING_H
#include <math.h>
#include <string.h>
#include "kernel.h"

enum { SWEEP = 16384,        /* elements of one work item */
       AHEAD_BYTES = 2048 }; /* that are fetched before they are needed: 25 million parameters 26 to 24 ms, from 768 bytes to 4 KiB within 2 % */

static inline void sweep(const KernelArgs *args, WorkItem work)
{ args->engine->parallel_for(args->engine, work, (void *)args, (args->inputs[0].count + SWEEP - 1) / SWEEP); }

#define RANGE(args) int64_t i = item * SWEEP, end = i + SWEEP < (args)->inputs[0].count ? i + SWEEP : (args)->inputs[0].count; (void)worker

#define ADAMW_STEP(k, SQUARE_ROOT) {                                                                              \
    m[k] = b1 * m[k] + o1 * g[k];                                                                                 \
    v[k] = b2 * v[k] + o2 * g[k] * g[k];                                                                          \
    w[k] = (w[k] * before - rate * m[k] / (SQUARE_ROOT(v[k]) * rv + eps)) * after;                                \
}

#define TRAINING(R, SQUARE_ROOT)                                                                                  \
/* buffer [n] (+)= value [n]; inputs: buffer, value, overwrite flag [1] or absent */                              \
static void accumulate_##R##_item(void *context, int64_t item, int64_t worker)                                    \
{                                                                                                                 \
    const KernelArgs *args = context; RANGE(args);                                                                \
    R *buffer = args->inputs[0].data; const R *value = args->inputs[1].data;                                      \
    int overwrite = args->n_inputs > 2 && args->inputs[2].data && *(uint8_t *)args->inputs[2].data;               \
    if (overwrite) memcpy(buffer + i, value + i, (end - i) * sizeof(R));                                          \
    else for (; i < end; i++) buffer[i] += value[i];                                                              \
}                                                                                                                 \
/* inputs: weights, gradients, first and second moments [n]; floats: lr, beta1, beta2, epsilon, weight decay, step; ints: correct_bias, adam_mode. \
 * adam_mode 0: decay first, epsilon after the correction of v; 1: epsilon before it, decay last, on the new weight */ \
static void adamw_##R##_item(void *context, int64_t item, int64_t worker)                                         \
{                                                                                                                 \
    const KernelArgs *args = context; const double *p = args->floats; RANGE(args);                                \
    R *restrict w = args->inputs[0].data, *restrict m = args->inputs[2].data, *restrict v = args->inputs[3].data; \
    const R *restrict g = args->inputs[1].data;                                                                   \
    double c1 = args->ints[0] ? 1 - pow(p[1], p[5]) : 1, c2 = args->ints[0] ? 1 - pow(p[2], p[5]) : 1;            \
    R b1 = (R)p[1], b2 = (R)p[2], o1 = (R)(1 - p[1]), o2 = (R)(1 - p[2]), eps = (R)p[3], keep = (R)(1 - p[0] * p[4]); \
    R rate = args->ints[1] ? (R)(p[0] * sqrt(c2) / c1) : (R)(p[0] / c1), rv = args->ints[1] ? 1 : (R)(1 / sqrt(c2)); \
    R before = args->ints[1] ? 1 : keep, after = args->ints[1] ? keep : 1;                                        \
    const int64_t line = 64 / sizeof(R), ahead = AHEAD_BYTES / sizeof(R);                                         \
    for (; i + line <= end; i += line) {                                                                          \
        __builtin_prefetch(w + i + ahead, 0, 2); __builtin_prefetch(g + i + ahead, 0, 2);                         \
        __builtin_prefetch(m + i + ahead, 0, 2); __builtin_prefetch(v + i + ahead, 0, 2);                         \
        for (int64_t k = i; k < i + line; k++) ADAMW_STEP(k, SQUARE_ROOT)                                         \
    }                                                                                                             \
    for (; i < end; i++) ADAMW_STEP(i, SQUARE_ROOT)                                                               \
}                                                                                                                 \
/* weights [n] -= lr gradients [n]; floats: lr */                                                                 \
static void sgd_##R##_item(void *context, int64_t item, int64_t worker)                                           \
{                                                                                                                 \
    const KernelArgs *args = context; RANGE(args);                                                                \
    R *w = args->inputs[0].data, rate = (R)args->floats[0]; const R *g = args->inputs[1].data;                    \
    for (; i < end; i++) w[i] -= rate * g[i];                                                                     \
}                                                                                                                 \
/* x [n] *= floats[0] */                                                                                          \
static void scale_in_place_##R##_item(void *context, int64_t item, int64_t worker)                                \
{                                                                                                                 \
    const KernelArgs *args = context; RANGE(args);                                                                \
    R *x = args->inputs[0].data, factor = (R)args->floats[0];                                                     \
    for (; i < end; i++) x[i] *= factor;                                                                          \
}                                                                                                                 \
/* sum of x [n] squared, in double, eight lanes, in order: the same for any number of threads */                  \
static double squared_norm_##R(const KernelArgs *args)                                                            \
{                                                                                                                 \
    const R *x = args->inputs[0].data; double lanes[8] = {0}, total = 0; int64_t n = args->inputs[0].count, i = 0; \
    for (; i + 8 <= n; i += 8) for (int k = 0; k < 8; k++) lanes[k] += (double)x[i + k] * (double)x[i + k];       \
    for (; i < n; i++) total += (double)x[i] * (double)x[i];                                                      \
    for (int k = 0; k < 8; k++) total += lanes[k];                                                                \
    return total;                                                                                                 \
}
TRAINING(float, sqrtf)
TRAINING(double, sqrt)

#define SWEEP_KERNEL(NAME)                                                                                        \
static int NAME(const KernelArgs *args)                                                                           \
{ sweep(args, args->inputs[0].dtype == DTYPE_FLOAT32 ? NAME##_float_item : NAME##_double_item); return STATUS_OK; }
SWEEP_KERNEL(adamw)
SWEEP_KERNEL(sgd)
SWEEP_KERNEL(scale_in_place)
static int accumulate(const KernelArgs *args)
{
    sweep(args, args->inputs[0].dtype == DTYPE_FLOAT32 ? accumulate_float_item : accumulate_double_item);
    if (args->outputs[0].data) *(uint8_t *)args->outputs[0].data = 1;
    return STATUS_OK;
}
static int squared_norm(const KernelArgs *args)
{
    *(double *)args->outputs[0].data = args->inputs[0].dtype == DTYPE_FLOAT32 ? squared_norm_float(args) : squared_norm_double(args);
    return STATUS_OK;
}
#endif
