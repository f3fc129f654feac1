/* Batch normalization of x [pixels, channels] with an epilogue: an optional residual is added, then the result clamped (ReLU, Clip); or, without a residual, a curve
 * is applied (Swish, LeakyReLU, HardSwish). group_norm.h normalizes the images of a batch one by one with the same loops.
 *
 * Forward is one pass over x for the statistics and one that writes y. The gradient is one pass for the two sums and one that writes dx. Without a residual, the
 * activation's input z is recomputed from x by the expression of the forward pass, which saves keeping and reading it. The gradient dz is computed in
 * both passes, that of Swish, which takes an exponential, in the first, which leaves it where dx will be. Where the plan does not keep y (ortrain.plan.rematerialization),
 * channels_last_norm_again recomputes it in one pass.
 *
 * Sums are of x - x[0], in REAL over NORM_PARTIAL_PIXELS pixels and in double beyond, over blocks of pixels that depend on the shape only: cancellation stays
 * small, and the order of additions is fixed. The loops read whole rows of channels, four pixels at a time. One vector of channels at a time would touch
 * another page for every pixel where there are many channels, and the hardware would not prefetch.
 *
 * Where the channels are few or no multiple of 16, `repeat` pixels side by side are one row of a multiple of 16 numbers, and the vectors of the channels are
 * repeated as often: 12 channels of 8 pixels are 96. Only the last pixels of a block, fewer than `repeat`, are computed one number at a time. (12 channels on 64 x 64
 * took 9.4 ms for the gradient when their tail was scalar, and 58 channels on 32 x 32 1.07 ms; 16 channels take 0.16 ms.) */
#include <math.h>
#define V NAMED(Vector)
#define W NAMED(WIDTH)
#ifndef ORTRAIN_CHANNELS_LAST_BATCH_NORM_H
#define ORTRAIN_CHANNELS_LAST_BATCH_NORM_H
/* The activation. At the limits of a clamp themselves the gradient passes for Clip (CLOSED) and not for ReLU (OPEN). Same values as in ops/channels_last.py. */
enum { NO_ACTIVATION = 0, OPEN = 1, CLOSED = 2, SWISH = 3, LEAKY_RELU = 4, HARD_SWISH = 5 };
#endif

typedef struct NAMED(BatchNorm) {
    int64_t pixels, channels, rows, blocks;           /* rows: pixels of a block */
    int64_t repeat, width;                            /* pixels of a row, and its numbers: repeat * channels */
    const REAL *x, *residual, *dy, *y, *mean;         /* mean, and a to k3: [width], repeated */
    const REAL *shift;                                /* x[0], repeated */
    REAL *out, *dz;
    const REAL *a, *b;                                /* y = a x + b */
    const REAL *k1, *k2, *k3;                         /* dx = k1 dz - k3 x - k2 */
    double *sums;                                     /* [blocks, 2, channels] */
    REAL low, high, alpha;
    int activation;
} NAMED(BatchNorm);

ALWAYS_INLINE V NAMED(clamp_values)(const NAMED(BatchNorm) *s, V v)
{
    V low = s->low - (V){0}, high = s->high - (V){0};
    v = NAMED(select)(v < low, low, v);                /* NaN is kept */
    return NAMED(select)(v > high, high, v);
}

/* Return dy where the clamp passes the gradient of z, else 0. */
ALWAYS_INLINE V NAMED(clamp_gradient)(const NAMED(BatchNorm) *s, V dy, V z)
{
    V low = s->low - (V){0}, high = s->high - (V){0};
    NAMED(Mask) inside = s->activation == OPEN ? (z > low) & (z < high) : ~((z < low) | (z > high));
    return (V)(inside & (NAMED(Mask))dy);
}
/* z sigmoid(alpha z), z where it is positive and alpha z elsewhere, or z min(max(z / 6 + 1/2, 0), 1); NaN is kept. Then dy times the derivative. */
ALWAYS_INLINE V NAMED(swish)(const NAMED(BatchNorm) *s, V z) { return z * NAMED(row_sigmoid)(s->alpha * z); }
ALWAYS_INLINE V NAMED(swish_gradient)(const NAMED(BatchNorm) *s, V dy, V z)
{ V az = s->alpha * z, p = NAMED(row_sigmoid)(az); return dy * (p * ((REAL)1 + az * ((REAL)1 - p))); }
ALWAYS_INLINE V NAMED(curve)(const NAMED(BatchNorm) *s, V z)
{
    V zero = {0};
    if (s->activation == LEAKY_RELU) return NAMED(select)(z > zero, z, s->alpha * z);
    V gate = z / (REAL)6 + (REAL)0.5;
    gate = NAMED(select)(gate < zero, zero, gate);
    return z * NAMED(select)(gate > (REAL)1 - zero, (REAL)1 - zero, gate);
}
ALWAYS_INLINE V NAMED(curve_gradient)(const NAMED(BatchNorm) *s, V dy, V z)
{
    V zero = {0}, three = (REAL)3 - zero;
    if (s->activation == LEAKY_RELU) return NAMED(select)(z > zero, dy, s->alpha * dy);
    return NAMED(select)(z <= -three, zero, NAMED(select)(z >= three, dy, dy * (z / three + (REAL)0.5)));
}

