/* Reductions. ints: number of outputs, elements per output, then for the kept and for the reduced axes: number of axes, sizes, strides in elements.
 *
 * Sums have 16 lanes and blocks in a fixed order, so that results have the same bits for any number of threads. They start at -0, the identity of addition, so
 * that the sum of one element is that element. */
#ifndef ORTRAIN_REDUCE_H
#define ORTRAIN_REDUCE_H
#include "kernel.h"
#include "common/compiler.h"
#include "common/integers.h"

enum {
    REDUCE_CHUNK = 16384,
    ROW_LANES = 64,              /* four vectors of AVX-512 hide the latency of additions: 1024 x 1024 along rows took 45 us with 16 lanes */
    SHORT_ROW = 32,              /* rows of at most so many elements are combined side by side, SHORT_ROWS at a time (7: 2.0 ns per element one by one) */
    SHORT_ROWS = 64,
    REDUCED_COLUMNS = 512, ROWS_AT_ONCE = 8, WIDE = 128,       /* of columns: 1024 x 1024 took 110 us in fours, 84 in eights */
    NARROW = 16,                 /* where the last kept axis is shorter, NARROW_ROWS rows are combined at a time (inner 3: 0.53 ns per element one by one) */
    NARROW_ROWS = 16
};

typedef struct {
    int64_t outputs, count, kept, reduced;
    int64_t kept_size[ORTRAIN_MAX_RANK], kept_stride[ORTRAIN_MAX_RANK], size[ORTRAIN_MAX_RANK], stride[ORTRAIN_MAX_RANK];
} Reduction;

/* Append an axis to those of one kind, or merge it with the last one if that was the last of all axes. */
static inline void add_axis(int64_t *n, int64_t *sizes, int64_t *strides, int64_t size, int64_t stride, int is_same_kind)
{
    if (is_same_kind) { sizes[*n - 1] *= size; strides[*n - 1] = stride; }
    else { sizes[*n] = size; strides[(*n)++] = stride; }
}

/* Read the ints. Axes of size 1, which programs specialized from a template may have, are left out, so that additions have the order that they have without. */
static inline Reduction reduction_of(const KernelArgs *args)
{
    const int64_t *s = args->ints, kept = s[2], *kept_size = s + 3, *kept_stride = kept_size + kept;
    const int64_t reduced = kept_stride[kept], *size = kept_stride + kept + 1, *stride = size + reduced;
    Reduction r = { .outputs = s[0], .count = s[1] };
    for (int64_t i = 0, j = 0, last = -1; i < kept || j < reduced; ) {
        int is_kept = j == reduced || (i < kept && kept_stride[i] > stride[j]);
        if (is_kept && kept_size[i] != 1) add_axis(&r.kept, r.kept_size, r.kept_stride, kept_size[i], kept_stride[i], last == 1);
        if (!is_kept && size[j] != 1) add_axis(&r.reduced, r.size, r.stride, size[j], stride[j], last == 0);
        if ((is_kept ? kept_size[i] : size[j]) != 1) last = is_kept;
        if (is_kept) i++; else j++;
    }
    return r;
}
static inline int64_t kept_offset(const Reduction *r, int64_t output)
{
    int64_t offset = 0;
    for (int64_t d = r->kept - 1; d >= 0; d--) { offset += output % r->kept_size[d] * r->kept_stride[d]; output /= r->kept_size[d]; }
    return offset;
}
static inline int64_t reduced_offset(const Reduction *r, int64_t row)
{
    int64_t offset = 0;
    for (int64_t d = r->reduced - 2; d >= 0; d--) { offset += row % r->size[d] * r->stride[d]; row /= r->size[d]; }
    return offset;
}

/* Return the length of the last kept axis if it is short and follows the last reduced axis directly, else 0. */
static inline int64_t narrow_width(const Reduction *r)
{
    if (!r->kept || !r->reduced || r->kept_stride[r->kept - 1] != 1) return 0;
    int64_t width = r->kept_size[r->kept - 1];
    return width < NARROW && r->stride[r->reduced - 1] == width ? width : 0;
}
/* Return whether the input consists of contiguous rows, of which each is an output and less than a chunk. */
static inline int is_row(const Reduction *r)
{ return r->kept == 1 && r->reduced == 1 && r->stride[0] == 1 && r->kept_stride[0] == r->count && r->count <= REDUCE_CHUNK; }

