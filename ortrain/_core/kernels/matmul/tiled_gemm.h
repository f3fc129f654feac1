/* GEMM of bfloat16 operands on AMX tiles, whose operands are rounded first: C [m, n] = alpha op(A) op(B) (+ C), then bias and ReLU.
 *
 * A row-major: B is rounded and packed once into tiles, A a few rows at a time, which stay in the L1 cache for all panels of B. A transposed: a block of the
 * depth of A is rounded and transposed, one of B rounded to pairs, and their product added to C. Tiles take any sizes, so that sides are rounded up to 16. */
#ifndef ORTRAIN_TILED_GEMM_H
#define ORTRAIN_TILED_GEMM_H
#include "matmul/tiled_products.h"
#if HAVE_AMX

enum {
    GEMM_ITEMS = 16,                                /* work items to aim at */
    PACKED_TILES = 8,                               /* tiles of columns that are packed together */
    MAX_PAIRED_COLUMNS = 256,                       /* of an item where A is transposed: their pairs take 256 KiB */
    ROWS_OF_LARGE_B = 256, LARGE_B = 1 << 18,       /* rows of A that are rounded together, where B has at least so many pairs */
    GEMM_DEPTH = 512                                /* of a block, where A is transposed */
};

typedef struct TiledGemm {
    const Engine *engine;
    int64_t m, n, k, lda, ldb, ldc;
    const float *a, *b, *bias;
    float *c, alpha;
    int transposed_b, accumulate, relu;
    int64_t steps, pairs;                           /* of the depth, and padded pairs of it */
    int64_t rows, block;                            /* of an item, and of those that are rounded together */
    int64_t start, columns, width;                  /* columns of B that the shared workspace holds; those of an item */
    int64_t first, depth;                           /* of the block of the depth */
} TiledGemm;

/* Store a vector of sums with the epilogue to C. */
static inline __attribute__((always_inline)) void store_vector(const TiledGemm *g, const float *sums, __m512 alpha, __m512 shift, int accumulate, float *c,
                                                                __mmask16 mask)
{
    __m512 x = _mm512_mul_ps(_mm512_load_ps(sums), alpha);
    if (accumulate) x = _mm512_add_ps(x, _mm512_maskz_loadu_ps(mask, c));
    if (g->bias) x = _mm512_add_ps(x, shift);
    if (g->relu) x = _mm512_max_ps(_mm512_setzero_ps(), x);                                      /* the second operand is returned for NaN */
    _mm512_mask_storeu_ps(c, mask, x);
}

/* Store sums [rows, PANEL_SIZE] with the epilogue to C at (row, column). */
static void store_sums(const TiledGemm *g, const float *sums, int64_t row, int64_t rows, int64_t column, int64_t columns, int accumulate)
{
    const uint32_t mask = (uint32_t)(((uint64_t)1 << columns) - 1);
    const __mmask16 low = (__mmask16)mask, high = (__mmask16)(mask >> 16);
    const __m512 alpha = _mm512_set1_ps(g->alpha);
    __m512 shift = _mm512_setzero_ps(), more = shift;
    float *c = g->c + row * g->ldc + column;
    if (g->bias) { shift = _mm512_maskz_loadu_ps(low, g->bias + column); more = _mm512_maskz_loadu_ps(high, g->bias + column + TILE_SIZE); }
    for (int64_t i = 0; i < rows; i++, sums += PANEL_SIZE, c += g->ldc) {
        store_vector(g, sums, alpha, shift, accumulate, c, low);
        if (high) store_vector(g, sums + TILE_SIZE, alpha, more, accumulate, c + TILE_SIZE, high);
    }
}

/* ---- A row-major */

