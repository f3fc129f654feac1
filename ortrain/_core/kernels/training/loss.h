/* Softmax cross-entropy of logits [n, c, d] and its gradient. ints: n, c, d, reduction (0 none, 1 mean, 2 sum), ignored label. */
#ifndef ORTRAIN_LOSS_H
#define ORTRAIN_LOSS_H
#include <math.h>
#include "kernel.h"
#include "common/vector_math.h"

enum { LOSS_ROWS = 64, LOSS_LANES = 16 };     /* rows of a work item; partial sums */

static inline int64_t label_at(const Tensor *labels, int64_t i)
{ return labels->dtype == DTYPE_INT32 ? ((const int32_t *)labels->data)[i] : ((const int64_t *)labels->data)[i]; }

/* Return the number of positions from i on that are computed at once: one where the classes are adjacent (d = 1), else up to 16 of one sample. */
static inline int64_t positions_at(int64_t i, int64_t end, int64_t d)
{
    int64_t count = d - i % d < end - i ? d - i % d : end - i;
    return d == 1 ? 1 : count < LOSS_LANES ? count : LOSS_LANES;
}

#define LOSS_EXP(x) _Generic((x), float: ot_expf, double: exp)(x)
#define LOSS_EXP_NONPOSITIVE(x) _Generic((x), float: ot_expf_of_negative, double: exp)(x)        /* for logits minus their maximum */
#define LOSS_LOG(x) _Generic((x), float: logf, double: log)(x)

