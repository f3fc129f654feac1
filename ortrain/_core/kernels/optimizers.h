/* What optimizers do to a stretch of parameters, in place: the loops of sweeps (training.h) and of products that spend gradients (gemm_update.h). */
#ifndef ORTRAIN_OPTIMIZERS_H
#define ORTRAIN_OPTIMIZERS_H
#include <math.h>
#include "kernel.h"

/* what an optimizer's kernels take: weights and gradients [n], progress [2] (the learning rate, and which step it is), masked [1] or absent, which
 * keeps the weights as they are, and moments [n] */
enum { WEIGHTS, GRADIENTS, PROGRESS, MASKED, FIRST_MOMENTS, SECOND_MOMENTS };

static inline int is_masked(const KernelArgs *args)
{ return args->n_inputs > MASKED && args->inputs[MASKED].data && *(uint8_t *)args->inputs[MASKED].data; }

static inline double progress_at(const KernelArgs *args, int which)
{
    const Tensor *progress = &args->inputs[PROGRESS];
    return progress->dtype == DTYPE_FLOAT32 ? ((const float *)progress->data)[which] : ((const double *)progress->data)[which];
}
static inline double learning_rate(const KernelArgs *args) { return progress_at(args, 0); }
static inline double step_number(const KernelArgs *args) { return progress_at(args, 1); }

#define ADAMW_STEP(k, SQUARE_ROOT) {                                                                              \
    m[k] = s->b1 * m[k] + s->o1 * g[k];                                                                           \
    v[k] = s->b2 * v[k] + s->o2 * g[k] * g[k];                                                                    \
    w[k] = (w[k] * s->before - s->rate * m[k] / (SQUARE_ROOT(v[k]) * s->rv + s->eps)) * s->after;                 \
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
/* weights w, gradients g, moments m and v [n]; ahead: elements that are fetched before they are needed, 0 for none */ \
static inline __attribute__((always_inline)) void adamw_stretch_##R(const AdamW_##R *s, R *restrict w, const R *restrict g, R *restrict m, R *restrict v, \
                                                                    int64_t n, int64_t ahead)                     \
{                                                                                                                 \
    const int64_t line = 64 / sizeof(R);                                                                          \
    int64_t i = 0;                                                                                                \
    for (; i + line <= n; i += line) {                                                                            \
        if (ahead) {                                                                                              \
            __builtin_prefetch(w + i + ahead, 0, 2); __builtin_prefetch(g + i + ahead, 0, 2);                     \
            __builtin_prefetch(m + i + ahead, 0, 2); __builtin_prefetch(v + i + ahead, 0, 2);                     \
        }                                                                                                         \
        for (int64_t k = i; k < i + line; k++) ADAMW_STEP(k, SQUARE_ROOT)                                         \
    }                                                                                                             \
    for (; i < n; i++) ADAMW_STEP(i, SQUARE_ROOT)                                                                 \
}                                                                                                                 \
static inline void sgd_stretch_##R(R rate, R *restrict w, const R *restrict g, int64_t n)                         \
{ for (int64_t i = 0; i < n; i++) w[i] -= rate * g[i]; }
OPTIMIZERS(float, sqrtf)
OPTIMIZERS(double, sqrt)
#endif
