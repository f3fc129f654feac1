/* GEMM on one thread, in float32, in float64 (matmul/gemm_float64.h) or in float32 of bfloat16 operands (matmul/gemm_bfloat16.h): C [m, n] = op(A) op(B) (+ C),
 * row-major, with bias and ReLU applied while a tile is in registers.
 *
 * The loops are those of GotoBLAS and BLIS: blocks of BLOCK_COLUMNS columns of B, BLOCK_DEPTH of the depth and BLOCK_ROWS rows of A; panels of B of
 * TILE_COLUMNS columns; micro-kernels (gemm_micro_kernels.h) of TILE_ROWS rows. What it does beyond that, by gain:
 *   - where C has few rows or columns, A and B exchange roles, and finished tiles are stored transposed (choose_orientation);
 *   - a small B, and a row-major A, are read in place instead of packed (choose_blocks);
 *   - operands stored the other way are packed by vector shuffles (gemm_packing.h);
 *   - few columns, or few rows, are computed by dot products;
 *   - on all threads, panels are packed while the previous ones are multiplied (gemm_parallel.h).
 * All limits are in common/tuning.h. One core reaches 250 of 272 GFLOP/s with 64-byte vectors at 1024^3 in float32. */
#ifndef ORTRAIN_GEMM_H
#define ORTRAIN_GEMM_H
#include <string.h>
#include "matmul/gemm_packing.h"
#include "matmul/gemm_micro_kernels.h"
#include "matmul/gemv.h"

/* Packing space per worker: a block of A with up to 1.5 BLOCK_ROWS rows and one of B, both with up to 1.25 BLOCK_DEPTH of the depth. Workspaces are
 * measured in floats. */
#define PACKED_ELEMENTS ((size_t)(BLOCK_DEPTH + BLOCK_DEPTH / 4) * (BLOCK_ROWS + BLOCK_ROWS / 2 + TILE_ROWS + BLOCK_COLUMNS + TILE_COLUMNS) + 128)
#define PACKED_FLOATS (PACKED_ELEMENTS * (SCALAR_BYTES / 4))

/* A matrix multiplication and its blocking.
 *
 * swapped: A and B (and m and n) have exchanged roles, c is C^T stored with leading dimension ldc, and tiles are stored transposed.
 * stream: tiles are written with non-temporal stores. bias: [columns of C] or NULL. */
typedef struct Gemm {
    int transposed_a, transposed_b, accumulate, relu, swapped, a_in_place, b_in_place, stream;
    int64_t m, n, k, lda, ldb, ldc;
    const scalar *a, *b, *bias;
    scalar *c;
    int64_t depth, rows, columns;                   /* block sizes along k, m and n */
    packed *packed_a, *packed_b;
} Gemm;

/* c [rows, columns] *= alpha */
static void scale_rows(scalar alpha, int64_t rows, int64_t columns, scalar *c, int64_t ldc)
{
    for (int64_t i = 0; i < rows; i++, c += ldc)
        for (int64_t j = 0; j < columns; j++) c[j] *= alpha;
}

/* Add bias [columns] unless it is NULL, then apply ReLU if `relu`, to c [rows, columns] in memory. */
static void apply_epilogue(const scalar *bias, int relu, scalar *c, int64_t ldc, int64_t rows, int64_t columns)
{
    for (int64_t i = 0; i < rows; i++, c += ldc) {
        if (bias) for (int64_t j = 0; j < columns; j++) c[j] += bias[j];
        if (relu) for (int64_t j = 0; j < columns; j++) c[j] = c[j] < 0 ? 0 : c[j];
    }
}

/* ---- few columns of a transposed B: dot products
 *
 * Vectors run along k, where both operands are contiguous, and nothing is packed. A dot kernel computes a tile of ROWS x COLUMNS = LANES dot products, one
 * vector of partial sums each; these LANES vectors are reduced to one vector in log2(LANES) rounds of interleave and add. k >= LANES. */
