/* GEMM on all threads: the operand that all work items read is packed once, in parallel, into a shared buffer; then each item computes rows or
 * columns of C.
 *
 * split_rows (many rows of A): B is packed as a whole, in chunks that fit in the L2 cache. An item reads its rows of A in place, or packs them in runs of
 * tiles where A is transposed. split_columns (few rows of A): A is packed as a whole, and an item packs its panels of B in runs. In both, a run is packed
 * while the previous one is multiplied. If every item packed the shared operand itself, 1024 x 256 x 256 would take 10 to 20 % longer. GEMVs, outer products
 * and dot products are split without packing. The split depends on the shape only, so results are the same for any number of threads; the limits are in
 * common/tuning.h. */
#ifndef ORTRAIN_GEMM_PARALLEL_H
#define ORTRAIN_GEMM_PARALLEL_H
#include "kernel.h"
#include "matmul/gemm.h"

typedef struct ParallelGemm {
    const Engine *engine;
    Gemm gemm;
    scalar alpha;
    packed *shared;                                  /* packed panels of the shared operand */
    int64_t step;                                   /* rows or columns of an item */
    int by_tiles;                                   /* the outer loop of an item runs over tiles of A and the inner one over panels of B, else the reverse */
    int64_t start, columns, k0, end;              /* the chunk in `shared`: columns [start, start + columns), depths [k0, end) */
} ParallelGemm;

/* Return the packing buffer of a worker, or the shared one for engine->shared_workspace. */
static inline packed *workspace_of(const Engine *engine, int64_t worker) { return (packed *)(engine->workspaces + worker * engine->workspace_floats); }

/* Return the GEMM of `rows` rows of A from `row` and `columns` columns of B from `column`. */
static Gemm part_of_gemm(const ParallelGemm *p, int64_t row, int64_t rows, int64_t column, int64_t columns)
{
    Gemm g = p->gemm;
    g.a += g.transposed_a ? row : row * g.lda;
    g.b += g.transposed_b ? column * g.ldb : column;
    g.c += g.swapped ? column * g.ldc + row : row * g.ldc + column;
    if (g.bias && !g.swapped) g.bias += column;
    g.m = rows; g.n = columns;
    return g;
}

/* Apply what micro-kernels could not, after the last chunk of the depth: alpha, and bias and ReLU of tiles that were stored transposed.
 *
 * row: the first row of A of this part; where the GEMM is swapped, the bias runs along rows of A. */
static void finish_part(const ParallelGemm *p, const Gemm *part, int64_t row)
{
    if (part->stream) end_stream();
    if (p->end < p->gemm.k) return;
    int64_t rows = part->swapped ? part->n : part->m, columns = part->swapped ? part->m : part->n;
    if (p->alpha != 1) scale_rows(p->alpha, rows, columns, part->c, part->ldc);
    if (part->swapped && (part->bias || part->relu)) apply_epilogue(part->bias ? part->bias + row : 0, part->relu, part->c, part->ldc, rows, columns);
}

/* Return the number of panels within columns [column, end) that have the full width TILE_COLUMNS; n: all columns. */
static inline int64_t full_panels(int64_t n, int64_t column, int64_t end)
{
    int64_t count = (end - column) / TILE_COLUMNS;
    while (count > 0 && panel_width(n, column + (count - 1) * TILE_COLUMNS) < TILE_COLUMNS) count--;
    return count;
}

/* Pack depths [k0, k0 + depth) of the panels of B that start within columns [column, end). Columns are counted from column `first` of B; `n` columns in all are
 * divided into panels, and the panel that starts at column j is stored at panels + j * depth. Returns the column after the last panel, `end` or more.
 *
 * Full panels are packed PANELS_PER_RUN at a time: a panel takes only a few cache lines of each row, and rows of wide matrices are on different pages
 * (128 x 4096 x 4096: 73 to 86 GFLOP/s). */
