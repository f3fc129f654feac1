/* Transposes of float32 GEMMs: rows of an operand to the columns of a panel, and tiles of C to columns of it. gemm_transposes_float64.h has the same two
 * functions for float64. */
#ifndef ORTRAIN_GEMM_TRANSPOSES_FLOAT32_H
#define ORTRAIN_GEMM_TRANSPOSES_FLOAT32_H
#include <string.h>
#include "matmul/gemm_micro_kernels.h"

#if VECTOR_BYTES == 64
#define SQUARE 16
typedef vector square_vector; typedef unaligned_vector unaligned_square_vector;
#define SQUARE_LOW INTERLEAVED_LOW
#define SQUARE_HIGH INTERLEAVED_HIGH
#else
#define SQUARE 4
typedef float square_vector __attribute__((vector_size(16)));
typedef float unaligned_square_vector __attribute__((vector_size(16), aligned(4), may_alias));
typedef int32_t square_index __attribute__((vector_size(16)));
#define SQUARE_LOW (square_index){0,4,1,5}
#define SQUARE_HIGH (square_index){2,6,3,7}
#endif

/* target = source^T, SQUARE x SQUARE, in log2(SQUARE) rounds that interleave the first half of the rows with the second */
static inline __attribute__((always_inline)) void transpose_square(const float *source, int64_t source_step, float *target, int64_t target_step)
{
    square_vector r[SQUARE], q[SQUARE];
#pragma GCC unroll 16
    for (int i = 0; i < SQUARE; i++) r[i] = *(const unaligned_square_vector *)(source + i * source_step);
#pragma GCC unroll 4
    for (int round = SQUARE; round > 1; round /= 2) {
#pragma GCC unroll 16
        for (int i = 0; i < SQUARE / 2; i++) {
            q[2 * i] = SHUFFLE_PAIR(r[i], r[i + SQUARE / 2], SQUARE_LOW);
            q[2 * i + 1] = SHUFFLE_PAIR(r[i], r[i + SQUARE / 2], SQUARE_HIGH);
        }
#pragma GCC unroll 16
        for (int i = 0; i < SQUARE; i++) r[i] = q[i];
    }
#pragma GCC unroll 16
    for (int i = 0; i < SQUARE; i++) *(unaligned_square_vector *)(target + i * target_step) = r[i];
}

typedef float float32x8 __attribute__((vector_size(32)));
typedef float unaligned_float32x8 __attribute__((vector_size(32), aligned(4), may_alias));
typedef int32_t int32x8 __attribute__((vector_size(32)));

/* Transpose r [8, 8] in registers: 32-bit unpack within 128-bit lanes, 64-bit unpack within lanes, exchange of lanes. */
static inline __attribute__((always_inline)) void transpose_8x8(float32x8 *r)
{
    float32x8 q[8];
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        q[2 * i] = SHUFFLE_PAIR(r[2 * i], r[2 * i + 1], (int32x8){0, 8, 1, 9, 4, 12, 5, 13});
        q[2 * i + 1] = SHUFFLE_PAIR(r[2 * i], r[2 * i + 1], (int32x8){2, 10, 3, 11, 6, 14, 7, 15});
    }
    float32x8 u[8];
#pragma GCC unroll 2
    for (int h = 0; h < 2; h++)
#pragma GCC unroll 2
        for (int i = 0; i < 2; i++) {
            u[4 * h + 2 * i] = SHUFFLE_PAIR(q[4 * h + i], q[4 * h + i + 2], (int32x8){0, 1, 8, 9, 4, 5, 12, 13});
            u[4 * h + 2 * i + 1] = SHUFFLE_PAIR(q[4 * h + i], q[4 * h + i + 2], (int32x8){2, 3, 10, 11, 6, 7, 14, 15});
        }
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        r[i] = SHUFFLE_PAIR(u[i], u[i + 4], (int32x8){0, 1, 2, 3, 8, 9, 10, 11});
        r[i + 4] = SHUFFLE_PAIR(u[i], u[i + 4], (int32x8){4, 5, 6, 7, 12, 13, 14, 15});
    }
}

/* Transpose 8 rows of the source into 8 columns of a panel of this width. Returns the depth that was packed: `depth` rounded down to a multiple of 8. */
static __attribute__((noinline, unused)) int64_t pack_transposed_8_rows(const float *source, int64_t step, int64_t depth, float *panel, int64_t width)
{
    int64_t p = 0;
    for (; p + 8 <= depth; p += 8) {
        float32x8 r[8];
#pragma GCC unroll 8
        for (int i = 0; i < 8; i++) r[i] = *(const unaligned_float32x8 *)(source + i * step + p);
        transpose_8x8(r);
#pragma GCC unroll 8
        for (int i = 0; i < 8; i++) *(unaligned_float32x8 *)(panel + (p + i) * width) = r[i];
    }
    return p;
}

