/* Layer normalization and RMS normalization of x [rows, size], whose rows are normalized one by one; RMS normalization does not subtract the mean.
 *
 *   layer_norm       (x, scale, bias or absent) -> (y, mean, 1 / standard deviation); ints: rows, size; floats: epsilon
 *   rms_norm         (x, scale) -> (y, 1 / root mean square); the same ints and floats
 *   layer_norm_grad  (dy, x, scale, mean, 1 / standard deviation) -> (dx, dscale, dbias); ints: rows, size, rows of a block; scratch: (dscale, dbias) per block
 *   rms_norm_grad    (dy, x, scale, 1 / root mean square) -> (dx, dscale); the same ints; scratch: dscale per block
 *
 * Sums are in lanes, and those over rows in blocks, so that results have the same bits for any number of threads. dx may overwrite dy. */
#ifndef ORTRAIN_LAYER_NORM_H
#define ORTRAIN_LAYER_NORM_H
#include <math.h>
#include <string.h>
#include "kernel.h"
#include "common/compiler.h"
#include "common/integers.h"
#include "common/row_vectors.h"
#include "common/vector_math.h"

/* Rows of one to MAX_ROW_VECTORS vectors are computed in registers: with AVX2, rows of 16 elements took 3 times as long in memory, those of 64 2.5 times. Shorter
 * rows are computed in transposed panels: those of 3 elements took 9 times as long. */
enum {
    ROW_LANES = 16, ROW_NORM_CHUNK = 8192, NORM_PANEL_ROWS = 256,
    GROUP_ROWS = 2      /* rows whose parts of dscale and dbias are added in registers: their vectors of dy, x and dx share a set of the L1 cache, of 8 lines */
};
#define NORM_SQRT(x) _Generic((x), float: sqrtf, double: sqrt)(x)

static inline int64_t norm_rows_per_item(int64_t size) { return ROW_NORM_CHUNK / max_i64(size, 1) + 1; }
static inline void *norm_output(const KernelArgs *args, int64_t i) { return args->n_outputs > i ? args->outputs[i].data : NULL; }

#define TEMPLATE "normalization/layer_norm_panels.h"
#include "common/float_types.h"
#define TEMPLATE "normalization/layer_norm_vectors.h"
#include "common/float_types.h"
#define TEMPLATE "normalization/layer_norm_by_type.h"
#include "common/float_types.h"

#define ROW_NORM(NAME, PARTS)                                                                                                                 \
static int NAME(const KernelArgs *args)                                                                                                       \
{                                                                                                                                             \
    int is_float32 = args->inputs[0].dtype == DTYPE_FLOAT32;                                                                                  \
    args->engine->parallel_for(args->engine, is_float32 ? NAME##_float : NAME##_double, (void *)args,                                         \
                               ceil_div(args->ints[0], norm_rows_per_item(args->ints[1])));                                                   \
    return STATUS_OK;                                                                                                                         \
}                                                                                                                                             \
static int NAME##_grad(const KernelArgs *args)                                                                                                \
{                                                                                                                                             \
    int is_float32 = args->inputs[0].dtype == DTYPE_FLOAT32; int64_t blocks = ceil_div(args->ints[0], args->ints[2]);                         \
    args->engine->parallel_for(args->engine, is_float32 ? NAME##_grad_float : NAME##_grad_double, (void *)args, blocks);                      \
    if (is_float32) add_norm_parts_float(args, blocks, PARTS); else add_norm_parts_double(args, blocks, PARTS);                               \
    return STATUS_OK;                                                                                                                         \
}
ROW_NORM(layer_norm, 2)
ROW_NORM(rms_norm, 1)
#undef ROW_NORM
#endif
