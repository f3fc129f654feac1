/* Scatter with multiplication, maximum and minimum, and the gradient of the multiplication.
 *
 * data and y [rows, inner], updates [n, inner], row_index [n]: the rows that the indices name. The rows are divided into ranges by the shape. A work item is a
 * range, to which all updates are applied in order. */
#ifndef ORTRAIN_SCATTERING_H
#define ORTRAIN_SCATTERING_H
#include <string.h>
#include "kernel.h"
#include "indexing/elements.h"

enum { UPDATES_PER_RANGE = 32768, MAX_RANGES = 16 };

typedef struct Scatter {
    const KernelArgs *args;
    int64_t mode, rows, n, inner, ranges;
    int64_t *row_index;
} Scatter;

static inline int64_t index_at(const Tensor *t, int64_t i) { return t->dtype == DTYPE_INT32 ? ((const int32_t *)t->data)[i] : ((const int64_t *)t->data)[i]; }

static inline void choose_ranges(Scatter *s)
{
    s->ranges = s->n * s->inner / UPDATES_PER_RANGE;
    if (s->ranges > MAX_RANGES) s->ranges = MAX_RANGES;
    if (s->ranges > s->rows) s->ranges = s->rows;
    if (s->ranges < 1) s->ranges = 1;
}

/* ints: mode, rows, n, inner, k, dims [k], strides [k]; scratch: n int64. A row is named by k indices; n is set to -1 if one is out of range. */
static Scatter scatter_nd_from_args(const KernelArgs *args, const Tensor *indices)
{
    const int64_t *p = args->ints, k = p[4], *dims = p + 5, *strides = dims + k;
    Scatter s = { args, p[0], p[1], p[2], p[3], 1, args->scratch };
    for (int64_t i = 0; i < p[2]; i++) {
        s.row_index[i] = 0;
        for (int64_t j = 0; j < k; j++) {
            int64_t v = index_at(indices, i * k + j);
            if (v < -dims[j] || v >= dims[j]) { s.n = -1; return s; }
            s.row_index[i] += (v < 0 ? v + dims[j] : v) * strides[j];
        }
    }
    choose_ranges(&s);
    return s;
}

/* A work item is one range of rows. NaN is kept. */
#define SCATTER_REDUCE(R)                                                                                                        \
static void scatter_reduce_##R##_item(void *context, int64_t item, int64_t worker)                                               \
{                                                                                                                                \
    const Scatter *s = context; int64_t low = s->rows * item / s->ranges, high = s->rows * (item + 1) / s->ranges; (void)worker; \
    const R *data = s->args->inputs[0].data, *updates = s->args->inputs[2].data; R *y = s->args->outputs[0].data;                \
    if (y != data && high > low) memcpy(y + low * s->inner, data + low * s->inner, (high - low) * s->inner * sizeof(R));         \
    for (int64_t i = 0; i < s->n; i++) {                                                                                         \
        if (s->row_index[i] < low || s->row_index[i] >= high) continue;                                                          \
        R *to = y + s->row_index[i] * s->inner; const R *u = updates + i * s->inner;                                             \
        if (s->mode == SCATTER_MULTIPLY) for (int64_t j = 0; j < s->inner; j++) to[j] *= u[j];                                           \
        else if (s->mode == SCATTER_MAXIMUM) for (int64_t j = 0; j < s->inner; j++) to[j] = u[j] > to[j] || u[j] != u[j] ? u[j] : to[j]; \
        else for (int64_t j = 0; j < s->inner; j++) to[j] = u[j] < to[j] || u[j] != u[j] ? u[j] : to[j];                         \
    }                                                                                                                            \
}
SCATTER_REDUCE(float) SCATTER_REDUCE(double) SCATTER_REDUCE(int32_t) SCATTER_REDUCE(int64_t)

static int scatter_reduce(Scatter s)
{
    const KernelArgs *a = s.args; int32_t d = a->inputs[0].dtype;
    if (s.n < 0) return STATUS_INDEX_OUT_OF_RANGE;
    a->engine->parallel_for(a->engine, d == DTYPE_FLOAT32 ? scatter_reduce_float_item : d == DTYPE_FLOAT64 ? scatter_reduce_double_item
                            : d == DTYPE_INT32 ? scatter_reduce_int32_t_item : scatter_reduce_int64_t_item, &s, s.ranges);
    return STATUS_OK;
}
static int scatter_nd_reduce(const KernelArgs *args) { return scatter_reduce(scatter_nd_from_args(args, &args->inputs[1])); }

/* (dy, data, indices, updates) -> (ddata, dupdates), without divisions: a first pass in order stores the product before each update, a second one in reverse
 * order multiplies it by dy and the updates after it. scratch: n int64, then the products [rows, inner]. */
