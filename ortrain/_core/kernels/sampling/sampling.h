/* Sampling at fractional positions: GridSample and the im2col matrix of a deformable convolution, forward and gradient.
 *
 * For a block of positions a table of taps is computed (the elements to read, their weights, and the derivatives of the weights by the position), which all
 * channels share. A work item sums the gradients of a block of channels of an image, in the order of the positions, so that they do not depend on
 * the number of threads. */
#ifndef ORTRAIN_SAMPLING_H
#define ORTRAIN_SAMPLING_H
#include <math.h>
#include <string.h>
#include "kernel.h"
#include "common/compiler.h"
#include "common/memory.h"
#include "common/panels.h"

enum { NEAREST = 0, LINEAR = 1, CUBIC = 2 };
enum { ZEROS = 0, BORDER = 1, REFLECTION = 2 };
enum { TAP_TABLE_SIZE = 1024, MAX_TAPS_PER_AXIS = 4 };   /* a table of 20 or 36 KiB, which fits into the L1 or L2 cache */
enum { CHANNEL_LANES = 16, MAX_CHUNK = 64, MIN_CHUNKS = 8 };

/* ints: images, channels, depth, height, width, positions per image, axes, mode, padding, align_corners */
typedef struct Grid {
    const KernelArgs *args;
    int64_t images, channels, sizes[3], positions, axes, mode, padding, align, plane, taps, block;
    int64_t chunk;                 /* channels that a work item reads or writes side by side, a multiple of CHANNEL_LANES */
    int fits;                      /* whether a plane of a chunk fits into the workspace */
} Grid;

static Grid grid_from_args(const KernelArgs *args)
{
    const int64_t *p = args->ints;
    Grid g = { args, p[0], p[1], { p[2], p[3], p[4] }, p[5], p[6], p[7], p[8], p[9], p[2] * p[3] * p[4], 1, 0 };
    for (int64_t axis = 0; axis < g.axes; axis++) g.taps *= g.mode == NEAREST ? 1 : g.mode == LINEAR ? 2 : 4;
    g.block = TAP_TABLE_SIZE / g.taps;
    int64_t limit = PANEL_BYTES_LIMIT / max_i64(1, max_i64(g.plane, g.block) * element_size(args->inputs[0].dtype)) / CHANNEL_LANES * CHANNEL_LANES;
    g.fits = limit > 0;
    g.chunk = max_i64(CHANNEL_LANES, min_i64(min_i64(limit, MAX_CHUNK), round_up(g.channels, CHANNEL_LANES)));
    while (g.chunk > CHANNEL_LANES && g.images * ceil_div(g.channels, g.chunk) < MIN_CHUNKS) g.chunk -= CHANNEL_LANES;    /* items for several threads */
    return g;
}

/* ints: images, channels, height, width, offset groups, then two each: kernel size, output size, strides, dilations, pads at the beginning */
typedef struct DeformableColumns {
    const KernelArgs *args;
    int64_t images, channels, height, width, groups, kernel[2], output[2], strides[2], dilations[2], pads[2], plane, positions, group_channels, block, taps;
} DeformableColumns;

static DeformableColumns columns_from_args(const KernelArgs *args)
{
    const int64_t *p = args->ints;
    return (DeformableColumns){ args, p[0], p[1], p[2], p[3], p[4], { p[5], p[6] }, { p[7], p[8] }, { p[9], p[10] }, { p[11], p[12] }, { p[13], p[14] },
                                p[2] * p[3], p[7] * p[8], p[1] / p[4], TAP_TABLE_SIZE / 4, p[5] * p[6] };
}

#define TEMPLATE "sampling/taps.h"
#include "common/float_types.h"
#define TEMPLATE "sampling/grid_sample.h"
#include "common/float_types.h"
#define TEMPLATE "sampling/deformable_columns.h"
#include "common/float_types.h"

BY_TYPE(grid_sample) BY_TYPE(grid_sample_grad) BY_TYPE(deformable_columns) BY_TYPE(deformable_columns_grad)
#endif
