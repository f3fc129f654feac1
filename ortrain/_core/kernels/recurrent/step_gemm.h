/* The product of one time step: rows [rows, depth] times weights [depth, columns], for both element types.
 *
 * The weights serve every step and every block of rows, so that they are laid out once. In float32 they become panels of the micro kernels, one block of
 * depth after the other, which every step reads in order from the second cache; where they lie, the rows of a panel share two sets of the first cache, and
 * the products of an LSTM's steps took twice as long. In float64, which proves gradients, they are row-major for BLAS.
 *
 * Weights take depth (columns + PANEL_PADDING) elements at most: see `panels` in ops/recurrent.py. */
#ifndef ORTRAIN_RECURRENT_PANELS_H
#define ORTRAIN_RECURRENT_PANELS_H
#include "kernel.h"
#include "matmul/gemm_packing.h"

static inline int64_t panels_float(int64_t depth, int64_t columns) { return depth * padded(columns); }
static inline int64_t panels_double(int64_t depth, int64_t columns) { return depth * columns; }

static inline int64_t depth_of_block(int64_t depth)
{
    int64_t blocks = (depth + BLOCK_DEPTH - 1) / BLOCK_DEPTH;
    return (depth + blocks - 1) / blocks;
}

/* Tiles of a time step: of few rows, which go into blocks of 8 without a rest, and therefore 3 vectors wide (with 32-byte vectors 8 rows of 128 units and
 * their 512 gates run at 92 % of the peak; 16 rows in tiles of 6, 5 and 5 at 88). */
#if TILE_VECTORS == 3
static inline TileKernel step_tile(int64_t rows, int64_t vectors) { return in_place_tiles[rows][vectors - 1]; }
#else
TILE_KERNEL(step_tile_1, 1, 3, a_step, 1) TILE_KERNEL(step_tile_2, 2, 3, a_step, 1) TILE_KERNEL(step_tile_3, 3, 3, a_step, 1) TILE_KERNEL(step_tile_4, 4, 3, a_step, 1)
static inline TileKernel step_tile(int64_t rows, int64_t vectors)
{
    static const TileKernel wide[STEP_ROWS] = { step_tile_1, step_tile_2, step_tile_3, step_tile_4 };
    return vectors == STEP_VECTORS ? wide[rows - 1] : in_place_tiles[rows][vectors - 1];
}
#endif

/* weights [depth, columns], or transposed [columns, depth], both without gaps */
static void lay_out_float(const float *weights, int transposed, int64_t depth, int64_t columns, float *panels)
{
    for (int64_t deep = 0, block = depth_of_block(depth), now; deep < depth; deep += now) {
        now = smaller(block, depth - deep);
        for (int64_t j = 0, used; j < columns; j += used) {
            int64_t width = balanced_width(columns - j, STEP_VECTORS);
            float *panel = panels + deep * padded(columns) + j * now;
            used = smaller(width, columns - j);
            if (transposed) pack_transposed(weights + j * depth + deep, depth, used, now, panel, width);
            else pack_rows(weights + deep * columns + j, columns, used, now, panel, width);
        }
    }
}

/* c [rows, columns] (+)= a panels */
static void step_product_float(const Engine *engine, int64_t worker, int64_t rows, int64_t columns, int64_t depth, const float *a, int64_t lda,
                               const float *panels, int accumulate, float *c, int64_t ldc)
{
    float edge[STEP_ROWS * STEP_VECTORS * LANES] __attribute__((aligned(64)));
    Tiles tiles = tiles_of_height(rows, STEP_ROWS);
    (void)engine; (void)worker;
    for (int64_t deep = 0, block = depth_of_block(depth), now; deep < depth; deep += now) {
        now = smaller(block, depth - deep);
        int add = accumulate || deep > 0;
        for (int64_t j = 0, used; j < columns; j += used) {
            int64_t width = balanced_width(columns - j, STEP_VECTORS);
            const float *panel = panels + deep * padded(columns) + j * now;
            used = smaller(width, columns - j);
            for (int64_t t = 0, i = 0, count; t < tiles.count; t++, i += count) {
                count = rows_of_tile(tiles, t);
                TileKernel multiply = step_tile(count, width / LANES);
                float *to = c + i * ldc + j;
                if (used == width) {
                    multiply(now, a + i * lda + deep, lda, panel, width, to, ldc, add, NULL, 0, NULL);
                    continue;
                }
                multiply(now, a + i * lda + deep, lda, panel, width, edge, width, 0, NULL, 0, NULL);
                for (int64_t y = 0; y < count; y++)
                    for (int64_t x = 0; x < used; x++) to[y * ldc + x] = edge[y * width + x] + (add ? to[y * ldc + x] : 0.0f);
            }
        }
    }
}

static void lay_out_double(const double *weights, int transposed, int64_t depth, int64_t columns, double *panels)
{
    for (int64_t p = 0; p < depth; p++)
        for (int64_t j = 0; j < columns; j++) panels[p * columns + j] = transposed ? weights[j * depth + p] : weights[p * columns + j];
}

static void step_product_double(const Engine *engine, int64_t worker, int64_t rows, int64_t columns, int64_t depth, const double *a, int64_t lda,
                                const double *panels, int accumulate, double *c, int64_t ldc)
{
    engine->gemm_float64_serial(engine, worker, 0, 0, rows, columns, depth, 1, a, lda, panels, columns, accumulate, c, ldc, NULL, 0);
}
#endif
