/* Group normalization of images x [images, pixels, channels], each over the channels and pixels of a group, then scaled and shifted by channel, with the
 * activation of batch_norm.h as its epilogue. For one element type; included after batch_norm.h.
 *
 * An image is normalized as a batch of its own by the loops of batch_norm.h, whose sums by channel are added up for each group. Where there are enough images,
 * a work item is an image, which is still in the cache when it is read a second time; else it is a block of the pixels of one image. The sums are the same. */
#define V NAMED(Vector)

typedef struct NAMED(GroupNorm) {
    NAMED(BatchNorm) first;                           /* the first image */
    int64_t images, groups, stride;                   /* stride: bytes of scratch of an image, its sums and its vectors */
    const REAL *scale, *bias;
    REAL *mean, *inv_std;                             /* [images, groups] */
    double epsilon;
    /* Prepare the vectors of an image; add up its sums and set the coefficients of the last pass. */
    void (*begin)(const struct NAMED(GroupNorm) *g, int64_t image);
    void (*finish)(const struct NAMED(GroupNorm) *g, int64_t image);
    WorkItem sum_block, apply_block;                  /* of one image; sum_block may be NULL */
} NAMED(GroupNorm);

/* The vectors [width] of an image in scratch, behind its sums. */
enum { NAMED(A), NAMED(B), NAMED(MEAN), NAMED(K1), NAMED(K2), NAMED(K3), NAMED(IMAGE_VECTORS) };
ALWAYS_INLINE REAL *NAMED(image_vector)(const NAMED(BatchNorm) *s, int which) { return (REAL *)(s->sums + s->blocks * 2 * s->channels) + which * s->width; }

static NAMED(BatchNorm) NAMED(image_of)(const NAMED(GroupNorm) *g, int64_t image)
{
    NAMED(BatchNorm) s = g->first;
    int64_t offset = image * s.pixels * s.channels;
    s.x += offset;
    if (s.dy) s.dy += offset;
    if (s.out) s.out += offset;
    if (s.dz) s.dz += offset;
    s.sums = (double *)((char *)s.sums + image * g->stride);
    s.a = NAMED(image_vector)(&s, NAMED(A)); s.b = NAMED(image_vector)(&s, NAMED(B)); s.mean = s.shift = NAMED(image_vector)(&s, NAMED(MEAN));
    s.k1 = NAMED(image_vector)(&s, NAMED(K1)); s.k2 = NAMED(image_vector)(&s, NAMED(K2)); s.k3 = NAMED(image_vector)(&s, NAMED(K3));
    return s;
}

/* Copy values of groups to their channels. */
static REAL *NAMED(of_channels)(const NAMED(GroupNorm) *g, const REAL *of_groups, REAL *to)
{
    int64_t per_group = g->first.channels / g->groups;
    for (int64_t c = 0; c < g->first.channels; c++) to[c] = of_groups[c / per_group];
    return to;
}

/* Set a and b of an image from the statistics of its groups; k1 becomes 1 / standard deviation by channel. */
static void NAMED(group_coefficients)(const NAMED(GroupNorm) *g, const NAMED(BatchNorm) *s, int64_t image)
{
    REAL *mean = NAMED(of_channels)(g, g->mean + image * g->groups, NAMED(image_vector)(s, NAMED(MEAN)));
    REAL *inv_std = NAMED(of_channels)(g, g->inv_std + image * g->groups, NAMED(image_vector)(s, NAMED(K1)));
    NAMED(affine_coefficients)(s, g->scale, g->bias, mean, inv_std, NAMED(image_vector)(s, NAMED(A)), NAMED(image_vector)(s, NAMED(B)));
}

/* ---- forward */

static void NAMED(begin_statistics)(const NAMED(GroupNorm) *g, int64_t image)
{
    NAMED(BatchNorm) s = NAMED(image_of)(g, image);
    NAMED(repeated)(&s, s.x, NAMED(image_vector)(&s, NAMED(MEAN)));
}

