/* The sizes of a convolution or pool, and the index arithmetic of its windows. */
#ifndef ORTRAIN_CHANNELS_LAST_GEOMETRY_H
#define ORTRAIN_CHANNELS_LAST_GEOMETRY_H
/* The first 16 ints of every convolution and pool, in the order of Geometry.ints() in ops/shared/conv_algorithms.py. */
typedef struct Geometry {
    int64_t images, rows, columns, channels, filters, group, out_rows, out_columns;
    int64_t kernel_y, kernel_x, stride_y, stride_x, pad_y, pad_x, dilation_y, dilation_x;
} Geometry;
enum { GEOMETRY_INTS = sizeof(Geometry) / sizeof(int64_t) };

/* Iterates over the outputs in order without divisions. x is the first input column of the window, and the taps [low, high) along the width are inside the
 * image. */
typedef struct WindowIterator { int64_t image, oy, ox, x, low, high; } WindowIterator;

static inline void clip_window_columns(const Geometry *g, WindowIterator *at)
{
    at->x = at->ox * g->stride_x - g->pad_x;
    at->low = 0;
    while (at->low < g->kernel_x && at->x + at->low * g->dilation_x < 0) at->low++;
    at->high = g->kernel_x;
    while (at->high > at->low && at->x + (at->high - 1) * g->dilation_x >= g->columns) at->high--;
}

static inline WindowIterator window_at(const Geometry *g, int64_t pixel)
{
    WindowIterator at = { .ox = pixel % g->out_columns, .oy = pixel / g->out_columns % g->out_rows, .image = pixel / g->out_columns / g->out_rows };
    clip_window_columns(g, &at);
    return at;
}

static inline void next_window(const Geometry *g, WindowIterator *at)
{
    if (++at->ox == g->out_columns) {
        at->ox = 0;
        if (++at->oy == g->out_rows) { at->oy = 0; at->image++; }
    }
    clip_window_columns(g, at);
}

/* Return the offset in x, in elements, of the first tap inside the image of kernel row r, or -1 if the row is outside the image. */
static inline int64_t window_row_offset(const Geometry *g, const WindowIterator *at, int64_t r)
{
    int64_t y = at->oy * g->stride_y - g->pad_y + r * g->dilation_y;
    return y >= 0 && y < g->rows ? ((at->image * g->rows + y) * g->columns + at->x + at->low * g->dilation_x) * g->channels : -1;
}
/* Set [low, high) to the output columns whose windows are inside the image along the width. */
static inline void interior_columns(const Geometry *g, int64_t *low, int64_t *high)
{
    int64_t last_x = g->columns + g->pad_x - (g->kernel_x - 1) * g->dilation_x - 1;
    *low = min_i64(g->out_columns, ceil_div(g->pad_x, g->stride_x));
    *high = max_i64(*low, last_x < 0 ? 0 : min_i64(g->out_columns, last_x / g->stride_x + 1));
}
#define MAX_TAPS 128                    /* of a depthwise convolution or a pool */
#endif

/* Set pixels[i] to the inputs inside the image that the window of output (oy, ox) covers, and taps[i] to their taps times `scale`. Return their number. */
ALWAYS_INLINE int NAMED(window_inputs)(const Geometry *g, const REAL *x, int64_t image, int64_t oy, int64_t ox, int64_t scale, const REAL **pixels,
                                       int64_t *taps)
{
    int count = 0;
    for (int64_t r = 0; r < g->kernel_y; r++) {
        int64_t y = oy * g->stride_y - g->pad_y + r * g->dilation_y;
        for (int64_t t = 0; t < g->kernel_x; t++) {
            int64_t column = ox * g->stride_x - g->pad_x + t * g->dilation_x;
            if (y < 0 || y >= g->rows || column < 0 || column >= g->columns) continue;
            pixels[count] = x + ((image * g->rows + y) * g->columns + column) * g->channels;
            taps[count++] = (r * g->kernel_x + t) * scale;
        }
    }
    return count;
}

/* Set outputs[i] to the offsets in elements of the outputs whose windows cover pixel (y, x), and taps[i] to the taps times `scale`. Return their number. */
ALWAYS_INLINE int NAMED(covering_outputs)(const Geometry *g, int64_t image, int64_t y, int64_t x, int64_t scale, int64_t *outputs, int64_t *taps)
{
    int count = 0;
    for (int64_t r = 0; r < g->kernel_y; r++) {
        int64_t oy = y + g->pad_y - r * g->dilation_y;
        if (oy < 0 || (oy = exact_quotient(oy, g->stride_y)) < 0 || oy >= g->out_rows) continue;
        for (int64_t t = 0; t < g->kernel_x; t++) {
            int64_t ox = x + g->pad_x - t * g->dilation_x;
            if (ox < 0 || (ox = exact_quotient(ox, g->stride_x)) < 0 || ox >= g->out_columns) continue;
            outputs[count] = ((image * g->out_rows + oy) * g->out_columns + ox) * g->channels;
            taps[count++] = (r * g->kernel_x + t) * scale;
        }
    }
    return count;
}
