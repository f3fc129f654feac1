/* Engine's implicit_gemm (matmul/implicit_gemm.h) on bfloat16 pairs: windows are rounded a block of points at a time, into a worker's workspace, where they
 * stay in the L2 cache, unless they overlap (overlapping_windows.h). */
#ifndef ORTRAIN_IMPLICIT_GEMM_BFLOAT16_H
#define ORTRAIN_IMPLICIT_GEMM_BFLOAT16_H
#include "matmul/overlapping_windows.h"

/* Return the `taps` pixels side by side from an offset on under a point, or NULL if one of them is outside the image. */
static inline const scalar *pixels_under(const Windows *v, const Point *at, int64_t row, int64_t column, int64_t taps)
{
    row += at->y * v->stride_y; column += at->x * v->stride_x;
    if (row < 0 || row >= v->rows || column < 0 || column + taps > v->columns) return NULL;
    return v->pixels + ((at->image * v->rows + row) * v->columns + column) * v->channels;
}

/* to [count, row_pairs] = the windows of the points from `first` on. Writes up to a vector beyond the last one. */
static void round_windows(const WindowGemm *s, int64_t first, int64_t count, packed *to)
{
    const Windows *v = &s->w->windows;
    Point at = point_at(v, first);
    for (int64_t i = 0; i < count; i++, next_point(v, &at))
        for (const TapRun *run = s->run; run < s->run + s->runs; run++) {
            const scalar *from = run->taps > 1 ? pixels_under(v, &at, run->row, run->column, run->taps) : NULL;
            if (from) round_adjacent(from, run->taps * v->channels, to);
            else for (int64_t t = 0; t < run->taps; t++)
                round_adjacent(pixels_under(v, &at, run->row, run->column + t, 1), v->channels, to + t * s->tap_pairs);
            to += run->taps * s->tap_pairs;
        }
}

/* ---- windows times filters */

/* Multiply the windows of the points from `first` on by the filters of the chunk. Rows of C are equally far apart within a run of points. */
static void multiply_points_item(void *context, int64_t item, int64_t worker)
{
    const WindowGemm *s = context; const ImplicitGemm *w = s->w; const Windows *v = &w->windows;
    int64_t first = item * s->rows, count = min_i64(s->rows, s->points - first), run;
    int whole = w->row_step == v->out_columns * w->column_step && w->image_step == v->out_rows * w->row_step;
    packed *windows = workspace_of(s->engine, worker), *filters = workspace_of(s->engine, s->engine->shared_workspace);
    round_windows(s, first, count, windows);
    for (int64_t column = 0, used; column < s->columns; column += used) {
        int64_t width = panel_width(s->columns, column);
        used = min_i64(width, s->columns - column);
        Panel panel = { filters + column * s->row_pairs, width, column, used, width, 0, 2 * s->row_pairs };
        for (int64_t i = 0; i < count; i += run) {
            Point at = point_at(v, first + i);
            run = whole ? count : min_i64(count - i, v->out_columns - at.x);
            Gemm g = { .a = (const scalar *)(windows + i * s->row_pairs), .lda = s->row_pairs, .a_in_place = 1, .k = panel.depth, .ldc = w->column_step,
                       .c = w->c + at.image * w->image_step + at.y * w->row_step + at.x * w->column_step + s->start,
                       .bias = w->bias ? w->bias + s->start : NULL };
            multiply_panel(&g, 0, tiles_of(run), &panel, NULL);
        }
    }
}

static void multiply_windows(WindowGemm *s)
{
    s->rows = min_i64(min_i64(max_i64(MIN_WINDOW_ROWS, WINDOW_BLOCK / s->row_pairs), MAX_WINDOW_ROWS), ceil_div(s->points, WINDOW_ITEMS));
    s->rows = round_up(s->rows, TILE_ROWS);
    multiply_chunks(s, multiply_points_item, ceil_div(s->points, s->rows));
}

/* ---- filters^T times windows */

