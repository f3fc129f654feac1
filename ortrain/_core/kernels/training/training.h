/* Accumulation of gradients and optimizer sweeps over flat segments; all in place, in chunks of fixed size. */
#ifndef ORTRAIN_TRAINING_H
#define ORTRAIN_TRAINING_H
#include <math.h>
#include <string.h>
#include "kernel.h"

enum { UPDATE_CHUNK = 16384,        /* elements of one work item */
       AHEAD_BYTES = 2048 }; /* that are fetched before they are needed: 25 million parameters 26 to 24 ms, from 768 bytes to 4 KiB within 2 % */

static inline void update_segment(const KernelArgs *args, WorkItem work)
{ args->engine->parallel_for(args->engine, work, (void *)args, (args->inputs[0].count + UPDATE_CHUNK - 1) / UPDATE_CHUNK); }

#define RANGE(args) int64_t i = item * UPDATE_CHUNK, end = i + UPDATE_CHUNK < (args)->inputs[0].count ? i + UPDATE_CHUNK : (args)->inputs[0].count; (void)worker

/* what an optimizer's kernels take: weights and gradients [n], progress [2] (the learning rate, and which step it is), masked [1] or absent, which
 * keeps the weights as they are, and moments [n] */
enum { WEIGHTS, GRADIENTS, LR_AND_STEP, SKIP_UPDATE, FIRST_MOMENTS, SECOND_MOMENTS, THIRD_MOMENTS };

/* the data of a moment by its input, NULL for one that the hyperparameters leave out */
static inline void *moment_of(const KernelArgs *args, int input) { return args->n_inputs > input ? args->inputs[input].data : NULL; }

static inline int skips_update(const KernelArgs *args)
{ return args->n_inputs > SKIP_UPDATE && args->inputs[SKIP_UPDATE].data && *(uint8_t *)args->inputs[SKIP_UPDATE].data; }

static inline double progress_at(const KernelArgs *args, int which)
{
    const Tensor *progress = &args->inputs[LR_AND_STEP];
    return progress->dtype == DTYPE_FLOAT32 ? ((const float *)progress->data)[which] : ((const double *)progress->data)[which];
}
static inline double learning_rate(const KernelArgs *args) { return progress_at(args, 0); }
static inline double step_number(const KernelArgs *args) { return progress_at(args, 1); }

#define ADAMW_STEP(k, SQUARE_ROOT) {                                                                              \
    m[k] = s.b1 * m[k] + s.o1 * g[k];                                                                             \
    v[k] = s.b2 * v[k] + s.o2 * g[k] * g[k];                                                                      \
    w[k] = (w[k] * s.before - s.rate * m[k] / (SQUARE_ROOT(v[k]) * s.rv + s.eps)) * s.after;                      \
}

#define OPTIMIZERS(R, SQUARE_ROOT)                                                                                \
typedef struct AdamW_##R { R b1, b2, o1, o2, eps, rate, rv, before, after; } AdamW_##R;                           \
/* floats: beta1, beta2, epsilon, weight decay; ints: correct_bias, adam_mode.                                    \
 * adam_mode 0: decay first, epsilon after the correction of v; 1: epsilon before it, decay last, on the new weight */ \
