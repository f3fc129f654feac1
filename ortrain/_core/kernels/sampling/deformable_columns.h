/* The im2col matrix of a deformable convolution, for one element type; included by sampling.h once per type, therefore without an include guard.
 *
 * x [images, channels, plane], offset [images, groups, kernel taps, 2, positions], mask [images, groups, kernel taps, positions] or absent;
 * columns [images, channels, kernel taps, positions]: x at each tap of each window, moved by the offset, times the mask; 0 outside. */

/* Store the taps of n windows from `start` on, at tap `tap` of the kernel for one image and group. */
static void NAMED(deformable_taps)(const DeformableColumns *s, const REAL *offset, const REAL *mask, int64_t tap, int64_t start, int64_t n, NAMED(Taps) *t)
{
    NAMED(Axis) axes[3] = { { 1, { 0 }, { 1 }, { 0 } } };
    int64_t row = tap / s->kernel[1] * s->dilations[0] - s->pads[0], column = tap % s->kernel[1] * s->dilations[1] - s->pads[1];
    for (int64_t p = 0; p < n; p++) {
        int64_t q = start + p, i = q / s->output[1], j = q % s->output[1];
        REAL y = (REAL)(i * s->strides[0] + row) + offset[q], x = (REAL)(j * s->strides[1] + column) + offset[s->positions + q];
        NAMED(axis_taps)(y, 1, s->height, LINEAR, ZEROS, 0, (REAL)(s->height - 1), &axes[1]);
        NAMED(axis_taps)(x, 1, s->width, LINEAR, ZEROS, 0, (REAL)(s->width - 1), &axes[2]);
        NAMED(store_taps)(t, s->block, p, axes, s->height, s->width, mask ? mask[q] : 1);
    }
}

/* columns of one block of windows at one kernel tap for one image and group. */
static void NAMED(deformable_columns_item)(void *context, int64_t item, int64_t worker)
{
    const DeformableColumns *s = context; int64_t blocks = ceil_div(s->positions, s->block), kernel = s->taps, start = item % blocks * s->block;
    int64_t set = item / blocks, tap = set % kernel, group = set / kernel, n = min_i64(s->block, s->positions - start); (void)worker;
    const Tensor *in = s->args->inputs;
    const REAL *mask = s->args->n_inputs > 2 && in[2].data ? (const REAL *)in[2].data + set * s->positions : NULL;
    const REAL *x = (const REAL *)in[0].data + group * s->group_channels * s->plane;
    REAL *y = (REAL *)s->args->outputs[0].data + (group * s->group_channels * kernel + tap) * s->positions + start;
    NAMED(Taps) t;
    NAMED(deformable_taps)(s, (const REAL *)in[1].data + set * 2 * s->positions, mask, tap, start, n, &t);
    for (int64_t c = 0; c < s->group_channels; c++) NAMED(gather_taps)(&t, 4, s->block, n, x + c * s->plane, y + c * kernel * s->positions);
}

static int NAMED(deformable_columns)(const KernelArgs *args)
{
    DeformableColumns s = columns_from_args(args);
    args->engine->parallel_for(args->engine, NAMED(deformable_columns_item), &s,
                               s.images * s.groups * s.taps * ceil_div(s.positions, s.block));
    return STATUS_OK;
}

