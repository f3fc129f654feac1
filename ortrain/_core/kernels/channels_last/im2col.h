/* Convolution of any kernel, stride, dilation and group: the windows of a few hundred pixels are gathered into rows, [pixels, taps * channels], and
 * multiplied at once. x [n, h, w, c], w [k, c / group, taps], y [n, oh, ow, k]. Column tap * channels + c of a row belongs to w[:, c, tap]. */
#define V NAMED(Channels)
#define W NAMED(WIDTH)

typedef struct NAMED(Rows) {
    const Engine *engine;
    const Geometry *g;
    const REAL *x, *w, *dy;
    REAL *y, *dx, *dw, *packed, *sums;
    int64_t taps, depth, group_channels, group_filters, pixels;   /* depth: taps * group_channels, columns of a row */
    int64_t rows;                        /* pixels that are gathered at a time */
    int64_t slices;                      /* partial sums of the weights' gradient */
    NAMED(Finish) finish;
} NAMED(Rows);

static NAMED(Rows) NAMED(rows_of)(const KernelArgs *args, int64_t rows)
{
    const Geometry *g = (const Geometry *)args->ints;
    NAMED(Rows) s = { .engine = args->engine, .g = g, .rows = rows };
    s.taps = g->kernel_y * g->kernel_x;
    s.group_channels = g->channels / g->group;
    s.group_filters = g->filters / g->group;
    s.depth = s.taps * s.group_channels;
    s.pixels = g->images * g->out_rows * g->out_columns;
    return s;
}

INLINED void NAMED(copy_elements)(REAL *to, const REAL *from, int64_t n)
{
    int64_t i = 0;
    for (; i + W <= n; i += W) STORE(to + i, LOAD(from + i));
    for (; i < n; i++) to[i] = from[i];
}

/* the same by whole vectors while `from` has them: may write up to WIDTH - 1 elements beyond n, which the runs after it overwrite */
INLINED void NAMED(copy_run)(REAL *to, const REAL *from, int64_t n, const REAL *end)
{
    if (from + n + W > end) { NAMED(copy_elements)(to, from, n); return; }
    for (int64_t i = 0; i < n; i += W) STORE(to + i, LOAD(from + i));
}

INLINED void NAMED(add_elements)(REAL *to, const REAL *from, int64_t n)
{
    int64_t i = 0;
    for (; i + W <= n; i += W) STORE(to + i, LOAD(to + i) + LOAD(from + i));
    for (; i < n; i++) to[i] += from[i];
}

/* rows[i] = the window of pixel first + i, channels of one group */
APART void NAMED(gather)(const NAMED(Rows) *s, int64_t group, int64_t first, int64_t count, REAL *rows)
{
    const Geometry *g = s->g;
    int64_t channels = s->group_channels, whole = g->group == 1 && g->step_x == 1;
    const REAL *x = s->x + group * channels, *end = s->x + g->images * g->rows * g->columns * g->channels;
    Window at = window_of(g, first);
    for (int64_t i = 0; i < count; i++, next_window(g, &at)) {
        if ((count - 1 - i) * s->depth < W) end = s->x;       /* what follows the last row may be another worker's, and rows may be shorter than a vector */
        for (int64_t r = 0; r < g->kernel_y; r++, rows += g->kernel_x * channels) {
            int64_t start = window_row(g, &at, r), low = start < 0 ? g->kernel_x : at.low, high = start < 0 ? g->kernel_x : at.high;
            for (int64_t j = 0; j < low * channels; j++) rows[j] = 0;
            if (whole) NAMED(copy_run)(rows + low * channels, x + start, (high - low) * channels, end);
            else
                for (int64_t j = low; j < high; j++) NAMED(copy_run)(rows + j * channels, x + start + (j - low) * g->step_x * g->channels, channels, end);
            for (int64_t j = high * channels; j < g->kernel_x * channels; j++) rows[j] = 0;
        }
    }
}