static AdamW_##R adamw_of_##R(const KernelArgs *args)                                                             \
{                                                                                                                 \
    const double *p = args->floats, lr = learning_rate(args), step = step_number(args);                           \
    double c1 = args->ints[0] ? 1 - pow(p[0], step) : 1, c2 = args->ints[0] ? 1 - pow(p[1], step) : 1;            \
    int last = args->ints[1] != 0; R keep = (R)(1 - lr * p[3]);                                                   \
    return (AdamW_##R){ (R)p[0], (R)p[1], (R)(1 - p[0]), (R)(1 - p[1]), (R)p[2], last ? (R)(lr * sqrt(c2) / c1) : (R)(lr / c1), \
                        last ? 1 : (R)(1 / sqrt(c2)), last ? 1 : keep, last ? keep : 1 };                         \
}                                                                                                                 \
/* a function of its own, whose parameters the compiler believes to be apart: it would compare local pointers for every line */ \
static void adamw_##R##_elements(R *restrict w, const R *restrict g, R *restrict m, R *restrict v, const AdamW_##R s, int64_t end) \
{                                                                                                                 \
    const int64_t line = 64 / sizeof(R), ahead = AHEAD_BYTES / sizeof(R);                                         \
    int64_t i = 0;                                                                                                \
    for (; i + line <= end; i += line) {                                                                          \
        __builtin_prefetch(w + i + ahead, 0, 2); __builtin_prefetch(g + i + ahead, 0, 2);                         \
        __builtin_prefetch(m + i + ahead, 0, 2); __builtin_prefetch(v + i + ahead, 0, 2);                         \
        for (int64_t k = i; k < i + line; k++) ADAMW_STEP(k, SQUARE_ROOT)                                         \
    }                                                                                                             \
    for (; i < end; i++) ADAMW_STEP(i, SQUARE_ROOT)                                                               \
}                                                                                                                 \
static void adamw_##R##_item(void *context, int64_t item, int64_t worker)                                         \
{                                                                                                                 \
    const KernelArgs *args = context; RANGE(args);                                                                \
    adamw_##R##_elements((R *)args->inputs[WEIGHTS].data + i, (const R *)args->inputs[GRADIENTS].data + i, (R *)args->inputs[FIRST_MOMENTS].data + i, \
                         (R *)args->inputs[SECOND_MOMENTS].data + i, adamw_of_##R(args), end - i);                \
}                                                                                                                 \
static void sgd_##R##_item(void *context, int64_t item, int64_t worker)                                           \
{                                                                                                                 \
    const KernelArgs *args = context; RANGE(args);                                                                \
    R *w = args->inputs[WEIGHTS].data, rate = (R)learning_rate(args); const R *g = args->inputs[GRADIENTS].data;  \
    for (; i < end; i++) w[i] -= rate * g[i];                                                                     \
}
OPTIMIZERS(float, sqrtf)
OPTIMIZERS(double, sqrt)

/* Sums over a tensor: each part adds up its own elements, and the parts are added in their order. Their size depends on the tensor alone, so that the
 * sum has the same bits for any number of threads. */
enum { MAX_PARTS = 256 };
typedef struct PartialSums {
    const KernelArgs *args;
    const void *constants;
    int64_t size, parts;              /* elements (or rows) of a part, and the number of parts */
    double first[MAX_PARTS], second[MAX_PARTS];
} PartialSums;

/* the division of n elements, or n rows, into parts of at least `least` */
static inline PartialSums partial_sums(const KernelArgs *args, int64_t n, int64_t least)
{
    PartialSums sums; sums.args = args; sums.constants = NULL;
    int64_t size = (n + MAX_PARTS - 1) / MAX_PARTS;
    sums.size = size < least ? least : (size + 63) / 64 * 64;
    sums.parts = (n + sums.size - 1) / sums.size;
    return sums;
}

static inline double total_of(const double *parts, int64_t n) { double total = 0; for (int64_t i = 0; i < n; i++) total += parts[i]; return total; }

