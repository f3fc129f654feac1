/* A float32 product on all workers' bfloat16 tiles: C [m, n] = alpha op(A) op(B) (+ C), then a bias row and ReLU.
 *
 * An item is a rectangle of C. Panels of its shorter side stay in the second cache, for a chunk of the depth; those of its longer side pass, a run at a time.
 * The next run, and the panels that stay for the next chunk, are packed between the products of the tiles; blocks of C stay in the second cache until their
 * last chunk. Chunks follow from the depth alone, and panels lie where they lie for any cut: the same bits for any number of workers.
 *
 * 1024^3 on one core: 166 GFLOP/s in 64-byte vectors, 267 in tiles, of 490 to 550 that the tiles' unit can do. What it waits for is the second cache: operands,
 * blocks of C and what is packed are 20 KiB for each 150 ns of products. */
#ifndef ORTRAIN_BFLOAT16_PRODUCTS_H
#define ORTRAIN_BFLOAT16_PRODUCTS_H
#include "bfloat16_packing.h"
#include "product_threads.h"
#if HAVE_TILES

enum {
    CHUNK_STEPS = 8,                                /* 256 deep; 160: the same, for blocks of C come and go more often */
    STAYING_PANELS = MOST_PANELS, RUN_PANELS = 4,
    BLOCK_NUMBERS = PANEL_SIZE * PANEL_SIZE,
    KEPT_BLOCKS = 128,                              /* of C, 512 KiB, where there is more than one chunk */
    STAYING_NUMBERS = STAYING_PANELS * CHUNK_STEPS * STEP_NUMBERS, RUN_NUMBERS = RUN_PANELS * CHUNK_STEPS * STEP_NUMBERS,
    TILED_FLOATS = STAYING_NUMBERS + RUN_NUMBERS + KEPT_BLOCKS * BLOCK_NUMBERS,     /* two of each, of two bytes */
    /* smaller products gain nothing: 32 columns 5 %, 48 x 48 (which fill half of 64 x 64) lose 40 % */
    LEAST_SIDE = 48, LEAST_DEPTH = 64
};
_Static_assert(TILED_FLOATS + (1 << 16) <= PACKED_FLOATS, "the product of a block that is out of range has room too");

typedef struct TiledProduct {
    const Engine *engine;
    Operand a, b;
    int64_t m, n, k, ldc;
    float *c, alpha;
    const float *bias;
    int accumulate, relu, stream;
    int64_t steps, chunks;                          /* of a chunk; the last one may have fewer */
    int64_t rows, columns, across;                  /* panels of an item; items beside each other */
} TiledProduct;

/* A block of C that is complete but for its end: rows from `done` on are left. */
typedef struct Finishing { float *block; int64_t row, column, done, rows; } Finishing;

/* An item and what it does between the products of its blocks: packing, each half a tile when it is due, and finishing the block before. */
typedef struct TiledItem {
    const TiledProduct *p;
    const Operand *staying, *passing;
    int64_t staying_first, passing_first, staying_panels, passing_panels;
    int rows_stay;
    bfloat16 *stay[2], *run[2];
    float *blocks, *workspace;
    uint8_t stay_out_of_range[2][STAYING_PANELS], run_out_of_range[2][RUN_PANELS];
    BlockPacking stay_packing, run_packing;
    int64_t stay_credit, stay_steps, run_credit, run_steps;     /* halves due, times steps; steps in which all are packed */
    Finishing finishing;
} TiledItem;

static inline int64_t panels_of(int64_t size) { return (size + PANEL_SIZE - 1) / PANEL_SIZE; }

static inline int64_t steps_of_chunk(const TiledProduct *p, int64_t chunk) { return smaller(p->steps, panels_of(p->k) - chunk * p->steps); }

/* ---- the end of a block */

static inline __attribute__((always_inline)) void finish_vector(const TiledProduct *p, const float *from, float *c, const float *bias, __mmask16 mask)
{
    __m512 v = _mm512_load_ps(from);
    if (p->alpha != 1) v = _mm512_mul_ps(v, _mm512_set1_ps(p->alpha));
    if (p->accumulate) v = _mm512_add_ps(v, _mm512_maskz_loadu_ps(mask, c));
    if (bias) v = _mm512_add_ps(v, _mm512_maskz_loadu_ps(mask, bias));
    if (p->relu) v = _mm512_max_ps(_mm512_setzero_ps(), v);                     /* NaN, the second, stays */
    _mm512_mask_storeu_ps(c, mask, v);
}

