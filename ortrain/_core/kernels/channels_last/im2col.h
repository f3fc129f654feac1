/* Convolution by im2col and GEMM, for any kernel, stride, dilation and group: the windows of a block of pixels are gathered into the rows of a matrix
 * [pixels, taps * channels], which is multiplied by the packed filters. Column tap * channels + c of a row belongs to w[:, c, tap].
 *
 * x [n, d, h, w, c], w [k, c / group, taps], y [n, od, oh, ow, k]. */
#define V NAMED(Vector)
#define W NAMED(WIDTH)

typedef struct NAMED(Im2col) {
    const Engine *engine;
    const Geometry *g;
    const REAL *x, *w, *dy;
    REAL *y, *dx, *dw, *packed, *sums;
    int64_t taps, depth, group_channels, group_filters, pixels; /* depth: taps * group_channels, the columns of the im2col matrix */
    int64_t rows;                                               /* pixels of a block: rows of the im2col matrix */
    int64_t slices;                                             /* partial sums of the weight gradient */
    NAMED(Epilogue) epilogue;
} NAMED(Im2col);

static NAMED(Im2col) NAMED(im2col_from_args)(const KernelArgs *args, int64_t rows)
{
    const Geometry *g = (const Geometry *)args->ints;
    NAMED(Im2col) s = { .engine = args->engine, .g = g, .rows = rows };
    s.taps = kernel_taps(g);
    s.group_channels = g->channels / g->group;
    s.group_filters = g->filters / g->group;
    s.depth = s.taps * s.group_channels;
    s.pixels = output_pixels(g);
    return s;
}

ALWAYS_INLINE void NAMED(copy_elements)(REAL *to, const REAL *from, int64_t n)
{
    int64_t i = 0;
    for (; i + W <= n; i += W) STORE(to + i, LOAD(from + i));
    for (; i < n; i++) to[i] = from[i];
}

/* copy_elements with whole vectors, where `from` has them before `end`. Writes up to WIDTH - 1 elements beyond n, which later copies overwrite. */
ALWAYS_INLINE void NAMED(copy_vectors)(REAL *to, const REAL *from, int64_t n, const REAL *end)
{
    if (from + n + W > end) { NAMED(copy_elements)(to, from, n); return; }
    for (int64_t i = 0; i < n; i += W) STORE(to + i, LOAD(from + i));
}

ALWAYS_INLINE void NAMED(add_elements)(REAL *to, const REAL *from, int64_t n)
{
    int64_t i = 0;
    for (; i + W <= n; i += W) STORE(to + i, LOAD(to + i) + LOAD(from + i));
    for (; i < n; i++) to[i] += from[i];
}

/* rows [count, depth] = the im2col matrix of the outputs from `first` on, for the channels of one group. */
NOINLINE void NAMED(im2col)(const NAMED(Im2col) *s, int64_t group, int64_t first, int64_t count, REAL *rows)
{
    const Geometry *g = s->g;
    int64_t channels = s->group_channels, contiguous = g->group == 1 && g->dilation_x == 1;
    const REAL *x = s->x + group * channels, *end = s->x + g->images * image_pixels(g) * g->channels;
    WindowIterator at = window_at(g, first);
    for (int64_t i = 0; i < count; i++, next_window(g, &at)) {
        if ((count - 1 - i) * s->depth < W) end = s->x;       /* nothing may be written beyond the last row, and rows may be shorter than a vector */
        for (int64_t r = 0; r < kernel_rows(g); r++, rows += g->kernel_x * channels) {
            int64_t start = window_row_offset(g, &at, r), low = start < 0 ? g->kernel_x : at.low, high = start < 0 ? g->kernel_x : at.high;
            for (int64_t j = 0; j < low * channels; j++) rows[j] = 0;
            if (contiguous) NAMED(copy_vectors)(rows + low * channels, x + start, (high - low) * channels, end);
            else
                for (int64_t j = low; j < high; j++) NAMED(copy_vectors)(rows + j * channels, x + start + (j - low) * g->dilation_x * g->channels, channels,
                                                                         end);
            for (int64_t j = high * channels; j < g->kernel_x * channels; j++) rows[j] = 0;
        }
    }
}

