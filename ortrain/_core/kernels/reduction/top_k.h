/* TopK: values [o, k, i] and indices of the k largest (or smallest) of x [o, :, i], sorted, the first of equal elements first. NaNs come last. ints: outer, n,
 * inner, k, whether the smallest are selected. A work item has columns side by side, which are copied to rows first.
 *
 * The outputs of a row are a heap with the worst element at its root, then sorted. Blocks without an element that precedes the worst are skipped. Of few, the
 * heap starts with elements that reach a bound: the k-th best of the extremes of lanes, of which lane i has the elements i, i + TOP_K_LANES, ... Starting with
 * the first k elements, a row of 1024 random numbers replaces the worst of 5 some 27 times. */
#ifndef ORTRAIN_TOP_K_H
#define ORTRAIN_TOP_K_H
#include <math.h>
#include <string.h>
#include "kernel.h"
#include "common/panels.h"

enum { TOP_K_BLOCK = 32, TOP_K_LANES = 32, TOP_K_FEW = 16, TOP_K_COLUMNS = 16,
       TOP_K_GAP = 16 };                        /* elements between copied columns, so that they do not share sets of the L1 cache */

/* columns: how many are copied at a time, 0 where a column is too long for the workspace; units: groups of columns. */
typedef struct TopK { const KernelArgs *args; int64_t columns, groups, units, per_item; } TopK;

static TopK top_k_of(const KernelArgs *args)
{
    const int64_t *p = args->ints, n = p[1], inner = p[2], fitting = PANEL_BYTES_LIMIT / ((n + TOP_K_GAP) * element_size(args->inputs[0].dtype));
    TopK s = { .args = args, .columns = inner == 1 ? 1 : min_i64(min_i64(TOP_K_COLUMNS, inner), fitting) };
    s.groups = ceil_div(inner, max_i64(s.columns, 1));
    s.units = p[0] * s.groups;
    s.per_item = ELEMENTS_PER_ITEM / max_i64(n * max_i64(s.columns, 1), 1) + 1;
    return s;
}

#define IS_NAN(x) ((x) != (x))            /* never true of integers */
#define R float
#define NAMED(name) name##_float
#define WORST (smallest ? INFINITY : -INFINITY)
#include "reduction/top_k_by_type.h"
#define R double
#define NAMED(name) name##_double
#define WORST (smallest ? (double)INFINITY : -(double)INFINITY)
#include "reduction/top_k_by_type.h"
#define R int64_t
#define NAMED(name) name##_int64_t
#define WORST (smallest ? INT64_MAX : INT64_MIN)
#include "reduction/top_k_by_type.h"
#define R int32_t
#define NAMED(name) name##_int32_t
#define WORST (smallest ? INT32_MAX : INT32_MIN)
#include "reduction/top_k_by_type.h"

#define SELECT_BY_DTYPE(NAME) (d == DTYPE_FLOAT32 ? NAME##_float : d == DTYPE_FLOAT64 ? NAME##_double : d == DTYPE_INT64 ? NAME##_int64_t : NAME##_int32_t)

static int top_k(const KernelArgs *args)
{
    int32_t d = args->inputs[0].dtype; const int64_t *p = args->ints;
    TopK s = top_k_of(args);
    if (p[3] > 0) args->engine->parallel_for(args->engine, SELECT_BY_DTYPE(top_k_item), &s, ceil_div(s.units, s.per_item));
    return STATUS_OK;
}
#endif