#if READS_IN_PLACE && VECTOR_BYTES >= 32
#define DOT(ROWS, COLUMNS)                                                                                                               \
static __attribute__((noinline)) void dot_##ROWS##_##COLUMNS(int64_t k, const scalar *restrict a, int64_t lda, const scalar *restrict b, \
                                                             int64_t ldb, scalar *restrict out)                                          \
{                                                                                                                                        \
    vector sum[LANES];                                                                                                                   \
    int64_t p = 0;                                                                                                                       \
    _Pragma("GCC unroll 16") for (int i = 0; i < LANES; i++) sum[i] = (vector){0};                                                       \
    for (; p + LANES <= k; p += LANES) {                                                                                                 \
        vector y[COLUMNS];                                                                                                               \
        _Pragma("GCC unroll 16") for (int j = 0; j < COLUMNS; j++) y[j] = *(const unaligned_vector *)(b + j * ldb + p);                  \
        _Pragma("GCC unroll 16") for (int i = 0; i < ROWS; i++) {                                                                        \
            vector x = *(const unaligned_vector *)(a + i * lda + p);                                                                     \
            _Pragma("GCC unroll 16") for (int j = 0; j < COLUMNS; j++) sum[i * COLUMNS + j] += x * y[j];                                 \
        }                                                                                                                                \
    }                                                                                                                                    \
    if (p < k) {                /* the last vector overlaps the one before; lanes already added are masked */                            \
        static const scalar_bits lanes[32] = {0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,-1,-1,-1,-1,-1,-1,-1,-1,-1,-1,-1,-1,-1,-1,-1,-1};          \
        int_vector mask; memcpy(&mask, lanes + 16 - LANES + (k - p), VECTOR_BYTES);                                                      \
        int64_t o = k - LANES;                                                                                                           \
        _Pragma("GCC unroll 16") for (int i = 0; i < ROWS; i++) {                                                                        \
            vector x = (vector)((int_vector)*(const unaligned_vector *)(a + i * lda + o) & mask);                                        \
            _Pragma("GCC unroll 16") for (int j = 0; j < COLUMNS; j++) {                                                                 \
                vector y = (vector)((int_vector)*(const unaligned_vector *)(b + j * ldb + o) & mask);                                    \
                sum[i * COLUMNS + j] += x * y;                                                                                           \
            }                                                                                                                            \
        }                                                                                                                                \
    }                                                                                                                                    \
    _Pragma("GCC unroll 4") for (int half = LANES / 2; half >= 1; half /= 2)                                                             \
        _Pragma("GCC unroll 8") for (int i = 0; i < half; i++)                                                                           \
            sum[i] = SHUFFLE_PAIR(sum[i], sum[i + half], INTERLEAVED_LOW)                                                           \
                   + SHUFFLE_PAIR(sum[i], sum[i + half], INTERLEAVED_HIGH);                                                         \
    *(unaligned_vector *)out = sum[0];                                                                                                   \
}
#if LANES == 16
DOT(4, 4) DOT(8, 2) DOT(16, 1)
#define DOTS { dot_16_1, dot_8_2, dot_4_4 }
#elif LANES == 8
DOT(2, 4) DOT(4, 2) DOT(8, 1)
#define DOTS { dot_8_1, dot_4_2, dot_2_4 }
#else
DOT(1, 4) DOT(2, 2) DOT(4, 1)
#define DOTS { dot_4_1, dot_2_2, dot_1_4 }
#endif

