/* Interpolation along one axis and its gradient: y[o, j, i] = sum over k of weight[j, k] x[o, index[j, k], i].
 *
 * ints: outer, size of x, size of y, inner, taps, then index [size of y, taps]; floats: weight [size of y, taps]. Rows of y (or dx) are sums of rows of x (or
 * dy), in panels (common/panels.h), so that the last axis is as fast as the others: one row of x after another took 70 ns per element there. Where every
 * element is repeated a whole number of times, as by mode nearest, it is copied directly (8 images of 15 x 122 x 67 to 134 columns: 1.37 ms in panels). */
#ifndef ORTRAIN_RESIZE_H
#define ORTRAIN_RESIZE_H
#include "kernel.h"
#include "common/memory.h"
#include "common/panels.h"

enum { TAPS_AT_A_TIME = 4, REPEATED_ROW_BYTES = 128 };

/* from, to: the panels of input and output, which differ in the size of the axis */
typedef struct { const KernelArgs *args; Panels from, to; int64_t taps; const int64_t *index; const double *weight; } Resample;

/* next_taps: set rows and weights to those of the taps of output j from *next on, up to TAPS_AT_A_TIME whose weights are not 0, and return their number. */
#define RESAMPLE(R)                                                                                                                                \
static inline int next_taps_##R(const Resample *s, int64_t j, int64_t *next, const R *x, int64_t step, const R **rows, R *weights)                 \
{                                                                                                                                                  \
    int n = 0;                                                                                                                                     \
    for (; *next < s->taps && n < TAPS_AT_A_TIME; ++*next) {                                                                                       \
        R w = (R)s->weight[j * s->taps + *next];                                                                                                   \
        if (w != 0) { rows[n] = x + s->index[j * s->taps + *next] * step; weights[n++] = w; }                                                      \
    }                                                                                                                                              \
    return n;                                                                                                                                      \
}                                                                                                                                                  \
static void resample_row_##R(const Resample *s, int64_t j, const R *x, int64_t step, R *restrict y, int64_t n)                                     \
{                                                                                                                                                  \
    const R *rows[TAPS_AT_A_TIME] = {0}; R w[TAPS_AT_A_TIME]; int64_t next = 0;                                                                    \
    int count = next_taps_##R(s, j, &next, x, step, rows, w);                                                                                      \
    const R *a = rows[0], *b = rows[1], *c = rows[2], *d = rows[3];                                                                                \
    if (count == 0) for (int64_t i = 0; i < n; i++) y[i] = 0;                                                                                      \
    else if (count == 1) for (int64_t i = 0; i < n; i++) y[i] = w[0] * a[i];                                                                       \
    else if (count == 2) for (int64_t i = 0; i < n; i++) y[i] = w[0] * a[i] + w[1] * b[i];                                                         \
    else if (count == 3) for (int64_t i = 0; i < n; i++) y[i] = w[0] * a[i] + w[1] * b[i] + w[2] * c[i];                                           \
    else for (int64_t i = 0; i < n; i++) y[i] = w[0] * a[i] + w[1] * b[i] + w[2] * c[i] + w[3] * d[i];                                             \
    while ((count = next_taps_##R(s, j, &next, x, step, rows, w)))                                                                                 \
        for (int k = 0; k < count; k++) { a = rows[k]; for (int64_t i = 0; i < n; i++) y[i] += w[k] * a[i]; }                                      \
}                                                                                                                                                  \
static void resample_##R##_item(void *context, int64_t item, int64_t worker)                                                                       \
{                                                                                                                                                  \
    const Resample *s = context; const Engine *engine = s->args->engine; int64_t per_item = s->to.per_item;                                        \
    void *in = panel_buffer(engine, worker, 0, 2), *out = panel_buffer(engine, worker, 1, 2);                                                      \
    for (int64_t index = item * per_item; index < min_i64((item + 1) * per_item, s->to.count); index++) {                                          \
        Panel from = panel_at(&s->from, index), to = panel_at(&s->to, index); int64_t x_step, y_step;                                              \
        const R *x = panel_input(&s->from, &from, s->args->inputs[0].data, sizeof(R), in, &x_step);                                                \
        R *y = panel_output(&s->to, &to, s->args->outputs[0].data, sizeof(R), out, &y_step);                                                       \
        for (int64_t j = 0; j < s->to.size; j++) resample_row_##R(s, j, x, x_step, y + j * y_step, to.columns);                                    \
        panel_store(&s->to, &to, s->args->outputs[0].data, sizeof(R), out);                                                                        \
    }                                                                                                                                              \
}                                                                                                                                                  \
static void resample_grad_##R##_item(void *context, int64_t item, int64_t worker)                                                                  \
{                                                                                                                                                  \
    const Resample *s = context; const Engine *engine = s->args->engine; int64_t per_item = s->to.per_item;                                        \
    void *in = panel_buffer(engine, worker, 0, 2), *out = panel_buffer(engine, worker, 1, 2);                                                      \
    for (int64_t index = item * per_item; index < min_i64((item + 1) * per_item, s->to.count); index++) {                                          \
        Panel from = panel_at(&s->from, index), to = panel_at(&s->to, index); int64_t dy_step, dx_step;                                            \
        const R *dy = panel_input(&s->from, &from, s->args->inputs[0].data, sizeof(R), in, &dy_step);                                              \
        R *dx = panel_output(&s->to, &to, s->args->outputs[0].data, sizeof(R), out, &dx_step);                                                     \
        for (int64_t j = 0; j < s->to.size; j++) memset(dx + j * dx_step, 0, (size_t)to.columns * sizeof(R));                                      \
        for (int64_t j = 0; j < s->from.size; j++)                                                                                                 \
            for (int64_t k = 0; k < s->taps; k++) {                                                                                                \
                R w = (R)s->weight[j * s->taps + k], *restrict row = dx + s->index[j * s->taps + k] * dx_step; const R *source = dy + j * dy_step; \
                if (w != 0) for (int64_t i = 0; i < to.columns; i++) row[i] += w * source[i];                                                      \
            }                                                                                                                                      \
        panel_store(&s->to, &to, s->args->outputs[0].data, sizeof(R), out);                                                                        \
    }                                                                                                                                              \
}
RESAMPLE(float)
RESAMPLE(double)

/* Where every row is repeated `factor` times, in whole multiples of the size: the numbers of rows and of their elements, whatever the axis. */
typedef struct { const KernelArgs *args; int64_t factor, rows, inner, per_item; } Repetition;

static inline Repetition repetition_of(const KernelArgs *args)
{
    const int64_t *p = args->ints, *index = p + 5; int64_t factor = p[1] > 0 ? p[2] / p[1] : 0, bytes = p[3] * (args->inputs[0].dtype == DTYPE_FLOAT32 ? 4 : 8);
    Repetition r = { args, factor, p[0] * p[1], p[3], max_i64(1, ELEMENTS_PER_ITEM / max_i64(1, p[3])) };
    if (p[4] != 1 || factor < 2 || factor * p[1] != p[2] || (p[3] > 1 && bytes < REPEATED_ROW_BYTES)) r.factor = 0;
    for (int64_t j = 0; j < p[2] && r.factor; j++) if (index[j] != j / factor || args->floats[j] != 1) r.factor = 0;
    return r;
}

/* Elements that are repeated, and the sums of their repetitions, in order. */
#define REPEAT(R)                                                                                                                                  \
static void repeat_##R##_item(void *context, int64_t item, int64_t worker)                                                                         \
{                                                                                                                                                  \
    const Repetition *s = context; int64_t f = s->factor, inner = s->inner, first = item * s->per_item; (void)worker;                              \
    int64_t n = min_i64(s->per_item, s->rows - first);                                                                                             \
    const R *restrict x = (const R *)s->args->inputs[0].data + first * inner; R *restrict y = (R *)s->args->outputs[0].data + first * f * inner;   \
    if (inner > 1)                                                                                                                                 \
        for (int64_t i = 0; i < n * f; i++) copy_row((char *)(y + i * inner), (const char *)(x + i / f * inner), inner * (int64_t)sizeof(R));      \
    else if (f == 2) for (int64_t i = 0; i < n; i++) for (int k = 0; k < 2; k++) y[i * 2 + k] = x[i];                                              \
    else if (f == 4) for (int64_t i = 0; i < n; i++) for (int k = 0; k < 4; k++) y[i * 4 + k] = x[i];                                              \
    else for (int64_t i = 0; i < n; i++) for (int64_t k = 0; k < f; k++) y[i * f + k] = x[i];                                                      \
}                                                                                                                                                  \
static void repeat_grad_##R##_item(void *context, int64_t item, int64_t worker)                                                                    \
{                                                                                                                                                  \
    const Repetition *s = context; int64_t f = s->factor, inner = s->inner, first = item * s->per_item; (void)worker;                              \
    int64_t n = min_i64(s->per_item, s->rows - first);                                                                                             \
    const R *restrict dy = (const R *)s->args->inputs[0].data + first * f * inner; R *restrict dx = (R *)s->args->outputs[0].data + first * inner; \
    if (f == 2 && inner > 1)                                                                                                                       \
        for (int64_t j = 0; j < n; j++)                                                                                                            \
            for (int64_t i = 0; i < inner; i++) dx[j * inner + i] = 0 + dy[j * 2 * inner + i] + dy[(j * 2 + 1) * inner + i];                       \
    else if (inner > 1)                                                                                                                            \
        for (int64_t j = 0; j < n; j++) {                                                                                                          \
            memset(dx + j * inner, 0, (size_t)inner * sizeof(R));                                                                                  \
            for (int64_t k = 0; k < f; k++) for (int64_t i = 0; i < inner; i++) dx[j * inner + i] += dy[(j * f + k) * inner + i];                  \
        }                                                                                                                                          \
    else if (f == 2) for (int64_t i = 0; i < n; i++) dx[i] = 0 + dy[i * 2] + dy[i * 2 + 1];                                                        \
    else for (int64_t i = 0; i < n; i++) { R sum = 0; for (int64_t k = 0; k < f; k++) sum += dy[i * f + k]; dx[i] = sum; }                         \
}
REPEAT(float)
REPEAT(double)

static int run_resample(const KernelArgs *args, int backward, WorkItem float_item, WorkItem double_item)
{
    const int64_t *p = args->ints; int is_float32 = args->inputs[0].dtype == DTYPE_FLOAT32;
    Repetition r = repetition_of(args);
    if (r.factor) {
        WorkItem item = backward ? is_float32 ? repeat_grad_float_item : repeat_grad_double_item : is_float32 ? repeat_float_item : repeat_double_item;
        args->engine->parallel_for(args->engine, item, &r, ceil_div(r.rows, r.per_item));
        return STATUS_OK;
    }
    Panels all = panels_of(args->engine, p[0], max_i64(p[1], p[2]), p[3], is_float32 ? 4 : 8, 2, 1);
    Resample s = { args, all, all, p[4], p + 5, args->floats };
    s.from.size = p[backward ? 2 : 1]; s.to.size = p[backward ? 1 : 2];
    args->engine->parallel_for(args->engine, is_float32 ? float_item : double_item, &s, panel_items(&s.to));
    return STATUS_OK;
}
static int resample(const KernelArgs *args) { return run_resample(args, 0, resample_float_item, resample_double_item); }
static int resample_grad(const KernelArgs *args) { return run_resample(args, 1, resample_grad_float_item, resample_grad_double_item); }
#endif
