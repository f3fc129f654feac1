/* A float32 product on all workers' bfloat16 tiles: C [m, n] = alpha op(A) op(B) (+ C), then a bias row and ReLU.
 *
 * A worker takes parts of C one after another, each a chunk of the depth at a time. Panels of one side stay in the second cache for a chunk, those of the other
 * side pass, a run at a time. The next run, and the panels that stay next, are packed between the products of the tiles; blocks of C stay in the second cache
 * until their last chunk. A small C of a great depth is computed in slices of it, which are added up at last: each of two workers who shared such a C would
 * pack one operand whole. Chunks and slices follow from the sizes alone, and panels lie where they lie for any cut: the same bits for any number of workers.
 *
 * 1024^3 on one core: 185 GFLOP/s in 64-byte vectors, 305 on tiles, of 490 to 550 that the tiles' unit can do. What it waits for is the second cache: operands,
 * blocks of C and what is packed are 20 KiB for each 150 ns of products. */
#ifndef ORTRAIN_BFLOAT16_PRODUCTS_H
#define ORTRAIN_BFLOAT16_PRODUCTS_H
#include "matmul/amx_packing.h"
#include "matmul/gemm_parallel.h"
#include "matmul/implicit_gemm.h"
#if HAVE_TILES

enum {
    BLOCK_NUMBERS = PANEL_SIZE * PANEL_SIZE,
    STAYING_NUMBERS = STAYING_PANELS * CHUNK_STEPS * STEP_NUMBERS, RUN_NUMBERS = RUN_PANELS * CHUNK_STEPS * STEP_NUMBERS,
    TILED_FLOATS = STAYING_NUMBERS + RUN_NUMBERS + KEPT_BLOCKS * BLOCK_NUMBERS      /* two of each, of two bytes */
};
_Static_assert(SLICES * SLICED_BLOCKS <= KEPT_BLOCKS, "blocks of all slices are kept");
_Static_assert(TILED_FLOATS + (1 << 16) <= PACKED_FLOATS, "the product of a block that is out of range has room too");

typedef struct TiledProduct {
    const Engine *engine;
    Operand a, b;
    int64_t m, n, k, ldc;
    float *c, alpha;
    const float *bias;
    int accumulate, relu, stream, rows_stay;
    int swapped;                                    /* a and b are B and A, each transposed: a block is C's transposed */
    const WindowProduct *windows;                   /* or NULL: rows of C lie where its points have them */
    int64_t steps, chunks;                          /* of a chunk; the last one may have fewer */
    int64_t staying, passing, down, across;         /* panels of C along the side that stays and the one that passes, and parts that they are cut into */
    int64_t slices, parts, items;                   /* of the depth; parts of C in all slices, and what workers are given of them */
    const float **kept_of;                          /* part -> where its worker keeps blocks of C, where there are slices */
} TiledProduct;

/* What becomes of a block's sums over a chunk, rows from `done` on: they are added to what is kept of the block, or, after its last chunk, go to C with it.
 * Kept blocks loaded into the tiles, as sums to go on with, cost the same time and were one chain: 8192 deep 4 times the error. */
typedef struct Finishing { float *kept; int64_t row, column, done, rows; int first, last; } Finishing;

/* A part of C at one chunk of a slice, which has those from `first` to `end`, in panels of the operand that stays and of the one that passes. */
typedef struct Stage { int64_t part, slice, first, end, chunk, staying, stays, passing, passes; } Stage;

/* What a worker does: stages one after another. Between the products of their blocks it packs, half a tile when it is due, and finishes the block before. */
typedef struct TiledItem {
    const TiledProduct *p;
    const Operand *staying, *passing;
    int64_t run_panels;
    bfloat16 *stay[2], *run[2];
    float *blocks, *workspace;                      /* blocks: what is kept of them */
    float sums[BLOCK_NUMBERS] __attribute__((aligned(64)));
    uint8_t stay_out_of_range[2][STAYING_PANELS], run_out_of_range[2][RUN_PANELS];
    BlockPacking stay_packing, run_packing;
    int64_t stay_credit, stay_steps, run_credit, run_steps;     /* halves due, times steps; steps in which all are packed */
    int whole_tiles;                                /* of a run are packed with a step: a half with each is too slow for all that is due */
    Finishing finishing;
} TiledItem;

