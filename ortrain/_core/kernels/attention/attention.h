/* Scaled dot-product attention and its gradients. The matrix of all scores is never stored: the scores of a block of query rows are in scratch, and the
 * gradient recomputes them.
 *
 * q [n, rows, heads, size], k [n, keys, heads, size], v [n, keys, heads, width], y [n, rows, heads, width]; log_sums [n, heads, rows]: the log-sum-exp of each
 * row, so that its softmax is exp(score - log_sum). Heads are read in place, with the row stride of this layout, without transposition. The mask is added to
 * the scores; its strides broadcast it.
 *
 * Packed, q, k and v are one input [n, keys, 3, heads, size], and dq, dk and dv one output. The queries are `rows` of its rows, from `first_query` on; dq of
 * the others is zero.
 *
 * ints: n, heads, rows, keys, size, width, whether the mask is causal, query rows of a block, lanes, strides of the mask (n, heads, rows, keys), whether q, k
 * and v are packed, first_query (0 if they are not); floats: scale. A work item is a lane: it has scratch of its own and computes a consecutive range of the
 * units. Lanes depend on the shape only. */
#ifndef ORTRAIN_ATTENTION_H
#define ORTRAIN_ATTENTION_H
#include <math.h>
#include <string.h>
#include "kernel.h"
#include "common/compiler.h"
#include "common/integers.h"
#include "common/row_vectors.h"
#include "common/vector_math.h"

typedef struct Attention {
    const KernelArgs *args;
    int64_t n, heads, rows, keys, size, width, causal, block, lanes, mask_strides[4], packed, first_query;
    int64_t stride, value_stride, y_stride;          /* of rows of q and k, of v, and of y */
    int64_t image_queries;                          /* rows of q and dq of an image in memory */
} Attention;

static Attention attention_from_args(const KernelArgs *args)
{
    const int64_t *s = args->ints;
    const int64_t parts = s[13] ? 3 : 1;
    return (Attention){ args, s[0], s[1], s[2], s[3], s[4], s[5], s[6], s[7], s[8], { s[9], s[10], s[11], s[12] }, s[13], s[14],
                        parts * s[1] * s[4], parts * s[1] * s[5], s[1] * s[5], s[13] ? s[3] : s[2] };
}

/* Return the number of keys that are visible to the query rows before `end`. */
static inline int64_t visible_keys(const Attention *h, int64_t end) { return h->causal && end < h->keys ? end : h->keys; }

#define ATTENTION_EXP(x) _Generic((x), float: ot_expf_of_negative, double: exp)(x)     /* scores minus the maximum of their row or its log-sum-exp */
#define ATTENTION_LOG(x) _Generic((x), float: logf, double: log)(x)
#define TEMPLATE "attention/score_rows.h"
#include "common/float_types.h"
#define TEMPLATE "attention/attention_by_type.h"
#include "common/float_types.h"

static int attention(const KernelArgs *args)
{
    Attention h = attention_from_args(args);
    args->engine->parallel_for(args->engine, args->inputs[0].dtype == DTYPE_FLOAT32 ? attention_lane_float : attention_lane_double, &h, h.lanes);
    return STATUS_OK;
}
static int attention_grad(const KernelArgs *args)
{
    Attention h = attention_from_args(args);
    args->engine->parallel_for(args->engine, args->inputs[0].dtype == DTYPE_FLOAT32 ? attention_gradient_lane_float : attention_gradient_lane_double, &h,
                               h.lanes);
    return STATUS_OK;
}
#endif
