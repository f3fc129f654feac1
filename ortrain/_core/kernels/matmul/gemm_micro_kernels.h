/* Micro-kernels of GEMMs in float32, in float64 where SCALAR_BYTES is 8, and in float32 of bfloat16 operands where BFLOAT16_PAIRS is defined
 * (matmul/gemm_bfloat16.h): one tile of C [ROWS, VECTORS * LANES], held in registers while the loop runs over the depth k.
 *
 * They are written with GCC vector extensions. Every loop over the tile is unrolled, so the compiler keeps the whole tile in registers. There is a micro-kernel
 * for every tile of 1 to TILE_ROWS rows and 1 to TILE_VECTORS vectors; common/tuning.h chooses these sizes by instruction set. */
#ifndef ORTRAIN_GEMM_MICRO_KERNELS_H
#define ORTRAIN_GEMM_MICRO_KERNELS_H
#include <stdint.h>
#include <string.h>
#include "common/compiler.h"
#include "common/tile_columns.h"
#include "common/tuning.h"

#if defined(__AVX512F__) || defined(__AVX2__)
#  include <immintrin.h>
#elif defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
#  include <arm_neon.h>
#endif

#if SCALAR_BYTES == 8
typedef double scalar;
typedef int64_t scalar_bits;
#else
typedef float scalar;
typedef int32_t scalar_bits;
#endif
typedef scalar vector __attribute__((vector_size(VECTOR_BYTES)));
typedef scalar unaligned_vector __attribute__((vector_size(VECTOR_BYTES), aligned(SCALAR_BYTES), may_alias));   /* unaligned loads and stores */
typedef scalar_bits int_vector __attribute__((vector_size(VECTOR_BYTES)));
typedef scalar_bits unaligned_int_vector __attribute__((vector_size(VECTOR_BYTES), aligned(SCALAR_BYTES), may_alias));

/* The elements of packed panels, and how a tile adds their products: scalars, or pairs of bfloat16. */
#ifdef BFLOAT16_PAIRS
#include "matmul/bfloat16_pairs.h"
typedef pair packed;
typedef int_vector packed_vector;
typedef unaligned_int_vector unaligned_packed_vector;
#ifndef ADD_PRODUCT
#define ADD_PRODUCT(sum, x, y) sum = add_dot_product(sum, x, y)
#endif
#define READS_IN_PLACE 0                            /* operands are converted while they are packed */
#ifdef __aarch64__
#define PACKS_ROWS 0                                  /* columns of tiles are read as vectors */
#else
#define PACKS_ROWS 1                                  /* A that is row-major stays so: transposing it took as long as rounding */
#endif
#define DEPTH_MULTIPLE 2                              /* blocks of the depth are multiples of it */
#else
typedef scalar packed;
typedef vector packed_vector;
typedef unaligned_vector unaligned_packed_vector;
#define READS_IN_PLACE 1
#define PACKS_ROWS 0
#define DEPTH_MULTIPLE 1
#if SCALAR_BYTES == 8
#define ADD_PRODUCT(sum, x, y) ADD_PRODUCT_double(sum, x, y)
#else
#define ADD_PRODUCT(sum, x, y) ADD_PRODUCT_float(sum, x, y)
#endif
#endif

/* The indices of shuffles that interleave the first halves of two vectors, and their second halves. */
#if VECTOR_BYTES / SCALAR_BYTES == 16
#define INTERLEAVED_LOW (int_vector){0,16,1,17,2,18,3,19,4,20,5,21,6,22,7,23}
#define INTERLEAVED_HIGH (int_vector){8,24,9,25,10,26,11,27,12,28,13,29,14,30,15,31}
#elif VECTOR_BYTES / SCALAR_BYTES == 8
#define INTERLEAVED_LOW (int_vector){0,8,1,9,2,10,3,11}
#define INTERLEAVED_HIGH (int_vector){4,12,5,13,6,14,7,15}
#elif VECTOR_BYTES / SCALAR_BYTES == 4
#define INTERLEAVED_LOW (int_vector){0,4,1,5}
#define INTERLEAVED_HIGH (int_vector){2,6,3,7}
#else
#define INTERLEAVED_LOW (int_vector){0,2}
#define INTERLEAVED_HIGH (int_vector){1,3}
#endif