/* c[j, i] = tile[i, j], or += if `accumulate`, for i < rows, j < columns; width: row stride of the tile */
static __attribute__((noinline, unused)) void store_transposed(const float *tile, int64_t width, float *c, int64_t ldc, int64_t rows, int64_t columns,
                                                       int accumulate)
{
    if (rows == 8) {
        for (int64_t j = 0; j + 8 <= columns; j += 8) {
            float32x8 r[8];
#pragma GCC unroll 8
            for (int i = 0; i < 8; i++) r[i] = *(const unaligned_float32x8 *)(tile + i * width + j);
            transpose_8x8(r);
#pragma GCC unroll 8
            for (int i = 0; i < 8; i++) {
                unaligned_float32x8 *target = (unaligned_float32x8 *)(c + (j + i) * ldc);
                if (accumulate) *target += r[i]; else *target = r[i];
            }
        }
        int64_t done = columns / 8 * 8;
        tile += done; c += done * ldc; columns -= done;
    }
#if TILE_ROWS == 6 && VECTOR_BYTES == 32
    for (; rows == 6 && columns >= 8; columns -= 8, tile += 8, c += 8 * ldc) {
        float32x8 r[8];
#pragma GCC unroll 8
        for (int i = 0; i < 6; i++) r[i] = *(const unaligned_float32x8 *)(tile + i * width);
        r[6] = r[7] = (float32x8){0};
        transpose_8x8(r);
#pragma GCC unroll 8
        for (int i = 0; i < 8; i++) {                   /* a row of c takes 6 of the 8 elements */
            float *target = c + i * ldc, line[8];
            *(unaligned_float32x8 *)line = r[i];
            if (accumulate) for (int x = 0; x < 6; x++) target[x] += line[x];
            else memcpy(target, line, 6 * sizeof(float));
        }
    }
#endif
    for (int64_t j = 0; j < columns; j++)
        for (int64_t i = 0; i < rows; i++) c[j * ldc + i] = tile[i * width + j] + (accumulate ? c[j * ldc + i] : 0.0f);
}

#if TILE_ROWS < 8 && VECTOR_BYTES == 32
/* Transpose fewer than 8 rows of the source into a panel of width `rows`. It stores vectors of 8 whose surplus elements the next store overwrites; therefore
 * the last steps of the depth are left to the caller. Returns the depth that was packed. */
static inline __attribute__((always_inline)) int64_t pack_transposed_tile(const float *source, int64_t step, int64_t depth, float *panel, const int rows)
{
    int64_t p = 0;
    for (; p + 8 < depth; p += 8) {
        float32x8 r[8];
#pragma GCC unroll 8
        for (int i = 0; i < rows; i++) r[i] = *(const unaligned_float32x8 *)(source + i * step + p);
        for (int i = rows; i < 8; i++) r[i] = (float32x8){0};
        transpose_8x8(r);
#pragma GCC unroll 8
        for (int i = 0; i < 8; i++) *(unaligned_float32x8 *)(panel + (p + i) * rows) = r[i];
    }
    return p;
}
#endif

/* panel[p, j] = source[j, p] for p < depth, j < n, and 0 for n <= j < width; step: row stride of the source */
static __attribute__((noinline)) void transpose_into_panel(const float *source, int64_t step, int64_t n, int64_t depth, float *panel, int64_t width)
{
    int64_t j = 0;
#if TILE_ROWS < 8 && VECTOR_BYTES == 32
    if (n == width && (n == TILE_ROWS || n == TILE_ROWS - 1)) {
        int64_t p = n == TILE_ROWS ? pack_transposed_tile(source, step, depth, panel, TILE_ROWS)
                                   : pack_transposed_tile(source, step, depth, panel, TILE_ROWS - 1);
        for (; p < depth; p++)
            for (int64_t i = 0; i < n; i++) panel[p * n + i] = source[i * step + p];
        return;
    }
#endif
#if SQUARE > 8
    for (; j + SQUARE <= n; j += SQUARE) {
        int64_t p = 0;
        for (; p + SQUARE <= depth; p += SQUARE) transpose_square(source + j * step + p, step, panel + p * width + j, width);
        for (; p < depth; p++)
            for (int i = 0; i < SQUARE; i++) panel[p * width + j + i] = source[(j + i) * step + p];
    }
#endif
#if VECTOR_BYTES >= 32
    for (; j + 8 <= n; j += 8)
        for (int64_t p = pack_transposed_8_rows(source + j * step, step, depth, panel + j, width); p < depth; p++)
            for (int i = 0; i < 8; i++) panel[p * width + j + i] = source[(j + i) * step + p];
#endif
    for (; SQUARE == 4 && j + 4 <= n; j += 4) {
        int64_t p = 0;
        for (; p + 4 <= depth; p += 4) transpose_square(source + j * step + p, step, panel + p * width + j, width);
        for (; p < depth; p++)
            for (int i = 0; i < 4; i++) panel[p * width + j + i] = source[(j + i) * step + p];
    }
    if (j < width)
        for (int64_t p = 0; p < depth; p++) {
            int64_t i = j;
            for (; i < n; i++) panel[p * width + i] = source[i * step + p];
            for (; i < width; i++) panel[p * width + i] = 0;
        }
}
#endif
