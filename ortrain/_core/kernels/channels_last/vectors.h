/* Building blocks of the channels-last kernels for one element type: vectors of channels, GEMM tiles and epilogues.
 *
 * A template: included once per type by common/float_types.h. Vectors are GCC vector extensions that may be unaligned. */
#ifndef ORTRAIN_CHANNELS_LAST_VECTORS_H
#define ORTRAIN_CHANNELS_LAST_VECTORS_H
#include <stdint.h>
#include <string.h>
#include "kernel.h"
#include "common/compiler.h"
#include "common/integers.h"
#include "common/tile_columns.h"
#include "common/tuning.h"

#define NOINLINE static __attribute__((noinline, unused))
#define LOAD(p) (*(const NAMED(Vector) *)(p))
#define STORE(p, v) (*(NAMED(Vector) *)(p) = (v))

/* One step of the depth: the tile's sums += a column of a times a row of b, whose last vector starts at LAST. */
#define GEMM_STEP(ROWS, VECTORS, ROW_STEP, DEPTH_STEP, LAST) {                                                                      \
        NAMED(Vector) row[VECTORS];                                                                                                 \
        LOAD_COLUMN(NAMED(Vector), NAMED(WIDTH), ROWS, ROW_STEP, a)                                                                 \
        _Pragma("GCC unroll 3") for (int j = 0; j < VECTORS; j++) row[j] = LOAD(b + (j + 1 < VECTORS ? j * NAMED(WIDTH) : (LAST))); \
        _Pragma("GCC unroll 16") for (int i = 0; i < ROWS; i++) {                                                                   \
            NEXT_ROW_OF_COLUMN(NAMED(Vector), NAMED(WIDTH), a, i)                                                                   \
            NAMED(Vector) element = ELEMENT_OF_COLUMN(NAMED(Vector), NAMED(WIDTH), ROW_STEP, a, i);                                 \
            _Pragma("GCC unroll 3") for (int j = 0; j < VECTORS; j++) NAMED(ADD_PRODUCT)(sum[i][j], element, row[j]);               \
        }                                                                                                                           \
        a += (DEPTH_STEP); b += b_step;                                                                                             \
    }

/* Return n / d if d divides n, else -1. Strides are nearly always 1 or 2, and a division takes longer than the work on a vector. */
static inline int64_t exact_quotient(int64_t n, int64_t d) { return d == 1 ? n : d == 2 ? (n & 1 ? -1 : n >> 1) : n % d ? -1 : n / d; }
#endif

typedef REAL NAMED(Vector) __attribute__((vector_size(VECTOR_BYTES), aligned(sizeof(REAL)), may_alias));
typedef INTEGER NAMED(Mask) __attribute__((vector_size(VECTOR_BYTES), aligned(sizeof(REAL)), may_alias));
enum { NAMED(WIDTH) = VECTOR_BYTES / sizeof(REAL), NAMED(PANEL) = 2 * NAMED(WIDTH) };

/* Return the worker's workspace and set *capacity to its size in elements. */
ALWAYS_INLINE REAL *NAMED(workspace)(const Engine *engine, int64_t worker, int64_t *elements)
{
    *elements = engine->workspace_floats * (int64_t)sizeof(float) / (int64_t)sizeof(REAL);
    return (REAL *)(engine->workspaces + worker * engine->workspace_floats);
}

/* Transpose r [WIDTH, WIDTH] in registers: log2(WIDTH) rounds of shuffles exchange blocks of 1, 2, 4, ... lanes. */
ALWAYS_INLINE void NAMED(transpose)(NAMED(Vector) *r)
{
    _Pragma("GCC unroll 4") for (int s = 1; s < NAMED(WIDTH); s *= 2) {
        NAMED(Mask) low, high;
        _Pragma("GCC unroll 16") for (int l = 0; l < NAMED(WIDTH); l++) {
            low[l] = l & s ? NAMED(WIDTH) + l - s : l;
            high[l] = l & s ? NAMED(WIDTH) + l : l + s;
        }
        _Pragma("GCC unroll 16") for (int i = 0; i < NAMED(WIDTH); i++)
            if (!(i & s)) {
                NAMED(Vector) a = r[i], b = r[i + s];
                r[i] = SHUFFLE_PAIR(a, b, low);
                r[i + s] = SHUFFLE_PAIR(a, b, high);
            }
    }
}

