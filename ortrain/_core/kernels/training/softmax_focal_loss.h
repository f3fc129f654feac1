/* Softmax focal loss with class weights, label smoothing and sample weights, and its gradient; with gamma 0 it is the cross entropy.
 *
 * Scores lie as [n, c, d], labels as [n, d]; q is -log softmax(scores). The loss of one position is
 *   sample_weight[n] * (w[label] * (1 - smoothing) * (1 - exp(-q[label]))^gamma * q[label] + smoothing / c * sum over classes of w * q)
 * ints: n, c, d, reduction (0 none, 1 mean, 2 sum), ignored label, whether class weights count in the mean's divisor. floats: gamma, smoothing. */
#ifndef ORTRAIN_SOFTMAX_FOCAL_LOSS_H
#define ORTRAIN_SOFTMAX_FOCAL_LOSS_H
#include "training/loss.h"

enum { FOCAL_N, FOCAL_CLASSES, FOCAL_INNER, FOCAL_REDUCTION, FOCAL_IGNORED, FOCAL_WEIGHTED_MEAN };

static inline const Tensor *focal_input(const KernelArgs *args, int index)
{ return index < args->n_inputs && args->inputs[index].data ? &args->inputs[index] : NULL; }

#define FOCAL(R)                                                                                                  \
typedef struct Focal_##R {                                                                                        \
    const KernelArgs *args; const Tensor *labels; const R *scores, *weight, *samples;                             \
    double gamma, smoothing, weight_sum, scale;         /* the sum of the class weights; the factor of all gradients */ \
} Focal_##R;                                                                                                      \
/* first: the number of the scores among the inputs, which labels, class weights and sample weights follow from `labels` on */ \
static Focal_##R focal_##R(const KernelArgs *args, int first, int labels)                                         \
{                                                                                                                 \
    const Tensor *weight = focal_input(args, labels + 1), *samples = focal_input(args, labels + 2);               \
    Focal_##R f = { args, &args->inputs[labels], args->inputs[first].data, weight ? weight->data : NULL,          \
                    samples ? samples->data : NULL, args->floats[0], args->floats[1], 0, 1 };                     \
    if (!f.weight) f.weight_sum = (double)args->ints[FOCAL_CLASSES];                                              \
    else for (int64_t c = 0; c < args->ints[FOCAL_CLASSES]; c++) f.weight_sum += (double)f.weight[c];             \
    return f;                                                                                                     \
}                                                                                                                 \
/* the share of position i in the divisor of the mean */                                                          \
static inline double focal_share_##R(const Focal_##R *f, int64_t i)                                               \
{                                                                                                                 \
    const int64_t *s = f->args->ints; int64_t label = label_at(f->labels, i);                                     \
    if (label == s[FOCAL_IGNORED]) return 0;                                                                      \
    return (f->weight && s[FOCAL_WEIGHTED_MEAN] ? (double)f->weight[label] : 1) * (f->samples ? (double)f->samples[i / s[FOCAL_INNER]] : 1); \
}                                                                                                                 \
static double focal_divisor_##R(const Focal_##R *f)                                                               \
{                                                                                                                 \
    const int64_t *s = f->args->ints; double total = 0;                                                           \
    for (int64_t i = 0; i < s[FOCAL_N] * s[FOCAL_INNER]; i++) total += focal_share_##R(f, i);                     \
    return total;                                                                                                 \
}                                                                                                                 \
/* the sum of w * (shift - x) over the classes; sixteen lanes, one order */                                       \
static inline __attribute__((always_inline)) R smoothing_sum_##R(const R *x, const R *w, R shift, int64_t classes, int64_t d) \
{                                                                                                                 \
    R lanes[LOSS_LANES] = {0}, sum = 0; int64_t c = 0;                                                            \
    for (; c + LOSS_LANES <= classes; c += LOSS_LANES)                                                            \
        for (int l = 0; l < LOSS_LANES; l++) lanes[l] += (w ? w[c + l] : 1) * (shift - x[(c + l) * d]);           \
    for (; c < classes; c++) sum += (w ? w[c] : 1) * (shift - x[c * d]);                                          \
    for (int l = 0; l < LOSS_LANES; l++) sum += lanes[l];                                                         \
    return sum;                                                                                                   \
}                                                                                                                 \
/* (scores, labels, class weights, sample weights) -> (loss, log of the sum of exp(scores) [n, d]); scratch: losses [n d] as double */ \
static void softmax_focal_loss_##R##_item(void *context, int64_t item, int64_t worker)                            \
{                                                                                                                 \
    const Focal_##R *f = context; const int64_t *s = f->args->ints; (void)worker;                                 \
    int64_t classes = s[FOCAL_CLASSES], d = s[FOCAL_INNER], rows = s[FOCAL_N] * d, end = (item + 1) * LOSS_ROWS;  \
    double *losses = f->args->scratch; R *shifts = f->args->outputs[1].data;                                      \
    if (end > rows) end = rows;                                                                                   \
    for (int64_t i = item * LOSS_ROWS; i < end; i++) {                                                            \
        const R *x = f->scores + i / d * classes * d + i % d;                                                     \
        R shift = d == 1 ? log_sum_exp_##R(x, classes, 1) : log_sum_exp_##R(x, classes, d);                               \
        int64_t label = label_at(f->labels, i);                                                                   \
        double sample = f->samples ? (double)f->samples[i / d] : 1, q, loss;                                      \
        shifts[i] = shift; losses[i] = 0;                                                                         \
        if (label == s[FOCAL_IGNORED] || sample == 0) continue;                                                   \
        q = (double)(shift - x[label * d]);                                                                       \
        loss = (1 - f->smoothing) * (f->weight ? (double)f->weight[label] : 1) * q;                               \
        if (f->gamma > 0) loss *= pow(-expm1(-q), f->gamma);                                                      \
        if (f->smoothing > 0) loss += f->smoothing / (double)classes * (double)(d == 1 ? smoothing_sum_##R(x, f->weight, shift, classes, 1) \
                                                                                        : smoothing_sum_##R(x, f->weight, shift, classes, d)); \
        losses[i] = sample * loss;                                                                                \
    }                                                                                                             \
}                                                                                                                 \
static int softmax_focal_loss_##R(const KernelArgs *args)                                                         \
{                                                                                                                 \
    const int64_t *s = args->ints; int64_t rows = s[FOCAL_N] * s[FOCAL_INNER];                                    \
    const double *losses = args->scratch; R *out = args->outputs[0].data; double total = 0, divisor;              \
    Focal_##R f = focal_##R(args, 0, 1);                                                                          \
    args->engine->parallel_for(args->engine, softmax_focal_loss_##R##_item, &f, (rows + LOSS_ROWS - 1) / LOSS_ROWS); \
    if (s[FOCAL_REDUCTION] == 0) { for (int64_t i = 0; i < rows; i++) out[i] = (R)losses[i]; return STATUS_OK; }   \
    for (int64_t i = 0; i < rows; i++) total += losses[i];                                                        \
    divisor = s[FOCAL_REDUCTION] == 1 ? focal_divisor_##R(&f) : 1;                                                \
    out[0] = (R)(divisor != 0 ? total / divisor : 0);                                                             \
    return STATUS_OK;                                                                                             \
}                                                                                                                 \
/* dx = both * softmax(x) - w * each; the gradient of the label itself is left to the caller. dx may be x. */     \
static inline __attribute__((always_inline)) void focal_row_##R(const R *x, const R *w, R *dx, R shift, R both, R each, int64_t classes, int64_t d) \
{                                                                                                                 \
    if (w) for (int64_t c = 0; c < classes; c++) dx[c * d] = both * LOSS_EXP_NONPOSITIVE((R)(x[c * d] - shift)) - w[c] * each; \
    else for (int64_t c = 0; c < classes; c++) dx[c * d] = both * LOSS_EXP_NONPOSITIVE((R)(x[c * d] - shift)) - each;          \
}                                                                                                                 \
/* d/dq of (1 - exp(-q))^gamma q, 0 at q = 0 where a gamma below 1 gives infinity times 0 */                      \
static inline double focal_slope_##R(double q, double gamma)                                                      \
{                                                                                                                 \
    double wrong = -expm1(-q);                                                                                    \
    if (gamma == 0) return 1;                                                                                     \
    return wrong == 0 ? 0 : pow(wrong, gamma) + gamma * q * exp(-q) * pow(wrong, gamma - 1);                      \
}                                                                                                                 \
/* (dloss, scores, log of the sum of exp(scores), labels, class weights, sample weights) -> dscores */            \
static void softmax_focal_loss_grad_##R##_item(void *context, int64_t item, int64_t worker)                       \
{                                                                                                                 \
    const Focal_##R *f = context; const int64_t *s = f->args->ints; (void)worker;                                 \
    int64_t classes = s[FOCAL_CLASSES], d = s[FOCAL_INNER], rows = s[FOCAL_N] * d, end = (item + 1) * LOSS_ROWS;  \
    const R *dloss = f->args->inputs[0].data, *shifts = f->args->inputs[2].data; R *out = f->args->outputs[0].data; \
    if (end > rows) end = rows;                                                                                   \
    for (int64_t i = item * LOSS_ROWS; i < end; i++) {                                                            \
        int64_t label = label_at(f->labels, i), at = i / d * classes * d + i % d;                                 \
        const R *x = f->scores + at; R *dx = out + at;                                                            \
        double sample = f->samples ? (double)f->samples[i / d] : 1, g, hard, each;                                \
        if (label == s[FOCAL_IGNORED] || sample == 0) { for (int64_t c = 0; c < classes; c++) dx[c * d] = 0; continue; } \
        g = (double)dloss[s[FOCAL_REDUCTION] == 0 ? i : 0] * f->scale * sample;                                   \
        hard = g * (1 - f->smoothing) * (f->weight ? (double)f->weight[label] : 1)                                \
               * focal_slope_##R((double)(shifts[i] - x[label * d]), f->gamma);                                   \
        each = g * f->smoothing / (double)classes;                                                                \
        if (d == 1) focal_row_##R(x, f->weight, dx, shifts[i], (R)(hard + each * f->weight_sum), (R)each, classes, 1); \
        else focal_row_##R(x, f->weight, dx, shifts[i], (R)(hard + each * f->weight_sum), (R)each, classes, d);   \
        dx[label * d] -= (R)hard;                                                                                 \
    }                                                                                                             \
}                                                                                                                 \
static int softmax_focal_loss_grad_##R(const KernelArgs *args)                                                    \
{                                                                                                                 \
    int64_t rows = args->ints[FOCAL_N] * args->ints[FOCAL_INNER];                                                 \
    Focal_##R f = focal_##R(args, 1, 3); double divisor = args->ints[FOCAL_REDUCTION] == 1 ? focal_divisor_##R(&f) : 1; \
    f.scale = divisor != 0 ? 1 / divisor : 0;                                                                     \
    args->engine->parallel_for(args->engine, softmax_focal_loss_grad_##R##_item, &f, (rows + LOSS_ROWS - 1) / LOSS_ROWS); \
    return STATUS_OK;                                                                                             \
}
FOCAL(float)
FOCAL(double)
static int softmax_focal_loss(const KernelArgs *args)
{ return args->inputs[0].dtype == DTYPE_FLOAT32 ? softmax_focal_loss_float(args) : softmax_focal_loss_double(args); }
static int softmax_focal_loss_grad(const KernelArgs *args)
{ return args->inputs[0].dtype == DTYPE_FLOAT32 ? softmax_focal_loss_grad_float(args) : softmax_focal_loss_grad_double(args); }
#endif