/* Pack some tiles of 16 columns of a row-major B, [pairs, 16] each. Rows are read as a whole: those of 16 columns alone would share sets of the cache. */
static void pack_tiles_of_rows(const TiledGemm *g, int64_t column, int64_t columns, packed *to)
{
    for (int64_t p = 0; p < packed_depth(g->k); p++) {
        const float *row = g->b + 2 * p * g->ldb + g->start + column, *next = 2 * p + 1 < g->k ? row + g->ldb : NULL;
        for (int64_t j = 0; j < columns; j += TILE_SIZE) {
            int64_t used = min_i64(TILE_SIZE, columns - j);
            vector second = next ? load_part(next + j, used) : (vector){0};
            *(unaligned_int_vector *)(to + j * g->pairs + p * TILE_SIZE) = pairs_of(load_part(row + j, used), second);
        }
    }
}

/* Pack some columns of B, tiles of 16 columns: [pairs, 16] each. */
static void pack_columns(const TiledGemm *g, int64_t column, int64_t columns, packed *to)
{
    const int64_t filled = packed_depth(g->k);
    if (!g->transposed_b) pack_tiles_of_rows(g, column, columns, to);
    for (int64_t j = 0; j < columns; j += TILE_SIZE) {
        packed *tile = to + j * g->pairs;
        if (g->transposed_b)
            pack_transposed(g->b + (g->start + column + j) * g->ldb, g->ldb, min_i64(TILE_SIZE, columns - j), g->k, tile, TILE_SIZE);
        memset(tile + filled * TILE_SIZE, 0, (size_t)((g->pairs - filled) * TILE_SIZE) * sizeof(packed));
    }
}
static void pack_columns_item(void *context, int64_t item, int64_t worker)
{
    const TiledGemm *g = context; (void)worker;
    int64_t column = item * PACKED_TILES * TILE_SIZE;
    pack_columns(g, column, min_i64(PACKED_TILES * TILE_SIZE, g->columns - column),
                 workspace_of(g->engine, g->engine->shared_workspace) + column * g->pairs);
}

/* Multiply some rows of A by the packed columns of B. */
static void multiply_rounded_rows_item(void *context, int64_t item, int64_t worker)
{
    const TiledGemm *g = context;
    const int64_t zero = 0, step = odd_lines(2 * g->pairs), length = 2 * g->pairs / g->steps, end = min_i64(g->m, (item + 1) * g->rows);
    float sums[PANEL_SIZE * PANEL_SIZE] __attribute__((aligned(64)));
    packed *rounded = workspace_of(g->engine, worker), *columns = workspace_of(g->engine, g->engine->shared_workspace);
    TiledProduct p = { .a_row = 2 * step, .a_half = TILE_SIZE * step, .a_step = length, .b_row = 64, .b_half = TILE_SIZE * g->pairs * 2,
                       .b_step = length * TILE_SIZE, .runs = 1, .steps = g->steps, .starts = &zero };
    configure_tiles_of_depth(length);
    for (int64_t block = item * g->rows; block < end; block += g->block) {
        int64_t rows = min_i64(g->block, end - block);
        for (int64_t i = 0; i < rows; i++) round_adjacent(g->a + (block + i) * g->lda, g->k, rounded + i * step / 2);
        for (int64_t column = 0; column < g->columns; column += PANEL_SIZE) {
            int64_t used = min_i64(PANEL_SIZE, g->columns - column);
            p.b = (const bfloat16 *)(columns + column * g->pairs);
            for (int64_t row = 0; row < rows; row += PANEL_SIZE) {
                int64_t count = min_i64(PANEL_SIZE, rows - row);
                p.a = (const bfloat16 *)rounded + row * step;
                multiply_sums(&p, count, used, sums);
                store_sums(g, sums, block + row, count, g->start + column, used, g->accumulate);
            }
        }
    }
    release_tiles();
}