static inline int64_t steps_of_chunk(const TiledProduct *p, int64_t chunk) { return smaller(p->steps, panels_of(p->k) - chunk * p->steps); }

static inline int64_t rows_of_c(const TiledProduct *p) { return p->swapped ? p->n : p->m; }
static inline int64_t columns_of_c(const TiledProduct *p) { return p->swapped ? p->m : p->n; }

/* ---- the end of a block */

static inline float *row_of_c(const TiledProduct *p, int64_t row)
{
    const WindowProduct *w = p->windows;
    if (!w) return p->c + row * p->ldc;
    Point at = point_at(&w->windows, row);
    return p->c + at.image * w->image_step + at.y * w->row_step + at.x * w->column_step;
}

/* 16 sums of a row of C, and what is kept of them, to C */
static inline __attribute__((always_inline)) void finish_vector(const TiledProduct *p, const float *from, const float *kept, float *c, const float *bias,
                                                                __mmask16 mask)
{
    __m512 v = _mm512_load_ps(from);
    if (kept) v = _mm512_add_ps(v, _mm512_load_ps(kept));
    if (p->alpha != 1) v = _mm512_mul_ps(v, _mm512_set1_ps(p->alpha));
    if (p->accumulate) v = _mm512_add_ps(v, _mm512_maskz_loadu_ps(mask, c));
    if (bias) v = _mm512_add_ps(v, _mm512_maskz_loadu_ps(mask, bias));
    if (p->relu) v = _mm512_max_ps(_mm512_setzero_ps(), v);                     /* NaN, the second, stays */
    _mm512_mask_storeu_ps(c, mask, v);
}

static void finish_any_rows(const TiledProduct *p, const Finishing *f, const float *from, const float *kept, int64_t rows)
{
    int64_t columns = smaller(PANEL_SIZE, columns_of_c(p) - f->column);
    uint32_t mask = columns == PANEL_SIZE ? 0xffffffffu : (1u << columns) - 1;
    const float *bias = p->bias ? p->bias + f->column : 0;
    for (int64_t i = 0; i < rows; i++, from += PANEL_SIZE) {
        float *c = row_of_c(p, f->row + f->done + i) + f->column;
        finish_vector(p, from, kept, c, bias, (__mmask16)mask);
        if (mask >> 16) finish_vector(p, from + 16, kept ? kept + 16 : 0, c + 16, bias ? bias + 16 : 0, (__mmask16)(mask >> 16));
        if (kept) kept += PANEL_SIZE;
    }
}

/* whole rows that are only stored: 128 deep, they are every sixth of the instructions */
static void store_rows(const float *from, const float *kept, float *c, int64_t step, int64_t rows, int stream)
{
    for (int64_t i = 0; i < rows; i++, from += PANEL_SIZE, c += step) {
        __m512 low = _mm512_load_ps(from), high = _mm512_load_ps(from + 16);
        if (kept) {
            low = _mm512_add_ps(low, _mm512_load_ps(kept));
            high = _mm512_add_ps(high, _mm512_load_ps(kept + 16));
            kept += PANEL_SIZE;
        }
        if (stream) { _mm512_stream_ps(c, low); _mm512_stream_ps(c + 16, high); }
        else { _mm512_storeu_ps(c, low); _mm512_storeu_ps(c + 16, high); }
    }
}

static void keep_rows(const float *from, float *kept, int64_t rows, int first)
{
    for (int64_t i = 0; i < rows * PANEL_SIZE; i += 16) {
        __m512 v = _mm512_load_ps(from + i);
        _mm512_store_ps(kept + i, first ? v : _mm512_add_ps(v, _mm512_load_ps(kept + i)));
    }
}