/* How a micro-kernel stores its tile: C = tile, C += tile, or C = tile with non-temporal stores. Non-temporal stores save reading each line before it is
 * overwritten (4096 x 4096 x 128: 131 to 180 GFLOP/s, 1024 x 8192 x 256: 141 to 162) and are for results larger than the caches. STREAM_TILE requires rows of C
 * aligned to VECTOR_BYTES, and end_stream() afterwards. */
enum { STORE_TILE, ADD_TILE, STREAM_TILE };
#if VECTOR_BYTES == 64
static inline void stream_vector(scalar *to, vector value) { _mm512_stream_si512((void *)to, (__m512i)value); }
static inline void end_stream(void) { _mm_sfence(); }
#elif VECTOR_BYTES == 32
static inline void stream_vector(scalar *to, vector value) { _mm256_stream_si256((__m256i *)to, (__m256i)value); }
static inline void end_stream(void) { _mm_sfence(); }
#else
static inline void stream_vector(scalar *to, vector value) { *(vector *)to = value; }
static inline void end_stream(void) {}
#endif

/* Memory to prefetch into the L2 cache while a micro-kernel runs: `rows` rows of `lines` cache lines, `step` elements apart. The micro-kernel prefetches one line
 * per FETCH_STEPS steps of the depth; all lines at once would delay its own loads. */
typedef struct Prefetch { const scalar *from; int64_t step, rows, lines; } Prefetch;
enum { FETCH_STEPS = 4, LINE = 64 / SCALAR_BYTES };     /* LINE: elements per cache line */
/* Small tiles have a second loop for steps without prefetching: its branches would be a tenth of their instructions. */
enum { SEPARATE_LOOPS = VECTOR_REGISTERS == 16 };

/* Equal tiles that one call of a micro-kernel computes one after another, and what it does with their sums. A call costs 60 cycles (66 rows in tiles of 6, 32
 * deep, on a busy machine: 66 GFLOP/s in a call per tile, 82 in one).
 *
 * a_step, b_step, c_step, bias_step: from one tile to the next, in elements. store_mode: of C. bias: for each row of a tile, or NULL. relu: whether negative
 * values become 0. prefetch: its `rows` may be 0. */
typedef struct TileSeries {
    int64_t count, a_step, b_step, c_step, bias_step;
    int store_mode, relu;
    const scalar *bias;
    Prefetch prefetch;
} TileSeries;

/* One step of the depth: the tile's sums += a column of A times a row of B. */
#define TILE_STEP(ROWS, VECTORS, ROW_STEP, DEPTH_STEP) {                                                               \
        packed_vector row[VECTORS];                                                                                           \
        LOAD_COLUMN(unaligned_packed_vector, LANES, ROWS, ROW_STEP, a)                                                        \
        _Pragma("GCC unroll 8") for (int j = 0; j < VECTORS; j++) row[j] = *(const unaligned_packed_vector *)(b + j * LANES); \
        _Pragma("GCC unroll 32") for (int i = 0; i < ROWS; i++) {                                                             \
            NEXT_ROW_OF_COLUMN(unaligned_packed_vector, LANES, a, i)                                                          \
            packed_vector element = ELEMENT_OF_COLUMN(packed_vector, LANES, ROW_STEP, a, i);                                  \
            _Pragma("GCC unroll 8") for (int j = 0; j < VECTORS; j++) ADD_PRODUCT(sum[i][j], element, row[j]);                \
        }                                                                                                                     \
        a += (DEPTH_STEP); b += b_step;                                                                                       \
    }

/* The steps between two prefetches are unrolled, but not those that read single elements on ARM: GCC then computes their addresses in each step (1.65 instead
 * of 1.91 products per cycle on a Neoverse N1, by its model). Nor are those of bfloat16 pairs without an instruction for them, whose 7 operations would make
 * the modules larger than those of the processors that have it; nor with ARM's, between which GCC then moves sums from register to register (8 x 12: 85 instead
 * of 99 % of the products that a Neoverse V2 could make, by its model). */
