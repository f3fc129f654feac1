/* The GEMM of one time step of a recurrent layer, C [rows, columns] (+)= A [rows, depth] weights [depth, columns], on the calling thread: in float32, or of
 * bfloat16 operands where BFLOAT16_PAIRS is defined (matmul/gemm_bfloat16.h).
 *
 * The same weights are used in every step and by every block of rows, so they are packed once. They become panels of the micro-kernels, one block of the depth
 * after another, which every step reads sequentially from the L2 cache. Read in place, the rows of a panel share two sets of the L1 cache, and the GEMMs of an
 * LSTM take twice as long. */
#ifndef ORTRAIN_MATMUL_STEP_GEMM_H
#define ORTRAIN_MATMUL_STEP_GEMM_H
#include "matmul/gemm_packing.h"

/* Return the length of the blocks that the depth is divided into. */
static inline int64_t depth_of_block(int64_t depth)
{
    int64_t blocks = ceil_div(depth, BLOCK_DEPTH);
    return round_up(ceil_div(depth, blocks), DEPTH_MULTIPLE);
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

/* Pack weights [depth, columns], or [columns, depth] if `transposed`, both contiguous. panels: room for packed_depth(depth) * round_to_lanes(columns). */
static void pack_step_weights(const scalar *weights, int transposed, int64_t depth, int64_t columns, packed *panels)
{
    for (int64_t k0 = 0, block = depth_of_block(depth), block_depth; k0 < depth; k0 += block_depth) {
        block_depth = min_i64(block, depth - k0);
        for (int64_t j = 0, used; j < columns; j += used) {
            int64_t width = balanced_width(columns - j, STEP_VECTORS);
            packed *panel = panels + packed_depth(k0) * round_to_lanes(columns) + j * packed_depth(block_depth);
            used = min_i64(width, columns - j);
            if (transposed) pack_transposed(weights + j * depth + k0, depth, used, block_depth, panel, width);
            else pack_rows(weights + k0 * columns + j, columns, used, block_depth, panel, width);
        }
    }
}

/* c [rows, columns] = a [rows, depth] times packed weights, or += if `accumulate`. a: row-major, as elements of panels, lda of them apart. */
static void multiply_time_step(int64_t rows, int64_t columns, int64_t depth, const packed *a, int64_t lda, const packed *panels, int accumulate, scalar *c,
                          int64_t ldc)
{
    scalar edge[STEP_ROWS * STEP_VECTORS * LANES] __attribute__((aligned(64)));
    Tiles tiles = tiles_of_height(rows, STEP_ROWS);
    for (int64_t k0 = 0, block = depth_of_block(depth), block_depth; k0 < depth; k0 += block_depth) {
        block_depth = min_i64(block, depth - k0);
        int add = accumulate || k0 > 0;
        for (int64_t j = 0, used; j < columns; j += used) {
            int64_t width = balanced_width(columns - j, STEP_VECTORS), steps = packed_depth(block_depth);
            const packed *panel = panels + packed_depth(k0) * round_to_lanes(columns) + j * steps;
            used = min_i64(width, columns - j);
            for (int64_t t = 0, i = 0, count, together; t < tiles.count; t += together, i += together * count) {
                count = rows_of_tile(tiles, t);
                together = used < width ? 1 : (t < tiles.extra ? tiles.extra : tiles.count) - t;
                TileKernel multiply = step_tile(count, width / LANES);
                TileSeries series = { .count = together, .a_step = count * lda, .c_step = count * ldc };
                scalar *to = c + i * ldc + j;
                if (used == width) {
                    series.store_mode = add ? ADD_TILE : STORE_TILE;
                    multiply(steps, a + i * lda + packed_depth(k0), lda, panel, width, to, ldc, &series);
                    continue;
                }
                multiply(steps, a + i * lda + packed_depth(k0), lda, panel, width, edge, width, &series);
                store_edge(edge, width, to, ldc, count, used, add);
            }
        }
    }
}
#endif
