/* Engine's implicit_gemm (matmul/implicit_gemm.h) on AMX tiles, of operands rounded to bfloat16: windows are read in place.
 *
 * A band of an image (overlapping_windows.h) is rounded once, with its padding. Its points follow each other at a constant step, from one row to the next, so
 * any 16 of them are a tile for each tap: those behind the end of a row are computed and dropped. With strides, rows of the band that are stride_y apart
 * follow each other in memory. For the weight gradient the points of the filters' rows, followed by zeros up to those of the band, are the depth. */
#ifndef ORTRAIN_TILED_WINDOWS_H
#define ORTRAIN_TILED_WINDOWS_H
#include "matmul/overlapping_windows.h"
#include "matmul/tiled_products.h"
#if HAVE_AMX

enum {
    TILED_BAND = 1 << 16, TILED_PAIRS = 1 << 17,    /* pairs of a band, and of one for the weight gradient: 256 and 512 KiB */
    TILED_ITEMS = 8,                                /* to aim at, where several images are a band */
    TILED_ROWS = 1024,                              /* points of a band */
    MERGED_ROWS = 128,                              /* points of a band of several images */
    DEEP_POINTS = 640,                              /* see is_deep */
    TILED_DEPTH = 512                               /* points of a block of the weight gradient: 32 filters fill most of the L1 cache */
};

/* Return the rows of an image in a band that follow each other at the step of the points, and the rows that a band has room for. */
static inline int64_t rows_of_image(const WindowGemm *s) { return ceil_div(band_rows(s, s->band.block), s->w->windows.stride_y); }
static inline int64_t rows_of_band(const WindowGemm *s) { return s->w->windows.stride_y * s->band.images * rows_of_image(s); }

/* Return the place in a band of a row of its first image, counted from the first tap of the first point. */
static inline int64_t place_of_row(const WindowGemm *s, int64_t row)
{ return row % s->w->windows.stride_y * s->band.images * rows_of_image(s) + row / s->w->windows.stride_y; }

/* Cut rows into parts of at most `most` points, such that a row of a band of `pixel` pairs fits into `room` with all taps. Return whether it does. multiple: of
 * the columns of a band. */
static int cut_rows(WindowGemm *s, int64_t most, int64_t multiple, int64_t pixel, int64_t room)
{
    const Windows *v = &s->w->windows; Band *b = &s->band;
    int64_t columns = room / (round_up(b->height, v->stride_y) * pixel) / multiple * multiple;
    if (columns < b->width) return 0;
    b->parts = ceil_div(v->out_columns, min_i64(most, (columns - b->width) / v->stride_x + 1));
    b->points = ceil_div(v->out_columns, b->parts);
    b->columns = round_up((b->points - 1) * v->stride_x + b->width, multiple);
    return 1;
}

/* A part of the windows: bands of some images, of rows of points from `first` on, and of points of a row from `point` on. */
typedef struct WindowPart { WindowGemm bands; int64_t image, first, rows, point, points; } WindowPart;

/* Set *t to part `number` of a row in block `block` of the images from `image` on. */
static void start_part(const WindowGemm *s, int64_t image, int64_t block, int64_t number, WindowPart *t)
{
    const Windows *v = &s->w->windows; const Band *b = &s->band;
    int64_t first = block * b->block, point = number * b->points;
    *t = (WindowPart){ *s, image, first, min_i64(b->block, v->out_rows - first), point, min_i64(b->points, v->out_columns - point) };
    t->bands.band.left += point * v->stride_x;
}

/* Round the band of a part. round: of one row. pixel: pairs of a pixel. */
static void fill_band(const WindowPart *t, void (*round)(const WindowGemm *, int64_t, int64_t, packed *), int64_t pixel, packed *band)
{
    const WindowGemm *s = &t->bands;
    const int64_t each = rows_of_image(s), in_phase = s->band.images * each, step = s->w->windows.stride_y, top = t->first * step + s->band.top;
    for (int64_t place = 0; place < rows_of_band(s); place++, band += s->band.columns * pixel) {
        int64_t number = t->image + place % in_phase / each, row = place % each * step + place / in_phase;
        if (number < s->w->windows.images) round(s, number, top + row, band);
        else round(s, t->image, -1, band);
    }
}

