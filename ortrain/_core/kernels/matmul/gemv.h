/* Products of one row, or of depth 1, which need no packing and no blocks: a network trained on one sample has nothing
 * else. Between them and the blocked product lay 0.2 µs of choosing for 0.04 µs of work. */
#ifndef ORTRAIN_THIN_PRODUCTS_H
#define ORTRAIN_THIN_PRODUCTS_H
#include <string.h>
#include "matmul/gemm_micro_kernels.h"

enum { ROW_VECTORS = 4 };                           /* of a row's columns at a time: with two chains of sums each, enough to hide an addition's latency */

/* what c[0 .. LANES) becomes */
static inline __attribute__((always_inline)) vector finished(vector sum, int accumulate, const float *c, const float *bias, int relu)
{
    if (accumulate) sum += *(const loose_vector *)c;
    if (bias) sum += *(const loose_vector *)bias;
    return relu ? (vector)((int_vector)sum & ~(sum < (vector){0})) : sum;            /* NaN stays */
}

/* the same for `count` sums that are no whole vector */
static inline void finish_some(const float *sum, int64_t count, int accumulate, float *restrict c, const float *restrict bias, int relu)
{
    for (int64_t j = 0; j < count; j++) {
        float y = sum[j] + (accumulate ? c[j] : 0.0f) + (bias ? bias[j] : 0.0f);
        c[j] = relu && y < 0 ? 0.0f : y;
    }
}

/* lane i: the sum of the lanes of sum[i] */
static inline __attribute__((always_inline)) vector sums_of_lanes(vector *sum)
{
#if VECTOR_BYTES == 32              /* two shuffles within halves, then one across: 21 instructions where interleaving takes 35 */
    const int_vector low = {0, 8, 1, 9, 4, 12, 5, 13}, high = {2, 10, 3, 11, 6, 14, 7, 15};
    const int_vector front = {0, 1, 8, 9, 4, 5, 12, 13}, back = {2, 3, 10, 11, 6, 7, 14, 15};
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) sum[i] = __builtin_shuffle(sum[2 * i], sum[2 * i + 1], low) + __builtin_shuffle(sum[2 * i], sum[2 * i + 1], high);
#pragma GCC unroll 2
    for (int i = 0; i < 2; i++) sum[i] = __builtin_shuffle(sum[2 * i], sum[2 * i + 1], front) + __builtin_shuffle(sum[2 * i], sum[2 * i + 1], back);
    return __builtin_shuffle(sum[0], sum[1], (int_vector){0, 1, 2, 3, 8, 9, 10, 11}) + __builtin_shuffle(sum[0], sum[1], (int_vector){4, 5, 6, 7, 12, 13, 14, 15});
#else
#if VECTOR_BYTES == 64
    const int_vector low = {0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23}, high = {8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
#else
    const int_vector low = {0, 4, 1, 5}, high = {2, 6, 3, 7};
#endif
#pragma GCC unroll 4
    for (int half = LANES / 2; half >= 1; half /= 2)
#pragma GCC unroll 8
        for (int i = 0; i < half; i++) sum[i] = __builtin_shuffle(sum[i], sum[i + half], low) + __builtin_shuffle(sum[i], sum[i + half], high);
    return sum[0];
#endif
}

/* lane i: x [k] times row[i] [k]; k >= LANES */
static inline __attribute__((always_inline)) vector dots_of(int64_t k, const float *restrict x, const float *const *row)
{
    static const int32_t lanes[32] = {0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,-1,-1,-1,-1,-1,-1,-1,-1,-1,-1,-1,-1,-1,-1,-1,-1};
    vector sum[LANES];
    int64_t p = LANES;
#pragma GCC unroll 16
    for (int i = 0; i < LANES; i++) sum[i] = *(const loose_vector *)x * *(const loose_vector *)row[i];
    for (; p + LANES <= k; p += LANES) {
        vector y = *(const loose_vector *)(x + p);
#pragma GCC unroll 16
        for (int i = 0; i < LANES; i++) sum[i] += y * *(const loose_vector *)(row[i] + p);
    }
    if (p < k) {                                    /* the last vector overlaps; lanes already counted are masked on both sides */
        int_vector mask;
        memcpy(&mask, lanes + 16 - LANES + (k - p), VECTOR_BYTES);
        vector y = (vector)((int_vector)*(const loose_vector *)(x + k - LANES) & mask);
#pragma GCC unroll 16
        for (int i = 0; i < LANES; i++) sum[i] += y * (vector)((int_vector)*(const loose_vector *)(row[i] + k - LANES) & mask);
    }
    return sums_of_lanes(sum);
}

/* c [n] = x [k] b^T, b [n, k]; k >= LANES */
static void row_by_columns(int64_t n, int64_t k, const float *restrict x, const float *restrict b, int64_t ldb, int accumulate, float *restrict c,
                           const float *restrict bias, int relu)
{
    const float *row[LANES];
    int64_t j = 0;
    for (; j + LANES <= n; j += LANES, b += LANES * ldb) {
#pragma GCC unroll 16
        for (int i = 0; i < LANES; i++) row[i] = b + i * ldb;
        *(loose_vector *)(c + j) = finished(dots_of(k, x, row), accumulate, c + j, bias ? bias + j : 0, relu);
    }
    if (j == n) return;
    for (int i = 0; i < LANES; i++) row[i] = b + (j + i < n ? i : n - 1 - j) * ldb;         /* those beyond the end are the last again */
    vector sum = dots_of(k, x, row);
    finish_some((const float *)&sum, n - j, accumulate, c + j, bias ? bias + j : 0, relu);
}

