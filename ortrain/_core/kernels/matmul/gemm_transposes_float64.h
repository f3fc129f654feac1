/* Transposes of float64 GEMMs: rows of an operand to the columns of a panel, and tiles of C to columns of it, in squares of LANES x LANES elements. */
#ifndef ORTRAIN_GEMM_TRANSPOSES_FLOAT64_H
#define ORTRAIN_GEMM_TRANSPOSES_FLOAT64_H
#include <string.h>
#include "common/integers.h"
#include "matmul/gemm_micro_kernels.h"

/* Transpose r [LANES, LANES] in registers. */
static inline __attribute__((always_inline)) void transpose_square(vector *r)
{
#if LANES == 4                  /* within 128-bit lanes, then across: two instructions fewer for each vector than interleaving halves */
    vector q[4] = { SHUFFLE_PAIR(r[0], r[1], (int_vector){0, 4, 2, 6}), SHUFFLE_PAIR(r[0], r[1], (int_vector){1, 5, 3, 7}),
                    SHUFFLE_PAIR(r[2], r[3], (int_vector){0, 4, 2, 6}), SHUFFLE_PAIR(r[2], r[3], (int_vector){1, 5, 3, 7}) };
#pragma GCC unroll 2
    for (int i = 0; i < 2; i++) {
        r[i] = SHUFFLE_PAIR(q[i], q[i + 2], (int_vector){0, 1, 4, 5});
        r[i + 2] = SHUFFLE_PAIR(q[i], q[i + 2], (int_vector){2, 3, 6, 7});
    }
#else
    vector q[LANES];
#pragma GCC unroll 4
    for (int round = LANES; round > 1; round /= 2) {
#pragma GCC unroll 8
        for (int i = 0; i < LANES / 2; i++) {
            q[2 * i] = SHUFFLE_PAIR(r[i], r[i + LANES / 2], INTERLEAVED_LOW);
            q[2 * i + 1] = SHUFFLE_PAIR(r[i], r[i + LANES / 2], INTERLEAVED_HIGH);
        }
#pragma GCC unroll 8
        for (int i = 0; i < LANES; i++) r[i] = q[i];
    }
#endif
}

/* Load `count` <= LANES rows of a square, `step` elements apart; the others are zeros. */
static inline __attribute__((always_inline)) void load_square(vector *r, const double *source, int64_t step, int count)
{
#pragma GCC unroll 8
    for (int i = 0; i < LANES; i++) {
        if (i < count) r[i] = *(const unaligned_vector *)(source + i * step);
        else r[i] = (vector){0};
    }
}

/* panel[p, j] = source[j, p] for p < depth, j < count, in squares; `width`: row stride of the panel. The rest of the depth is copied one by one. */
static inline __attribute__((always_inline)) void pack_square_columns(const double *source, int64_t step, int64_t depth, double *panel, int64_t width, const int count)
{
    int64_t p = 0;
    for (; p + LANES <= depth; p += LANES) {
        vector r[LANES];
        load_square(r, source + p, step, count);
        transpose_square(r);
#pragma GCC unroll 8
        for (int i = 0; i < LANES; i++)
            if (count == LANES) *(unaligned_vector *)(panel + (p + i) * width) = r[i];
            else memcpy(panel + (p + i) * width, &r[i], count * sizeof(double));
    }
    for (; p < depth; p++)
        for (int i = 0; i < count; i++) panel[p * width + i] = source[i * step + p];
}

/* panel[p, j] = source[j, p] for p < depth, j < n, and 0 for n <= j < width; step: row stride of the source */
static __attribute__((noinline)) void transpose_into_panel(const double *source, int64_t step, int64_t n, int64_t depth, double *panel, int64_t width)
{
    int64_t j = 0;
    for (; j + LANES <= n; j += LANES) pack_square_columns(source + j * step, step, depth, panel + j, width, LANES);
    if (LANES >= 4 && n - j == 2) {                     /* of tiles of 6 rows */
        pack_square_columns(source + j * step, step, depth, panel + j, width, 2);
        j = n;
    }
    if (j < width)
        for (int64_t p = 0; p < depth; p++) {
            int64_t i = j;
            for (; i < n; i++) panel[p * width + i] = source[i * step + p];
            for (; i < width; i++) panel[p * width + i] = 0;
        }
}

/* c[j, i] = tile[i, j], or += if `accumulate`, for i < count, j < LANES */
static inline __attribute__((always_inline)) void store_square(const double *tile, int64_t width, double *c, int64_t ldc, int accumulate, const int count)
{
    vector r[LANES];
    load_square(r, tile, width, count);
    transpose_square(r);
#pragma GCC unroll 8
    for (int j = 0; j < LANES; j++) {
        double *target = c + j * ldc;
        if (count < LANES) for (int i = 0; i < count; i++) target[i] = r[j][i] + (accumulate ? target[i] : 0);
        else if (accumulate) *(unaligned_vector *)target += r[j];
        else *(unaligned_vector *)target = r[j];
    }
}

/* c[j, i] = tile[i, j], or += if `accumulate`, for i < rows, j < columns; width: row stride of the tile */
static __attribute__((noinline)) void store_transposed(const double *tile, int64_t width, double *c, int64_t ldc, int64_t rows, int64_t columns, int accumulate)
{
    for (int64_t i = 0, count; i < rows; i += count, tile += count * width, c += count) {
        int64_t j = 0;
        count = min_i64(rows - i, LANES);
        if (count == LANES) for (; j + LANES <= columns; j += LANES) store_square(tile + j, width, c + j * ldc, ldc, accumulate, LANES);
        else if (LANES >= 4 && count == 2) for (; j + LANES <= columns; j += LANES) store_square(tile + j, width, c + j * ldc, ldc, accumulate, 2);
        for (; j < columns; j++)
            for (int64_t a = 0; a < count; a++) c[j * ldc + a] = tile[a * width + j] + (accumulate ? c[j * ldc + a] : 0);
    }
}
#endif