/* Have bands of as many whole images as there are points for, where bands are of whole images. pixel: pairs of a pixel. */
static void choose_images(WindowGemm *s, int64_t points, int64_t most, int64_t pixel, int64_t room)
{
    Band *b = &s->band;
    b->images = 1;
    if (b->blocks > 1 || b->parts > 1) return;
    int64_t fit = min_i64(points / (rows_of_band(s) * b->columns), room / (rows_of_band(s) * b->columns * pixel));
    b->images = max_i64(1, min_i64(fit, most));
}

/* Return the pixel of the band at which a run of taps starts, for its first point. */
static inline int64_t start_of_run(const WindowGemm *s, const TapRun *run)
{ return place_of_row(s, run->row - s->band.top) * s->band.columns + run->column - s->band.left; }

/* ---- windows times filters */

/* Divide the taps into runs of one length, and pad their channels so that tiles of one depth cover a run. */
static void choose_runs(WindowGemm *s)
{
    const Windows *v = &s->w->windows;
    int even = 1;
    find_runs(s, 1);
    for (int64_t i = 1; i < s->runs; i++) even &= s->run[i].taps == s->run[0].taps;
    if (!even) find_runs(s, 0);
    s->tap_pairs = padded_pairs(s->run[0].taps, packed_depth(v->channels));
    s->row_pairs = v->taps * s->tap_pairs;
}

/* Pack 16 filters of the chunk: [row_pairs, 16]. Their weights are gathered from ONNX's layout, whose taps are adjacent: transposing them first took half of the
 * time of a convolution of 512 channels on 32 images of 4 x 4. */
static void pack_filters_of_tile_item(void *context, int64_t item, int64_t worker)
{
    const WindowGemm *s = context; const ImplicitGemm *w = s->w; (void)worker;
    const int64_t column = item * TILE_SIZE, used = min_i64(TILE_SIZE, s->columns - column), channels = w->windows.channels, step = w->weight_channel_step;
    const __mmask16 mask = (__mmask16)((1u << used) - 1);
    const __m512i lanes = _mm512_mullo_epi32(_mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0),
                                             _mm512_set1_epi32((int)w->weight_output_step));
    packed *panel = workspace_of(s->engine, s->engine->shared_workspace) + column * s->row_pairs;
    const float *weights = w->weights + (s->start + column) * w->weight_output_step;
    for (int64_t p = 0; p < s->tap_pairs; p++)
        for (int64_t t = 0; t < w->windows.taps; t++) {
            const float *from = weights + w->numbers[t] + 2 * p * step;
            __m512 first = _mm512_setzero_ps(), second = first;
            if (2 * p < channels) first = _mm512_mask_i32gather_ps(first, mask, lanes, from, 4);
            if (2 * p + 1 < channels) second = _mm512_mask_i32gather_ps(second, mask, lanes, from + step, 4);
            *(int_vector *)(panel + (t * s->tap_pairs + p) * TILE_SIZE) = pairs_of((vector)first, (vector)second);
        }
}

/* Store sums [count points, PANEL_SIZE], the first of which is point `first` of the band, to `c`, which is that of the band's first point and filter. Points
 * beyond the end of a row or an image are dropped. */
static void store_points(const WindowPart *t, const float *sums, int64_t first, int64_t count, int64_t filters, const float *bias, float *c)
{
    const ImplicitGemm *w = t->bands.w;
    const int64_t row_points = t->bands.band.columns / w->windows.stride_x, each = rows_of_image(&t->bands);
    const uint32_t mask = (uint32_t)(((uint64_t)1 << filters) - 1);
    const __mmask16 low = (__mmask16)mask, high = (__mmask16)(mask >> 16);
    __m512 shift = _mm512_setzero_ps(), more = shift;
    if (bias) { shift = _mm512_maskz_loadu_ps(low, bias); more = _mm512_maskz_loadu_ps(high, bias + TILE_SIZE); }
    for (int64_t y = first / row_points, x = first % row_points, i = 0; i < count; y++, x = 0) {
        int64_t end = min_i64(count, i + row_points - x), valid = y % each < t->rows ? min_i64(end, i + t->points - x) : i;
        float *to = c + y / each * w->image_step + y % each * w->row_step + x * w->column_step;
        for (; i < valid; i++, to += w->column_step) {
            _mm512_mask_storeu_ps(to, low, _mm512_add_ps(_mm512_load_ps(sums + i * PANEL_SIZE), shift));
            if (high) _mm512_mask_storeu_ps(to + TILE_SIZE, high, _mm512_add_ps(_mm512_load_ps(sums + i * PANEL_SIZE + TILE_SIZE), more));
        }
        i = end;
    }
}