/* sums [32, 32], and what is kept, transposed */
static __attribute__((noinline)) void turn_block(float *sums, const float *kept)
{
    float turned[BLOCK_NUMBERS] __attribute__((aligned(64)));
    if (kept) for (int64_t i = 0; i < BLOCK_NUMBERS; i += 16) _mm512_store_ps(sums + i, _mm512_add_ps(_mm512_load_ps(sums + i), _mm512_load_ps(kept + i)));
    for (int64_t i = 0; i < PANEL_SIZE; i += 16)
        for (int64_t j = 0; j < PANEL_SIZE; j += 16) transpose_square(sums + i * PANEL_SIZE + j, PANEL_SIZE, turned + j * PANEL_SIZE + i, PANEL_SIZE);
    memcpy(sums, turned, sizeof(turned));
}

/* Lines of C are fetched during the product of the block that goes there: 3 % of resnet50's 1 x 1 products with nothing in the caches. */
static inline __attribute__((always_inline)) void fetch_rows(const TiledProduct *p, const Finishing *f, int64_t first, int64_t count)
{
    if (!f->last || p->stream || p->windows) return;
    float *c = p->c + (f->row + first) * p->ldc + f->column;
    for (int64_t i = first; i < smaller(first + count, f->rows); i++, c += p->ldc) {
        __builtin_prefetch(c, 1, 3);
        __builtin_prefetch(c + 16, 1, 3);
    }
}

/* the next `count` rows */
static __attribute__((noinline)) void finish_rows(TiledItem *t, int64_t count)
{
    const TiledProduct *p = t->p;
    Finishing *f = &t->finishing;
    if (p->swapped && f->last && f->done == 0 && f->rows > 0) {
        turn_block(t->sums, f->first ? NULL : f->kept);
        f->first = 1;                               /* nothing is kept that is not in the sums */
    }
    int64_t rows = smaller(count, f->rows - f->done), done = f->done * PANEL_SIZE;
    const float *from = t->sums + done, *kept = f->first ? 0 : f->kept + done;
    int only_stored = columns_of_c(p) - f->column >= PANEL_SIZE && !p->windows && !p->accumulate && p->alpha == 1 && !p->bias && !p->relu;
    if (!f->last) keep_rows(from, f->kept + done, rows, f->first);
    else if (only_stored) store_rows(from, kept, p->c + (f->row + f->done) * p->ldc + f->column, p->ldc, rows, p->stream);
    else finish_any_rows(p, f, from, kept, rows);
    f->done += rows;
}

/* ---- a block of C */

static inline int is_due(const BlockPacking *p, int64_t *credit, int64_t steps)
{
    if (*credit < steps || !packs(p)) return 0;
    *credit -= steps;
    return 1;
}

/* what is to be packed next, or NULL */
static inline BlockPacking *due_packing(TiledItem *t)
{
    t->run_credit += t->run_packing.halves;
    t->stay_credit += t->stay_packing.halves;
    return is_due(&t->run_packing, &t->run_credit, t->run_steps) ? &t->run_packing : is_due(&t->stay_packing, &t->stay_credit, t->stay_steps) ? &t->stay_packing : 0;
}

/* whole tiles: 12544 x 64 x 256 226 to 258 GFLOP/s; where a half with each step does for most, they are slower (four panels that stay) */
static void plan_run(TiledItem *t, int64_t steps)
{
    int64_t stay_halves = packs(&t->stay_packing) ? t->stay_packing.halves : 0;
    t->run_credit = 0;
    t->run_steps = steps;
    t->whole_tiles = 4 * (t->run_packing.halves * t->stay_steps + stay_halves * steps) > 5 * steps * t->stay_steps;
}

/* sums = a panel of A times a panel of B, once those of the block before are finished; `coming` is what becomes of these */
static void multiply_block(TiledItem *t, int64_t steps, const bfloat16 *a, const bfloat16 *b, const Finishing *coming)
{
    int64_t rows = (PANEL_SIZE + steps - 1) / steps;
    clear_block();
    for (int64_t step = 0; step < steps; step++, a += STEP_NUMBERS, b += STEP_NUMBERS) {
        BlockPacking *next = due_packing(t);
        fetch_rows(t->p, coming, step * rows, rows);
        if (!next) {
            multiply_step(a, b);
        } else if (next->transposed) {
            HalfTile half = next_half(next);
            multiply_step_and_transpose(a, b, &half);
            half_done(next);
        } else if (t->whole_tiles && next == &t->run_packing && !(next->done & 1)) {
            HalfTile halves[2] = { next_half(next) };
            half_done(next);
            halves[1] = next_half(next);
            multiply_step_and_pack_tile(a, b, halves);
            half_done(next);
        } else {
            HalfTile half = next_half(next);
            multiply_step_and_pack(a, b, &half);
            half_done(next);
        }
        if (t->finishing.done < t->finishing.rows) finish_rows(t, rows);
    }
    store_block(t->sums);
}