#define TRAINING(R)                                                                                               \
/* buffer [n] (+)= value [n]; inputs: buffer, value, overwrite flag [1] or absent */                              \
static void accumulate_##R##_item(void *context, int64_t item, int64_t worker)                                    \
{                                                                                                                 \
    const KernelArgs *args = context; RANGE(args);                                                                \
    R *buffer = args->inputs[0].data; const R *value = args->inputs[1].data;                                      \
    int overwrite = args->n_inputs > 2 && args->inputs[2].data && *(uint8_t *)args->inputs[2].data;               \
    if (overwrite) memcpy(buffer + i, value + i, (end - i) * sizeof(R));                                          \
    else for (; i < end; i++) buffer[i] += value[i];                                                              \
}                                                                                                                 \
/* x [n] *= floats[0] */                                                                                          \
static void scale_in_place_##R##_item(void *context, int64_t item, int64_t worker)                                \
{                                                                                                                 \
    const KernelArgs *args = context; RANGE(args);                                                                \
    R *x = args->inputs[0].data, factor = (R)args->floats[0];                                                     \
    for (; i < end; i++) x[i] *= factor;                                                                          \
}                                                                                                                 \
/* x [n] = min(max(x, -floats[0]), floats[0]); NaN stays NaN */                                                   \
static void clip_in_place_##R##_item(void *context, int64_t item, int64_t worker)                                 \
{                                                                                                                 \
    const KernelArgs *args = context; RANGE(args);                                                                \
    R *x = args->inputs[0].data, limit = (R)args->floats[0];                                                      \
    for (; i < end; i++) x[i] = x[i] > limit ? limit : x[i] < -limit ? -limit : x[i];                             \
}                                                                                                                 \
/* average [n] += floats[0] * (value - average); inputs: average, value */                                        \
static void moving_average_##R##_item(void *context, int64_t item, int64_t worker)                                \
{                                                                                                                 \
    const KernelArgs *args = context; RANGE(args);                                                                \
    R *average = args->inputs[0].data, share = (R)args->floats[0]; const R *value = args->inputs[1].data;         \
    for (; i < end; i++) average[i] += share * (value[i] - average[i]);                                           \
}                                                                                                                 \
/* a [n] and b [n] exchange their values */                                                                       \
static void exchange_##R##_item(void *context, int64_t item, int64_t worker)                                      \
{                                                                                                                 \
    const KernelArgs *args = context; RANGE(args);                                                                \
    R *restrict a = args->inputs[0].data, *restrict b = args->inputs[1].data;                                     \
    for (; i < end; i++) { R value = a[i]; a[i] = b[i]; b[i] = value; }                                           \
}                                                                                                                 \
/* sum of x [n] squared, in double and in eight lanes */                                                          \
static double sum_of_squares_##R(const R *x, int64_t n)                                                           \
{                                                                                                                 \
    double lanes[8] = {0}, total = 0; int64_t i = 0;                                                              \
    for (; i + 8 <= n; i += 8) for (int k = 0; k < 8; k++) lanes[k] += (double)x[i + k] * (double)x[i + k];       \
    for (; i < n; i++) total += (double)x[i] * (double)x[i];                                                      \
    for (int k = 0; k < 8; k++) total += lanes[k];                                                                \
    return total;                                                                                                 \
}                                                                                                                 \
static void squared_norm_##R##_item(void *context, int64_t item, int64_t worker)                                  \
{                                                                                                                 \
    const PartialSums *sums = context; const int64_t n = sums->args->inputs[0].count, start = item * sums->size;  \
    (void)worker;                                                                                                 \
    ((PartialSums *)context)->first[item] = sum_of_squares_##R((const R *)sums->args->inputs[0].data + start,     \
                                                               sums->size < n - start ? sums->size : n - start);  \
}
TRAINING(float)
TRAINING(double)

#include "training/stochastic_rounding.h"

static inline void set_updated_flag(const KernelArgs *args)
{ if (args->n_outputs && args->outputs[0].data) *(uint8_t *)args->outputs[0].data = 1; }

/* outputs: updated [1] or absent */
#define OPTIMIZER_KERNEL(NAME)                                                                                    \
static int NAME(const KernelArgs *args)                                                                           \
{                                                                                                                 \
    if (!skips_update(args)) update_elements(args, NAME##_float_item, NAME##_double_item);                        \
    set_updated_flag(args);                                                                                            \
    return STATUS_OK;                                                                                             \
}
OPTIMIZER_KERNEL(adamw)
OPTIMIZER_KERNEL(sgd)

#define IN_PLACE_KERNEL(NAME)                                                                                     \
static int NAME(const KernelArgs *args)                                                                           \
{                                                                                                                 \
    update_segment(args, args->inputs[0].dtype == DTYPE_FLOAT32 ? NAME##_float_item : NAME##_double_item);        \
    return STATUS_OK;                                                                                             \
}
IN_PLACE_KERNEL(scale_in_place)
IN_PLACE_KERNEL(clip_in_place)
IN_PLACE_KERNEL(moving_average)
IN_PLACE_KERNEL(exchange)

static int accumulate(const KernelArgs *args)
{
    update_segment(args, args->inputs[0].dtype == DTYPE_FLOAT32 ? accumulate_float_item : accumulate_double_item);
    set_updated_flag(args);
    return STATUS_OK;
}
/* outputs: the sum of x [n] squared, float64 [1] */
static int squared_norm(const KernelArgs *args)
{
    PartialSums sums = partial_sums(args, args->inputs[0].count, UPDATE_CHUNK);
    args->engine->parallel_for(args->engine, args->inputs[0].dtype == DTYPE_FLOAT32 ? squared_norm_float_item : squared_norm_double_item, &sums, sums.parts);
    *(double *)args->outputs[0].data = total_of(sums.first, sums.parts);
    return STATUS_OK;
}
#endif
