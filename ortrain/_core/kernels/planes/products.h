/* 1 x 1 convolutions of planes: each image [channels, pixels] is multiplied by the weight, from the left.
 *
 * Products of up to SMALL_PLANE_PRODUCT multiplications are computed side by side, one thread each; larger ones one after another on all threads. */
#ifndef ORTRAIN_PLANES_PRODUCTS_H
#define ORTRAIN_PLANES_PRODUCTS_H
/* The constants stand in ops/planes.py, too. SUMS: partial sums of the weight gradient, of small products. */
enum { SMALL_PLANE_PRODUCT = 1 << 21, PLANE_PRODUCT_SUMS = 16 };
#endif

/* out [images, outputs, pixels] = epilogue(w in), in [images, depth, pixels]; w is [outputs, depth], or [depth, outputs] if `transposed`. */
typedef struct NAMED(PlaneProducts) {
    const Engine *engine;
    int64_t images, outputs, depth, pixels;
    const REAL *in, *w;
    REAL *out;
    int transposed;
    NAMED(PlaneEpilogue) epilogue;
} NAMED(PlaneProducts);

static void NAMED(finish_image)(const NAMED(PlaneProducts) *s, REAL *out)
{
    if (!s->epilogue.bias && !s->epilogue.clamped) return;
    for (int64_t k = 0; k < s->outputs; k++) NAMED(finish_plane)(&s->epilogue, k, s->pixels, out + k * s->pixels);
}

/* A work item is an image. */
static void NAMED(multiply_image_item)(void *context, int64_t image, int64_t worker)
{
    const NAMED(PlaneProducts) *s = context;
    REAL *out = s->out + image * s->outputs * s->pixels;
    SERIAL_GEMM(s->engine, worker, s->transposed, 0, s->outputs, s->pixels, s->depth, 1, s->w, s->transposed ? s->outputs : s->depth,
                s->in + image * s->depth * s->pixels, s->pixels, 0, out, s->pixels, NULL, 0);
    NAMED(finish_image)(s, out);
}

/* A work item is a plane of an image. */
static void NAMED(finish_plane_item)(void *context, int64_t plane, int64_t worker)
{
    const NAMED(PlaneProducts) *s = context; (void)worker;
    NAMED(finish_plane)(&s->epilogue, plane % s->outputs, s->pixels, s->out + plane * s->pixels);
}

static void NAMED(multiply_planes)(NAMED(PlaneProducts) *s)
{
    const Engine *e = s->engine;
    if (s->outputs * s->depth * s->pixels < SMALL_PLANE_PRODUCT) {
        e->parallel_for(e, NAMED(multiply_image_item), s, s->images);
        return;
    }
    int unfinished = s->epilogue.bias || s->epilogue.clamped;
    NAMED(PlaneProducts) one = *s;
    for (int64_t image = 0; image < s->images; image++) {
        one.out = s->out + image * s->outputs * s->pixels;
        GEMM(e, s->transposed, 0, s->outputs, s->pixels, s->depth, 1, s->w, s->transposed ? s->outputs : s->depth, s->in + image * s->depth * s->pixels,
             s->pixels, 0, one.out, s->pixels, NULL, 0);
        if (unfinished) e->parallel_for(e, NAMED(finish_plane_item), &one, s->outputs);
    }
}

/* sums [slice] = the sum of dy x^T over a part of the images, dy [images, filters, pixels], x [images, channels, pixels]. A work item is a slice. */
typedef struct NAMED(PlaneProductSums) {
    const Engine *engine;
    int64_t images, slices, filters, channels, pixels;
    const REAL *dy, *x;
    REAL *dw, *sums;
} NAMED(PlaneProductSums);

static void NAMED(sum_slice_item)(void *context, int64_t slice, int64_t worker)
{
    const NAMED(PlaneProductSums) *s = context;
    int64_t begin = slice * s->images / s->slices, end = (slice + 1) * s->images / s->slices;
    REAL *to = s->slices == 1 ? s->dw : s->sums + slice * s->filters * s->channels;
    for (int64_t n = begin; n < end; n++)
        SERIAL_GEMM(s->engine, worker, 0, 1, s->filters, s->channels, s->pixels, 1, s->dy + n * s->filters * s->pixels, s->pixels,
                    s->x + n * s->channels * s->pixels, s->pixels, n > begin, to, s->channels, NULL, 0);
}

/* A work item is a filter. */
static void NAMED(add_slices_item)(void *context, int64_t filter, int64_t worker)
{
    const NAMED(PlaneProductSums) *s = context; (void)worker;
    REAL *to = s->dw + filter * s->channels;
    const REAL *from = s->sums + filter * s->channels;
    for (int64_t c = 0; c < s->channels; c++) to[c] = from[c];
    for (int64_t slice = 1; slice < s->slices; slice++) {
        from += s->filters * s->channels;
        for (int64_t c = 0; c < s->channels; c++) to[c] += from[c];
    }
}

/* dw [filters, channels] = the sum of dy x^T over the images. */
static void NAMED(sum_plane_products)(const Engine *e, const Geometry *g, int64_t pixels, const REAL *dy, const REAL *x, REAL *dw, REAL *sums)
{
    NAMED(PlaneProductSums) s = { e, g->images, min_i64(g->images, PLANE_PRODUCT_SUMS), g->filters, g->channels, pixels, dy, x, dw, sums };
    if (g->images == 0) memset(dw, 0, (size_t)(g->filters * g->channels) * sizeof(REAL));
    else if (g->filters * g->channels * pixels < SMALL_PLANE_PRODUCT) {
        e->parallel_for(e, NAMED(sum_slice_item), &s, s.slices);
        if (s.slices > 1) e->parallel_for(e, NAMED(add_slices_item), &s, g->filters);
    } else for (int64_t n = 0; n < g->images; n++)
        GEMM(e, 0, 1, g->filters, g->channels, pixels, 1, dy + n * g->filters * pixels, pixels, x + n * g->channels * pixels, pixels, n > 0, dw, g->channels,
             NULL, 0);
}
