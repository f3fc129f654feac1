/* Packing for bfloat16 GEMMs: the functions of gemm_packing.h of the same names, for panels of pairs (bfloat16_pairs.h). Float32 operands are converted while
 * they are packed. Where the depth is odd, the last pair ends with 0; depths at which a panel is continued are even. */
#ifndef ORTRAIN_BFLOAT16_PACKING_H
#define ORTRAIN_BFLOAT16_PACKING_H
#include <string.h>
#include "common/integers.h"
#include "matmul/gemm_transposes_float32.h"

enum { PAIRS_PER_BLOCK = 32 };                       /* pairs of a row that are converted before they are transposed */

/* to[j] = (first[j], second[j]) for j < n; second: NULL for zeros */
static inline void pack_row_pairs(const scalar *first, const scalar *second, int64_t n, pair *to)
{
    int64_t j = 0;
    for (; j + LANES <= n; j += LANES)
        *(unaligned_int_vector *)(to + j) = pairs_of(*(const unaligned_vector *)(first + j), second ? load_part(second + j, LANES) : (vector){0});
    if (j == n) return;
    int_vector last = pairs_of(load_part(first + j, n - j), second ? load_part(second + j, n - j) : (vector){0});
    store_part((scalar *)(to + j), (vector)last, n - j);            /* moves bits only */
}

/* to[p] = (from[2 p], from[2 p + 1]) for 2 p < depth, with 0 beyond the depth */
static inline void pack_adjacent_pairs(const scalar *from, int64_t depth, pair *to)
{
    int64_t p = 0;
    for (; p + 2 * LANES <= depth; p += 2 * LANES)
        *(unaligned_int_vector *)(to + p / 2) = adjacent_pairs(*(const unaligned_vector *)(from + p), *(const unaligned_vector *)(from + p + LANES));
    if (p == depth) return;
    int64_t rest = depth - p, front = rest < LANES ? rest : LANES;
    int_vector last = adjacent_pairs(load_part(from + p, front), load_part(from + p + front, rest - front));
    store_part((scalar *)(to + p / 2), (vector)last, (rest + 1) / 2);
}
static __attribute__((noinline)) void pack_rows(const scalar *source, int64_t step, int64_t n, int64_t depth, packed *panel, int64_t width)
{
    for (int64_t p = 0; p < depth; p += 2, panel += width) {
        const scalar *row = source + p * step;
        pack_row_pairs(row, p + 1 < depth ? row + step : NULL, n, panel);
        for (int64_t j = n; j < width; j++) panel[j] = 0;
    }
}

static __attribute__((noinline)) void pack_row_panels(const scalar *source, int64_t step, int64_t rows, int64_t count, packed *panel, int64_t depth)
{
    for (int64_t p = 0; p < rows; p += 2, panel += TILE_COLUMNS) {
        const scalar *row = source + p * step;
        for (int64_t i = 0; i < count; i++)
            pack_row_pairs(row + i * TILE_COLUMNS, p + 1 < rows ? row + step + i * TILE_COLUMNS : NULL, TILE_COLUMNS,
                           panel + i * packed_depth(depth) * TILE_COLUMNS);
    }
}

static void pack_equal_tiles(const scalar *source, int64_t step, int64_t rows, int64_t count, const int64_t width, packed *panel, int64_t depth)
{
    packed columns[TILES_PER_RUN * TILE_ROWS];
    for (int64_t p = 0; p < rows; p += 2, panel += width) {
        const scalar *row = source + p * step;
        pack_row_pairs(row, p + 1 < rows ? row + step : NULL, count * width, columns);
        for (int64_t t = 0; t < count; t++) memcpy(panel + t * packed_depth(depth) * width, columns + t * width, (size_t)width * sizeof(packed));
    }
}

static __attribute__((noinline)) void pack_transposed(const scalar *source, int64_t step, int64_t n, int64_t depth, packed *panel, int64_t width)
{
    packed rows[STEP_VECTORS * LANES][PAIRS_PER_BLOCK];           /* of the widest panels, those of time steps */
    for (int64_t p = 0; p < depth; p += 2 * PAIRS_PER_BLOCK, panel += PAIRS_PER_BLOCK * width) {
        int64_t count = min_i64(depth - p, 2 * PAIRS_PER_BLOCK);
        for (int64_t j = 0; j < n; j++) pack_adjacent_pairs(source + j * step + p, count, rows[j]);
        transpose_into_panel((const float *)rows, PAIRS_PER_BLOCK, n, packed_depth(count), (float *)panel, width);      /* moves bits only */
    }
}
#endif