/* One panel of an operand at one chunk, in rows as they are in memory, for the product in vectors; `copies` has room for it. Returns where it lies. */
static const float *panel_of(const Operand *o, int64_t index, int64_t deep, int64_t depth, float *copies, int64_t *step)
{
    float tile[TILE_NUMBERS] __attribute__((aligned(64)));
    *step = o->step;
    if (!o->windows && !o->starts) return number_at(o, index, deep);
    *step = o->along ? depth : PANEL_SIZE;
    for (int64_t p = 0; p < depth; p += STEP_DEPTH)
        for (int64_t half = 0; half < PANEL_SIZE; half += 16) {
            int64_t left = smaller(STEP_DEPTH, depth - p), rows = o->along ? 16 : left, width = o->along ? left : 16;
            float *to = copies + (o->along ? half * depth + p : p * PANEL_SIZE + half);
            copy_tile(o, index + half, deep + p, tile);
            for (int64_t i = 0; i < rows; i++) memcpy(to + i * *step, tile + i * (o->along ? STEP_DEPTH : 16), (size_t)width * sizeof(float));
        }
    return copies;
}

/* the same by the product in vectors, for panels that are out of range */
static __attribute__((noinline)) void multiply_block_in_vectors(TiledItem *t, int64_t row, int64_t column, int64_t chunk)
{
    const TiledProduct *p = t->p;
    float *copies = t->workspace, *others = copies + PANEL_SIZE * CHUNK_STEPS * STEP_DEPTH, *workspace = others + PANEL_SIZE * CHUNK_STEPS * STEP_DEPTH;
    int64_t deep = chunk * p->steps * STEP_DEPTH, depth = smaller(p->steps * STEP_DEPTH, p->k - deep), a_step, b_step;
    int64_t rows = smaller(PANEL_SIZE, p->m - row), columns = smaller(PANEL_SIZE, p->n - column);
    finish_rows(t, PANEL_SIZE);
    end_tiles();
    const float *a = panel_of(&p->a, row, deep, depth, copies, &a_step), *b = panel_of(&p->b, column, deep, depth, others, &b_step);
    packed_sgemm(!p->a.along, p->b.along, rows, columns, depth, a, a_step, b, b_step, 0, t->sums, PANEL_SIZE, 0, 0, workspace);
    begin_tiles();
}

/* ---- an item */

/* which of `parts` of so many panels has this one */
static inline int64_t part_with(int64_t panel, int64_t panels, int64_t parts) { return ((panel + 1) * parts - 1) / panels; }

static Stage stage_at(const TiledProduct *p, int64_t part)
{
    int64_t cuts = p->down * p->across, slice = part / cuts, i = part % cuts / p->across, j = part % p->across;
    int64_t staying = i * p->staying / p->down, passing = j * p->passing / p->across, first = slice * p->chunks / p->slices;
    return (Stage){ part, slice, first, (slice + 1) * p->chunks / p->slices, first, staying, (i + 1) * p->staying / p->down - staying,
                    passing, (j + 1) * p->passing / p->across - passing };
}

/* the next one of the same worker, whose parts end before `end`; 0: there is none */
static int stage_after(const TiledProduct *p, const Stage *now, int64_t end, Stage *next)
{
    *next = *now;
    if (++next->chunk < now->end) return 1;
    if (now->part + 1 == end) return 0;
    *next = stage_at(p, now->part + 1);
    return 1;
}

/* which of a worker's kept blocks belongs to panel i of a stage's staying side and panel j of its passing side */
static inline int64_t kept_block(const TiledProduct *p, const Stage *s, int64_t i, int64_t j)
{
    if (p->slices > 1) return (s->slice * p->staying + s->staying + i) * p->passing + s->passing + j;
    return p->chunks > 1 ? j * s->stays + i : 0;
}

