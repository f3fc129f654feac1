/* Gradient accumulation and fused optimizer updates over flat segments of parameters; in place, in chunks of UPDATE_CHUNK elements. */
#ifndef ORTRAIN_TRAINING_H
#define ORTRAIN_TRAINING_H
#include <math.h>
#include <string.h>
#include "kernel.h"

enum {
    UPDATE_CHUNK = 16384,           /* elements of a work item */
    PREFETCH_BYTES = 2048           /* distance of prefetching: 25 million parameters from 26 to 24 ms; 768 bytes to 4 KiB are within 2 % */
};

static inline void for_each_chunk(const KernelArgs *args, WorkItem work)
{ args->engine->parallel_for(args->engine, work, (void *)args, (args->inputs[0].count + UPDATE_CHUNK - 1) / UPDATE_CHUNK); }

#define CHUNK_RANGE(args)                                                                                                           \
    int64_t i = item * UPDATE_CHUNK, end = i + UPDATE_CHUNK < (args)->inputs[0].count ? i + UPDATE_CHUNK : (args)->inputs[0].count; \
    (void)worker

/* The inputs of an optimizer kernel: weights and gradients [n], learning rate and step number [2], skip flag [1] or absent, then the optimizer's moments [n].
 * If the skip flag is set, nothing is updated. */
enum { WEIGHTS, GRADIENTS, LR_AND_STEP, SKIP_UPDATE, FIRST_MOMENTS, SECOND_MOMENTS };

static inline int skips_update(const KernelArgs *args)
{ return args->n_inputs > SKIP_UPDATE && args->inputs[SKIP_UPDATE].data && *(uint8_t *)args->inputs[SKIP_UPDATE].data; }

static inline double lr_and_step_at(const KernelArgs *args, int index)
{
    const Tensor *lr_and_step = &args->inputs[LR_AND_STEP];
    return lr_and_step->dtype == DTYPE_FLOAT32 ? ((const float *)lr_and_step->data)[index] : ((const double *)lr_and_step->data)[index];
}
static inline double learning_rate(const KernelArgs *args) { return lr_and_step_at(args, 0); }
static inline double step_number(const KernelArgs *args) { return lr_and_step_at(args, 1); }

#define ADAMW_STEP(k, SQUARE_ROOT) {                                                                             \
    m[k] = s->beta1 * m[k] + s->one_minus_beta1 * g[k];                                                          \
    v[k] = s->beta2 * v[k] + s->one_minus_beta2 * g[k] * g[k];                                                   \
    w[k] = (w[k] * s->decay_first - s->rate * m[k] / (SQUARE_ROOT(v[k]) * s->v_scale + s->eps)) * s->decay_last; \
}

#define OPTIMIZERS(R, SQUARE_ROOT)                                                                                                                    \
typedef struct AdamW_##R { R beta1, beta2, one_minus_beta1, one_minus_beta2, eps, rate, v_scale, decay_first, decay_last; } AdamW_##R;                \
/* floats: beta1, beta2, epsilon, weight decay; ints: correct_bias, adam_mode.                                                                        \
 * adam_mode 0: weight decay before the update, epsilon added after the bias correction of v; 1: epsilon before it, weight decay after the update. */ \
static AdamW_##R adamw_of_##R(const KernelArgs *args)                                                                                                 \
{                                                                                                                                                     \
    const double *p = args->floats, lr = learning_rate(args), step = step_number(args);                                                               \
    double correction1 = args->ints[0] ? 1 - pow(p[0], step) : 1, correction2 = args->ints[0] ? 1 - pow(p[1], step) : 1;                              \
    int decay_is_last = args->ints[1] != 0; R keep = (R)(1 - lr * p[3]);                                                                              \
    return (AdamW_##R){ (R)p[0], (R)p[1], (R)(1 - p[0]), (R)(1 - p[1]), (R)p[2],                                                                      \
                        decay_is_last ? (R)(lr * sqrt(correction2) / correction1) : (R)(lr / correction1),                                            \
                        decay_is_last ? 1 : (R)(1 / sqrt(correction2)), decay_is_last ? 1 : keep, decay_is_last ? keep : 1 };                         \
}                                                                                                                                                     \
static void adamw_##R##_item(void *context, int64_t item, int64_t worker)                                                                             \
{                                                                                                                                                     \
    const KernelArgs *args = context; CHUNK_RANGE(args);                                                                                              \
    const AdamW_##R adamw = adamw_of_##R(args), *s = &adamw;                                                                                          \
    R *restrict w = args->inputs[WEIGHTS].data, *restrict m = args->inputs[FIRST_MOMENTS].data, *restrict v = args->inputs[SECOND_MOMENTS].data;      \
    const R *restrict g = args->inputs[GRADIENTS].data;                                                                                               \
    const int64_t line = 64 / sizeof(R), ahead = PREFETCH_BYTES / sizeof(R);                                                                          \
    for (; i + line <= end; i += line) {                                                                                                              \
        __builtin_prefetch(w + i + ahead, 0, 2); __builtin_prefetch(g + i + ahead, 0, 2);                                                             \
        __builtin_prefetch(m + i + ahead, 0, 2); __builtin_prefetch(v + i + ahead, 0, 2);                                                             \
        for (int64_t k = i; k < i + line; k++) ADAMW_STEP(k, SQUARE_ROOT)                                                                             \
    }                                                                                                                                                 \
    for (; i < end; i++) ADAMW_STEP(i, SQUARE_ROOT)                                                                                                   \
}                                                                                                                                                     \
static void sgd_##R##_item(void *context, int64_t item, int64_t worker)                                                                               \
{                                                                                                                                                     \
    const KernelArgs *args = context; CHUNK_RANGE(args);                                                                                              \
    R *w = args->inputs[WEIGHTS].data, rate = (R)learning_rate(args); const R *g = args->inputs[GRADIENTS].data;                                      \
    for (; i < end; i++) w[i] -= rate * g[i];                                                                                                         \
}
OPTIMIZERS(float, sqrtf)
OPTIMIZERS(double, sqrt)

