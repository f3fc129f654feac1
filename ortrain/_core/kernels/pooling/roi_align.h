/* RoiAlign for one element type; included by roi_pooling.h once per type, therefore without an include guard.
 *
 * A bin has rows x columns samples on a regular grid, each a bilinear interpolation of four elements. Samples more than one element outside of the image are 0
 * and count. The result is the mean of the samples, or the maximum of all weighted elements (as in ONNX's reference; not the maximum of the samples). */

/* The samples of a bin along one axis; only those in [first, last) can be inside the image. */
typedef struct NAMED(SampleRange) { REAL start, step; int64_t first, last; REAL count; } NAMED(SampleRange);
typedef struct NAMED(SampleTable) { int64_t used; int32_t offset[4 * TABLE_SAMPLES]; REAL weight[4 * TABLE_SAMPLES]; } NAMED(SampleTable);

/* The result of a bin: the sum, or the maximum with its weight and offset, per channel of a block. */
typedef struct NAMED(BinResult) { int any; REAL value[CHANNELS_PER_BLOCK], weight[CHANNELS_PER_BLOCK]; int32_t offset[CHANNELS_PER_BLOCK]; } NAMED(BinResult);

/* Return the samples of bin `bin` of `bins` between two borders of a region, on an axis of n elements. [first, last) has about n samples at most, however
 * large the region is. */
static NAMED(SampleRange) NAMED(sample_range)(const Regions *r, REAL begin, REAL end, int64_t bin, int64_t bins, int64_t n)
{
    REAL offset = r->half_pixel ? (REAL)0.5 : 0, scale = (REAL)r->scale, start = begin * scale - offset, size = end * scale - offset - start;
    if (!r->half_pixel && !(size > 1)) size = 1;
    REAL width = size / (REAL)bins;
    NAMED(SampleRange) s = { .start = start + (REAL)bin * width, .count = r->ratio > 0 ? (REAL)r->ratio : (REAL)ceil(width) };
    s.step = width / s.count;
    if (!(s.count > 0)) return s;
    if (s.step > 0) {
        double low = floor((-1.0 - s.start) / s.step) - 2, high = ceil((n - s.start) / s.step) + 2;   /* two more on either side, for rounding errors */
        if (!(low < 1e15 && high > 0)) return s;
        s.first = low > 0 ? (int64_t)low : 0;
        s.last = (int64_t)(high < s.count ? high : s.count);
    } else if (s.count < 1e9) {
        s.last = (int64_t)s.count;
    }
    return s;
}

/* Set *low and *high to the elements next to `at` on an axis of n elements, and *fraction to the weight of *high. Return 0 if `at` is outside. */
static inline int NAMED(bilinear_neighbors)(REAL at, int64_t n, int64_t *low, int64_t *high, REAL *fraction)
{
    if (!(at >= -1 && at <= (REAL)n)) return 0;
    at = at > 0 ? at : 0;
    *low = (int64_t)at;
    if (*low >= n - 1) { *low = *high = n - 1; *fraction = 0; }
    else { *high = *low + 1; *fraction = at - (REAL)*low; }
    return 1;
}

/* Add the samples of the table to f, or, with dx, add share [channels] times the weights to the elements of the samples. */
static void NAMED(apply_samples)(const Regions *r, const NAMED(SampleTable) *t, int64_t channels, const REAL *x, REAL *dx, const REAL *share,
                                 NAMED(BinResult) *f)
{
    for (int64_t c = 0; c < channels; c++) {
        if (dx) {
            for (int64_t k = 0; k < t->used; k++) dx[c * r->plane + t->offset[k]] += t->weight[k] * share[c];
        } else if (r->mode == AVERAGE) {
            const REAL *w = t->weight, *plane = x + c * r->plane; const int32_t *at = t->offset; REAL sum = 0;
            for (int64_t k = 0; k < t->used; k += 4)         /* pairwise: one chain of additions would have four times the latency per sample */
                sum += (w[k] * plane[at[k]] + w[k + 1] * plane[at[k + 1]]) + (w[k + 2] * plane[at[k + 2]] + w[k + 3] * plane[at[k + 3]]);
            f->value[c] += sum;
        } else for (int64_t k = 0; k < t->used; k++) {
            REAL v = t->weight[k] * x[c * r->plane + t->offset[k]];
            if ((!f->any && k == 0) || v > f->value[c] || v != v) { f->value[c] = v; f->weight[c] = t->weight[k]; f->offset[c] = t->offset[k]; }
        }
    }
    f->any |= t->used > 0;
}

/* Set *rows and *columns to the samples of one bin of a region [x1, y1, x2, y2]. Return their number. */
static inline REAL NAMED(bin_samples)(const Regions *r, const REAL *region, int64_t bin, NAMED(SampleRange) *rows, NAMED(SampleRange) *columns)
{
    *rows = NAMED(sample_range)(r, region[1], region[3], bin / r->output[1], r->output[0], r->height);
    *columns = NAMED(sample_range)(r, region[0], region[2], bin % r->output[1], r->output[1], r->width);
    return rows->count > 0 && columns->count > 0 ? rows->count * columns->count : 0;
}

/* Set *f to the result of one bin, or, with dx, add dy / number of samples times the weights to dx. Samples are collected in a table, which is applied to all
 * channels of the block. */
