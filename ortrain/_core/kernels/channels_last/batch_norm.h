/* Batch normalization on the batch's own statistics, with what follows it: a residual added, values limited (ReLU, Clip). x [pixels, c].
 *
 * Forward: one pass for the statistics, one that writes y. Backward: one pass for the two sums, one that writes dx; where no residual was added the
 * mask of the limits is recomputed from x by the forward's own expression, which saves reading y. Where y itself is not kept (ortrain.plan.rematerialization), one
 * pass computes it again. Sums run over x - x[0], in REAL over 128 pixels and in double beyond, over blocks of pixels that follow from the shape:
 * cancellation stays small and the order fixed. Rows are read whole, four side by side: one vector of channels after another would walk down columns, a
 * page and no prefetch for every row where channels are many. */
#include <math.h>
#define V NAMED(Channels)
#define W NAMED(WIDTH)
#ifndef NORM_LIMITS
#define NORM_LIMITS
enum { UNLIMITED = 0, OPEN = 1, CLOSED = 2 };        /* limits themselves pass no gradient (ReLU) or do (Clip) */
#endif

typedef struct NAMED(Norm) {
    int64_t pixels, channels, rows, blocks;           /* rows: pixels of a block */
    const REAL *x, *residual, *dy, *y, *mean;
    REAL *out, *dz;
    const REAL *a, *b;                                /* y = a x + b */
    const REAL *k1, *k2, *k3;                         /* dx = k1 dz - k3 x - k2 */
    double *sums;                                     /* [blocks][2][channels] */
    REAL low, high;
    int limits;
} NAMED(Norm);

INLINED V NAMED(limit)(const NAMED(Norm) *s, V v)
{
    V low = s->low - (V){0}, high = s->high - (V){0};
    v = NAMED(select)(v < low, low, v);                /* NaN stays */
    return NAMED(select)(v > high, high, v);
}

/* dy where the limits let the gradient of z through, else 0 */
INLINED V NAMED(passed)(const NAMED(Norm) *s, V dy, V z)
{
    V low = s->low - (V){0}, high = s->high - (V){0};
    NAMED(Mask) inside = s->limits == OPEN ? (z > low) & (z < high) : ~((z < low) | (z > high));
    return (V)(inside & (NAMED(Mask))dy);
}
INLINED REAL NAMED(passed_one)(const NAMED(Norm) *s, REAL dy, REAL z)
{ return s->limits == OPEN ? (z > s->low && z < s->high ? dy : 0) : (z < s->low || z > s->high ? 0 : dy); }

/* the two rows of sums of a block, at zero */
static double *NAMED(cleared_sums)(const NAMED(Norm) *s, int64_t block)
{
    double *sums = s->sums + block * 2 * s->channels;
    for (int64_t c = 0; c < 2 * s->channels; c++) sums[c] = 0;
    return sums;
}

/* sums[i] += run[i], and the run is at zero again */
static void NAMED(close_run)(double *sums, REAL *run, int64_t count)
{
    for (int64_t i = 0; i < count; i++) { sums[i] += run[i]; run[i] = 0; }
}

/* In the two loops of sums `s` is a copy on the stack: no store can change it, so that it stays in registers. */

/* sums of x - x[0] and its square over a block of pixels */
static void NAMED(statistics_item)(void *context, int64_t item, int64_t worker)
{
    const NAMED(Norm) copy = *(const NAMED(Norm) *)context, *s = &copy; (void)worker;
    int64_t first = item * s->rows, end = least(first + s->rows, s->pixels), channels = s->channels, whole = channels / W * W;
    double *sum = NAMED(cleared_sums)(s, item), *square = sum + channels;
    REAL run[NORM_CHANNELS] = {0}, run_square[NORM_CHANNELS] = {0};
    for (int64_t p0 = first, p1; p0 < end; p0 = p1) {
        p1 = least(p0 + NORM_RUN, end);
        for (int64_t c0 = 0, c1; c0 < whole; c0 = c1) {
            int64_t p = p0;
            c1 = least(c0 + NORM_CHANNELS, whole);
#define ROWS(COUNT)                                                                                              \
            for (; p + COUNT <= p1; p += COUNT)                                                                  \
                for (int64_t c = c0; c < c1; c += W) {                                                           \
                    V a = LOAD(run + c - c0), b = LOAD(run_square + c - c0), shift = LOAD(s->x + c);             \
                    _Pragma("GCC unroll 4") for (int r = 0; r < COUNT; r++) {                                    \
                        __builtin_prefetch(s->x + (p + r) * channels + c + NORM_AHEAD, 0, 2);                    \
                        V v = LOAD(s->x + (p + r) * channels + c) - shift;                                       \
                        a += v; b += v * v;                                                                      \
                    }                                                                                            \
                    STORE(run + c - c0, a); STORE(run_square + c - c0, b);                                       \
                }
            ROWS(4) ROWS(1)
#undef ROWS
            NAMED(close_run)(sum + c0, run, c1 - c0);
            NAMED(close_run)(square + c0, run_square, c1 - c0);
        }
        for (int64_t c = whole; c < channels; c++)
            for (int64_t p = p0; p < p1; p++) { double v = s->x[p * channels + c] - s->x[c]; sum[c] += v; square[c] += v * v; }
    }
}