/* VECTORS vectors of x [k] b [k, ..] in two chains each: even and odd depths */
#define COLUMNS_OF_ROW(VECTORS)                                                                                                         \
    vector even[VECTORS], odd[VECTORS];                                                                                                 \
    _Pragma("GCC unroll 4") for (int v = 0; v < VECTORS; v++) even[v] = odd[v] = (vector){0};                                           \
    for (int64_t p = 0; p + 2 <= k; p += 2) {                                                                                           \
        const float *row = b + p * ldb + j;                                                                                             \
        vector first = x[p] - (vector){0}, second = x[p + 1] - (vector){0};                                                             \
        _Pragma("GCC unroll 4") for (int v = 0; v < VECTORS; v++) {                                                                     \
            even[v] += first * *(const loose_vector *)(row + v * LANES);                                                                \
            odd[v] += second * *(const loose_vector *)(row + ldb + v * LANES);                                                          \
        }                                                                                                                               \
    }                                                                                                                                   \
    if (k % 2)                                                                                                                          \
        _Pragma("GCC unroll 4") for (int v = 0; v < VECTORS; v++) even[v] += x[k - 1] * *(const loose_vector *)(b + (k - 1) * ldb + j + v * LANES);

/* c [n] = x [k] b, b [k, n] */
static void row_by_rows(int64_t n, int64_t k, const float *restrict x, const float *restrict b, int64_t ldb, int accumulate, float *restrict c,
                        const float *restrict bias, int relu)
{
    int64_t j = 0;
    for (; j + ROW_VECTORS * LANES <= n; j += ROW_VECTORS * LANES) {
        COLUMNS_OF_ROW(ROW_VECTORS)
#pragma GCC unroll 4
        for (int v = 0; v < ROW_VECTORS; v++) {
            float *to = c + j + v * LANES;
            *(loose_vector *)to = finished(even[v] + odd[v], accumulate, to, bias ? bias + j + v * LANES : 0, relu);
        }
    }
    for (; j + LANES <= n; j += LANES) {
        COLUMNS_OF_ROW(1)
        *(loose_vector *)(c + j) = finished(even[0] + odd[0], accumulate, c + j, bias ? bias + j : 0, relu);
    }
    if (j < n) {
        float sum[LANES] = {0};
        for (int64_t p = 0; p < k; p++)
            for (int64_t i = j; i < n; i++) sum[i - j] += x[p] * b[p * ldb + i];
        finish_some(sum, n - j, accumulate, c + j, bias ? bias + j : 0, relu);
    }
}

/* VECTORS vectors of columns of a b^T, all rows */
#define OUTER_COLUMNS(VECTORS)                                                                                                          \
    vector y[VECTORS]; float *to = c + j;                                                                                               \
    _Pragma("GCC unroll 4") for (int v = 0; v < VECTORS; v++) y[v] = *(const loose_vector *)(b + j + v * LANES);                        \
    for (int64_t i = 0; i < m; i++, to += ldc) {                                                                                        \
        vector factor = a[i * a_step] - (vector){0};                                                                                    \
        _Pragma("GCC unroll 4") for (int v = 0; v < VECTORS; v++) {                                                                     \
            vector product = factor * y[v];                                                                                             \
            if (accumulate) product += *(const loose_vector *)(to + v * LANES);                                                         \
            *(loose_vector *)(to + v * LANES) = product;                                                                                \
        }                                                                                                                               \
    }

/* c [m, n] = a [m] b [n]^T: the gradient of a dense layer's weights from one sample */
static void outer_product(int64_t m, int64_t n, const float *restrict a, int64_t a_step, const float *restrict b, int accumulate, float *restrict c, int64_t ldc)
{
    int64_t j = 0;
    for (; j + ROW_VECTORS * LANES <= n; j += ROW_VECTORS * LANES) { OUTER_COLUMNS(ROW_VECTORS) }
    if (j + 2 * LANES <= n) { OUTER_COLUMNS(2) j += 2 * LANES; }
    if (j + LANES <= n) { OUTER_COLUMNS(1) j += LANES; }
    if (j == n) return;
    for (int64_t i = 0; i < m; i++)
        for (int64_t x = j; x < n; x++) c[i * ldc + x] = a[i * a_step] * b[x] + (accumulate ? c[i * ldc + x] : 0.0f);
}

static inline int is_one_row(int transposed_a, int transposed_b, int64_t m, int64_t k, int64_t lda)
{ return m == 1 && (!transposed_a || lda == 1) && (!transposed_b || k >= LANES); }

static inline int is_outer_product(int transposed_b, int64_t k, int64_t ldb, const float *bias, int relu)
{ return k == 1 && !bias && !relu && (!transposed_b || ldb == 1); }

/* c [m, n] = op(a) op(b) (+ c where accumulate), then bias [n] and ReLU, if the product is one of these; tells whether it was */
static inline int thin_product(int transposed_a, int transposed_b, int64_t m, int64_t n, int64_t k, const float *a, int64_t lda, const float *b,
                               int64_t ldb, int accumulate, float *c, int64_t ldc, const float *bias, int relu)
{
    if (is_outer_product(transposed_b, k, ldb, bias, relu)) outer_product(m, n, a, transposed_a ? 1 : lda, b, accumulate, c, ldc);
    else if (!is_one_row(transposed_a, transposed_b, m, k, lda)) return 0;
    else if (transposed_b) row_by_columns(n, k, a, b, ldb, accumulate, c, bias, relu);
    else row_by_rows(n, k, a, b, ldb, accumulate, c, bias, relu);
    return 1;
}
#endif