/* The mean of a group, and its variance from the sums of x - shift and of their squares by channel, where shift is the first pixel. */
static void NAMED(finish_statistics)(const NAMED(GroupNorm) *g, int64_t image)
{
    NAMED(BatchNorm) s = NAMED(image_of)(g, image);
    int64_t per_group = s.channels / g->groups;
    double pixels = (double)s.pixels, count = pixels * (double)per_group;
    NAMED(reduce_blocks)(&s);
    for (int64_t group = 0; group < g->groups; group++) {
        const REAL *shift = s.shift + group * per_group;
        const double *sum = s.sums + group * per_group, *square = sum + s.channels;
        double mean = 0, variance = 0;
        for (int64_t c = 0; c < per_group; c++) mean += sum[c] + pixels * shift[c];
        mean /= count;
        for (int64_t c = 0; c < per_group; c++) { double d = mean - shift[c]; variance += square[c] - d * (2 * sum[c] - pixels * d); }
        variance /= count;
        g->mean[image * g->groups + group] = (REAL)mean;
        g->inv_std[image * g->groups + group] = (REAL)(1 / sqrt((variance < 0 ? 0 : variance) + g->epsilon));
    }
    NAMED(group_coefficients)(g, &s, image);
}

static void NAMED(begin_again)(const NAMED(GroupNorm) *g, int64_t image)
{
    NAMED(BatchNorm) s = NAMED(image_of)(g, image);
    NAMED(group_coefficients)(g, &s, image);
}

/* ---- gradient */

static void NAMED(begin_gradient)(const NAMED(GroupNorm) *g, int64_t image)
{
    NAMED(BatchNorm) s = NAMED(image_of)(g, image);
    NAMED(group_coefficients)(g, &s, image);
    NAMED(repeat_vector)(&s, NAMED(image_vector)(&s, NAMED(MEAN)));
}

/* Set the coefficients of dx = a dz - k3 x - k2 from the sums of dz and of dz (x - mean). */
static void NAMED(finish_gradient)(const NAMED(GroupNorm) *g, int64_t image)
{
    NAMED(BatchNorm) s = NAMED(image_of)(g, image);
    REAL *k1 = NAMED(image_vector)(&s, NAMED(K1)), *k2 = NAMED(image_vector)(&s, NAMED(K2)), *k3 = NAMED(image_vector)(&s, NAMED(K3));
    int64_t per_group = s.channels / g->groups;
    double count = (double)(s.pixels * per_group);
    NAMED(reduce_blocks)(&s);
    for (int64_t group = 0; group < g->groups; group++) {
        double mean = g->mean[image * g->groups + group], inv_std = g->inv_std[image * g->groups + group], total = 0, dot = 0;
        int64_t end = (group + 1) * per_group;
        for (int64_t c = end - per_group; c < end; c++) { total += s.a[c] * s.sums[c]; dot += s.a[c] * s.sums[s.channels + c]; }
        double slope = dot * inv_std * inv_std / count;
        for (int64_t c = end - per_group; c < end; c++) {
            k1[c] = s.a[c]; k3[c] = (REAL)slope;
            k2[c] = (REAL)(total / count - slope * mean);
        }
    }
    NAMED(repeat_vector)(&s, k1); NAMED(repeat_vector)(&s, k2); NAMED(repeat_vector)(&s, k3);
}

/* dscale and dbias: the sums of the images, in order. */
static void NAMED(group_parameter_gradients)(const NAMED(GroupNorm) *g, REAL *dscale, REAL *dbias)
{
    int64_t channels = g->first.channels, per_group = channels / g->groups;
    for (int64_t c = 0; c < channels; c++) {
        double sum = 0, dot = 0;
        for (int64_t i = 0; i < g->images && g->first.pixels > 0; i++) {
            const double *sums = (const double *)((const char *)g->first.sums + i * g->stride);
            sum += sums[c];
            dot += sums[channels + c] * g->inv_std[i * g->groups + c / per_group];
        }
        if (dscale) dscale[c] = (REAL)dot;
        if (dbias) dbias[c] = (REAL)sum;
    }
}

/* ---- the passes over all images */

static void NAMED(whole_image_item)(void *context, int64_t image, int64_t worker)
{
    const NAMED(GroupNorm) *g = context;
    NAMED(BatchNorm) s = NAMED(image_of)(g, image);
    g->begin(g, image);
    if (g->sum_block) {
        for (int64_t block = 0; block < s.blocks; block++) g->sum_block(&s, block, worker);
        g->finish(g, image);
    }
    for (int64_t block = 0; block < s.blocks && s.out; block++) g->apply_block(&s, block, worker);
}

static void NAMED(sum_block_item)(void *context, int64_t item, int64_t worker)
{
    const NAMED(GroupNorm) *g = context;
    NAMED(BatchNorm) s = NAMED(image_of)(g, item / g->first.blocks);
    g->sum_block(&s, item % s.blocks, worker);
}

static void NAMED(apply_block_item)(void *context, int64_t item, int64_t worker)
{
    const NAMED(GroupNorm) *g = context;
    NAMED(BatchNorm) s = NAMED(image_of)(g, item / g->first.blocks);
    g->apply_block(&s, item % s.blocks, worker);
}

