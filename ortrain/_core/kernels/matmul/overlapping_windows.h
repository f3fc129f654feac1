/* Engine's implicit_gemm (matmul/implicit_gemm.h) on bfloat16 pairs, where windows overlap: the band of an image that a block of rows of points reads is
 * rounded once, with its padding, into a worker's workspace. Tiles of points side by side read it in place, one run of taps after another. Separate windows
 * (implicit_gemm_bfloat16.h) round a pixel once for every tap, which takes half of the time of a convolution with few filters or few channels. */
#ifndef ORTRAIN_OVERLAPPING_WINDOWS_H
#define ORTRAIN_OVERLAPPING_WINDOWS_H
#include "matmul/window_gemm.h"

enum {
    MIN_RUN_PAIRS = 12,                             /* of a run of taps, on average: between two runs a tile is stored and loaded */
    MIN_BAND_DEPTH = 64                             /* points of a block of the weight gradient, between which a tile is stored and loaded */
};

/* Return the rows of the band of `rows` rows of points. */
static inline int64_t band_rows(const WindowGemm *s, int64_t rows) { return (rows - 1) * s->w->windows.stride_y + s->band.height; }

/* Set the offset and the size of the pixels under the taps of a point. */
static void measure_windows(WindowGemm *s)
{
    const Windows *v = &s->w->windows; Band *b = &s->band;
    b->top = v->offsets[0][0]; b->left = v->offsets[0][1];
    for (int64_t t = 1; t < v->taps; t++) { b->top = min_i64(b->top, v->offsets[t][0]); b->left = min_i64(b->left, v->offsets[t][1]); }
    for (int64_t t = 0; t < v->taps; t++) {
        b->height = max_i64(b->height, v->offsets[t][0] - b->top + 1); b->width = max_i64(b->width, v->offsets[t][1] - b->left + 1);
    }
    b->columns = (v->out_columns - 1) * v->stride_x + b->width;
}

/* Divide an image into bands of at most `max_rows` rows of points. Return whether one of `elements` pairs per pixel fits into `room` pairs. */
static int choose_bands(WindowGemm *s, int64_t max_rows, int64_t elements, int64_t room)
{
    const Windows *v = &s->w->windows; Band *b = &s->band;
    int64_t rows = (room / (b->columns * elements) - b->height) / v->stride_y + 1;
    if (b->columns * elements * b->height > room) return 0;
    rows = max_i64(1, min_i64(rows, max_rows));
    b->blocks = ceil_div(v->out_rows, rows);
    b->block = ceil_div(v->out_rows, b->blocks);
    return 1;
}

/* The columns of a band's row that are in the image: pixels [begin, end) of it. */
typedef struct PixelRange { int64_t begin, end; } PixelRange;
static inline PixelRange pixels_of_band(const WindowGemm *s)
{
    int64_t beyond = s->band.left + s->band.columns, begin = min_i64(max_i64(s->band.left, 0), beyond);
    return (PixelRange){ begin, max_i64(begin, min_i64(beyond, s->w->windows.columns)) };
}

/* ---- windows times filters */

/* to [pixels, pixel] = the pairs of pixels of at most 3 channels, 1 or 2 for each. Writes whole vectors. */
static inline void round_narrow_pixels(const scalar *from, int64_t pixels, int64_t channels, int64_t pixel, packed *to)
{
#if VECTOR_BYTES == 64
    const int64_t each = LANES / (2 * pixel), step = each * channels;       /* pixels of a vector */
    const __mmask16 mask = (__mmask16)(((1u << channels) - 1) * (pixel == 1 ? 0x5555 : 0x1111));
    for (int64_t x = 0; x < pixels; x += 2 * each, from += 2 * step, to += LANES) {
        int64_t front = min_i64(each, pixels - x), back = max_i64(0, min_i64(each, pixels - x - each));
        vector low = (vector)_mm512_maskz_expandloadu_ps((__mmask16)(mask & ((1u << 2 * pixel * front) - 1)), from);
        vector high = (vector)_mm512_maskz_expandloadu_ps((__mmask16)(mask & ((1u << 2 * pixel * back) - 1)), from + step);
        *(unaligned_int_vector *)to = adjacent_pairs(low, high);
    }
#else
    (void)from; (void)pixels; (void)channels; (void)pixel; (void)to;
#endif
}

