/* Pooling: x [n, d, h, w, c]; y and, for maxima, the index of the winning tap [n, od, oh, ow, c].
 *
 * The kernels are instantiated for vectors of several widths; a call takes the widest that has no more lanes than there are channels: 13 channels are two
 * overlapping vectors of 8. */
#ifndef ORTRAIN_CHANNELS_LAST_POOL_H
#define ORTRAIN_CHANNELS_LAST_POOL_H
/* The windows that cover a pixel of a row of dx: offsets in elements of their outputs, and the pixel's taps in them. They are listed for the pixel `listed` at
 * (image, z, y); with stride 1, those of pixels within [low, high) are the same, shifted. */
typedef struct PoolCover { int64_t image, z, y, low, high, listed, outputs[MAX_TAPS], taps[MAX_TAPS]; int count; } PoolCover;

static inline PoolCover pool_cover(const Geometry *g, int64_t row)
{
    PoolCover p;
    int64_t plane = row / g->rows;
    p.image = plane / g->planes; p.z = plane % g->planes; p.y = row % g->rows;
    p.low = g->stride_x == 1 ? max_i64(0, (g->kernel_x - 1) * g->dilation_x - g->pad_x) : g->columns;
    p.high = g->out_columns - g->pad_x;
    p.listed = -1; p.count = 0;
    return p;
}

/* Return the number of taps inside the data, along one axis, of window `output`. */
static inline int64_t taps_inside(int64_t output, int64_t stride, int64_t pad, int64_t kernel, int64_t dilation, int64_t size)
{
    int64_t count = 0;
    for (int64_t t = 0, at = output * stride - pad; t < kernel; t++, at += dilation) count += at >= 0 && at < size;
    return count;
}
/* Return by what the sum of a window is divided. output: the offset of its output in elements. */
static inline int64_t pool_divisor(const Geometry *g, int counts_pads, int64_t output)
{
    if (counts_pads) return kernel_taps(g);
    int64_t pixel = output / g->channels, row = pixel / g->out_columns, plane = row / g->out_rows;
    return taps_inside(pixel % g->out_columns, g->stride_x, g->pad_x, g->kernel_x, g->dilation_x, g->columns)
         * taps_inside(row % g->out_rows, g->stride_y, g->pad_y, g->kernel_y, g->dilation_y, g->rows)
         * taps_inside(plane % g->out_planes, g->stride_z, g->pad_z, g->kernel_z, g->dilation_z, g->planes);
}

/* Return whether each pixel belongs to one window at most, and each window is inside the data. */
static inline int has_disjoint_windows(const Geometry *g)
{
    int unpadded = g->pad_z == 0 && g->pad_y == 0 && g->pad_x == 0, dense = g->dilation_z == 1 && g->dilation_y == 1 && g->dilation_x == 1;
    int whole = g->out_planes * g->kernel_z <= g->planes && g->out_rows * g->kernel_y <= g->rows && g->out_columns * g->kernel_x <= g->columns;
    return unpadded && dense && whole && g->stride_z == g->kernel_z && g->stride_y == g->kernel_y && g->stride_x == g->kernel_x;
}
#endif

typedef struct NAMED(Pool) {
    const Geometry *g;
    const REAL *x, *dy;
    REAL *y, *dx;
    int32_t *taps;
    int counts_pads;                   /* whether an average divides by the number of all taps */
} NAMED(Pool);

/* The inputs that a window of a row of outputs covers, and their taps. They are listed for the output `listed` at (image, oz, oy); those of outputs within
 * [low, high), whose windows are inside the row, are the same, shifted. */
typedef struct NAMED(PoolWindows) {
    int64_t image, oz, oy, low, high, listed, taps[MAX_TAPS];
    const REAL *pixels[MAX_TAPS];
    int count;
} NAMED(PoolWindows);

ALWAYS_INLINE NAMED(PoolWindows) NAMED(pool_windows)(const Geometry *g, int64_t row)
{
    NAMED(PoolWindows) w;
    int64_t plane = row / g->out_rows;
    w.image = plane / g->out_planes; w.oz = plane % g->out_planes; w.oy = row % g->out_rows;
    interior_columns(g, &w.low, &w.high);
    w.listed = -1; w.count = 0;
    return w;
}
/* List the inputs of output column ox, which follows the one before; return by how many elements pixels are to be shifted. */
ALWAYS_INLINE int64_t NAMED(next_pool_window)(const Geometry *g, const REAL *x, NAMED(PoolWindows) *w, int64_t ox)
{
    if (w->listed < w->low || ox >= w->high) {
        w->count = NAMED(window_inputs)(g, x, w->image, w->oz, w->oy, ox, 1, w->pixels, w->taps);
        w->listed = ox;
    }
    return (ox - w->listed) * g->stride_x * g->channels;
}
/* List the outputs whose windows cover column x, which follows the one before; return by how many elements they are to be shifted. */
ALWAYS_INLINE int64_t NAMED(next_pool_cover)(const Geometry *g, PoolCover *p, int64_t x)
{
    if (p->listed < p->low || x >= p->high) {
        p->count = NAMED(covering_outputs)(g, p->image, p->z, p->y, x, 1, p->outputs, p->taps);
        p->listed = x;
    }
    return (x - p->listed) * g->channels;
}