static void NAMED(normalize_images)(const Engine *engine, NAMED(GroupNorm) *g)
{
    int64_t blocks = g->images * g->first.blocks;
    if (g->first.pixels == 0) return;
    if (g->images >= 4 * engine->workers || engine->workers == 1) {
        engine->parallel_for(engine, NAMED(whole_image_item), g, g->images);
        return;
    }
    for (int64_t image = 0; image < g->images; image++) g->begin(g, image);
    if (g->sum_block) {
        engine->parallel_for(engine, NAMED(sum_block_item), g, blocks);
        for (int64_t image = 0; image < g->images; image++) g->finish(g, image);
    }
    if (g->first.out) engine->parallel_for(engine, NAMED(apply_block_item), g, blocks);
}

/* Read the arguments that all group normalization kernels have in common.
 *
 * ints: pixels, channels, pixels of a block, activation, repeat, images, groups; floats as in batch_norm.h; scratch, for each image: sums [blocks, 2, channels]
 * as double, then IMAGE_VECTORS vectors [width]; then, behind all images, the statistics that are no outputs. */
static NAMED(GroupNorm) NAMED(group_norm_from_args)(const KernelArgs *args)
{
    REAL *vectors;
    NAMED(GroupNorm) g = { .first = NAMED(batch_norm_from_args)(args, &vectors), .images = args->ints[5], .groups = args->ints[6], .epsilon = args->floats[0] };
    g.stride = g.first.blocks * 2 * g.first.channels * (int64_t)sizeof(double) + round_up(NAMED(IMAGE_VECTORS) * g.first.width * (int64_t)sizeof(REAL), 8);
    return g;
}

/* (x, scale, bias) -> (y, mean [images, groups], 1 / standard deviation [images, groups]) */
static int NAMED(channels_last_group_norm)(const KernelArgs *args)
{
    NAMED(GroupNorm) g = NAMED(group_norm_from_args)(args);
    REAL *statistics = (REAL *)((char *)args->scratch + g.images * g.stride);
    g.first.x = INPUT(0); g.first.out = OUTPUT(0); g.scale = INPUT(1); g.bias = INPUT(2);
    g.mean = OUTPUT(1) ? OUTPUT(1) : statistics;
    g.inv_std = OUTPUT(2) ? OUTPUT(2) : statistics + g.images * g.groups;
    g.begin = NAMED(begin_statistics); g.sum_block = NAMED(statistics_item); g.finish = NAMED(finish_statistics); g.apply_block = NAMED(apply_item);
    for (int64_t i = 0; i < g.images * g.groups && g.first.pixels == 0; i++) g.mean[i] = g.inv_std[i] = NAN;
    NAMED(normalize_images)(args->engine, &g);
    return STATUS_OK;
}

/* (x, scale, bias, mean, 1 / standard deviation) -> y, with the bits of the forward pass. */
static int NAMED(channels_last_group_norm_again)(const KernelArgs *args)
{
    NAMED(GroupNorm) g = NAMED(group_norm_from_args)(args);
    g.first.x = INPUT(0); g.first.out = OUTPUT(0); g.scale = INPUT(1); g.bias = INPUT(2); g.mean = (REAL *)INPUT(3); g.inv_std = (REAL *)INPUT(4);
    g.begin = NAMED(begin_again); g.apply_block = NAMED(apply_item);
    NAMED(normalize_images)(args->engine, &g);
    return STATUS_OK;
}

/* (dy, x, scale, mean, 1 / standard deviation, bias) -> (dx, dscale, dbias), all optional. bias: only read by an activation. */
static int NAMED(channels_last_group_norm_grad)(const KernelArgs *args)
{
    NAMED(GroupNorm) g = NAMED(group_norm_from_args)(args);
    g.first.dy = INPUT(0); g.first.x = INPUT(1); g.first.out = OUTPUT(0); g.scale = INPUT(2); g.bias = INPUT(5);
    g.mean = (REAL *)INPUT(3); g.inv_std = (REAL *)INPUT(4);
    if (g.first.activation == SWISH) g.first.dz = g.first.out;
    g.begin = NAMED(begin_gradient); g.sum_block = NAMED(gradient_sums_item); g.finish = NAMED(finish_gradient); g.apply_block = NAMED(gradient_apply_item);
    NAMED(normalize_images)(args->engine, &g);
    NAMED(group_parameter_gradients)(&g, OUTPUT(1), OUTPUT(2));
    return STATUS_OK;
}
#undef V