/* Return the activation of one number, and the gradient of its input: the first lane of a vector, for a curve. */
ALWAYS_INLINE REAL NAMED(activate)(const NAMED(BatchNorm) *s, REAL v)
{
    if (s->activation == SWISH) return NAMED(swish)(s, v - (V){0})[0];
    if (s->activation > SWISH) return NAMED(curve)(s, v - (V){0})[0];
    if (s->activation) { v = v < s->low ? s->low : v; v = v > s->high ? s->high : v; }
    return v;
}
ALWAYS_INLINE REAL NAMED(activation_gradient)(const NAMED(BatchNorm) *s, REAL dy, REAL z)
{
    if (s->activation == SWISH) return NAMED(swish_gradient)(s, dy - (V){0}, z - (V){0})[0];
    if (s->activation > SWISH) return NAMED(curve_gradient)(s, dy - (V){0}, z - (V){0})[0];
    return s->activation == OPEN ? (z > s->low && z < s->high ? dy : 0) : (z < s->low || z > s->high ? 0 : dy);
}

/* Return the two rows of sums of a block, set to zero. */
static double *NAMED(zeroed_sums)(const NAMED(BatchNorm) *s, int64_t block)
{
    double *sums = s->sums + block * 2 * s->channels;
    for (int64_t c = 0; c < 2 * s->channels; c++) sums[c] = 0;
    return sums;
}

/* Add the partial sums [count] of a row, from its number `first` on, to the sums of their channels, and reset them to zero. */
static void NAMED(flush_partial_sums)(double *sums, REAL *partial, int64_t first, int64_t count, int64_t channels)
{
    for (int64_t i = 0, c = first % channels; i < count; i++) {
        sums[c] += partial[i]; partial[i] = 0;
        if (++c == channels) c = 0;
    }
}

/* In the loops below, `s` is a copy on the stack: no store through a pointer can change it, so its fields stay in registers. */

/* sums [2, channels] of a block = the sums over its pixels of x - x[0] and of (x - x[0])^2. A work item is a block. */
static void NAMED(statistics_item)(void *context, int64_t item, int64_t worker)
{
    const NAMED(BatchNorm) copy = *(const NAMED(BatchNorm) *)context, *s = &copy; (void)worker;
    int64_t first = item * s->rows, end = min_i64(first + s->rows, s->pixels), channels = s->channels, width = s->width, count = (end - first) / s->repeat;
    const REAL *x = s->x + first * channels;
    double *sum = NAMED(zeroed_sums)(s, item), *square = sum + channels;
    REAL partial[NORM_CHANNELS] = {0}, partial_square[NORM_CHANNELS] = {0};
    for (int64_t p0 = 0, p1; p0 < count; p0 = p1) {
        p1 = min_i64(p0 + NORM_PARTIAL_PIXELS, count);
        for (int64_t c0 = 0, c1; c0 < width; c0 = c1) {
            int64_t p = p0;
            c1 = min_i64(c0 + NORM_CHANNELS, width);
#define SUM_ROWS(COUNT)                                                                                      \
            for (; p + COUNT <= p1; p += COUNT)                                                              \
                for (int64_t c = c0; c < c1; c += W) {                                                       \
                    V a = LOAD(partial + c - c0), b = LOAD(partial_square + c - c0), shift = LOAD(s->shift + c); \
                    _Pragma("GCC unroll 4") for (int r = 0; r < COUNT; r++) {                                \
                        __builtin_prefetch(x + (p + r) * width + c + NORM_PREFETCH, 0, 2);                   \
                        V v = LOAD(x + (p + r) * width + c) - shift;                                         \
                        a += v; b += v * v;                                                                  \
                    }                                                                                        \
                    STORE(partial + c - c0, a); STORE(partial_square + c - c0, b);                           \
                }
            SUM_ROWS(4) SUM_ROWS(1)
#undef SUM_ROWS
            NAMED(flush_partial_sums)(sum, partial, c0, c1 - c0, channels);
            NAMED(flush_partial_sums)(square, partial_square, c0, c1 - c0, channels);
        }
    }
    for (int64_t p = first + count * s->repeat; p < end; p++)
        for (int64_t c = 0; c < channels; c++) { double v = s->x[p * channels + c] - s->shift[c]; sum[c] += v; square[c] += v * v; }
}