static int64_t pack_panels(const Gemm *g, int64_t first, int64_t k0, int64_t depth, int64_t n, int64_t column, int64_t end, packed *panels)
{
    while (column < end) {
        PanelColumns c = panel_columns(g, n, column);
        packed *panel = panels + column * packed_depth(depth);
        int64_t full = g->transposed_b ? 0 : min_i64(full_panels(n, column, end), PANELS_PER_RUN);
        if (full > 1) {
            c.count = full * TILE_COLUMNS;
            pack_row_panels(g->b + k0 * g->ldb + first + column, g->ldb, depth, full, panel, depth);
        } else if (g->transposed_b) {
            pack_transposed(g->b + (first + c.first) * g->ldb + k0, g->ldb, c.count, depth, panel, c.width);
        } else {
            pack_rows(g->b + k0 * g->ldb + first + c.first, g->ldb, c.count, depth, panel, c.width);
        }
        column += c.count;
    }
    return column;
}

/* ---- rows are split, B is shared */

/* Return how many columns of a chunk an item packs: fewer of a narrow chunk, so that threads share it more evenly. */
static inline int64_t packing_columns(int64_t columns) { return columns < FEW_PACKED_COLUMNS ? MIN_PACKED_COLUMNS : COLUMNS_PER_PACKING; }

/* Return the number of items that pack the columns of a chunk. The last item also takes the remainder: so more than two panels remain at the start of every
 * item, and all panels before it have the full width. */
static inline int64_t packing_item_count(int64_t columns) { return max_i64(columns / packing_columns(columns), 1); }

/* Pack the panels of an item's columns of the chunk, at all its depths. */
static void pack_shared_columns_item(void *context, int64_t item, int64_t worker)
{
    const ParallelGemm *p = context; const Gemm *g = &p->gemm; (void)worker;
    int64_t step = packing_columns(p->columns), end = item + 1 < packing_item_count(p->columns) ? (item + 1) * step : p->columns;
    for (int64_t k0 = p->k0; k0 < p->end; k0 += g->depth) {
        int64_t depth = min_i64(g->depth, g->k - k0);
        pack_panels(g, p->start, k0, depth, p->columns, item * step, end, p->shared + packed_depth(k0 - p->k0) * round_to_lanes(p->columns));
    }
}

/* Return the panel that starts at column j of an item's GEMM `g`, at one block of the depth, packed or in place. */
static inline Panel shared_panel(const ParallelGemm *p, const Gemm *g, int64_t k0, int64_t j)
{
    int64_t depth = min_i64(g->depth, g->k - k0);
    PanelColumns c = panel_columns(g, g->n, j);
    if (g->b_in_place && c.count == c.width) return (Panel){ in_place(g->b + k0 * g->ldb + c.first), g->ldb, c.first, c.count, c.width, k0, depth };
    const packed *panel = p->shared + packed_depth(k0 - p->k0) * round_to_lanes(p->columns) + j * packed_depth(depth);
    return (Panel){ panel, c.width, c.first, c.count, c.width, k0, depth };
}

/* Return how many panels from column j of an item on one call may multiply by a tile: full ones, and the next one if there are none. */
static inline int64_t panels_together(const Gemm *g, int64_t j)
{ return g->swapped ? 1 : max_i64(full_panels(g->n, j, g->n), 1); }

/* Multiply one tile of A after another, read in place, with all panels. The rows of the next tile are prefetched meanwhile. */
static void multiply_by_tiles(const ParallelGemm *p, const Gemm *g, Tiles tiles, int64_t k0)
{
    for (int64_t t = 0, i = 0, rows; t < tiles.count; t++, i += rows) {
        rows = rows_of_tile(tiles, t);
        int64_t lines = min_i64(g->depth, g->k - k0) / LINE, next = lines && t + 1 < tiles.count ? rows_of_tile(tiles, t + 1) : 0;
        Prefetch prefetch = { g->a + (i + rows) * g->lda + k0, g->lda, next, lines };
        for (int64_t j = 0, panels; j < g->n; prefetch.rows = 0) {
            Panel panel = shared_panel(p, g, k0, j);
            panels = panels_together(g, j);
            multiply_tiles(g, 0, i, rows, 1, &panel, panels, &prefetch);
            j += panels * panel.columns;
        }
    }
}

