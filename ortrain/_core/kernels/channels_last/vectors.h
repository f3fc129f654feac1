/* What channels-last kernels are made of, for one element type: vectors along channels and the tiles of their products.
 *
 * A template: included once per type with REAL, INTEGER (of its size) and NAMED(x) defined (channels_last.h). GCC vector extensions; a vector may lie at any element. */
#ifndef CHANNELS_LAST_COMMON
#define CHANNELS_LAST_COMMON
#include <stdint.h>
#include <string.h>
#include "kernel.h"
#include "common/tuning.h"

#define INLINED static inline __attribute__((always_inline))
#define APART static __attribute__((noinline, unused))
#define LOAD(p) (*(const NAMED(Channels) *)(p))
#define STORE(p, v) (*(NAMED(Channels) *)(p) = (v))

static inline int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }
static inline int64_t blocks_of(int64_t n, int64_t size) { return (n + size - 1) / size; }
/* n / by where by divides n, else -1; strides are 1 or 2 nearly always, and a division takes longer than a vector's work */
static inline int64_t exact_quotient(int64_t n, int64_t by) { return by == 1 ? n : by == 2 ? (n & 1 ? -1 : n >> 1) : n % by ? -1 : n / by; }
#endif

typedef REAL NAMED(Channels) __attribute__((vector_size(VECTOR_BYTES), aligned(sizeof(REAL)), may_alias));
typedef INTEGER NAMED(Mask) __attribute__((vector_size(VECTOR_BYTES), aligned(sizeof(REAL)), may_alias));
enum { NAMED(WIDTH) = VECTOR_BYTES / sizeof(REAL), NAMED(PANEL) = 2 * NAMED(WIDTH) };

/* this worker's own memory: `elements` says how much */
INLINED REAL *NAMED(workspace)(const Engine *engine, int64_t worker, int64_t *elements)
{
    *elements = engine->workspace_floats * (int64_t)sizeof(float) / (int64_t)sizeof(REAL);
    return (REAL *)(engine->workspaces + worker * engine->workspace_floats);
}

/* r transposed, WIDTH x WIDTH, in registers: blocks of 1, 2, 4 … lanes change places */
INLINED void NAMED(transpose)(NAMED(Channels) *r)
{
    _Pragma("GCC unroll 4") for (int s = 1; s < NAMED(WIDTH); s *= 2) {
        NAMED(Mask) low, high;
        _Pragma("GCC unroll 16") for (int l = 0; l < NAMED(WIDTH); l++) {
            low[l] = l & s ? NAMED(WIDTH) + l - s : l;
            high[l] = l & s ? NAMED(WIDTH) + l : l + s;
        }
        _Pragma("GCC unroll 16") for (int i = 0; i < NAMED(WIDTH); i++)
            if (!(i & s)) {
                NAMED(Channels) a = r[i], b = r[i + s];
                r[i] = __builtin_shuffle(a, b, low);
                r[i + s] = __builtin_shuffle(a, b, high);
            }
    }
}