/* The adjoint of im2col: add rows [count, row_step], whose columns are the taps [begin, end), to dx. */
NOINLINE void NAMED(col2im)(const NAMED(Im2col) *s, int64_t group, int64_t first, int64_t count, const REAL *rows, int64_t row_step, int64_t begin, int64_t end)
{
    const Geometry *g = s->g;
    int64_t channels = s->group_channels, contiguous = g->group == 1 && g->dilation_x == 1;
    REAL *dx = s->dx + group * channels;
    WindowIterator at = window_at(g, first);
    for (int64_t i = 0; i < count; i++, next_window(g, &at))
        for (int64_t r = begin / g->kernel_x; r * g->kernel_x < end; r++) {
            const REAL *row = rows + i * row_step + (r * g->kernel_x - begin) * channels;
            int64_t start = window_row_offset(g, &at, r), low = max_i64(at.low, begin - r * g->kernel_x), high = min_i64(at.high, end - r * g->kernel_x);
            if (start < 0 || low >= high) continue;
            start += (low - at.low) * g->dilation_x * g->channels;
            if (contiguous) NAMED(add_elements)(dx + start, row + low * channels, (high - low) * channels);
            else
                for (int64_t j = low; j < high; j++)
                    NAMED(add_elements)(dx + start + (j - low) * g->dilation_x * g->channels, row + j * channels, channels);
        }
}

/* ---- forward */

/* packed [group, panel, depth, PANEL filters] = w transposed, zeros beyond the last filter. A work item is one panel of one group. */
static void NAMED(pack_filters_item)(void *context, int64_t item, int64_t worker)
{
    const NAMED(Im2col) *s = context; (void)worker;
    int64_t panels = round_up(s->group_filters, PACKED_COLUMNS) / NAMED(PANEL), first = item % panels * NAMED(PANEL), group = item / panels;
    int64_t valid = max_i64(0, min_i64(NAMED(PANEL), s->group_filters - first));
    const REAL *from = s->w + (group * s->group_filters + first) * s->depth;
    for (int64_t c = 0; c < s->group_channels; c++)              /* in memory order of w, whose rows are far apart */
        for (int64_t tap = 0; tap < s->taps; tap++, from++) {
            REAL *to = s->packed + (item * s->depth + tap * s->group_channels + c) * NAMED(PANEL);
            for (int64_t k = 0; k < valid; k++) to[k] = from[k * s->depth];
            for (int64_t k = valid; k < NAMED(PANEL); k++) to[k] = 0;
        }
}

/* y [block pixels, filters] = epilogue(im2col(x) packed). A work item is a block of pixels. */
static void NAMED(im2col_item)(void *context, int64_t item, int64_t worker)
{
    const NAMED(Im2col) *s = context;
    int64_t capacity, first = item * s->rows, count = min_i64(s->rows, s->pixels - first), padded = round_up(s->group_filters, PACKED_COLUMNS);
    REAL *rows = NAMED(workspace)(s->engine, worker, &capacity), *buffer = rows + s->rows * s->depth;
    int whole_vectors = s->group_filters % W == 0;
    for (int64_t group = 0; group < s->g->group; group++) {
        REAL *y = s->y + first * s->g->filters + group * s->group_filters, *to = whole_vectors ? y : buffer;
        int64_t columns = whole_vectors ? s->group_filters : round_up(s->group_filters, W), step = whole_vectors ? s->g->filters : columns;
        const REAL *packed = s->packed + group * padded * s->depth;
        NAMED(im2col)(s, group, first, count, rows);
        for (int64_t k0 = 0; k0 < s->depth; k0 += IM2COL_DEPTH)
            NAMED(gemm_nn)(count, columns, min_i64(IM2COL_DEPTH, s->depth - k0), rows + k0, s->depth, packed + k0 * NAMED(PANEL), NAMED(PANEL),
                           s->depth * NAMED(PANEL), to, step, k0 > 0);
        if (!whole_vectors)
            for (int64_t i = 0; i < count; i++) NAMED(copy_elements)(y + i * s->g->filters, buffer + i * columns, s->group_filters);
    }
    NAMED(epilogue_rows)(&s->epilogue, s->y + first * s->g->filters, count, s->g->filters);
}

static void NAMED(im2col_forward)(NAMED(Im2col) *s, REAL *scratch)
{
    s->packed = scratch;
    s->engine->parallel_for(s->engine, NAMED(pack_filters_item), s, s->g->group * (round_up(s->group_filters, PACKED_COLUMNS) / NAMED(PANEL)));
    s->engine->parallel_for(s->engine, NAMED(im2col_item), s, ceil_div(s->pixels, s->rows));
}

/* ---- data gradient */

/* Return the number of taps per GEMM. With many channels it is one: its result fits into the L2 cache until col2im adds it to dx, and all pixels of a feature
 * map can be computed at once. */