/* the adjoint: the rows, whose columns are the taps begin … end, are added to dx */
APART void NAMED(scatter)(const NAMED(Rows) *s, int64_t group, int64_t first, int64_t count, const REAL *rows, int64_t row_step, int64_t begin, int64_t end)
{
    const Geometry *g = s->g;
    int64_t channels = s->group_channels, whole = g->group == 1 && g->step_x == 1;
    REAL *dx = s->dx + group * channels;
    Window at = window_of(g, first);
    for (int64_t i = 0; i < count; i++, next_window(g, &at))
        for (int64_t r = begin / g->kernel_x; r * g->kernel_x < end; r++) {
            const REAL *row = rows + i * row_step + (r * g->kernel_x - begin) * channels;
            int64_t start = window_row(g, &at, r), low = most(at.low, begin - r * g->kernel_x), high = least(at.high, end - r * g->kernel_x);
            if (start < 0 || low >= high) continue;
            start += (low - at.low) * g->step_x * g->channels;
            if (whole) NAMED(add_elements)(dx + start, row + low * channels, (high - low) * channels);
            else
                for (int64_t j = low; j < high; j++)
                    NAMED(add_elements)(dx + start + (j - low) * g->step_x * g->channels, row + j * channels, channels);
        }
}

/* ---- forward */

/* packed[group][panel][column of a row][PANEL filters], zeros beyond the last filter; an item is one panel of one group */
static void NAMED(pack_filters_item)(void *context, int64_t item, int64_t worker)
{
    const NAMED(Rows) *s = context; (void)worker;
    int64_t panels = rounded(s->group_filters, PACKED_COLUMNS) / NAMED(PANEL), first = item % panels * NAMED(PANEL), group = item / panels;
    int64_t real = most(0, least(NAMED(PANEL), s->group_filters - first));
    const REAL *from = s->w + (group * s->group_filters + first) * s->depth;
    for (int64_t c = 0; c < s->group_channels; c++)              /* in the order in which w lies: its rows are far apart */
        for (int64_t tap = 0; tap < s->taps; tap++, from++) {
            REAL *to = s->packed + (item * s->depth + tap * s->group_channels + c) * NAMED(PANEL);
            for (int64_t k = 0; k < real; k++) to[k] = from[k * s->depth];
            for (int64_t k = real; k < NAMED(PANEL); k++) to[k] = 0;
        }
}

/* an item is a block of pixels */
static void NAMED(rows_item)(void *context, int64_t item, int64_t worker)
{
    const NAMED(Rows) *s = context;
    int64_t room, first = item * s->rows, count = least(s->rows, s->pixels - first), padded = rounded(s->group_filters, PACKED_COLUMNS);
    REAL *rows = NAMED(workspace)(s->engine, worker, &room), *spare = rows + s->rows * s->depth;
    int exact = s->group_filters % W == 0;
    for (int64_t group = 0; group < s->g->group; group++) {
        REAL *y = s->y + first * s->g->filters + group * s->group_filters, *to = exact ? y : spare;
        int64_t columns = exact ? s->group_filters : rounded(s->group_filters, W), step = exact ? s->g->filters : columns;
        const REAL *packed = s->packed + group * padded * s->depth;
        NAMED(gather)(s, group, first, count, rows);
        for (int64_t deep = 0; deep < s->depth; deep += ROW_DEPTH)
            NAMED(product)(count, columns, least(ROW_DEPTH, s->depth - deep), rows + deep, s->depth, packed + deep * NAMED(PANEL), NAMED(PANEL),
                           s->depth * NAMED(PANEL), to, step, deep > 0);
        if (!exact)
            for (int64_t i = 0; i < count; i++) NAMED(copy_elements)(y + i * s->g->filters, spare + i * columns, s->group_filters);
    }
    NAMED(finish_rows)(&s->finish, s->y + first * s->g->filters, count, s->g->filters);
}

static void NAMED(rows_forward)(NAMED(Rows) *s, REAL *scratch)
{
    s->packed = scratch;
    s->engine->parallel_for(s->engine, NAMED(pack_filters_item), s, s->g->group * (rounded(s->group_filters, PACKED_COLUMNS) / NAMED(PANEL)));
    s->engine->parallel_for(s->engine, NAMED(rows_item), s, blocks_of(s->pixels, s->rows));
}

/* ---- gradient of the data */

/* Wide taps are taken one after another: what their product gives fits the second cache before it is added to dx, and all pixels of a map can be taken at once. */
INLINED int64_t NAMED(taps_at_a_time)(const NAMED(Rows) *s)
{ return s->group_channels >= TAP_CHANNELS && s->group_channels % PACKED_COLUMNS == 0 ? 1 : s->taps; }

