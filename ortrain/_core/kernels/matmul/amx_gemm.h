/* GEMM on AMX tiles and all workers: C [m, n] = alpha op(A) op(B) (+ C), then bias and ReLU; also with an im2col matrix as operand (implicit_gemm.h). Operands
 * and results are float32; they are multiplied as sums of three bfloat16 parts, or in gemm_bfloat16.h rounded to one (amx_tiles.h).
 *
 * Blocking: C is divided into blocks of 32 x 32, a panel of A times a panel of B, and the depth into chunks of up to CHUNK_STEPS steps of 32. One operand is
 * "staying": up to STAYING_PANELS of its panels remain in the L2 cache for a chunk. The other one is "passing": its panels are read a run at a time, and each
 * run is multiplied with all staying panels. Partial sums of blocks are kept in the L2 cache until the last chunk.
 *
 * Parallelism: C is cut into parts along both operands, and a work item computes consecutive parts (choose_parts). A small C with a long depth is also
 * cut into SLICES along the depth, which are added at the end: if two workers shared such a C, each would pack one operand completely. Chunks and
 * slices depend on the sizes only, and the blocks are the same for any cut into parts, so results are the same for any number of workers.
 *
 * Overlap: the next run, and the next staying panels, are packed between the tile multiplications (amx_packing.h), and the previous block is
 * stored there too (amx_epilogue.h).
 *
 * Speed at 1024^3 on one core in three parts: 305 GFLOP/s, against 185 with 64-byte vectors and 490 to 550 that the AMX unit can reach. The limit is the
 * bandwidth of the L2 cache: operands, blocks of C and packing move 20 KiB per 150 ns of multiplications. One part reaches 300
 * to 850 GFLOP/s on a Granite Rapids, where vectors of float32 reach 120 to 290. */
#ifndef ORTRAIN_AMX_GEMM_H
#define ORTRAIN_AMX_GEMM_H
#include "matmul/amx_epilogue.h"
#if HAVE_AMX

/* A part of C at one chunk of the depth: panels [staying, staying + staying_count) of the staying operand times [passing, passing + passing_count) of the
 * passing one. The slice has the chunks [first, end). */
typedef struct Stage { int64_t part, slice, first, end, chunk, staying, staying_count, passing, passing_count; } Stage;

static inline int64_t steps_of_chunk(const AmxGemm *p, int64_t chunk) { return min_i64(p->steps, panel_count(p->k) - chunk * p->steps); }

/* ---- a block of C */

/* Return whether a packing is due at this step, and if so reduce its credit. */
static inline int is_due(const BlockPacking *p, int64_t *credit, int64_t steps)
{
    if (*credit < steps || !is_packing(p)) return 0;
    *credit -= steps;
    return 1;
}

/* Return the packing that is due at this step, or NULL. */
static inline BlockPacking *due_packing(AmxItem *t)
{
    t->run_credit += t->run_packing.halves;
    t->stay_credit += t->stay_packing.halves;
    if (is_due(&t->run_packing, &t->run_credit, t->run_steps)) return &t->run_packing;
    return is_due(&t->stay_packing, &t->stay_credit, t->stay_steps) ? &t->stay_packing : 0;
}

/* Spread the packing of the next run over `steps` steps. Whole tiles are packed per step where half tiles would leave more than a fifth of the packing undone:
 * 12544 x 64 x 256 from 226 to 258 GFLOP/s. Elsewhere whole tiles are slower (with four staying panels). */
static void plan_run(AmxItem *t, int64_t steps)
{
    int64_t stay_halves = is_packing(&t->stay_packing) ? t->stay_packing.halves : 0;
    t->run_credit = 0;
    t->run_steps = steps;
    t->whole_tiles = 4 * (t->run_packing.halves * t->stay_steps + stay_halves * steps) > 5 * steps * t->stay_steps;
}

/* sums = a panel of A times a panel of B. During the multiplication the previous block, whose sums are in the same place, is finished, and the rows of C of
 * this one are prefetched. */
