/* Gradient of the weights where a tap has many channels: one product dy^T x per tap over all pixels, in blocks of filters and channels.
 *
 * Both operands are far longer than wide. A block of each is copied into rows that lie WEIGHT_PAD elements further apart than they must, so that what a
 * product walks down is spread over the first cache; a product that reads them where they lie took twice the time for 256 filters of 64 channels. */
#define W NAMED(WIDTH)

typedef struct NAMED(Blocks) {
    const Engine *engine;
    const Geometry *g;
    const REAL *x, *dy;
    REAL *dw, *sums;                     /* sums[slice][filter][tap][padded] */
    int64_t taps, channels, filters, pixels;             /* channels and filters of a group */
    int64_t padded, filter_blocks, channel_blocks, slices;
} NAMED(Blocks);

/* to[i] = channels first … first + count of the pixel that a tap of output begin + i sees, zeros outside the image and up to a whole vector */
APART void NAMED(copy_tap)(const NAMED(Blocks) *s, int64_t tap, int64_t begin, int64_t pixels, int64_t first, int64_t count, REAL *to, int64_t step)
{
    const Geometry *g = s->g;
    int64_t r = tap / g->kernel_x, t = tap % g->kernel_x, whole = rounded(count, W), plain = s->taps == 1 && g->stride_y == 1 && g->stride_x == 1;
    Window at = window_of(g, begin);
    for (int64_t i = 0; i < pixels; i++, to += step) {
        int64_t from = plain ? (begin + i) * g->channels : window_row(g, &at, r), inside = plain || (from >= 0 && t >= at.low && t < at.high);
        if (inside) NAMED(copy_elements)(to, s->x + from + (plain ? 0 : (t - at.low) * g->step_x * g->channels) + first, count);
        for (int64_t c = inside ? count : 0; c < whole; c++) to[c] = 0;
        if (!plain) next_window(g, &at);
    }
}

/* an item is a block of filters and one of channels, of one tap of a group, over one slice of the pixels */
static void NAMED(weight_block_item)(void *context, int64_t item, int64_t worker)
{
    const NAMED(Blocks) *s = context;
    int64_t channel = item % s->channel_blocks * WEIGHT_CHANNELS, tap = item / s->channel_blocks % s->taps, rest = item / s->channel_blocks / s->taps;
    int64_t filter = rest % s->filter_blocks * WEIGHT_FILTERS, group = rest / s->filter_blocks % s->g->group, slice = rest / s->filter_blocks / s->g->group;
    int64_t filters = least(WEIGHT_FILTERS, s->filters - filter), channels = least(WEIGHT_CHANNELS, s->channels - channel);
    int64_t steps = blocks_of(s->pixels, WEIGHT_PIXELS), begin = slice * steps / s->slices * WEIGHT_PIXELS;
    int64_t end = least(s->pixels, (slice + 1) * steps / s->slices * WEIGHT_PIXELS);
    int64_t room, dy_step = filters + WEIGHT_PAD, x_step = rounded(channels, W) + WEIGHT_PAD, row = s->taps * s->padded;
    REAL *dy = NAMED(workspace)(s->engine, worker, &room), *x = dy + WEIGHT_PIXELS * dy_step;
    filter += group * s->filters;
    REAL *sums = s->sums + (slice * s->g->filters + filter) * row + tap * s->padded + channel;
    for (int64_t first = begin; first < end; first += WEIGHT_PIXELS) {
        int64_t pixels = least(WEIGHT_PIXELS, end - first);
        for (int64_t i = 0; i < pixels; i++) NAMED(copy_elements)(dy + i * dy_step, s->dy + (first + i) * s->g->filters + filter, filters);
        NAMED(copy_tap)(s, tap, first, pixels, group * s->channels + channel, channels, x, x_step);
        NAMED(turned_product)(filters, rounded(channels, W), pixels, dy, dy_step, x, x_step, NAMED(PANEL), sums, row, first > begin);
    }
}

/* dw of one filter: the slices added in order, turned into ONNX's order */
static void NAMED(weight_block_sum_item)(void *context, int64_t filter, int64_t worker)
{
    const NAMED(Blocks) *s = context; (void)worker;
    int64_t row = s->taps * s->padded;
    REAL *sums = s->sums + filter * row, *to = s->dw + filter * s->taps * s->channels;
    for (int64_t slice = 1; slice < s->slices; slice++) NAMED(add_elements)(sums, sums + slice * s->g->filters * row, row);
    for (int64_t c = 0; c < s->channels; c++)                    /* in the order in which dw lies */
        for (int64_t tap = 0; tap < s->taps; tap++) *to++ = sums[tap * s->padded + c];
}

/* scratch: the sums, which are dw itself where nothing is left to do to them */
static void NAMED(block_weights)(const KernelArgs *args, const REAL *dy, const REAL *x, REAL *dw, int64_t slices)
{
    const Geometry *g = (const Geometry *)args->ints;
    NAMED(Blocks) s = { .engine = args->engine, .g = g, .x = x, .dy = dy, .dw = dw, .sums = args->scratch, .taps = g->kernel_y * g->kernel_x,
                        .channels = g->channels / g->group, .filters = g->filters / g->group, .pixels = g->images * g->out_rows * g->out_columns, .slices = slices };
    s.padded = rounded(s.channels, W);
    s.filter_blocks = blocks_of(s.filters, WEIGHT_FILTERS);
    s.channel_blocks = blocks_of(s.channels, WEIGHT_CHANNELS);
    int in_place = slices == 1 && s.taps == 1 && s.padded == s.channels;
    if (in_place) s.sums = dw;
    s.engine->parallel_for(s.engine, NAMED(weight_block_item), &s, s.channel_blocks * s.taps * s.filter_blocks * g->group * slices);
    if (!in_place) s.engine->parallel_for(s.engine, NAMED(weight_block_sum_item), &s, g->filters);
}
#undef W