/* The next `count` rows. Whole rows that are only stored have loops of their own: 128 deep, they are every sixth of the instructions. */
static __attribute__((noinline)) void finish_rows(const TiledProduct *p, Finishing *f, int64_t count)
{
    int64_t rows = smaller(count, f->rows - f->done), columns = smaller(PANEL_SIZE, p->n - f->column), step = p->ldc;
    const float *from = f->block + f->done * PANEL_SIZE, *bias = p->bias ? p->bias + f->column : 0;
    float *c = p->c + (f->row + f->done) * step + f->column;
    f->done += rows;
    if (columns == PANEL_SIZE && !p->accumulate && p->alpha == 1 && !bias && !p->relu) {
        if (p->stream)
            for (int64_t i = 0; i < rows; i++, from += PANEL_SIZE, c += step) {
                _mm512_stream_ps(c, _mm512_load_ps(from));
                _mm512_stream_ps(c + 16, _mm512_load_ps(from + 16));
            }
        else
            for (int64_t i = 0; i < rows; i++, from += PANEL_SIZE, c += step) {
                _mm512_storeu_ps(c, _mm512_load_ps(from));
                _mm512_storeu_ps(c + 16, _mm512_load_ps(from + 16));
            }
        return;
    }
    uint32_t mask = columns == PANEL_SIZE ? 0xffffffffu : (1u << columns) - 1;
    for (int64_t i = 0; i < rows; i++, from += PANEL_SIZE, c += step) {
        finish_vector(p, from, c, bias, (__mmask16)mask);
        if (mask >> 16) finish_vector(p, from + 16, c + 16, bias ? bias + 16 : 0, (__mmask16)(mask >> 16));
    }
}

/* ---- a block of C */

static inline int is_due(const BlockPacking *p, int64_t *credit, int64_t steps)
{
    *credit += p->halves;
    if (*credit < steps) return 0;
    *credit -= steps;
    return packs(p);
}

/* block (+)= a panel of A times a panel of B */
static void multiply_block(TiledItem *t, int64_t steps, const bfloat16 *a, const bfloat16 *b, float *block, int first)
{
    int64_t rows = (PANEL_SIZE + steps - 1) / steps;
    if (first) clear_block();
    else load_block(block);
    for (int64_t step = 0; step < steps; step++, a += STEP_NUMBERS, b += STEP_NUMBERS) {
        BlockPacking *next = is_due(&t->run_packing, &t->run_credit, t->run_steps) ? &t->run_packing
                           : is_due(&t->stay_packing, &t->stay_credit, t->stay_steps) ? &t->stay_packing : 0;
        if (next) {
            HalfTile half = next_half(next);
            if (next->transposed) multiply_step_and_transpose(a, b, &half);
            else multiply_step_and_pack(a, b, &half);
            half_done(next);
        } else {
            multiply_step(a, b);
        }
        if (t->finishing.done < t->finishing.rows) finish_rows(t->p, &t->finishing, rows);
    }
    store_block(block);
}

/* the same by the product in vectors, for panels that are out of range */
static __attribute__((noinline)) void multiply_block_in_vectors(TiledItem *t, int64_t row, int64_t column, int64_t chunk, float *block)
{
    const TiledProduct *p = t->p;
    const Operand *a = &p->a, *b = &p->b;
    float sums[BLOCK_NUMBERS] __attribute__((aligned(64)));
    int64_t deep = chunk * p->steps * STEP_DEPTH, rows = smaller(PANEL_SIZE, p->m - row), columns = smaller(PANEL_SIZE, p->n - column);
    end_tiles();
    packed_sgemm(!a->along, b->along, rows, columns, smaller(p->steps * STEP_DEPTH, p->k - deep), number_at(a, row, deep), a->step,
                 number_at(b, column, deep), b->step, 0, sums, PANEL_SIZE, 0, 0, t->workspace);
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = i * PANEL_SIZE; j < i * PANEL_SIZE + columns; j++) block[j] = chunk ? block[j] + sums[j] : sums[j];
    begin_tiles();
}