#define SCATTER_PRODUCT_GRAD(R)                                                                                                                \
static void scatter_product_grad_##R##_item(void *context, int64_t item, int64_t worker)                                                       \
{                                                                                                                                              \
    const Scatter *s = context; int64_t low = s->rows * item / s->ranges, high = s->rows * (item + 1) / s->ranges, w = s->inner; (void)worker; \
    const R *dy = s->args->inputs[0].data, *data = s->args->inputs[1].data, *updates = s->args->inputs[3].data;                                \
    R *ddata = s->args->outputs[0].data, *dupdates = s->args->outputs[1].data, *prefix = (R *)(s->row_index + s->n);                           \
    for (int64_t i = low * w; i < high * w; i++) { prefix[i] = data[i]; ddata[i] = dy[i]; }                                                    \
    for (int64_t i = 0; i < s->n; i++) {                                                                                                       \
        if (s->row_index[i] < low || s->row_index[i] >= high) continue;                                                                        \
        R *product = prefix + s->row_index[i] * w;                                                                                             \
        for (int64_t j = 0; j < w; j++) { dupdates[i * w + j] = product[j]; product[j] *= updates[i * w + j]; }                                \
    }                                                                                                                                          \
    for (int64_t i = s->n - 1; i >= 0; i--) {                                                                                                  \
        if (s->row_index[i] < low || s->row_index[i] >= high) continue;                                                                        \
        R *gradient = ddata + s->row_index[i] * w;                                                                                             \
        for (int64_t j = 0; j < w; j++) { dupdates[i * w + j] *= gradient[j]; gradient[j] *= updates[i * w + j]; }                             \
    }                                                                                                                                          \
}
SCATTER_PRODUCT_GRAD(float) SCATTER_PRODUCT_GRAD(double)

static int scatter_product_grad(Scatter s)
{
    const KernelArgs *a = s.args;
    if (s.n < 0) return STATUS_INDEX_OUT_OF_RANGE;
    a->engine->parallel_for(a->engine, a->inputs[0].dtype == DTYPE_FLOAT32 ? scatter_product_grad_float_item : scatter_product_grad_double_item, &s, s.ranges);
    return STATUS_OK;
}
/* The gradient of products: other = data before, times (in reverse) or instead of what it was; data *= third. */
#define PRODUCT_LOOP(I, T, STATEMENT)                                                                                                             \
    { const I *index = (const I *)e->indices->data + first;                                                                                       \
      for (int64_t k = 0; k < n; k++) {                                                                                                           \
          int64_t i = e->reversed ? n - 1 - k : k, v = index[i]; T *d = data + (v < 0 ? v + size : v) * stride + i * step; STATEMENT; *d *= third[i]; } }
#define PRODUCT_RUN(NAME, T, STATEMENT)                                                                                      \
static int NAME(const Elements *e, int64_t at, int64_t first, int64_t n, int64_t step)                                       \
{                                                                                                                            \
    T *data = (T *)e->data + at, *other = (T *)e->other + first; const T *third = (const T *)e->third + first;               \
    const int64_t size = e->size, stride = e->strides[e->axis];                                                              \
    if (e->indices->dtype == DTYPE_INT32) PRODUCT_LOOP(int32_t, T, STATEMENT) else PRODUCT_LOOP(int64_t, T, STATEMENT)       \
    return 1;                                                                                                                \
}
PRODUCT_RUN(before_product_float, float, other[i] = *d) PRODUCT_RUN(before_product_double, double, other[i] = *d)
PRODUCT_RUN(after_product_float, float, other[i] *= *d) PRODUCT_RUN(after_product_double, double, other[i] *= *d)

/* The same for elements, whose units have destinations of their own: with ranges, of which each reads all indices, 1024 x 1024 elements took 27 ms.
 * scratch: the products [data]; ints as along_axis. */
static int scatter_elements_product_grad(const KernelArgs *a)
{
    const Tensor *dy = &a->inputs[0], *data = &a->inputs[1], *indices = &a->inputs[2]; const void *updates = a->inputs[3].data;
    void *ddata = a->outputs[0].data, *dupdates = a->outputs[1].data;
    const int is_float = dy->dtype == DTYPE_FLOAT32; const int64_t bytes = dy->count * element_size(dy->dtype);
    copy_block(a->engine, a->scratch, data->data, bytes);
    along_axis_with(a->engine, a->ints, a->scratch, indices, dupdates, updates, 0, is_float ? before_product_float : before_product_double);
    copy_block(a->engine, ddata, dy->data, bytes);
    along_axis_with(a->engine, a->ints, ddata, indices, dupdates, updates, 1, is_float ? after_product_float : after_product_double);
    return STATUS_OK;
}
static int scatter_nd_product_grad(const KernelArgs *args) { return scatter_product_grad(scatter_nd_from_args(args, &args->inputs[2])); }
#endif
