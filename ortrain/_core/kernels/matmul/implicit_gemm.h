/* Argument of Engine's implicit_gemm: a GEMM one of whose operands is the im2col matrix of an image, which is never built. Computed by matmul/amx_gemm.h,
 * or in the engine of bfloat16 products by matmul/tiled_windows.h, that, or matmul/implicit_gemm_bfloat16.h. */
#ifndef ORTRAIN_IMPLICIT_GEMM_H
#define ORTRAIN_IMPLICIT_GEMM_H
#include "kernel.h"

enum { MAX_WINDOW_TAPS = 64 };

/* The im2col matrix [images * out_rows * out_columns, taps * channels]: a row per output point, with the `channels` values of each tap's pixel. Tap t of point
 * (y, x) is the pixel (stride_y * y + offsets[t][0], stride_x * x + offsets[t][1]), or zeros where that is outside the image. In amx_gemm.h, channels is a
 * multiple of 32. */
typedef struct Windows {
    const float *pixels;                            /* [images, rows, columns, channels] */
    int64_t images, rows, columns, channels, out_rows, out_columns, stride_y, stride_x, taps;
    int64_t offsets[MAX_WINDOW_TAPS][2];
} Windows;

/* An output point of windows. */
typedef struct Point { int64_t image, y, x; } Point;

static inline Point point_at(const Windows *v, int64_t number)
{ return (Point){ number / (v->out_rows * v->out_columns), number / v->out_columns % v->out_rows, number % v->out_columns }; }

static inline void next_point(const Windows *v, Point *at)
{
    if (++at->x < v->out_columns) return;
    at->x = 0;
    if (++at->y < v->out_rows) return;
    at->y = 0;
    at->image++;
}

/* filters is NULL: c [points, outputs] = windows b + bias. Element (t, j, k) of b [taps, channels, outputs] is at b + starts[t] + j * channel_step
 * + k * output_step, and one of the two steps is 1; it is also at weights + numbers[t] + j * weight_channel_step + k * weight_output_step. b holds nothing until
 * fill_b(engine, this) has been called. The row of c for point (image, y, x) is at c + image * image_step + y * row_step + x * column_step.
 *
 * filters [points, outputs] is not NULL: c [outputs, taps * channels] = filters^T windows, without bias; what concerns b and weights is unused. */
typedef struct ImplicitGemm {
    Windows windows;
    int64_t outputs;
    const float *b, *filters, *bias, *weights;
    int64_t starts[MAX_WINDOW_TAPS], channel_step, output_step, numbers[MAX_WINDOW_TAPS], weight_channel_step, weight_output_step;
    void (*fill_b)(const struct Engine *engine, const struct ImplicitGemm *product);
    void *filling;                                  /* for fill_b */
    float *c;
    int64_t image_step, row_step, column_step;
} ImplicitGemm;
#endif