/* Return whether outputs are along the last kept axis, which is contiguous. */
static inline int is_columns(const Reduction *r) { return r->kept && r->reduced && r->kept_stride[r->kept - 1] == 1 && !narrow_width(r); }

/* Return the number of outputs of a work item: about 4 * REDUCE_CHUNK elements of input, and whole cache lines of output; up to WIDE of
 * long columns, where that leaves eight items. */
static inline int64_t reduce_outputs_per_item(const Reduction *r)
{
    int64_t per_item = 4 * REDUCE_CHUNK / (r->count > 0 ? r->count : 1);
    int64_t width = narrow_width(r) ? narrow_width(r) : 1;
    int64_t least = is_columns(r) ? max_i64(16, min_i64(WIDE, r->outputs / 8 / 16 * 16)) : 16;
    return (max_i64(per_item, least) + width - 1) / width * width;
}

/* Combine ROW_LANES lanes in loops of constant length, for which they stay in registers. Unrolled, extremes are branches instead of vectors. */
#define FOLD_HALF(ACC, COMBINE, lanes, half) \
    _Pragma("GCC unroll 1") for (int k = 0; k < (half); k++) { ACC v = lanes[k + (half)], b = lanes[k]; lanes[k] = COMBINE; }
#define FOLD_ROW(ACC, COMBINE, lanes)                                                                                              \
    FOLD_HALF(ACC, COMBINE, lanes, 32) FOLD_HALF(ACC, COMBINE, lanes, 16) FOLD_HALF(ACC, COMBINE, lanes, 8)                         \
    FOLD_HALF(ACC, COMBINE, lanes, 4) FOLD_HALF(ACC, COMBINE, lanes, 2) FOLD_HALF(ACC, COMBINE, lanes, 1)
/* Combine the upper half of `count` * step lanes with the lower one until `step` lanes are left. */
#define FOLD_LANES(ACC, COMBINE, lanes, count, step)                     \
    for (int64_t half = (count) / 2 * (step); half >= (step); half /= 2) \
        for (int64_t k = 0; k < half; k++) { ACC v = lanes[k + half], b = lanes[k]; lanes[k] = COMBINE; }

#define REDUCE_RUN(NAME, R, ACC, IDENTITY, MAP, COMBINE)                                                                              \
/* the result of `rows` rows of n elements, `step` apart, in lanes */                                                               \
static inline ACC NAME##_run_##R(const R *x, int64_t n, int64_t rows, int64_t step)                                                 \
{                                                                                                                                   \
    ACC lanes[ROW_LANES], a = IDENTITY;                                                                                             \
    for (int k = 0; k < ROW_LANES; k++) lanes[k] = IDENTITY;                                                                        \
    for (; rows > 0; rows--, x += step) {                                                                                           \
        int64_t i = 0;                                                                                                              \
        for (; i + ROW_LANES <= n; i += ROW_LANES)                                                                                  \
            for (int k = 0; k < ROW_LANES; k++) { ACC v = x[i + k], b = lanes[k]; v = MAP; lanes[k] = COMBINE; }                    \
        for (; i + 16 <= n; i += 16)                                                                                                \
            _Pragma("GCC unroll 1") for (int k = 0; k < 16; k++) { ACC v = x[i + k], b = lanes[k]; v = MAP; lanes[k] = COMBINE; }   \
        for (; i < n; i++) { ACC v = x[i], b = a; v = MAP; a = COMBINE; }                                                           \
    }                                                                                                                               \
    FOLD_ROW(ACC, COMBINE, lanes)                                                                                                   \
    ACC v = a, b = lanes[0];                                                                                                        \
    return COMBINE;                                                                                                                 \
}

/* n outputs along the last kept axis, which is contiguous while the reduced axes are not: whole rows are combined elementwise, in order, ROWS_AT_ONCE for
 * every time that results are loaded and stored (16 x 64 x 1000: 230 us one by one, 75 so). */
