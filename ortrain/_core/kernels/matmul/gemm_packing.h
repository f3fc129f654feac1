/* Packing for GEMMs: blocks of A and B copied into panels that a micro-kernel reads sequentially, and tiles of C stored transposed.
 *
 * A panel of B [depth, width] holds up to TILE_COLUMNS adjacent columns, depth-major; a panel of A [depth, rows] holds the rows of one tile, depth-major.
 * Operands that are stored the other way are transposed with vector shuffles: copying single elements took 8 % of the time of a GEMM. */
#ifndef ORTRAIN_GEMM_PACKING_H
#define ORTRAIN_GEMM_PACKING_H
#include <string.h>
#include "common/integers.h"
#include "matmul/gemm_micro_kernels.h"
#if SCALAR_BYTES == 8
#include "matmul/gemm_transposes_float64.h"
#else
#include "matmul/gemm_transposes_float32.h"
#endif

static inline int64_t round_to_lanes(int64_t n) { return (n + LANES - 1) / LANES * LANES; }

/* Return the width of the next panel, a multiple of LANES, where `rest` columns remain and a panel has at most `max_vectors` vectors. The last two panels share
 * their columns evenly, so that none is thin. */
static inline int64_t balanced_width(int64_t rest, int64_t max_vectors)
{
    int64_t vectors = (rest + LANES - 1) / LANES;
    if (rest >= 2 * max_vectors * LANES || rest == max_vectors * LANES) return max_vectors * LANES;
    return (vectors <= max_vectors ? vectors : (vectors + 1) / 2) * LANES;
}

/* Return the width of the panel of B at column j of n. */
static inline int64_t panel_width(int64_t n, int64_t j) { return balanced_width(n - j, TILE_VECTORS); }

/* Return the number of elements of a panel's column: of its depth, or of pairs of it, the last of which ends with 0 where the depth is odd. */
static inline int64_t packed_depth(int64_t depth)
{
#ifdef BFLOAT16_PAIRS
    return (depth + 1) / 2;
#else
    return depth;
#endif
}

/* Load `count` <= LANES elements, and zeros in the remaining lanes. */
static inline __attribute__((unused)) vector load_part(const scalar *from, int64_t count)
{
#if VECTOR_BYTES == 64 && SCALAR_BYTES == 4
    return (vector)_mm512_maskz_loadu_ps((__mmask16)((1u << count) - 1), from);
#else
    vector part = {0};
    memcpy(&part, from, (size_t)count * sizeof(scalar));
    return part;
#endif
}

/* to [count] = the first elements of `from`. count <= LANES. */
static inline __attribute__((unused)) void store_part(scalar *to, vector from, int64_t count)
{
#if VECTOR_BYTES == 64 && SCALAR_BYTES == 4
    _mm512_mask_storeu_ps(to, (__mmask16)((1u << count) - 1), (__m512)from);
#else
    memcpy(to, &from, (size_t)count * sizeof(scalar));
#endif
}

/* c [rows, columns] = edge [rows, width], a tile whose last columns are padding, or += if `accumulate`. */
static inline void store_edge(const scalar *edge, int64_t width, scalar *c, int64_t ldc, int64_t rows, int64_t columns, int accumulate)
{
    for (int64_t y = 0; y < rows; y++, c += ldc, edge += width) {
#if VECTOR_BYTES == 64 && SCALAR_BYTES == 4
        for (int64_t x = 0; x < columns; x += LANES) {
            int64_t count = min_i64(columns - x, LANES);
            vector sums = *(const vector *)(edge + x);
            store_part(c + x, accumulate ? sums + load_part(c + x, count) : sums, count);
        }
#else
        for (int64_t x = 0; x < columns; x++) c[x] = edge[x] + (accumulate ? c[x] : 0);
#endif
    }
}

/* Return an operand that is read in place as the elements of a panel. */
static inline const packed *in_place(const scalar *operand) { return (const packed *)operand; }

#ifdef BFLOAT16_PAIRS
#include "matmul/bfloat16_packing.h"
#else
/* panel[p, j] = source[p, j] for p < depth, j < n, and 0 for n <= j < width; step: row stride of the source */
static __attribute__((noinline)) void pack_rows(const scalar *source, int64_t step, int64_t n, int64_t depth, packed *panel, int64_t width)
{
    if (n == width && n % LANES == 0) {
        for (int64_t p = 0; p < depth; p++)
            for (int64_t j = 0; j < n; j += LANES) *(unaligned_vector *)(panel + p * width + j) = *(const unaligned_vector *)(source + p * step + j);
        return;
    }
    for (int64_t p = 0; p < depth; p++) {
        int64_t j = 0;
        for (; j < n; j++) panel[p * width + j] = source[p * step + j];
        for (; j < width; j++) panel[p * width + j] = 0;
    }
}

