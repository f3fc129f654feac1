/* RoiAlign, for one element type (REAL); included by roi_pooling.h once per type, hence without a guard.
 *
 * A bin has rows × columns samples, evenly spread; each reads the four elements around it. Samples more than one element outside of the image read nothing,
 * but count. The mean of the samples, or the largest of all weighted elements (as ONNX's reference has it, not the largest sample). */

typedef struct NAMED(Spread) { REAL start, step; int64_t first, last; REAL count; } NAMED(Spread);   /* samples along one axis of a bin; [first, last) may read */
typedef struct NAMED(Table) { int64_t used; int32_t offset[4 * SAMPLES_OF_TABLE]; REAL weight[4 * SAMPLES_OF_TABLE]; } NAMED(Table);

/* What is found in a bin, per channel of an owner */
typedef struct NAMED(Found) { int any; REAL value[CHANNELS_OF_OWNER], weight[CHANNELS_OF_OWNER]; int32_t offset[CHANNELS_OF_OWNER]; } NAMED(Found);

/* Bin `bin` of `bins` between two borders of a region on an axis of n elements. However far a region reaches, the samples that are looked at are about n. */
static NAMED(Spread) NAMED(spread_of)(const Regions *r, REAL begin, REAL end, int64_t bin, int64_t bins, int64_t n)
{
    REAL offset = r->half_pixel ? (REAL)0.5 : 0, scale = (REAL)r->scale, start = begin * scale - offset, size = end * scale - offset - start;
    if (!r->half_pixel && !(size > 1)) size = 1;
    REAL width = size / (REAL)bins;
    NAMED(Spread) s = { .start = start + (REAL)bin * width, .count = r->ratio > 0 ? (REAL)r->ratio : (REAL)ceil(width) };
    s.step = width / s.count;
    if (!(s.count > 0)) return s;
    if (s.step > 0) {
        double low = floor((-1.0 - s.start) / s.step) - 2, high = ceil((n - s.start) / s.step) + 2;   /* two more on either side, for rounding */
        if (!(low < 1e15 && high > 0)) return s;
        s.first = low > 0 ? (int64_t)low : 0;
        s.last = (int64_t)(high < s.count ? high : s.count);
    } else if (s.count < 1e9) {
        s.last = (int64_t)s.count;
    }
    return s;
}

/* the elements below and above `at` on an axis of n, and how far it lies between them; 0 outside */
static inline int NAMED(between)(REAL at, int64_t n, int64_t *low, int64_t *high, REAL *part)
{
    if (!(at >= -1 && at <= (REAL)n)) return 0;
    at = at > 0 ? at : 0;
    *low = (int64_t)at;
    if (*low >= n - 1) { *low = *high = n - 1; *part = 0; }
    else { *high = *low + 1; *part = at - (REAL)*low; }
    return 1;
}

/* the table's samples, added to what is found; or, with dx, each channel's share given to what they read */
static void NAMED(use_table)(const Regions *r, const NAMED(Table) *t, int64_t channels, const REAL *x, REAL *dx, const REAL *share, NAMED(Found) *f)
{
    for (int64_t c = 0; c < channels; c++) {
        if (dx) {
            for (int64_t k = 0; k < t->used; k++) dx[c * r->plane + t->offset[k]] += t->weight[k] * share[c];
        } else if (r->mode == AVERAGE) {
            const REAL *w = t->weight, *plane = x + c * r->plane; const int32_t *at = t->offset; REAL sum = 0;
            for (int64_t k = 0; k < t->used; k += 4)         /* in pairs: one sum after the other would wait for itself four times per sample */
                sum += (w[k] * plane[at[k]] + w[k + 1] * plane[at[k + 1]]) + (w[k + 2] * plane[at[k + 2]] + w[k + 3] * plane[at[k + 3]]);
            f->value[c] += sum;
        } else for (int64_t k = 0; k < t->used; k++) {
            REAL v = t->weight[k] * x[c * r->plane + t->offset[k]];
            if ((!f->any && k == 0) || v > f->value[c] || v != v) { f->value[c] = v; f->weight[c] = t->weight[k]; f->offset[c] = t->offset[k]; }
        }
    }
    f->any |= t->used > 0;
}

/* The samples of one bin of a region [x1, y1, x2, y2] along rows and columns; returns how many there are */
static inline REAL NAMED(samples_of)(const Regions *r, const REAL *region, int64_t bin, NAMED(Spread) *rows, NAMED(Spread) *columns)
{
    *rows = NAMED(spread_of)(r, region[1], region[3], bin / r->output[1], r->output[0], r->height);
    *columns = NAMED(spread_of)(r, region[0], region[2], bin % r->output[1], r->output[1], r->width);
    return rows->count > 0 && columns->count > 0 ? rows->count * columns->count : 0;
}