#define REDUCE_COLUMNS(NAME, R, ACC, IDENTITY, MAP, COMBINE, FINALIZE)                                                              \
static inline void NAME##_columns_##R(const Reduction *r, const R *x, R *y, int64_t n)                                              \
{                                                                                                                                   \
    int64_t inner = r->size[r->reduced - 1], stride = r->stride[r->reduced - 1], rows = inner ? r->count / inner : 0;               \
    ACC acc[REDUCED_COLUMNS];                                                                                                       \
    for (int64_t k = 0; k < n; k++) acc[k] = IDENTITY;                                                                              \
    for (int64_t row = 0; row < rows; row++) {                                                                                      \
        const R *p = x + reduced_offset(r, row); int64_t i = 0;                                                                     \
        for (; i + ROWS_AT_ONCE <= inner; i += ROWS_AT_ONCE, p += ROWS_AT_ONCE * stride)                                            \
            for (int64_t k = 0; k < n; k++) {                                                                                       \
                ACC b = acc[k];                                                                                                     \
                _Pragma("GCC unroll 8") for (int j = 0; j < ROWS_AT_ONCE; j++) { ACC v = p[k + j * stride]; v = MAP; b = COMBINE; } \
                acc[k] = b;                                                                                                         \
            }                                                                                                                       \
        for (; i < inner; i++, p += stride)                                                                                         \
            for (int64_t k = 0; k < n; k++) { ACC v = p[k], b = acc[k]; v = MAP; acc[k] = COMBINE; }                                \
    }                                                                                                                               \
    for (int64_t k = 0; k < n; k++) { ACC a = acc[k]; int64_t count = r->count; (void)count; y[k] = (R)(FINALIZE); }                \
}

/* Both for maxima and minima of floating-point numbers: two numbers at a time, whose extremes are one instruction of x86 each, and one comparison that finds a
 * NaN in either. If there is one, all are reduced again by comparisons that keep it (1024 x 1024 along rows: 75 us with these alone, 51 so). */