/* dx of one block of channels of one image and group, summed over all kernel taps and windows in order. */
static void NAMED(deformable_columns_dx_item)(void *context, int64_t item, int64_t worker)
{
    const DeformableColumns *s = context; int64_t channel_blocks = ceil_div(s->group_channels, CHANNEL_LANES), kernel = s->taps,
        group = item / channel_blocks;
    int64_t first = item % channel_blocks * CHANNEL_LANES, last = min_i64(first + CHANNEL_LANES, s->group_channels); (void)worker;
    const Tensor *in = s->args->inputs;
    const REAL *dy = (const REAL *)in[0].data + group * s->group_channels * kernel * s->positions;
    REAL *dx = (REAL *)s->args->outputs[0].data + group * s->group_channels * s->plane;
    NAMED(Taps) t;
    memset(dx + first * s->plane, 0, (last - first) * s->plane * sizeof(REAL));
    for (int64_t tap = 0; tap < kernel; tap++) {
        int64_t set = group * kernel + tap;
        const REAL *mask = s->args->n_inputs > 3 && in[3].data ? (const REAL *)in[3].data + set * s->positions : NULL;
        for (int64_t start = 0; start < s->positions; start += s->block) {
            int64_t n = min_i64(s->block, s->positions - start);
            NAMED(deformable_taps)(s, (const REAL *)in[2].data + set * 2 * s->positions, mask, tap, start, n, &t);
            for (int64_t c = first; c < last; c++)
                NAMED(scatter_taps)(&t, 4, s->block, n, dy + (c * kernel + tap) * s->positions + start, dx + c * s->plane);
        }
    }
}

/* doffset and dmask of one block of windows at one kernel tap for one image and group, summed over all channels in order. */
static void NAMED(deformable_columns_doffset_item)(void *context, int64_t item, int64_t worker)
{
    const DeformableColumns *s = context; int64_t blocks = ceil_div(s->positions, s->block), kernel = s->taps, start = item % blocks * s->block;
    int64_t set = item / blocks, tap = set % kernel, group = set / kernel, n = min_i64(s->block, s->positions - start); (void)worker;
    const Tensor *in = s->args->inputs, *out = s->args->outputs;
    const REAL *mask = s->args->n_inputs > 3 && in[3].data ? (const REAL *)in[3].data + set * s->positions + start : NULL;
    const REAL *dy = (const REAL *)in[0].data + (group * s->group_channels * kernel + tap) * s->positions + start;
    const REAL *x = (const REAL *)in[1].data + group * s->group_channels * s->plane;
    REAL *gradients[3] = { NULL, NULL, s->args->n_outputs > 2 && out[2].data ? (REAL *)out[2].data + set * s->positions + start : NULL },
        sums[TAP_TABLE_SIZE / 4];
    NAMED(Taps) t;
    for (int64_t axis = 0; axis < 2 && s->args->n_outputs > 1 && out[1].data; axis++)
        gradients[axis] = (REAL *)out[1].data + (set * 2 + axis) * s->positions + start;
    NAMED(deformable_taps)(s, (const REAL *)in[2].data + set * 2 * s->positions, NULL, tap, start, n, &t);
    for (int64_t output = 0; output < 3; output++) {
        if (!gradients[output]) continue;
        memset(sums, 0, n * sizeof(REAL));
        for (int64_t c = 0; c < s->group_channels; c++)
            NAMED(reduce_taps)(&t, output < 2 ? t.slope[1 + output] : t.weight, 4, s->block, n, x + c * s->plane, dy + c * kernel * s->positions, sums);
        for (int64_t p = 0; p < n; p++) gradients[output][p] = output < 2 && mask ? mask[p] * sums[p] : sums[p];
    }
}

/* (dcolumns, x, offset, mask or absent) -> (dx, doffset, dmask), all optional. */
static int NAMED(deformable_columns_grad)(const KernelArgs *args)
{
    DeformableColumns s = columns_from_args(args); int64_t groups = s.images * s.groups;
    if (args->outputs[0].data)
        args->engine->parallel_for(args->engine, NAMED(deformable_columns_dx_item), &s, groups * ceil_div(s.group_channels, CHANNEL_LANES));
    if ((args->n_outputs > 1 && args->outputs[1].data) || (args->n_outputs > 2 && args->outputs[2].data))
        args->engine->parallel_for(args->engine, NAMED(deformable_columns_doffset_item), &s,
                                   groups * s.taps * ceil_div(s.positions, s.block));
    return STATUS_OK;
}
