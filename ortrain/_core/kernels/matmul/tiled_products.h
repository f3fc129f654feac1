/* Products of rounded operands in memory on AMX tiles, for convolutions (tiled_windows.h) and GEMMs (tiled_gemm.h). */
#ifndef ORTRAIN_TILED_PRODUCTS_H
#define ORTRAIN_TILED_PRODUCTS_H
#include "matmul/amx_tiles.h"
#include "matmul/window_gemm.h"
#if HAVE_AMX

enum { TILE_SIZE = 16 };                            /* rows or columns of a tile of sums */

/* A block of up to two by two tiles of sums: over each run, `steps` products of tiles. Steps and halves are in elements, of the second tile from the first;
 * those between the rows of a tile are in bytes. */
typedef struct TiledProduct {
    const bfloat16 *a, *b;
    int64_t a_row, a_half, a_step, b_row, b_half, b_step, runs, steps;
    const int64_t *starts;                          /* of the runs, from a on; b is read from one run to the next */
} TiledProduct;

#define TILED_PRODUCT(ROWS, COLUMNS)                                                                                 \
AMX static void multiply_block_##ROWS##_##COLUMNS(const TiledProduct *p, float *sums)                                \
{                                                                                                                    \
    const bfloat16 *b = p->b;                                                                                        \
    _tile_zero(0);                                                                                                   \
    if (COLUMNS > 1) _tile_zero(1);                                                                                  \
    if (ROWS > 1) _tile_zero(2);                                                                                     \
    if (ROWS > 1 && COLUMNS > 1) _tile_zero(3);                                                                      \
    for (int64_t run = 0; run < p->runs; run++) {                                                                    \
        const bfloat16 *a = p->a + p->starts[run];                                                                   \
        for (int64_t i = 0; i < p->steps; i++, a += p->a_step, b += p->b_step) {                                     \
            _tile_loadd(4, a, p->a_row);                                                                             \
            _tile_loadd(6, b, p->b_row);                                                                             \
            _tile_dpbf16ps(0, 4, 6);                                                                                 \
            if (COLUMNS > 1) { _tile_loadd(7, b + p->b_half, p->b_row); _tile_dpbf16ps(1, 4, 7); }                   \
            if (ROWS > 1) { _tile_loadd(5, a + p->a_half, p->a_row); _tile_dpbf16ps(2, 5, 6); }                      \
            if (ROWS > 1 && COLUMNS > 1) _tile_dpbf16ps(3, 5, 7);                                                    \
        }                                                                                                            \
    }                                                                                                                \
    _tile_stored(0, sums, 128);                                                                                      \
    if (COLUMNS > 1) _tile_stored(1, sums + TILE_SIZE, 128);                                                         \
    if (ROWS > 1) _tile_stored(2, sums + TILE_SIZE * PANEL_SIZE, 128);                                               \
    if (ROWS > 1 && COLUMNS > 1) _tile_stored(3, sums + TILE_SIZE * PANEL_SIZE + TILE_SIZE, 128);                    \
}
TILED_PRODUCT(1, 1) TILED_PRODUCT(1, 2) TILED_PRODUCT(2, 1) TILED_PRODUCT(2, 2)

/* sums [rows, columns] of PANEL_SIZE each, of which at most 16 are computed where at most 16 are asked for */
static inline void multiply_sums(const TiledProduct *p, int64_t rows, int64_t columns, float *sums)
{
    static void (*const kernels[2][2])(const TiledProduct *, float *) = {
        { multiply_block_1_1, multiply_block_1_2 }, { multiply_block_2_1, multiply_block_2_2 } };
    kernels[rows > TILE_SIZE][columns > TILE_SIZE](p, sums);
}

/* Configure tiles of A of `depth` elements, and of B of as many; those of sums have 16 x 16. */
AMX static void configure_tiles_of_depth(int64_t depth)
{
    TileConfig shapes = { .palette = 1 };
    for (int i = 0; i < 8; i++) {
        shapes.rows[i] = (uint8_t)(i < 6 ? TILE_SIZE : depth / 2);
        shapes.bytes[i] = (uint16_t)(i == 4 || i == 5 ? 2 * depth : 64);
    }
    __asm__ volatile ("" :: "r"(&shapes) : "memory");   /* the compiler assumes that _tile_loadconfig reads 8 bytes only */
    _tile_loadconfig(&shapes);
}

/* Return the steps in which a tile covers a run of `length` elements, all of the same even depth, or 0 where there are none. */
static inline int64_t steps_of_run(int64_t length)
{
    int64_t steps = ceil_div(length, STEP_DEPTH);
    return length % (2 * steps) ? 0 : steps;
}

/* Return the least number of pairs, from `pairs` on, for which tiles of one depth cover a run of so many for each of its taps. */
static inline int64_t padded_pairs(int64_t taps, int64_t pairs)
{
    while (!steps_of_run(2 * taps * pairs)) pairs++;
    return pairs;
}

/* Return the least number of elements, from `length` on, that are an odd number of lines of the cache, so that the rows of a tile are in different sets of it. */
static inline int64_t odd_lines(int64_t length) { return (ceil_div(length, STEP_DEPTH) | 1) * STEP_DEPTH; }

/* to [filters, step] = [points, outputs] transposed, for some of the outputs, zeros from there up to `end`. Writes up to 31
 * elements beyond it. */
static void transpose_points(const float *from, int64_t outputs, int64_t points, int64_t end, int64_t filters, bfloat16 *to, int64_t step)
{
    packed square[TILE_SIZE * TILE_SIZE] __attribute__((aligned(64))), pairs[TILE_SIZE * TILE_SIZE] __attribute__((aligned(64)));
    for (int64_t f = 0; f < filters; f += TILE_SIZE)
        for (int64_t p = 0; p < end; p += STEP_DEPTH) {
            int64_t count = min_i64(STEP_DEPTH, points - p), used = min_i64(TILE_SIZE, filters - f);
            if (count <= 0) {
                for (int64_t i = 0; i < TILE_SIZE; i++) _mm512_storeu_si512(to + (f + i) * step + p, _mm512_setzero_si512());
                continue;
            }
            const __mmask16 mask = (__mmask16)((1u << used) - 1);
            for (int64_t i = 0; i < TILE_SIZE; i++) {
                const float *row = from + (p + 2 * i) * outputs + f;
                __m512 first = 2 * i < count ? _mm512_maskz_loadu_ps(mask, row) : _mm512_setzero_ps();
                __m512 second = 2 * i + 1 < count ? _mm512_maskz_loadu_ps(mask, row + outputs) : _mm512_setzero_ps();
                _mm512_store_si512(pairs + i * TILE_SIZE, (__m512i)pairs_of((vector)first, (vector)second));
            }
            transpose_square((const float *)pairs, TILE_SIZE, (float *)square, TILE_SIZE);         /* moves bits only */
            for (int64_t i = 0; i < TILE_SIZE; i++) _mm512_storeu_si512(to + (f + i) * step + p, _mm512_load_si512(square + i * TILE_SIZE));
        }
}

#endif
#endif