/* C [m, n] (+)= a [m, k] b^T with b [n, k]; element (i, j) of C is at c + i * row_step + j * column_step. m >= LANES, k >= LANES. */
static void gemm_by_dot_products(int64_t m, int64_t n, int64_t k, const scalar *a, int64_t lda, const scalar *b, int64_t ldb, int accumulate, scalar *c,
                                 int64_t row_step, int64_t column_step)
{
    static void (*const dots[3])(int64_t, const scalar *restrict, int64_t, const scalar *restrict, int64_t, scalar *restrict) = DOTS;
    scalar tile[LANES] __attribute__((aligned(64)));
    const int one_group = n == 1 || n == 2 || n == 4;
    const int64_t block = one_group ? m : (DOT_BLOCK / k / LANES + 1) * LANES;      /* rows of a that stay in L2 for all groups of columns */
    for (int64_t start = 0; start < m; start += block) {
        int64_t end = min_i64(start + block, m);
        for (int64_t j = 0, columns; j < n; j += columns) {
            columns = n - j >= 4 ? 4 : n - j >= 2 ? 2 : 1;
            int64_t rows = LANES / columns;
            for (int64_t i = start, first; i < end; i = first + rows) {
                first = i + rows <= m ? i : m - rows;       /* the last tile overlaps the one before */
                dots[columns / 2](k, a + first * lda, lda, b + j * ldb, ldb, tile);
                for (int64_t y = i - first; y < rows; y++)
                    for (int64_t x = 0; x < columns; x++) {
                        scalar *to = c + (first + y) * row_step + (j + x) * column_step;
                        *to = tile[y * columns + x] + (accumulate ? *to : 0);
                    }
            }
        }
    }
}

static inline int has_few_columns(const Gemm *g) { return g->n <= DOT_COLUMNS && g->m >= LANES; }
static inline int has_few_rows(const Gemm *g) { return g->m <= DOT_ROWS && g->n >= LANES; }
/* Return whether A is row-major, B transposed, and C has few columns or few rows (limits in common/tuning.h). */
static inline int suits_dot_products(const Gemm *g)
{ return !g->transposed_a && g->transposed_b && g->k >= DOT_DEPTH && (has_few_columns(g) || has_few_rows(g)); }

/* C = A B^T by dot products. Where C has few rows, a and b exchange roles, so that the loop runs over the rows of B, the weights of a layer
 * (2 x 784 x 512: 89 to 34 µs). */
static void compute_by_dot_products(const Gemm *g)
{
    if (has_few_columns(g)) gemm_by_dot_products(g->m, g->n, g->k, g->a, g->lda, g->b, g->ldb, g->accumulate, g->c, g->ldc, 1);
    else gemm_by_dot_products(g->n, g->m, g->k, g->b, g->ldb, g->a, g->lda, g->accumulate, g->c, 1, g->ldc);
    if (g->bias || g->relu) apply_epilogue(g->bias, g->relu, g->c, g->ldc, g->m, g->n);
}
#else
static inline int suits_dot_products(const Gemm *g) { (void)g; return 0; }
static void compute_by_dot_products(const Gemm *g) { (void)g; }
#endif

/* ---- the blocked GEMM */

/* Decide whether A and B exchange roles, so that C is computed as (op(B)^T op(A)^T)^T with transposed stores. They do
 *   - if `thin`: C has so few columns that they would fill the vectors of a panel badly;
 *   - if `few_rows`: A has few rows and B is transposed; then rows of B are read in place (SWAP_ROWS, SWAP_STEP);
 * - if `few_columns`: with 8-row tiles, weight gradients of many rows and few columns; the longer side is then packed while tiles are computed and the
 * shorter
 *     one once (512 x 128 x 3136: 133 to 144 GFLOP/s). */
static void choose_orientation(Gemm *g)
{
    int thin = round_to_lanes(g->n) * g->m * 2 > round_to_lanes(g->m) * g->n * 3;
    int few_rows = g->transposed_b && !g->transposed_a && g->m <= SWAP_ROWS && g->ldb <= SWAP_STEP && g->n >= 2 * g->m && g->k >= 32;
    int few_columns = TILE_ROWS == 8 && g->transposed_a && !g->transposed_b && g->n <= MAX_SHARED_ROWS && g->n < g->m;
    if (!thin && !few_rows && !few_columns) return;
    Gemm old = *g;
    g->a = old.b; g->lda = old.ldb; g->transposed_a = !old.transposed_b; g->m = old.n;
    g->b = old.a; g->ldb = old.lda; g->transposed_b = !old.transposed_a; g->n = old.m;
    g->swapped = 1;
}

