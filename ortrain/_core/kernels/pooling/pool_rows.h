/* The inner loops of pooling along one row, in C because GCC only vectorizes them with `restrict` and constant strides. */
#ifndef ORTRAIN_POOL_ROWS_H
#define ORTRAIN_POOL_ROWS_H
#include <math.h>
#include <stdint.h>
#include "kernel.h"
#include "common/compiler.h"
#include "common/integers.h"
#include "common/panels.h"
#include "common/tuning.h"

/* best [n] = max(best, x[0], x[stride], ...). index [n]: position + the offset of the first maximum, -1 before there is one. */
#define UPDATE_MAX(NAME, REAL)                                                                                                                   \
    ALWAYS_INLINE void NAME##_strided(const REAL *restrict x, int32_t stride, int32_t position, REAL *restrict best,                             \
                                    int32_t *restrict index, int32_t n) {                                                                        \
        for (int32_t i = 0; i < n; i++) {                                                                                                        \
            REAL value = x[(int64_t)i * stride], old = best[i];                                                                                  \
            int32_t at = position + i * stride, better = (value > old) | (value != value), mask = -(better | (index[i] < 0));  /* NaN is kept */ \
            best[i] = better ? value : old;                                                                                                      \
            index[i] = (at & mask) | (index[i] & ~mask);                                                                                         \
        }                                                                                                                                        \
    }                                                                                                                                            \
    static void NAME(const REAL *x, int64_t stride, int32_t position, REAL *best, int32_t *index, int64_t n) {                                   \
        if (stride == 1)                                                                                                                         \
            NAME##_strided(x, 1, position, best, index, (int32_t)n);                                                                             \
        else if (stride == 2)                                                                                                                    \
            NAME##_strided(x, 2, position, best, index, (int32_t)n);                                                                             \
        else                                                                                                                                     \
            NAME##_strided(x, (int32_t)stride, position, best, index, (int32_t)n);                                                               \
    }

/* sums [n] += x[0], x[stride], ... */
#define ADD_ROW(NAME, REAL)                                                                                     \
    ALWAYS_INLINE void NAME##_strided(const REAL *restrict x, int64_t stride, REAL *restrict sums, int64_t n) { \
        for (int64_t i = 0; i < n; i++) sums[i] += x[i * stride];                                               \
    }                                                                                                           \
    static void NAME(const REAL *x, int64_t stride, REAL *sums, int64_t n) {                                    \
        if (stride == 1)                                                                                        \
            NAME##_strided(x, 1, sums, n);                                                                      \
        else if (stride == 2)                                                                                   \
            NAME##_strided(x, 2, sums, n);                                                                      \
        else                                                                                                    \
            NAME##_strided(x, stride, sums, n);                                                                 \
    }

UPDATE_MAX(update_max_float32, float)
UPDATE_MAX(update_max_float64, double)
ADD_ROW(add_row_float32, float)
ADD_ROW(add_row_float64, double)

/* ---- panels of planes */

enum { PANEL_PLANES = 16, PANEL_TENSORS = 3 };

/* The ints of the pooling kernels: planes, then input sizes, output sizes, kernel, strides, pads at the beginning and dilations along depth, height and width;
 * whether averages count pads, and the pads at the end that they count. */
typedef struct PoolGeometry {
    int64_t planes, id, ih, iw, od, oh, ow, kd, kh, kw, sd, sh, sw, pd, ph, pw, dd, dh, dw, include_pad, ed, eh, ew;
} PoolGeometry;
typedef struct PoolPanels { const KernelArgs *args; const PoolGeometry *v; int64_t input, output; } PoolPanels;

/* The taps [low, high) of a window along one axis that are inside of the data; tap i is at start + i * dilation. */
typedef struct Taps { int64_t start, low, high; } Taps;

static inline int64_t taps_before(int64_t start, int64_t limit, int64_t kernel, int64_t dilation)
{
    if (limit <= start) return 0;
    return min_i64(kernel, dilation == 1 ? limit - start : ceil_div(limit - start, dilation));
}
static inline Taps taps_of(int64_t output, int64_t stride, int64_t pad, int64_t size, int64_t kernel, int64_t dilation)
{
    int64_t start = output * stride - pad;
    return (Taps){ start, taps_before(start, 0, kernel, dilation), taps_before(start, size, kernel, dilation) };
}
/* Return the number of taps that the divisor of an average counts: those inside, and with `padded` those in the pads. */
static inline int64_t counted_taps(Taps t, int64_t size, int64_t end, int64_t kernel, int64_t dilation, int64_t padded)
{ return padded ? taps_before(t.start, size + end, kernel, dilation) : t.high - t.low; }

#define REAL float
#define INTEGER int32_t
#define NAMED(name) name##_float32
#include "pooling/pool_panels.h"
#undef REAL
#undef INTEGER
#undef NAMED
#define REAL double
#define INTEGER int64_t
#define NAMED(name) name##_float64
#include "pooling/pool_panels.h"
#undef REAL
#undef INTEGER
#undef NAMED

/* Run an item for each panel of planes and return 1; return 0, without doing anything, where a plane does not fit into the workspace PANEL_PLANES times. */
static int run_pool_panels(const KernelArgs *args, WorkItem float32_item, WorkItem float64_item)
{
    const PoolGeometry *v = (const PoolGeometry *)args->ints; int is_float32 = args->inputs[0].dtype == DTYPE_FLOAT32;
    PoolPanels s = { args, v, v->id * v->ih * v->iw, v->od * v->oh * v->ow };
    if (max_i64(s.input, s.output) * PANEL_PLANES * (is_float32 ? 4 : 8) > PANEL_BYTES_LIMIT / PANEL_TENSORS) return 0;
    args->engine->parallel_for(args->engine, is_float32 ? float32_item : float64_item, &s, ceil_div(v->planes, PANEL_PLANES));
    return 1;
}
static int max_pool_panels(const KernelArgs *args) { return run_pool_panels(args, max_panel_item_float32, max_panel_item_float64); }
static int average_pool_panels(const KernelArgs *args) { return run_pool_panels(args, average_panel_item_float32, average_panel_item_float64); }
static int average_pool_grad_panels(const KernelArgs *args)
{ return run_pool_panels(args, average_gradient_panel_item_float32, average_gradient_panel_item_float64); }

#endif