ALWAYS_INLINE int64_t NAMED(taps_per_gemm)(const NAMED(Im2col) *s)
{ return s->group_channels >= TAP_CHANNELS && s->group_channels % PACKED_COLUMNS == 0 ? 1 : s->taps; }

/* packed [group, panel, filter, PANEL columns of the im2col matrix] = w, zeros beyond the last column. A work item is a panel of a group. */
static void NAMED(pack_transposed_filters_item)(void *context, int64_t item, int64_t worker)
{
    const NAMED(Im2col) *s = context; (void)worker;
    int64_t panels = round_up(s->depth, PACKED_COLUMNS) / NAMED(PANEL), first = item % panels * NAMED(PANEL), group = item / panels;
    REAL *to = s->packed + item * s->group_filters * NAMED(PANEL);
    for (int64_t j = 0; j < NAMED(PANEL); j++) {
        int64_t column = first + j, tap = column / s->group_channels, c = column % s->group_channels;
        const REAL *from = s->w + group * s->group_filters * s->depth + c * s->taps + tap;
        for (int64_t k = 0; k < s->group_filters; k++) to[k * NAMED(PANEL) + j] = column < s->depth ? from[k * s->depth] : 0;
    }
}

/* The same where each GEMM has one tap. A work item is PANEL channels with all their taps, which are contiguous in w. */
static void NAMED(pack_transposed_taps_item)(void *context, int64_t item, int64_t worker)
{
    const NAMED(Im2col) *s = context; (void)worker;
    int64_t blocks = s->group_channels / NAMED(PANEL), first = item % blocks * NAMED(PANEL), group = item / blocks;
    REAL *packed = s->packed + group * round_up(s->depth, PACKED_COLUMNS) * s->group_filters + first * s->group_filters;
    for (int64_t k = 0; k < s->group_filters; k++) {
        const REAL *from = s->w + (group * s->group_filters + k) * s->depth + first * s->taps;
        for (int64_t tap = 0; tap < s->taps; tap++)
            for (int64_t j = 0; j < NAMED(PANEL); j++)
                packed[tap * s->group_channels * s->group_filters + k * NAMED(PANEL) + j] = from[j * s->taps + tap];
    }
}

/* dx of one image = col2im(dy packed). Windows of different images do not overlap, so a work item is an image. */
static void NAMED(im2col_data_gradient_item)(void *context, int64_t image, int64_t worker)
{
    const NAMED(Im2col) *s = context;
    const Geometry *g = s->g;
    int64_t capacity, inside = g->out_planes * g->out_rows * g->out_columns, size = image_pixels(g) * g->channels;
    int64_t padded = round_up(s->depth, PACKED_COLUMNS), taps = NAMED(taps_per_gemm)(s), width = taps * s->group_channels, columns = round_up(width, W);
    REAL *rows = NAMED(workspace)(s->engine, worker, &capacity);
    memset(s->dx + image * size, 0, (size_t)size * sizeof(REAL));
    for (int64_t first = image * inside; first < (image + 1) * inside; first += s->rows) {
        int64_t count = min_i64(s->rows, (image + 1) * inside - first);
        for (int64_t group = 0; group < g->group; group++)
            for (int64_t tap = 0; tap < s->taps; tap += taps) {
                const REAL *packed = s->packed + (group * padded + tap * width) * s->group_filters, *dy = s->dy + first * g->filters + group * s->group_filters;
                for (int64_t k0 = 0; k0 < s->group_filters; k0 += IM2COL_DEPTH)
                    NAMED(gemm_nn)(count, columns, min_i64(IM2COL_DEPTH, s->group_filters - k0), dy + k0, g->filters, packed + k0 * NAMED(PANEL),
                                   NAMED(PANEL), s->group_filters * NAMED(PANEL), rows, columns, k0 > 0);
                NAMED(col2im)(s, group, first, count, rows, columns, tap, tap + taps);
            }
    }
}

static void NAMED(im2col_data_gradient)(NAMED(Im2col) *s, REAL *scratch)
{
    int64_t panels = s->g->group * (round_up(s->depth, PACKED_COLUMNS) / NAMED(PANEL));
    s->packed = scratch;
    if (NAMED(taps_per_gemm)(s) < s->taps) s->engine->parallel_for(s->engine, NAMED(pack_transposed_taps_item), s,
                                                                   s->g->group * s->group_channels / NAMED(PANEL));
    else s->engine->parallel_for(s->engine, NAMED(pack_transposed_filters_item), s, panels);
    s->engine->parallel_for(s->engine, NAMED(im2col_data_gradient_item), s, s->g->images);
}

