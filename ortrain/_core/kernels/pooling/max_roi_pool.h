/* MaxRoiPool, for one element type (REAL); included by roi_pooling.h once per type, hence without a guard.
 *
 * A region is [image, x1, y1, x2, y2]; its scaled and rounded box is cut into bins, which overlap where they do not fit; an empty bin is 0. */

/* a border in whole elements; what is not a number and what is far away lies outside of every image */
static inline int64_t NAMED(rounded)(REAL at) { return at > -1e9 && at < 1e9 ? (int64_t)round(at) : at > 0 ? 1000000000 : -1000000000; }

/* [low, high) of bin `bin` of `bins` between two borders, on an axis of n elements */
static inline void NAMED(bin_of)(const Regions *r, REAL begin, REAL end, int64_t bin, int64_t bins, int64_t n, int64_t *low, int64_t *high)
{
    int64_t start = NAMED(rounded)(begin * (REAL)r->scale), size = NAMED(rounded)(end * (REAL)r->scale) - start + 1;
    REAL width = (REAL)(size > 1 ? size : 1) / (REAL)bins;
    *low = start + (int64_t)floor((REAL)bin * width);
    *high = start + (int64_t)ceil((REAL)(bin + 1) * width);
    *low = *low < 0 ? 0 : *low > n ? n : *low;
    *high = *high < 0 ? 0 : *high > n ? n : *high;
}

/* where the largest element (the first of equals) of a bin lies in a plane, -1 in an empty bin */
static inline int64_t NAMED(largest_of)(const Regions *r, const REAL *region, int64_t bin, const REAL *x)
{
    int64_t top, bottom, left, right, best = -1;
    NAMED(bin_of)(r, region[2], region[4], bin / r->output[1], r->output[0], r->height, &top, &bottom);
    NAMED(bin_of)(r, region[1], region[3], bin % r->output[1], r->output[1], r->width, &left, &right);
    for (int64_t i = top; i < bottom; i++)
        for (int64_t j = left; j < right; j++) {
            REAL v = x[i * r->width + j];
            if (best < 0 || v > x[best] || v != v) best = i * r->width + j;
        }
    return best;
}

/* true when every region names an image; said before anything is written */
static int NAMED(regions_name_images)(const Regions *r, const REAL *regions)
{
    for (int64_t k = 0; k < r->count; k++)
        if (!(regions[5 * k] >= 0 && regions[5 * k] < (REAL)r->images)) return 0;
    return 1;
}

static void NAMED(max_roi_pool_item)(void *context, int64_t item, int64_t worker)
{
    const Regions *r = context; int64_t owner = item % r->owners, region = item / r->owners, channels = channels_of(r, owner); (void)worker;
    const REAL *at = (const REAL *)r->args->inputs[1].data + 5 * region;
    const REAL *x = (const REAL *)r->args->inputs[0].data + ((int64_t)at[0] * r->channels + owner * CHANNELS_OF_OWNER) * r->plane;
    REAL *y = (REAL *)r->args->outputs[0].data + (region * r->channels + owner * CHANNELS_OF_OWNER) * r->bins;
    for (int64_t c = 0; c < channels; c++)
        for (int64_t bin = 0; bin < r->bins; bin++) {
            int64_t best = NAMED(largest_of)(r, at, bin, x + c * r->plane);
            y[c * r->bins + bin] = best < 0 ? 0 : x[c * r->plane + best];
        }
}

/* y of (x, regions) */
static int NAMED(max_roi_pool)(const KernelArgs *args)
{
    Regions r = regions_of(args, 0, 0);
    if (!NAMED(regions_name_images)(&r, args->inputs[1].data)) return STATUS_INDEX_OUT_OF_RANGE;
    args->engine->parallel_for(args->engine, NAMED(max_roi_pool_item), &r, r.count * r.owners);
    return STATUS_OK;
}

static void NAMED(max_roi_pool_grad_item)(void *context, int64_t item, int64_t worker)
{
    const Regions *r = context; int64_t owner = item % r->owners, image = item / r->owners, channels = channels_of(r, owner); (void)worker;
    int64_t start = (image * r->channels + owner * CHANNELS_OF_OWNER) * r->plane;
    const REAL *x = (const REAL *)r->args->inputs[1].data + start; REAL *dx = (REAL *)r->args->outputs[0].data + start;
    memset(dx, 0, channels * r->plane * sizeof(REAL));
    for (int64_t region = 0; region < r->count; region++) {
        const REAL *at = (const REAL *)r->args->inputs[2].data + 5 * region;
        const REAL *dy = (const REAL *)r->args->inputs[0].data + (region * r->channels + owner * CHANNELS_OF_OWNER) * r->bins;
        if ((int64_t)at[0] != image) continue;
        for (int64_t c = 0; c < channels; c++)
            for (int64_t bin = 0; bin < r->bins; bin++) {
                int64_t best = NAMED(largest_of)(r, at, bin, x + c * r->plane);
                if (best >= 0) dx[c * r->plane + best] += dy[c * r->bins + bin];
            }
    }
}

/* dx of (dy, x, regions): each dy to the element that was the largest of its bin */
static int NAMED(max_roi_pool_grad)(const KernelArgs *args)
{
    Regions r = regions_of(args, 0, 0);
    if (!NAMED(regions_name_images)(&r, args->inputs[2].data)) return STATUS_INDEX_OUT_OF_RANGE;
    args->engine->parallel_for(args->engine, NAMED(max_roi_pool_grad_item), &r, r.images * r.owners);
    return STATUS_OK;
}
