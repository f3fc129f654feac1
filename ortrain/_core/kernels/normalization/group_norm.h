/* Group normalization for one element type; included by norm.h once per type, therefore without an include guard.
 *
 * x [n, groups, channels of a group, pixels] is standardized over the channels and pixels of a group, then scaled and shifted by channel. ints: n, channels,
 * pixels, groups; floats: epsilon. A work item is one group of one image. */

/* (x, scale [channels], bias [channels]) -> (y, mean [n, groups], 1 / standard deviation [n, groups]) */
static void NAMED(group_norm_item)(void *context, int64_t item, int64_t worker)
{
    const KernelArgs *args = context; int64_t pixels = args->ints[2], groups = args->ints[3], per_group = args->ints[1] / groups; (void)worker;
    int64_t first = item % groups * per_group, size = per_group * pixels;
    const REAL *x = DATA(REAL, inputs, 0) + item * size, *scale = DATA(REAL, inputs, 1) + first, *bias = DATA(REAL, inputs, 2) + first;
    REAL *y = DATA(REAL, outputs, 0) + item * size;
    NORM_SUM(REAL, sum, size, x[k]) REAL mean = sum / (REAL)size;
    NORM_SUM(REAL, square, size, (x[k] - mean) * (x[k] - mean)) REAL inv_std = (REAL)(1 / sqrt((double)(square / (REAL)size) + args->floats[0]));
    for (int64_t c = 0; c < per_group; c++, x += pixels, y += pixels) {
        REAL a = scale[c] * inv_std, b = bias[c];
        for (int64_t k = 0; k < pixels; k++) y[k] = a * (x[k] - mean) + b;
    }
    if (OPTIONAL_OUTPUT(REAL, 1)) OPTIONAL_OUTPUT(REAL, 1)[item] = mean;
    if (OPTIONAL_OUTPUT(REAL, 2)) OPTIONAL_OUTPUT(REAL, 2)[item] = inv_std;
}

/* (dy, x, scale, mean, 1 / standard deviation) -> dx, and in scratch [n, channels, 2] the sums over pixels of dy and of dy (x - mean) / standard deviation. */
static void NAMED(group_norm_grad_item)(void *context, int64_t item, int64_t worker)
{
    const KernelArgs *args = context; int64_t channels = args->ints[1], pixels = args->ints[2], groups = args->ints[3], per_group = channels / groups;
    (void)worker;
    int64_t first = item % groups * per_group, size = per_group * pixels;
    const REAL *dy = DATA(REAL, inputs, 0) + item * size, *x = DATA(REAL, inputs, 1) + item * size, *scale = DATA(REAL, inputs, 2) + first;
    REAL mean = DATA(REAL, inputs, 3)[item], inv_std = DATA(REAL, inputs, 4)[item], total = 0, total_dot = 0;
    REAL *sums = (REAL *)args->scratch + 2 * (item / groups * channels + first), *dx = OPTIONAL_OUTPUT(REAL, 0);
    for (int64_t c = 0; c < per_group; c++) {
        const REAL *d = dy + c * pixels, *v = x + c * pixels;
        NORM_SUM(REAL, sum, pixels, d[k])
        NORM_SUM(REAL, dot, pixels, d[k] * (v[k] - mean))
        sums[2 * c] = sum; sums[2 * c + 1] = dot * inv_std;
        total += scale[c] * sum; total_dot += scale[c] * dot;
    }
    if (!dx) return;
    REAL slope = total_dot * inv_std * inv_std * inv_std / (REAL)size, offset = total * inv_std / (REAL)size;
    for (int64_t c = 0; c < per_group; c++) {
        REAL a = scale[c] * inv_std; const REAL *d = dy + c * pixels, *v = x + c * pixels; REAL *to = dx + item * size + c * pixels;
        INDEPENDENT for (int64_t k = 0; k < pixels; k++) to[k] = a * d[k] - (v[k] - mean) * slope - offset;
    }
}

static int NAMED(group_norm)(const KernelArgs *args)
{
    args->engine->parallel_for(args->engine, NAMED(group_norm_item), (void *)args, args->ints[0] * args->ints[3]);
    return STATUS_OK;
}

/* The same, and (dscale, dbias): the sums over the images, in order. */
static int NAMED(group_norm_grad)(const KernelArgs *args)
{
    int64_t n = args->ints[0], channels = args->ints[1]; const REAL *sums = args->scratch;
    REAL *dscale = OPTIONAL_OUTPUT(REAL, 1), *dbias = OPTIONAL_OUTPUT(REAL, 2);
    args->engine->parallel_for(args->engine, NAMED(group_norm_grad_item), (void *)args, n * args->ints[3]);
    for (int64_t c = 0; c < channels; c++) {
        REAL dot = 0, sum = 0;
        for (int64_t i = 0; i < n; i++) { sum += sums[2 * (i * channels + c)]; dot += sums[2 * (i * channels + c) + 1]; }
        if (dscale) dscale[c] = dot;
        if (dbias) dbias[c] = sum;
    }
    return STATUS_OK;
}
