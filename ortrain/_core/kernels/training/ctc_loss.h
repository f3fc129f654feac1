/* Connectionist temporal classification: the forward-backward algorithm in log space (Graves et al. 2006), in float64 whatever the type of the inputs.
 *
 * log_probs lie as [t, n, c], or as [n, t, c] if batch_first. A sequence of s labels has 2 s + 1 states: blanks at even states, labels at odd ones.
 * ints: t, n, c, s (labels of the longest sequence), blank, batch_first, zero_infinity,
 * rows of alpha that are kept (all frames for the gradient, else two). */
#ifndef ORTRAIN_CTC_LOSS_H
#define ORTRAIN_CTC_LOSS_H
#include <math.h>
#include "kernel.h"

enum { CTC_TIME, CTC_N, CTC_CLASSES, CTC_LABELS, CTC_BLANK, CTC_BATCH_FIRST, CTC_ZERO_INFINITY, CTC_KEPT };

static inline int64_t ctc_integer(const Tensor *numbers, int64_t i)
{ return numbers->dtype == DTYPE_INT32 ? ((const int32_t *)numbers->data)[i] : ((const int64_t *)numbers->data)[i]; }

/* log(exp(a) + exp(b) + exp(c)); NaN if one of them is NaN */
static inline double log_add(double a, double b, double c)
{
    double top = a > b ? a : b;
    top = c > top ? c : top;
    if (a == -INFINITY && b == -INFINITY && c == -INFINITY) return -INFINITY;
    return top + log(exp(a - top) + exp(b - top) + exp(c - top));
}

/* one sequence: its number, frames and states */
typedef struct CtcSequence { const KernelArgs *args; int64_t n, frames, states; } CtcSequence;

static inline int64_t ctc_label(const CtcSequence *q, int64_t state)
{ return state % 2 == 0 ? q->args->ints[CTC_BLANK] : ctc_integer(&q->args->inputs[1], q->n * q->args->ints[CTC_LABELS] + state / 2); }

/* index of the first class of frame t */
static inline int64_t ctc_frame(const CtcSequence *q, int64_t t)
{
    const int64_t *s = q->args->ints;
    return (s[CTC_BATCH_FIRST] ? q->n * s[CTC_TIME] + t : t * s[CTC_N] + q->n) * s[CTC_CLASSES];
}

/* whether a path may come to a label from the label before it, without a blank between them */
static inline int ctc_may_skip(const CtcSequence *q, int64_t state)
{ return state % 2 == 1 && state >= 3 && ctc_label(q, state) != ctc_label(q, state - 2); }

/* the log probability of all paths, given the states of the last frame */
static inline double ctc_total(const CtcSequence *q, const double *last)
{ return q->states == 1 ? last[0] : log_add(last[q->states - 1], last[q->states - 2], -INFINITY); }

#define CTC(R)                                                                                                    \
/* the log probability of a state's label in frame t; no path passes padding within a sequence */                 \
static inline double ctc_log_prob_##R(const CtcSequence *q, int64_t t, int64_t state)                             \
{                                                                                                                 \
    int64_t label = ctc_label(q, state);                                                                          \
    return label < 0 ? -INFINITY : (double)((const R *)q->args->inputs[0].data)[ctc_frame(q, t) + label];         \
}                                                                                                                 \
/* alpha[t, k]: the log probability of all ways from the start to state k in frame t; returns that of all paths. alpha has `kept` rows, used in turn. */ \
static double ctc_forward_##R(const CtcSequence *q, double *alpha, int64_t width, int64_t kept)                   \
{                                                                                                                 \
    double *now = alpha, *before = alpha;                                                                         \
    for (int64_t t = 0; t < q->frames; t++) {                                                                     \
        now = alpha + t % kept * width;                                                                           \
        for (int64_t k = 0; k < q->states; k++) {                                                                 \
            double way = t == 0 ? (k < 2 ? 0 : -INFINITY) : k == 0 ? before[0]                                    \
                : log_add(before[k], before[k - 1], ctc_may_skip(q, k) ? before[k - 2] : -INFINITY);              \
            now[k] = way + ctc_log_prob_##R(q, t, k);                                                             \
        }                                                                                                         \
        before = now;                                                                                             \
    }                                                                                                             \
    return q->frames ? ctc_total(q, now) : q->states == 1 ? 0 : -INFINITY;                                        \
}                                                                                                                 \
/* dx[t, c] = -(the probability that a path that spells the targets passes c in frame t), the derivative of the loss by log_probs. \
 * beta[k]: the log probability of all ways from state k in frame t to the end, without frame t itself; after[k]: with it */ \
static void ctc_backward_##R(const CtcSequence *q, const double *alpha, double *beta, double *after, int64_t width, double total, R *out) \
{                                                                                                                 \
    for (int64_t t = q->frames - 1; t >= 0; t--) {                                                                \
        R *dx = out + ctc_frame(q, t);                                                                            \
        for (int64_t k = 0; k < q->states; k++) {                                                                 \
            int64_t label = ctc_label(q, k);                                                                      \
            beta[k] = t == q->frames - 1 ? (k >= q->states - 2 ? 0 : -INFINITY) : k == q->states - 1 ? after[k]   \
                : log_add(after[k], after[k + 1], k + 2 < q->states && ctc_may_skip(q, k + 2) ? after[k + 2] : -INFINITY); \
            if (label >= 0) dx[label] -= (R)exp(alpha[t * width + k] + beta[k] - total);                          \
        }                                                                                                         \
        for (int64_t k = 0; k < q->states; k++) after[k] = beta[k] + ctc_log_prob_##R(q, t, k);                   \
    }                                                                                                             \
}                                                                                                                 \
static void ctc_loss_##R##_item(void *context, int64_t n, int64_t worker)                                         \
{                                                                                                                 \
    const KernelArgs *args = context; const int64_t *s = args->ints; (void)worker;                                \
    CtcSequence q = { args, n, ctc_integer(&args->inputs[2], n), 2 * ctc_integer(&args->inputs[3], n) + 1 };      \
    int64_t width = 2 * s[CTC_LABELS] + 1, kept = s[CTC_KEPT];                                                    \
    double *alpha = (double *)args->scratch + n * (kept + 2) * width, *beta = alpha + kept * width, total;        \
    R *gradient = args->n_outputs > 1 && kept >= s[CTC_TIME] ? args->outputs[1].data : NULL;      /* needs alpha of all frames */ \
    total = ctc_forward_##R(&q, alpha, width, kept);                                                              \
    ((R *)args->outputs[0].data)[n] = total == -INFINITY && s[CTC_ZERO_INFINITY] ? 0 : (R)-total;                 \
    if (!gradient) return;                                                                                        \
    for (int64_t t = 0; t < s[CTC_TIME]; t++)                                                                     \
        for (int64_t c = 0; c < s[CTC_CLASSES]; c++) gradient[ctc_frame(&q, t) + c] = 0;                          \
    if (total != -INFINITY || !s[CTC_ZERO_INFINITY]) ctc_backward_##R(&q, alpha, beta, beta + width, width, total, gradient); \
}
CTC(float)
CTC(double)
/* (log_probs, targets [n, s], input_lengths [n], target_lengths [n]) -> (losses [n], their gradient by log_probs if it is wanted);
 * scratch: per sequence, the kept rows of alpha and two rows of beta, as double */
static int ctc_loss(const KernelArgs *args)
{
    args->engine->parallel_for(args->engine, args->inputs[0].dtype == DTYPE_FLOAT32 ? ctc_loss_float_item : ctc_loss_double_item, (void *)args,
                               args->ints[CTC_N]);
    return STATUS_OK;
}
#endif