#define LOSS(R)                                                                                                                              \
/* Return the maximum logit of a row, in 16 lanes. */                                                                                        \
static inline __attribute__((always_inline)) R max_logit_##R(const R *x, int64_t classes, int64_t d)                                         \
{                                                                                                                                            \
    R lane_max[LOSS_LANES], max = x[0]; int64_t c = 0;                                                                                       \
    for (int l = 0; l < LOSS_LANES; l++) lane_max[l] = max;                                                                                  \
    for (; c + LOSS_LANES <= classes; c += LOSS_LANES)                                                                                       \
        for (int l = 0; l < LOSS_LANES; l++) lane_max[l] = x[(c + l) * d] > lane_max[l] ? x[(c + l) * d] : lane_max[l];                      \
    for (; c < classes; c++) max = x[c * d] > max ? x[c * d] : max;                                                                          \
    for (int l = 0; l < LOSS_LANES; l++) max = lane_max[l] > max ? lane_max[l] : max;                                                        \
    return max;                                                                                                                              \
}                                                                                                                                            \
/* Return log(sum of exp(x) over the classes), in 16 lanes and a fixed order. */                                                             \
static inline __attribute__((always_inline)) R log_sum_exp_##R(const R *x, int64_t classes, int64_t d)                                       \
{                                                                                                                                            \
    R lanes[LOSS_LANES] = {0}, max = max_logit_##R(x, classes, d), sum = 0; int64_t c;                                                       \
    for (c = 0; c + LOSS_LANES <= classes; c += LOSS_LANES)                                                                                  \
        for (int l = 0; l < LOSS_LANES; l++) lanes[l] += LOSS_EXP_NONPOSITIVE((R)(x[(c + l) * d] - max));                                    \
    if (c < classes) {          /* the remaining classes as one more vector of lanes */                                                      \
        R tail[LOSS_LANES]; for (int l = 0; l < LOSS_LANES; l++) tail[l] = -INFINITY;                                                        \
        for (int l = 0; c + l < classes; l++) tail[l] = x[(c + l) * d];                                                                      \
        for (int l = 0; l < LOSS_LANES; l++) lanes[l] += LOSS_EXP_NONPOSITIVE((R)(tail[l] - max));                                           \
    }                                                                                                                                        \
    for (int l = 0; l < LOSS_LANES; l++) sum += lanes[l];                                                                                    \
    return max + LOSS_LOG(sum);                                                                                                              \
}                                                                                                                                            \
/* Where d > 1, up to 16 adjacent positions are computed at once, one in each lane: x[c * d + l] is logit c of position l. */                \
/* max[l] = the maximum logit of position l */                                                                                               \
static inline __attribute__((always_inline)) void panel_max_##R(const R *x, int64_t classes, int64_t d, int64_t count, R *max)               \
{                                                                                                                                            \
    for (int64_t l = 0; l < count; l++) max[l] = x[l];                                                                                       \
    for (int64_t c = 1; c < classes; c++)                                                                                                    \
        for (int64_t l = 0; l < count; l++) max[l] = x[c * d + l] > max[l] ? x[c * d + l] : max[l];                                          \
}                                                                                                                                            \
/* y = the log probabilities of the positions, in the layout of x */                                                                         \
static inline __attribute__((always_inline)) void panel_log_softmax_##R(const R *x, int64_t classes, int64_t d, int64_t count, R *y)         \
{                                                                                                                                            \
    R max[LOSS_LANES], sum[LOSS_LANES] = {0};                                                                                                \
    panel_max_##R(x, classes, d, count, max);                                                                                                \
    for (int64_t c = 0; c < classes; c++)                                                                                                    \
        for (int64_t l = 0; l < count; l++) sum[l] += LOSS_EXP_NONPOSITIVE((R)(x[c * d + l] - max[l]));                                      \
    for (int64_t l = 0; l < count; l++) max[l] += LOSS_LOG(sum[l]);                                                                          \
    for (int64_t c = 0; c < classes; c++)                                                                                                    \
        for (int64_t l = 0; l < count; l++) y[c * d + l] = x[c * d + l] - max[l];                                                            \
}                                                                                                                                            \
/* dx = exp(x - max), possibly in place; sum[l] is its sum over the classes */                                                               \
static inline __attribute__((always_inline)) void panel_exp_##R(const R *x, int64_t classes, int64_t d, int64_t count, R *dx, R *sum, R *max)\
{                                                                                                                                            \
    panel_max_##R(x, classes, d, count, max);                                                                                                \
    for (int64_t l = 0; l < count; l++) sum[l] = 0;                                                                                          \
    for (int64_t c = 0; c < classes; c++)                                                                                                    \
        for (int64_t l = 0; l < count; l++) { R e = LOSS_EXP_NONPOSITIVE((R)(x[c * d + l] - max[l])); sum[l] += e; dx[c * d + l] = e; }      \
}                                                                                                                                            \
/* scratch: losses [n d] and weights [n d] as double, then the log probabilities unless they are an output. */                               \
static void loss_##R##_item(void *context, int64_t item, int64_t worker)                                                                     \
{                                                                                                                                            \
    const KernelArgs *args = context; const int64_t *s = args->ints; (void)worker;                                                           \
    int64_t n = s[0], classes = s[1], d = s[2], end = (item + 1) * LOSS_ROWS;                                                                \
    double *losses = args->scratch, *weights = losses + n * d;                                                                               \
    const R *logits = args->inputs[0].data, *w = args->n_inputs > 2 ? args->inputs[2].data : NULL;                                           \
    R *log_probabilities = args->n_outputs > 1 && args->outputs[1].data ? args->outputs[1].data : (R *)(weights + n * d);                    \
    if (end > n * d) end = n * d;                                                                                                            \
    for (int64_t i = item * LOSS_ROWS, count; i < end; i += count) {                                                                         \
        const R *x = logits + i / d * classes * d + i % d; R *y = log_probabilities + i / d * classes * d + i % d;                           \
        count = positions_at(i, end, d);                                                                                                     \
        if (d == 1) { R shift = log_sum_exp_##R(x, classes, 1); for (int64_t c = 0; c < classes; c++) y[c] = x[c] - shift; }                    \
        else if (count == LOSS_LANES) panel_log_softmax_##R(x, classes, d, LOSS_LANES, y);                                                   \
        else panel_log_softmax_##R(x, classes, d, count, y);                                                                                 \
        for (int64_t l = 0; l < count; l++) {                                                                                                \
            int64_t label = label_at(&args->inputs[1], i + l);                                                                               \
            weights[i + l] = label == s[4] ? 0 : w ? (double)w[label] : 1;                                                                   \
            losses[i + l] = weights[i + l] == 0 ? 0 : -weights[i + l] * (double)y[label * d + l];                                            \
        }                                                                                                                                    \
    }                                                                                                                                        \
}                                                                                                                                            \
/* Reduce the losses and weights in scratch to the loss, in order. */                                                                        \
static void reduce_losses_##R(const KernelArgs *args, int64_t rows)                                                                          \
{                                                                                                                                            \
    const double *losses = args->scratch, *weights = losses + rows; double total = 0, weight = 0;                                            \
    for (int64_t i = 0; i < rows; i++) { total += losses[i]; weight += weights[i]; }                                                         \
    *(R *)args->outputs[0].data = (R)(args->ints[3] == 2 ? total : weight > 0 ? total / weight : 0);                                         \
}                                                                                                                                            \
static int loss_##R(const KernelArgs *args)                                                                                                  \
{                                                                                                                                            \
    const int64_t *s = args->ints; int64_t rows = s[0] * s[2];                                                                               \
    const double *losses = args->scratch; R *out = args->outputs[0].data;                                                                    \
    args->engine->parallel_for(args->engine, loss_##R##_item, (void *)args, (rows + LOSS_ROWS - 1) / LOSS_ROWS);                             \
    if (s[3] == 0) for (int64_t i = 0; i < rows; i++) out[i] = (R)losses[i];                                                                 \
    else reduce_losses_##R(args, rows);                                                                                                      \
    return STATUS_OK;                                                                                                                        \
}                                                                                                                                            \
/* Return the sum of the weights of all labels. labels, weight: the indices of these inputs. */                                              \
static double loss_total_weight_##R(const KernelArgs *args, int labels, int weight)                                                          \
{                                                                                                                                            \
    const int64_t *s = args->ints; const R *w = args->n_inputs > weight ? args->inputs[weight].data : NULL; double total = 0;                \
    for (int64_t i = 0; i < s[0] * s[2]; i++) {                                                                                              \
        int64_t label = label_at(&args->inputs[labels], i);                                                                                  \
        total += label == s[4] ? 0 : w ? (double)w[label] : 1;                                                                               \
    }                                                                                                                                        \
    return total;                                                                                                                            \
}                                                                                                                                            \
typedef struct LossGrad_##R { const KernelArgs *args; double scale; } LossGrad_##R;                                                          \
/* (dloss, log probabilities, labels, weight or absent) -> dlogits */                                                                        \
static void loss_grad_##R##_item(void *context, int64_t item, int64_t worker)                                                                \
{                                                                                                                                            \
    const LossGrad_##R *grad = context; const KernelArgs *args = grad->args; const int64_t *s = args->ints; (void)worker;                    \
    int64_t classes = s[1], d = s[2], end = (item + 1) * LOSS_ROWS;                                                                          \
    const R *dloss = args->inputs[0].data, *log_probabilities = args->inputs[1].data, *w = args->n_inputs > 3 ? args->inputs[3].data : NULL; \
    R *out = args->outputs[0].data;                                                                                                          \
    if (end > s[0] * d) end = s[0] * d;                                                                                                      \
    for (int64_t i = item * LOSS_ROWS, count; i < end; i += count) {                                                                         \
        const R *y = log_probabilities + i / d * classes * d + i % d; R *dx = out + i / d * classes * d + i % d;                             \
        R g[LOSS_LANES] = {0};                                                                                                               \
        count = positions_at(i, end, d);                                                                                                     \
        for (int64_t l = 0; l < count; l++) {                                                                                                \
            int64_t label = label_at(&args->inputs[2], i + l);                                                                               \
            if (label != s[4]) g[l] = (R)((double)dloss[s[3] == 0 ? i + l : 0] * (w ? (double)w[label] : 1) * grad->scale);                  \
        }                                                                                                                                    \
        if (d == 1) for (int64_t c = 0; c < classes; c++) dx[c] = g[0] * LOSS_EXP(y[c]);                                                     \
        else if (count == LOSS_LANES)                                                                                                        \
            for (int64_t c = 0; c < classes; c++) for (int l = 0; l < LOSS_LANES; l++) dx[c * d + l] = g[l] * LOSS_EXP((R)y[c * d + l]);     \
        else for (int64_t c = 0; c < classes; c++) for (int64_t l = 0; l < count; l++) dx[c * d + l] = g[l] * LOSS_EXP((R)y[c * d + l]);     \
        for (int64_t l = 0; l < count; l++) {                                                                                                \
            int64_t label = label_at(&args->inputs[2], i + l);                                                                               \
            if (label != s[4]) dx[label * d + l] -= g[l];                                                                                    \
        }                                                                                                                                    \
    }                                                                                                                                        \
}                                                                                                                                            \
static int loss_grad_##R(const KernelArgs *args)                                                                                             \
{                                                                                                                                            \
    int64_t rows = args->ints[0] * args->ints[2];                                                                                            \
    double total = args->ints[3] == 1 ? loss_total_weight_##R(args, 2, 3) : 1;                                                               \
    LossGrad_##R grad = { args, args->ints[3] == 1 && !(total > 0) ? 0 : 1 / total };                                                        \
    args->engine->parallel_for(args->engine, loss_grad_##R##_item, &grad, (rows + LOSS_ROWS - 1) / LOSS_ROWS);                               \
    return STATUS_OK;                                                                                                                        \
}                                                                                                                                            \
/* dx = exp(x - max(x)), possibly in place. Return its sum and set *max_logit to max(x). */                                                  \
static inline __attribute__((always_inline)) R exp_and_sum_##R(const R *x, int64_t classes, R *dx, R *max_logit)                             \
{                                                                                                                                            \
    R lanes[LOSS_LANES] = {0}, exps[LOSS_LANES], max = max_logit_##R(x, classes, 1), sum = 0; int64_t c = 0;                                    \
    for (; c + LOSS_LANES <= classes; c += LOSS_LANES) {                                                                                     \
        for (int l = 0; l < LOSS_LANES; l++) { exps[l] = LOSS_EXP_NONPOSITIVE((R)(x[c + l] - max)); lanes[l] += exps[l]; }                   \
        for (int l = 0; l < LOSS_LANES; l++) dx[c + l] = exps[l];                                                                            \
    }                                                                                                                                        \
    for (; c < classes; c++) { dx[c] = LOSS_EXP_NONPOSITIVE((R)(x[c] - max)); sum += dx[c]; }                                                \
    for (int l = 0; l < LOSS_LANES; l++) sum += lanes[l];                                                                                    \
    *max_logit = max;                                                                                                                        \
    return sum;                                                                                                                              \
}                                                                                                                                            \
/* (logits, labels, weight or absent) -> (loss, dlogits); floats: dloss; scratch: losses and weights as above. */                            \
static void loss_and_gradient_##R##_item(void *context, int64_t item, int64_t worker)                                                        \
{                                                                                                                                            \
    const LossGrad_##R *grad = context; const KernelArgs *args = grad->args; const int64_t *s = args->ints; (void)worker;                    \
    int64_t classes = s[1], d = s[2], rows = s[0] * d, end = (item + 1) * LOSS_ROWS;                                                         \
    const R *w = args->n_inputs > 2 ? args->inputs[2].data : NULL;                                                                           \
    double *losses = args->scratch, *weights = losses + rows;                                                                                \
    if (end > rows) end = rows;                                                                                                              \
    for (int64_t i = item * LOSS_ROWS, count; i < end; i += count) {                                                                         \
        int64_t at = i / d * classes * d + i % d;                                                                                            \
        const R *x = (const R *)args->inputs[0].data + at; R *dx = (R *)args->outputs[1].data + at;                                          \
        R label_logits[LOSS_LANES] = {0}, max[LOSS_LANES], sum[LOSS_LANES], g[LOSS_LANES], factor[LOSS_LANES];                               \
        count = positions_at(i, end, d);                                                                                                     \
        for (int64_t l = 0; l < count; l++) {          /* before dx overwrites x */                                                          \
            int64_t label = label_at(&args->inputs[1], i + l);                                                                               \
            if (label != s[4]) label_logits[l] = x[label * d + l];                                                                           \
        }                                                                                                                                    \
        if (d == 1) sum[0] = exp_and_sum_##R(x, classes, dx, max);                                                                           \
        else if (count == LOSS_LANES) panel_exp_##R(x, classes, d, LOSS_LANES, dx, sum, max);                                                \
        else panel_exp_##R(x, classes, d, count, dx, sum, max);                                                                              \
        for (int64_t l = 0; l < count; l++) {                                                                                                \
            int64_t label = label_at(&args->inputs[1], i + l);                                                                               \
            weights[i + l] = label == s[4] ? 0 : w ? (double)w[label] : 1;                                                                   \
            losses[i + l] = weights[i + l] == 0 ? 0 : weights[i + l] * (double)(LOSS_LOG(sum[l]) + max[l] - label_logits[l]);                \
            g[l] = (R)(args->floats[0] * weights[i + l] * grad->scale); factor[l] = g[l] / sum[l];                                           \
        }                                                                                                                                    \
        if (d == 1) for (int64_t c = 0; c < classes; c++) dx[c] *= factor[0];                                                                \
        else if (count == LOSS_LANES) for (int64_t c = 0; c < classes; c++) for (int l = 0; l < LOSS_LANES; l++) dx[c * d + l] *= factor[l]; \
        else for (int64_t c = 0; c < classes; c++) for (int64_t l = 0; l < count; l++) dx[c * d + l] *= factor[l];                           \
        for (int64_t l = 0; l < count; l++) {                                                                                                \
            int64_t label = label_at(&args->inputs[1], i + l);                                                                               \
            if (label != s[4]) dx[label * d + l] -= g[l];                                                                                    \
        }                                                                                                                                    \
    }                                                                                                                                        \
}                                                                                                                                            \
static int loss_and_gradient_##R(const KernelArgs *args)                                                                                     \
{                                                                                                                                            \
    int64_t rows = args->ints[0] * args->ints[2];                                                                                            \
    double total = args->ints[3] == 1 ? loss_total_weight_##R(args, 1, 2) : 1;                                                               \
    LossGrad_##R grad = { args, args->ints[3] == 1 && !(total > 0) ? 0 : 1 / total };                                                        \
    args->engine->parallel_for(args->engine, loss_and_gradient_##R##_item, &grad, (rows + LOSS_ROWS - 1) / LOSS_ROWS);                       \
    reduce_losses_##R(args, rows);                                                                                                           \
    return STATUS_OK;                                                                                                                        \
}
LOSS(float)
LOSS(double)
static int softmax_cross_entropy_loss(const KernelArgs *args)
{ return args->inputs[0].dtype == DTYPE_FLOAT32 ? loss_float(args) : loss_double(args); }
static int loss_and_gradient(const KernelArgs *args)
{ return args->inputs[0].dtype == DTYPE_FLOAT32 ? loss_and_gradient_float(args) : loss_and_gradient_double(args); }
static int softmax_cross_entropy_loss_grad(const KernelArgs *args)
{ return args->inputs[1].dtype == DTYPE_FLOAT32 ? loss_grad_float(args) : loss_grad_double(args); }
#endif