/* Multiply the windows of a part by the filters of the chunk. */
static void multiply_tiled_band_item(void *context, int64_t item, int64_t worker)
{
    const WindowGemm *s = context; const ImplicitGemm *w = s->w; const Windows *v = &w->windows; const Band *b = &s->band;
    int64_t starts[MAX_WINDOW_TAPS], length = s->run[0].taps * s->tap_pairs * 2, steps = steps_of_run(length), step = v->stride_x * s->tap_pairs * 2;
    float sums[PANEL_SIZE * PANEL_SIZE] __attribute__((aligned(64)));
    packed *band = workspace_of(s->engine, worker), *filters = workspace_of(s->engine, s->engine->shared_workspace);
    WindowPart t;
    start_part(s, item / (b->blocks * b->parts) * b->images, item / b->parts % b->blocks, item % b->parts, &t);
    fill_band(&t, round_row_of_band, s->tap_pairs, band);
    for (int64_t i = 0; i < s->runs; i++) starts[i] = start_of_run(s, s->run + i) * s->tap_pairs * 2;
    int64_t rows = (min_i64(b->images, v->images - t.image) - 1) * rows_of_image(s) + t.rows, points = (rows - 1) * (b->columns / v->stride_x) + t.points;
    TiledProduct p = { .a_row = 2 * step, .a_half = TILE_SIZE * step, .a_step = length / steps, .b_row = 64, .b_half = TILE_SIZE * s->row_pairs * 2,
                       .b_step = length / steps * TILE_SIZE, .runs = s->runs, .steps = steps, .starts = starts };
    configure_tiles_of_depth(length / steps);
    for (int64_t column = 0; column < s->columns; column += PANEL_SIZE) {
        int64_t used = min_i64(PANEL_SIZE, s->columns - column);
        p.b = (const bfloat16 *)(filters + column * s->row_pairs);
        for (int64_t point = 0; point < points; point += PANEL_SIZE) {
            int64_t count = min_i64(PANEL_SIZE, points - point);
            p.a = (const bfloat16 *)band + point * step;
            multiply_sums(&p, count, used, sums);
            store_points(&t, sums, point, count, used, w->bias ? w->bias + s->start + column : NULL,
                         w->c + t.image * w->image_step + t.first * w->row_step + t.point * w->column_step + s->start + column);
        }
    }
    release_tiles();
}

/* Compute windows times filters and return 1, or return 0 where a band does not fit into the workspace. */
static int multiply_tiled_bands(WindowGemm *s)
{
    const Windows *v = &s->w->windows; Band *b = &s->band;
    measure_windows(s);
    choose_runs(s);
    int64_t room = s->engine->workspace_floats / s->row_pairs / PANEL_SIZE * PANEL_SIZE;
    if (!room || !cut_rows(s, TILED_ROWS, v->stride_x, s->tap_pairs, TILED_BAND)) return 0;
    choose_bands(s, max_i64(1, min_i64(TILED_ROWS / b->points, ceil_div(v->images * v->out_rows, WINDOW_ITEMS))), s->tap_pairs, TILED_BAND);
    /* tiles of the last points read beyond the band, what is dropped */
    if (2 * TILED_BAND + (PANEL_SIZE * v->stride_x + b->width) * s->tap_pairs > s->engine->workspace_floats) return 0;
    choose_images(s, MERGED_ROWS, ceil_div(v->images, TILED_ITEMS), s->tap_pairs, TILED_BAND);
    for (s->start = 0; s->start < s->w->outputs; s->start += s->columns) {
        s->columns = min_i64(s->w->outputs - s->start, room);
        s->engine->parallel_for(s->engine, pack_filters_of_tile_item, s, ceil_div(s->columns, TILE_SIZE));
        s->engine->parallel_for(s->engine, multiply_tiled_band_item, s, ceil_div(v->images, b->images) * b->blocks * b->parts);
    }
    return 1;
}

/* ---- filters^T times windows */

/* Return the points of a block of the weight gradient: those of whole rows of its band, rounded up to whole tiles. */
static inline int64_t depth_of_rows(const WindowGemm *s, int64_t rows) { return round_up(rows * (s->band.columns / s->w->windows.stride_x), STEP_DEPTH); }