static void NAMED(apply_item)(void *context, int64_t item, int64_t worker)
{
    const NAMED(Norm) *s = context; (void)worker;
    int64_t first = item * s->rows, end = least(first + s->rows, s->pixels), channels = s->channels;
    for (int64_t p = first; p < end; p++) {
        const REAL *x = s->x + p * channels, *residual = s->residual ? s->residual + p * channels : 0;
        REAL *y = s->out + p * channels;
        int64_t c = 0;
#define APPLY(...) for (c = 0; c + W <= channels; c += W) { __builtin_prefetch(x + c + NORM_AHEAD, 0, 2); __builtin_prefetch(y + c + NORM_AHEAD, 1, 2); \
                                                           V v = LOAD(x + c) * LOAD(s->a + c) + LOAD(s->b + c); __VA_ARGS__; STORE(y + c, v); }
        if (residual && s->limits) APPLY(v += LOAD(residual + c); v = NAMED(limit)(s, v))
        else if (residual) APPLY(v += LOAD(residual + c))
        else if (s->limits) APPLY(v = NAMED(limit)(s, v))
        else APPLY()
#undef APPLY
        for (; c < channels; c++) {
            REAL v = x[c] * s->a[c] + s->b[c];
            if (residual) v += residual[c];
            if (s->limits) { v = v < s->low ? s->low : v; v = v > s->high ? s->high : v; }
            y[c] = v;
        }
    }
}

/* sums of dz and dz (x - mean) over a block; dz is dy behind the limits, stored where it is wanted */
static void NAMED(gradient_sums_item)(void *context, int64_t item, int64_t worker)
{
    const NAMED(Norm) copy = *(const NAMED(Norm) *)context, *s = &copy; (void)worker;
    int64_t first = item * s->rows, end = least(first + s->rows, s->pixels), channels = s->channels, whole = channels / W * W;
    double *sum = NAMED(cleared_sums)(s, item), *dot = sum + channels;
    REAL run[NORM_CHANNELS] = {0}, run_dot[NORM_CHANNELS] = {0};
    for (int64_t p0 = first, p1; p0 < end; p0 = p1) {
        p1 = least(p0 + NORM_RUN, end);
        for (int64_t c0 = 0, c1; c0 < whole; c0 = c1) {
            int64_t p = p0;
            c1 = least(c0 + NORM_CHANNELS, whole);
#define ROWS(COUNT, ...)                                                                                         \
            for (; p + COUNT <= p1; p += COUNT)                                                                  \
                for (int64_t c = c0; c < c1; c += W) {                                                           \
                    V a = LOAD(run + c - c0), b = LOAD(run_dot + c - c0), mean = LOAD(s->mean + c);              \
                    V za = LOAD(s->a + c), zb = LOAD(s->b + c); (void)za; (void)zb;                              \
                    _Pragma("GCC unroll 4") for (int r = 0; r < COUNT; r++) {                                    \
                        int64_t i = (p + r) * channels + c;                                                      \
                        __builtin_prefetch(s->dy + i + NORM_AHEAD, 0, 2); __builtin_prefetch(s->x + i + NORM_AHEAD, 0, 2); \
                        V d = LOAD(s->dy + i), x = LOAD(s->x + i);                                               \
                        __VA_ARGS__;                                                                             \
                        a += d; b += d * (x - mean);                                                             \
                    }                                                                                            \
                    STORE(run + c - c0, a); STORE(run_dot + c - c0, b);                                          \
                }
#define RUN(...) { ROWS(4, __VA_ARGS__) ROWS(1, __VA_ARGS__) }
            if (s->limits && s->y && s->dz) RUN(d = NAMED(passed)(s, d, LOAD(s->y + i)); STORE(s->dz + i, d))
            else if (s->limits && s->y) RUN(d = NAMED(passed)(s, d, LOAD(s->y + i)))
            else if (s->limits) RUN(d = NAMED(passed)(s, d, x * za + zb))
            else RUN()
#undef RUN
#undef ROWS
            NAMED(close_run)(sum + c0, run, c1 - c0);
            NAMED(close_run)(dot + c0, run_dot, c1 - c0);
        }
        for (int64_t c = whole; c < channels; c++)
            for (int64_t p = p0; p < p1; p++) {
                int64_t i = p * channels + c;
                REAL d = s->dy[i];
                if (s->limits) d = NAMED(passed_one)(s, d, s->y ? s->y[i] : s->x[i] * s->a[c] + s->b[c]);
                if (s->dz) s->dz[i] = d;
                sum[c] += d; dot[c] += (double)d * (s->x[i] - s->mean[c]);
            }
    }
}