static void pack_staying(TiledItem *t, const Stage *s, int to)
{
    start_packing(&t->stay_packing, t->staying, s->staying, s->stays, s->chunk * t->p->steps, steps_of_chunk(t->p, s->chunk), t->stay[to],
                  t->stay_out_of_range[to]);
}

static void pack_passing(TiledItem *t, const Stage *s, int64_t panel, int to)
{
    start_packing(&t->run_packing, t->passing, s->passing + panel, smaller(t->run_panels, s->passes - panel), s->chunk * t->p->steps,
                  steps_of_chunk(t->p, s->chunk), t->run[to], t->run_out_of_range[to]);
}

/* what becomes of a block of a stage, at a panel of the side that stays and one of the side that passes */
static inline Finishing coming_of(const TiledProduct *p, const Stage *s, float *kept, int64_t staying, int64_t passing)
{
    int last = p->slices == 1 && s->chunk + 1 == p->chunks;
    int64_t row = (p->rows_stay != p->swapped ? staying : passing) * PANEL_SIZE, column = (p->rows_stay != p->swapped ? passing : staying) * PANEL_SIZE;
    return (Finishing){ kept, row, column, 0, last ? smaller(PANEL_SIZE, rows_of_c(p) - row) : PANEL_SIZE, s->chunk == s->first, last };
}

/* all blocks of the passing panels in a run, from `panel` of the stage on */
static void multiply_run(TiledItem *t, const Stage *s, int64_t panel, int stay, int run)
{
    const TiledProduct *p = t->p;
    int64_t steps = steps_of_chunk(p, s->chunk), end = smaller(panel + t->run_panels, s->passes);
    const bfloat16 *passing = t->run[run];
    for (int64_t j = panel; j < end; j++, passing += steps * STEP_NUMBERS) {
        const bfloat16 *staying = t->stay[stay];
        for (int64_t i = 0; i < s->stays; i++, staying += steps * STEP_NUMBERS) {
            int64_t a = p->rows_stay ? s->staying + i : s->passing + j, b = p->rows_stay ? s->passing + j : s->staying + i;
            Finishing coming = coming_of(p, s, t->blocks + kept_block(p, s, i, j) * BLOCK_NUMBERS, s->staying + i, s->passing + j);
            if (t->stay_out_of_range[stay][i] | t->run_out_of_range[run][j - panel])
                multiply_block_in_vectors(t, a * PANEL_SIZE, b * PANEL_SIZE, s->chunk);
            else if (p->rows_stay) multiply_block(t, steps, staying, passing, &coming);
            else multiply_block(t, steps, passing, staying, &coming);
            t->finishing = coming;
        }
    }
}

static void start_item(TiledItem *t, const TiledProduct *p, const Stage *first, int64_t worker)
{
    t->p = p;
    t->staying = p->rows_stay ? &p->a : &p->b;
    t->passing = p->rows_stay ? &p->b : &p->a;
    t->run_panels = t->passing->along ? 1 : RUN_PANELS;
    t->blocks = workspace_of(p->engine, worker);
    t->workspace = t->blocks + TILED_FLOATS;
    t->stay[0] = (bfloat16 *)(t->blocks + KEPT_BLOCKS * BLOCK_NUMBERS); t->stay[1] = t->stay[0] + STAYING_NUMBERS;
    t->run[0] = t->stay[1] + STAYING_NUMBERS; t->run[1] = t->run[0] + RUN_NUMBERS;
    t->finishing = (Finishing){0};
    pack_staying(t, first, 0);
    pack_rest(&t->stay_packing);
    pack_passing(t, first, 0, 0);
    pack_rest(&t->run_packing);
}

