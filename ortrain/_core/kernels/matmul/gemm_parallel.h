/* One product on all workers: the operand that every item reads is packed once, together, into shared space; then items of rows or columns follow.
 *
 * Rows are split where there are many: an item reads its rows of A where they lie, or packs them in runs where A is transposed, and the shared panels of B.
 * Columns are split where A has few rows: A is shared, and an item packs its panels of B in runs. A run is packed while the one before is at work. Items
 * packing for themselves what all of them read cost 10 to 20 % of 1024 x 256 x 256. The split follows from the shape alone. */
#ifndef ORTRAIN_PRODUCT_THREADS_H
#define ORTRAIN_PRODUCT_THREADS_H
#include "kernel.h"
#include "matmul/gemm.h"


typedef struct SharedProduct {
    const Engine *engine;
    Product s;
    float alpha;
    float *shared;
    int64_t step;                                   /* rows or columns of an item */
    int by_tiles;                                   /* an item takes all panels by a tile, else all tiles by a panel */
    int64_t start, columns, deep, end;              /* the chunk: columns from start, depths from deep to end */
} SharedProduct;

static inline float *workspace_of(const Engine *engine, int64_t worker) { return engine->workspaces + worker * engine->workspace_floats; }

/* The Product of an item: `rows` rows of A from `row` and `columns` columns of B from `column`. */
static Product part_of(const SharedProduct *p, int64_t row, int64_t rows, int64_t column, int64_t columns)
{
    Product s = p->s;
    s.a += s.transposed_a ? row : row * s.lda;
    s.b += s.transposed_b ? column * s.ldb : column;
    s.c += s.swapped ? column * s.ldc + row : row * s.ldc + column;
    if (s.bias && !s.swapped) s.bias += column;
    s.m = rows; s.n = columns;
    return s;
}

static void scale_rows(float alpha, int64_t rows, int64_t columns, float *c, int64_t ldc)
{
    for (int64_t i = 0; i < rows; i++, c += ldc)
        for (int64_t j = 0; j < columns; j++) c[j] *= alpha;
}

/* what could not happen in registers: scaling, and the epilogue of what was stored transposed (bias and ReLU run along its columns, the rows of A) */
static void finish_item(const SharedProduct *p, const Product *part, int64_t row)
{
    if (part->stream) end_stream();
    if (p->end < p->s.k) return;
    int64_t rows = part->swapped ? part->n : part->m, columns = part->swapped ? part->m : part->n;
    if (p->alpha != 1) scale_rows(p->alpha, rows, columns, part->c, part->ldc);
    if (part->swapped && (part->bias || part->relu)) finish_tile(part->bias ? part->bias + row : 0, part->relu, part->c, part->ldc, rows, columns);
}

/* how many panels from `column` on, before `end`, have the full width */
static inline int64_t full_panels(int64_t all, int64_t column, int64_t end)
{
    int64_t count = (end - column) / TILE_COLUMNS;
    while (count > 0 && panel_width(all, column + (count - 1) * TILE_COLUMNS) < TILE_COLUMNS) count--;
    return count;
}

/* The panels of B's columns from `column` to `end` or just beyond it, counted from column `first` of B; of `all` columns in panels, panel j lies at
 * panels + j * depth. Returns where they stop. Rows of B are read for several panels at once: what one panel takes of a row is a line, and rows of wide
 * matrices lie on pages of their own (128 x 4096 x 4096: 73 against 86 GFLOP/s). */
static int64_t pack_panels(const Product *s, int64_t first, int64_t deep, int64_t depth, int64_t all, int64_t column, int64_t end, float *panels)
{
    while (column < end) {
        int64_t width = panel_width(all, column), used = smaller(width, all - column);
        float *panel = panels + column * depth;
        int64_t full = s->transposed_b ? 0 : smaller(full_panels(all, column, end), PANELS_PER_RUN);
        if (full > 1) {
            used = full * TILE_COLUMNS;
            pack_row_panels(s->b + deep * s->ldb + first + column, s->ldb, depth, full, panel, depth);
        } else if (s->transposed_b) {
            pack_transposed(s->b + (first + column) * s->ldb + deep, s->ldb, used, depth, panel, width);
        } else {
            pack_rows(s->b + deep * s->ldb + first + column, s->ldb, used, depth, panel, width);
        }
        column += used;
    }
    return column;
}