static void NAMED(gradient_apply_item)(void *context, int64_t item, int64_t worker)
{
    const NAMED(Norm) *s = context; (void)worker;
    int64_t first = item * s->rows, end = least(first + s->rows, s->pixels), channels = s->channels;
    const int masked = s->limits && !s->dz;
    for (int64_t p = first; p < end; p++) {
        const REAL *dy = (s->dz ? s->dz : s->dy) + p * channels, *x = s->x + p * channels, *y = s->y ? s->y + p * channels : 0;
        REAL *dx = s->out + p * channels;
        int64_t c = 0;
#define APPLY(...) for (c = 0; c + W <= channels; c += W) { __builtin_prefetch(dy + c + NORM_AHEAD, 0, 2); __builtin_prefetch(x + c + NORM_AHEAD, 0, 2); \
                                                           V d = LOAD(dy + c), v = LOAD(x + c); __VA_ARGS__;                      \
                                                           STORE(dx + c, LOAD(s->k1 + c) * d - LOAD(s->k3 + c) * v - LOAD(s->k2 + c)); }
        if (masked && y) APPLY(d = NAMED(passed)(s, d, LOAD(y + c)))
        else if (masked) APPLY(d = NAMED(passed)(s, d, v * LOAD(s->a + c) + LOAD(s->b + c)))
        else APPLY()
#undef APPLY
        for (; c < channels; c++) {
            REAL d = dy[c];
            if (masked) d = NAMED(passed_one)(s, d, y ? y[c] : x[c] * s->a[c] + s->b[c]);
            dx[c] = s->k1[c] * d - s->k3[c] * x[c] - s->k2[c];
        }
    }
}

/* the sums of all blocks, in order, in the place of the first */
static void NAMED(add_blocks)(NAMED(Norm) *s)
{
    for (int64_t block = 1; block < s->blocks; block++)
        for (int64_t c = 0; c < 2 * s->channels; c++) s->sums[c] += s->sums[block * 2 * s->channels + c];
}

/* ints: pixels, channels, rows of a block, limits; scratch: sums of double [blocks, 2, channels], then 5 rows of channels; floats: epsilon, momentum, low, high */
static NAMED(Norm) NAMED(norm_of)(const KernelArgs *args, REAL **vectors)
{
    NAMED(Norm) s = { .pixels = args->ints[0], .channels = args->ints[1], .rows = args->ints[2], .limits = (int)args->ints[3],
                      .low = (REAL)args->floats[2], .high = (REAL)args->floats[3], .sums = args->scratch };
    s.blocks = blocks_of(s.pixels, s.rows);
    *vectors = (REAL *)(s.sums + s.blocks * 2 * s.channels);
    return s;
}
#define INPUT(i) (args->n_inputs > i ? (const REAL *)args->inputs[i].data : NULL)
#define OUTPUT(i) (args->n_outputs > i ? (REAL *)args->outputs[i].data : NULL)

/* a and b of y = a x + b: one expression for all who need it, so that what is computed again has the same bits */
static void NAMED(lines_of)(const NAMED(Norm) *s, const REAL *scale, const REAL *bias, const REAL *mean, const REAL *inverse, REAL *a, REAL *b)
{
    for (int64_t c = 0; c < s->channels; c++) { a[c] = scale[c] * inverse[c]; b[c] = bias ? bias[c] - mean[c] * a[c] : 0; }
}