/* Return the packing, into `panels`, of up to TILES_PER_RUN tiles from `tile` on of transposed A, whose rows are whole tiles. */
static PanelPacking tiles_from(const Gemm *g, int64_t k0, int64_t tile, packed *panels)
{
    int64_t count = min_i64(g->m / TILE_ROWS - tile, TILES_PER_RUN);
    return (PanelPacking){ g->a + k0 * g->lda + tile * TILE_ROWS, g->lda, min_i64(g->depth, g->k - k0), count, TILE_ROWS, 0, 0, panels };
}

/* Multiply a run of `count` tiles of transposed A, whose rows start at `row`, with all panels; slices of `next` are packed meanwhile, unless it is NULL. */
static void multiply_tiles_of_run(const ParallelGemm *p, const Gemm *g, int64_t k0, int64_t row, int64_t count, PanelPacking *next)
{
    const int64_t together = p->by_tiles ? 1 : count;           /* tiles that are multiplied with one panel after another */
    for (int64_t t = 0; t < count; t += together)
        for (int64_t j = 0, panels; j < g->n;) {
            Panel panel = shared_panel(p, g, k0, j);
            panels = p->by_tiles ? min_i64(panels_together(g, j), TILES_PER_SLICE) : 1;
            for (int64_t i = t, tiles; i < t + together; i += tiles) {
                tiles = min_i64(t + together - i, TILES_PER_SLICE);
                multiply_tiles_and_pack(g, row, i * TILE_ROWS, TILE_ROWS, tiles, &panel, panels, next);
            }
            j += panels * panel.columns;
        }
}

/* Multiply transposed A in runs of tiles; a run is packed while the previous one is multiplied. panels: room for two runs. */
static void multiply_by_runs(const ParallelGemm *p, Gemm *g, packed *panels)
{
    packed *others = panels + TILES_PER_RUN * TILE_ROWS * g->depth;
    PanelPacking run = tiles_from(g, p->k0, 0, panels), next;
    pack_slice(&run, run.depth);
    for (int64_t k0 = p->k0, tile = 0, row = 0; k0 < p->end; run = next, row = tile * TILE_ROWS, others = g->packed_a) {
        int64_t now = k0;
        tile += run.count;
        if (tile * TILE_ROWS == g->m) { tile = 0; k0 += g->depth; }
        next = k0 < p->end ? tiles_from(g, k0, tile, others) : (PanelPacking){0};
        next.slice = slice_of(next.depth * TILE_COLUMNS * TILES_PER_SLICE / (run.count * round_to_lanes(g->n)));
        g->packed_a = run.panel;
        multiply_tiles_of_run(p, g, now, row, run.count, next.depth ? &next : NULL);
        if (next.depth) pack_slice(&next, next.depth);
    }
}

/* Compute the rows [item * step, (item + 1) * step) of C with the chunk in `shared`. */
static void multiply_rows_item(void *context, int64_t item, int64_t worker)
{
    const ParallelGemm *p = context;
    int64_t row = item * p->step;
    Gemm g = part_of_gemm(p, row, min_i64(p->step, p->gemm.m - row), p->start, p->columns);
    Tiles tiles = tiles_of(g.m);
    g.packed_a = workspace_of(p->engine, worker);
    if (g.transposed_a && !g.a_in_place && tiles.base == TILE_ROWS && !tiles.extra) {
        multiply_by_runs(p, &g, g.packed_a);
    } else {
        for (int64_t k0 = p->k0; k0 < p->end; k0 += g.depth) {
            if (!g.a_in_place) pack_block_of_a(&g, 0, k0, min_i64(g.depth, g.k - k0), tiles);
            if (p->by_tiles && !g.transposed_a) { multiply_by_tiles(p, &g, tiles, k0); continue; }
            Panel panel;
            for (int64_t j = 0; j < g.n; j += panel.columns) {
                panel = shared_panel(p, &g, k0, j);
                multiply_panel(&g, 0, tiles, &panel, NULL);
            }
        }
    }
    finish_part(p, &g, row);
}