/* c [ROWS, VECTORS * WIDTH] = a b (+ c), `depth` deep. Element (i, p) of a is a[i * ROW_STEP + p * DEPTH_STEP], row p of b is b + p * b_step. */
#define PRODUCT_TILE(NAME, ROWS, VECTORS, ROW_STEP, DEPTH_STEP)                                                                          \
APART void NAME(int64_t depth, const REAL *restrict a, int64_t a_step, const REAL *restrict b, int64_t b_step, REAL *restrict c, int64_t ldc, int accumulate) \
{                                                                                                                                       \
    NAMED(Channels) sum[ROWS][VECTORS];                                                                                                 \
    _Pragma("GCC unroll 16") for (int i = 0; i < ROWS; i++)                                                                             \
        _Pragma("GCC unroll 2") for (int j = 0; j < VECTORS; j++)                                                                       \
            sum[i][j] = accumulate ? LOAD(c + i * ldc + j * NAMED(WIDTH)) : (NAMED(Channels)){0};                                       \
    for (int64_t p = 0; p < depth; p++) {                                                                                               \
        NAMED(Channels) row[VECTORS];                                                                                                   \
        _Pragma("GCC unroll 2") for (int j = 0; j < VECTORS; j++) row[j] = LOAD(b + j * NAMED(WIDTH));                                  \
        _Pragma("GCC unroll 16") for (int i = 0; i < ROWS; i++) {                                                                       \
            NAMED(Channels) element = a[i * (ROW_STEP)] - (NAMED(Channels)){0};                                                         \
            _Pragma("GCC unroll 2") for (int j = 0; j < VECTORS; j++) sum[i][j] += element * row[j];                                    \
        }                                                                                                                               \
        a += (DEPTH_STEP); b += b_step;                                                                                                 \
    }                                                                                                                                   \
    _Pragma("GCC unroll 16") for (int i = 0; i < ROWS; i++)                                                                             \
        _Pragma("GCC unroll 2") for (int j = 0; j < VECTORS; j++) STORE(c + i * ldc + j * NAMED(WIDTH), sum[i][j]);                     \
}
#define PRODUCT_TILES(ROWS)                                                                                                             \
    PRODUCT_TILE(NAMED(plain_##ROWS##_1), ROWS, 1, a_step, 1) PRODUCT_TILE(NAMED(plain_##ROWS##_2), ROWS, 2, a_step, 1)                 \
    PRODUCT_TILE(NAMED(turned_##ROWS##_1), ROWS, 1, 1, a_step) PRODUCT_TILE(NAMED(turned_##ROWS##_2), ROWS, 2, 1, a_step)
PRODUCT_TILES(1) PRODUCT_TILES(2) PRODUCT_TILES(4)
#if FULL_ROWS == 12
PRODUCT_TILES(12)
#else
PRODUCT_TILES(6)
#endif
#undef PRODUCT_TILES
#undef PRODUCT_TILE

/* The products below have n columns, a multiple of WIDTH. Panel j of b holds PANEL columns, rows b_step apart, and starts at b + j * panel_step. */
#if FULL_ROWS == 12
#define FULL_TILE(FLAVOUR, VECTORS) NAMED(FLAVOUR##_12_##VECTORS)
#else
#define FULL_TILE(FLAVOUR, VECTORS) NAMED(FLAVOUR##_6_##VECTORS)
#endif
#define TILED_PRODUCT(NAME, FLAVOUR, ROW_STEP)                                                                                          \
APART void NAME(int64_t m, int64_t n, int64_t depth, const REAL *a, int64_t a_step, const REAL *b, int64_t b_step, int64_t panel_step,   \
                REAL *c, int64_t ldc, int accumulate)                                                                                   \
{                                                                                                                                       \
    for (int64_t j = 0; j < n; j += NAMED(PANEL), b += panel_step) {                                                                    \
        int64_t i = 0, one = n - j < NAMED(PANEL);                                                                                      \
        for (; i + FULL_ROWS <= m; i += FULL_ROWS)                                                                                      \
            (one ? FULL_TILE(FLAVOUR, 1) : FULL_TILE(FLAVOUR, 2))(depth, a + i * (ROW_STEP), a_step, b, b_step, c + i * ldc + j, ldc, accumulate); \
        for (; i + 4 <= m; i += 4)                                                                                                      \
            (one ? NAMED(FLAVOUR##_4_1) : NAMED(FLAVOUR##_4_2))(depth, a + i * (ROW_STEP), a_step, b, b_step, c + i * ldc + j, ldc, accumulate); \
        for (; i + 2 <= m; i += 2)                                                                                                      \
            (one ? NAMED(FLAVOUR##_2_1) : NAMED(FLAVOUR##_2_2))(depth, a + i * (ROW_STEP), a_step, b, b_step, c + i * ldc + j, ldc, accumulate); \
        for (; i < m; i++)                                                                                                              \
            (one ? NAMED(FLAVOUR##_1_1) : NAMED(FLAVOUR##_1_2))(depth, a + i * (ROW_STEP), a_step, b, b_step, c + i * ldc + j, ldc, accumulate); \
    }                                                                                                                                   \
}
TILED_PRODUCT(NAMED(product), plain, a_step)             /* c [m, n] = a [m, depth] b (+ c), rows of a a_step apart */
TILED_PRODUCT(NAMED(turned_product), turned, 1)          /* c [m, n] = a [depth, m]^T b (+ c) */
#undef TILED_PRODUCT
#undef FULL_TILE

/* where mask: a, else b */
INLINED NAMED(Channels) NAMED(select)(NAMED(Mask) mask, NAMED(Channels) a, NAMED(Channels) b)
{ return (NAMED(Channels))((mask & (NAMED(Mask))a) | (~mask & (NAMED(Mask))b)); }

/* What happens to a finished output: y = min(max(y * scale + shift, low), high), per channel. scale and shift may be NULL. */
typedef struct NAMED(Finish) { const REAL *scale, *shift; REAL low, high; int limited; } NAMED(Finish);

INLINED NAMED(Channels) NAMED(finished)(const NAMED(Finish) *f, NAMED(Channels) v, int64_t channel)
{
    if (f->scale) v *= LOAD(f->scale + channel);
    if (f->shift) v += LOAD(f->shift + channel);
    if (f->limited) {
        NAMED(Channels) low = f->low - (NAMED(Channels)){0}, high = f->high - (NAMED(Channels)){0};
        v = NAMED(select)(v < low, low, v);              /* NaN stays */
        v = NAMED(select)(v > high, high, v);
    }
    return v;
}

/* the outputs of `rows` pixels */
APART void NAMED(finish_rows)(const NAMED(Finish) *f, REAL *y, int64_t rows, int64_t channels)
{
    if (!f->scale && !f->shift && !f->limited) return;
    for (int64_t i = 0; i < rows; i++, y += channels) {
        int64_t c = 0;
        for (; c + NAMED(WIDTH) <= channels; c += NAMED(WIDTH)) STORE(y + c, NAMED(finished)(f, LOAD(y + c), c));
        for (; c < channels; c++) {
            REAL v = y[c];
            if (f->scale) v *= f->scale[c];
            if (f->shift) v += f->shift[c];
            if (f->limited) { v = v < f->low ? f->low : v; v = v > f->high ? f->high : v; }
            y[c] = v;
        }
    }
}