/* ---- rows: B is shared */

/* the last item takes the rest as well: at the start of every item more than two panels are left, so that it is the start of a panel */
static inline int64_t packings_of(int64_t columns) { return columns < COLUMNS_PER_PACKING ? 1 : columns / COLUMNS_PER_PACKING; }

static void pack_shared_columns(void *context, int64_t item, int64_t worker)
{
    const SharedProduct *p = context; const Product *s = &p->s; (void)worker;
    int64_t end = item + 1 < packings_of(p->columns) ? (item + 1) * COLUMNS_PER_PACKING : p->columns;
    for (int64_t deep = p->deep; deep < p->end; deep += s->depth) {
        int64_t depth = smaller(s->depth, s->k - deep);
        pack_panels(s, p->start, deep, depth, p->columns, item * COLUMNS_PER_PACKING, end, p->shared + (deep - p->deep) * padded(p->columns));
    }
}

/* panel j, counted in columns, of the chunk's at one depth */
static inline Panel shared_panel(const SharedProduct *p, const Product *s, int64_t deep, int64_t j)
{
    int64_t width = panel_width(s->n, j), used = smaller(width, s->n - j), depth = smaller(s->depth, s->k - deep);
    if (s->b_in_place && used == width) return (Panel){ s->b + deep * s->ldb + j, s->ldb, j, used, width, deep, depth };
    return (Panel){ p->shared + (deep - p->deep) * padded(p->columns) + j * depth, width, j, used, width, deep, depth };
}

/* All panels by one tile of A in place after the other; the rows of the next tile are fetched, a few with each panel. */
static void multiply_by_tiles(const SharedProduct *p, const Product *s, Tiles tiles, int64_t deep)
{
    int64_t each = (TILE_ROWS * TILE_COLUMNS + s->n - 1) / s->n;
    for (int64_t t = 0, i = 0, rows; t < tiles.count; t++, i += rows) {
        rows = rows_of_tile(tiles, t);
        int64_t next = i + rows, last = t + 1 < tiles.count ? next + rows_of_tile(tiles, t + 1) : next;
        Panel panel;
        for (int64_t j = 0; j < s->n; j += panel.columns, next += each) {
            panel = shared_panel(p, s, deep, j);
            Ahead ahead = { s->a + next * s->lda + deep, s->lda, smaller(each, last - next), panel.depth / LINE };
            multiply_tile(s, 0, i, rows, &panel, ahead.rows > 0 && ahead.lines > 0 ? &ahead : NULL);
        }
    }
}

/* The tiles from `tile` on, up to a run of them, of a block of transposed A that has whole ones only, on their way into `panels`. */
static Packing tiles_from(const Product *s, int64_t deep, int64_t tile, float *panels)
{
    int64_t count = smaller(s->m / TILE_ROWS - tile, TILES_PER_RUN);
    return (Packing){ s->a + deep * s->lda + tile * TILE_ROWS, s->lda, smaller(s->depth, s->k - deep), count, TILE_ROWS, 0, 0, panels };
}