static void NAMED(pool_bin)(const Regions *r, const REAL *region, int64_t bin, int64_t channels, const REAL *x, REAL *dx, const REAL *dy, NAMED(BinResult) *f)
{
    NAMED(SampleRange) rows, columns;
    REAL total = NAMED(bin_samples)(r, region, bin, &rows, &columns), read = 0, mean = 1 / (total > 1 ? total : 1), share[CHANNELS_PER_BLOCK] = { 0 };
    for (int64_t c = 0; dx && c < channels; c++) share[c] = mean * dy[c * r->bins];
    NAMED(SampleTable) t = { .used = 0 };
    memset(f, 0, sizeof *f);
    for (int64_t i = rows.first; i < rows.last; i++) {
        int64_t top, bottom, left, right; REAL v, u;
        if (!NAMED(bilinear_neighbors)(rows.start + ((REAL)i + (REAL)0.5) * rows.step, r->height, &top, &bottom, &v)) continue;
        for (int64_t j = columns.first; j < columns.last; j++) {
            if (!NAMED(bilinear_neighbors)(columns.start + ((REAL)j + (REAL)0.5) * columns.step, r->width, &left, &right, &u)) continue;
            int64_t k = t.used;
            t.offset[k] = (int32_t)(top * r->width + left); t.offset[k + 1] = (int32_t)(top * r->width + right);
            t.offset[k + 2] = (int32_t)(bottom * r->width + left); t.offset[k + 3] = (int32_t)(bottom * r->width + right);
            t.weight[k] = (1 - v) * (1 - u); t.weight[k + 1] = (1 - v) * u; t.weight[k + 2] = v * (1 - u); t.weight[k + 3] = v * u;
            t.used += 4;
            read += 1;
            if (t.used == 4 * TABLE_SAMPLES) { NAMED(apply_samples)(r, &t, channels, x, dx, share, f); t.used = 0; }
        }
    }
    NAMED(apply_samples)(r, &t, channels, x, dx, share, f);
    if (r->mode == MAXIMUM && !dx && read < total)          /* samples outside are zeros */
        for (int64_t c = 0; c < channels; c++)
            if (!(f->value[c] >= 0) && f->value[c] == f->value[c]) { f->value[c] = 0; f->weight[c] = 0; }
    for (int64_t c = 0; r->mode == AVERAGE && c < channels; c++) f->value[c] *= mean;
}

static void NAMED(roi_align_item)(void *context, int64_t item, int64_t worker)
{
    const Regions *r = context; (void)worker;
    int64_t channel_block = item % r->channel_blocks, region = item / r->channel_blocks, channels = channels_in_block(r, channel_block);
    const REAL *x = (const REAL *)r->args->inputs[0].data + (r->image[region] * r->channels + channel_block * CHANNELS_PER_BLOCK) * r->plane;
    const REAL *at = (const REAL *)r->args->inputs[1].data + 4 * region;
    REAL *y = (REAL *)r->args->outputs[0].data + (region * r->channels + channel_block * CHANNELS_PER_BLOCK) * r->bins;
    NAMED(BinResult) f;
    for (int64_t bin = 0; bin < r->bins; bin++) {
        NAMED(pool_bin)(r, at, bin, channels, x, NULL, NULL, &f);
        for (int64_t c = 0; c < channels; c++) y[c * r->bins + bin] = f.value[c];
    }
}

/* (x, regions, images) -> y */
static int NAMED(roi_align)(const KernelArgs *args)
{
    Regions r = regions_from_args(args, 1, 2);
    args->engine->parallel_for(args->engine, NAMED(roi_align_item), &r, r.count * r.channel_blocks);
    return STATUS_OK;
}

static void NAMED(roi_align_grad_item)(void *context, int64_t item, int64_t worker)
{
    const Regions *r = context; (void)worker;
    int64_t channel_block = item % r->channel_blocks, image = item / r->channel_blocks, channels = channels_in_block(r, channel_block);
    int64_t start = (image * r->channels + channel_block * CHANNELS_PER_BLOCK) * r->plane;
    const REAL *x = (const REAL *)r->args->inputs[1].data + start; REAL *dx = (REAL *)r->args->outputs[0].data + start;
    NAMED(BinResult) f;
    memset(dx, 0, channels * r->plane * sizeof(REAL));
    for (int64_t region = 0; region < r->count; region++) {
        if (r->image[region] != image) continue;
        const REAL *at = (const REAL *)r->args->inputs[2].data + 4 * region;
        const REAL *dy = (const REAL *)r->args->inputs[0].data + (region * r->channels + channel_block * CHANNELS_PER_BLOCK) * r->bins;
        for (int64_t bin = 0; bin < r->bins; bin++) {
            NAMED(pool_bin)(r, at, bin, channels, x, r->mode == AVERAGE ? dx : NULL, dy + bin, &f);
            for (int64_t c = 0; r->mode == MAXIMUM && c < channels; c++) dx[c * r->plane + f.offset[c]] += f.weight[c] * dy[c * r->bins + bin];
        }
    }
}

/* (dy, x, regions, images) -> dx: dy is distributed to the samples of each bin, or added to the first maximum. */
static int NAMED(roi_align_grad)(const KernelArgs *args)
{
    Regions r = regions_from_args(args, 1, 3);
    args->engine->parallel_for(args->engine, NAMED(roi_align_grad_item), &r, r.images * r.channel_blocks);
    return STATUS_OK;
}