/* Choose the block sizes, which operands are read in place, and where blocks of them are packed in the workspace. */
static void choose_blocks(Gemm *g, packed *workspace)
{
    int64_t max_depth = g->swapped && g->n <= SWAP_ROWS ? SWAPPED_DEPTH : BLOCK_DEPTH, blocks = (g->k + max_depth - 1) / max_depth;
    g->depth = g->k <= max_depth + max_depth / 4 ? g->k : round_up((g->k + blocks - 1) / blocks, DEPTH_MULTIPLE);
    g->rows = g->m <= MAX_SHARED_ROWS ? g->m : BLOCK_ROWS;
    g->columns = min_i64(g->n, BLOCK_COLUMNS);
    g->a_in_place = READS_IN_PLACE && (!g->transposed_a || g->m * g->depth * SCALAR_BYTES <= DIRECT_A_BYTES || g->n <= DIRECT_TRANSPOSED_A_COLUMNS);
    g->b_in_place = READS_IN_PLACE && !g->transposed_b && (g->m <= DIRECT_B_ROWS || g->k * g->ldb * SCALAR_BYTES <= DIRECT_B_BYTES);
    g->stream = !g->swapped && !g->accumulate && g->k <= g->depth && g->m * g->n >= STREAM_FROM && g->ldc % LANES == 0 && (uintptr_t)g->c % VECTOR_BYTES == 0;
    g->packed_a = workspace;
    g->packed_b = workspace + (g->a_in_place ? 0 : ((g->rows + TILE_ROWS) * g->depth + 15) / 16 * 16);
}

/* Pack rows [row, row + rows of the tiles) of A, depths [k0, k0 + depth), into one panel per tile, or rounded row by row (PACKS_ROWS). */
static void pack_block_of_a(const Gemm *g, int64_t row, int64_t k0, int64_t depth, Tiles tiles)
{
    if (g->transposed_a) {
        pack_tiles(g->a + k0 * g->lda + row, g->lda, depth, tiles, g->packed_a);
        return;
    }
    const scalar *from = g->a + row * g->lda + k0;
    packed *panel = g->packed_a;
    for (int64_t t = 0; t < tiles.count; t++) {
        int64_t rows = rows_of_tile(tiles, t);
#if PACKS_ROWS
        for (int64_t i = 0; i < rows; i++) pack_adjacent_pairs(from + i * g->lda, depth, panel + i * packed_depth(depth));
#else
        pack_transposed(from, g->lda, rows, depth, panel, rows);
#endif
        from += rows * g->lda; panel += rows * packed_depth(depth);
    }
}

/* A panel of B, packed or in place: rows [k0, k0 + depth) of B, `step` elements apart, and `columns` columns from `column`, padded to `width`. */
typedef struct Panel { const packed *rows; int64_t step, column, columns, width, k0, depth; } Panel;

/* The columns of the panel at column j of n: from `first` on `count` columns, padded to `width`.
 *
 * A last panel that would be padded starts earlier instead where it can, and computes some columns for the second time: to the same bits, and without the copy
 * of a padded tile (65 x 65 x 32: 41 to 46 GFLOP/s). Sums that are added to C must not be computed twice. */
typedef struct PanelColumns { int64_t first, count, width; } PanelColumns;
static inline int may_overlap(const Gemm *g) { return PANELS_OVERLAP && !g->swapped && !g->accumulate && !g->stream && g->k <= g->depth; }
static PanelColumns panel_columns(const Gemm *g, int64_t n, int64_t j)
{
    int64_t width = panel_width(n, j), count = min_i64(width, n - j);
    return count < width && n >= width && may_overlap(g) ? (PanelColumns){ n - width, width, width } : (PanelColumns){ j, count, width };
}

