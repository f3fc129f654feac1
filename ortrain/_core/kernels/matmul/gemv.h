/* Matrix multiplications that need neither packing nor blocks: one or a few row vectors times a matrix (GEMV), and the outer product of two vectors.
 *
 * A network trained on single samples computes nothing else. The choice of blocks for the packed GEMM takes 0.2 µs, such a multiplication 0.04 µs or more. Each
 * runs on the calling thread; gemm_parallel.h splits large ones by columns or rows of C. */
#ifndef ORTRAIN_GEMV_H
#define ORTRAIN_GEMV_H
#include <string.h>
#include "matmul/gemm_micro_kernels.h"

enum { ROW_VECTORS = 4 };                           /* vectors of columns at a time: with two accumulators each, they hide the latency of an addition */

/* Return what c[0 .. LANES) becomes: sum (+ c if `accumulate`) (+ bias unless NULL), then ReLU if `relu`. */
static inline __attribute__((always_inline)) vector apply_vector_epilogue(vector sum, int accumulate, const scalar *c, const scalar *bias, int relu)
{
    if (accumulate) sum += *(const unaligned_vector *)c;
    if (bias) sum += *(const unaligned_vector *)bias;
    return relu ? (vector)((int_vector)sum & ~(sum < (vector){0})) : sum;            /* keeps NaN */
}

/* The same epilogue for `count` < LANES sums, stored to c. */
static inline void store_partial_vector(const scalar *sum, int64_t count, int accumulate, scalar *restrict c, const scalar *restrict bias, int relu)
{
    for (int64_t j = 0; j < count; j++) {
        scalar y = sum[j] + (accumulate ? c[j] : 0) + (bias ? bias[j] : 0);
        c[j] = relu && y < 0 ? 0 : y;
    }
}

/* Return the vector whose lane i is the sum of all lanes of sum[i]; overwrites sum [LANES]. */
static inline __attribute__((always_inline)) vector reduce_lanes(vector *sum)
{
#if LANES == 8 && VECTOR_BYTES == 32   /* two rounds within 128-bit lanes, then one across: 21 instructions; the general form takes 35 */
    const int_vector low = {0, 8, 1, 9, 4, 12, 5, 13}, high = {2, 10, 3, 11, 6, 14, 7, 15};
    const int_vector front = {0, 1, 8, 9, 4, 5, 12, 13}, back = {2, 3, 10, 11, 6, 7, 14, 15};
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) sum[i] = SHUFFLE_PAIR(sum[2 * i], sum[2 * i + 1], low) + SHUFFLE_PAIR(sum[2 * i], sum[2 * i + 1], high);
#pragma GCC unroll 2
    for (int i = 0; i < 2; i++) sum[i] = SHUFFLE_PAIR(sum[2 * i], sum[2 * i + 1], front) + SHUFFLE_PAIR(sum[2 * i], sum[2 * i + 1], back);
    return SHUFFLE_PAIR(sum[0], sum[1], (int_vector){0, 1, 2, 3, 8, 9, 10, 11})
         + SHUFFLE_PAIR(sum[0], sum[1], (int_vector){4, 5, 6, 7, 12, 13, 14, 15});
#else
#pragma GCC unroll 4
    for (int half = LANES / 2; half >= 1; half /= 2)
#pragma GCC unroll 8
        for (int i = 0; i < half; i++)
            sum[i] = SHUFFLE_PAIR(sum[i], sum[i + half], INTERLEAVED_LOW) + SHUFFLE_PAIR(sum[i], sum[i + half], INTERLEAVED_HIGH);
    return sum[0];
#endif
}

/* Return the dot products of x [k] with LANES rows: lane i is x . row[i]. k >= LANES. */
static inline __attribute__((always_inline)) vector dot_products(int64_t k, const scalar *restrict x, const scalar *const *row)
{
    static const scalar_bits lanes[32] = {0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,-1,-1,-1,-1,-1,-1,-1,-1,-1,-1,-1,-1,-1,-1,-1,-1};
    vector sum[LANES];
    int64_t p = LANES;
#pragma GCC unroll 16
    for (int i = 0; i < LANES; i++) sum[i] = *(const unaligned_vector *)x * *(const unaligned_vector *)row[i];
    for (; p + LANES <= k; p += LANES) {
        vector y = *(const unaligned_vector *)(x + p);
#pragma GCC unroll 16
        for (int i = 0; i < LANES; i++) sum[i] += y * *(const unaligned_vector *)(row[i] + p);
    }
    if (p < k) {                                    /* the last vector overlaps the one before; its lanes that were already added are masked in both operands */
        int_vector mask;
        memcpy(&mask, lanes + 16 - LANES + (k - p), VECTOR_BYTES);
        vector y = (vector)((int_vector)*(const unaligned_vector *)(x + k - LANES) & mask);
#pragma GCC unroll 16
        for (int i = 0; i < LANES; i++) sum[i] += y * (vector)((int_vector)*(const unaligned_vector *)(row[i] + k - LANES) & mask);
    }
    return reduce_lanes(sum);
}

