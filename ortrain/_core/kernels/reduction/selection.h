/* ArgMax, ArgMin, TopK and ReverseSequence. */
#ifndef ORTRAIN_SELECTION_H
#define ORTRAIN_SELECTION_H
#include <string.h>
#include "kernel.h"
#include "common/memory.h"
#include "common/panels.h"

enum { EXTREME_LANES = 64, TOP_K_BLOCK = 32 };

/* ---- arg_extreme: y[o, i] = the index of the maximum or minimum of x[o, :, i]; ints: outer, n, inner, whether it is the minimum, whether the last of equal
 * elements is selected. NaN comes before all numbers, as in NumPy. Contiguous rows of EXTREME_LANES elements and more are searched in lanes, of which lane i
 * has the elements i, i + EXTREME_LANES, ...; all others in panels. */
typedef struct ArgExtreme { const KernelArgs *args; Panels panels; } ArgExtreme;

#define ARG_EXTREME(R)                                                                                                                                 \
static inline void extremes_##R(const R *x, int64_t rows, int64_t stride, int64_t lanes, int64_t smallest, int64_t last, R *best, int64_t *index)      \
{                                                                                                                                                      \
    for (int64_t i = 0; i < lanes; i++) { best[i] = x[i]; index[i] = 0; }                                                                              \
    for (int64_t j = 1; j < rows; j++) {                                                                                                               \
        const R *row = x + j * stride;                                                                                                                 \
        for (int64_t i = 0; i < lanes; i++) {                                                                                                          \
            R v = row[i], b = best[i];                                                                                                                 \
            int nan = v != v, was_nan = b != b, better = smallest ? v < b : v > b;                                                                     \
            int replace = last ? nan | ((!was_nan) & (better | (v == b))) : (!was_nan) & (nan | better);                                               \
            best[i] = replace ? v : b; index[i] = replace ? j : index[i];                                                                              \
        }                                                                                                                                              \
    }                                                                                                                                                  \
}                                                                                                                                                      \
static inline int is_better_##R(R v, int64_t at, R b, int64_t current_index, int64_t smallest, int64_t last)                                           \
{                                                                                                                                                      \
    int earlier = last ? at > current_index : at < current_index;                                                                                      \
    if (v != v || b != b) return v != v && (b == b || earlier);                                                                                        \
    return v == b ? earlier : smallest ? v < b : v > b;                                                                                                \
}                                                                                                                                                      \
static inline int64_t extreme_of_row_##R(const R *x, int64_t n, int64_t smallest, int64_t last)                                                        \
{                                                                                                                                                      \
    int64_t index[EXTREME_LANES], rows = n / EXTREME_LANES, best_index = 0; R best[EXTREME_LANES], value = x[0];                                       \
    if (rows) extremes_##R(x, rows, EXTREME_LANES, EXTREME_LANES, smallest, last, best, index);                                                        \
    for (int64_t i = 0; rows && i < EXTREME_LANES; i++) {                                                                                              \
        int64_t at = index[i] * EXTREME_LANES + i;                                                                                                     \
        if (is_better_##R(best[i], at, value, best_index, smallest, last)) { value = best[i]; best_index = at; }                                       \
    }                                                                                                                                                  \
    for (int64_t at = rows * EXTREME_LANES; at < n; at++)                                                                                              \
        if (is_better_##R(x[at], at, value, best_index, smallest, last)) { value = x[at]; best_index = at; }                                           \
    return best_index;                                                                                                                                 \
}                                                                                                                                                      \
static void arg_extreme_rows_##R(void *context, int64_t item, int64_t worker)                                                                          \
{                                                                                                                                                      \
    const ArgExtreme *s = context; const int64_t *p = s->args->ints, n = p[1], per_item = ELEMENTS_PER_ITEM / n + 1; (void)worker;                     \
    for (int64_t o = item * per_item; o < min_i64((item + 1) * per_item, p[0]); o++)                                                                   \
        ((int64_t *)s->args->outputs[0].data)[o] = extreme_of_row_##R((const R *)s->args->inputs[0].data + o * n, n, p[3], p[4]);                      \
}                                                                                                                                                      \
static void arg_extreme_panels_##R(void *context, int64_t item, int64_t worker)                                                                        \
{                                                                                                                                                      \
    const ArgExtreme *s = context; const Panels *p = &s->panels; void *buffer = panel_buffer(s->args->engine, worker, 0, 1);                           \
    for (int64_t number = item * p->per_item; number < min_i64((item + 1) * p->per_item, p->count); number++) {                                        \
        Panel b = panel_at(p, number); int64_t step, index[PANEL_COLUMNS], *y = (int64_t *)s->args->outputs[0].data + b.column; R best[PANEL_COLUMNS]; \
        const R *x = panel_input(p, &b, s->args->inputs[0].data, sizeof(R), buffer, &step);                                                            \
        extremes_##R(x, p->size, step, b.columns, s->args->ints[3], s->args->ints[4], best, index);                                                    \
        if (!is_transposed(p)) memcpy(y, index, (size_t)b.columns * sizeof(int64_t));                                                                  \
        else for (int64_t i = 0; i < b.slices; i++) for (int64_t k = 0; k < p->inner; k++) y[i * p->inner + k] = index[k * b.slices + i];              \
    }                                                                                                                                                  \
}

/* ---- top_k: values [o, k, i] and indices of the k largest (or smallest) of x[o, :, i], sorted, the first of equal elements first; ints: outer, n, inner, k,
 * whether the smallest are selected. NaNs come last. The outputs are a heap with the worst element at its root, then sorted. A work item is one column. */
#define TOP_K(R)                                                                                                                              \
static inline int precedes_##R(R a, int64_t at, R b, int64_t b_index, int64_t smallest)                                                       \
{                                                                                                                                             \
    if (a != a || b != b) return a == a ? 1 : b == b ? 0 : at < b_index;                                                                      \
    return a == b ? at < b_index : smallest ? a < b : a > b;                                                                                  \
}                                                                                                                                             \
static inline void sift_down_##R(R *value, int64_t *index, int64_t stride, int64_t size, int64_t from, int64_t smallest)                      \
{                                                                                                                                             \
    R v = value[from * stride]; int64_t t = index[from * stride], child;                                                                      \
    while ((child = 2 * from + 1) < size) {                                                                                                   \
        if (child + 1 < size && precedes_##R(value[child * stride], index[child * stride],                                                    \
                                                value[(child + 1) * stride], index[(child + 1) * stride], smallest)) child++;                 \
        if (!precedes_##R(v, t, value[child * stride], index[child * stride], smallest)) break;                                               \
        value[from * stride] = value[child * stride]; index[from * stride] = index[child * stride]; from = child;                             \
    }                                                                                                                                         \
    value[from * stride] = v; index[from * stride] = t;                                                                                       \
}                                                                                                                                             \
/* Return whether one of TOP_K_BLOCK elements may precede the worst of those selected; most blocks have none, and this test is vectorized. */ \
static inline int any_precedes_##R(const R *x, R worst, int64_t smallest)                                                                     \
{                                                                                                                                             \
    int any = worst != worst;                                                                                                                 \
    if (smallest) for (int i = 0; i < TOP_K_BLOCK; i++) any |= x[i] < worst;                                                                  \
    else for (int i = 0; i < TOP_K_BLOCK; i++) any |= x[i] > worst;                                                                           \
    return any;                                                                                                                               \
}                                                                                                                                             \
static void top_k_##R(void *context, int64_t item, int64_t worker)                                                                            \
{                                                                                                                                             \
    const KernelArgs *args = context; const int64_t *p = args->ints, n = p[1], inner = p[2], k = p[3], smallest = p[4];                       \
    int64_t o = item / inner, i = item % inner; (void)worker;                                                                                 \
    const R *x = (const R *)args->inputs[0].data + o * n * inner + i;                                                                         \
    R *value = (R *)args->outputs[0].data + o * k * inner + i; int64_t *index = (int64_t *)args->outputs[1].data + o * k * inner + i;         \
    for (int64_t j = 0; j < k; j++) { value[j * inner] = x[j * inner]; index[j * inner] = j; }                                                \
    for (int64_t j = k / 2 - 1; j >= 0; j--) sift_down_##R(value, index, inner, k, j, smallest);                                              \
    for (int64_t j = k, end; j < n; j = end) {                                                                                                \
        end = inner == 1 ? min_i64(j + TOP_K_BLOCK, n) : n;                                                                                   \
        if (inner == 1 && end - j == TOP_K_BLOCK && !any_precedes_##R(x + j, value[0], smallest)) continue;                                   \
        for (; j < end; j++)                                                                                                                  \
            if (precedes_##R(x[j * inner], j, value[0], index[0], smallest)) {                                                                \
                value[0] = x[j * inner]; index[0] = j; sift_down_##R(value, index, inner, k, 0, smallest);                                    \
            }                                                                                                                                 \
    }                                                                                                                                         \
    for (int64_t size = k - 1; size > 0; size--) {                                                                                            \
        R v = value[0]; int64_t t = index[0];                                                                                                 \
        value[0] = value[size * inner]; index[0] = index[size * inner]; value[size * inner] = v; index[size * inner] = t;                     \
        sift_down_##R(value, index, inner, size, 0, smallest);                                                                                \
    }                                                                                                                                         \
}

#define SELECTION(R) ARG_EXTREME(R) TOP_K(R)
SELECTION(float) SELECTION(double) SELECTION(int64_t) SELECTION(int32_t)

#define SELECT_BY_DTYPE(NAME) (d == DTYPE_FLOAT32 ? NAME##_float : d == DTYPE_FLOAT64 ? NAME##_double : d == DTYPE_INT64 ? NAME##_int64_t : NAME##_int32_t)

static int arg_extreme(const KernelArgs *args)
{
    int32_t d = args->inputs[0].dtype; const int64_t *p = args->ints;
    ArgExtreme s = { args, panels_of(args->engine, p[0], p[1], p[2], element_size(d), 1, 1) };
    if (p[2] == 1 && p[1] >= EXTREME_LANES)
        args->engine->parallel_for(args->engine, SELECT_BY_DTYPE(arg_extreme_rows), &s, ceil_div(p[0], ELEMENTS_PER_ITEM / p[1] + 1));
    else args->engine->parallel_for(args->engine, SELECT_BY_DTYPE(arg_extreme_panels), &s, panel_items(&s.panels));
    return STATUS_OK;
}

static int top_k(const KernelArgs *args)
{
    int32_t d = args->inputs[0].dtype;
    if (args->ints[3] > 0) args->engine->parallel_for(args->engine, SELECT_BY_DTYPE(top_k), (void *)args, args->ints[0] * args->ints[2]);
    return STATUS_OK;
}

/* ---- reverse_sequence: the first lengths[b] steps of each sequence b of x [first, second, bytes] are reversed; ints: first, second, bytes, whether time is
 * the first axis. A work item is one (first, second). */
static void reverse_sequence_item(void *context, int64_t item, int64_t worker)
{
    const KernelArgs *args = context; const int64_t *p = args->ints, second = p[1], bytes = p[2];
    int64_t a = item / second, b = item % second, time = p[3] ? a : b, sequence = p[3] ? b : a, from = item; (void)worker;
    int64_t length = ((const int64_t *)args->inputs[1].data)[sequence];
    if (time < length) from = p[3] ? (length - 1 - time) * second + b : a * second + length - 1 - time;
    memcpy((char *)args->outputs[0].data + item * bytes, (const char *)args->inputs[0].data + from * bytes, (size_t)bytes);
}

static int reverse_sequence(const KernelArgs *args)
{
    args->engine->parallel_for(args->engine, reverse_sequence_item, (void *)args, args->ints[0] * args->ints[1]);
    return STATUS_OK;
}
#endif