/* Return the first row of dx that a row of disjoint windows covers; zero the pixels beside, below and behind it that no window covers. */
ALWAYS_INLINE REAL *NAMED(disjoint_rows)(const NAMED(Pool) *s, int64_t item)
{
    const Geometry *g = s->g;
    int64_t oy = item % g->out_rows, plane = item / g->out_rows, oz = plane % g->out_planes, image = plane / g->out_planes;
    int64_t row = g->columns * g->channels, covered = g->out_columns * g->kernel_x * g->channels, behind = g->planes - (oz + 1) * g->kernel_z;
    REAL *first = s->dx + (image * g->planes + oz * g->kernel_z) * g->rows * row, *rows = first + oy * g->kernel_y * row;
    for (int64_t z = 0; z < g->kernel_z; z++) {
        int64_t last = oy + 1 == g->out_rows ? g->rows - oy * g->kernel_y : g->kernel_y;
        for (int64_t r = 0; r < last; r++) {
            int64_t from = r < g->kernel_y ? covered : 0;
            if (from < row) memset(rows + (z * g->rows + r) * row + from, 0, (size_t)(row - from) * sizeof(REAL));
        }
    }
    if (oz + 1 == g->out_planes && oy == 0) memset(first + g->kernel_z * g->rows * row, 0, (size_t)(behind * g->rows * row) * sizeof(REAL));
    return rows;
}

#define POOL_LANES NAMED(WIDTH)
#define LANED(name) NAMED(name##_whole)
#include "channels_last/pool_lanes.h"
#define POOL_LANES 8
#define LANED(name) NAMED(name##_8)
#include "channels_last/pool_lanes.h"
#define POOL_LANES 4
#define LANED(name) NAMED(name##_4)
#include "channels_last/pool_lanes.h"
#define POOL_LANES 2
#define LANED(name) NAMED(name##_2)
#include "channels_last/pool_lanes.h"
#define POOL_LANES 1
#define LANED(name) NAMED(name##_1)
#include "channels_last/pool_lanes.h"

/* The item of the widest vectors of which the channels have one. */
#define WIDEST(g, item) ((g)->channels >= NAMED(WIDTH) ? NAMED(item##_whole) : (g)->channels >= 8 ? NAMED(item##_8) : (g)->channels >= 4 ? NAMED(item##_4) \
                         : (g)->channels >= 2 ? NAMED(item##_2) : NAMED(item##_1))

/* x -> (y, winning taps or absent) */
static int NAMED(channels_last_max_pool)(const KernelArgs *args)
{
    const Geometry *g = (const Geometry *)args->ints;
    NAMED(Pool) s = { .g = g, .x = INPUT(0), .y = OUTPUT(0), .taps = (int32_t *)OUTPUT(1) };
    args->engine->parallel_for(args->engine, WIDEST(g, max_pool_item), &s, output_rows(g));
    return STATUS_OK;
}

/* (dy, winning taps, y or absent) -> dx */
static int NAMED(channels_last_max_pool_grad)(const KernelArgs *args)
{
    const Geometry *g = (const Geometry *)args->ints;
    NAMED(Pool) s = { .g = g, .dy = INPUT(0), .dx = OUTPUT(0), .taps = (int32_t *)args->inputs[1].data, .y = (REAL *)INPUT(2) };
    if (has_disjoint_windows(g)) args->engine->parallel_for(args->engine, WIDEST(g, max_pool_disjoint_gradient_item), &s, output_rows(g));
    else args->engine->parallel_for(args->engine, WIDEST(g, max_pool_gradient_item), &s, g->images * g->planes * g->rows);
    return STATUS_OK;
}

/* x -> y; ints: geometry, whether pads count */
static int NAMED(channels_last_average_pool)(const KernelArgs *args)
{
    const Geometry *g = (const Geometry *)args->ints;
    NAMED(Pool) s = { .g = g, .x = INPUT(0), .y = OUTPUT(0), .counts_pads = (int)args->ints[GEOMETRY_INTS] };
    args->engine->parallel_for(args->engine, WIDEST(g, average_pool_item), &s, output_rows(g));
    return STATUS_OK;
}

/* dy -> dx; ints as above */
static int NAMED(channels_last_average_pool_grad)(const KernelArgs *args)
{
    const Geometry *g = (const Geometry *)args->ints;
    NAMED(Pool) s = { .g = g, .dy = INPUT(0), .dx = OUTPUT(0), .counts_pads = (int)args->ints[GEOMETRY_INTS] };
    if (has_disjoint_windows(g)) args->engine->parallel_for(args->engine, WIDEST(g, average_pool_disjoint_gradient_item), &s, output_rows(g));
    else args->engine->parallel_for(args->engine, WIDEST(g, average_pool_gradient_item), &s, g->images * g->planes * g->rows);
    return STATUS_OK;
}
#undef WIDEST