/* Transposed A by runs of tiles, each of which is packed while the one before is at work. */
static void multiply_by_runs(const SharedProduct *p, Product *s, float *panels)
{
    float *others = panels + TILES_PER_RUN * TILE_ROWS * s->depth;
    Packing run = tiles_from(s, p->deep, 0, panels), next;
    pack_slice(&run, run.depth);
    for (int64_t deep = p->deep, tile = 0, row = 0; deep < p->end; run = next, row = tile * TILE_ROWS, others = s->packed_a) {
        int64_t now = deep;
        tile += run.count;
        if (tile * TILE_ROWS == s->m) { tile = 0; deep += s->depth; }
        next = deep < p->end ? tiles_from(s, deep, tile, others) : (Packing){0};
        next.slice = next.depth * TILE_COLUMNS / (run.count * padded(s->n)) + 1;
        s->packed_a = run.panel;
        Panel panel;
        for (int64_t j = 0; j < s->n; j += panel.columns) {
            panel = shared_panel(p, s, now, j);
            multiply_panel(s, row, (Tiles){ run.count, TILE_ROWS, 0 }, &panel, next.depth ? &next : NULL);
        }
        if (next.depth) pack_slice(&next, next.depth);
    }
}

static void multiply_rows(void *context, int64_t item, int64_t worker)
{
    const SharedProduct *p = context;
    int64_t row = item * p->step;
    Product s = part_of(p, row, smaller(p->step, p->s.m - row), p->start, p->columns);
    Tiles tiles = tiles_of(s.m);
    s.packed_a = workspace_of(p->engine, worker);
    if (!s.a_in_place && tiles.base == TILE_ROWS && !tiles.extra) {
        multiply_by_runs(p, &s, s.packed_a);
    } else {
        for (int64_t deep = p->deep; deep < p->end; deep += s.depth) {
            if (!s.a_in_place) pack_block_of_a(&s, 0, deep, smaller(s.depth, s.k - deep), tiles);
            if (p->by_tiles) { multiply_by_tiles(p, &s, tiles, deep); continue; }
            Panel panel;
            for (int64_t j = 0; j < s.n; j += panel.columns) {
                panel = shared_panel(p, &s, deep, j);
                multiply_panel(&s, 0, tiles, &panel, NULL);
            }
        }
    }
    finish_item(p, &s, row);
}

static void share_columns(SharedProduct *p)
{
    Product *s = &p->s;
    const Engine *e = p->engine;
    int64_t items = smaller(MAX_ITEMS, (s->m + MIN_ROWS - 1) / MIN_ROWS);
    p->step = ((s->m + items - 1) / items + TILE_ROWS - 1) / TILE_ROWS * TILE_ROWS;
    if (p->step > BLOCK_ROWS) p->step = BLOCK_ROWS;
    s->rows = p->step;
    s->a_in_place = !s->transposed_a || (p->step * s->depth * 4 <= DIRECT_A_BYTES && s->n <= 2 * TILE_COLUMNS);
    s->b_in_place = !s->transposed_b && s->k * s->ldb * 4 <= DIRECT_B_BYTES;
    p->by_tiles = !s->transposed_a && (s->depth * TILE_COLUMNS * 4 > SMALL_PANEL_BYTES || s->m * s->n > SMALL_RESULT || s->lda >= SHARED_SET_STEP);
    int64_t columns = CHUNK_FLOATS / s->k / COLUMNS_PER_PACKING * COLUMNS_PER_PACKING;
    columns = smaller(s->n, columns > CHUNK_COLUMNS ? columns : CHUNK_COLUMNS);
    int64_t depths = CHUNK_FLOATS / padded(columns) / s->depth * s->depth;
    if (depths < s->depth) depths = s->depth;
    for (p->start = 0; p->start < s->n; p->start += columns)
        for (p->deep = 0; p->deep < s->k; p->deep = p->end) {
            p->columns = smaller(columns, s->n - p->start);
            p->end = smaller(p->deep + depths, s->k);
            if (!s->b_in_place || p->columns % LANES)
                e->parallel_for(e, pack_shared_columns, p, packings_of(p->columns));
            e->parallel_for(e, multiply_rows, p, (s->m + p->step - 1) / p->step);
        }
}

/* ---- columns: A is shared */

static void pack_shared_rows(void *context, int64_t item, int64_t worker)
{
    const SharedProduct *p = context; (void)worker;
    Product s = p->s;
    int64_t deep = p->deep + item * s.depth;
    s.packed_a = p->shared + item * s.depth * s.m;
    pack_block_of_a(&s, 0, deep, smaller(s.depth, s.k - deep), tiles_of(s.m));
}

