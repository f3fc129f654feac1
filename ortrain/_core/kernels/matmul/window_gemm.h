/* Parts of engine's implicit_gemm (matmul/implicit_gemm.h) on bfloat16 pairs that its two forms share, overlapping_windows.h and implicit_gemm_bfloat16.h.
 * A tap has an even number of channels in a rounded image, the last of which is 0 where the image has an odd number. */
#ifndef ORTRAIN_WINDOW_GEMM_H
#define ORTRAIN_WINDOW_GEMM_H
#include "matmul/gemm_parallel.h"
#include "matmul/implicit_gemm.h"

enum {
    WINDOW_BLOCK = 1 << 15, MIN_WINDOW_ROWS = 48, MAX_WINDOW_ROWS = 480,    /* pairs, and rows, of a block of windows */
    WINDOW_ITEMS = 16,
    GRADIENT_POINTS = 256                                                   /* points of a block of the weight gradient */
};

/* Adjacent taps whose pixels are side by side in memory, without padding between them. */
typedef struct TapRun { int64_t row, column, taps; } TapRun;

/* The rows of an image that a block of rows of points reads, padded. top, left: offset of the first tap from a point; height, width: of the pixels under the
 * taps of one point; columns: pixels of a row; block: rows of points, blocks: of an image. On tiles, images: of a band; points: of a row, parts: of a
 * row of an image. */
typedef struct Band { int64_t top, left, height, width, columns, block, blocks, images, points, parts; } Band;

typedef struct WindowGemm {
    const Engine *engine;
    const ImplicitGemm *w;
    int64_t points, tap_pairs, row_pairs;       /* tap_pairs, row_pairs: of a tap, and of a window */
    int64_t rows;                               /* points of a work item */
    int64_t start, columns;                     /* the outputs whose filters are in the shared workspace */
    int64_t filter_parts, column_parts, panels; /* of the weight gradient; panels: of columns of overlapping windows */
    int64_t panel_pairs;                        /* pairs of a band on tiles, with what is read beyond it */
    Band band;
    int64_t runs;
    TapRun run[MAX_WINDOW_TAPS];
} WindowGemm;

/* to = the pairs of n adjacent elements, or zeros where `from` is NULL. Writes whole vectors, beyond the last pair. */
static inline void round_adjacent(const scalar *from, int64_t n, packed *to)
{
    if (!from) {
        for (int64_t p = 0; p < n; p += 2 * LANES) *(unaligned_int_vector *)(to + p / 2) = (int_vector){0};
        return;
    }
    int64_t p = 0;
    for (; p + 2 * LANES <= n; p += 2 * LANES)
        *(unaligned_int_vector *)(to + p / 2) = adjacent_pairs(*(const unaligned_vector *)(from + p), *(const unaligned_vector *)(from + p + LANES));
    if (p == n) return;
    int64_t front = min_i64(n - p, LANES);
    *(unaligned_int_vector *)(to + p / 2) = adjacent_pairs(load_part(from + p, front), load_part(from + p + front, n - p - front));
}

/* to [n] = the pairs (first[j], second[j]); zeros in place of one that is NULL. Writes whole vectors. */
static inline void round_pair_of_rows(const scalar *first, const scalar *second, int64_t n, packed *to)
{
    const vector none = {0};
    int64_t j = 0;
    for (; j + LANES <= n; j += LANES)
        *(unaligned_int_vector *)(to + j) = pairs_of(first ? load_part(first + j, LANES) : none, second ? load_part(second + j, LANES) : none);
    if (j < n) *(unaligned_int_vector *)(to + j) = pairs_of(first ? load_part(first + j, n - j) : none, second ? load_part(second + j, n - j) : none);
}

/* Pack one panel of the filters of the chunk: [row_pairs, width]. */
static void pack_filters_item(void *context, int64_t item, int64_t worker)
{
    const WindowGemm *s = context; const ImplicitGemm *w = s->w; (void)worker;
    int64_t column = 0;
    for (int64_t i = 0; i < item; i++) column += panel_width(s->columns, column);
    int64_t width = panel_width(s->columns, column), used = min_i64(width, s->columns - column), channels = w->windows.channels;
    packed *panel = workspace_of(s->engine, s->engine->shared_workspace) + column * s->row_pairs;
    for (int64_t t = 0; t < w->windows.taps; t++, panel += s->tap_pairs * width) {
        const scalar *from = w->b + w->starts[t] + (s->start + column) * w->output_step;
        if (w->channel_step == 1) pack_transposed(from, w->output_step, used, channels, panel, width);
        else pack_rows(from, w->channel_step, used, channels, panel, width);
    }
}

/* Multiply all windows by one chunk of the filters after the other: as many as the shared workspace holds. multiply: for `items` work items. */
static void multiply_chunks(WindowGemm *s, WorkItem multiply, int64_t items)
{
    int64_t room = s->engine->workspace_floats / s->row_pairs / TILE_COLUMNS * TILE_COLUMNS, outputs = s->w->outputs;
    for (s->start = 0; s->start < outputs; s->start += s->columns) {
        s->columns = min_i64(outputs - s->start, room);
        int64_t panels = 0;
        for (int64_t column = 0; column < s->columns; column += panel_width(s->columns, column)) panels++;
        s->engine->parallel_for(s->engine, pack_filters_item, s, panels);
        s->engine->parallel_for(s->engine, multiply, s, items);
    }
}

/* Divide the taps into runs, each of a single tap where `adjacent` is 0. */
static void find_runs(WindowGemm *s, int adjacent)
{
    const Windows *v = &s->w->windows;
    s->runs = 0;
    for (int64_t t = 0; t < v->taps; t++) {
        TapRun *last = s->run + s->runs - 1;
        int follows = adjacent && s->runs && v->offsets[t][0] == last->row && v->offsets[t][1] == last->column + last->taps;
        if (follows) last->taps++;
        else s->run[s->runs++] = (TapRun){ v->offsets[t][0], v->offsets[t][1], 1 };
    }
}
#endif
