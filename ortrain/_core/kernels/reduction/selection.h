/* ArgMax, ArgMin and ReverseSequence; TopK is in top_k.h. */
#ifndef ORTRAIN_SELECTION_H
#define ORTRAIN_SELECTION_H
#include <string.h>
#include "kernel.h"
#include "common/memory.h"
#include "common/panels.h"
#include "reduction/top_k.h"

enum { EXTREME_LANES = 64 };

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

ARG_EXTREME(float) ARG_EXTREME(double) ARG_EXTREME(int64_t) ARG_EXTREME(int32_t)

static int arg_extreme(const KernelArgs *args)
{
    int32_t d = args->inputs[0].dtype; const int64_t *p = args->ints;
    ArgExtreme s = { args, panels_of(args->engine, p[0], p[1], p[2], element_size(d), 1, 1) };
    if (p[2] == 1 && p[1] >= EXTREME_LANES)
        args->engine->parallel_for(args->engine, SELECT_BY_DTYPE(arg_extreme_rows), &s, ceil_div(p[0], ELEMENTS_PER_ITEM / p[1] + 1));
    else args->engine->parallel_for(args->engine, SELECT_BY_DTYPE(arg_extreme_panels), &s, panel_items(&s.panels));
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