/* to [filters, step] = the points of filters from `filter` on, for `rows` rows of a part's band: zeros for what has no points, and up to the depth. */
static void transpose_part(const WindowPart *t, int64_t filter, int64_t filters, int64_t rows, int64_t depth, bfloat16 *to)
{
    const WindowGemm *s = &t->bands; const ImplicitGemm *w = s->w; const Windows *v = &w->windows;
    const int64_t each = rows_of_image(s), row_points = s->band.columns / v->stride_x, step = odd_lines(depth + STEP_DEPTH);
    for (int64_t f = 0; f < filters; f++) memset(to + f * step + depth - STEP_DEPTH, 0, STEP_DEPTH * sizeof(bfloat16));
    for (int64_t y = 0; y < rows; y++) {
        int64_t image = t->image + y / each, valid = image < v->images && y % each < t->rows;
        int64_t point = valid ? ((image * v->out_rows + t->first + y % each) * v->out_columns + t->point) * w->outputs + filter : 0;
        transpose_points(w->filters + point, w->outputs, valid ? t->points : 0, row_points, filters, to + y * row_points, step);
    }
}

/* c [filters, columns] = sums, or += sums */
static void store_weights(const float *sums, int64_t filters, int64_t columns, int accumulate, float *c, int64_t ldc)
{
    const uint32_t mask = (uint32_t)(((uint64_t)1 << columns) - 1);
    const __mmask16 low = (__mmask16)mask, high = (__mmask16)(mask >> 16);
    for (int64_t i = 0; i < filters; i++, sums += PANEL_SIZE, c += ldc) {
        __m512 first = _mm512_load_ps(sums);
        _mm512_mask_storeu_ps(c, low, accumulate ? _mm512_add_ps(first, _mm512_maskz_loadu_ps(low, c)) : first);
        if (!high) continue;
        __m512 second = _mm512_load_ps(sums + TILE_SIZE);
        _mm512_mask_storeu_ps(c + TILE_SIZE, high, accumulate ? _mm512_add_ps(second, _mm512_maskz_loadu_ps(high, c + TILE_SIZE)) : second);
    }
}

/* Multiply the transposed points of filters by the part [begin, end) of the panels of the windows' columns. c: the first filter's row. */
static void multiply_columns_of_band(const WindowGemm *s, const bfloat16 *points, int64_t depth, int64_t filters, const packed *band, int64_t begin,
                                     int64_t end, int accumulate, float *c)
{
    const Windows *v = &s->w->windows;
    const int64_t step = odd_lines(depth + STEP_DEPTH), none = 0, channels = v->channels, pair = 2 * v->stride_x * channels;
    float sums[PANEL_SIZE * PANEL_SIZE] __attribute__((aligned(64)));
    TiledProduct p = { .a_row = 2 * step, .a_half = TILE_SIZE * step, .a_step = STEP_DEPTH, .b_row = 4 * pair, .b_half = 2 * TILE_SIZE,
                       .b_step = 2 * TILE_SIZE * pair, .runs = 1, .steps = depth / STEP_DEPTH, .starts = &none };
    for (int64_t filter = 0; filter < filters; filter += PANEL_SIZE) {
        int64_t number = 0, start = 0, rows = min_i64(PANEL_SIZE, filters - filter);
        p.a = points + filter * step;
        for (const TapRun *run = s->run; run < s->run + s->runs; start += run->taps * channels, run++)
            for (int64_t j = 0; j < run->taps * channels; j += PANEL_SIZE, number++) {
                if (number < begin || number >= end) continue;
                int64_t columns = min_i64(PANEL_SIZE, run->taps * channels - j);
                p.b = (const bfloat16 *)(band + start_of_run(s, run) * channels + j);
                multiply_sums(&p, rows, columns, sums);
                store_weights(sums, rows, columns, accumulate, c + filter * v->taps * channels + start + j, v->taps * channels);
            }
    }
}