/* to [band.columns, tap_pairs] = a row of an image from column band.left on, zeros outside of it. Writes a vector beyond the end. */
static void round_row_of_band(const WindowGemm *s, int64_t image, int64_t row, packed *to)
{
    const Windows *v = &s->w->windows;
    const int64_t pixel = s->tap_pairs, left = s->band.left;
    PixelRange inside = pixels_of_band(s);
    if (row < 0 || row >= v->rows) { round_adjacent(NULL, 2 * s->band.columns * pixel, to); return; }
    const scalar *from = v->pixels + ((image * v->rows + row) * v->columns + inside.begin) * v->channels;
    packed *at = to + (inside.begin - left) * pixel;
    round_adjacent(NULL, 2 * (inside.begin - left) * pixel, to);
    if (v->channels == 2 * pixel) round_adjacent(from, (inside.end - inside.begin) * v->channels, at);
    else if (LANES == 16 && pixel <= 2) round_narrow_pixels(from, inside.end - inside.begin, v->channels, pixel, at);
    else for (int64_t x = 0; x < inside.end - inside.begin; x++) round_adjacent(from + x * v->channels, v->channels, at + x * pixel);
    round_adjacent(NULL, 2 * (left + s->band.columns - inside.end) * pixel, to + (inside.end - left) * pixel);
}

/* to [rows, band.columns, tap_pairs] = the rows of an image from `first` on. Writes a vector beyond the end. */
static void round_band(const WindowGemm *s, int64_t image, int64_t first, int64_t rows, packed *to)
{
    for (int64_t row = first; row < first + rows; row++, to += s->band.columns * s->tap_pairs) round_row_of_band(s, image, row, to);
}

/* c [count, outputs of the panel] = the windows of `count` points side by side times a panel of filters. band: the first tap of the first of them. */
static void multiply_points_of_row(const WindowGemm *s, const packed *band, int64_t count, const Panel *panel, const scalar *bias, scalar *c)
{
    scalar edge[TILE_ROWS * TILE_COLUMNS] __attribute__((aligned(64)));
    const int64_t width = panel->width, used = panel->columns, step = s->w->windows.stride_x * s->tap_pairs, whole = used == width;
    TileKernel multiply = in_place_tiles[count][width / LANES - 1];
    const packed *filters = panel->rows;
    scalar *to = whole ? c : edge;
    int64_t ldc = whole ? s->w->column_step : width;
    for (const TapRun *run = s->run; run < s->run + s->runs; run++) {
        int64_t depth = run->taps * s->tap_pairs, at = (run->row - s->band.top) * s->band.columns + run->column - s->band.left;
        int last = run + 1 == s->run + s->runs;
        TileSeries tile = { .count = 1, .store_mode = run > s->run ? ADD_TILE : STORE_TILE, .bias = whole && last ? bias : NULL };
        multiply(depth, band + at * s->tap_pairs, step, filters, width, to, ldc, &tile);
        filters += depth * width;
    }
    if (whole) return;
    if (bias) apply_epilogue(bias, 0, edge, width, count, used);
    store_edge(edge, width, c, s->w->column_step, count, used, 0);
}

/* Multiply the windows of a block of rows of points by the filters of the chunk. */
static void multiply_band_item(void *context, int64_t item, int64_t worker)
{
    const WindowGemm *s = context; const ImplicitGemm *w = s->w; const Windows *v = &w->windows; const Band *b = &s->band;
    int64_t image = item / b->blocks, first = item % b->blocks * b->block, rows = min_i64(b->block, v->out_rows - first);
    packed *band = workspace_of(s->engine, worker), *filters = workspace_of(s->engine, s->engine->shared_workspace);
    Tiles tiles = tiles_of(v->out_columns);
    round_band(s, image, first * v->stride_y + b->top, band_rows(s, rows), band);
    for (int64_t column = 0, used; column < s->columns; column += used) {
        int64_t width = panel_width(s->columns, column);
        used = min_i64(width, s->columns - column);
        Panel panel = { filters + column * s->row_pairs, width, column, used, width, 0, 2 * s->row_pairs };
        const scalar *bias = w->bias ? w->bias + s->start + column : NULL;
        for (int64_t y = 0; y < rows; y++)
            for (int64_t t = 0, x = 0, count; t < tiles.count; t++, x += count) {
                count = rows_of_tile(tiles, t);
                multiply_points_of_row(s, band + (y * v->stride_y * b->columns + x * v->stride_x) * s->tap_pairs, count, &panel, bias,
                                       w->c + image * w->image_step + (first + y) * w->row_step + x * w->column_step + s->start + column);
            }
    }
}

