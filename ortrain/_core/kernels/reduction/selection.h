/* Largest and smallest elements along one axis, and sequences turned round. */
#ifndef ORTRAIN_SELECTION_H
#define ORTRAIN_SELECTION_H
#include <string.h>
#include "kernel.h"

#define EXTREME_LANES 64

/* ---- arg_extreme: y[o, i] = the place of the extreme of x[o, :, i]; ints are outer, n, inner, smallest, last.
 * A NaN is more extreme than any number, of equals the first (or last) is found, as NumPy has it. An item is one o and EXTREME_LANES columns; where there
 * is one column, the lanes are its every EXTREME_LANES-th elements. */
#define ARG_EXTREME(R)                                                                                                            \
static inline void extremes_##R(const R *x, int64_t rows, int64_t stride, int64_t lanes, int64_t smallest, int64_t last, R *best, int64_t *place) \
{                                                                                                                                 \
    for (int64_t i = 0; i < lanes; i++) { best[i] = x[i]; place[i] = 0; }                                                         \
    for (int64_t j = 1; j < rows; j++) {                                                                                          \
        const R *row = x + j * stride;                                                                                            \
        for (int64_t i = 0; i < lanes; i++) {                                                                                     \
            R v = row[i], b = best[i];                                                                                            \
            int nan = v != v, was_nan = b != b, beyond = smallest ? v < b : v > b;                                                \
            int takes = last ? nan | ((!was_nan) & (beyond | (v == b))) : (!was_nan) & (nan | beyond);                            \
            best[i] = takes ? v : b; place[i] = takes ? j : place[i];                                                             \
        }                                                                                                                         \
    }                                                                                                                             \
}                                                                                                                                 \
static inline int more_extreme_##R(R v, int64_t at, R b, int64_t was, int64_t smallest, int64_t last)                             \
{                                                                                                                                 \
    int sooner = last ? at > was : at < was;                                                                                      \
    if (v != v || b != b) return v != v && (b == b || sooner);                                                                    \
    return v == b ? sooner : smallest ? v < b : v > b;                                                                            \
}                                                                                                                                 \
static inline int64_t extreme_of_row_##R(const R *x, int64_t n, int64_t smallest, int64_t last)                                   \
{                                                                                                                                 \
    int64_t place[EXTREME_LANES], rows = n / EXTREME_LANES, found = 0; R best[EXTREME_LANES], value = x[0];                       \
    if (rows) extremes_##R(x, rows, EXTREME_LANES, EXTREME_LANES, smallest, last, best, place);                                   \
    for (int64_t i = 0; rows && i < EXTREME_LANES; i++) {                                                                         \
        int64_t at = place[i] * EXTREME_LANES + i;                                                                                \
        if (more_extreme_##R(best[i], at, value, found, smallest, last)) { value = best[i]; found = at; }                         \
    }                                                                                                                             \
    for (int64_t at = rows * EXTREME_LANES; at < n; at++)                                                                         \
        if (more_extreme_##R(x[at], at, value, found, smallest, last)) { value = x[at]; found = at; }                             \
    return found;                                                                                                                 \
}                                                                                                                                 \
static void arg_extreme_##R(void *context, int64_t item, int64_t worker)                                                          \
{                                                                                                                                 \
    const KernelArgs *args = context; const int64_t *p = args->ints, n = p[1], inner = p[2]; (void)worker;                         \
    int64_t blocks = (inner + EXTREME_LANES - 1) / EXTREME_LANES, o = item / blocks, from = item % blocks * EXTREME_LANES;        \
    int64_t lanes = inner - from < EXTREME_LANES ? inner - from : EXTREME_LANES, *y = (int64_t *)args->outputs[0].data + o * inner + from; \
    const R *x = (const R *)args->inputs[0].data + o * n * inner + from; R best[EXTREME_LANES];                                   \
    if (inner == 1) *y = extreme_of_row_##R(x, n, p[3], p[4]);                                                                    \
    else extremes_##R(x, n, inner, lanes, p[3], p[4], best, y);                                                                   \
}

/* ---- top_k: values [o, k, i] and places of the k largest (or smallest) of x[o, :, i], in order, of equals the first; ints are outer, n, inner, k,
 * smallest. NaNs come last. The outputs are a heap whose root is the worst that is kept, then sorted. An item is one column. */
#define TOP_K(R)                                                                                                                  \
static inline int goes_before_##R(R a, int64_t at, R b, int64_t bt, int64_t smallest)                                             \
{                                                                                                                                 \
    if (a != a || b != b) return a == a ? 1 : b == b ? 0 : at < bt;                                                               \
    return a == b ? at < bt : smallest ? a < b : a > b;                                                                           \
}                                                                                                                                 \
static inline void sift_down_##R(R *value, int64_t *place, int64_t stride, int64_t size, int64_t from, int64_t smallest)          \
{                                                                                                                                 \
    R v = value[from * stride]; int64_t t = place[from * stride], child;                                                          \
    while ((child = 2 * from + 1) < size) {                                                                                       \
        if (child + 1 < size && goes_before_##R(value[child * stride], place[child * stride],                                     \
                                                value[(child + 1) * stride], place[(child + 1) * stride], smallest)) child++;     \
        if (!goes_before_##R(v, t, value[child * stride], place[child * stride], smallest)) break;                                \
        value[from * stride] = value[child * stride]; place[from * stride] = place[child * stride]; from = child;                 \
    }                                                                                                                             \
    value[from * stride] = v; place[from * stride] = t;                                                                           \
}                                                                                                                                 \
static void top_k_##R(void *context, int64_t item, int64_t worker)                                                                \
{                                                                                                                                 \
    const KernelArgs *args = context; const int64_t *p = args->ints, n = p[1], inner = p[2], k = p[3], smallest = p[4];           \
    int64_t o = item / inner, i = item % inner; (void)worker;                                                                     \
    const R *x = (const R *)args->inputs[0].data + o * n * inner + i;                                                             \
    R *value = (R *)args->outputs[0].data + o * k * inner + i; int64_t *place = (int64_t *)args->outputs[1].data + o * k * inner + i; \
    for (int64_t j = 0; j < k; j++) { value[j * inner] = x[j * inner]; place[j * inner] = j; }                                    \
    for (int64_t j = k / 2 - 1; j >= 0; j--) sift_down_##R(value, place, inner, k, j, smallest);                                  \
    for (int64_t j = k; j < n; j++)                                                                                               \
        if (goes_before_##R(x[j * inner], j, value[0], place[0], smallest)) {                                                     \
            value[0] = x[j * inner]; place[0] = j; sift_down_##R(value, place, inner, k, 0, smallest);                            \
        }                                                                                                                         \
    for (int64_t size = k - 1; size > 0; size--) {                                                                                \
        R v = value[0]; int64_t t = place[0];                                                                                     \
        value[0] = value[size * inner]; place[0] = place[size * inner]; value[size * inner] = v; place[size * inner] = t;         \
        sift_down_##R(value, place, inner, size, 0, smallest);                                                                    \
    }                                                                                                                             \
}

#define SELECTION(R) ARG_EXTREME(R) TOP_K(R)
SELECTION(float) SELECTION(double) SELECTION(int64_t) SELECTION(int32_t)

#define SELECT_BY_DTYPE(NAME) (d == DTYPE_FLOAT32 ? NAME##_float : d == DTYPE_FLOAT64 ? NAME##_double : d == DTYPE_INT64 ? NAME##_int64_t : NAME##_int32_t)

static int arg_extreme(const KernelArgs *args)
{
    int32_t d = args->inputs[0].dtype;
    int64_t blocks = (args->ints[2] + EXTREME_LANES - 1) / EXTREME_LANES;
    args->engine->parallel_for(args->engine, SELECT_BY_DTYPE(arg_extreme), (void *)args, args->ints[0] * blocks);
    return STATUS_OK;
}

static int top_k(const KernelArgs *args)
{
    int32_t d = args->inputs[0].dtype;
    if (args->ints[3] > 0) args->engine->parallel_for(args->engine, SELECT_BY_DTYPE(top_k), (void *)args, args->ints[0] * args->ints[2]);
    return STATUS_OK;
}

/* ---- reverse_sequence: of x [first, second, bytes], the first lengths[b] steps of each sequence b are turned round; ints are first, second, bytes, and
 * whether time is the first axis. An item is one (first, second). */
static void reversed_step(void *context, int64_t item, int64_t worker)
{
    const KernelArgs *args = context; const int64_t *p = args->ints, second = p[1], bytes = p[2];
    int64_t a = item / second, b = item % second, time = p[3] ? a : b, sequence = p[3] ? b : a, from = item; (void)worker;
    int64_t length = ((const int64_t *)args->inputs[1].data)[sequence];
    if (time < length) from = p[3] ? (length - 1 - time) * second + b : a * second + length - 1 - time;
    memcpy((char *)args->outputs[0].data + item * bytes, (const char *)args->inputs[0].data + from * bytes, (size_t)bytes);
}

static int reverse_sequence(const KernelArgs *args)
{
    args->engine->parallel_for(args->engine, reversed_step, (void *)args, args->ints[0] * args->ints[1]);
    return STATUS_OK;
}
#endif
