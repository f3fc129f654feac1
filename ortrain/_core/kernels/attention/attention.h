/* Scaled dot-product attention and its gradients. No matrix of all scores: a block of query rows has its scores in scratch, backward computes them again.
 *
 * q [n, rows, heads, size], k [n, keys, heads, size], v [n, keys, heads, width], y [n, rows, heads, width], log_sums [n, heads, rows]: where a row's softmax
 * is exp(score - log_sum). A head is read where it lies, with the step between rows that this layout has, so nothing is transposed. The mask is added to
 * the scores; its strides say how it is broadcast.
 *
 * ints: n, heads, rows, keys, size, width, 1 if no row sees keys after its own, query rows of a block, lanes, strides of the mask (n, heads, rows, keys);
 * floats: scale. A lane is a work item with scratch of its own that goes through every lanes-th unit: lanes follow from the shape alone. */
#ifndef ORTRAIN_ATTENTION_H
#define ORTRAIN_ATTENTION_H
#include <math.h>
#include <string.h>
#include "kernel.h"
#include "common/vector_math.h"

enum { SCORE_LANES = 16 };

typedef struct Heads {
    const KernelArgs *args;
    int64_t n, heads, rows, keys, size, width, causal, block, lanes, mask_steps[4];
} Heads;

static Heads heads_of(const KernelArgs *args)
{
    const int64_t *s = args->ints;
    return (Heads){ args, s[0], s[1], s[2], s[3], s[4], s[5], s[6], s[7], s[8], { s[9], s[10], s[11], s[12] } };
}

/* keys that the rows up to `end` may see */
static inline int64_t keys_seen(const Heads *h, int64_t end) { return h->causal && end < h->keys ? end : h->keys; }

#define REAL float
#define NAMED(name) name##_float
#define GEMM_SERIAL gemm_float32_serial
#define EXP ot_expf_of_negative                  /* scores less their row's largest, or the log of its sum, which is above it */
#define LOG logf
#include "attention/attention_by_type.h"
#undef REAL
#undef NAMED
#undef GEMM_SERIAL
#undef EXP
#undef LOG

#define REAL double
#define NAMED(name) name##_double
#define GEMM_SERIAL gemm_float64_serial
#define EXP exp
#define LOG log
#include "attention/attention_by_type.h"

static int attention(const KernelArgs *args)
{
    Heads h = heads_of(args);
    args->engine->parallel_for(args->engine, args->inputs[0].dtype == DTYPE_FLOAT32 ? attend_float : attend_double, &h, h.lanes);
    return STATUS_OK;
}
static int attention_grad(const KernelArgs *args)
{
    Heads h = heads_of(args);
    args->engine->parallel_for(args->engine, args->inputs[0].dtype == DTYPE_FLOAT32 ? attend_back_float : attend_back_double, &h, h.lanes);
    return STATUS_OK;
}
#endif