/* Compute windows times filters and return 1, or return 0 where separate windows are faster. */
static int multiply_bands(WindowGemm *s)
{
    const Windows *v = &s->w->windows; Band *b = &s->band;
    if (v->out_columns < TILE_ROWS || s->row_pairs < MIN_RUN_PAIRS * s->runs) return 0;
    measure_windows(s);
    int64_t rows = min_i64(MAX_WINDOW_ROWS / v->out_columns, ceil_div(v->images * v->out_rows, WINDOW_ITEMS));
    if (!choose_bands(s, rows, s->tap_pairs, WINDOW_BLOCK)) return 0;
    if (band_rows(s, b->block) * b->columns >= b->block * v->out_columns * v->taps) return 0;
    multiply_chunks(s, multiply_band_item, v->images * b->blocks);
    return 1;
}

/* ---- filters^T times windows
 *
 * A pair has a channel of two pixels side by side: one pair for each pixel and its right neighbour, so that windows at even and odd columns find theirs. Rows
 * of the band follow each other, and the filters' points of a row are followed by zeros as far as the band is wider: the points of a block are one depth,
 * whose pairs are a constant step apart in the band under each tap. */

/* to [band.columns, channels] = the pairs of the pixels of an image's row and their neighbours, one step to the right. Writes a vector beyond the end. */
static void pair_row_of_band(const WindowGemm *s, int64_t image, int64_t row, packed *to)
{
    const Windows *v = &s->w->windows;
    const int64_t channels = v->channels, left = s->band.left, step = v->stride_x;
    PixelRange inside = pixels_of_band(s);
    int64_t pixels = row < 0 || row >= v->rows ? 0 : inside.end - inside.begin;
    if (!pixels) { round_pair_of_rows(NULL, NULL, s->band.columns * channels, to); return; }
    int64_t before = min_i64(step, inside.begin - left), missing = step - before, first = max_i64(0, min_i64(before, pixels - missing));
    int64_t both = max_i64(0, pixels - step);
    const scalar *from = v->pixels + ((image * v->rows + row) * v->columns + inside.begin) * channels;
    packed *at = to + (inside.begin - left) * channels;
    round_pair_of_rows(NULL, NULL, (inside.begin - left) * channels, to);
    if (first) round_pair_of_rows(NULL, from + missing * channels, first * channels, at - before * channels);
    round_pair_of_rows(NULL, NULL, (before - first) * channels, at - (before - first) * channels);
    round_pair_of_rows(from, from + step * channels, both * channels, at);
    round_pair_of_rows(from + both * channels, NULL, (pixels - both) * channels, at + both * channels);
    round_pair_of_rows(NULL, NULL, (left + s->band.columns - inside.end) * channels, to + (inside.end - left) * channels);
}

/* to [rows, band.columns, channels] = the pairs of the rows of an image from `first` on, and zeros as far as taps of padding reach. */
static void pair_band(const WindowGemm *s, int64_t image, int64_t first, int64_t rows, packed *to)
{
    for (int64_t row = first; row < first + rows; row++, to += s->band.columns * s->w->windows.channels) pair_row_of_band(s, image, row, to);
    round_pair_of_rows(NULL, NULL, s->band.width * s->w->windows.channels + TILE_COLUMNS, to);
}

/* Pack `rows` rows of the filters' points for tiles of filters, each row followed by zeros up to the columns of the band. */
static void pack_padded_rows(const WindowGemm *s, const scalar *from, int64_t rows, Tiles tiles, packed *panel)
{
    const int64_t outputs = s->w->outputs, points = s->w->windows.out_columns, pairs = s->band.columns / 2, filled = packed_depth(points);
    for (int64_t t = 0, count; t < tiles.count; t += count) {
        int64_t width = rows_of_tile(tiles, t);
        count = min_i64((t < tiles.extra ? tiles.extra : tiles.count) - t, TILES_PER_RUN);
        for (int64_t y = 0; y < rows; y++) {
            pack_equal_tiles(from + y * points * outputs, outputs, points, count, width, panel + y * pairs * width, 2 * rows * pairs);
            for (int64_t i = 0; i < count; i++)
                memset(panel + (i * rows * pairs + y * pairs + filled) * width, 0, (size_t)((pairs - filled) * width) * sizeof(packed));
        }
        from += count * width; panel += count * width * rows * pairs;
    }
}

