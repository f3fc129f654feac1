/* Pooling of regions of interest to a fixed size: RoiAlign and MaxRoiPool, forward and gradient.
 *
 * x [images, channels, height, width], y [regions, channels, output height, output width]. Channels are divided into blocks. Forward, a work item is one
 * region and channel block; in the gradient it is one image and channel block, to which all regions are added in order. */
#ifndef ORTRAIN_ROI_POOLING_H
#define ORTRAIN_ROI_POOLING_H
#include <math.h>
#include <string.h>
#include "kernel.h"

enum { CHANNELS_PER_BLOCK = 32, TABLE_SAMPLES = 64 };
enum { AVERAGE = 0, MAXIMUM = 1 };

/* ints: images, channels, height, width, regions, output height, output width, sampling_ratio, half_pixel, mode; floats: spatial scale. The last three ints
 * only for RoiAlign. */
typedef struct Regions {
    const KernelArgs *args;
    int64_t images, channels, height, width, count, output[2], ratio, half_pixel, mode, plane, bins, channel_blocks;
    double scale;
    const int64_t *image;                 /* [regions], for RoiAlign only */
} Regions;

static Regions regions_from_args(const KernelArgs *args, int aligned, int indices)
{
    const int64_t *p = args->ints;
    return (Regions){ args, p[0], p[1], p[2], p[3], p[4], { p[5], p[6] }, aligned ? p[7] : 0, aligned ? p[8] : 0, aligned ? p[9] : MAXIMUM, p[2] * p[3],
                      p[5] * p[6], (p[1] + CHANNELS_PER_BLOCK - 1) / CHANNELS_PER_BLOCK, args->floats[0], aligned ? args->inputs[indices].data : NULL };
}

static inline int64_t channels_in_block(const Regions *r, int64_t channel_block)
{
    int64_t left = r->channels - channel_block * CHANNELS_PER_BLOCK;
    return left < CHANNELS_PER_BLOCK ? left : CHANNELS_PER_BLOCK;
}

#define TEMPLATE "pooling/roi_align.h"
#include "common/float_types.h"
#define TEMPLATE "pooling/max_roi_pool.h"
#include "common/float_types.h"

BY_TYPE(roi_align) BY_TYPE(roi_align_grad) BY_TYPE(max_roi_pool) BY_TYPE(max_roi_pool_grad)
#endif
