/* Micro kernels of the packed product: one tile of the result, held in registers while the depth runs.
 *
 * GCC vector extensions only: every tile loop is unrolled, so the compiler keeps the whole tile in registers. The predefined macros of the instruction
 * set choose vector width, tile and blocks; all sizes measured (GFLOP/s on one core, of 272 possible with 64-byte vectors):
 * tiles 8x48, 12x32, 14x32 within 3 %, and 8 rows make the transposing store exact; 6x16 best with 32-byte vectors; a depth of 512 beats 384 and 256 by
 * 3 to 10 % with 64-byte vectors. */
#ifndef ORTRAIN_PRODUCT_TILES_H
#define ORTRAIN_PRODUCT_TILES_H
#include <stdint.h>
#include "common/tuning.h"

#if defined(__AVX512F__) || defined(__AVX2__)
#  include <immintrin.h>
#endif

typedef float vector __attribute__((vector_size(VECTOR_BYTES)));
typedef float loose_vector __attribute__((vector_size(VECTOR_BYTES), aligned(4), may_alias));    /* for unaligned loads and stores */
typedef int32_t int_vector __attribute__((vector_size(VECTOR_BYTES)));

/* What becomes of a finished tile. STREAM_TILE goes past the caches, which else read each line before it is overwritten (4096 x 4096 x 128: 131 against 180
 * GFLOP/s, 1024 x 8192 x 256: 141 against 162): for results that no cache holds. Rows of C must be aligned, and end_stream() must follow. */
enum { STORE_TILE, ADD_TILE, STREAM_TILE };
#if VECTOR_BYTES == 64
static inline void stream_vector(float *to, vector value) { _mm512_stream_ps(to, (__m512)value); }
static inline void end_stream(void) { _mm_sfence(); }
#elif VECTOR_BYTES == 32
static inline void stream_vector(float *to, vector value) { _mm256_stream_ps(to, (__m256)value); }
static inline void end_stream(void) { _mm_sfence(); }
#else
static inline void stream_vector(float *to, vector value) { *(vector *)to = value; }
static inline void end_stream(void) {}
#endif

/* What is fetched into the second cache while a tile is at work: `rows` rows of `lines` cache lines, `step` floats apart. One line with each FETCH_STEPS steps of
 * depth: all at once they would keep the tile's own loads waiting. */
typedef struct Ahead { const float *from; int64_t step, rows, lines; } Ahead;
enum { FETCH_STEPS = 4, LINE = 16 };

/* One step of depth: a column of A times a row of B. */
#define TILE_STEP(ROWS, VECTORS, ROW_STEP, DEPTH_STEP) {                                                                                \
        vector row[VECTORS];                                                                                                            \
        _Pragma("GCC unroll 8") for (int j = 0; j < VECTORS; j++) row[j] = *(const loose_vector *)(b + j * LANES);                      \
        _Pragma("GCC unroll 32") for (int i = 0; i < ROWS; i++) {                                                                       \
            vector element = a[i * (ROW_STEP)] - (vector){0};                                                                           \
            _Pragma("GCC unroll 8") for (int j = 0; j < VECTORS; j++) sum[i][j] += element * row[j];                                    \
        }                                                                                                                               \
        a += (DEPTH_STEP); b += b_step;                                                                                                 \
    }

/* C [ROWS, VECTORS * LANES] = A B (+ C where `finish` is ADD_TILE), then bias and ReLU; k deep. Element (i, p) of A is a[i * ROW_STEP + p * DEPTH_STEP]: the two
 * flavours fix one of the steps to 1, so that the compiler folds the offsets. Row p of B is b + p * b_step. `ahead` is NULL where nothing is fetched. */