static void multiply_tiled_item(void *context, int64_t item, int64_t worker)
{
    const TiledProduct *p = context;
    int64_t end = (item + 1) * p->parts / p->items;
    Stage now = stage_at(p, item * p->parts / p->items), next;
    TiledItem t;
    start_item(&t, p, &now, worker);
    begin_tiles();
    for (int stay = 0, run = 0, more = 1; more; stay ^= 1, now = next) {
        int64_t steps = steps_of_chunk(p, now.chunk);
        more = stage_after(p, &now, end, &next);
        if (p->slices > 1) p->kept_of[now.part] = t.blocks;
        if (more) pack_staying(&t, &next, stay ^ 1);
        t.stay_credit = 0;
        t.stay_steps = now.passes * now.stays * steps;
        for (int64_t panel = 0, after; panel < now.passes; panel = after, run ^= 1) {
            after = smaller(panel + t.run_panels, now.passes);
            if (after < now.passes) pack_passing(&t, &now, after, run ^ 1);
            else if (more) pack_passing(&t, &next, 0, run ^ 1);
            plan_run(&t, (after - panel) * now.stays * steps);
            multiply_run(&t, &now, panel, stay, run);
            pack_rest(&t.run_packing);
        }
        pack_rest(&t.stay_packing);
    }
    end_tiles();
    finish_rows(&t, PANEL_SIZE);
    if (p->stream) end_stream();
}

/* One block of C, of which the slices are added up. */
static void add_slices_item(void *context, int64_t item, int64_t worker)
{
    (void)worker;
    const TiledProduct *p = context;
    TiledItem t;
    Stage s = { .staying = item / p->passing, .passing = item % p->passing };
    int64_t cut = part_with(s.staying, p->staying, p->down) * p->across + part_with(s.passing, p->passing, p->across);
    const float *of[SLICES];
    for (s.slice = 0; s.slice < SLICES; s.slice++)
        of[s.slice] = p->kept_of[s.slice * p->down * p->across + cut] + kept_block(p, &s, 0, 0) * BLOCK_NUMBERS;
    memcpy(t.sums, of[0], sizeof(t.sums));
    t.p = p;
    t.finishing = coming_of(p, &s, (float *)of[1], s.staying, s.passing);
    t.finishing.rows = smaller(PANEL_SIZE, rows_of_c(p) - t.finishing.row);
    t.finishing.first = 0;
    t.finishing.last = 1;
    finish_rows(&t, PANEL_SIZE);
}

/* ---- all */

static void choose_chunks(TiledProduct *p)
{
    int64_t steps = panels_of(p->k);
    p->chunks = (steps + CHUNK_STEPS - 1) / CHUNK_STEPS;
    p->steps = (steps + p->chunks - 1) / p->chunks;
    p->chunks = (steps + p->steps - 1) / p->steps;
}

static inline int64_t parts_of(int64_t size, int64_t most) { return (size + most - 1) / most; }

/* The shorter side stays, where it is short enough. Parts are as many for each worker, who takes his one after another, and as equal as can be: one panel alone
 * would pass with all of its packing to wait for, and 25 panels as 7, 7, 7 and 4 are 14 for one worker of two. */
static void choose_parts(TiledProduct *p)
{
    int64_t rows = panels_of(p->m), columns = panels_of(p->n), workers = p->engine->workers;
    p->rows_stay = rows <= columns || columns > STAYING_PANELS;
    p->staying = p->rows_stay ? rows : columns;
    p->passing = p->rows_stay ? columns : rows;
    p->slices = p->chunks >= SLICED_CHUNKS && rows * columns <= SLICED_BLOCKS ? SLICES : 1;
    p->down = parts_of(p->staying, STAYING_PANELS);
    p->across = p->chunks == 1 || p->slices > 1 ? 1 : parts_of(p->passing, KEPT_BLOCKS / parts_of(p->staying, p->down));
    for (;;) {
        p->parts = p->slices * p->down * p->across;
        if (p->parts % workers == 0 || p->parts >= 4 * workers || (p->down == p->staying && p->across == p->passing)) break;
        int64_t stay = parts_of(p->staying, p->down), pass = parts_of(p->passing, p->across);
        if (pass >= stay) p->across = smaller(2 * p->across, p->passing);
        else p->down = smaller(2 * p->down, p->staying);
    }
    p->items = smaller(p->parts, workers);
}

/* An operand that runs the other way than its tiles is transposed while it is packed, half a tile with a step at most. Where it has more panels than the few of
 * the other one have steps for, they change places (cold, 256 x 64 x 12544 transposed: 3.3 to 2.7 ms, 64 x 2048 x 256: 0.42 to 0.32; with four, 5 % slower). */
