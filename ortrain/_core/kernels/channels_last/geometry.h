/* The sizes of a convolution or pool, and which pixels its windows see. */
#ifndef CHANNELS_LAST_GEOMETRY
#define CHANNELS_LAST_GEOMETRY
/* the first 16 integers of every convolution and pool */
typedef struct Geometry { int64_t images, rows, columns, channels, filters, group, out_rows, out_columns, kernel_y, kernel_x, stride_y, stride_x, pad_y, pad_x, step_y, step_x; } Geometry;
enum { GEOMETRY_INTS = sizeof(Geometry) / sizeof(int64_t) };
static inline int64_t rounded(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

/* A pixel of the output and the columns low … high of its window that lie inside the image; steps through the pixels in order, without a division. */
typedef struct Window { int64_t image, oy, ox, x, low, high; } Window;

static inline void window_columns(const Geometry *g, Window *at)
{
    at->x = at->ox * g->stride_x - g->pad_x;
    at->low = 0;
    while (at->low < g->kernel_x && at->x + at->low * g->step_x < 0) at->low++;
    at->high = g->kernel_x;
    while (at->high > at->low && at->x + (at->high - 1) * g->step_x >= g->columns) at->high--;
}

static inline Window window_of(const Geometry *g, int64_t pixel)
{
    Window at = { .ox = pixel % g->out_columns, .oy = pixel / g->out_columns % g->out_rows, .image = pixel / g->out_columns / g->out_rows };
    window_columns(g, &at);
    return at;
}

static inline void next_window(const Geometry *g, Window *at)
{
    if (++at->ox == g->out_columns) {
        at->ox = 0;
        if (++at->oy == g->out_rows) { at->oy = 0; at->image++; }
    }
    window_columns(g, at);
}

/* where kernel row r of the window starts, in elements of x; -1 outside the image */
static inline int64_t window_row(const Geometry *g, const Window *at, int64_t r)
{
    int64_t y = at->oy * g->stride_y - g->pad_y + r * g->step_y;
    return y >= 0 && y < g->rows ? ((at->image * g->rows + y) * g->columns + at->x + at->low * g->step_x) * g->channels : -1;
}
/* the columns low … high of the outputs whose windows lie inside the image */
static inline void whole_columns(const Geometry *g, int64_t *low, int64_t *high)
{
    int64_t room = g->columns + g->pad_x - (g->kernel_x - 1) * g->step_x - 1;
    *low = least(g->out_columns, blocks_of(g->pad_x, g->stride_x));
    *high = most(*low, room < 0 ? 0 : least(g->out_columns, room / g->stride_x + 1));
}
#define MAX_TAPS 128                    /* of a depthwise convolution or a pool */
#endif

/* The pixels inside the image that output (oy, ox) sees, and the numbers of their taps times `scale`; returns how many. */
INLINED int NAMED(pixels_seen)(const Geometry *g, const REAL *x, int64_t image, int64_t oy, int64_t ox, int64_t scale, const REAL **pixels, int64_t *taps)
{
    int count = 0;
    for (int64_t r = 0; r < g->kernel_y; r++) {
        int64_t y = oy * g->stride_y - g->pad_y + r * g->step_y;
        for (int64_t t = 0; t < g->kernel_x; t++) {
            int64_t column = ox * g->stride_x - g->pad_x + t * g->step_x;
            if (y < 0 || y >= g->rows || column < 0 || column >= g->columns) continue;
            pixels[count] = x + ((image * g->rows + y) * g->columns + column) * g->channels;
            taps[count++] = (r * g->kernel_x + t) * scale;
        }
    }
    return count;
}

/* The outputs that saw pixel (y, x), as offsets in elements, and the numbers of the taps times `scale`; returns how many. */
INLINED int NAMED(outputs_seeing)(const Geometry *g, int64_t image, int64_t y, int64_t x, int64_t scale, int64_t *outputs, int64_t *taps)
{
    int count = 0;
    for (int64_t r = 0; r < g->kernel_y; r++) {
        int64_t oy = y + g->pad_y - r * g->step_y;
        if (oy < 0 || (oy = exact_quotient(oy, g->stride_y)) < 0 || oy >= g->out_rows) continue;
        for (int64_t t = 0; t < g->kernel_x; t++) {
            int64_t ox = x + g->pad_x - t * g->step_x;
            if (ox < 0 || (ox = exact_quotient(ox, g->stride_x)) < 0 || ox >= g->out_columns) continue;
            outputs[count] = ((image * g->out_rows + oy) * g->out_columns + ox) * g->channels;
            taps[count++] = (r * g->kernel_x + t) * scale;
        }
    }
    return count;
}
