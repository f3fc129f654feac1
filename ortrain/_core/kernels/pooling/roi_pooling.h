/* Regions of interest, each made an image of one size: aligned samples (RoiAlign) and largest elements (MaxRoiPool); forward and backward.
 *
 * x [images, channels, height, width], y [regions, channels, output height, output width]. Channels are cut into owners; forward an item is one region and
 * owner, backward one image and owner, which goes through all regions in order. */
#ifndef ORTRAIN_REGIONS_H
#define ORTRAIN_REGIONS_H
#include <math.h>
#include <string.h>
#include "kernel.h"

enum { CHANNELS_OF_OWNER = 32, SAMPLES_OF_TABLE = 64 };
enum { AVERAGE = 0, LARGEST = 1 };

/* ints: images, channels, height, width, regions, output height, output width, sampling_ratio, half_pixel, mode; floats: spatial scale */
typedef struct Regions {
    const KernelArgs *args;
    int64_t images, channels, height, width, count, output[2], ratio, half_pixel, mode, plane, bins, owners;
    double scale;
    const int64_t *image;                 /* of each region, where it is an input of its own */
} Regions;

static Regions regions_of(const KernelArgs *args, int aligned, int indices)
{
    const int64_t *p = args->ints;
    return (Regions){ args, p[0], p[1], p[2], p[3], p[4], { p[5], p[6] }, aligned ? p[7] : 0, aligned ? p[8] : 0, aligned ? p[9] : LARGEST, p[2] * p[3], p[5] * p[6],
                      (p[1] + CHANNELS_OF_OWNER - 1) / CHANNELS_OF_OWNER, args->floats[0], aligned ? args->inputs[indices].data : NULL };
}

static inline int64_t channels_of(const Regions *r, int64_t owner)
{
    int64_t left = r->channels - owner * CHANNELS_OF_OWNER;
    return left < CHANNELS_OF_OWNER ? left : CHANNELS_OF_OWNER;
}

#define TEMPLATE "pooling/roi_align.h"
#include "common/float_types.h"
#define TEMPLATE "pooling/max_roi_pool.h"
#include "common/float_types.h"

BY_TYPE(roi_align) BY_TYPE(roi_align_grad) BY_TYPE(max_roi_pool) BY_TYPE(max_roi_pool_grad)
#endif