static void swap_operands(TiledProduct *p)
{
    int64_t turned_rows = p->a.along ? 0 : panels_of(p->m), turned_columns = p->b.along ? panels_of(p->n) : 0;
    int64_t rows = p->b.along ? 0 : panels_of(p->n), columns = p->a.along ? panels_of(p->m) : 0;      /* the same once they are swapped */
    if (p->a.windows || p->b.windows || rows + columns > FEW_PANELS || rows + columns >= turned_rows + turned_columns) return;
    Operand a = p->a;
    int64_t m = p->m;
    p->a = p->b; p->b = a;
    p->a.is_b = 0; p->b.is_b = 1;
    p->m = p->n; p->n = m;
    p->swapped = 1;
}

static void multiply_on_tiles(TiledProduct *p)
{
    swap_operands(p);
    const float *kept_of[KEPT_BLOCKS];
    choose_chunks(p);
    choose_parts(p);
    p->kept_of = kept_of;
    p->engine->parallel_for(p->engine, multiply_tiled_item, p, p->items);
    if (p->slices > 1) p->engine->parallel_for(p->engine, add_slices_item, p, p->staying * p->passing);
}

/* Whether tiles take the product; if so, it is done. As parallel_sgemm. */
static int amx_sgemm(const Engine *engine, int transposed_a, int transposed_b, int64_t m, int64_t n, int64_t k, float alpha, const float *a, int64_t lda,
                       const float *b, int64_t ldb, int accumulate, float *c, int64_t ldc, const float *bias, int relu)
{
    if (!on_tiles(engine, m, n, k)) return 0;
    TiledProduct p = { .engine = engine, .m = m, .n = n, .k = k, .ldc = ldc, .c = c, .alpha = alpha, .bias = bias, .accumulate = accumulate, .relu = relu,
                       .a = { a, lda, m, k, !transposed_a, 0, 0, 0, 0 }, .b = { b, ldb, n, k, transposed_b, 1, 0, 0, 0 } };
    p.stream = m * n >= TILED_STREAM_FROM && ldc % 16 == 0 && (uintptr_t)c % 64 == 0;
    multiply_on_tiles(&p);
    return 1;
}

/* as WindowProduct says; m, n and k must suit (on_tiles) */
static void window_product(const Engine *engine, const WindowProduct *w)
{
    const Windows *v = &w->windows;
    int64_t points = v->images * v->out_rows * v->out_columns, numbers = v->taps * v->channels;
    TiledProduct p = { .engine = engine, .c = w->c, .alpha = 1, .bias = w->bias };
    if (w->filters) {
        p.m = w->outputs; p.n = p.ldc = numbers; p.k = points;
        p.a = (Operand){ w->filters, w->outputs, p.m, p.k, 0, 0, 0, 0, 0 };
        p.b = (Operand){ 0, 0, p.n, p.k, 0, 1, 0, 0, v };
    } else {
        p.m = points; p.n = w->outputs; p.k = numbers; p.windows = w;
        p.a = (Operand){ 0, 0, p.m, p.k, 1, 0, 0, 0, v };
        p.b = (Operand){ w->b, w->channel_step == 1 ? w->output_step : w->channel_step, p.n, p.k, w->channel_step == 1, 1, v->channels, w->starts, 0 };
    }
    multiply_on_tiles(&p);
}
#else
static int amx_sgemm(const Engine *engine, int transposed_a, int transposed_b, int64_t m, int64_t n, int64_t k, float alpha, const float *a, int64_t lda,
                       const float *b, int64_t ldb, int accumulate, float *c, int64_t ldc, const float *bias, int relu)
{
    (void)engine; (void)transposed_a; (void)transposed_b; (void)m; (void)n; (void)k; (void)alpha; (void)a; (void)lda; (void)b; (void)ldb; (void)accumulate;
    (void)c; (void)ldc; (void)bias; (void)relu;
    return 0;
}
static void window_product(const Engine *engine, const WindowProduct *w) { (void)engine; (void)w; }
#endif
#endif