static void NAMED(apply_item)(void *context, int64_t item, int64_t worker)
{
    const NAMED(BatchNorm) copy = *(const NAMED(BatchNorm) *)context, *s = &copy; (void)worker;
    int64_t first = item * s->rows, end = min_i64(first + s->rows, s->pixels), channels = s->channels, size;
    for (int64_t p = first; p < end; p += s->repeat) {
        const REAL *x = s->x + p * channels, *residual = s->residual ? s->residual + p * channels : 0;
        REAL *y = s->out + p * channels;
        int64_t c = 0;
        size = min_i64(s->repeat, end - p) * channels;
#define APPLY(...) for (c = 0; c + W <= size; c += W) { __builtin_prefetch(x + c + NORM_PREFETCH, 0, 2); __builtin_prefetch(y + c + NORM_PREFETCH, 1, 2); \
                                                           V v = LOAD(x + c) * LOAD(s->a + c) + LOAD(s->b + c); __VA_ARGS__; STORE(y + c, v); }
        if (s->activation == SWISH) APPLY(v = NAMED(swish)(s, v))
        else if (s->activation > SWISH) APPLY(v = NAMED(curve)(s, v))
        else if (residual && s->activation) APPLY(v += LOAD(residual + c); v = NAMED(clamp_values)(s, v))
        else if (residual) APPLY(v += LOAD(residual + c))
        else if (s->activation) APPLY(v = NAMED(clamp_values)(s, v))
        else APPLY()
#undef APPLY
        for (; c < size; c++) {
            REAL v = x[c] * s->a[c] + s->b[c];
            if (residual) v += residual[c];
            y[c] = NAMED(activate)(s, v);
        }
    }
}

/* sums [2, channels] of a block = the sums over its pixels of dz and of dz (x - mean), where dz is the gradient of the activation's input. dz is stored if it
 * has a place. */