static int multiply_rows(TiledGemm *g)
{
    const Engine *e = g->engine;
    g->pairs = padded_pairs(1, packed_depth(g->k));
    g->steps = steps_of_run(2 * g->pairs);
    int64_t step = odd_lines(2 * g->pairs), room = e->workspace_floats / g->pairs / PANEL_SIZE * PANEL_SIZE;
    g->block = g->n * g->pairs < LARGE_B ? PANEL_SIZE : ROWS_OF_LARGE_B;
    if (!room || (g->block + PANEL_SIZE) * step / 2 > e->workspace_floats) return 0;
    g->rows = round_up(ceil_div(g->m, GEMM_ITEMS), PANEL_SIZE);
    for (g->start = 0; g->start < g->n; g->start += g->columns) {
        g->columns = min_i64(g->n - g->start, room);
        e->parallel_for(e, pack_columns_item, g, ceil_div(g->columns, PACKED_TILES * TILE_SIZE));
        e->parallel_for(e, multiply_rounded_rows_item, g, ceil_div(g->m, g->rows));
    }
    return 1;
}

/* ---- A transposed, B row-major */

/* Transpose the block of the depth of 16 rows of op(A). */
static void transpose_rows_item(void *context, int64_t item, int64_t worker)
{
    const TiledGemm *g = context; (void)worker;
    int64_t row = item * TILE_SIZE, depth = round_up(g->depth, STEP_DEPTH), step = odd_lines(depth);
    bfloat16 *to = (bfloat16 *)workspace_of(g->engine, g->engine->shared_workspace) + row * step;
    transpose_points(g->a + g->first * g->lda + row, g->lda, g->depth, depth, min_i64(TILE_SIZE, g->m - row), to, step);
}

/* Multiply all rows of op(A) by some columns of B, over the block of the depth. */
static void multiply_paired_columns_item(void *context, int64_t item, int64_t worker)
{
    const TiledGemm *g = context;
    const int64_t zero = 0, depth = round_up(g->depth, STEP_DEPTH), step = odd_lines(depth), start = item * g->width;
    int64_t columns = min_i64(g->width, g->n - start), padded = round_up(columns, TILE_SIZE);
    float sums[PANEL_SIZE * PANEL_SIZE] __attribute__((aligned(64)));
    const bfloat16 *a = (const bfloat16 *)workspace_of(g->engine, g->engine->shared_workspace);
    packed *pairs = workspace_of(g->engine, worker);
    for (int64_t p = 0; p < depth; p += 2) {
        const float *row = g->b + (g->first + p) * g->ldb + start;
        round_pair_of_rows(p < g->depth ? row : NULL, p + 1 < g->depth ? row + g->ldb : NULL, columns, pairs + p / 2 * padded);
    }
    TiledProduct p = { .a_row = 2 * step, .a_half = TILE_SIZE * step, .a_step = STEP_DEPTH, .b_row = 4 * padded, .b_half = 2 * TILE_SIZE,
                       .b_step = 2 * TILE_SIZE * padded, .runs = 1, .steps = depth / STEP_DEPTH, .starts = &zero };
    configure_tiles_of_depth(STEP_DEPTH);
    for (int64_t row = 0; row < g->m; row += PANEL_SIZE)
        for (int64_t column = 0; column < columns; column += PANEL_SIZE) {
            int64_t rows = min_i64(PANEL_SIZE, g->m - row), used = min_i64(PANEL_SIZE, columns - column);
            p.a = a + row * step;
            p.b = (const bfloat16 *)(pairs + column);
            multiply_sums(&p, rows, used, sums);
            store_sums(g, sums, row, rows, start + column, used, g->accumulate || g->first > 0);
        }
    release_tiles();
}