/* ---- an item */

static void pack_staying(TiledItem *t, int64_t chunk)
{
    start_packing(&t->stay_packing, t->staying, t->staying_first, t->staying_panels, chunk * t->p->steps, steps_of_chunk(t->p, chunk), t->stay[chunk & 1],
                  t->stay_out_of_range[chunk & 1]);
}

static void pack_passing(TiledItem *t, int64_t chunk, int64_t panel, int to)
{
    start_packing(&t->run_packing, t->passing, t->passing_first + panel, smaller(RUN_PANELS, t->passing_panels - panel), chunk * t->p->steps,
                  steps_of_chunk(t->p, chunk), t->run[to], t->run_out_of_range[to]);
}

/* All blocks of the passing panels in run `now`, from `panel` on, at one chunk. */
static void multiply_run(TiledItem *t, int64_t chunk, int64_t panel, int now)
{
    const TiledProduct *p = t->p;
    int64_t steps = steps_of_chunk(p, chunk), end = smaller(panel + RUN_PANELS, t->passing_panels);
    const bfloat16 *passing = t->run[now];
    for (int64_t s = panel; s < end; s++, passing += steps * STEP_NUMBERS) {
        const bfloat16 *staying = t->stay[chunk & 1];
        for (int64_t r = 0; r < t->staying_panels; r++, staying += steps * STEP_NUMBERS) {
            int64_t staying_at = (t->staying_first + r) * PANEL_SIZE, passing_at = (t->passing_first + s) * PANEL_SIZE, which = s * t->staying_panels + r;
            int64_t row = t->rows_stay ? staying_at : passing_at, column = t->rows_stay ? passing_at : staying_at;
            float *block = t->blocks + (p->chunks > 1 ? which : which % 2) * BLOCK_NUMBERS;
            if (t->stay_out_of_range[chunk & 1][r] | t->run_out_of_range[now][s - panel]) multiply_block_in_vectors(t, row, column, chunk, block);
            else if (t->rows_stay) multiply_block(t, steps, staying, passing, block, chunk == 0);
            else multiply_block(t, steps, passing, staying, block, chunk == 0);
            finish_rows(p, &t->finishing, PANEL_SIZE);
            if (chunk + 1 == p->chunks) t->finishing = (Finishing){ block, row, column, 0, smaller(PANEL_SIZE, p->m - row) };
        }
    }
}

static void start_item(TiledItem *t, const TiledProduct *p, int64_t item, int64_t worker)
{
    int64_t row = item / p->across * p->rows, column = item % p->across * p->columns;
    int64_t rows = smaller(p->rows, panels_of(p->m) - row), columns = smaller(p->columns, panels_of(p->n) - column);
    int rows_stay = rows <= columns;
    t->p = p; t->rows_stay = rows_stay;
    t->staying = rows_stay ? &p->a : &p->b; t->staying_first = rows_stay ? row : column; t->staying_panels = rows_stay ? rows : columns;
    t->passing = rows_stay ? &p->b : &p->a; t->passing_first = rows_stay ? column : row; t->passing_panels = rows_stay ? columns : rows;
    t->blocks = workspace_of(p->engine, worker);
    t->workspace = t->blocks + TILED_FLOATS;
    t->stay[0] = (bfloat16 *)(t->blocks + KEPT_BLOCKS * BLOCK_NUMBERS); t->stay[1] = t->stay[0] + STAYING_NUMBERS;
    t->run[0] = t->stay[1] + STAYING_NUMBERS; t->run[1] = t->run[0] + RUN_NUMBERS;
    t->finishing = (Finishing){0};
    pack_staying(t, 0);
    pack_rest(&t->stay_packing);
    pack_passing(t, 0, 0, 0);
    pack_rest(&t->run_packing);
}