/* Return whether one tile of A after another is multiplied with all panels, rather than one panel with all tiles (limits in common/tuning.h). */
static inline int suits_tiles_first(const Gemm *g)
{
    if (!READS_IN_PLACE || g->n * g->depth * SCALAR_BYTES <= KEPT_PANELS_BYTES || (g->transposed_a && !RUNS_BY_TILES)) return 0;
    return g->depth * TILE_BYTES > SMALL_PANEL_BYTES || g->m * g->n > SMALL_RESULT || g->lda >= SHARED_SET_STEP;
}

/* Choose the rows of an item and the chunks of B, then pack and multiply one chunk after another. */
static void split_rows(ParallelGemm *p)
{
    Gemm *g = &p->gemm;
    const Engine *e = p->engine;
    int64_t items = min_i64(MAX_ITEMS, (g->m + MIN_ITEM_ROWS - 1) / MIN_ITEM_ROWS);
    p->step = ((g->m + items - 1) / items + TILE_ROWS - 1) / TILE_ROWS * TILE_ROWS;
    if (p->step > BLOCK_ROWS) p->step = BLOCK_ROWS;
    g->rows = p->step;
    g->a_in_place = READS_IN_PLACE && (!g->transposed_a || (p->step * g->depth * SCALAR_BYTES <= DIRECT_A_BYTES && g->n <= 2 * TILE_COLUMNS));
    g->b_in_place = READS_IN_PLACE && !g->transposed_b && g->k * g->ldb * SCALAR_BYTES <= DIRECT_B_BYTES;
    p->by_tiles = suits_tiles_first(g);
    int64_t columns = CHUNK_ELEMENTS / g->k / COLUMNS_PER_PACKING * COLUMNS_PER_PACKING;
    columns = min_i64(g->n, columns > CHUNK_COLUMNS ? columns : CHUNK_COLUMNS);
    int64_t depths = CHUNK_ELEMENTS / round_to_lanes(columns) / g->depth * g->depth;
    if (depths < g->depth) depths = g->depth;
    for (p->start = 0; p->start < g->n; p->start += columns)
        for (p->k0 = 0; p->k0 < g->k; p->k0 = p->end) {
            p->columns = min_i64(columns, g->n - p->start);
            p->end = min_i64(p->k0 + depths, g->k);
            if (!g->b_in_place || (p->columns % LANES && (p->columns < TILE_COLUMNS || !may_overlap(g))))        /* a padded panel is packed */
                e->parallel_for(e, pack_shared_columns_item, p, packing_item_count(p->columns));
            e->parallel_for(e, multiply_rows_item, p, (g->m + p->step - 1) / p->step);
        }
}

/* ---- columns are split, A is shared */

/* Pack A at block `item` of the depth of the chunk. */
static void pack_shared_rows_item(void *context, int64_t item, int64_t worker)
{
    const ParallelGemm *p = context; (void)worker;
    Gemm g = p->gemm;
    int64_t k0 = p->k0 + item * g.depth;
    g.packed_a = p->shared + packed_depth(item * g.depth) * g.m;
    pack_block_of_a(&g, 0, k0, min_i64(g.depth, g.k - k0), tiles_of(g.m));
}

/* Adjacent panels that are packed together: `panels` full ones, or, where none remains, a narrower one (then `panels` is 0). They are at `column` of the item's
 * GEMM, and compute `columns` columns from `first` on; `used` and `width` are those of a single panel. */
typedef struct Run { int64_t k0, depth, column, first, columns, panels, width, used; int in_place; } Run;

/* Return the run that starts at a column; its `columns` are 0 after the last depth of the chunk. */
static Run run_at(const ParallelGemm *p, const Gemm *g, int64_t k0, int64_t column)
{
    if (k0 >= p->end) return (Run){0};
    int64_t depth = min_i64(g->depth, g->k - k0), panels = min_i64(full_panels(g->n, column, g->n), PANELS_PER_RUN);
    if (panels) return (Run){ k0, depth, column, column, panels * TILE_COLUMNS, panels, TILE_COLUMNS, TILE_COLUMNS, g->b_in_place };
    PanelColumns c = panel_columns(g, g->n, column);
    return (Run){ k0, depth, column, c.first, c.count, 0, c.width, c.count, g->b_in_place && c.count == c.width };
}