static int multiply_blocks_of_depth(TiledGemm *g)
{
    const Engine *e = g->engine;
    int64_t blocks = ceil_div(g->k, GEMM_DEPTH), depth = round_up(ceil_div(g->k, blocks), STEP_DEPTH);
    g->width = min_i64(MAX_PAIRED_COLUMNS, round_up(ceil_div(g->n, e->workers), PANEL_SIZE));
    if (round_up(g->m, PANEL_SIZE) * odd_lines(depth) / 2 > e->workspace_floats || (g->width + TILE_SIZE) * depth / 2 > e->workspace_floats) return 0;
    const float *bias = g->bias; const int relu = g->relu;
    for (g->first = 0; g->first < g->k; g->first += depth) {
        const int last = g->first + depth >= g->k;
        g->depth = min_i64(depth, g->k - g->first);
        g->bias = last ? bias : NULL; g->relu = last && relu;
        e->parallel_for(e, transpose_rows_item, g, ceil_div(g->m, TILE_SIZE));
        e->parallel_for(e, multiply_paired_columns_item, g, ceil_div(g->n, g->width));
    }
    return 1;
}

/* Return whether amx_gemm.h, which packs panels while others are multiplied, is faster than rounding operands first. */
static inline int is_faster_in_panels(const Engine *e, int transposed_a, int64_t m, int64_t n, int64_t k)
{ return suits_amx(e, m, n, k) && (transposed_a ? m * n > MOST_WEIGHTS : n * k > MOST_PACKED || m < LEAST_ROWS); }

static int multiply_on_tiles(TiledGemm *g, int transposed_a)
{
    if (transposed_a && g->transposed_b) return 0;
    return transposed_a ? multiply_blocks_of_depth(g) : multiply_rows(g);
}

/* Compute a GEMM with the arguments of parallel_gemm on tiles and return 1, or return 0 where that is not possible or not faster. */
static int tiled_gemm(const Engine *engine, int transposed_a, int transposed_b, int64_t m, int64_t n, int64_t k, float alpha, const float *a, int64_t lda,
                      const float *b, int64_t ldb, int accumulate, float *c, int64_t ldc, const float *bias, int relu)
{
    TiledGemm g = { .engine = engine, .m = m, .n = n, .k = k, .lda = lda, .ldb = ldb, .ldc = ldc, .a = a, .b = b, .bias = bias, .c = c, .alpha = alpha,
                    .transposed_b = transposed_b, .accumulate = accumulate, .relu = relu };
    if (!engine->amx || !suits_tiled_gemm(transposed_a, m, n, k) || is_faster_in_panels(engine, transposed_a, m, n, k)) return 0;
    return multiply_on_tiles(&g, transposed_a);
}

/* Run work items on the calling worker. */
static void run_items(const Engine *engine, WorkItem work, void *context, int64_t items)
{
    (void)engine;
    for (int64_t i = 0; i < items; i++) work(context, i, 0);
}

/* tiled_gemm on the calling worker, for use inside a work item: both workspaces are halves of the worker's. Sizes that are faster in panels are computed, too,
 * as those are not on one worker. */
static int tiled_gemm_serial(const Engine *engine, int64_t worker, int transposed_a, int transposed_b, int64_t m, int64_t n, int64_t k, float alpha,
                             const float *a, int64_t lda, const float *b, int64_t ldb, int accumulate, float *c, int64_t ldc, const float *bias, int relu)
{
    Engine serial = *engine;
    TiledGemm g = { .engine = &serial, .m = m, .n = n, .k = k, .lda = lda, .ldb = ldb, .ldc = ldc, .a = a, .b = b, .bias = bias, .c = c, .alpha = alpha,
                    .transposed_b = transposed_b, .accumulate = accumulate, .relu = relu };
    if (!engine->amx || !suits_tiled_gemm(transposed_a, m, n, k)) return 0;
    serial.pool = NULL; serial.workers = 1; serial.parallel_for = run_items;
    serial.workspaces = (float *)workspace_of(engine, worker); serial.workspace_floats = engine->workspace_floats / 2; serial.shared_workspace = 1;
    return multiply_on_tiles(&g, transposed_a);
}

/* ---- time steps of recurrent layers (step_gemm.h) */