/* Columns that are packed together: `panels` full panels, or, where none is left, one that is narrower, `used` of its `width` columns real. */
typedef struct Run { int64_t deep, depth, column, columns, panels, width, used; int in_place; } Run;

/* the run at a column; it has no columns beyond the last depth */
static Run run_at(const SharedProduct *p, const Product *s, int64_t deep, int64_t column)
{
    if (deep >= p->end) return (Run){0};
    int64_t panels = smaller(full_panels(s->n, column, s->n), PANELS_PER_RUN), width = panels ? TILE_COLUMNS : panel_width(s->n, column);
    int64_t used = smaller(width, s->n - column);
    return (Run){ deep, smaller(s->depth, s->k - deep), column, panels ? panels * width : used, panels, width, used, s->b_in_place && used == width };
}

static inline Run run_after(const SharedProduct *p, const Product *s, Run run)
{
    int64_t column = run.column + run.columns;
    return column < s->n ? run_at(p, s, run.deep, column) : run_at(p, s, run.deep + s->depth, 0);
}

/* packs a run into `panels`, at once */
static void pack_run(const Product *s, const Run *run, float *panels)
{ pack_panels(s, 0, run->deep, run->depth, s->n, run->column, run->column + run->columns, panels - run->column * run->depth); }

static void multiply_columns_item(void *context, int64_t item, int64_t worker)
{
    const SharedProduct *p = context;
    int64_t start = item * p->step;
    Product s = part_of(p, 0, p->s.m, start, smaller(p->step, p->s.n - start));
    Tiles tiles = tiles_of(s.m);
    float *panels = workspace_of(p->engine, worker), *others = panels + PANELS_PER_RUN * TILE_COLUMNS * s.depth;
    Run run = run_at(p, &s, p->deep, 0);
    if (!run.in_place) pack_run(&s, &run, panels);
    for (Run after; run.columns; run = after) {
        after = run_after(p, &s, run);
        int64_t slice = after.depth / (tiles.count * (run.panels ? run.panels : 1)) + 1;
        Packing next = { s.b + after.deep * s.ldb + after.column, s.ldb, after.depth, after.panels, TILE_COLUMNS, 0, slice, others };
        int by_slices = after.panels && !after.in_place && !s.transposed_b;
        s.packed_a = p->shared + (run.deep - p->deep) * s.m;
        for (int64_t j = 0; j < run.columns; j += run.used) {
            Panel panel = { panels + j * run.depth, run.width, run.column + j, run.used, run.width, run.deep, run.depth };
            if (run.in_place) { panel.rows = s.b + run.deep * s.ldb + run.column + j; panel.step = s.ldb; }
            multiply_panel(&s, 0, tiles, &panel, by_slices ? &next : NULL);
        }
        if (by_slices) pack_slice(&next, next.depth);
        else if (after.columns && !after.in_place) pack_run(&s, &after, others);
        float *packed = others; others = panels; panels = packed;
    }
    finish_item(p, &s, 0);
}

static void share_rows(SharedProduct *p)
{
    Product *s = &p->s;
    const Engine *e = p->engine;
    int64_t items = smaller(MAX_ITEMS, (s->n + MIN_COLUMNS - 1) / MIN_COLUMNS);
    if (items > 1) items -= items % 2;              /* two threads have as many each */
    int64_t grain = items > FEW_ITEMS ? TILE_COLUMNS : LANES;
    p->step = ((s->n + items - 1) / items + grain - 1) / grain * grain;
    s->rows = s->m;
    s->a_in_place = s->transposed_a ? s->m * s->depth * 4 <= DIRECT_A_BYTES : s->lda * s->m * 4 <= DIRECT_A_BYTES;
    s->b_in_place = !s->transposed_b && (s->m <= DIRECT_B_ROWS || s->k * s->ldb * 4 <= DIRECT_B_BYTES);
    int64_t depths = SHARED_FLOATS / s->m / s->depth * s->depth;
    p->columns = s->n;
    for (p->deep = 0; p->deep < s->k; p->deep = p->end) {
        p->end = smaller(p->deep + depths, s->k);
        if (!s->a_in_place) e->parallel_for(e, pack_shared_rows, p, (p->end - p->deep + s->depth - 1) / s->depth);
        e->parallel_for(e, multiply_columns_item, p, (s->n + p->step - 1) / p->step);
    }
}