/* Return the run that follows: the next columns, or the first ones at the next block of the depth. */
static inline Run run_after(const ParallelGemm *p, const Gemm *g, Run run)
{
    int64_t column = run.column + run.columns;
    return column < g->n ? run_at(p, g, run.k0, column) : run_at(p, g, run.k0 + g->depth, 0);
}

/* Pack a whole run into `panels`. */
static void pack_run(const Gemm *g, const Run *run, packed *panels)
{ pack_panels(g, 0, run->k0, run->depth, g->n, run->column, run->column + run->columns, panels - run->column * packed_depth(run->depth)); }

/* Compute the columns [item * step, (item + 1) * step) of C with the chunk in `shared`. */
static void multiply_columns_item(void *context, int64_t item, int64_t worker)
{
    const ParallelGemm *p = context;
    int64_t start = item * p->step;
    Gemm g = part_of_gemm(p, 0, p->gemm.m, start, min_i64(p->step, p->gemm.n - start));
    Tiles tiles = tiles_of(g.m);
    packed *panels = workspace_of(p->engine, worker), *others = panels + PANELS_PER_RUN * TILE_COLUMNS * g.depth;
    Run run = run_at(p, &g, p->k0, 0);
    if (!run.in_place) pack_run(&g, &run, panels);
    for (Run after; run.columns; run = after) {
        after = run_after(p, &g, run);
        int64_t slice = slice_of(after.depth / (slices_of_panel(tiles) * (run.panels ? run.panels : 1)));
        PanelPacking next = { g.b + after.k0 * g.ldb + after.column, g.ldb, after.depth, after.panels, TILE_COLUMNS, 0, slice, others };
        int by_slices = after.panels && !after.in_place && !g.transposed_b;
        g.packed_a = p->shared + packed_depth(run.k0 - p->k0) * g.m;
        for (int64_t j = 0; j < run.columns; j += run.used) {
            Panel panel = { panels + j * packed_depth(run.depth), run.width, run.first + j, run.used, run.width, run.k0, run.depth };
            if (run.in_place) { panel.rows = in_place(g.b + run.k0 * g.ldb + run.first + j); panel.step = g.ldb; }
            multiply_panel(&g, 0, tiles, &panel, by_slices ? &next : NULL);
        }
        if (by_slices) pack_slice(&next, next.depth);
        else if (after.columns && !after.in_place) pack_run(&g, &after, others);
        packed *multiplied = panels; panels = others; others = multiplied;
    }
    finish_part(p, &g, 0);
}

/* Choose the columns of an item and the chunks of A, then pack and multiply one chunk after another. */
static void split_columns(ParallelGemm *p)
{
    Gemm *g = &p->gemm;
    const Engine *e = p->engine;
    int64_t items = min_i64(MAX_ITEMS, (g->n + MIN_ITEM_COLUMNS - 1) / MIN_ITEM_COLUMNS);
    if (items > 1) items -= items % 2;              /* two threads get the same number each */
    int64_t grain = items > FEW_ITEMS ? TILE_COLUMNS : LANES;
    p->step = ((g->n + items - 1) / items + grain - 1) / grain * grain;
    g->rows = g->m;
    g->a_in_place = READS_IN_PLACE && (g->transposed_a ? g->depth : g->lda) * g->m * SCALAR_BYTES <= DIRECT_A_BYTES;
    g->b_in_place = READS_IN_PLACE && !g->transposed_b && (g->m <= DIRECT_B_ROWS || g->k * g->ldb * SCALAR_BYTES <= DIRECT_B_BYTES);
    int64_t depths = SHARED_ELEMENTS / g->m / g->depth * g->depth;
    p->columns = g->n;
    for (p->k0 = 0; p->k0 < g->k; p->k0 = p->end) {
        p->end = min_i64(p->k0 + depths, g->k);
        if (!g->a_in_place) e->parallel_for(e, pack_shared_rows_item, p, (p->end - p->k0 + g->depth - 1) / g->depth);
        e->parallel_for(e, multiply_columns_item, p, (g->n + p->step - 1) / p->step);
    }
}