/* Pack weights [depth, columns], or [columns, depth] if `transposed`, both contiguous. panels: room for depth * round_to_lanes(columns) floats. */
static void pack_tiled_step_weights(const float *weights, int transposed, int64_t depth, int64_t columns, void *panels)
{
    const TiledGemm g = { .b = weights, .ldb = transposed ? depth : columns, .k = depth, .transposed_b = transposed,
                          .pairs = padded_pairs(1, packed_depth(depth)) };
    pack_columns(&g, 0, columns, panels);
}

/* c [rows, columns] = a [rows, depth] times packed weights, or += if `accumulate`. */
static void tiled_step_gemm(const Engine *engine, int64_t worker, int64_t rows, int64_t columns, int64_t depth, const float *a, int64_t lda, const void *panels,
                            int accumulate, float *c, int64_t ldc)
{
    const TiledGemm g = { .c = c, .ldc = ldc, .alpha = 1 };
    const int64_t zero = 0, pairs = padded_pairs(1, packed_depth(depth)), step = odd_lines(2 * pairs), steps = steps_of_run(2 * pairs);
    float sums[PANEL_SIZE * PANEL_SIZE] __attribute__((aligned(64)));
    packed *rounded = workspace_of(engine, worker);
    TiledProduct p = { .a_row = 2 * step, .a_half = TILE_SIZE * step, .a_step = 2 * pairs / steps, .b_row = 64, .b_half = TILE_SIZE * pairs * 2,
                       .b_step = 2 * pairs / steps * TILE_SIZE, .runs = 1, .steps = steps, .starts = &zero };
    for (int64_t i = 0; i < rows; i++) round_adjacent(a + i * lda, depth, rounded + i * step / 2);
    configure_tiles_of_depth(2 * pairs / steps);
    for (int64_t row = 0; row < rows; row += PANEL_SIZE)
        for (int64_t column = 0; column < columns; column += PANEL_SIZE) {
            int64_t count = min_i64(PANEL_SIZE, rows - row), used = min_i64(PANEL_SIZE, columns - column);
            p.a = (const bfloat16 *)rounded + row * step;
            p.b = (const bfloat16 *)((const packed *)panels + column * pairs);
            multiply_sums(&p, count, used, sums);
            store_sums(&g, sums, row, count, column, used, accumulate);
        }
    release_tiles();
}
#else
static int tiled_gemm(const Engine *engine, int transposed_a, int transposed_b, int64_t m, int64_t n, int64_t k, float alpha, const float *a, int64_t lda,
                      const float *b, int64_t ldb, int accumulate, float *c, int64_t ldc, const float *bias, int relu)
{
    (void)engine; (void)transposed_a; (void)transposed_b; (void)m; (void)n; (void)k; (void)alpha; (void)a; (void)lda; (void)b; (void)ldb; (void)accumulate;
    (void)c; (void)ldc; (void)bias; (void)relu;
    return 0;
}
static int tiled_gemm_serial(const Engine *engine, int64_t worker, int transposed_a, int transposed_b, int64_t m, int64_t n, int64_t k, float alpha,
                             const float *a, int64_t lda, const float *b, int64_t ldb, int accumulate, float *c, int64_t ldc, const float *bias, int relu)
{
    (void)worker;
    return tiled_gemm(engine, transposed_a, transposed_b, m, n, k, alpha, a, lda, b, ldb, accumulate, c, ldc, bias, relu);
}
static void pack_tiled_step_weights(const float *weights, int transposed, int64_t depth, int64_t columns, void *panels)
{ pack_step_weights(weights, transposed, depth, columns, panels); }
static void tiled_step_gemm(const Engine *engine, int64_t worker, int64_t rows, int64_t columns, int64_t depth, const float *a, int64_t lda, const void *panels,
                            int accumulate, float *c, int64_t ldc) { step_gemm(engine, worker, rows, columns, depth, a, lda, panels, accumulate, c, ldc); }
#endif
#endif