#define TILE_KERNEL(NAME, ROWS, VECTORS, ROW_STEP, DEPTH_STEP)                                                                          \
static __attribute__((noinline)) void NAME(int64_t k, const float *restrict a, int64_t a_step, const float *restrict b, int64_t b_step, \
                                           float *restrict c, int64_t ldc, int finish, const float *restrict bias, int relu,            \
                                           const Ahead *ahead)                                                                          \
{                                                                                                                                       \
    vector sum[ROWS][VECTORS]; (void)a_step;                                                                                            \
    Ahead next = ahead ? *ahead : (Ahead){0};                                                                                           \
    int64_t p = 0, left = next.lines;                                                                                                   \
    _Pragma("GCC unroll 32") for (int i = 0; i < ROWS; i++)                                                                             \
        _Pragma("GCC unroll 8") for (int j = 0; j < VECTORS; j++) sum[i][j] = (vector){0};                                              \
    for (; p + FETCH_STEPS <= k; p += FETCH_STEPS) {                                                                                    \
        if (next.rows > 0) {                                                                                                            \
            __builtin_prefetch(next.from, 0, 2);                                                                                        \
            next.from += LINE;                                                                                                          \
            if (--left == 0) { left = next.lines; next.rows--; next.from += next.step - next.lines * LINE; }                            \
        }                                                                                                                               \
        _Pragma("GCC unroll 4") for (int q = 0; q < FETCH_STEPS; q++) TILE_STEP(ROWS, VECTORS, ROW_STEP, DEPTH_STEP)                    \
    }                                                                                                                                   \
    for (; p < k; p++) TILE_STEP(ROWS, VECTORS, ROW_STEP, DEPTH_STEP)                                                                   \
    /* everything that touches the result happens in registers, before the one store */                                                 \
    if (finish == ADD_TILE)                                                                                                             \
        _Pragma("GCC unroll 32") for (int i = 0; i < ROWS; i++)                                                                         \
            _Pragma("GCC unroll 8") for (int j = 0; j < VECTORS; j++) sum[i][j] += *(const loose_vector *)(c + i * ldc + j * LANES);    \
    if (bias)                                                                                                                           \
        _Pragma("GCC unroll 8") for (int j = 0; j < VECTORS; j++) {                                                                     \
            vector columns = *(const loose_vector *)(bias + j * LANES);                                                                 \
            _Pragma("GCC unroll 32") for (int i = 0; i < ROWS; i++) sum[i][j] += columns;                                               \
        }                                                                                                                               \
    if (relu)                                                                                                                           \
        _Pragma("GCC unroll 32") for (int i = 0; i < ROWS; i++)                                                                         \
            _Pragma("GCC unroll 8") for (int j = 0; j < VECTORS; j++)                                                                   \
                sum[i][j] = (vector)((int_vector)sum[i][j] & ~(sum[i][j] < (vector){0}));         /* NaN stays */             \
    if (finish == STREAM_TILE)                                                                                                          \
        _Pragma("GCC unroll 32") for (int i = 0; i < ROWS; i++)                                                                         \
            _Pragma("GCC unroll 8") for (int j = 0; j < VECTORS; j++) stream_vector(c + i * ldc + j * LANES, sum[i][j]);                \
    else                                                                                                                                \
        _Pragma("GCC unroll 32") for (int i = 0; i < ROWS; i++)                                                                         \
            _Pragma("GCC unroll 8") for (int j = 0; j < VECTORS; j++) *(loose_vector *)(c + i * ldc + j * LANES) = sum[i][j];           \
}
typedef void (*TileKernel)(int64_t, const float *, int64_t, const float *, int64_t, float *, int64_t, int, const float *, int, const Ahead *);

/* every tile of 1 .. TILE_ROWS rows and 1 .. TILE_VECTORS vectors, so that edges are never padded; found in the tables by [rows][vectors - 1] */
#define TILE_FLAVOURS(ROWS, VECTORS) \
    TILE_KERNEL(packed_tile_##ROWS##_##VECTORS, ROWS, VECTORS, 1, a_step) TILE_KERNEL(in_place_tile_##ROWS##_##VECTORS, ROWS, VECTORS, a_step, 1)
#if TILE_VECTORS == 3
#define TILES_OF(ROWS) TILE_FLAVOURS(ROWS, 1) TILE_FLAVOURS(ROWS, 2) TILE_FLAVOURS(ROWS, 3)
#define TABLE_ROW(FLAVOUR, ROWS) { FLAVOUR##_tile_##ROWS##_1, FLAVOUR##_tile_##ROWS##_2, FLAVOUR##_tile_##ROWS##_3 }
#else
#define TILES_OF(ROWS) TILE_FLAVOURS(ROWS, 1) TILE_FLAVOURS(ROWS, 2)
#define TABLE_ROW(FLAVOUR, ROWS) { FLAVOUR##_tile_##ROWS##_1, FLAVOUR##_tile_##ROWS##_2 }
#endif
TILES_OF(1) TILES_OF(2) TILES_OF(3) TILES_OF(4)
#define TABLE_4(FLAVOUR) TABLE_ROW(FLAVOUR, 1), TABLE_ROW(FLAVOUR, 2), TABLE_ROW(FLAVOUR, 3), TABLE_ROW(FLAVOUR, 4)
#if TILE_ROWS == 4
#define TABLE(FLAVOUR) { { 0 }, TABLE_4(FLAVOUR) }
#elif TILE_ROWS == 6
TILES_OF(5) TILES_OF(6)
#define TABLE(FLAVOUR) { { 0 }, TABLE_4(FLAVOUR), TABLE_ROW(FLAVOUR, 5), TABLE_ROW(FLAVOUR, 6) }
#else
TILES_OF(5) TILES_OF(6) TILES_OF(7) TILES_OF(8)
#define TABLE(FLAVOUR) { { 0 }, TABLE_4(FLAVOUR), TABLE_ROW(FLAVOUR, 5), TABLE_ROW(FLAVOUR, 6), TABLE_ROW(FLAVOUR, 7), TABLE_ROW(FLAVOUR, 8) }
#endif
static const __attribute__((unused)) TileKernel packed_tiles[TILE_ROWS + 1][TILE_VECTORS] = TABLE(packed);         /* neighboring rows of A side by side: packed, or A transposed */
static const TileKernel in_place_tiles[TILE_ROWS + 1][TILE_VECTORS] = TABLE(in_place);     /* A row-major where it lies */
#endif