static void multiply_block(AmxItem *t, int64_t steps, const bfloat16 *a, const bfloat16 *b, const PendingBlock *upcoming)
{
    int64_t rows = (PANEL_SIZE + steps - 1) / steps;
    clear_block();
    for (int64_t step = 0; step < steps; step++, a += STEP_ELEMENTS, b += STEP_ELEMENTS) {
        BlockPacking *next = due_packing(t);
        fetch_rows(t->p, upcoming, step * rows, rows);
        if (!next) {
            multiply_step(a, b);
        } else if (next->transposed) {
            HalfTile half = next_half(next);
            multiply_step_and_transpose(a, b, &half);
            advance_packing(next);
        } else if (t->whole_tiles && next == &t->run_packing && !(next->done & 1)) {
            HalfTile halves[2] = { next_half(next) };
            advance_packing(next);
            halves[1] = next_half(next);
            multiply_step_and_pack_tile(a, b, halves);
            advance_packing(next);
        } else {
            HalfTile half = next_half(next);
            multiply_step_and_pack(a, b, &half);
            advance_packing(next);
        }
        if (t->pending.done < t->pending.rows) finish_rows(t, rows);
    }
    store_block(t->sums);
}

/* Return a panel of an operand at one chunk in the layout that packed_gemm reads, with its row stride in *step: in place, or copied to `copies`. */
static const float *panel_of(const Operand *o, int64_t index, int64_t k0, int64_t depth, float *copies, int64_t *step)
{
    float tile[TILE_ELEMENTS] __attribute__((aligned(64)));
    *step = o->step;
    if (!o->windows && !o->starts) return element_at(o, index, k0);
    *step = o->k_contiguous ? depth : PANEL_SIZE;
    for (int64_t p = 0; p < depth; p += STEP_DEPTH)
        for (int64_t half = 0; half < PANEL_SIZE; half += 16) {
            int64_t left = min_i64(STEP_DEPTH, depth - p), rows = o->k_contiguous ? 16 : left, width = o->k_contiguous ? left : 16;
            float *to = copies + (o->k_contiguous ? half * depth + p : p * PANEL_SIZE + half);
            copy_tile(o, index + half, k0 + p, tile);
            for (int64_t i = 0; i < rows; i++) memcpy(to + i * *step, tile + i * (o->k_contiguous ? STEP_DEPTH : 16), (size_t)width * sizeof(float));
        }
    return copies;
}

/* multiply_block with vectors instead of tiles, for panels that are out of range of three bfloat16 parts. */
static __attribute__((noinline)) void multiply_block_in_vectors(AmxItem *t, int64_t row, int64_t column, int64_t chunk)
{
    const AmxGemm *p = t->p;
    float *copies = t->workspace, *others = copies + PANEL_SIZE * CHUNK_STEPS * STEP_DEPTH, *workspace = others + PANEL_SIZE * CHUNK_STEPS * STEP_DEPTH;
    int64_t k0 = chunk * p->steps * STEP_DEPTH, depth = min_i64(p->steps * STEP_DEPTH, p->k - k0), a_step, b_step;
    int64_t rows = min_i64(PANEL_SIZE, p->m - row), columns = min_i64(PANEL_SIZE, p->n - column);
    finish_rows(t, PANEL_SIZE);
    release_tiles();
    const float *a = panel_of(&p->a, row, k0, depth, copies, &a_step), *b = panel_of(&p->b, column, k0, depth, others, &b_step);
    packed_gemm(!p->a.k_contiguous, p->b.k_contiguous, rows, columns, depth, 1, a, a_step, b, b_step, 0, t->sums, PANEL_SIZE, 0, 0, (packed *)workspace);
    configure_tiles();
}

/* ---- a work item */

/* Return which of the `parts` parts that `panels` panels are cut into contains a panel. */
static inline int64_t part_of_panel(int64_t panel, int64_t panels, int64_t parts) { return ((panel + 1) * parts - 1) / panels; }

/* Return the first stage of a part. */
static Stage stage_at(const AmxGemm *p, int64_t part)
{
    int64_t cuts = p->staying_parts * p->passing_parts, slice = part / cuts, i = part % cuts / p->passing_parts, j = part % p->passing_parts;
    int64_t staying = i * p->staying / p->staying_parts, passing = j * p->passing / p->passing_parts, first = slice * p->chunks / p->slices;
    return (Stage){ part, slice, first, (slice + 1) * p->chunks / p->slices, first, staying, (i + 1) * p->staying / p->staying_parts - staying,
                    passing, (j + 1) * p->passing / p->passing_parts - passing };
}

/* Set *next to the stage after `now` and return 1, or return 0 after the last stage of an item whose parts end before `end`. */
static int stage_after(const AmxGemm *p, const Stage *now, int64_t end, Stage *next)
{
    *next = *now;
    if (++next->chunk < now->end) return 1;
    if (now->part + 1 == end) return 0;
    *next = stage_at(p, now->part + 1);
    return 1;
}

/* Return the number of the kept block for staying panel i and passing panel j of a stage. */
static inline int64_t kept_block(const AmxGemm *p, const Stage *s, int64_t i, int64_t j)
{
    if (p->slices > 1) return (s->slice * p->staying + s->staying + i) * p->passing + s->passing + j;
    return p->chunks > 1 ? j * s->staying_count + i : 0;
}

