/* The GEMM of one time step, C [rows, columns] (+)= A [rows, depth] weights [depth, columns], on the calling thread, for float32 and float64.
 *
 * The same weights are used in every step and by every block of rows, so they are packed once. In float32 they become panels of the micro-kernels, one block
 * of the depth after another, which every step reads sequentially from the L2 cache. Read in place, the rows of a panel share two sets of the L1 cache, and
 * the GEMMs of an LSTM take twice as long. In float64, which is used to verify gradients, they are row-major for the engine's GEMM.
 *
 * Packed weights take at most depth * (columns + PANEL_PADDING) elements: see `panels` in ops/recurrent.py. */
#ifndef ORTRAIN_STEP_GEMM_H
#define ORTRAIN_STEP_GEMM_H
#include "kernel.h"
#include "matmul/gemm_packing.h"

/* Return the number of elements of packed weights. */
static inline int64_t panels_float(int64_t depth, int64_t columns) { return depth * round_to_lanes(columns); }
static inline int64_t panels_double(int64_t depth, int64_t columns) { return depth * columns; }

/* Return the length of the blocks that the depth is divided into. */
static inline int64_t depth_of_block(int64_t depth)
{
    int64_t blocks = (depth + BLOCK_DEPTH - 1) / BLOCK_DEPTH;
    return (depth + blocks - 1) / blocks;
}

/* Return the micro-kernel of a time step. Its tile has STEP_ROWS rows, which divide blocks of 8 rows, and is therefore 3 vectors wide on all instruction sets
 * (common/tuning.h). */
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

/* Pack weights [depth, columns], or [columns, depth] if `transposed`, both contiguous. */
static void pack_weights_float(const float *weights, int transposed, int64_t depth, int64_t columns, float *panels)
{
    for (int64_t k0 = 0, block = depth_of_block(depth), block_depth; k0 < depth; k0 += block_depth) {
        block_depth = min_i64(block, depth - k0);
        for (int64_t j = 0, used; j < columns; j += used) {
            int64_t width = balanced_width(columns - j, STEP_VECTORS);
            float *panel = panels + k0 * round_to_lanes(columns) + j * block_depth;
            used = min_i64(width, columns - j);
            if (transposed) pack_transposed(weights + j * depth + k0, depth, used, block_depth, panel, width);
            else pack_rows(weights + k0 * columns + j, columns, used, block_depth, panel, width);
        }
    }
}

/* c [rows, columns] = a [rows, depth] times packed weights, or += if `accumulate` */
static void step_gemm_float(const Engine *engine, int64_t worker, int64_t rows, int64_t columns, int64_t depth, const float *a, int64_t lda,
                               const float *panels, int accumulate, float *c, int64_t ldc)
{
    float edge[STEP_ROWS * STEP_VECTORS * LANES] __attribute__((aligned(64)));
    Tiles tiles = tiles_of_height(rows, STEP_ROWS);
    (void)engine; (void)worker;
    for (int64_t k0 = 0, block = depth_of_block(depth), block_depth; k0 < depth; k0 += block_depth) {
        block_depth = min_i64(block, depth - k0);
        int add = accumulate || k0 > 0;
        for (int64_t j = 0, used; j < columns; j += used) {
            int64_t width = balanced_width(columns - j, STEP_VECTORS);
            const float *panel = panels + k0 * round_to_lanes(columns) + j * block_depth;
            used = min_i64(width, columns - j);
            for (int64_t t = 0, i = 0, count; t < tiles.count; t++, i += count) {
                count = rows_of_tile(tiles, t);
                TileKernel multiply = step_tile(count, width / LANES);
                float *to = c + i * ldc + j;
                if (used == width) {
                    multiply(block_depth, a + i * lda + k0, lda, panel, width, to, ldc, add, NULL, 0, NULL);
                    continue;
                }
                multiply(block_depth, a + i * lda + k0, lda, panel, width, edge, width, 0, NULL, 0, NULL);
                for (int64_t y = 0; y < count; y++)
                    for (int64_t x = 0; x < used; x++) to[y * ldc + x] = edge[y * width + x] + (add ? to[y * ldc + x] : 0.0f);
            }
        }
    }
}

static void pack_weights_double(const double *weights, int transposed, int64_t depth, int64_t columns, double *panels)
{
    for (int64_t p = 0; p < depth; p++)
        for (int64_t j = 0; j < columns; j++) panels[p * columns + j] = transposed ? weights[j * depth + p] : weights[p * columns + j];
}

static void step_gemm_double(const Engine *engine, int64_t worker, int64_t rows, int64_t columns, int64_t depth, const double *a, int64_t lda,
                                const double *panels, int accumulate, double *c, int64_t ldc)
{
    engine->gemm_float64_serial(engine, worker, 0, 0, rows, columns, depth, 1, a, lda, panels, columns, accumulate, c, ldc, NULL, 0);
}
#endif