#define FLOAT_EXTREME_RUNS(NAME, R, FLAG, IDENTITY, COMBINE, SELECT)                                                                        \
REDUCE_RUN(NAME##_with_nans, R, R, IDENTITY, v, COMBINE) REDUCE_COLUMNS(NAME##_with_nans, R, R, IDENTITY, v, COMBINE, a)            \
static inline R NAME##_run_##R(const R *x, int64_t n, int64_t rows, int64_t step)                                                   \
{                                                                                                                                   \
    R lanes[ROW_LANES], a = IDENTITY; FLAG nans[ROW_LANES / 2] = {0}, any = 0;                                                      \
    for (int k = 0; k < ROW_LANES; k++) lanes[k] = IDENTITY;                                                                        \
    const R *from = x;                                                                                                              \
    for (int64_t row = 0; row < rows; row++, from += step) {                                                                        \
        int64_t i = 0;                                                                                                              \
        for (; i + ROW_LANES <= n; i += ROW_LANES)                                                                                  \
            for (int k = 0; k < ROW_LANES / 2; k++) {                                                                               \
                R v = from[i + k], w = from[i + k + ROW_LANES / 2], b = lanes[k], c = lanes[k + ROW_LANES / 2];                     \
                nans[k] |= -(FLAG)__builtin_isunordered(v, w);                                                                      \
                lanes[k] = v SELECT b ? v : b; lanes[k + ROW_LANES / 2] = w SELECT c ? w : c;                                       \
            }                                                                                                                       \
        for (; i + 16 <= n; i += 16)                                                                                                \
            _Pragma("GCC unroll 1") for (int k = 0; k < 16; k++) {                                                                  \
                R v = from[i + k], b = lanes[k]; nans[k] |= -(FLAG)__builtin_isunordered(v, v); lanes[k] = v SELECT b ? v : b;      \
            }                                                                                                                       \
        for (; i < n; i++) { R v = from[i], b = a; a = COMBINE; }                                                                   \
    }                                                                                                                               \
    for (int k = 0; k < ROW_LANES / 2; k++) any |= nans[k];                                                                         \
    if (any) return NAME##_with_nans_run_##R(x, n, rows, step);                                                                     \
    FOLD_ROW(R, COMBINE, lanes)                                                                                                     \
    R v = a, b = lanes[0];                                                                                                          \
    return COMBINE;                                                                                                                 \
}                                                                                                                                   \
static inline void NAME##_columns_##R(const Reduction *r, const R *x, R *y, int64_t n)                                              \
{                                                                                                                                   \
    int64_t inner = r->size[r->reduced - 1], stride = r->stride[r->reduced - 1], rows = inner ? r->count / inner : 0;               \
    FLAG nans[REDUCED_COLUMNS] = {0}, any = 0;                                                                                      \
    for (int64_t k = 0; k < n; k++) y[k] = IDENTITY;                                                                                \
    for (int64_t row = 0; row < rows; row++) {                                                                                      \
        const R *p = x + reduced_offset(r, row); int64_t i = 0;                                                                     \
        for (; i + ROWS_AT_ONCE <= inner; i += ROWS_AT_ONCE, p += ROWS_AT_ONCE * stride)                                            \
            INDEPENDENT for (int64_t k = 0; k < n; k++) {                                                                           \
                R b = y[k]; FLAG found = nans[k];                                                                                   \
                _Pragma("GCC unroll 4") for (int j = 0; j < ROWS_AT_ONCE; j += 2) {                                                 \
                    R v = p[k + j * stride], w = p[k + (j + 1) * stride];                                                           \
                    found |= -(FLAG)__builtin_isunordered(v, w);                                                                    \
                    b = v SELECT b ? v : b; b = w SELECT b ? w : b;                                                                 \
                }                                                                                                                   \
                y[k] = b; nans[k] = found;                                                                                          \
            }                                                                                                                       \
        for (; i < inner; i++, p += stride)                                                                                         \
            INDEPENDENT for (int64_t k = 0; k < n; k++) {                                                                           \
                R v = p[k], b = y[k]; nans[k] |= -(FLAG)__builtin_isunordered(v, v); y[k] = v SELECT b ? v : b;                     \
            }                                                                                                                       \
    }                                                                                                                               \
    for (int64_t k = 0; k < n; k++) any |= nans[k];                                                                                 \
    if (any) NAME##_with_nans_columns_##R(r, x, y, n);                                                                              \
}

#define REDUCE(NAME, R, ACC, IDENTITY, MAP, COMBINE, FINALIZE)                                                                      \
static inline ACC NAME##_all_##R(const Reduction *r, const R *x)                                                                    \
{                                                                                                                                   \
    ACC a = IDENTITY;                                                                                                               \
    if (!r->reduced) { ACC v = x[0], b = a; v = MAP; return COMBINE; }                                                              \
    int64_t inner = r->size[r->reduced - 1], stride = r->stride[r->reduced - 1], rows = inner ? r->count / inner : 0, count = 1;    \
    int64_t before = r->reduced > 1 ? r->size[r->reduced - 2] : 1, step = r->reduced > 1 ? r->stride[r->reduced - 2] : 0;           \
    for (int64_t row = 0; row < rows; row += count) {                                                                               \
        const R *from = x + reduced_offset(r, row);                                                                                 \
        count = stride == 1 ? min_i64(max_i64(1, REDUCE_CHUNK / inner), before - row % before) : 1;       /* rows of a chunk */     \
        for (int64_t i = 0; i < inner && stride == 1; i += REDUCE_CHUNK) {                                                          \
            ACC v = NAME##_run_##R(from + i, min_i64(REDUCE_CHUNK, inner - i), count, step), b = a; a = COMBINE;                    \
        }                                                                                                                           \
        for (int64_t i = 0; i < inner && stride != 1; i++) { ACC v = from[i * stride], b = a; v = MAP; a = COMBINE; }               \
    }                                                                                                                               \
    return a;                                                                                                                       \
}                                                                                                                                   \
/* The same for rows of few elements that follow each other: NARROW_ROWS of them at a time. */                                      \
static inline void NAME##_narrow_##R(const Reduction *r, const R *x, R *y, int64_t width)                                           \
{                                                                                                                                   \
    int64_t size = r->size[r->reduced - 1] * width, rows = size ? r->count * width / size : 0, lanes = NARROW_ROWS * width;         \
    ACC acc[NARROW_ROWS * NARROW];                                                                                                  \
    for (int64_t k = 0; k < lanes; k++) acc[k] = IDENTITY;                                                                          \
    for (int64_t row = 0; row < rows; row++) {                                                                                      \
        const R *p = x + reduced_offset(r, row), *end = p + size;                                                                   \
        for (; p < end; p += lanes) {                                                                                               \
            int64_t n = end - p < lanes ? end - p : lanes;                                                                          \
            for (int64_t k = 0; k < n; k++) { ACC v = p[k], b = acc[k]; v = MAP; acc[k] = COMBINE; }                                \
        }                                                                                                                           \
    }                                                                                                                               \
    FOLD_LANES(ACC, COMBINE, acc, NARROW_ROWS, width)                                                                               \
    for (int64_t k = 0; k < width; k++) { ACC a = acc[k]; int64_t count = r->count; (void)count; y[k] = (R)(FINALIZE); }            \
}                                                                                                                                   \
static void NAME##_item_##R(void *context, int64_t item, int64_t worker)                                                            \
{                                                                                                                                   \
    const KernelArgs *args = context; Reduction r = reduction_of(args); (void)worker;                                               \
    const R *x = args->inputs[0].data; R *y = args->outputs[0].data;                                                                \
    int64_t per_item = reduce_outputs_per_item(&r), o = item * per_item, end = o + per_item < r.outputs ? o + per_item : r.outputs, \
            count = r.count, narrow = narrow_width(&r); (void)count;                                                                \
    if (narrow) for (; o < end; o += narrow) NAME##_narrow_##R(&r, x + kept_offset(&r, o), y + o, narrow);                          \
    else if (is_columns(&r)) {                                                                                                      \
        int64_t width = r.kept_size[r.kept - 1];                                                                                    \
        while (o < end) {                                                                                                           \
            int64_t n = min_i64(REDUCED_COLUMNS, min_i64(width - o % width, end - o));                                              \
            NAME##_columns_##R(&r, x + kept_offset(&r, o), y + o, n); o += n;                                                       \
        }                                                                                                                           \
    } else if (is_row(&r) && count <= SHORT_ROW)                                                                                    \
        for (int64_t n; o < end; o += n) {                                                                                          \
            R columns[SHORT_ROW * SHORT_ROWS]; ACC acc[SHORT_ROWS];                                                                 \
            n = min_i64(SHORT_ROWS, end - o);                                                                                       \
            args->engine->transpose(columns, x + o * count, sizeof(R), count, n, SHORT_ROWS, count);                                \
            for (int64_t k = 0; k < n; k++) acc[k] = IDENTITY;                                                                      \
            for (int64_t j = 0; j < count; j++)                                                                                     \
                for (int64_t k = 0; k < n; k++) { ACC v = columns[j * SHORT_ROWS + k], b = acc[k]; v = MAP; acc[k] = COMBINE; }     \
            for (int64_t k = 0; k < n; k++) { ACC a = acc[k]; y[o + k] = (R)(FINALIZE); }                                           \
        }                                                                                                                           \
    else if (is_row(&r))                                                                                                            \
        for (; o < end; o++) { ACC a = NAME##_run_##R(x + o * count, count, 1, 0); y[o] = (R)(FINALIZE); }                          \
    else for (; o < end; o++) { ACC a = NAME##_all_##R(&r, x + kept_offset(&r, o)); y[o] = (R)(FINALIZE); }                         \
}                                                                                                                                   \
/* Reduction to a single value: partial results of fixed chunks, combined in order. */                                              \
static void NAME##_partial_##R(void *context, int64_t item, int64_t worker)                                                         \
{                                                                                                                                   \
    const KernelArgs *args = context; int64_t from = item * REDUCE_CHUNK, n = args->inputs[0].count - from; (void)worker;           \
    ((ACC *)args->scratch)[item] = NAME##_run_##R((const R *)args->inputs[0].data + from, min_i64(n, REDUCE_CHUNK), 1, 0);          \
}                                                                                                                                   \
static int NAME##_##R(const KernelArgs *args)                                                                                       \
{                                                                                                                                   \
    Reduction r = reduction_of(args);                                                                                               \
    if (r.outputs == 1 && r.count == args->inputs[0].count) {                                                                       \
        int64_t items = (r.count + REDUCE_CHUNK - 1) / REDUCE_CHUNK, count = r.count; ACC a = IDENTITY; (void)count;                \
        args->engine->parallel_for(args->engine, NAME##_partial_##R, (void *)args, items);                                          \
        for (int64_t i = 0; i < items; i++) { ACC v = ((ACC *)args->scratch)[i], b = a; a = COMBINE; }                              \
        *(R *)args->outputs[0].data = (R)(FINALIZE);                                                                                \
        return STATUS_OK;                                                                                                           \
    }                                                                                                                               \
    int64_t per_item = reduce_outputs_per_item(&r);                                                                                 \
    args->engine->parallel_for(args->engine, NAME##_item_##R, (void *)args, (r.outputs + per_item - 1) / per_item);                 \
    return STATUS_OK;                                                                                                               \
}

#define REDUCE_OF(NAME, R, IDENTITY, MAP, COMBINE, FINALIZE) \
REDUCE_RUN(NAME, R, R, IDENTITY, MAP, COMBINE) REDUCE_COLUMNS(NAME, R, R, IDENTITY, MAP, COMBINE, FINALIZE) \
REDUCE(NAME, R, R, IDENTITY, MAP, COMBINE, FINALIZE)
#define FLOAT_REDUCE(NAME, IDENTITY, MAP, COMBINE, FINALIZE) \
REDUCE_OF(NAME, float, IDENTITY, MAP, COMBINE, FINALIZE) REDUCE_OF(NAME, double, IDENTITY, MAP, COMBINE, FINALIZE)
#define FLOAT_EXTREME(NAME, IDENTITY, COMBINE, SELECT)                                                                            \
FLOAT_EXTREME_RUNS(NAME, float, int32_t, IDENTITY, COMBINE, SELECT) REDUCE(NAME, float, float, IDENTITY, v, COMBINE, a)                  \
FLOAT_EXTREME_RUNS(NAME, double, int64_t, IDENTITY, COMBINE, SELECT) REDUCE(NAME, double, double, IDENTITY, v, COMBINE, a)
/* Defines the kernel NAME for all numbers; its functions for floating-point numbers are defined before. */
#define NUMBER_KERNEL(NAME, LOWEST64, LOWEST32, MAP, COMBINE, FINALIZE)                                                           \
REDUCE_OF(NAME, int64_t, LOWEST64, MAP, COMBINE, FINALIZE) REDUCE_OF(NAME, int32_t, LOWEST32, MAP, COMBINE, FINALIZE)             \
static int NAME(const KernelArgs *args)                                                                                           \
{                                                                                                                                 \
    int32_t d = args->inputs[0].dtype;                                                                                            \
    return d == DTYPE_FLOAT32 ? NAME##_float(args) : d == DTYPE_FLOAT64 ? NAME##_double(args)                                     \
        : d == DTYPE_INT64 ? NAME##_int64_t(args) : NAME##_int32_t(args);                                                         \
}
#define NUMBER_REDUCE(NAME, IDENTITY, LOWEST64, LOWEST32, MAP, COMBINE, FINALIZE) \
FLOAT_REDUCE(NAME, IDENTITY, MAP, COMBINE, FINALIZE) NUMBER_KERNEL(NAME, LOWEST64, LOWEST32, MAP, COMBINE, FINALIZE)
NUMBER_REDUCE(reduce_sum, -0.0f, 0, 0, v, b + v, count ? a : 0)
FLOAT_REDUCE(reduce_mean, -0.0f, v, b + v, a / count)      /* no integers: the mean of no elements would divide by 0 */
static int reduce_mean(const KernelArgs *args)
{ return args->inputs[0].dtype == DTYPE_FLOAT32 ? reduce_mean_float(args) : reduce_mean_double(args); }
NUMBER_REDUCE(reduce_sum_square, 0, 0, 0, v * v, b + v, a)
NUMBER_REDUCE(reduce_prod, 1, 1, 1, v, b * v, a)

#define LARGER (v > b ? v : v != v ? v : b)       /* NaN is kept */
#define SMALLER (v < b ? v : v != v ? v : b)
FLOAT_EXTREME(reduce_max, -__builtin_inf(), LARGER, >) NUMBER_KERNEL(reduce_max, INT64_MIN, INT32_MIN, v, LARGER, a)
FLOAT_EXTREME(reduce_min, __builtin_inf(), SMALLER, <) NUMBER_KERNEL(reduce_min, INT64_MAX, INT32_MAX, v, SMALLER, a)
#endif