static void NAMED(gradient_sums_item)(void *context, int64_t item, int64_t worker)
{
    const NAMED(BatchNorm) copy = *(const NAMED(BatchNorm) *)context, *s = &copy; (void)worker;
    int64_t first = item * s->rows, end = min_i64(first + s->rows, s->pixels), channels = s->channels, width = s->width, count = (end - first) / s->repeat;
    double *sum = NAMED(zeroed_sums)(s, item), *dot = sum + channels;
    REAL partial[NORM_CHANNELS] = {0}, partial_dot[NORM_CHANNELS] = {0};
    for (int64_t p0 = 0, p1; p0 < count; p0 = p1) {
        p1 = min_i64(p0 + NORM_PARTIAL_PIXELS, count);
        for (int64_t c0 = 0, c1; c0 < width; c0 = c1) {
            int64_t p = p0;
            c1 = min_i64(c0 + NORM_CHANNELS, width);
#define SUM_ROWS(COUNT, ...)                                                                                                     \
            for (; p + COUNT <= p1; p += COUNT)                                                                                  \
                for (int64_t c = c0; c < c1; c += W) {                                                                           \
                    V a = LOAD(partial + c - c0), b = LOAD(partial_dot + c - c0), mean = LOAD(s->mean + c);                      \
                    V za = LOAD(s->a + c), zb = LOAD(s->b + c); (void)za; (void)zb;                                              \
                    _Pragma("GCC unroll 4") for (int r = 0; r < COUNT; r++) {                                                    \
                        int64_t i = first * channels + (p + r) * width + c;                                                      \
                        __builtin_prefetch(s->dy + i + NORM_PREFETCH, 0, 2); __builtin_prefetch(s->x + i + NORM_PREFETCH, 0, 2); \
                        V d = LOAD(s->dy + i), x = LOAD(s->x + i);                                                               \
                        __VA_ARGS__;                                                                                             \
                        a += d; b += d * (x - mean);                                                                             \
                    }                                                                                                            \
                    STORE(partial + c - c0, a); STORE(partial_dot + c - c0, b);                                                  \
                }
#define SUM_ALL(...) { SUM_ROWS(4, __VA_ARGS__) SUM_ROWS(1, __VA_ARGS__) }
            if (s->activation == SWISH) { SUM_ROWS(1, d = NAMED(swish_gradient)(s, d, x * za + zb); if (s->dz) STORE(s->dz + i, d)) }
            else if (s->activation > SWISH) SUM_ALL(d = NAMED(curve_gradient)(s, d, x * za + zb))
            else if (s->activation && s->y && s->dz) SUM_ALL(d = NAMED(clamp_gradient)(s, d, LOAD(s->y + i)); STORE(s->dz + i, d))
            else if (s->activation && s->y) SUM_ALL(d = NAMED(clamp_gradient)(s, d, LOAD(s->y + i)))
            else if (s->activation) SUM_ALL(d = NAMED(clamp_gradient)(s, d, x * za + zb))
            else SUM_ALL()
#undef SUM_ALL
#undef SUM_ROWS
            NAMED(flush_partial_sums)(sum, partial, c0, c1 - c0, channels);
            NAMED(flush_partial_sums)(dot, partial_dot, c0, c1 - c0, channels);
        }
    }
    for (int64_t p = first + count * s->repeat; p < end; p++)
        for (int64_t c = 0; c < channels; c++) {
            int64_t i = p * channels + c;
            REAL d = s->dy[i];
            if (s->activation) d = NAMED(activation_gradient)(s, d, s->y ? s->y[i] : s->x[i] * s->a[c] + s->b[c]);
            if (s->dz) s->dz[i] = d;
            sum[c] += d; dot[c] += (double)d * (s->x[i] - s->mean[c]);
        }
}

static void NAMED(gradient_apply_item)(void *context, int64_t item, int64_t worker)
{
    const NAMED(BatchNorm) copy = *(const NAMED(BatchNorm) *)context, *s = &copy; (void)worker;
    int64_t first = item * s->rows, end = min_i64(first + s->rows, s->pixels), channels = s->channels, size;
    const int masked = s->activation && !s->dz;
    for (int64_t p = first; p < end; p += s->repeat) {
        const REAL *dy = (s->dz ? s->dz : s->dy) + p * channels, *x = s->x + p * channels, *y = s->y ? s->y + p * channels : 0;
        REAL *dx = s->out + p * channels;
        int64_t c = 0;
        size = min_i64(s->repeat, end - p) * channels;
#define APPLY(...) for (c = 0; c + W <= size; c += W) { __builtin_prefetch(dy + c + NORM_PREFETCH, 0, 2); __builtin_prefetch(x + c + NORM_PREFETCH, 0, 2); \
                                                           V d = LOAD(dy + c), v = LOAD(x + c); __VA_ARGS__; \
                                                           STORE(dx + c, LOAD(s->k1 + c) * d - LOAD(s->k3 + c) * v - LOAD(s->k2 + c)); }
        if (masked && s->activation > SWISH) APPLY(d = NAMED(curve_gradient)(s, d, v * LOAD(s->a + c) + LOAD(s->b + c)))
        else if (masked && y) APPLY(d = NAMED(clamp_gradient)(s, d, LOAD(y + c)))
        else if (masked) APPLY(d = NAMED(clamp_gradient)(s, d, v * LOAD(s->a + c) + LOAD(s->b + c)))
        else APPLY()
#undef APPLY
        for (; c < size; c++) {
            REAL d = dy[c];
            if (masked) d = NAMED(activation_gradient)(s, d, y ? y[c] : x[c] * s->a[c] + s->b[c]);
            dx[c] = s->k1[c] * d - s->k3[c] * x[c] - s->k2[c];
        }
    }
}