/* `tiles` tiles c [ROWS, VECTORS * WIDTH] = a b (+ c), one below the other, over `depth` steps, of which STEPS are unrolled. Element (i, p) of the first a is
 * first_a[i * ROW_STEP + p * DEPTH_STEP], row p of b is first_b + p * b_step. */
#define GEMM_TILE(NAME, ROWS, VECTORS, ROW_STEP, DEPTH_STEP, STEPS)                                                                              \
NOINLINE void NAME(int64_t tiles, int64_t depth, const REAL *restrict first_a, int64_t a_step, const REAL *restrict first_b, int64_t b_step,     \
                   REAL *restrict c, int64_t ldc, int accumulate)                                                                                \
{                                                                                                                                                \
    for (; tiles > 0; tiles--, first_a += ROWS * (ROW_STEP), c += ROWS * ldc) {                                                                  \
        const REAL *a = first_a, *b = first_b;                                                                                                   \
        NAMED(Vector) sum[ROWS][VECTORS];                                                                                                        \
        int64_t p = 0;                                                                                                                           \
        _Pragma("GCC unroll 16") for (int i = 0; i < ROWS; i++)                                                                                  \
            _Pragma("GCC unroll 2") for (int j = 0; j < VECTORS; j++)                                                                            \
                sum[i][j] = accumulate ? LOAD(c + i * ldc + j * NAMED(WIDTH)) : (NAMED(Vector)){0};                                              \
        for (; p + STEPS <= depth; p += STEPS)                                                                                                   \
            _Pragma("GCC unroll 4") for (int q = 0; q < STEPS; q++) GEMM_STEP(ROWS, VECTORS, ROW_STEP, DEPTH_STEP, (VECTORS - 1) * NAMED(WIDTH)) \
        for (; STEPS > 1 && p < depth; p++) GEMM_STEP(ROWS, VECTORS, ROW_STEP, DEPTH_STEP, (VECTORS - 1) * NAMED(WIDTH))                         \
        _Pragma("GCC unroll 16") for (int i = 0; i < ROWS; i++)                                                                                  \
            _Pragma("GCC unroll 2") for (int j = 0; j < VECTORS; j++) STORE(c + i * ldc + j * NAMED(WIDTH), sum[i][j]);                          \
    }                                                                                                                                            \
}
#define GEMM_TILES(ROWS, STEPS)                                                                                                     \
    GEMM_TILE(NAMED(nn_tile_##ROWS##_1), ROWS, 1, a_step, 1, STEPS) GEMM_TILE(NAMED(nn_tile_##ROWS##_2), ROWS, 2, a_step, 1, STEPS) \
    GEMM_TILE(NAMED(tn_tile_##ROWS##_1), ROWS, 1, 1, a_step, STEPS) GEMM_TILE(NAMED(tn_tile_##ROWS##_2), ROWS, 2, 1, a_step, STEPS)
GEMM_TILES(1, 1) GEMM_TILES(2, 1) GEMM_TILES(4, 1)
#if FULL_ROWS == 12
GEMM_TILES(12, UNROLLED_STEPS)
#else
GEMM_TILES(6, UNROLLED_STEPS)
#endif
#undef GEMM_TILES
#undef GEMM_TILE

/* GEMMs with n columns, a multiple of WIDTH. Panel j of b has PANEL columns and starts at b + j * panel_step; its rows are b_step apart. */
#if FULL_ROWS == 12
#define FULL_TILE(FLAVOUR, VECTORS) NAMED(FLAVOUR##_12_##VECTORS)
#else
#define FULL_TILE(FLAVOUR, VECTORS) NAMED(FLAVOUR##_6_##VECTORS)
#endif
#define TILED_GEMM(NAME, FLAVOUR, ROW_STEP)                                                                                                         \
NOINLINE void NAME(int64_t m, int64_t n, int64_t depth, const REAL *a, int64_t a_step, const REAL *b, int64_t b_step, int64_t panel_step,           \
                   REAL *c, int64_t ldc, int accumulate)                                                                                            \
{                                                                                                                                                   \
    for (int64_t j = 0; j < n; j += NAMED(PANEL), b += panel_step) {                                                                                \
        int64_t i = m / FULL_ROWS * FULL_ROWS, one = n - j < NAMED(PANEL);                                                                          \
        (one ? FULL_TILE(FLAVOUR, 1) : FULL_TILE(FLAVOUR, 2))(i / FULL_ROWS, depth, a, a_step, b, b_step, c + j, ldc, accumulate);                  \
        for (; i + 4 <= m; i += 4)                                                                                                                  \
            (one ? NAMED(FLAVOUR##_4_1) : NAMED(FLAVOUR##_4_2))(1, depth, a + i * (ROW_STEP), a_step, b, b_step, c + i * ldc + j, ldc, accumulate); \
        for (; i + 2 <= m; i += 2)                                                                                                                  \
            (one ? NAMED(FLAVOUR##_2_1) : NAMED(FLAVOUR##_2_2))(1, depth, a + i * (ROW_STEP), a_step, b, b_step, c + i * ldc + j, ldc, accumulate); \
        for (; i < m; i++)                                                                                                                          \
            (one ? NAMED(FLAVOUR##_1_1) : NAMED(FLAVOUR##_1_2))(1, depth, a + i * (ROW_STEP), a_step, b, b_step, c + i * ldc + j, ldc, accumulate); \
    }                                                                                                                                               \
}
TILED_GEMM(NAMED(gemm_nn), nn_tile, a_step)             /* c [m, n] = a [m, depth] b (+ c); rows of a are a_step apart */
TILED_GEMM(NAMED(gemm_tn), tn_tile, 1)          /* c [m, n] = a [depth, m]^T b (+ c) */
#undef TILED_GEMM
#undef FULL_TILE

/* Return a where the mask is set, else b. */
ALWAYS_INLINE NAMED(Vector) NAMED(select)(NAMED(Mask) mask, NAMED(Vector) a, NAMED(Vector) b)
{ return (NAMED(Vector))((mask & (NAMED(Mask))a) | (~mask & (NAMED(Mask))b)); }

/* The epilogue of an output: y = min(max(y * scale + shift, low), high) with scale and shift [channels], which may be NULL; the limits apply if `clamped`. */
typedef struct NAMED(Epilogue) { const REAL *scale, *shift; REAL low, high; int clamped; } NAMED(Epilogue);

/* The epilogue of `count` vectors of the same channels. */
ALWAYS_INLINE void NAMED(apply_epilogue_to)(const NAMED(Epilogue) *f, NAMED(Vector) *v, int count, int64_t channel)
{
    if (f->scale) {
        NAMED(Vector) scale = LOAD(f->scale + channel);
        _Pragma("GCC unroll 4") for (int i = 0; i < count; i++) v[i] *= scale;
    }
    if (f->shift) {
        NAMED(Vector) shift = LOAD(f->shift + channel);
        _Pragma("GCC unroll 4") for (int i = 0; i < count; i++) v[i] += shift;
    }
    if (f->clamped) {
        NAMED(Vector) low = f->low - (NAMED(Vector)){0}, high = f->high - (NAMED(Vector)){0};
        _Pragma("GCC unroll 4") for (int i = 0; i < count; i++) {
            v[i] = NAMED(select)(v[i] < low, low, v[i]);              /* NaN is kept */
            v[i] = NAMED(select)(v[i] > high, high, v[i]);
        }
    }
}
ALWAYS_INLINE NAMED(Vector) NAMED(apply_epilogue)(const NAMED(Epilogue) *f, NAMED(Vector) v, int64_t channel)
{
    NAMED(apply_epilogue_to)(f, &v, 1, channel);
    return v;
}

/* Apply the epilogue to y [rows, channels] in memory. */
NOINLINE void NAMED(epilogue_rows)(const NAMED(Epilogue) *f, REAL *y, int64_t rows, int64_t channels)
{
    if (!f->scale && !f->shift && !f->clamped) return;
    for (int64_t i = 0; i < rows; i++, y += channels) {
        int64_t c = 0;
        for (; c + NAMED(WIDTH) <= channels; c += NAMED(WIDTH)) STORE(y + c, NAMED(apply_epilogue)(f, LOAD(y + c), c));
        for (; c < channels; c++) {
            REAL v = y[c];
            if (f->scale) v *= f->scale[c];
            if (f->shift) v += f->shift[c];
            if (f->clamped) { v = v < f->low ? f->low : v; v = v > f->high ? f->high : v; }
            y[c] = v;
        }
    }
}
