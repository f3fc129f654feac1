/* A product one side of which are windows of an image, read where they lie: what Engine's window_product computes. */
#ifndef ORTRAIN_WINDOW_PRODUCT_H
#define ORTRAIN_WINDOW_PRODUCT_H
#include "kernel.h"

enum { MAX_WINDOW_TAPS = 64 };

/* The windows that a grid of out_rows x out_columns points on each image sees: of point (y, x), tap t is the pixel (stride_y * y + offsets[t][0],
 * stride_x * x + offsets[t][1]), zeros where that is outside. As a matrix [images * out_rows * out_columns, taps * channels]; channels are a multiple of 32. */
typedef struct Windows {
    const float *pixels;                            /* [images, rows, columns, channels] */
    int64_t images, rows, columns, channels, out_rows, out_columns, stride_y, stride_x, taps;
    int64_t offsets[MAX_WINDOW_TAPS][2];
} Windows;

/* Without `filters`: c [points, outputs] = windows b. b [taps, channels, outputs], where b[t, j, k] lies at b + starts[t] + j * channel_step + k * output_step
 * (one of the steps is 1); the row of c that a point has lies at c + image * image_step + y * row_step + x * column_step.
 * With `filters`: c [outputs, taps * channels] = filters^T windows, filters [points, outputs]. */
typedef struct WindowProduct {
    Windows windows;
    int64_t outputs;
    const float *b, *filters, *bias;
    int64_t starts[MAX_WINDOW_TAPS], channel_step, output_step;
    float *c;
    int64_t image_step, row_step, column_step;
} WindowProduct;
#endif