/* c [n] (+)= x [k] b^T with b [n, k], then bias and ReLU; k >= LANES */
static void gemv_transposed(int64_t n, int64_t k, const scalar *restrict x, const scalar *restrict b, int64_t ldb, int accumulate, scalar *restrict c,
                           const scalar *restrict bias, int relu)
{
    const scalar *row[LANES];
    int64_t j = 0;
    for (; j + LANES <= n; j += LANES, b += LANES * ldb) {
#pragma GCC unroll 16
        for (int i = 0; i < LANES; i++) row[i] = b + i * ldb;
        *(unaligned_vector *)(c + j) = apply_vector_epilogue(dot_products(k, x, row), accumulate, c + j, bias ? bias + j : 0, relu);
    }
    if (j == n) return;
    for (int i = 0; i < LANES; i++) row[i] = b + (j + i < n ? i : n - 1 - j) * ldb;         /* missing rows repeat the last one; their results are not stored */
    vector sum = dot_products(k, x, row);
    store_partial_vector((const scalar *)&sum, n - j, accumulate, c + j, bias ? bias + j : 0, relu);
}

/* Declares even[v] and odd[v], the sums over even and odd p of x[p] b[p, j + v * LANES ..], for VECTORS vectors of columns from j. */
#define ACCUMULATE_COLUMNS(VECTORS)                                                           \
    vector even[VECTORS], odd[VECTORS];                                                       \
    _Pragma("GCC unroll 4") for (int v = 0; v < VECTORS; v++) even[v] = odd[v] = (vector){0}; \
    for (int64_t p = 0; p + 2 <= k; p += 2) {                                                 \
        const scalar *row = b + p * ldb + j;                                                  \
        vector first = x[p] - (vector){0}, second = x[p + 1] - (vector){0};                   \
        _Pragma("GCC unroll 4") for (int v = 0; v < VECTORS; v++) {                           \
            even[v] += first * *(const unaligned_vector *)(row + v * LANES);                  \
            odd[v] += second * *(const unaligned_vector *)(row + ldb + v * LANES);            \
        }                                                                                     \
    }                                                                                         \
    if (k % 2)                                                                                \
        _Pragma("GCC unroll 4") for (int v = 0; v < VECTORS; v++) even[v] += x[k - 1] * *(const unaligned_vector *)(b + (k - 1) * ldb + j + v * LANES);

/* c [n] (+)= x [k] b with b [k, n], then bias and ReLU, in columns of ROW_VECTORS vectors whose sums stay in registers: for few columns */
static void gemv_by_columns(int64_t n, int64_t k, const scalar *restrict x, const scalar *restrict b, int64_t ldb, int accumulate, scalar *restrict c,
                        const scalar *restrict bias, int relu)
{
    int64_t j = 0;
    for (; j + ROW_VECTORS * LANES <= n; j += ROW_VECTORS * LANES) {
        ACCUMULATE_COLUMNS(ROW_VECTORS)
#pragma GCC unroll 4
        for (int v = 0; v < ROW_VECTORS; v++) {
            scalar *to = c + j + v * LANES;
            *(unaligned_vector *)to = apply_vector_epilogue(even[v] + odd[v], accumulate, to, bias ? bias + j + v * LANES : 0, relu);
        }
    }
    for (; j + LANES <= n; j += LANES) {
        ACCUMULATE_COLUMNS(1)
        *(unaligned_vector *)(c + j) = apply_vector_epilogue(even[0] + odd[0], accumulate, c + j, bias ? bias + j : 0, relu);
    }
    if (j < n) {
        scalar sum[LANES] = {0};
        for (int64_t p = 0; p < k; p++)
            for (int64_t i = j; i < n; i++) sum[i - j] += x[p] * b[p * ldb + i];
        store_partial_vector(sum, n - j, accumulate, c + j, bias ? bias + j : 0, relu);
    }
}

/* c [n] (+)= x [GEMV_DEPTH] b with b [GEMV_DEPTH, n], after which bias and ReLU follow if `last`. The next rows of b are prefetched unless `last`. */
static void add_rows(int64_t n, const scalar *restrict x, const scalar *restrict b, int64_t ldb, int accumulate, scalar *restrict c, const scalar *restrict bias,
                     int relu, int last)
{
    const scalar *next = b + (last ? 0 : GEMV_DEPTH * ldb);
    int64_t j = 0;
    for (; j + LANES <= n; j += LANES) {
        vector even = {0}, odd = {0};
#pragma GCC unroll 8
        for (int q = 0; q < GEMV_DEPTH; q += 2) {
            __builtin_prefetch(next + q * ldb + j, 0, 2);
            __builtin_prefetch(next + (q + 1) * ldb + j, 0, 2);
            even += x[q] * *(const unaligned_vector *)(b + q * ldb + j);
            odd += x[q + 1] * *(const unaligned_vector *)(b + (q + 1) * ldb + j);
        }
        *(unaligned_vector *)(c + j) = apply_vector_epilogue(even + odd, accumulate, c + j, last && bias ? bias + j : 0, last && relu);
    }
    if (j == n) return;
    scalar sum[LANES] = {0};
    for (int q = 0; q < GEMV_DEPTH; q++)
        for (int64_t i = j; i < n; i++) sum[i - j] += x[q] * b[q * ldb + i];
    store_partial_vector(sum, n - j, accumulate, c + j, last && bias ? bias + j : 0, last && relu);
}