/* Add the sums of all blocks, in order, to those of the first one. */
static void NAMED(reduce_blocks)(NAMED(BatchNorm) *s)
{
    for (int64_t block = 1; block < s->blocks; block++)
        for (int64_t c = 0; c < 2 * s->channels; c++) s->sums[c] += s->sums[block * 2 * s->channels + c];
}

/* Read the arguments that all batch normalization kernels have in common.
 *
 * ints: pixels, channels, pixels of a block, activation, repeat; floats: epsilon, momentum, lower limit, upper limit, alpha; scratch: sums [blocks, 2, channels] as
 * double, then 6 vectors [width], which *vectors is set to. */
static NAMED(BatchNorm) NAMED(batch_norm_from_args)(const KernelArgs *args, REAL **vectors)
{
    NAMED(BatchNorm) s = { .pixels = args->ints[0], .channels = args->ints[1], .rows = args->ints[2], .activation = (int)args->ints[3], .repeat = args->ints[4],
                           .low = (REAL)args->floats[2], .high = (REAL)args->floats[3], .alpha = (REAL)args->floats[4], .sums = args->scratch };
    s.blocks = ceil_div(s.pixels, s.rows);
    s.width = s.repeat * s.channels;
    *vectors = (REAL *)(s.sums + s.blocks * 2 * s.channels);
    return s;
}
#define INPUT(i) (args->n_inputs > i ? (const REAL *)args->inputs[i].data : NULL)
#define OUTPUT(i) (args->n_outputs > i ? (REAL *)args->outputs[i].data : NULL)

/* Fill a vector [width] from its first `channels` numbers, `repeat` times in all. */
static void NAMED(repeat_vector)(const NAMED(BatchNorm) *s, REAL *vector)
{ for (int64_t i = s->channels; i < s->width; i++) vector[i] = vector[i - s->channels]; }

/* Copy a vector [channels] into `to` [width], repeated. */
static const REAL *NAMED(repeated)(const NAMED(BatchNorm) *s, const REAL *vector, REAL *to)
{
    memcpy(to, vector, s->channels * sizeof(REAL));
    NAMED(repeat_vector)(s, to);
    return to;
}

/* Set a and b of y = a x + b. Forward, recomputation and gradient all use this expression, so that recomputed values have the same bits. */
static void NAMED(affine_coefficients)(const NAMED(BatchNorm) *s, const REAL *scale, const REAL *bias, const REAL *mean, const REAL *inv_std, REAL *a, REAL *b)
{
    for (int64_t c = 0; c < s->channels; c++) { a[c] = scale[c] * inv_std[c]; b[c] = bias ? bias[c] - mean[c] * a[c] : 0; }
    NAMED(repeat_vector)(s, a); NAMED(repeat_vector)(s, b);
}

/* (x, scale, bias, running mean, running variance, residual or absent) -> (y, new running mean, new running variance, batch mean, 1 / standard deviation).
 * training: normalize by the statistics of the batch, else by the running ones. */
