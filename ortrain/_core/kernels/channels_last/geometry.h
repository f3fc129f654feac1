/* The sizes of a convolution or pool, and the index arithmetic of its windows. */
#ifndef ORTRAIN_CHANNELS_LAST_GEOMETRY_H
#define ORTRAIN_CHANNELS_LAST_GEOMETRY_H
/* The first 22 ints of every convolution and pool, in the order of Geometry.ints() in ops/shared/conv_geometry.py. Images are three-dimensional: `planes` of
 * `rows`; two-dimensional ones have one plane. A kernel row is one of the kernel_z * kernel_y rows of kernel_x taps. */
typedef struct Geometry {
    int64_t images, planes, rows, columns, channels, filters, group, out_planes, out_rows, out_columns;
    int64_t kernel_z, kernel_y, kernel_x, stride_z, stride_y, stride_x, pad_z, pad_y, pad_x, dilation_z, dilation_y, dilation_x;
} Geometry;
enum { GEOMETRY_INTS = sizeof(Geometry) / sizeof(int64_t) };

static inline int64_t kernel_rows(const Geometry *g) { return g->kernel_z * g->kernel_y; }
static inline int64_t kernel_taps(const Geometry *g) { return kernel_rows(g) * g->kernel_x; }
static inline int64_t output_rows(const Geometry *g) { return g->images * g->out_planes * g->out_rows; }
static inline int64_t output_pixels(const Geometry *g) { return output_rows(g) * g->out_columns; }
static inline int64_t image_pixels(const Geometry *g) { return g->planes * g->rows * g->columns; }

static inline int is_empty(const Geometry *g) { return output_pixels(g) == 0 || g->channels == 0 || g->filters == 0; }

/* Return the row, counted from the first row of the image, that kernel row r of output row (oz, oy) reads, or -1 if that is outside the image. */
static inline int64_t input_row(const Geometry *g, int64_t oz, int64_t oy, int64_t r)
{
    int64_t tap_z = g->kernel_z == 1 ? 0 : r / g->kernel_y, tap_y = r - tap_z * g->kernel_y;
    int64_t z = oz * g->stride_z - g->pad_z + tap_z * g->dilation_z, y = oy * g->stride_y - g->pad_y + tap_y * g->dilation_y;
    return z >= 0 && z < g->planes && y >= 0 && y < g->rows ? z * g->rows + y : -1;
}

/* Iterates over the outputs in order without divisions. x is the first input column of the window, and the taps [low, high) along the width are inside the
 * image. */
typedef struct WindowIterator { int64_t image, oz, oy, ox, x, low, high; } WindowIterator;

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
    int64_t row = pixel / g->out_columns, plane = row / g->out_rows;
    WindowIterator at = { .ox = pixel % g->out_columns, .oy = row % g->out_rows, .oz = plane % g->out_planes, .image = plane / g->out_planes };
    clip_window_columns(g, &at);
    return at;
}

static inline void next_window(const Geometry *g, WindowIterator *at)
{
    if (++at->ox == g->out_columns) {
        at->ox = 0;
        if (++at->oy == g->out_rows) {
            at->oy = 0;
            if (++at->oz == g->out_planes) { at->oz = 0; at->image++; }
        }
    }
    clip_window_columns(g, at);
}

/* Return the offset in x, in elements, of the first tap inside the image of kernel row r, or -1 if the row is outside the image. */
static inline int64_t window_row_offset(const Geometry *g, const WindowIterator *at, int64_t r)
{
    int64_t row = input_row(g, at->oz, at->oy, r);
    return row < 0 ? -1 : ((at->image * g->planes * g->rows + row) * g->columns + at->x + at->low * g->dilation_x) * g->channels;
}
/* Set [low, high) to the output columns whose windows are inside the image along the width. */
static inline void interior_columns(const Geometry *g, int64_t *low, int64_t *high)
{
    int64_t last_x = g->columns + g->pad_x - (g->kernel_x - 1) * g->dilation_x - 1;
    *low = min_i64(g->out_columns, ceil_div(g->pad_x, g->stride_x));
    *high = max_i64(*low, last_x < 0 ? 0 : min_i64(g->out_columns, last_x / g->stride_x + 1));
}
#define MAX_TAPS 128                    /* of a window whose pixels are listed: depthwise convolution with few taps, and pools */
#endif

/* Set pixels[i] to the inputs inside the image that the window of output (oz, oy, ox) covers, and taps[i] to their taps times `scale`. Return their number. */
ALWAYS_INLINE int NAMED(window_inputs)(const Geometry *g, const REAL *x, int64_t image, int64_t oz, int64_t oy, int64_t ox, int64_t scale,
                                       const REAL **pixels, int64_t *taps)
{
    int count = 0;
    for (int64_t r = 0; r < kernel_rows(g); r++) {
        int64_t row = input_row(g, oz, oy, r);
        if (row < 0) continue;
        for (int64_t t = 0; t < g->kernel_x; t++) {
            int64_t column = ox * g->stride_x - g->pad_x + t * g->dilation_x;
            if (column < 0 || column >= g->columns) continue;
            pixels[count] = x + ((image * g->planes * g->rows + row) * g->columns + column) * g->channels;
            taps[count++] = (r * g->kernel_x + t) * scale;
        }
    }
    return count;
}

/* Set outputs[i] to the offsets in elements of the outputs whose windows cover pixel (z, y, x), and taps[i] to the taps times `scale`. Return their number. */
ALWAYS_INLINE int NAMED(covering_outputs)(const Geometry *g, int64_t image, int64_t z, int64_t y, int64_t x, int64_t scale, int64_t *outputs, int64_t *taps)
{
    int count = 0;
    for (int64_t plane = 0; plane < g->kernel_z; plane++) {
        int64_t oz = z + g->pad_z - plane * g->dilation_z;
        if (oz < 0 || (oz = exact_quotient(oz, g->stride_z)) < 0 || oz >= g->out_planes) continue;
        for (int64_t r = 0; r < g->kernel_y; r++) {
            int64_t oy = y + g->pad_y - r * g->dilation_y;
            if (oy < 0 || (oy = exact_quotient(oy, g->stride_y)) < 0 || oy >= g->out_rows) continue;
            for (int64_t t = 0; t < g->kernel_x; t++) {
                int64_t ox = x + g->pad_x - t * g->dilation_x;
                if (ox < 0 || (ox = exact_quotient(ox, g->stride_x)) < 0 || ox >= g->out_columns) continue;
                outputs[count] = (((image * g->out_planes + oz) * g->out_rows + oy) * g->out_columns + ox) * g->channels;
                taps[count++] = ((plane * g->kernel_y + r) * g->kernel_x + t) * scale;
            }
        }
    }
    return count;
}