/* panel [pairs of points, width] = columns [column, column + used) of the windows of the points from `first` on. */
static void round_window_columns(const WindowGemm *s, int64_t first, int64_t count, int64_t column, int64_t used, packed *panel, int64_t width)
{
    const Windows *v = &s->w->windows;
    Point at = point_at(v, first), next;
    for (int64_t p = 0; p < count; p += 2, panel += width, at = next) {
        int64_t more = p + 1 < count;
        next = at;
        next_point(v, &next);
        for (int64_t j = 0, n; j < used; j += n) {
            int64_t tap = (column + j) / v->channels, channel = (column + j) % v->channels, row = v->offsets[tap][0], offset = v->offsets[tap][1];
            n = min_i64(v->channels - channel, used - j);
            const scalar *low = pixels_under(v, &at, row, offset, 1), *high = more ? pixels_under(v, &next, row, offset, 1) : NULL;
            round_pair_of_rows(low ? low + channel : NULL, high ? high + channel : NULL, n, panel + j);
        }
        next_point(v, &next);
    }
}

/* One part of the filters times one part of the columns of the windows, over all points. */
static void multiply_filters_item(void *context, int64_t item, int64_t worker)
{
    const WindowGemm *s = context; const ImplicitGemm *w = s->w;
    int64_t columns = w->windows.taps * w->windows.channels, panels = ceil_div(columns, TILE_COLUMNS), tiles_of_filters = ceil_div(w->outputs, TILE_ROWS);
    int64_t part = item % s->column_parts, filter_part = item / s->column_parts;
    int64_t begin = part * panels / s->column_parts * TILE_COLUMNS, end = min_i64(columns, (part + 1) * panels / s->column_parts * TILE_COLUMNS);
    int64_t filter = filter_part * tiles_of_filters / s->filter_parts * TILE_ROWS;
    int64_t filters = min_i64(w->outputs, (filter_part + 1) * tiles_of_filters / s->filter_parts * TILE_ROWS) - filter;
    packed *windows = workspace_of(s->engine, worker), *packed_filters = windows + (GRADIENT_POINTS / 2 + 1) * TILE_COLUMNS;
    Gemm g = { .transposed_a = 1, .packed_a = packed_filters, .ldc = columns, .c = w->c + filter * columns };
    Tiles tiles = tiles_of(filters);
    for (int64_t first = 0, count; first < s->points; first += count) {
        count = min_i64(GRADIENT_POINTS, s->points - first);
        g.k = count; g.accumulate = first > 0;
        pack_tiles(w->filters + first * w->outputs + filter, w->outputs, count, tiles, packed_filters);
        for (int64_t column = begin, used; column < end; column += used) {
            int64_t width = panel_width(end - column, 0);
            used = min_i64(width, end - column);
            round_window_columns(s, first, count, column, used, windows, width);
            Panel panel = { windows, width, column, used, width, 0, count };
            multiply_panel(&g, 0, tiles, &panel, NULL);
        }
    }
}

/* Every element of the result is the sum over the points in one order, however the work is divided: parts as large as the number of workers allows round each
 * operand the fewest times. */
static void multiply_filters(WindowGemm *s)
{
    int64_t panels = ceil_div(s->w->windows.taps * s->w->windows.channels, TILE_COLUMNS), workers = s->engine->workers;
    s->column_parts = min_i64(panels, workers);
    s->filter_parts = min_i64(ceil_div(workers, s->column_parts), ceil_div(s->w->outputs, TILE_ROWS));
    s->engine->parallel_for(s->engine, multiply_filters_item, s, s->column_parts * s->filter_parts);
}

/* Compute the GEMM that *w describes, with operands rounded to bfloat16. */
static void implicit_gemm_of_pairs(const Engine *engine, const ImplicitGemm *w)
{
    const Windows *v = &w->windows;
    WindowGemm s = { .engine = engine, .w = w, .points = v->images * v->out_rows * v->out_columns, .tap_pairs = packed_depth(v->channels) };
    s.row_pairs = v->taps * s.tap_pairs;
    if (!w->filters) w->fill_b(engine, w);
    find_runs(&s, 1);
    if (w->filters ? multiply_filters_by_bands(&s) : multiply_bands(&s)) return;
    find_runs(&s, v->channels % 2 == 0);
    if (w->filters) multiply_filters(&s);
    else multiply_windows(&s);
}
#endif