static void multiply_tiled_item(void *context, int64_t item, int64_t worker)
{
    const TiledProduct *p = context;
    TiledItem t;
    int now = 0;
    start_item(&t, p, item, worker);
    begin_tiles();
    for (int64_t chunk = 0; chunk < p->chunks; chunk++) {
        int more = chunk + 1 < p->chunks;
        if (more) pack_staying(&t, chunk + 1);
        t.stay_credit = 0;
        t.stay_steps = t.passing_panels * t.staying_panels * steps_of_chunk(p, chunk);
        for (int64_t panel = 0, after; panel < t.passing_panels; panel = after, now ^= 1) {
            after = smaller(panel + RUN_PANELS, t.passing_panels);
            if (after < t.passing_panels) pack_passing(&t, chunk, after, now ^ 1);
            else if (more) pack_passing(&t, chunk + 1, 0, now ^ 1);
            t.run_credit = 0;
            t.run_steps = (after - panel) * t.staying_panels * steps_of_chunk(p, chunk);
            multiply_run(&t, chunk, panel, now);
            pack_rest(&t.run_packing);
        }
        pack_rest(&t.stay_packing);
    }
    end_tiles();
    finish_rows(p, &t.finishing, PANEL_SIZE);
    if (p->stream) end_stream();
}

/* ---- all */

static void choose_chunks(TiledProduct *p)
{
    int64_t steps = panels_of(p->k);
    p->chunks = (steps + CHUNK_STEPS - 1) / CHUNK_STEPS;
    p->steps = (steps + p->chunks - 1) / p->chunks;
    p->chunks = (steps + p->steps - 1) / p->steps;
}

static int64_t choose_items(TiledProduct *p)
{
    int64_t rows = panels_of(p->m), columns = panels_of(p->n), workers = p->engine->workers, items;
    int columns_stay = columns <= STAYING_PANELS && rows > columns;
    int64_t stay = smaller(columns_stay ? columns : rows, STAYING_PANELS), pass = p->chunks > 1 ? KEPT_BLOCKS / stay : rows + columns;
    p->rows = smaller(rows, columns_stay ? pass : stay);
    p->columns = smaller(columns, columns_stay ? stay : pass);
    for (;;) {
        p->across = (columns + p->columns - 1) / p->columns;
        items = (rows + p->rows - 1) / p->rows * p->across;
        if (workers == 1 || items >= 4 * workers || items % workers == 0 || (p->rows == 1 && p->columns == 1)) return items;
        if (p->columns >= p->rows) p->columns = (p->columns + 1) / 2;                  /* as many for each worker */
        else p->rows = (p->rows + 1) / 2;
    }
}

static inline int suits_tiles(int64_t m, int64_t n, int64_t k)
{
    return m >= LEAST_SIDE && n >= LEAST_SIDE && k >= LEAST_DEPTH && m * n * k >= LEAST_PRODUCTS
        && m * n * 10 >= panels_of(m) * panels_of(n) * BLOCK_NUMBERS * 7;
}

/* Whether the product suits tiles; if so, it is done. As parallel_sgemm. */
static int tiled_sgemm(const Engine *engine, int transposed_a, int transposed_b, int64_t m, int64_t n, int64_t k, float alpha, const float *a, int64_t lda,
                       const float *b, int64_t ldb, int accumulate, float *c, int64_t ldc, const float *bias, int relu)
{
    if (!suits_tiles(m, n, k)) return 0;
    TiledProduct p = { .engine = engine, .m = m, .n = n, .k = k, .ldc = ldc, .c = c, .alpha = alpha, .bias = bias, .accumulate = accumulate, .relu = relu,
                       .a = { a, lda, m, k, !transposed_a, 0 }, .b = { b, ldb, n, k, transposed_b, 1 } };
    p.stream = m * n >= STREAM_FROM && ldc % 16 == 0 && (uintptr_t)c % 64 == 0;
    choose_chunks(&p);
    engine->parallel_for(engine, multiply_tiled_item, &p, choose_items(&p));
    return 1;
}
#else
static int tiled_sgemm(const Engine *engine, int transposed_a, int transposed_b, int64_t m, int64_t n, int64_t k, float alpha, const float *a, int64_t lda,
                       const float *b, int64_t ldb, int accumulate, float *c, int64_t ldc, const float *bias, int relu)
{
    (void)engine; (void)transposed_a; (void)transposed_b; (void)m; (void)n; (void)k; (void)alpha; (void)a; (void)lda; (void)b; (void)ldb; (void)accumulate;
    (void)c; (void)ldc; (void)bias; (void)relu;
    return 0;
}
#endif
#endif
