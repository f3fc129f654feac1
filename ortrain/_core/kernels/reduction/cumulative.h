/* Cumulative sums and products along one axis, and gradients of products. ints: outer, size, inner, exclusive, reverse.
 *
 * They run down the columns of panels (common/panels.h), so that columns are independent whatever the axis: along rows of 1024, a sum took 3.0 ns per element
 * one row after another. */
#ifndef ORTRAIN_CUMULATIVE_H
#define ORTRAIN_CUMULATIVE_H
#include "kernel.h"
#include "common/compiler.h"
#include "common/panels.h"

typedef struct Cumulative { const KernelArgs *args; Panels panels; int64_t exclusive, reverse; } Cumulative;

static inline Cumulative cumulative_of(const KernelArgs *args, int64_t bytes, int64_t tensors, int streamed)
{ const int64_t *p = args->ints; return (Cumulative){ args, panels_of(args->engine, p[0], p[1], p[2], bytes, tensors, streamed), p[3], p[4] }; }

#define FOR_PANELS(s) \
    for (int64_t index = item * s->panels.per_item; index < min_i64((item + 1) * s->panels.per_item, s->panels.count); index++)
#define ROW_OF(s, j) (s->reverse ? s->panels.size - 1 - (j) : (j))
#define ALONG_COLUMNS INDEPENDENT for (int64_t i = 0; i < b.columns; i++)