/* packed[group][panel][filter][PANEL columns of a row], zeros beyond the last column; an item is a panel */
static void NAMED(pack_columns_item)(void *context, int64_t item, int64_t worker)
{
    const NAMED(Rows) *s = context; (void)worker;
    int64_t panels = rounded(s->depth, PACKED_COLUMNS) / NAMED(PANEL), first = item % panels * NAMED(PANEL), group = item / panels;
    REAL *to = s->packed + item * s->group_filters * NAMED(PANEL);
    for (int64_t j = 0; j < NAMED(PANEL); j++) {
        int64_t column = first + j, tap = column / s->group_channels, c = column % s->group_channels;
        const REAL *from = s->w + group * s->group_filters * s->depth + c * s->taps + tap;
        for (int64_t k = 0; k < s->group_filters; k++) to[k * NAMED(PANEL) + j] = column < s->depth ? from[k * s->depth] : 0;
    }
}

/* the same where panels are those of single taps; an item is the PANEL channels of all of them, which lie side by side in w */
static void NAMED(pack_channels_item)(void *context, int64_t item, int64_t worker)
{
    const NAMED(Rows) *s = context; (void)worker;
    int64_t blocks = s->group_channels / NAMED(PANEL), first = item % blocks * NAMED(PANEL), group = item / blocks;
    REAL *packed = s->packed + group * rounded(s->depth, PACKED_COLUMNS) * s->group_filters + first * s->group_filters;
    for (int64_t k = 0; k < s->group_filters; k++) {
        const REAL *from = s->w + (group * s->group_filters + k) * s->depth + first * s->taps;
        for (int64_t tap = 0; tap < s->taps; tap++)
            for (int64_t j = 0; j < NAMED(PANEL); j++)
                packed[tap * s->group_channels * s->group_filters + k * NAMED(PANEL) + j] = from[j * s->taps + tap];
    }
}

/* an item is an image, whose windows overlap */
static void NAMED(image_gradient_item)(void *context, int64_t image, int64_t worker)
{
    const NAMED(Rows) *s = context;
    const Geometry *g = s->g;
    int64_t room, inside = g->out_rows * g->out_columns, padded = rounded(s->depth, PACKED_COLUMNS), taps = NAMED(taps_at_a_time)(s);
    int64_t width = taps * s->group_channels, columns = rounded(width, W);
    REAL *rows = NAMED(workspace)(s->engine, worker, &room);
    memset(s->dx + image * g->rows * g->columns * g->channels, 0, (size_t)(g->rows * g->columns * g->channels) * sizeof(REAL));
    for (int64_t first = image * inside; first < (image + 1) * inside; first += s->rows) {
        int64_t count = least(s->rows, (image + 1) * inside - first);
        for (int64_t group = 0; group < g->group; group++)
            for (int64_t tap = 0; tap < s->taps; tap += taps) {
                const REAL *packed = s->packed + (group * padded + tap * width) * s->group_filters, *dy = s->dy + first * g->filters + group * s->group_filters;
                for (int64_t deep = 0; deep < s->group_filters; deep += ROW_DEPTH)
                    NAMED(product)(count, columns, least(ROW_DEPTH, s->group_filters - deep), dy + deep, g->filters, packed + deep * NAMED(PANEL),
                                   NAMED(PANEL), s->group_filters * NAMED(PANEL), rows, columns, deep > 0);
                NAMED(scatter)(s, group, first, count, rows, columns, tap, tap + taps);
            }
    }
}

static void NAMED(rows_data_gradient)(NAMED(Rows) *s, REAL *scratch)
{
    int64_t panels = s->g->group * (rounded(s->depth, PACKED_COLUMNS) / NAMED(PANEL));
    s->packed = scratch;
    if (NAMED(taps_at_a_time)(s) < s->taps) s->engine->parallel_for(s->engine, NAMED(pack_channels_item), s, s->g->group * s->group_channels / NAMED(PANEL));
    else s->engine->parallel_for(s->engine, NAMED(pack_columns_item), s, panels);
    s->engine->parallel_for(s->engine, NAMED(image_gradient_item), s, s->g->images);
}

/* ---- gradient of the weights */