/* C (+)= tiles of `rows` rows of A times panels of B, with the epilogue after the last block of the depth: `count` tiles times one panel, or one tile times
 * `panels` adjacent panels, which then have all their columns. The block of A starts at `row`, and the first tile i rows below. prefetch: or NULL. */
static __attribute__((noinline)) void multiply_tiles(const Gemm *g, int64_t row, int64_t i, int64_t rows, int64_t count, const Panel *panel, int64_t panels,
                                                     const Prefetch *prefetch)
{
    scalar edge[TILE_ROWS * TILE_COLUMNS] __attribute__((aligned(64)));
    const int64_t k0 = panel->k0, steps = packed_depth(panel->depth), width = panel->width, columns = panel->columns;
    const int accumulate = g->accumulate || k0 > 0, last = k0 + panel->depth == g->k, whole = columns == width && !g->swapped;
    const packed *a = !g->a_in_place ? g->packed_a + i * steps : in_place(g->transposed_a ? g->a + k0 * g->lda + row + i : g->a + (row + i) * g->lda + k0);
    const int by_rows = !g->transposed_a && (g->a_in_place || PACKS_ROWS);
    const TileKernel multiply = (by_rows ? in_place_tiles : packed_tiles)[rows][width / LANES - 1];
    const int64_t a_step = g->a_in_place ? g->lda : by_rows ? steps : rows, next_a = rows * (by_rows ? a_step : g->a_in_place ? 1 : steps);
    const int64_t next_b = panel->step == width ? width * steps : width;            /* packed, or in place */
    TileSeries tiles = { .count = panels > 1 ? panels : count, .a_step = panels > 1 ? 0 : next_a, .b_step = panels > 1 ? next_b : 0 };
    if (prefetch) tiles.prefetch = *prefetch;
    if (whole) {
        tiles.c_step = panels > 1 ? width : rows * g->ldc; tiles.bias_step = panels > 1 ? width : 0;
        tiles.store_mode = accumulate ? ADD_TILE : g->stream ? STREAM_TILE : STORE_TILE;
        tiles.bias = last && g->bias ? g->bias + panel->column : 0; tiles.relu = last && g->relu;
        multiply(steps, a, a_step, panel->rows, panel->step, g->c + (row + i) * g->ldc + panel->column, g->ldc, &tiles);
        return;
    }
    tiles.count = 1; tiles.store_mode = STORE_TILE;
    for (int64_t t = 0; t < count; t++, i += rows, a += next_a, tiles.prefetch.rows = 0) {
        multiply(steps, a, a_step, panel->rows, panel->step, edge, width, &tiles);
        if (g->swapped) {
            store_transposed(edge, width, g->c + panel->column * g->ldc + row + i, g->ldc, rows, columns, accumulate);
            continue;
        }
        scalar *c = g->c + (row + i) * g->ldc + panel->column;
        store_edge(edge, width, c, g->ldc, rows, columns, accumulate);
        if (last && (g->bias || g->relu)) apply_epilogue(g->bias ? g->bias + panel->column : 0, g->relu, c, g->ldc, rows, columns);
    }
}

/* The same; afterwards a slice of `next` is packed, unless it is NULL. */
static void multiply_tiles_and_pack(const Gemm *g, int64_t row, int64_t i, int64_t rows, int64_t count, const Panel *panel, int64_t panels,
                                    PanelPacking *next)
{
    if (!next) { multiply_tiles(g, row, i, rows, count, panel, panels, NULL); return; }
    Prefetch lines = prefetch_for(next);
    multiply_tiles(g, row, i, rows, count, panel, panels, &lines);
    pack_slice(next, next->slice);
}

/* Return the number of slices in which a run is packed while a panel is multiplied by tiles. */
static inline int64_t slices_of_panel(Tiles tiles) { return ceil_div(tiles.extra, TILES_PER_SLICE) + ceil_div(tiles.count - tiles.extra, TILES_PER_SLICE); }

