/* MaxRoiPool for one element type; included by roi_pooling.h once per type, therefore without an include guard.
 *
 * A region is [image, x1, y1, x2, y2]. Its scaled and rounded box is divided into bins, which overlap if it is not divisible; an empty bin gives 0. */

/* Return a coordinate rounded to an integer. NaN and very large values become coordinates outside of any image. */
static inline int64_t NAMED(round_coordinate)(REAL at) { return at > -1e9 && at < 1e9 ? (int64_t)round(at) : at > 0 ? 1000000000 : -1000000000; }

/* Set [low, high) to the elements of bin `bin` of `bins` between two borders of a region, on an axis of n elements. */
static inline void NAMED(bin_range)(const Regions *r, REAL begin, REAL end, int64_t bin, int64_t bins, int64_t n, int64_t *low, int64_t *high)
{
    int64_t start = NAMED(round_coordinate)(begin * (REAL)r->scale), size = NAMED(round_coordinate)(end * (REAL)r->scale) - start + 1;
    REAL width = (REAL)(size > 1 ? size : 1) / (REAL)bins;
    *low = start + (int64_t)floor((REAL)bin * width);
    *high = start + (int64_t)ceil((REAL)(bin + 1) * width);
    *low = *low < 0 ? 0 : *low > n ? n : *low;
    *high = *high < 0 ? 0 : *high > n ? n : *high;
}

/* Return the offset in plane x of the first maximum of a bin, or -1 if the bin is empty. */
static inline int64_t NAMED(bin_argmax)(const Regions *r, const REAL *region, int64_t bin, const REAL *x)
{
    int64_t top, bottom, left, right, best = -1;
    NAMED(bin_range)(r, region[2], region[4], bin / r->output[1], r->output[0], r->height, &top, &bottom);
    NAMED(bin_range)(r, region[1], region[3], bin % r->output[1], r->output[1], r->width, &left, &right);
    for (int64_t i = top; i < bottom; i++)
        for (int64_t j = left; j < right; j++) {
            REAL v = x[i * r->width + j];
            if (best < 0 || v > x[best] || v != v) best = i * r->width + j;
        }
    return best;
}

/* Return whether every region names an image; checked before anything is written. */
static int NAMED(batch_indices_are_valid)(const Regions *r, const REAL *regions)
{
    for (int64_t k = 0; k < r->count; k++)
        if (!(regions[5 * k] >= 0 && regions[5 * k] < (REAL)r->images)) return 0;
    return 1;
}

static void NAMED(max_roi_pool_item)(void *context, int64_t item, int64_t worker)
{
    const Regions *r = context; (void)worker;
    int64_t channel_block = item % r->channel_blocks, region = item / r->channel_blocks, channels = channels_in_block(r, channel_block);
    const REAL *at = (const REAL *)r->args->inputs[1].data + 5 * region;
    const REAL *x = (const REAL *)r->args->inputs[0].data + ((int64_t)at[0] * r->channels + channel_block * CHANNELS_PER_BLOCK) * r->plane;
    REAL *y = (REAL *)r->args->outputs[0].data + (region * r->channels + channel_block * CHANNELS_PER_BLOCK) * r->bins;
    for (int64_t c = 0; c < channels; c++)
        for (int64_t bin = 0; bin < r->bins; bin++) {
            int64_t best = NAMED(bin_argmax)(r, at, bin, x + c * r->plane);
            y[c * r->bins + bin] = best < 0 ? 0 : x[c * r->plane + best];
        }
}

/* (x, regions) -> y */
static int NAMED(max_roi_pool)(const KernelArgs *args)
{
    Regions r = regions_from_args(args, 0, 0);
    if (!NAMED(batch_indices_are_valid)(&r, args->inputs[1].data)) return STATUS_INDEX_OUT_OF_RANGE;
    args->engine->parallel_for(args->engine, NAMED(max_roi_pool_item), &r, r.count * r.channel_blocks);
    return STATUS_OK;
}

static void NAMED(max_roi_pool_grad_item)(void *context, int64_t item, int64_t worker)
{
    const Regions *r = context; (void)worker;
    int64_t channel_block = item % r->channel_blocks, image = item / r->channel_blocks, channels = channels_in_block(r, channel_block);
    int64_t start = (image * r->channels + channel_block * CHANNELS_PER_BLOCK) * r->plane;
    const REAL *x = (const REAL *)r->args->inputs[1].data + start; REAL *dx = (REAL *)r->args->outputs[0].data + start;
    memset(dx, 0, channels * r->plane * sizeof(REAL));
    for (int64_t region = 0; region < r->count; region++) {
        const REAL *at = (const REAL *)r->args->inputs[2].data + 5 * region;
        const REAL *dy = (const REAL *)r->args->inputs[0].data + (region * r->channels + channel_block * CHANNELS_PER_BLOCK) * r->bins;
        if ((int64_t)at[0] != image) continue;
        for (int64_t c = 0; c < channels; c++)
            for (int64_t bin = 0; bin < r->bins; bin++) {
                int64_t best = NAMED(bin_argmax)(r, at, bin, x + c * r->plane);
                if (best >= 0) dx[c * r->plane + best] += dy[c * r->bins + bin];
            }
    }
}

/* (dy, x, regions) -> dx: dy is added to the maximum of each bin. */
static int NAMED(max_roi_pool_grad)(const KernelArgs *args)
{
    Regions r = regions_from_args(args, 0, 0);
    if (!NAMED(batch_indices_are_valid)(&r, args->inputs[2].data)) return STATUS_INDEX_OUT_OF_RANGE;
    args->engine->parallel_for(args->engine, NAMED(max_roi_pool_grad_item), &r, r.images * r.channel_blocks);
    return STATUS_OK;
}
