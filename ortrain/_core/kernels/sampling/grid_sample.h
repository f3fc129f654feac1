/* GridSample for one element type; included by sampling.h once per type, therefore without an include guard.
 *
 * x [images, channels, plane], grid [images, positions, axes] in [-1, 1] with the last axis first, y [images, channels, positions]. */

/* Store the taps of n positions of one image. */
static void NAMED(grid_taps)(const Grid *g, const REAL *grid, int64_t n, NAMED(Taps) *t)
{
    NAMED(Axis) axes[3] = { { 1, { 0 }, { 1 }, { 0 } }, { 1, { 0 }, { 1 }, { 0 } }, { 1, { 0 }, { 1 }, { 0 } } };
    for (int64_t p = 0; p < n; p++) {
        for (int64_t k = 0; k < g->axes; k++) {
            int64_t size = g->sizes[2 - k];
            REAL at = grid[p * g->axes + k] + 1, low = g->align ? 0 : (REAL)-0.5, high = (REAL)size - 1 - low;
            REAL x = g->align ? at / 2 * (REAL)(size - 1) : (at * (REAL)size - 1) / 2, scale = (REAL)(g->align ? size - 1 : size) / 2;
            NAMED(axis_taps)(x, scale, size, g->mode, g->padding, low, high, &axes[2 - k]);
        }
        NAMED(store_taps)(t, g->block, p, axes, g->sizes[1], g->sizes[2], 1);
    }
}

/* y of one block of positions of one image. */
static void NAMED(grid_sample_item)(void *context, int64_t item, int64_t worker)
{
    const Grid *g = context; int64_t blocks = ceil_div(g->positions, g->block), image = item / blocks, start = item % blocks * g->block;
    int64_t n = min_i64(g->block, g->positions - start); (void)worker;
    const REAL *x = (const REAL *)g->args->inputs[0].data + image * g->channels * g->plane;
    REAL *y = (REAL *)g->args->outputs[0].data + image * g->channels * g->positions + start;
    NAMED(Taps) t;
    NAMED(grid_taps)(g, (const REAL *)g->args->inputs[1].data + (image * g->positions + start) * g->axes, n, &t);
    for (int64_t c = 0; c < g->channels; c++) NAMED(gather_taps)(&t, g->taps, g->block, n, x + c * g->plane, y + c * g->positions);
}

/* The same for one chunk of channels of one image, side by side, so that a tap is a vector: gathering one channel after another took 0.5 ns per tap. */
static void NAMED(grid_sample_chunk)(void *context, int64_t item, int64_t worker)
{
    const Grid *g = context; int64_t chunks = ceil_div(g->channels, g->chunk), image = item / chunks, first = item % chunks * g->chunk;
    int64_t channels = min_i64(g->chunk, g->channels - first);
    const REAL *grid = (const REAL *)g->args->inputs[1].data + image * g->positions * g->axes;
    const REAL *x = (const REAL *)g->args->inputs[0].data + (image * g->channels + first) * g->plane;
    REAL *y = (REAL *)g->args->outputs[0].data + (image * g->channels + first) * g->positions;
    REAL *plane = panel_buffer(g->args->engine, worker, 0, 1), *rows = panel_buffer(g->args->engine, worker, 1, 1);
    NAMED(Taps) t;
    if (channels < g->chunk) memset(plane, 0, (size_t)(g->plane * g->chunk) * sizeof(REAL));
    g->args->engine->transpose(plane, x, sizeof(REAL), g->plane, channels, g->chunk, g->plane);
    for (int64_t start = 0; start < g->positions; start += g->block) {
        int64_t n = min_i64(g->block, g->positions - start);
        NAMED(grid_taps)(g, grid + start * g->axes, n, &t);
        NAMED(gather_channels)(&t, g->taps, g->block, n, plane, g->chunk, rows);
        g->args->engine->transpose(y + start, rows, sizeof(REAL), channels, n, g->positions, g->chunk);
    }
}

static int NAMED(grid_sample)(const KernelArgs *args)
{
    Grid g = grid_from_args(args);
    if (g.fits && g.channels >= CHANNEL_LANES / 2 && g.taps > 1 && g.positions * g.taps >= g.plane) {
        args->engine->parallel_for(args->engine, NAMED(grid_sample_chunk), &g, g.images * ceil_div(g.channels, g.chunk));
        return STATUS_OK;
    }
    args->engine->parallel_for(args->engine, NAMED(grid_sample_item), &g, g.images * ceil_div(g.positions, g.block));
    return STATUS_OK;
}

/* dx of a chunk of channels of one image, side by side, so that a tap is one vector: scattering one channel after another
 * took 1.2 ns per tap. */