#define TRAINING(R)                                                                                                \
/* (buffer [n], value [n], overwrite flag [1] or absent): buffer (+)= value */                                     \
static void accumulate_##R##_item(void *context, int64_t item, int64_t worker)                                     \
{                                                                                                                  \
    const KernelArgs *args = context; CHUNK_RANGE(args);                                                           \
    R *buffer = args->inputs[0].data; const R *value = args->inputs[1].data;                                       \
    int overwrite = args->n_inputs > 2 && args->inputs[2].data && *(uint8_t *)args->inputs[2].data;                \
    if (overwrite) memcpy(buffer + i, value + i, (end - i) * sizeof(R));                                           \
    else for (; i < end; i++) buffer[i] += value[i];                                                               \
}                                                                                                                  \
/* x [n] *= floats[0] */                                                                                           \
static void scale_in_place_##R##_item(void *context, int64_t item, int64_t worker)                                 \
{                                                                                                                  \
    const KernelArgs *args = context; CHUNK_RANGE(args);                                                           \
    R *x = args->inputs[0].data, factor = (R)args->floats[0];                                                      \
    for (; i < end; i++) x[i] *= factor;                                                                           \
}                                                                                                                  \
/* Return the sum of x [n] squared in double, in 8 lanes and a fixed order. */                                     \
static double squared_norm_##R(const KernelArgs *args)                                                             \
{                                                                                                                  \
    const R *x = args->inputs[0].data; double lanes[8] = {0}, total = 0; int64_t n = args->inputs[0].count, i = 0; \
    for (; i + 8 <= n; i += 8) for (int k = 0; k < 8; k++) lanes[k] += (double)x[i + k] * (double)x[i + k];        \
    for (; i < n; i++) total += (double)x[i] * (double)x[i];                                                       \
    for (int k = 0; k < 8; k++) total += lanes[k];                                                                 \
    return total;                                                                                                  \
}
TRAINING(float)
TRAINING(double)

static inline void set_updated_flag(const KernelArgs *args)
{ if (args->n_outputs && args->outputs[0].data) *(uint8_t *)args->outputs[0].data = 1; }

/* outputs: updated flag [1] or absent */
#define OPTIMIZER_KERNEL(NAME)                                                                                                      \
static int NAME(const KernelArgs *args)                                                                                             \
{                                                                                                                                   \
    if (!skips_update(args)) for_each_chunk(args, args->inputs[0].dtype == DTYPE_FLOAT32 ? NAME##_float_item : NAME##_double_item); \
    set_updated_flag(args);                                                                                                         \
    return STATUS_OK;                                                                                                               \
}
OPTIMIZER_KERNEL(adamw)
OPTIMIZER_KERNEL(sgd)
static int scale_in_place(const KernelArgs *args)
{
    for_each_chunk(args, args->inputs[0].dtype == DTYPE_FLOAT32 ? scale_in_place_float_item : scale_in_place_double_item);
    return STATUS_OK;
}
static int accumulate(const KernelArgs *args)
{
    for_each_chunk(args, args->inputs[0].dtype == DTYPE_FLOAT32 ? accumulate_float_item : accumulate_double_item);
    set_updated_flag(args);
    return STATUS_OK;
}
static int squared_norm(const KernelArgs *args)
{
    *(double *)args->outputs[0].data = args->inputs[0].dtype == DTYPE_FLOAT32 ? squared_norm_float(args) : squared_norm_double(args);
    return STATUS_OK;
}
#endif