/* ---- weight gradient */

/* sums [slice, group, depth, filter] = im2col(x)^T dy over the pixels of a slice. A work item is one slice of one group. */
static void NAMED(im2col_weight_gradient_item)(void *context, int64_t item, int64_t worker)
{
    const NAMED(Im2col) *s = context;
    const Geometry *g = s->g;
    int64_t group = item % g->group, slice = item / g->group, padded = round_up(s->group_filters, PACKED_COLUMNS), whole_vectors = s->group_filters % W == 0;
    int64_t capacity, steps = ceil_div(s->pixels, GRADIENT_ROWS), begin = slice * steps / s->slices * GRADIENT_ROWS,
        end = (slice + 1) * steps / s->slices * GRADIENT_ROWS;
    REAL *rows = NAMED(workspace)(s->engine, worker, &capacity), *buffer = rows + GRADIENT_ROWS * s->depth;
    REAL *sums = s->sums + (slice * g->group + group) * s->depth * padded;
    if (begin == end) memset(sums, 0, (size_t)(s->depth * padded) * sizeof(REAL));
    for (int64_t first = begin; first < end; first += GRADIENT_ROWS) {
        int64_t count = min_i64(GRADIENT_ROWS, s->pixels - first), step = g->filters;
        const REAL *dy = s->dy + first * g->filters + group * s->group_filters;
        NAMED(im2col)(s, group, first, count, rows);
        if (!whole_vectors) {
            step = round_up(s->group_filters, W);
            for (int64_t i = 0; i < count; i++) {
                NAMED(copy_elements)(buffer + i * step, dy + i * g->filters, s->group_filters);
                for (int64_t k = s->group_filters; k < step; k++) buffer[i * step + k] = 0;
            }
            dy = buffer;
        }
        NAMED(gemm_tn)(s->depth, round_up(s->group_filters, W), count, rows, s->depth, dy, step, NAMED(PANEL), sums, padded, first > begin);
    }
}

/* dw of 16 filters: the sum of all slices in order, transposed to ONNX's layout. */
static void NAMED(im2col_weight_reduction_item)(void *context, int64_t item, int64_t worker)
{
    const NAMED(Im2col) *s = context; (void)worker;
    int64_t blocks = ceil_div(s->group_filters, 16), group = item / blocks, first = item % blocks * 16, count = min_i64(16, s->group_filters - first);
    int64_t padded = round_up(s->group_filters, PACKED_COLUMNS), slice_step = s->g->group * s->depth * padded;
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

static void NAMED(im2col_weight_gradient)(NAMED(Im2col) *s, REAL *scratch)
{
    s->sums = scratch;
    s->engine->parallel_for(s->engine, NAMED(im2col_weight_gradient_item), s, s->slices * s->g->group);
    s->engine->parallel_for(s->engine, NAMED(im2col_weight_reduction_item), s, s->g->group * ceil_div(s->group_filters, 16));
}

/* ---- bias gradient */

/* sums [block, filter] = the sums of dy over a block of pixels. */
static void NAMED(bias_gradient_item)(void *context, int64_t item, int64_t worker)
{
    const NAMED(Im2col) *s = context; (void)worker;
    int64_t filters = s->g->filters, first = item * s->rows, count = min_i64(s->rows, s->pixels - first);
    REAL *sums = s->sums + item * filters;
    memcpy(sums, s->dy + first * filters, (size_t)filters * sizeof(REAL));
    for (int64_t i = 1; i < count; i++) NAMED(add_elements)(sums, s->dy + (first + i) * filters, filters);
}

/* db [filters] = the sum of dy over all pixels. scratch: sums [blocks, filters]. */
static void NAMED(bias_gradient)(NAMED(Im2col) *s, int64_t blocks, REAL *db, REAL *scratch)
{
    s->sums = scratch;
    s->rows = ceil_div(s->pixels, blocks);
    blocks = ceil_div(s->pixels, s->rows);
    s->engine->parallel_for(s->engine, NAMED(bias_gradient_item), s, blocks);
    memcpy(db, s->sums, (size_t)s->g->filters * sizeof(REAL));
    for (int64_t i = 1; i < blocks; i++) NAMED(add_elements)(db, s->sums + i * s->g->filters, s->g->filters);
}
#undef V
#undef W