/* ---- neither: what reads both operands where they lie */

static inline int64_t thin_items(int64_t size) { return size < SIZE_OF_THIN_ITEM ? 1 : size / SIZE_OF_THIN_ITEM; }

/* whether columns are shared out: of one row, or of dot products of few rows */
static inline int is_wide(const Product *s) { return s->m == 1 || (s->k > 1 && s->m < s->n); }

/* the last item takes the rest as well, so that none is too small for a tile of dot products */
static void multiply_thin(void *context, int64_t item, int64_t worker)
{
    const SharedProduct *p = context; (void)worker;
    int by_columns = is_wide(&p->s);
    int64_t size = by_columns ? p->s.n : p->s.m, start = item * SIZE_OF_THIN_ITEM, count = item + 1 < thin_items(size) ? SIZE_OF_THIN_ITEM : size - start;
    Product s = by_columns ? part_of(p, 0, p->s.m, start, count) : part_of(p, start, count, 0, p->s.n);
    if (!thin_product(s.transposed_a, s.transposed_b, s.m, s.n, s.k, s.a, s.lda, s.b, s.ldb, s.accumulate, s.c, s.ldc, s.bias, s.relu)) take_dot_product(&s);
    finish_item(p, &s, 0);
}

static void share_nothing(SharedProduct *p)
{
    p->end = p->s.k;
    p->engine->parallel_for(p->engine, multiply_thin, p, thin_items(is_wide(&p->s) ? p->s.n : p->s.m));
}

/* ---- all */

/* c [m, n] = alpha op(a) op(b) (+ c where accumulate, then alpha is 1), then bias [n] and ReLU (then alpha is 1). m, n, k >= 1. */
static void parallel_sgemm(const Engine *engine, int transposed_a, int transposed_b, int64_t m, int64_t n, int64_t k, float alpha, const float *a,
                           int64_t lda, const float *b, int64_t ldb, int accumulate, float *c, int64_t ldc, const float *bias, int relu)
{
    if (m * n * k < MIN_PRODUCTS) {
        if (!thin_product(transposed_a, transposed_b, m, n, k, a, lda, b, ldb, accumulate, c, ldc, bias, relu))
            packed_sgemm(transposed_a, transposed_b, m, n, k, a, lda, b, ldb, accumulate, c, ldc, bias, relu, workspace_of(engine, 0));
        if (alpha != 1) scale_rows(alpha, m, n, c, ldc);
        return;
    }
    SharedProduct p = { .engine = engine, .alpha = alpha, .shared = workspace_of(engine, engine->shared_workspace),
                        .s = { .transposed_a = transposed_a, .transposed_b = transposed_b, .accumulate = accumulate, .relu = relu, .m = m, .n = n,
                               .k = k, .lda = lda, .ldb = ldb, .ldc = ldc, .a = a, .b = b, .c = c, .bias = bias } };
    Product *s = &p.s;
    if (is_one_row(transposed_a, transposed_b, m, k, lda) || is_outer_product(transposed_b, k, ldb, bias, relu) || suits_dot_product(s)) {
        share_nothing(&p);
        return;
    }
    choose_roles(s);
    choose_blocks(s, 0);
    if (alpha != 1) s->stream = 0;
    if (s->m <= MAX_SHARED_ROWS && s->n >= s->m) share_rows(&p);
    else share_columns(&p);
}
#endif