#if defined(EMULATES_PAIRS) || (defined(BFLOAT16_PAIRS) && defined(__aarch64__))
#define STEPS_UNROLLED(ROW_STEP) _Pragma("GCC unroll 1")
#elif defined(__aarch64__)
#define STEPS_UNROLLED_1 _Pragma("GCC unroll 4")
#define STEPS_UNROLLED_a_step _Pragma("GCC unroll 1")
#define STEPS_UNROLLED(ROW_STEP) STEPS_UNROLLED_##ROW_STEP
#else
#define STEPS_UNROLLED(ROW_STEP) _Pragma("GCC unroll 4")
#endif

/* Defines the micro-kernel NAME: tiles C [ROWS, VECTORS * LANES] = A B, or C += A B where the store mode is ADD_TILE, then + bias, then ReLU (TileSeries).
 *
 * Element (i, p) of the first tile's A [ROWS, k] is first_a[i * ROW_STEP + p * DEPTH_STEP]; one of the two steps is the constant 1 and the other a_step, so
 * that the compiler folds the offsets. Row p of its B [k, VECTORS * LANES] is first_b + p * b_step. */
#define TILE_KERNEL(NAME, ROWS, VECTORS, ROW_STEP, DEPTH_STEP)                                                                                        \
static __attribute__((noinline)) void NAME(int64_t k, const packed *restrict first_a, int64_t a_step, const packed *restrict first_b, int64_t b_step, \
                                           scalar *restrict c, int64_t ldc, const TileSeries *series)                                                 \
{                                                                                                                                                     \
    const scalar *bias = series->bias; (void)a_step;                                                                                                  \
    Prefetch next = series->prefetch;                                                                                                                 \
    int64_t left = next.lines;                                                                                                                        \
    for (int64_t tile = 0; tile < series->count; tile++) {                                                                                            \
        const packed *a = first_a, *b = first_b;                                                                                                      \
        vector sum[ROWS][VECTORS];                                                                                                                    \
        int64_t p = 0;                                                                                                                                \
        _Pragma("GCC unroll 32") for (int i = 0; i < ROWS; i++)                                                                                       \
            _Pragma("GCC unroll 8") for (int j = 0; j < VECTORS; j++) sum[i][j] = (vector){0};                                                        \
        for (; (next.rows > 0 || !SEPARATE_LOOPS) && p + FETCH_STEPS <= k; p += FETCH_STEPS) {                                                        \
            if (next.rows > 0) {                                                                                                                      \
                __builtin_prefetch(next.from, 0, 2);                                                                                                  \
                next.from += LINE;                                                                                                                    \
                if (--left == 0) { left = next.lines; next.rows--; next.from += next.step - next.lines * LINE; }                                      \
            }                                                                                                                                         \
            STEPS_UNROLLED(ROW_STEP)                                                                                                                  \
            for (int q = 0; q < FETCH_STEPS; q++) TILE_STEP(ROWS, VECTORS, ROW_STEP, DEPTH_STEP)                                                      \
        }                                                                                                                                             \
        for (; SEPARATE_LOOPS && p + FETCH_STEPS <= k; p += FETCH_STEPS) {                                                                            \
            STEPS_UNROLLED(ROW_STEP)                                                                                                                  \
            for (int q = 0; q < FETCH_STEPS; q++) TILE_STEP(ROWS, VECTORS, ROW_STEP, DEPTH_STEP)                                                      \
        }                                                                                                                                             \
        for (; p < k; p++) TILE_STEP(ROWS, VECTORS, ROW_STEP, DEPTH_STEP)                                                                             \
        /* the epilogue runs in registers, before the only store */                                                                                   \
        if (series->store_mode == ADD_TILE)                                                                                                           \
            _Pragma("GCC unroll 32") for (int i = 0; i < ROWS; i++)                                                                                   \
                _Pragma("GCC unroll 8") for (int j = 0; j < VECTORS; j++) sum[i][j] += *(const unaligned_vector *)(c + i * ldc + j * LANES);          \
        if (bias)                                                                                                                                     \
            _Pragma("GCC unroll 8") for (int j = 0; j < VECTORS; j++) {                                                                               \
                vector columns = *(const unaligned_vector *)(bias + j * LANES);                                                                       \
                _Pragma("GCC unroll 32") for (int i = 0; i < ROWS; i++) sum[i][j] += columns;                                                         \
            }                                                                                                                                         \
        if (series->relu)                                                                                                                             \
            _Pragma("GCC unroll 32") for (int i = 0; i < ROWS; i++)                                                                                   \
                _Pragma("GCC unroll 8") for (int j = 0; j < VECTORS; j++)                                                                             \
                    sum[i][j] = (vector)((int_vector)sum[i][j] & ~(sum[i][j] < (vector){0}));         /* keeps NaN */                                 \
        if (series->store_mode == STREAM_TILE)                                                                                                        \
            _Pragma("GCC unroll 32") for (int i = 0; i < ROWS; i++)                                                                                   \
                _Pragma("GCC unroll 8") for (int j = 0; j < VECTORS; j++) stream_vector(c + i * ldc + j * LANES, sum[i][j]);                          \
        else                                                                                                                                          \
            _Pragma("GCC unroll 32") for (int i = 0; i < ROWS; i++)                                                                                   \
                _Pragma("GCC unroll 8") for (int j = 0; j < VECTORS; j++) *(unaligned_vector *)(c + i * ldc + j * LANES) = sum[i][j];                 \
        first_a += series->a_step; first_b += series->b_step; c += series->c_step;                                                                    \
        if (bias) bias += series->bias_step;                                                                                                          \
    }                                                                                                                                                 \
}
typedef void (*TileKernel)(int64_t, const packed *, int64_t, const packed *, int64_t, scalar *, int64_t, const TileSeries *);