static int NAMED(normalize)(const KernelArgs *args, int training)
{
    REAL *vectors;
    NAMED(BatchNorm) s = NAMED(batch_norm_from_args)(args, &vectors);
    const REAL *old_mean = INPUT(3), *old_variance = INPUT(4);
    REAL *a = vectors, *b = a + s.width, *means = b + s.width, *inv_stds = means + s.width, *shift = inv_stds + s.width;
    REAL *new_mean = OUTPUT(1), *new_variance = OUTPUT(2), *saved_mean = OUTPUT(3), *saved_inv_std = OUTPUT(4);
    double momentum = args->floats[1], count = (double)s.pixels;
    training = training && s.pixels > 0;               /* the statistics of no pixels are undefined: the running ones are kept */
    s.x = INPUT(0); s.residual = INPUT(5); s.out = OUTPUT(0); s.a = a; s.b = b;
    if (training) {
        s.shift = NAMED(repeated)(&s, s.x, shift);
        args->engine->parallel_for(args->engine, NAMED(statistics_item), &s, s.blocks);
        NAMED(reduce_blocks)(&s);
    }
    for (int64_t c = 0; c < s.channels; c++) {
        double offset = training ? s.sums[c] / count : 0, variance = training ? s.sums[s.channels + c] / count - offset * offset : old_variance[c];
        if (variance < 0) variance = 0;
        REAL mean = training ? (REAL)(s.x[c] + offset) : old_mean[c], inv_std = (REAL)(1 / sqrt(variance + args->floats[0]));
        means[c] = mean; inv_stds[c] = inv_std;
        if (new_mean) new_mean[c] = (REAL)(old_mean[c] * momentum + mean * (1 - momentum));
        if (new_variance) new_variance[c] = (REAL)(old_variance[c] * momentum + variance * (1 - momentum));
        if (saved_mean) saved_mean[c] = mean;
        if (saved_inv_std) saved_inv_std[c] = inv_std;
    }
    NAMED(affine_coefficients)(&s, INPUT(1), INPUT(2), means, inv_stds, a, b);
    args->engine->parallel_for(args->engine, NAMED(apply_item), &s, s.blocks);
    return STATUS_OK;
}
static int NAMED(channels_last_norm)(const KernelArgs *args) { return NAMED(normalize)(args, 0); }
static int NAMED(channels_last_norm_train)(const KernelArgs *args) { return NAMED(normalize)(args, 1); }

/* (x, scale, bias, batch mean, 1 / standard deviation, residual or absent) -> y, with the bits of the forward pass. */
static int NAMED(channels_last_norm_again)(const KernelArgs *args)
{
    REAL *vectors;
    NAMED(BatchNorm) s = NAMED(batch_norm_from_args)(args, &vectors);
    s.x = INPUT(0); s.residual = INPUT(5); s.out = OUTPUT(0); s.a = vectors; s.b = vectors + s.width;
    NAMED(affine_coefficients)(&s, INPUT(1), INPUT(2), INPUT(3), INPUT(4), vectors, vectors + s.width);
    args->engine->parallel_for(args->engine, NAMED(apply_item), &s, s.blocks);
    return STATUS_OK;
}

/* (dy, x, scale, mean, 1 / standard deviation, bias, y or absent) -> (dx, dscale, dbias, dz), all optional. dz: the gradient of the clamp's input. */
static int NAMED(channels_last_norm_grad)(const KernelArgs *args)
{
    REAL *vectors;
    NAMED(BatchNorm) s = NAMED(batch_norm_from_args)(args, &vectors);
    const REAL *scale = INPUT(2), *inv_std = INPUT(4), *bias = INPUT(5);
    REAL *a = vectors, *b = a + s.width, *k1 = b + s.width, *k2 = k1 + s.width, *k3 = k2 + s.width, *mean = k3 + s.width;
    REAL *dscale = OUTPUT(1), *dbias = OUTPUT(2);
    double count = (double)s.pixels;
    s.dy = INPUT(0); s.x = INPUT(1); s.mean = NAMED(repeated)(&s, INPUT(3), mean); s.y = INPUT(6); s.out = OUTPUT(0);
    s.dz = s.activation == SWISH ? s.out : OUTPUT(3);
    s.a = a; s.b = b; s.k1 = k1; s.k2 = k2; s.k3 = k3;
    NAMED(affine_coefficients)(&s, scale, bias, s.mean, inv_std, a, b);
    if (s.pixels == 0) return STATUS_OK;
    args->engine->parallel_for(args->engine, NAMED(gradient_sums_item), &s, s.blocks);
    NAMED(reduce_blocks)(&s);
    for (int64_t c = 0; c < s.channels; c++) {
        double sum = s.sums[c], dot = s.sums[s.channels + c];
        if (dscale) dscale[c] = (REAL)(dot * inv_std[c]);
        if (dbias) dbias[c] = (REAL)sum;
        double slope = (double)a[c] * inv_std[c] * inv_std[c] * dot / count;
        k1[c] = a[c]; k3[c] = (REAL)slope;
        k2[c] = (REAL)(a[c] * sum / count - slope * s.mean[c]);
    }
    NAMED(repeat_vector)(&s, k1); NAMED(repeat_vector)(&s, k2); NAMED(repeat_vector)(&s, k3);
    if (s.out) args->engine->parallel_for(args->engine, NAMED(gradient_apply_item), &s, s.blocks);
    return STATUS_OK;
}
#undef V
#undef W