/* ---- nothing is packed: GEMVs, outer products and dot products */

/* Return the number of items for `size` columns or rows. The last item also takes the remainder, so that none is too small for a tile of dot products. */
static inline int64_t thin_item_count(int64_t size) { return size < SIZE_OF_THIN_ITEM ? 1 : size / SIZE_OF_THIN_ITEM; }

/* Return whether columns are split, else rows: of one row, and of dot products with more columns than rows. */
static inline int is_wide(const Gemm *g) { return g->m == 1 || (g->k > 1 && g->m < g->n); }

/* Compute SIZE_OF_THIN_ITEM columns or rows of C. */
static void multiply_thin_item(void *context, int64_t item, int64_t worker)
{
    const ParallelGemm *p = context; (void)worker;
    int by_columns = is_wide(&p->gemm);
    int64_t size = by_columns ? p->gemm.n : p->gemm.m, start = item * SIZE_OF_THIN_ITEM;
    int64_t count = item + 1 < thin_item_count(size) ? SIZE_OF_THIN_ITEM : size - start;
    Gemm g = by_columns ? part_of_gemm(p, 0, p->gemm.m, start, count) : part_of_gemm(p, start, count, 0, p->gemm.n);
    if (!gemv_or_outer_product(g.transposed_a, g.transposed_b, g.m, g.n, g.k, g.a, g.lda, g.b, g.ldb, g.accumulate, g.c, g.ldc, g.bias, g.relu))
        compute_by_dot_products(&g);
    finish_part(p, &g, 0);
}

static void split_thin_gemm(ParallelGemm *p)
{
    p->end = p->gemm.k;
    p->engine->parallel_for(p->engine, multiply_thin_item, p, thin_item_count(is_wide(&p->gemm) ? p->gemm.n : p->gemm.m));
}

/* ---- entry point */

/* c [m, n] = alpha op(a) op(b) (+ c if `accumulate`), then + bias [n] unless it is NULL, then ReLU if `relu`, on all workers. alpha is 1 with `accumulate`,
 * bias or ReLU. m, n, k >= 1. */
static void parallel_gemm(const Engine *engine, int transposed_a, int transposed_b, int64_t m, int64_t n, int64_t k, scalar alpha, const scalar *a,
                           int64_t lda, const scalar *b, int64_t ldb, int accumulate, scalar *c, int64_t ldc, const scalar *bias, int relu)
{
    if (m * n * k < MIN_PRODUCTS) {
        packed_gemm(transposed_a, transposed_b, m, n, k, alpha, a, lda, b, ldb, accumulate, c, ldc, bias, relu, workspace_of(engine, 0));
        return;
    }
    ParallelGemm p = { .engine = engine, .alpha = alpha, .shared = workspace_of(engine, engine->shared_workspace),
                        .gemm = { .transposed_a = transposed_a, .transposed_b = transposed_b, .accumulate = accumulate, .relu = relu, .m = m, .n = n,
                               .k = k, .lda = lda, .ldb = ldb, .ldc = ldc, .a = a, .b = b, .c = c, .bias = bias } };
    Gemm *g = &p.gemm;
    if (READS_IN_PLACE && (is_gemv(transposed_a, transposed_b, m, n, k, lda) || is_outer_product(transposed_b, k, ldb, bias, relu) || suits_dot_products(g))) {
        split_thin_gemm(&p);
        return;
    }
    choose_orientation(g);
    choose_blocks(g, 0);
    if (alpha != 1) g->stream = 0;
    if (g->m <= MAX_SHARED_ROWS && g->n >= g->m) split_columns(&p);
    else split_rows(&p);
}
#endif