/* c [m, n] (+)= a [m, k] b with b [k, n], then bias and ReLU: rows of b are read once, in the order of memory, GEMV_DEPTH at a time. */
static void gemv_by_rows(int64_t m, int64_t n, int64_t k, const scalar *restrict a, int64_t lda, const scalar *restrict b, int64_t ldb, int accumulate,
                         scalar *restrict c, int64_t ldc, const scalar *restrict bias, int relu)
{
    int64_t whole = k / GEMV_DEPTH * GEMV_DEPTH;
    for (int64_t p = 0; p < whole; p += GEMV_DEPTH)
        for (int64_t i = 0; i < m; i++)
            add_rows(n, a + i * lda + p, b + p * ldb, ldb, accumulate || p > 0, c + i * ldc, bias, relu, p + GEMV_DEPTH == k);
    if (whole == k) return;
    for (int64_t i = 0; i < m; i++) gemv_by_columns(n, k - whole, a + i * lda + whole, b + whole * ldb, ldb, accumulate || whole > 0, c + i * ldc, bias, relu);
}

static void gemv(int64_t m, int64_t n, int64_t k, const scalar *a, int64_t lda, const scalar *b, int64_t ldb, int accumulate, scalar *c, int64_t ldc,
                 const scalar *bias, int relu)
{
    if (n >= GEMV_COLUMNS) { gemv_by_rows(m, n, k, a, lda, b, ldb, accumulate, c, ldc, bias, relu); return; }
    for (int64_t i = 0; i < m; i++) gemv_by_columns(n, k, a + i * lda, b, ldb, accumulate, c + i * ldc, bias, relu);
}

/* c [m, n] (+)= a [m] b [n]^T: the weight gradient of a dense layer for one sample. a_step: elements between elements of a. Large results are streamed. */
static void outer_product(int64_t m, int64_t n, const scalar *restrict a, int64_t a_step, const scalar *restrict b, int accumulate, scalar *restrict c,
                          int64_t ldc)
{
    int stream = !accumulate && m * n >= OUTER_STREAM_FROM && ldc % LANES == 0 && (uintptr_t)c % VECTOR_BYTES == 0;
    for (int64_t i = 0; i < m; i++, c += ldc) {
        vector factor = a[i * a_step] - (vector){0};
        int64_t j = 0;
        if (stream) for (; j + LANES <= n; j += LANES) stream_vector(c + j, factor * *(const unaligned_vector *)(b + j));
        else if (accumulate) for (; j + LANES <= n; j += LANES) *(unaligned_vector *)(c + j) += factor * *(const unaligned_vector *)(b + j);
        else for (; j + LANES <= n; j += LANES) *(unaligned_vector *)(c + j) = factor * *(const unaligned_vector *)(b + j);
        for (; j < n; j++) c[j] = a[i * a_step] * b[j] + (accumulate ? c[j] : 0);
    }
    if (stream) end_stream();
}

/* Return whether A is one contiguous row, with a depth that dot_products accepts where it would be called, or few rows that gemv_by_rows
 * multiplies. */
static inline int is_gemv(int transposed_a, int transposed_b, int64_t m, int64_t n, int64_t k, int64_t lda)
{
    if (m == 1) return (!transposed_a || lda == 1) && (!transposed_b || k >= LANES);
    return m <= GEMV_ROWS && n >= GEMV_COLUMNS && !transposed_a && !transposed_b;
}

/* Return whether the depth is 1 and there is no epilogue. */
static inline int is_outer_product(int transposed_b, int64_t k, int64_t ldb, const scalar *bias, int relu)
{ return k == 1 && !bias && !relu && (!transposed_b || ldb == 1); }

/* Compute c [m, n] = op(a) op(b) (+ c if `accumulate`), then bias [n] and ReLU, where it is a GEMV or an outer product. Returns 1 if it was, else 0 and c is
 * unchanged. */
static inline int gemv_or_outer_product(int transposed_a, int transposed_b, int64_t m, int64_t n, int64_t k, const scalar *a, int64_t lda, const scalar *b,
                               int64_t ldb, int accumulate, scalar *c, int64_t ldc, const scalar *bias, int relu)
{
    if (is_outer_product(transposed_b, k, ldb, bias, relu)) outer_product(m, n, a, transposed_a ? 1 : lda, b, accumulate, c, ldc);
    else if (!is_gemv(transposed_a, transposed_b, m, n, k, lda)) return 0;
    else if (transposed_b) gemv_transposed(n, k, a, b, ldb, accumulate, c, bias, relu);
    else gemv(m, n, k, a, lda, b, ldb, accumulate, c, ldc, bias, relu);
    return 1;
}
#endif