/* (x, scale, bias, running mean, running variance, residual) -> (y, new running mean, new running variance, batch mean, 1 / deviation) */
static int NAMED(channels_last_norm)(const KernelArgs *args, int training)
{
    REAL *vectors;
    NAMED(Norm) s = NAMED(norm_of)(args, &vectors);
    const REAL *old_mean = INPUT(3), *old_variance = INPUT(4);
    REAL *a = vectors, *b = a + s.channels, *means = b + s.channels, *inverses = means + s.channels;
    REAL *new_mean = OUTPUT(1), *new_variance = OUTPUT(2), *saved_mean = OUTPUT(3), *saved_inverse = OUTPUT(4);
    double momentum = args->floats[1], count = (double)s.pixels;
    training = training && s.pixels > 0;               /* no pixels have no statistics: the running ones stay */
    s.x = INPUT(0); s.residual = INPUT(5); s.out = OUTPUT(0); s.a = a; s.b = b;
    if (training) {
        args->engine->parallel_for(args->engine, NAMED(statistics_item), &s, s.blocks);
        NAMED(add_blocks)(&s);
    }
    for (int64_t c = 0; c < s.channels; c++) {
        double offset = training ? s.sums[c] / count : 0, variance = training ? s.sums[s.channels + c] / count - offset * offset : old_variance[c];
        if (variance < 0) variance = 0;
        REAL mean = training ? (REAL)(s.x[c] + offset) : old_mean[c], inverse = (REAL)(1 / sqrt(variance + args->floats[0]));
        means[c] = mean; inverses[c] = inverse;
        if (new_mean) new_mean[c] = (REAL)(old_mean[c] * momentum + mean * (1 - momentum));
        if (new_variance) new_variance[c] = (REAL)(old_variance[c] * momentum + variance * (1 - momentum));
        if (saved_mean) saved_mean[c] = mean;
        if (saved_inverse) saved_inverse[c] = inverse;
    }
    NAMED(lines_of)(&s, INPUT(1), INPUT(2), means, inverses, a, b);
    args->engine->parallel_for(args->engine, NAMED(apply_item), &s, s.blocks);
    return STATUS_OK;
}

/* (x, scale, bias, batch mean, 1 / deviation, residual) -> y, as it was in the forward pass */
static int NAMED(channels_last_norm_again)(const KernelArgs *args)
{
    REAL *vectors;
    NAMED(Norm) s = NAMED(norm_of)(args, &vectors);
    s.x = INPUT(0); s.residual = INPUT(5); s.out = OUTPUT(0); s.a = vectors; s.b = vectors + s.channels;
    NAMED(lines_of)(&s, INPUT(1), INPUT(2), INPUT(3), INPUT(4), vectors, vectors + s.channels);
    args->engine->parallel_for(args->engine, NAMED(apply_item), &s, s.blocks);
    return STATUS_OK;
}

/* (dy, x, scale, mean, 1 / deviation, bias, y) -> (dx, dscale, dbias, dz) */
static int NAMED(channels_last_norm_grad)(const KernelArgs *args)
{
    REAL *vectors;
    NAMED(Norm) s = NAMED(norm_of)(args, &vectors);
    const REAL *scale = INPUT(2), *inverse = INPUT(4), *bias = INPUT(5);
    REAL *a = vectors, *b = a + s.channels, *k1 = b + s.channels, *k2 = k1 + s.channels, *k3 = k2 + s.channels;
    REAL *dscale = OUTPUT(1), *dbias = OUTPUT(2);
    double count = (double)s.pixels;
    s.dy = INPUT(0); s.x = INPUT(1); s.mean = INPUT(3); s.y = INPUT(6); s.out = OUTPUT(0); s.dz = OUTPUT(3);
    s.a = a; s.b = b; s.k1 = k1; s.k2 = k2; s.k3 = k3;
    NAMED(lines_of)(&s, scale, bias, s.mean, inverse, a, b);
    if (s.pixels == 0) return STATUS_OK;
    args->engine->parallel_for(args->engine, NAMED(gradient_sums_item), &s, s.blocks);
    NAMED(add_blocks)(&s);
    for (int64_t c = 0; c < s.channels; c++) {
        double sum = s.sums[c], dot = s.sums[s.channels + c];
        if (dscale) dscale[c] = (REAL)(dot * inverse[c]);
        if (dbias) dbias[c] = (REAL)sum;
        double slope = (double)a[c] * inverse[c] * inverse[c] * dot / count;
        k1[c] = a[c]; k3[c] = (REAL)slope;
        k2[c] = (REAL)(a[c] * sum / count - slope * s.mean[c]);
    }
    if (s.out) args->engine->parallel_for(args->engine, NAMED(gradient_apply_item), &s, s.blocks);
    return STATUS_OK;
}
#undef V
#undef W
