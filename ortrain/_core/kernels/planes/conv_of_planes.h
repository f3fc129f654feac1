/* Convolution of planes and its gradients for one element type. Included once per type by planes.h, therefore without an include guard.
 *
 * x [n, c, h, w], w [k, c / group, kh, kw], y [n, k, oh, ow]. A convolution is a product of its weight and each image (1 x 1 kernels without strides, pads and
 * groups, whose planes may have any number of axes), or depthwise. */
#include "channels_last/vectors.h"
#include "channels_last/geometry.h"

#ifndef ORTRAIN_CONV_OF_PLANES_H
#define ORTRAIN_CONV_OF_PLANES_H
enum { CONV_IS_DEPTHWISE = GEOMETRY_INTS, CONV_IS_CLAMPED };
static inline int64_t plane_pixels(const Geometry *g) { return g->out_planes * g->out_rows * g->out_columns; }
#endif
#define INPUT(i) (args->n_inputs > i ? (const REAL *)args->inputs[i].data : NULL)
#define OUTPUT(i) (args->n_outputs > i ? (REAL *)args->outputs[i].data : NULL)

/* What is added to an output, and its limits, which apply if `clamped`. bias: [k] or NULL. */
typedef struct NAMED(PlaneEpilogue) { const REAL *bias; REAL low, high; int clamped; } NAMED(PlaneEpilogue);

/* plane [count] = min(max(plane + bias of the channel, low), high). NaN is kept. */
static inline void NAMED(finish_plane)(const NAMED(PlaneEpilogue) *f, int64_t channel, int64_t count, REAL *plane)
{
    const NAMED(Vector) zero = {0};
    const REAL bias = f->bias ? f->bias[channel] : 0;
    int64_t i = 0;
    if (!f->clamped) {
        for (; i + NAMED(WIDTH) <= count; i += NAMED(WIDTH)) STORE(plane + i, LOAD(plane + i) + bias);
        for (; i < count; i++) plane[i] += bias;
        return;
    }
    for (; i + NAMED(WIDTH) <= count; i += NAMED(WIDTH)) {
        NAMED(Vector) v = LOAD(plane + i) + bias;
        v = NAMED(select)(v < f->low, f->low - zero, v);
        STORE(plane + i, NAMED(select)(v > f->high, f->high - zero, v));
    }
    for (; i < count; i++) {
        REAL v = plane[i] + bias;
        v = v < f->low ? f->low : v;
        plane[i] = v > f->high ? f->high : v;
    }
}

#include "planes/products.h"
#include "planes/depthwise.h"

/* db [channels] = the sum of dy [images, channels, pixels] over images and pixels. A work item is a channel. */
typedef struct NAMED(PlaneSums) { const REAL *dy; REAL *db; int64_t images, channels, pixels; } NAMED(PlaneSums);
static void NAMED(sum_planes_item)(void *context, int64_t channel, int64_t worker)
{
    const NAMED(PlaneSums) *s = context; (void)worker;
    double total = 0;
    for (int64_t n = 0; n < s->images; n++) {
        const REAL *dy = s->dy + (n * s->channels + channel) * s->pixels;
        NAMED(Vector) sum[4] = {{0}};
        int64_t i = 0;
        for (; i + 4 * NAMED(WIDTH) <= s->pixels; i += 4 * NAMED(WIDTH))
            _Pragma("GCC unroll 4") for (int u = 0; u < 4; u++) sum[u] += LOAD(dy + i + u * NAMED(WIDTH));
        sum[0] += sum[1] + sum[2] + sum[3];
        for (; i < s->pixels; i++) sum[0][0] += dy[i];
        for (int l = 0; l < NAMED(WIDTH); l++) total += sum[0][l];
    }
    s->db[channel] = (REAL)total;
}

/* (x, w, bias or absent) -> y. ints: Geometry, whether it is depthwise, whether the result is clamped; floats: lower and upper limit. */
static int NAMED(planes_conv)(const KernelArgs *args)
{
    const Geometry *g = (const Geometry *)args->ints;
    NAMED(PlaneEpilogue) epilogue = { .bias = INPUT(2), .clamped = (int)args->ints[CONV_IS_CLAMPED], .low = (REAL)args->floats[0],
                                      .high = (REAL)args->floats[1] };
    if (args->ints[CONV_IS_DEPTHWISE]) {
        NAMED(DepthwisePlanes) s = { .engine = args->engine, .g = g, .x = INPUT(0), .w = INPUT(1), .y = OUTPUT(0), .epilogue = epilogue };
        NAMED(depthwise_planes)(&s);
    } else {
        NAMED(PlaneProducts) s = { .engine = args->engine, .images = g->images, .depth = g->channels, .outputs = g->filters, .pixels = plane_pixels(g),
                                   .in = INPUT(0), .w = INPUT(1), .out = OUTPUT(0), .epilogue = epilogue };
        NAMED(multiply_planes)(&s);
    }
    return STATUS_OK;
}

/* (dy, x, w) -> (dx, dw, db), of which each may be absent, and x without dw. ints: those of planes_conv. */
static int NAMED(planes_conv_grad)(const KernelArgs *args)
{
    const Geometry *g = (const Geometry *)args->ints;
    const Engine *e = args->engine;
    int64_t pixels = plane_pixels(g);
    const REAL *dy = INPUT(0), *x = INPUT(1), *w = INPUT(2);
    REAL *dx = OUTPUT(0), *dw = OUTPUT(1), *db = OUTPUT(2);
    if (args->ints[CONV_IS_DEPTHWISE]) {
        NAMED(DepthwisePlanes) s = { .engine = e, .g = g, .x = x, .w = w, .dy = dy, .dx = dx, .dw = dw };
        if (dx) NAMED(depthwise_planes_data_gradient)(&s);
        if (dw) e->parallel_for(e, NAMED(depthwise_planes_weight_item), &s, g->channels);
    } else {
        NAMED(PlaneProducts) s = { .engine = e, .images = g->images, .depth = g->filters, .outputs = g->channels, .pixels = pixels, .in = dy, .w = w, .out = dx,
                                   .transposed = 1 };
        if (dx) NAMED(multiply_planes)(&s);
        if (dw) NAMED(sum_plane_products)(e, g, pixels, dy, x, dw, args->scratch);
    }
    NAMED(PlaneSums) sums = { dy, db, g->images, g->filters, pixels };
    if (db) e->parallel_for(e, NAMED(sum_planes_item), &sums, g->filters);
    return STATUS_OK;
}
#undef INPUT
#undef OUTPUT
