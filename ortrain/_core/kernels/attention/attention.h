/* Scaled dot-product attention and its gradients. The matrix of all scores is never stored: the scores of a block of query rows are in scratch, and the
 * gradient recomputes them.
 *
 * q [n, heads, rows, size], k [n, shared, keys, size], v [n, shared, keys, width], y [n, heads, rows, width], each with strides of its own, so that heads are
 * read in place whatever the order of rows and heads in memory; size and width are contiguous. Each of the `shared` heads of keys and values belongs to
 * heads / shared heads of queries in a row. log_sums [n, heads, rows]: the log-sum-exp of each row, so that its softmax is exp(score - log_sum). The mask is
 * added to the scores; its strides broadcast it. Gradients have the strides of their operands.
 *
 * Packed, q, k and v are one input [n, keys, 3, heads, size], and dq, dk and dv one output. The queries are `rows` of its rows, from `first_query` on; dq of
 * the others is zero.
 *
 * ints: n, heads, shared, rows, keys, size, width, whether the mask is causal, query rows of a block, lanes, strides of the mask (n, heads, rows, keys),
 * strides of q, k, v and y (n, heads, rows), whether q, k and v are packed, first_query (0 if they are not); floats: scale. A work item is a lane: it has
 * scratch of its own and computes a consecutive range of the units. Lanes depend on the shape only. */
#ifndef ORTRAIN_ATTENTION_H
#define ORTRAIN_ATTENTION_H
#include <math.h>
#include <string.h>
#include "kernel.h"
#include "common/compiler.h"
#include "common/integers.h"
#include "common/row_vectors.h"
#include "common/vector_math.h"

/* Distances in elements between images, heads and rows */
typedef struct HeadStrides { int64_t image, head, row; } HeadStrides;

typedef struct Attention {
    const KernelArgs *args;
    int64_t n, heads, shared, rows, keys, size, width, causal, block, lanes, mask_strides[4];
    HeadStrides q, k, v, y;
    int64_t packed, first_query;
} Attention;

static Attention attention_from_args(const KernelArgs *args)
{
    const int64_t *s = args->ints;
#define STRIDES_FROM(i) { s[i], s[(i) + 1], s[(i) + 2] }
    return (Attention){ args, s[0], s[1], s[2], s[3], s[4], s[5], s[6], s[7], s[8], s[9], { s[10], s[11], s[12], s[13] },
                        STRIDES_FROM(14), STRIDES_FROM(17), STRIDES_FROM(20), STRIDES_FROM(23), s[26], s[27] };
#undef STRIDES_FROM
}

/* Return the offset of the first row of a head. */
static inline int64_t offset_of_head(HeadStrides of, int64_t image, int64_t head) { return image * of.image + head * of.head; }

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
    if (!h.n || !h.heads || !h.rows) return STATUS_OK;
    args->engine->parallel_for(args->engine, args->inputs[0].dtype == DTYPE_FLOAT32 ? attention_lane_float : attention_lane_double, &h, h.lanes);
    return STATUS_OK;
}
static int attention_grad(const KernelArgs *args)
{
    Attention h = attention_from_args(args);
    if (!h.n || !h.heads) return STATUS_OK;
    args->engine->parallel_for(args->engine, args->inputs[0].dtype == DTYPE_FLOAT32 ? attention_gradient_lane_float : attention_gradient_lane_double, &h,
                               h.lanes);
    return STATUS_OK;
}
#endif