/* Start packing the staying panels of a stage. */
static void pack_staying(AmxItem *t, const Stage *s, int to)
{
    start_packing(&t->stay_packing, t->staying, s->staying, s->staying_count, s->chunk * t->p->steps, steps_of_chunk(t->p, s->chunk), t->stay[to],
                  t->stay_out_of_range[to]);
}

/* Start packing a run of passing panels of a stage, from `panel` on. */
static void pack_passing(AmxItem *t, const Stage *s, int64_t panel, int to)
{
    start_packing(&t->run_packing, t->passing, s->passing + panel, min_i64(t->run_panels, s->passing_count - panel), s->chunk * t->p->steps,
                  steps_of_chunk(t->p, s->chunk), t->run[to], t->run_out_of_range[to]);
}

/* Return the end of the block at a staying and a passing panel, in the chunk of a stage. */
static inline PendingBlock pending_block_of(const AmxGemm *p, const Stage *s, float *kept, int64_t staying, int64_t passing)
{
    int last = p->slices == 1 && s->chunk + 1 == p->chunks;
    int64_t row = (p->rows_stay != p->swapped ? staying : passing) * PANEL_SIZE, column = (p->rows_stay != p->swapped ? passing : staying) * PANEL_SIZE;
    return (PendingBlock){ kept, row, column, 0, last ? min_i64(PANEL_SIZE, rows_of_c(p) - row) : PANEL_SIZE, s->chunk == s->first, last };
}

/* Compute all blocks of a run of passing panels, from `panel` of the stage on. stay, run: which of the two buffers hold the panels. */
static void multiply_run(AmxItem *t, const Stage *s, int64_t panel, int stay, int run)
{
    const AmxGemm *p = t->p;
    int64_t steps = steps_of_chunk(p, s->chunk), end = min_i64(panel + t->run_panels, s->passing_count);
    const bfloat16 *passing = t->run[run];
    for (int64_t j = panel; j < end; j++, passing += steps * STEP_ELEMENTS) {
        const bfloat16 *staying = t->stay[stay];
        for (int64_t i = 0; i < s->staying_count; i++, staying += steps * STEP_ELEMENTS) {
            int64_t a = p->rows_stay ? s->staying + i : s->passing + j, b = p->rows_stay ? s->passing + j : s->staying + i;
            PendingBlock upcoming = pending_block_of(p, s, t->blocks + kept_block(p, s, i, j) * BLOCK_ELEMENTS, s->staying + i, s->passing + j);
            if (BFLOAT16_PARTS == 3 && (t->stay_out_of_range[stay][i] | t->run_out_of_range[run][j - panel]))
                multiply_block_in_vectors(t, a * PANEL_SIZE, b * PANEL_SIZE, s->chunk);
            else if (p->rows_stay) multiply_block(t, steps, staying, passing, &upcoming);
            else multiply_block(t, steps, passing, staying, &upcoming);
            t->pending = upcoming;
        }
    }
}

/* Lay out the workspace of an item and pack what its first run needs. */
static void start_item(AmxItem *t, const AmxGemm *p, const Stage *first, int64_t worker)
{
    t->p = p;
    t->staying = p->rows_stay ? &p->a : &p->b;
    t->passing = p->rows_stay ? &p->b : &p->a;
    t->run_panels = t->passing->k_contiguous ? 1 : RUN_PANELS;
    t->blocks = (float *)workspace_of(p->engine, worker);
    t->workspace = t->blocks + AMX_WORKSPACE_FLOATS;
    t->stay[0] = (bfloat16 *)(t->blocks + KEPT_BLOCKS * BLOCK_ELEMENTS); t->stay[1] = t->stay[0] + STAYING_ELEMENTS;
    t->run[0] = t->stay[1] + STAYING_ELEMENTS; t->run[1] = t->run[0] + RUN_ELEMENTS;
    t->pending = (PendingBlock){0};
    pack_staying(t, first, 0);
    pack_remaining(&t->stay_packing);
    pack_passing(t, first, 0, 0);
    pack_remaining(&t->run_packing);
}

