/* Weight gradient with one GEMM dy^T x per tap, over all pixels, in blocks of filters and channels; for taps with many channels.
 *
 * Both operands are much longer than wide. A block of each is copied into rows that are WEIGHT_PAD elements longer than necessary, which spreads the columns
 * that the GEMM reads over the sets of the L1 cache: reading them in place took twice the time for 256 filters of 64 channels. Where vectors take bfloat16
 * operands, the engine's GEMM packs a tap that reads all pixels in order. */
#define W NAMED(WIDTH)
#ifndef ORTRAIN_CHANNELS_LAST_WEIGHT_GRADIENT_H
#define ORTRAIN_CHANNELS_LAST_WEIGHT_GRADIENT_H
enum { ROUNDED_SIDE = 24 };              /* equal to MIN_BFLOAT16_SIDE in engine.pyx: products of smaller sides are not rounded */
#endif

typedef struct NAMED(TapGemm) {
    const Engine *engine;
    const Geometry *g;
    const REAL *x, *dy;
    REAL *dw, *sums;                         /* [slice, filter, tap, padded] */
    int64_t taps, channels, filters, pixels; /* channels and filters of a group */
    int64_t padded, filter_blocks, channel_blocks, slices;
} NAMED(TapGemm);

/* Return whether the only tap reads the pixels of x in order. */
ALWAYS_INLINE int NAMED(is_matrix_of_pixels)(const NAMED(TapGemm) *s)
{ return s->taps == 1 && s->g->stride_z == 1 && s->g->stride_y == 1 && s->g->stride_x == 1; }

/* to [pixels, step] = channels [first, first + count) of the pixel under one tap for the outputs from `begin` on, zeros outside the image and up to a whole
 * vector. */
NOINLINE void NAMED(copy_tap)(const NAMED(TapGemm) *s, int64_t tap, int64_t begin, int64_t pixels, int64_t first, int64_t count, REAL *to, int64_t step)
{
    const Geometry *g = s->g;
    int64_t r = tap / g->kernel_x, t = tap % g->kernel_x, whole = round_up(count, W);
    int64_t contiguous = NAMED(is_matrix_of_pixels)(s);
    WindowIterator at = window_at(g, begin);
    for (int64_t i = 0; i < pixels; i++, to += step) {
        int64_t from = contiguous ? (begin + i) * g->channels : window_row_offset(g, &at, r), inside = contiguous || (from >= 0 && t >= at.low && t < at.high);
        if (inside) NAMED(copy_elements)(to, s->x + from + (contiguous ? 0 : (t - at.low) * g->dilation_x * g->channels) + first, count);
        for (int64_t c = inside ? count : 0; c < whole; c++) to[c] = 0;
        if (!contiguous) next_window(g, &at);
    }
}

/* One block of filters times one block of channels, for one tap of one group, over one slice of the pixels. */
static void NAMED(tap_gemm_item)(void *context, int64_t item, int64_t worker)
{
    const NAMED(TapGemm) *s = context;
    int64_t channel = item % s->channel_blocks * WEIGHT_CHANNELS, tap = item / s->channel_blocks % s->taps, outer = item / s->channel_blocks / s->taps;
    int64_t filter = outer % s->filter_blocks * WEIGHT_FILTERS, group = outer / s->filter_blocks % s->g->group, slice = outer / s->filter_blocks / s->g->group;
    int64_t filters = min_i64(WEIGHT_FILTERS, s->filters - filter), channels = min_i64(WEIGHT_CHANNELS, s->channels - channel);
    int64_t steps = ceil_div(s->pixels, WEIGHT_PIXELS), begin = slice * steps / s->slices * WEIGHT_PIXELS;
    int64_t end = min_i64(s->pixels, (slice + 1) * steps / s->slices * WEIGHT_PIXELS);
    int64_t capacity, dy_step = filters + WEIGHT_PAD, x_step = round_up(channels, W) + WEIGHT_PAD, row = s->taps * s->padded;
    REAL *dy = NAMED(workspace)(s->engine, worker, &capacity), *x = dy + WEIGHT_PIXELS * dy_step;
    filter += group * s->filters;
    REAL *sums = s->sums + (slice * s->g->filters + filter) * row + tap * s->padded + channel;
    if (s->engine->bfloat16 && sizeof(REAL) == sizeof(float) && NAMED(is_matrix_of_pixels)(s) && min_i64(filters, channels) >= ROUNDED_SIDE) {
        SERIAL_GEMM(s->engine, worker, 1, 0, filters, channels, end - begin, 1, s->dy + begin * s->g->filters + filter, s->g->filters,
                    s->x + begin * s->g->channels + group * s->channels + channel, s->g->channels, 0, sums, row, NULL, 0);
        return;
    }
    for (int64_t first = begin; first < end; first += WEIGHT_PIXELS) {
        int64_t pixels = min_i64(WEIGHT_PIXELS, end - first);
        for (int64_t i = 0; i < pixels; i++) NAMED(copy_elements)(dy + i * dy_step, s->dy + (first + i) * s->g->filters + filter, filters);
        NAMED(copy_tap)(s, tap, first, pixels, group * s->channels + channel, channels, x, x_step);
        NAMED(gemm_tn)(filters, round_up(channels, W), pixels, dy, dy_step, x, x_step, NAMED(PANEL), sums, row, first > begin);
    }
}

/* dw of one filter: the sum of all slices in order, transposed to ONNX's layout. */
static void NAMED(tap_gemm_reduction_item)(void *context, int64_t filter, int64_t worker)
{
    const NAMED(TapGemm) *s = context; (void)worker;
    int64_t row = s->taps * s->padded;
    REAL *sums = s->sums + filter * row, *to = s->dw + filter * s->taps * s->channels;
    for (int64_t slice = 1; slice < s->slices; slice++) NAMED(add_elements)(sums, sums + slice * s->g->filters * row, row);
    for (int64_t c = 0; c < s->channels; c++)                    /* in memory order of dw */
        for (int64_t tap = 0; tap < s->taps; tap++) *to++ = sums[tap * s->padded + c];
}

/* dw = the weight gradient. scratch: the sums; they are stored to dw directly where they need neither addition nor transposition. */
static void NAMED(tap_gemm_weight_gradient)(const KernelArgs *args, const REAL *dy, const REAL *x, REAL *dw, int64_t slices)
{
    const Geometry *g = (const Geometry *)args->ints;
    NAMED(TapGemm) s = { .engine = args->engine, .g = g, .x = x, .dy = dy, .dw = dw, .sums = args->scratch, .taps = kernel_taps(g),
                         .channels = g->channels / g->group, .filters = g->filters / g->group, .pixels = output_pixels(g),
                         .slices = slices };
    s.padded = round_up(s.channels, W);
    s.filter_blocks = ceil_div(s.filters, WEIGHT_FILTERS);
    s.channel_blocks = ceil_div(s.channels, WEIGHT_CHANNELS);
    int in_place = slices == 1 && s.taps == 1 && s.padded == s.channels;
    if (in_place) s.sums = dw;
    s.engine->parallel_for(s.engine, NAMED(tap_gemm_item), &s, s.channel_blocks * s.taps * s.filter_blocks * g->group * slices);
    if (!in_place) s.engine->parallel_for(s.engine, NAMED(tap_gemm_reduction_item), &s, g->filters);
}
#undef W
