/* Images read between their elements: samples on a grid, and the columns of a deformable convolution; forward and backward.
 *
 * A block of positions is turned into a table of taps (where to read, with which weight, and how the weight changes with the position), which all channels
 * share. Sums into an image have one owner per channel, who goes through the positions in order: the split follows from the shapes alone. */
#ifndef ORTRAIN_SAMPLING_H
#define ORTRAIN_SAMPLING_H
#include <math.h>
#include <string.h>
#include "kernel.h"

enum { NEAREST = 0, LINEAR = 1, CUBIC = 2 };
enum { ZEROS = 0, BORDER = 1, REFLECTION = 2 };
enum { TABLE_OF_TAPS = 1024, TAPS_PER_AXIS = 4, CHANNELS_OF_OWNER = 8 };   /* a table of 20 or 36 KiB stays close to the core */

static inline int64_t pieces(int64_t total, int64_t piece) { return (total + piece - 1) / piece; }
static inline int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

/* ints: images, channels, depth, height, width, positions per image, axes, mode, padding, align_corners */
typedef struct Grid {
    const KernelArgs *args;
    int64_t images, channels, sizes[3], positions, axes, mode, padding, align, plane, taps, block;
} Grid;

static Grid grid_of(const KernelArgs *args)
{
    const int64_t *p = args->ints;
    Grid g = { args, p[0], p[1], { p[2], p[3], p[4] }, p[5], p[6], p[7], p[8], p[9], p[2] * p[3] * p[4], 1, 0 };
    for (int64_t axis = 0; axis < g.axes; axis++) g.taps *= g.mode == NEAREST ? 1 : g.mode == LINEAR ? 2 : 4;
    g.block = TABLE_OF_TAPS / g.taps;
    return g;
}

/* ints: images, channels, height, width, groups of offsets, kernel height and width, output height and width, strides, dilations, pads before (two each) */
typedef struct Columns {
    const KernelArgs *args;
    int64_t images, channels, height, width, groups, kernel[2], output[2], strides[2], dilations[2], pads[2], plane, positions, per_group, block, taps;
} Columns;

static Columns columns_of(const KernelArgs *args)
{
    const int64_t *p = args->ints;
    return (Columns){ args, p[0], p[1], p[2], p[3], p[4], { p[5], p[6] }, { p[7], p[8] }, { p[9], p[10] }, { p[11], p[12] }, { p[13], p[14] },
                      p[2] * p[3], p[7] * p[8], p[1] / p[4], TABLE_OF_TAPS / 4, p[5] * p[6] };
}

#define TEMPLATE "sampling/taps.h"
#include "common/float_types.h"
#define TEMPLATE "sampling/grid_sample.h"
#include "common/float_types.h"
#define TEMPLATE "sampling/deformable_columns.h"
#include "common/float_types.h"

BY_TYPE(grid_sample) BY_TYPE(grid_sample_grad) BY_TYPE(deformable_columns) BY_TYPE(deformable_columns_grad)
#endif