static void NAMED(grid_sample_dx_panel)(const Grid *g, int64_t worker, const REAL *grid, const REAL *dy, REAL *dx, int64_t channels, NAMED(Taps) *t)
{
    REAL *plane = panel_buffer(g->args->engine, worker, 0, 1), *rows = panel_buffer(g->args->engine, worker, 1, 1);
    memset(plane, 0, (size_t)(g->plane * g->chunk) * sizeof(REAL));
    if (channels < g->chunk) memset(rows, 0, (size_t)(g->block * g->chunk) * sizeof(REAL));
    for (int64_t start = 0; start < g->positions; start += g->block) {
        int64_t n = min_i64(g->block, g->positions - start);
        NAMED(grid_taps)(g, grid + start * g->axes, n, t);
        g->args->engine->transpose(rows, dy + start, sizeof(REAL), n, channels, g->chunk, g->positions);
        NAMED(scatter_channels)(t, g->taps, g->block, n, rows, g->chunk, plane);
    }
    g->args->engine->transpose(dx, plane, sizeof(REAL), channels, g->plane, g->plane, g->chunk);
}

/* dx of one chunk of channels of one image, summed over all positions in order. */
static void NAMED(grid_sample_dx_item)(void *context, int64_t item, int64_t worker)
{
    const Grid *g = context; int64_t chunks = ceil_div(g->channels, g->chunk), image = item / chunks, first = item % chunks * g->chunk;
    int64_t last = min_i64(first + g->chunk, g->channels);
    const REAL *dy = (const REAL *)g->args->inputs[0].data + image * g->channels * g->positions;
    const REAL *grid = (const REAL *)g->args->inputs[2].data + image * g->positions * g->axes;
    REAL *dx = (REAL *)g->args->outputs[0].data + image * g->channels * g->plane;
    NAMED(Taps) t;
    if (g->fits) {
        NAMED(grid_sample_dx_panel)(g, worker, grid, dy + first * g->positions, dx + first * g->plane, last - first, &t);
        return;
    }
    memset(dx + first * g->plane, 0, (last - first) * g->plane * sizeof(REAL));
    for (int64_t start = 0; start < g->positions; start += g->block) {
        int64_t n = min_i64(g->block, g->positions - start);
        NAMED(grid_taps)(g, grid + start * g->axes, n, &t);
        for (int64_t c = first; c < last; c++) NAMED(scatter_taps)(&t, g->taps, g->block, n, dy + c * g->positions + start, dx + c * g->plane);
    }
}

/* dgrid of one block of positions of one image, summed over all channels in order. */
static void NAMED(grid_sample_dgrid_item)(void *context, int64_t item, int64_t worker)
{
    const Grid *g = context; int64_t blocks = ceil_div(g->positions, g->block), image = item / blocks, start = item % blocks * g->block;
    int64_t n = min_i64(g->block, g->positions - start), at = (image * g->positions + start) * g->axes; (void)worker;
    const REAL *dy = (const REAL *)g->args->inputs[0].data + image * g->channels * g->positions + start;
    const REAL *x = (const REAL *)g->args->inputs[1].data + image * g->channels * g->plane;
    REAL *dgrid = (REAL *)g->args->outputs[1].data + at, sums[2 * TAP_TABLE_SIZE];
    NAMED(Taps) t;
    NAMED(grid_taps)(g, (const REAL *)g->args->inputs[2].data + at, n, &t);
    if (g->axes == 2) {
        memset(sums, 0, sizeof(sums));
        for (int64_t c = 0; c < g->channels; c++)
            NAMED(reduce_taps_twice)(&t, t.slope[2], t.slope[1], g->taps, g->block, n, x + c * g->plane, dy + c * g->positions, sums);
        for (int64_t p = 0; p < n; p++) { dgrid[2 * p] = sums[p]; dgrid[2 * p + 1] = sums[TAP_TABLE_SIZE + p]; }
        return;
    }
    for (int64_t k = 0; k < g->axes; k++) {
        memset(sums, 0, n * sizeof(REAL));
        for (int64_t c = 0; c < g->channels; c++)
            NAMED(reduce_taps)(&t, t.slope[2 - k], g->taps, g->block, n, x + c * g->plane, dy + c * g->positions, sums);
        for (int64_t p = 0; p < n; p++) dgrid[p * g->axes + k] = sums[p];
    }
}

/* (dy, x, grid) -> (dx, dgrid), both optional. */
static int NAMED(grid_sample_grad)(const KernelArgs *args)
{
    Grid g = grid_from_args(args);
    if (args->outputs[0].data) args->engine->parallel_for(args->engine, NAMED(grid_sample_dx_item), &g, g.images * ceil_div(g.channels, g.chunk));
    if (args->n_outputs < 2 || !args->outputs[1].data) return STATUS_OK;
    if (g.mode == NEAREST) zero_block(args->engine, args->outputs[1].data, args->outputs[1].count * (int64_t)sizeof(REAL));
    else args->engine->parallel_for(args->engine, NAMED(grid_sample_dgrid_item), &g, g.images * ceil_div(g.positions, g.block));
    return STATUS_OK;
}