/* Multiply a block of filters' points, packed in *g, by the panels [begin, end) of the columns of the windows. */
static void multiply_panels_of_band(const WindowGemm *s, const Gemm *g, Tiles tiles, const packed *band, int64_t begin, int64_t end)
{
    int64_t channels = s->w->windows.channels, number = 0, start = 0;
    for (const TapRun *run = s->run; run < s->run + s->runs; start += run->taps * channels, run++)
        for (int64_t j = 0, columns = run->taps * channels, used; j < columns; j += used, number++) {
            int64_t width = panel_width(columns, j), pixel = (run->row - s->band.top) * s->band.columns + run->column - s->band.left;
            used = min_i64(width, columns - j);
            if (number < begin || number >= end) continue;
            Panel panel = { band + pixel * channels + j, 2 * channels, start + j, used, width, 0, g->k };
            multiply_panel(g, 0, tiles, &panel, NULL);
        }
}

/* One part of the filters times one part of the panels of the windows, over all points. */
static void multiply_filters_by_band_item(void *context, int64_t item, int64_t worker)
{
    const WindowGemm *s = context; const ImplicitGemm *w = s->w; const Windows *v = &w->windows; const Band *b = &s->band;
    int64_t part = item % s->column_parts, filter_part = item / s->column_parts, tiles_of_filters = ceil_div(w->outputs, TILE_ROWS);
    int64_t filter = filter_part * tiles_of_filters / s->filter_parts * TILE_ROWS;
    int64_t filters = min_i64(w->outputs, (filter_part + 1) * tiles_of_filters / s->filter_parts * TILE_ROWS) - filter;
    packed *band = workspace_of(s->engine, worker), *packed_filters = band + 2 * WINDOW_BLOCK;
    Gemm g = { .transposed_a = 1, .packed_a = packed_filters, .ldc = v->taps * v->channels, .c = w->c + filter * v->taps * v->channels };
    Tiles tiles = tiles_of(filters);
    for (int64_t image = 0; image < v->images; image++)
        for (int64_t first = 0, rows; first < v->out_rows; first += rows) {
            rows = min_i64(b->block, v->out_rows - first);
            pair_band(s, image, first + b->top, band_rows(s, rows), band);
            pack_padded_rows(s, w->filters + (image * v->out_rows + first) * v->out_columns * w->outputs + filter, rows, tiles, packed_filters);
            g.k = rows * b->columns;
            multiply_panels_of_band(s, &g, tiles, band, part * s->panels / s->column_parts, (part + 1) * s->panels / s->column_parts);
            g.accumulate = 1;
        }
}

/* Compute filters^T times windows and return 1, or return 0 where separate windows are faster. */
static int multiply_filters_by_bands(WindowGemm *s)
{
    const Windows *v = &s->w->windows; Band *b = &s->band;
    int64_t channels = v->channels, filled = 0, workers = s->engine->workers;
    measure_windows(s);
    if (v->stride_y != 1 || v->stride_x != 1 || !choose_bands(s, GRADIENT_POINTS / v->out_columns, channels, WINDOW_BLOCK)) return 0;
    b->columns = round_up(b->columns, 2);
    for (const TapRun *run = s->run; run < s->run + s->runs; run++) {
        filled += round_to_lanes(run->taps * channels);
        for (int64_t j = 0; j < run->taps * channels; j += panel_width(run->taps * channels, j)) s->panels++;
    }
    if (b->block * b->columns / 2 * (s->w->outputs + TILE_ROWS) > s->engine->workspace_floats - 2 * WINDOW_BLOCK) return 0;
    if (b->block * b->columns < MIN_BAND_DEPTH || 2 * filled * b->columns > 3 * v->taps * channels * v->out_columns) return 0;
    s->column_parts = min_i64(s->panels, workers);
    s->filter_parts = min_i64(ceil_div(workers, s->column_parts), ceil_div(s->w->outputs, TILE_ROWS));
    s->engine->parallel_for(s->engine, multiply_filters_by_band_item, s, s->column_parts * s->filter_parts);
    return 1;
}
#endif