/* Compute the item's parts of C. */
static void multiply_item(void *context, int64_t item, int64_t worker)
{
    const AmxGemm *p = context;
    int64_t end = (item + 1) * p->parts / p->items;
    Stage now = stage_at(p, item * p->parts / p->items), next;
    AmxItem t;
    start_item(&t, p, &now, worker);
    configure_tiles();
    for (int stay = 0, run = 0, more = 1; more; stay ^= 1, now = next) {
        int64_t steps = steps_of_chunk(p, now.chunk);
        more = stage_after(p, &now, end, &next);
        if (p->slices > 1) p->kept_by_part[now.part] = t.blocks;
        if (more) pack_staying(&t, &next, stay ^ 1);
        t.stay_credit = 0;
        t.stay_steps = now.passing_count * now.staying_count * steps;
        for (int64_t panel = 0, after; panel < now.passing_count; panel = after, run ^= 1) {
            after = min_i64(panel + t.run_panels, now.passing_count);
            if (after < now.passing_count) pack_passing(&t, &now, after, run ^ 1);
            else if (more) pack_passing(&t, &next, 0, run ^ 1);
            plan_run(&t, (after - panel) * now.staying_count * steps);
            multiply_run(&t, &now, panel, stay, run);
            pack_remaining(&t.run_packing);
        }
        pack_remaining(&t.stay_packing);
    }
    release_tiles();
    finish_rows(&t, PANEL_SIZE);
    if (p->stream) end_stream();
}

/* Add the slices of one block and store it to C. */
static void add_slices_item(void *context, int64_t item, int64_t worker)
{
    (void)worker;
    const AmxGemm *p = context;
    AmxItem t;
    Stage s = { .staying = item / p->passing, .passing = item % p->passing };
    int64_t cut = part_of_panel(s.staying, p->staying, p->staying_parts) * p->passing_parts + part_of_panel(s.passing, p->passing, p->passing_parts);
    const float *of[SLICES];
    for (s.slice = 0; s.slice < SLICES; s.slice++)
        of[s.slice] = p->kept_by_part[s.slice * p->staying_parts * p->passing_parts + cut] + kept_block(p, &s, 0, 0) * BLOCK_ELEMENTS;
    memcpy(t.sums, of[0], sizeof(t.sums));
    t.p = p;
    t.pending = pending_block_of(p, &s, (float *)of[1], s.staying, s.passing);
    t.pending.rows = min_i64(PANEL_SIZE, rows_of_c(p) - t.pending.row);
    t.pending.first = 0;
    t.pending.last = 1;
    finish_rows(&t, PANEL_SIZE);
}

/* ---- entry points */

/* Cut the depth into chunks of nearly equal length. */
static void choose_chunks(AmxGemm *p)
{
    int64_t steps = panel_count(p->k);
    p->chunks = (steps + CHUNK_STEPS - 1) / CHUNK_STEPS;
    p->steps = (steps + p->chunks - 1) / p->chunks;
    p->chunks = (steps + p->steps - 1) / p->steps;
}

/* Return the number of parts of at most `limit` panels. */
static inline int64_t parts_of(int64_t size, int64_t limit) { return (size + limit - 1) / limit; }

/* Choose the staying operand and the parts of C.
 *
 * The shorter operand stays, if it has at most STAYING_PANELS panels. Each worker gets the same number of parts, which are as equal as possible: a
 * part of one passing panel could not overlap packing with anything, and 25 panels cut into 7, 7, 7 and 4 would give one of two workers 14. */
static void choose_parts(AmxGemm *p)
{
    int64_t rows = panel_count(p->m), columns = panel_count(p->n), workers = p->engine->workers;
    p->rows_stay = rows <= columns || columns > STAYING_PANELS;
    p->staying = p->rows_stay ? rows : columns;
    p->passing = p->rows_stay ? columns : rows;
    p->slices = p->chunks >= SLICED_CHUNKS && rows * columns <= SLICED_BLOCKS ? SLICES : 1;
    p->staying_parts = parts_of(p->staying, STAYING_PANELS);
    p->passing_parts = p->chunks == 1 || p->slices > 1 ? 1 : parts_of(p->passing, KEPT_BLOCKS / parts_of(p->staying, p->staying_parts));
    for (;;) {
        p->parts = p->slices * p->staying_parts * p->passing_parts;
        if (p->parts % workers == 0 || p->parts >= 4 * workers || (p->staying_parts == p->staying && p->passing_parts == p->passing)) break;
        int64_t stay = parts_of(p->staying, p->staying_parts), pass = parts_of(p->passing, p->passing_parts);
        if (pass >= stay) p->passing_parts = min_i64(2 * p->passing_parts, p->passing);
        else p->staying_parts = min_i64(2 * p->staying_parts, p->staying);
    }
    p->items = min_i64(p->parts, workers);
}