/* y[o, j, i] = x[o, 0, i] op ... op x[o, j, i], without x[o, j, i] if exclusive, from the end if reverse. */
#define CUMULATIVE(NAME, R, IDENTITY, OP)                                                                                               \
static void NAME##_##R##_item(void *context, int64_t item, int64_t worker)                                                              \
{                                                                                                                                       \
    const Cumulative *s = context; void *buffer = panel_buffer(s->args->engine, worker, 0, 1);                                          \
    FOR_PANELS(s) {                                                                                                                     \
        Panel b = panel_at(&s->panels, index); int64_t x_step, y_step; R total[PANEL_COLUMNS];                                          \
        const R *x = panel_input(&s->panels, &b, s->args->inputs[0].data, sizeof(R), buffer, &x_step);                                  \
        R *y = panel_output(&s->panels, &b, s->args->outputs[0].data, sizeof(R), buffer, &y_step);                                      \
        for (int64_t i = 0; i < b.columns; i++) total[i] = IDENTITY;                                                                    \
        if (b.columns == 1 && !s->exclusive) {                        /* a single column keeps its total in a register */               \
            R sum = IDENTITY;                                                                                                           \
            for (int64_t j = 0; j < s->panels.size; j++) { int64_t r = ROW_OF(s, j); sum = sum OP x[r * x_step]; y[r * y_step] = sum; } \
        } else for (int64_t j = 0; j < s->panels.size; j++) {                                                                           \
            const R *from = x + ROW_OF(s, j) * x_step; R *to = y + ROW_OF(s, j) * y_step;                                               \
            if (s->exclusive) ALONG_COLUMNS { R v = from[i]; to[i] = total[i]; total[i] = total[i] OP v; }                              \
            else ALONG_COLUMNS { total[i] = total[i] OP from[i]; to[i] = total[i]; }                                                    \
        }                                                                                                                               \
        panel_store(&s->panels, &b, s->args->outputs[0].data, sizeof(R), buffer);                                                       \
    }                                                                                                                                   \
}                                                                                                                                       \
static int NAME##_##R(const KernelArgs *args)                                                                                           \
{                                                                                                                                       \
    Cumulative s = cumulative_of(args, sizeof(R), 1, 1);                                                                                \
    args->engine->parallel_for(args->engine, NAME##_##R##_item, &s, panel_items(&s.panels));                                            \
    return STATUS_OK;                                                                                                                   \
}
#define CUMULATIVE_KERNEL(NAME, IDENTITY, OP)                                                 \
CUMULATIVE(NAME, float, IDENTITY, OP) CUMULATIVE(NAME, double, IDENTITY, OP)                  \
CUMULATIVE(NAME, int64_t, IDENTITY, OP) CUMULATIVE(NAME, int32_t, IDENTITY, OP)               \
static int NAME(const KernelArgs *args)                                                       \
{                                                                                             \
    int32_t d = args->inputs[0].dtype;                                                        \
    return d == DTYPE_FLOAT32 ? NAME##_float(args) : d == DTYPE_FLOAT64 ? NAME##_double(args) \
        : d == DTYPE_INT64 ? NAME##_int64_t(args) : NAME##_int32_t(args);                     \
}
CUMULATIVE_KERNEL(running_sum, 0, +)
CUMULATIVE_KERNEL(running_product, 1, *)

/* Gradients of products, without divisions: a first pass stores the product of the elements before each one in y, a second pass in the other direction
 * multiplies it by UPDATE of the elements after it. tensors: inputs and outputs, each with a buffer of its own. */
#define TWO_PASSES(NAME, R, TENSORS, X, DY, START, UPDATE)                                                                                             \
static void NAME##_##R##_item(void *context, int64_t item, int64_t worker)                                                                             \
{                                                                                                                                                      \
    const Cumulative *s = context; const Engine *engine = s->args->engine;                                                                             \
    FOR_PANELS(s) {                                                                                                                                    \
        Panel b = panel_at(&s->panels, index); int64_t x_step, y_step, dy_step; R total[PANEL_COLUMNS];                                                \
        void *out = panel_buffer(engine, worker, 0, TENSORS);                                                                                          \
        const R *x = panel_input(&s->panels, &b, s->args->inputs[X].data, sizeof(R), panel_buffer(engine, worker, 1, TENSORS), &x_step);               \
        const R *dy = DY < 0 ? x : panel_input(&s->panels, &b, s->args->inputs[0].data, sizeof(R), panel_buffer(engine, worker, TENSORS - 1, TENSORS), \
                                               &dy_step);                                                                                              \
        R *y = panel_output(&s->panels, &b, s->args->outputs[0].data, sizeof(R), out, &y_step);                                                        \
        if (DY < 0) dy_step = x_step;                                                                                                                  \
        for (int64_t i = 0; i < b.columns; i++) total[i] = 1;                                                                                          \
        for (int64_t j = 0; j < s->panels.size; j++) {                                                                                                 \
            const R *from = x + ROW_OF(s, j) * x_step; R *to = y + ROW_OF(s, j) * y_step;                                                              \
            ALONG_COLUMNS { to[i] = total[i]; total[i] *= from[i]; }                                                                                   \
        }                                                                                                                                              \
        for (int64_t i = 0; i < b.columns; i++) total[i] = START;                                                                                      \
        for (int64_t j = s->panels.size - 1; j >= 0; j--) {                                                                                            \
            const R *from = x + ROW_OF(s, j) * x_step, *d = dy + ROW_OF(s, j) * dy_step; R *to = y + ROW_OF(s, j) * y_step; (void)d;                   \
            UPDATE                                                                                                                                     \
        }                                                                                                                                              \
        panel_store(&s->panels, &b, s->args->outputs[0].data, sizeof(R), out);                                                                         \
    }                                                                                                                                                  \
}                                                                                                                                                      \
static int NAME##_##R(const KernelArgs *args)                                                                                                          \
{                                                                                                                                                      \
    Cumulative s = cumulative_of(args, sizeof(R), TENSORS, 0);                                                                                         \
    args->engine->parallel_for(args->engine, NAME##_##R##_item, &s, panel_items(&s.panels));                                                           \
    return STATUS_OK;                                                                                                                                  \
}
#define TWO_PASS_KERNEL(NAME, TENSORS, X, DY, START, UPDATE)                                                   \
TWO_PASSES(NAME, float, TENSORS, X, DY, START, UPDATE) TWO_PASSES(NAME, double, TENSORS, X, DY, START, UPDATE) \
static int NAME(const KernelArgs *args) { return args->inputs[0].dtype == DTYPE_FLOAT32 ? NAME##_float(args) : NAME##_double(args); }

/* (dy, x) -> dx of a cumulative product: the factor is the sum, over the results after an element, of dy times the product of the elements between. */
TWO_PASS_KERNEL(running_product_grad, 3, 1, 0, 0,
    if (s->exclusive) ALONG_COLUMNS { to[i] *= total[i]; total[i] = d[i] + from[i] * total[i]; }
    else ALONG_COLUMNS { total[i] += d[i]; to[i] *= total[i]; total[i] *= from[i]; })
/* x -> the product of the other elements of its column. ints: outer, size, inner, 0, 0. */
TWO_PASS_KERNEL(product_of_others_by_panel, 2, 0, -1, 1, ALONG_COLUMNS { to[i] *= total[i]; total[i] *= from[i]; })

/* The same for a long column on its own, read as rows of PANEL_COLUMNS elements: the second pass starts at the products of all other columns of these rows. One
 * element after another took 5.5 ns for each. A work item is one x [size]. */
#define PRODUCT_OF_OTHERS_IN_ROWS(R)                                                                                         \
static void product_of_others_in_rows_##R(void *context, int64_t item, int64_t worker)                                       \
{                                                                                                                            \
    const KernelArgs *args = context; int64_t size = args->ints[1], rows = ceil_div(size, PANEL_COLUMNS); (void)worker;      \
    const R *x = (const R *)args->inputs[0].data + item * size; R *y = (R *)args->outputs[0].data + item * size;             \
    R total[PANEL_COLUMNS], others[PANEL_COLUMNS], product = 1;                                                              \
    for (int64_t i = 0; i < PANEL_COLUMNS; i++) total[i] = 1;                                                                \
    for (int64_t j = 0; j < rows; j++) {                                                                                     \
        const R *from = x + j * PANEL_COLUMNS; R *to = y + j * PANEL_COLUMNS;                                                \
        int64_t n = min_i64(PANEL_COLUMNS, size - j * PANEL_COLUMNS);                                                        \
        INDEPENDENT for (int64_t i = 0; i < n; i++) { to[i] = total[i]; total[i] *= from[i]; }                      \
    }                                                                                                                        \
    for (int64_t i = 0; i < PANEL_COLUMNS; i++) { others[i] = product; product *= total[i]; }                                \
    product = 1;                                                                                                             \
    for (int64_t i = PANEL_COLUMNS - 1; i >= 0; i--) { others[i] *= product; product *= total[i]; }                          \
    for (int64_t j = rows - 1; j >= 0; j--) {                                                                                \
        const R *from = x + j * PANEL_COLUMNS; R *to = y + j * PANEL_COLUMNS;                                                \
        int64_t n = min_i64(PANEL_COLUMNS, size - j * PANEL_COLUMNS);                                                        \
        INDEPENDENT for (int64_t i = 0; i < n; i++) { to[i] *= others[i]; others[i] *= from[i]; }                   \
    }                                                                                                                        \
}
PRODUCT_OF_OTHERS_IN_ROWS(float) PRODUCT_OF_OTHERS_IN_ROWS(double)

static int product_of_others(const KernelArgs *args)
{
    const int64_t *p = args->ints; int is_float = args->inputs[0].dtype == DTYPE_FLOAT32;
    Panels panels = panels_of(args->engine, p[0], p[1], p[2], is_float ? sizeof(float) : sizeof(double), 2, 0);
    if (p[2] != 1 || p[1] <= PANEL_COLUMNS || is_transposed(&panels)) return product_of_others_by_panel(args);
    args->engine->parallel_for(args->engine, is_float ? product_of_others_in_rows_float : product_of_others_in_rows_double, (void *)args, p[0]);
    return STATUS_OK;
}
#undef FOR_PANELS
#undef ROW_OF
#undef ALONG_COLUMNS
#endif