/* sums[slice][group][column of a row][filter] over the pixels of a slice; an item is a slice of one group */
static void NAMED(weight_item)(void *context, int64_t item, int64_t worker)
{
    const NAMED(Rows) *s = context;
    const Geometry *g = s->g;
    int64_t group = item % g->group, slice = item / g->group, padded = rounded(s->group_filters, PACKED_COLUMNS), exact = s->group_filters % W == 0;
    int64_t room, steps = blocks_of(s->pixels, GRADIENT_ROWS), begin = slice * steps / s->slices * GRADIENT_ROWS, end = (slice + 1) * steps / s->slices * GRADIENT_ROWS;
    REAL *rows = NAMED(workspace)(s->engine, worker, &room), *spare = rows + GRADIENT_ROWS * s->depth;
    REAL *sums = s->sums + (slice * g->group + group) * s->depth * padded;
    if (begin == end) memset(sums, 0, (size_t)(s->depth * padded) * sizeof(REAL));
    for (int64_t first = begin; first < end; first += GRADIENT_ROWS) {
        int64_t count = least(GRADIENT_ROWS, s->pixels - first), step = g->filters;
        const REAL *dy = s->dy + first * g->filters + group * s->group_filters;
        NAMED(gather)(s, group, first, count, rows);
        if (!exact) {
            step = rounded(s->group_filters, W);
            for (int64_t i = 0; i < count; i++) {
                NAMED(copy_elements)(spare + i * step, dy + i * g->filters, s->group_filters);
                for (int64_t k = s->group_filters; k < step; k++) spare[i * step + k] = 0;
            }
            dy = spare;
        }
        NAMED(turned_product)(s->depth, rounded(s->group_filters, W), count, rows, s->depth, dy, step, NAMED(PANEL), sums, padded, first > begin);
    }
}

/* dw of 16 filters: the slices added in order, turned into ONNX's order */
static void NAMED(weight_sum_item)(void *context, int64_t item, int64_t worker)
{
    const NAMED(Rows) *s = context; (void)worker;
    int64_t blocks = blocks_of(s->group_filters, 16), group = item / blocks, first = item % blocks * 16, count = least(16, s->group_filters - first);
    int64_t padded = rounded(s->group_filters, PACKED_COLUMNS), slice_step = s->g->group * s->depth * padded;
    for (int64_t tap = 0; tap < s->taps; tap++)
        for (int64_t c = 0; c < s->group_channels; c++) {
            const REAL *from = s->sums + (group * s->depth + tap * s->group_channels + c) * padded + first;
            REAL *to = s->dw + (group * s->group_filters + first) * s->depth + c * s->taps + tap, total[16];
            for (int64_t k = 0; k < count; k++) total[k] = from[k];
            for (int64_t slice = 1; slice < s->slices; slice++)
                for (int64_t k = 0; k < count; k++) total[k] += from[slice * slice_step + k];
            for (int64_t k = 0; k < count; k++) to[k * s->depth] = total[k];
        }
}

static void NAMED(rows_weight_gradient)(NAMED(Rows) *s, REAL *scratch)
{
    s->sums = scratch;
    s->engine->parallel_for(s->engine, NAMED(weight_item), s, s->slices * s->g->group);
    s->engine->parallel_for(s->engine, NAMED(weight_sum_item), s, s->g->group * blocks_of(s->group_filters, 16));
}

/* ---- gradient of the bias */

/* sums[block][filter]: the sum of dy over the pixels of a block; an item is one block of `rows` pixels */
static void NAMED(bias_item)(void *context, int64_t item, int64_t worker)
{
    const NAMED(Rows) *s = context; (void)worker;
    int64_t filters = s->g->filters, first = item * s->rows, count = least(s->rows, s->pixels - first);
    REAL *sums = s->sums + item * filters;
    memcpy(sums, s->dy + first * filters, (size_t)filters * sizeof(REAL));
    for (int64_t i = 1; i < count; i++) NAMED(add_elements)(sums, s->dy + (first + i) * filters, filters);
}

/* db [filters] = the sum of dy [pixels, filters]; scratch: one row per block of pixels */
static void NAMED(bias_gradient)(NAMED(Rows) *s, int64_t blocks, REAL *db, REAL *scratch)
{
    s->sums = scratch;
    s->rows = blocks_of(s->pixels, blocks);
    blocks = blocks_of(s->pixels, s->rows);
    s->engine->parallel_for(s->engine, NAMED(bias_item), s, blocks);
    memcpy(db, s->sums, (size_t)s->g->filters * sizeof(REAL));
    for (int64_t i = 1; i < blocks; i++) NAMED(add_elements)(db, s->sums + i * s->g->filters, s->g->filters);
}
#undef V
#undef W