/* One part of the filters times one part of the panels of the windows, over all points. */
static void multiply_filters_by_tiled_band_item(void *context, int64_t item, int64_t worker)
{
    const WindowGemm *s = context; const ImplicitGemm *w = s->w; const Windows *v = &w->windows; const Band *b = &s->band;
    int64_t part = item % s->column_parts, filter_part = item / s->column_parts, panels = ceil_div(w->outputs, PANEL_SIZE);
    int64_t filter = filter_part * panels / s->filter_parts * PANEL_SIZE;
    int64_t filters = min_i64(w->outputs, (filter_part + 1) * panels / s->filter_parts * PANEL_SIZE) - filter;
    packed *band = workspace_of(s->engine, worker);
    bfloat16 *points = (bfloat16 *)(band + s->panel_pairs);
    configure_tiles_of_depth(STEP_DEPTH);
    for (int64_t number = 0; number < ceil_div(v->images, b->images) * b->blocks * b->parts; number++) {
        WindowPart t;
        start_part(s, number / (b->blocks * b->parts) * b->images, number / b->parts % b->blocks, number % b->parts, &t);
        int64_t rows = (b->images - 1) * rows_of_image(s) + t.rows, depth = depth_of_rows(s, rows), pairs = rows_of_band(s) * b->columns * v->channels;
        fill_band(&t, pair_row_of_band, v->channels, band);
        memset(band + pairs, 0, (size_t)(s->panel_pairs - pairs) * sizeof(packed));
        transpose_part(&t, filter, filters, rows, depth, points);
        multiply_columns_of_band(s, points, depth, filters, band, part * s->panels / s->column_parts, (part + 1) * s->panels / s->column_parts, number > 0,
                                 w->c + filter * v->taps * v->channels);
    }
    release_tiles();
}

/* Compute filters^T times windows and return 1, or return 0 where a band does not fit into the workspace. */
static int multiply_filters_by_tiled_bands(WindowGemm *s)
{
    const Windows *v = &s->w->windows; Band *b = &s->band;
    int64_t workers = s->engine->workers;
    measure_windows(s);
    find_runs(s, 1);
    if (!cut_rows(s, TILED_DEPTH, 2 * v->stride_x, v->channels, TILED_PAIRS)) return 0;
    choose_bands(s, max_i64(1, TILED_DEPTH / b->points), v->channels, TILED_PAIRS);
    choose_images(s, TILED_DEPTH, v->images, v->channels, TILED_PAIRS);
    int64_t depth = depth_of_rows(s, (b->images - 1) * rows_of_image(s) + b->block);
    /* tiles of the last points read beyond the band, what zeros are multiplied by */
    s->panel_pairs = round_up((rows_of_band(s) * b->columns + (STEP_DEPTH + 1) * v->stride_x + b->width) * v->channels + PANEL_SIZE, TILE_SIZE);
    if (s->panel_pairs + round_up(s->w->outputs, TILE_SIZE) * odd_lines(depth + STEP_DEPTH) / 2 + TILE_SIZE > s->engine->workspace_floats) return 0;
    for (const TapRun *run = s->run; run < s->run + s->runs; run++) s->panels += ceil_div(run->taps * v->channels, PANEL_SIZE);
    s->filter_parts = min_i64(ceil_div(s->w->outputs, PANEL_SIZE), workers);
    s->column_parts = min_i64(ceil_div(workers, s->filter_parts), s->panels);
    s->engine->parallel_for(s->engine, multiply_filters_by_tiled_band_item, s, s->column_parts * s->filter_parts);
    return 1;
}

/* Return whether windows have so few points that packing all filters for them takes longer than packing windows (amx_gemm.h): 512 channels on 32 images of
 * 4 x 4 take 0.87 of the time there, on 4 of 7 x 7 0.79, but 256 on 4 of 14 x 14 1.4. */
static inline int is_deep(const Engine *engine, const ImplicitGemm *w)
{
    const Windows *v = &w->windows;
    return suits_amx_windows(engine, w) && v->images * v->out_rows * v->out_columns <= DEEP_POINTS;
}

/* Compute the GEMM that *w describes on tiles and return 1, or return 0 where that is slower, or a band does not fit into the workspace. */
static int implicit_gemm_of_tiles(const Engine *engine, const ImplicitGemm *w)
{
    const Windows *v = &w->windows;
    WindowGemm s = { .engine = engine, .w = w, .points = v->images * v->out_rows * v->out_columns, .tap_pairs = packed_depth(v->channels) };
    if (!engine->amx || is_deep(engine, w)) return 0;
    return w->filters ? multiply_filters_by_tiled_bands(&s) : multiply_tiled_bands(&s);
}
#else
static int implicit_gemm_of_tiles(const Engine *engine, const ImplicitGemm *w) { (void)engine; (void)w; return 0; }
#endif
#endif