/* Goes through the samples of one bin: fills f, or with dx gives each channel's share, dy over the number of samples, to what they read */
static void NAMED(walk_bin)(const Regions *r, const REAL *region, int64_t bin, int64_t channels, const REAL *x, REAL *dx, const REAL *dy, NAMED(Found) *f)
{
    NAMED(Spread) rows, columns;
    REAL total = NAMED(samples_of)(r, region, bin, &rows, &columns), read = 0, mean = 1 / (total > 1 ? total : 1), share[CHANNELS_OF_OWNER] = { 0 };
    for (int64_t c = 0; dx && c < channels; c++) share[c] = mean * dy[c * r->bins];
    NAMED(Table) t = { .used = 0 };
    memset(f, 0, sizeof *f);
    for (int64_t i = rows.first; i < rows.last; i++) {
        int64_t top, bottom, left, right; REAL v, u;
        if (!NAMED(between)(rows.start + ((REAL)i + (REAL)0.5) * rows.step, r->height, &top, &bottom, &v)) continue;
        for (int64_t j = columns.first; j < columns.last; j++) {
            if (!NAMED(between)(columns.start + ((REAL)j + (REAL)0.5) * columns.step, r->width, &left, &right, &u)) continue;
            int64_t k = t.used;
            t.offset[k] = (int32_t)(top * r->width + left); t.offset[k + 1] = (int32_t)(top * r->width + right);
            t.offset[k + 2] = (int32_t)(bottom * r->width + left); t.offset[k + 3] = (int32_t)(bottom * r->width + right);
            t.weight[k] = (1 - v) * (1 - u); t.weight[k + 1] = (1 - v) * u; t.weight[k + 2] = v * (1 - u); t.weight[k + 3] = v * u;
            t.used += 4;
            read += 1;
            if (t.used == 4 * SAMPLES_OF_TABLE) { NAMED(use_table)(r, &t, channels, x, dx, share, f); t.used = 0; }
        }
    }
    NAMED(use_table)(r, &t, channels, x, dx, share, f);
    if (r->mode == LARGEST && !dx && read < total)          /* a sample that reads nothing is a 0 among the others */
        for (int64_t c = 0; c < channels; c++)
            if (!(f->value[c] >= 0) && f->value[c] == f->value[c]) { f->value[c] = 0; f->weight[c] = 0; }
    for (int64_t c = 0; r->mode == AVERAGE && c < channels; c++) f->value[c] *= mean;
}

static void NAMED(roi_align_item)(void *context, int64_t item, int64_t worker)
{
    const Regions *r = context; int64_t owner = item % r->owners, region = item / r->owners, channels = channels_of(r, owner); (void)worker;
    const REAL *x = (const REAL *)r->args->inputs[0].data + (r->image[region] * r->channels + owner * CHANNELS_OF_OWNER) * r->plane;
    const REAL *at = (const REAL *)r->args->inputs[1].data + 4 * region;
    REAL *y = (REAL *)r->args->outputs[0].data + (region * r->channels + owner * CHANNELS_OF_OWNER) * r->bins;
    NAMED(Found) f;
    for (int64_t bin = 0; bin < r->bins; bin++) {
        NAMED(walk_bin)(r, at, bin, channels, x, NULL, NULL, &f);
        for (int64_t c = 0; c < channels; c++) y[c * r->bins + bin] = f.value[c];
    }
}

/* y of (x, regions, images) */
static int NAMED(roi_align)(const KernelArgs *args)
{
    Regions r = regions_of(args, 1, 2);
    args->engine->parallel_for(args->engine, NAMED(roi_align_item), &r, r.count * r.owners);
    return STATUS_OK;
}

static void NAMED(roi_align_grad_item)(void *context, int64_t item, int64_t worker)
{
    const Regions *r = context; int64_t owner = item % r->owners, image = item / r->owners, channels = channels_of(r, owner); (void)worker;
    int64_t start = (image * r->channels + owner * CHANNELS_OF_OWNER) * r->plane;
    const REAL *x = (const REAL *)r->args->inputs[1].data + start; REAL *dx = (REAL *)r->args->outputs[0].data + start;
    NAMED(Found) f;
    memset(dx, 0, channels * r->plane * sizeof(REAL));
    for (int64_t region = 0; region < r->count; region++) {
        if (r->image[region] != image) continue;
        const REAL *at = (const REAL *)r->args->inputs[2].data + 4 * region;
        const REAL *dy = (const REAL *)r->args->inputs[0].data + (region * r->channels + owner * CHANNELS_OF_OWNER) * r->bins;
        for (int64_t bin = 0; bin < r->bins; bin++) {
            NAMED(walk_bin)(r, at, bin, channels, x, r->mode == AVERAGE ? dx : NULL, dy + bin, &f);
            for (int64_t c = 0; r->mode == LARGEST && c < channels; c++) dx[c * r->plane + f.offset[c]] += f.weight[c] * dy[c * r->bins + bin];
        }
    }
}

/* dx of (dy, x, regions, images): the shares of the samples, or all of dy to the element that was the largest (the first of equals) */
static int NAMED(roi_align_grad)(const KernelArgs *args)
{
    Regions r = regions_of(args, 1, 3);
    args->engine->parallel_for(args->engine, NAMED(roi_align_grad_item), &r, r.images * r.owners);
    return STATUS_OK;
}