/* Compute C^T = op(B)^T op(A)^T instead if fewer panels must be transposed during packing.
 *
 * A step packs at most half a tile with transposition, so the few panels of the other operand may offer too few steps to hide it. With up to FEW_PANELS
 * panels to transpose after the swap it pays (cold caches, 256 x 64 x 12544 transposed: 3.3 to 2.7 ms, 64 x 2048 x 256: 0.42 to 0.32 ms); with four it is 5 %
 * slower. */
static void swap_operands(AmxGemm *p)
{
    int64_t transposed_rows = p->a.k_contiguous ? 0 : panel_count(p->m), transposed_columns = p->b.k_contiguous ? panel_count(p->n) : 0;
    int64_t rows = p->b.k_contiguous ? 0 : panel_count(p->n), columns = p->a.k_contiguous ? panel_count(p->m) : 0;      /* after the swap */
    if (p->a.windows || p->b.windows || rows + columns > FEW_PANELS || rows + columns >= transposed_rows + transposed_columns) return;
    Operand a = p->a;
    int64_t m = p->m;
    p->a = p->b; p->b = a;
    p->a.is_b = 0; p->b.is_b = 1;
    p->m = p->n; p->n = m;
    p->swapped = 1;
}

static void run_amx_gemm(AmxGemm *p)
{
    swap_operands(p);
    const float *kept_by_part[KEPT_BLOCKS];
    choose_chunks(p);
    choose_parts(p);
    p->kept_by_part = kept_by_part;
    p->engine->parallel_for(p->engine, multiply_item, p, p->items);
    if (p->slices > 1) p->engine->parallel_for(p->engine, add_slices_item, p, p->staying * p->passing);
}

/* Compute a GEMM with the arguments of parallel_gemm on AMX tiles and return 1, or return 0 if the shape does not suit them. */
static int amx_gemm(const Engine *engine, int transposed_a, int transposed_b, int64_t m, int64_t n, int64_t k, float alpha, const float *a, int64_t lda,
                     const float *b, int64_t ldb, int accumulate, float *c, int64_t ldc, const float *bias, int relu)
{
    if (!suits_amx(engine, m, n, k)) return 0;
    AmxGemm p = { .engine = engine, .m = m, .n = n, .k = k, .ldc = ldc, .c = c, .alpha = alpha, .bias = bias, .accumulate = accumulate, .relu = relu,
                  .a = { a, lda, m, k, !transposed_a, 0, 0, 0, 0 }, .b = { b, ldb, n, k, transposed_b, 1, 0, 0, 0 } };
    p.stream = m * n >= TILED_STREAM_FROM && ldc % 16 == 0 && (uintptr_t)c % 64 == 0;
    run_amx_gemm(&p);
    return 1;
}

/* Compute the GEMM that *w describes, which must satisfy suits_amx_windows. */
static void amx_implicit_gemm(const Engine *engine, const ImplicitGemm *w)
{
    const Windows *v = &w->windows;
    int64_t points = v->images * v->out_rows * v->out_columns, columns = v->taps * v->channels;
    AmxGemm p = { .engine = engine, .c = w->c, .alpha = 1, .bias = w->bias };
    if (w->filters) {
        p.m = w->outputs; p.n = p.ldc = columns; p.k = points;
        p.a = (Operand){ w->filters, w->outputs, p.m, p.k, 0, 0, 0, 0, 0 };
        p.b = (Operand){ 0, 0, p.n, p.k, 0, 1, 0, 0, v };
    } else {
        w->fill_b(engine, w);
        p.m = points; p.n = w->outputs; p.k = columns; p.windows = w;
        p.a = (Operand){ 0, 0, p.m, p.k, 1, 0, 0, 0, v };
        p.b = (Operand){ w->b, w->channel_step == 1 ? w->output_step : w->channel_step, p.n, p.k, w->channel_step == 1, 1, v->channels, w->starts, 0 };
    }
    run_amx_gemm(&p);
}
#else
static int amx_gemm(const Engine *engine, int transposed_a, int transposed_b, int64_t m, int64_t n, int64_t k, float alpha, const float *a, int64_t lda,
                     const float *b, int64_t ldb, int accumulate, float *c, int64_t ldc, const float *bias, int relu)
{
    (void)engine; (void)transposed_a; (void)transposed_b; (void)m; (void)n; (void)k; (void)alpha; (void)a; (void)lda; (void)b; (void)ldb; (void)accumulate;
    (void)c; (void)ldc; (void)bias; (void)relu;
    return 0;
}
static void amx_implicit_gemm(const Engine *engine, const ImplicitGemm *w) { (void)engine; (void)w; }
#endif
#endif
