/* Panels: how kernels along one axis of x [outer, size, inner] vectorize, whatever the axis.
 *
 * A panel is up to PANEL_COLUMNS columns side by side; loops along the axis run over all of its columns at a time. Rows of at least MIN_COLUMNS elements are
 * cut into blocks, which are read in place. Where they are shorter, whole slices [size, inner] are transposed into a panel [size, inner, slices] in the
 * workspace of the worker, and results are transposed back. Panels depend on the shape only, so results do not depend on the number of threads. */
#ifndef ORTRAIN_PANELS_H
#define ORTRAIN_PANELS_H
#include <string.h>
#include "kernel.h"
#include "common/integers.h"

enum {
    PANEL_COLUMNS = 512,
    MIN_COLUMNS = 16,                 /* of a row that is read in place (softmax over rows of 7 took 2.4 ns per element), and slices of a transposed panel */
    PANEL_ELEMENTS = 32768,           /* 128 KiB of float32: panels of two inputs stay in the L2 cache */
    MIN_WIDTH = 32,                   /* of a block of long columns: two cache lines */
    STREAMED_WIDTH = 512,             /* the same, where every element is read once: a cumulative sum of 1024 columns took 0.32 ns per element with 32 */
    PANEL_BYTES_LIMIT = 1 << 19,      /* of the workspace */
    ELEMENTS_PER_ITEM = 16384
};

typedef struct Panels { const Engine *engine; int64_t outer, size, inner, width, slices, per_outer, count, per_item; int copied; } Panels;

/* Panels of x [outer, size, inner] for a kernel that has `inputs` panels of elements of `bytes` bytes in memory at a time. streamed: it reads every element
 * once. */
static inline Panels panels_of(const Engine *engine, int64_t outer, int64_t size, int64_t inner, int64_t bytes, int64_t inputs, int streamed)
{
    Panels p = { .engine = engine, .outer = outer, .size = size, .inner = inner, .slices = 1, .width = inner, .per_outer = 1 };
    int64_t slice = max_i64(size * inner, 1), capacity = PANEL_BYTES_LIMIT / bytes / max_i64(inputs, 1);
    if (inner < MIN_COLUMNS && outer > 1 && slice * min_i64(outer, MIN_COLUMNS) <= capacity) {
        p.slices = max_i64(MIN_COLUMNS, min_i64(PANEL_ELEMENTS / inputs / slice, PANEL_COLUMNS / max_i64(inner, 1)) / MIN_COLUMNS * MIN_COLUMNS);
        p.slices = min_i64(p.slices, outer);
    } else {
        int64_t width = PANEL_ELEMENTS / inputs / max_i64(size, 1) / MIN_COLUMNS * MIN_COLUMNS;
        p.width = min_i64(inner, min_i64(max_i64(width, streamed ? STREAMED_WIDTH : MIN_WIDTH), PANEL_COLUMNS));
        p.per_outer = p.width > 0 ? ceil_div(inner, p.width) : 0;
        p.copied = !streamed && p.per_outer > 1 && size * p.width <= capacity;
    }
    p.count = ceil_div(outer, p.slices) * p.per_outer;
    p.per_item = max_i64(1, ELEMENTS_PER_ITEM / max_i64(1, size * p.width * p.slices));
    return p;
}
static inline int64_t panel_items(const Panels *p) { return p->size > 0 ? ceil_div(p->count, p->per_item) : 0; }

/* One panel: its first element in the tensor (`at`) and the number of its first column, its columns and slices, and the distance of its rows in the tensor. */
typedef struct Panel { int64_t at, column, columns, slices, step; } Panel;

static inline Panel panel_at(const Panels *p, int64_t index)
{
    int64_t first = index / p->per_outer * p->slices, column = index % p->per_outer * p->width;
    int64_t slices = min_i64(p->slices, p->outer - first);
    int64_t columns = p->slices > 1 ? slices * p->inner : min_i64(p->width, p->inner - column);
    return (Panel){ first * p->size * p->inner + column, first * p->inner + column, columns, slices, p->inner };
}
static inline int is_transposed(const Panels *p) { return p->slices > 1; }

/* Return the panel of a tensor and set *step to the distance of its rows: in place, or a copy in `buffer` where transposing or long strides call for one. */
static inline const void *panel_input(const Panels *p, const Panel *b, const void *tensor, int64_t bytes, void *buffer, int64_t *step)
{
    const char *from = (const char *)tensor + b->at * bytes; char *to = buffer;
    *step = is_transposed(p) || p->copied ? b->columns : b->step;
    if (is_transposed(p)) p->engine->transpose(to, from, bytes, p->size * p->inner, b->slices, b->slices, p->size * p->inner);
    else if (p->copied)
        for (int64_t j = 0; j < p->size; j++) memcpy(to + j * b->columns * bytes, from + j * b->step * bytes, (size_t)(b->columns * bytes));
    else return from;
    return to;
}

/* Return where the results of a panel are to be written, and set *step; panel_store moves them to the tensor. */
static inline void *panel_output(const Panels *p, const Panel *b, void *tensor, int64_t bytes, void *buffer, int64_t *step)
{
    *step = is_transposed(p) ? b->columns : b->step;
    return is_transposed(p) ? buffer : (char *)tensor + b->at * bytes;
}
static inline void panel_store(const Panels *p, const Panel *b, void *tensor, int64_t bytes, const void *buffer)
{
    if (is_transposed(p)) p->engine->transpose((char *)tensor + b->at * bytes, buffer, bytes, b->slices, p->size * p->inner, p->size * p->inner, b->slices);
}

/* Return buffer number `index` of the worker, each for one panel. */
static inline void *panel_buffer(const Engine *engine, int64_t worker, int64_t index, int64_t inputs)
{ return (char *)(engine->workspaces + worker * engine->workspace_floats) + index * (PANEL_BYTES_LIMIT / inputs); }
#endif