/* C (+)= a block of A, whose rows start at `row`, times a panel of B. Slices of `next` are packed meanwhile, unless it is NULL. */
static void multiply_panel(const Gemm *g, int64_t row, Tiles tiles, const Panel *panel, PanelPacking *next)
{
    for (int64_t t = 0, i = 0, count, rows; t < tiles.count; t += count, i += count * rows) {
        rows = rows_of_tile(tiles, t);
        count = (t < tiles.extra ? tiles.extra : tiles.count) - t;
        if (next) count = min_i64(count, TILES_PER_SLICE);
        multiply_tiles_and_pack(g, row, i, rows, count, panel, 1, next);
    }
}

/* C (+)= A times `columns` columns of B from `start`, for depths [k0, k0 + depth). Panels of B are packed with the first block of A. */
static void multiply_column_block(const Gemm *g, int64_t start, int64_t columns, int64_t k0, int64_t depth)
{
    for (int64_t row = 0; row < g->m; row += g->rows) {
        int64_t rows = min_i64(g->rows, g->m - row);
        Tiles tiles = tiles_of(rows);
        if (!g->a_in_place) pack_block_of_a(g, row, k0, depth, tiles);
        packed *panels = g->packed_b;
        PanelColumns c;
        for (int64_t j = 0; j < columns; j += c.count) {
            c = panel_columns(g, columns, j);
            int64_t column = start + c.first;
            Panel panel = { panels, c.width, column, c.count, c.width, k0, depth };
            if (g->b_in_place && c.count == c.width) {
                panel.rows = in_place(g->b + k0 * g->ldb + column); panel.step = g->ldb;
            } else if (row == 0) {
                if (g->transposed_b) pack_transposed(g->b + column * g->ldb + k0, g->ldb, c.count, depth, panels, c.width);
                else pack_rows(g->b + k0 * g->ldb + column, g->ldb, c.count, depth, panels, c.width);
            }
            multiply_panel(g, row, tiles, &panel, NULL);
            panels += c.width * packed_depth(depth);
        }
    }
}

/* Compute C in blocks. */
static void multiply_blocks(Gemm *g, packed *workspace)
{
    choose_orientation(g);
    choose_blocks(g, workspace);
    for (int64_t start = 0; start < g->n; start += g->columns)
        for (int64_t k0 = 0; k0 < g->k; k0 += g->depth)
            multiply_column_block(g, start, min_i64(g->columns, g->n - start), k0, min_i64(g->depth, g->k - k0));
    if (g->stream) end_stream();
    if (g->swapped && (g->bias || g->relu)) apply_epilogue(g->bias, g->relu, g->c, g->ldc, g->n, g->m);
}

/* c [m, n] = alpha op(a) op(b) (+ c if `accumulate`), then + bias [n] unless it is NULL, then ReLU if `relu`, on the calling thread. workspace:
 * PACKED_ELEMENTS elements. alpha is 1 with `accumulate`, bias or ReLU. m, n, k >= 1. */
static void packed_gemm(int transposed_a, int transposed_b, int64_t m, int64_t n, int64_t k, scalar alpha, const scalar *a, int64_t lda, const scalar *b,
                         int64_t ldb, int accumulate, scalar *c, int64_t ldc, const scalar *bias, int relu, packed *workspace)
{
    if (!READS_IN_PLACE || !gemv_or_outer_product(transposed_a, transposed_b, m, n, k, a, lda, b, ldb, accumulate, c, ldc, bias, relu)) {
        Gemm g = { .transposed_a = transposed_a, .transposed_b = transposed_b, .accumulate = accumulate, .relu = relu, .m = m, .n = n, .k = k,
                   .lda = lda, .ldb = ldb, .ldc = ldc, .a = a, .b = b, .c = c, .bias = bias };
        if (suits_dot_products(&g)) compute_by_dot_products(&g);
        else multiply_blocks(&g, workspace);
    }
    if (alpha != 1) scale_rows(alpha, m, n, c, ldc);
}
#endif