/* Copy `rows` rows of B into `count` adjacent full panels [depth, TILE_COLUMNS]: panel[i][p, j] = source[p, i * TILE_COLUMNS + j]. */
static __attribute__((noinline, unused)) void pack_row_panels(const scalar *source, int64_t step, int64_t rows, int64_t count, scalar *panel, int64_t depth)
{
    for (int64_t p = 0; p < rows; p++, source += step, panel += TILE_COLUMNS)
        for (int64_t i = 0; i < count; i++)
            for (int64_t j = 0; j < TILE_COLUMNS; j += LANES)
                *(unaligned_vector *)(panel + i * depth * TILE_COLUMNS + j) = *(const unaligned_vector *)(source + i * TILE_COLUMNS + j);
}

/* Copy `rows` rows of transposed A into `count` adjacent panels [depth, width] of tiles with `width` rows. Inlined per width, so that memcpy becomes a few
 * moves. */
static inline __attribute__((always_inline)) void pack_equal_tiles(const scalar *source, int64_t step, int64_t rows, int64_t count, const int64_t width,
                                                                   scalar *panel, int64_t depth)
{
    for (int64_t p = 0; p < rows; p++, source += step)
        for (int64_t t = 0; t < count; t++) memcpy(panel + (p + t * depth) * width, source + t * width, width * sizeof(scalar));
}

/* panel[p, j] = source[j, p] for p < depth, j < n, and 0 for n <= j < width; step: row stride of the source */
static inline void pack_transposed(const scalar *source, int64_t step, int64_t n, int64_t depth, packed *panel, int64_t width)
{ transpose_into_panel(source, step, n, depth, panel, width); }
#endif

/* Panels that are packed while the previous ones are multiplied: after each tile, `slice` more rows of B or of transposed A. The rows are prefetched while the
 * tile is computed and packed right afterwards, because rows of wide matrices share sets of the L2 cache, which would not keep many of them (128 x 4096 x 4096
 * spent a fifth of its time on packing, and prefetching all panels of an item gained nothing).
 *
 * count, width: of the panels; done: rows of `depth` that are packed. */
typedef struct PanelPacking { const scalar *source; int64_t step, depth, count, width, done, slice; packed *panel; } PanelPacking;

/* Return the part of the source that follows the next slice. */
static inline Prefetch prefetch_for(const PanelPacking *next)
{
    int64_t from = next->done + next->slice;
    return (Prefetch){ next->source + from * next->step, next->step, min_i64(next->slice, next->depth - from), (next->count * next->width + LINE - 1) / LINE };
}

/* Return the rows of a slice of at least `rows` rows. */
static inline int64_t slice_of(int64_t rows) { return (rows / DEPTH_MULTIPLE + 1) * DEPTH_MULTIPLE; }

/* Pack the next `rows` rows, or those that remain. */
static __attribute__((unused)) void pack_slice(PanelPacking *next, int64_t rows)
{
    const scalar *source = next->source + next->done * next->step;
    packed *panel = next->panel + packed_depth(next->done) * next->width;
    rows = min_i64(rows, next->depth - next->done);
    if (next->width == TILE_ROWS) pack_equal_tiles(source, next->step, rows, next->count, TILE_ROWS, panel, next->depth);
    else pack_row_panels(source, next->step, rows, next->count, panel, next->depth);
    next->done += rows;
}

/* The rows of a block split into tiles: `count` tiles of `base` rows, the first `extra` of them with one row more. */
typedef struct Tiles { int64_t count, base, extra; } Tiles;

static inline Tiles tiles_of_height(int64_t rows, int64_t max_rows)
{
    int64_t count = (rows + max_rows - 1) / max_rows;
    return (Tiles){ count, rows / count, rows % count };
}
static inline Tiles tiles_of(int64_t rows) { return tiles_of_height(rows, TILE_ROWS); }
static inline int64_t rows_of_tile(Tiles tiles, int64_t tile) { return tiles.base + (tile < tiles.extra); }

/* Pack a block of transposed A [depth, rows] into one panel per tile. Panels of equal width are packed TILES_PER_RUN at a time: panels are often a multiple of
 * 4 KiB apart, the span of one way of the L1 cache, so more write streams would evict each other (8192 x 256 x 1024: 196 against 225 GFLOP/s). */
static __attribute__((noinline, unused)) void pack_tiles(const scalar *source, int64_t step, int64_t depth, Tiles tiles, packed *panel)
{
    for (int64_t first = 0, count; first < tiles.count; first += count) {
        int64_t rows = rows_of_tile(tiles, first), end = first < tiles.extra ? tiles.extra : tiles.count;
        count = min_i64(end - first, TILES_PER_RUN);
        switch (rows) {
        case TILE_ROWS: pack_equal_tiles(source, step, depth, count, TILE_ROWS, panel, depth); break;
        case TILE_ROWS - 1: pack_equal_tiles(source, step, depth, count, TILE_ROWS - 1, panel, depth); break;
        case TILE_ROWS - 2: pack_equal_tiles(source, step, depth, count, TILE_ROWS - 2, panel, depth); break;
        default: pack_equal_tiles(source, step, depth, count, rows, panel, depth);
        }
        source += count * rows; panel += count * rows * packed_depth(depth);
    }
}
#endif
