/* Samples on a grid, for one element type (REAL); included by sampling.h once per type, hence without a guard.
 *
 * x [images, channels, plane], grid [images, positions, axes] in [-1, 1] with the last axis first, y [images, channels, positions]. */

/* the taps of n positions of one image */
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
        NAMED(set_taps)(t, g->block, p, axes, g->sizes[1], g->sizes[2], 1);
    }
}

/* an item is one block of positions of one image */
static void NAMED(grid_sample_item)(void *context, int64_t item, int64_t worker)
{
    const Grid *g = context; int64_t blocks = pieces(g->positions, g->block), image = item / blocks, start = item % blocks * g->block;
    int64_t n = least(g->block, g->positions - start); (void)worker;
    const REAL *x = (const REAL *)g->args->inputs[0].data + image * g->channels * g->plane;
    REAL *y = (REAL *)g->args->outputs[0].data + image * g->channels * g->positions + start;
    NAMED(Taps) t;
    NAMED(grid_taps)(g, (const REAL *)g->args->inputs[1].data + (image * g->positions + start) * g->axes, n, &t);
    for (int64_t c = 0; c < g->channels; c++) NAMED(take)(&t, g->taps, g->block, n, x + c * g->plane, y + c * g->positions);
}

static int NAMED(grid_sample)(const KernelArgs *args)
{
    Grid g = grid_of(args);
    args->engine->parallel_for(args->engine, NAMED(grid_sample_item), &g, g.images * pieces(g.positions, g.block));
    return STATUS_OK;
}

/* dx of one owner's channels of one image, all positions in order */
static void NAMED(grid_sample_dx_item)(void *context, int64_t item, int64_t worker)
{
    const Grid *g = context; int64_t owners = pieces(g->channels, CHANNELS_OF_OWNER), image = item / owners, first = item % owners * CHANNELS_OF_OWNER;
    int64_t last = least(first + CHANNELS_OF_OWNER, g->channels); (void)worker;
    const REAL *dy = (const REAL *)g->args->inputs[0].data + image * g->channels * g->positions;
    const REAL *grid = (const REAL *)g->args->inputs[2].data + image * g->positions * g->axes;
    REAL *dx = (REAL *)g->args->outputs[0].data + image * g->channels * g->plane;
    NAMED(Taps) t;
    memset(dx + first * g->plane, 0, (last - first) * g->plane * sizeof(REAL));
    for (int64_t start = 0; start < g->positions; start += g->block) {
        int64_t n = least(g->block, g->positions - start);
        NAMED(grid_taps)(g, grid + start * g->axes, n, &t);
        for (int64_t c = first; c < last; c++) NAMED(give)(&t, g->taps, g->block, n, dy + c * g->positions + start, dx + c * g->plane);
    }
}

/* dgrid of one block of positions of one image, all channels in order */
static void NAMED(grid_sample_dgrid_item)(void *context, int64_t item, int64_t worker)
{
    const Grid *g = context; int64_t blocks = pieces(g->positions, g->block), image = item / blocks, start = item % blocks * g->block;
    int64_t n = least(g->block, g->positions - start), at = (image * g->positions + start) * g->axes; (void)worker;
    const REAL *dy = (const REAL *)g->args->inputs[0].data + image * g->channels * g->positions + start;
    const REAL *x = (const REAL *)g->args->inputs[1].data + image * g->channels * g->plane;
    REAL *dgrid = (REAL *)g->args->outputs[1].data + at, sums[TABLE_OF_TAPS];
    NAMED(Taps) t;
    NAMED(grid_taps)(g, (const REAL *)g->args->inputs[2].data + at, n, &t);
    for (int64_t k = 0; k < g->axes; k++) {
        memset(sums, 0, n * sizeof(REAL));
        for (int64_t c = 0; c < g->channels; c++)
            NAMED(lean)(&t, t.slope[2 - k], g->taps, g->block, n, x + c * g->plane, dy + c * g->positions, sums);
        for (int64_t p = 0; p < n; p++) dgrid[p * g->axes + k] = sums[p];
    }
}

/* (dx, dgrid) of (dy, x, grid), either absent if not wanted */
static int NAMED(grid_sample_grad)(const KernelArgs *args)
{
    Grid g = grid_of(args);
    if (args->outputs[0].data) args->engine->parallel_for(args->engine, NAMED(grid_sample_dx_item), &g, g.images * pieces(g.channels, CHANNELS_OF_OWNER));
    if (args->n_outputs > 1 && args->outputs[1].data)
        args->engine->parallel_for(args->engine, NAMED(grid_sample_dgrid_item), &g, g.images * pieces(g.positions, g.block));
    return STATUS_OK;
}