/* Micro-kernels of all tile sizes, so that edges of C are never padded to full tiles, in two tables indexed by [rows][vectors - 1]:
 *   packed_tiles    A with the rows of a tile adjacent in memory: packed, or read in place where A is transposed
 *   in_place_tiles  A row-major, read in place; of bfloat16 pairs, rows that were rounded one by one */
#define TILE_VARIANTS(ROWS, VECTORS) \
    TILE_KERNEL(packed_tile_##ROWS##_##VECTORS, ROWS, VECTORS, 1, a_step) TILE_KERNEL(in_place_tile_##ROWS##_##VECTORS, ROWS, VECTORS, a_step, 1)
#if TILE_VECTORS == 3
#define TILES_OF(ROWS) TILE_VARIANTS(ROWS, 1) TILE_VARIANTS(ROWS, 2) TILE_VARIANTS(ROWS, 3)
#define TABLE_ROW(VARIANT, ROWS) { VARIANT##_tile_##ROWS##_1, VARIANT##_tile_##ROWS##_2, VARIANT##_tile_##ROWS##_3 }
#else
#define TILES_OF(ROWS) TILE_VARIANTS(ROWS, 1) TILE_VARIANTS(ROWS, 2)
#define TABLE_ROW(VARIANT, ROWS) { VARIANT##_tile_##ROWS##_1, VARIANT##_tile_##ROWS##_2 }
#endif
TILES_OF(1) TILES_OF(2) TILES_OF(3) TILES_OF(4)
#define TABLE_4(VARIANT) TABLE_ROW(VARIANT, 1), TABLE_ROW(VARIANT, 2), TABLE_ROW(VARIANT, 3), TABLE_ROW(VARIANT, 4)
#if TILE_ROWS == 4
#define TABLE(VARIANT) { { 0 }, TABLE_4(VARIANT) }
#elif TILE_ROWS == 6
TILES_OF(5) TILES_OF(6)
#define TABLE(VARIANT) { { 0 }, TABLE_4(VARIANT), TABLE_ROW(VARIANT, 5), TABLE_ROW(VARIANT, 6) }
#else
TILES_OF(5) TILES_OF(6) TILES_OF(7) TILES_OF(8)
#define TABLE(VARIANT) { { 0 }, TABLE_4(VARIANT), TABLE_ROW(VARIANT, 5), TABLE_ROW(VARIANT, 6), TABLE_ROW(VARIANT, 7), TABLE_ROW(VARIANT, 8) }
#endif
static const __attribute__((unused)) TileKernel packed_tiles[TILE_ROWS + 1][TILE_VECTORS] = TABLE(packed);
static const TileKernel in_place_tiles[TILE_ROWS + 1][TILE_VECTORS] = TABLE(in_place);
#endif
