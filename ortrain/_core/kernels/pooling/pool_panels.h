/* Pooling of small planes for one element type; included by pool_rows.h once per type, therefore without an include guard.
 *
 * PANEL_PLANES planes side by side are transposed into [positions, PANEL_PLANES] (common/panels.h), so that a window is a loop over whole vectors, whatever
 * its size, strides and pads: rows of 7 elements took 45 ns per output with 3 x 3 windows when vectors ran along them. Planes that do not fit into the workspace
 * have long rows. A position is PARTS vectors of the processor's width: GCC compares wider ones element by element (maxima of 3 x 3 of
 * 64 channels with AVX2: 30 ns per output, 2.0 so). */

typedef REAL NAMED(PlaneVector) __attribute__((vector_size(VECTOR_BYTES), aligned(sizeof(REAL)), may_alias));
typedef INTEGER NAMED(PlaneMask) __attribute__((vector_size(VECTOR_BYTES), aligned(sizeof(INTEGER)), may_alias));
#define V NAMED(PlaneVector)
#define M NAMED(PlaneMask)
#define PARTS ((int)(PANEL_PLANES * sizeof(REAL) / VECTOR_BYTES))
#define EACH_PART(p) _Pragma("GCC unroll 8") for (int p = 0; p < PARTS; p++)
#define AT(p, position) ((p) + (position) * PANEL_PLANES)
#define PART(p, position, part) (((V *)AT(p, position))[part])

/* Set best [PANEL_PLANES] to the maxima of a window of x [positions, PANEL_PLANES] and index to their positions, -1 where the window is empty. */
ALWAYS_INLINE void NAMED(window_max)(const PoolGeometry *v, const REAL *x, Taps d, Taps h, Taps w, V *best, M *index)
{
    V value[PARTS]; M where[PARTS];
    int64_t first = ((d.start + d.low * v->dd) * v->ih + h.start + h.low * v->dh) * v->iw + w.start + w.low * v->dw;
    int empty = d.low >= d.high || h.low >= h.high || w.low >= w.high;
    EACH_PART(p) {
        value[p] = -(REAL)INFINITY - (V){0};
        if (!empty) value[p] = PART(x, first, p);
        where[p] = (INTEGER)(empty ? -1 : first) - (M){0};
    }
    for (int64_t i = d.low; i < d.high; i++)
        for (int64_t j = h.low; j < h.high; j++)
            for (int64_t l = w.low; l < w.high; l++) {
                int64_t at = ((d.start + i * v->dd) * v->ih + h.start + j * v->dh) * v->iw + w.start + l * v->dw;
                M here = (INTEGER)at - (M){0};
                EACH_PART(p) {
                    V now = PART(x, at, p);
                    M better = (now > value[p]) | (now != now);                                           /* NaN is kept */
                    value[p] = (V)((better & (M)now) | (~better & (M)value[p]));
                    where[p] = (better & here) | (~better & where[p]);
                }
            }
    EACH_PART(p) { best[p] = value[p]; index[p] = where[p]; }
}

/* y and index [output, PANEL_PLANES] = the maxima of x [input, PANEL_PLANES] and their positions. */
static void NAMED(max_panel)(const PoolGeometry *v, const REAL *x, REAL *y, INTEGER *index)
{
    int64_t out = 0;
    for (int64_t d = 0; d < v->od; d++)
        for (int64_t h = 0; h < v->oh; h++) {
            Taps rows = taps_of(h, v->sh, v->ph, v->ih, v->kh, v->dh), planes = taps_of(d, v->sd, v->pd, v->id, v->kd, v->dd);
            for (int64_t w = 0; w < v->ow; w++, out++)
                NAMED(window_max)(v, x, planes, rows, taps_of(w, v->sw, v->pw, v->iw, v->kw, v->dw), (V *)AT(y, out), (M *)AT(index, out));
        }
}

/* Forward: y [output, PANEL_PLANES] = the averages of x [input, PANEL_PLANES]. Backward: x, zeros before, += y / divisor at all taps. */
ALWAYS_INLINE void NAMED(average_panel)(const PoolGeometry *v, int backward, REAL *x, REAL *y)
{
    int64_t out = 0;
    for (int64_t d = 0; d < v->od; d++)
        for (int64_t h = 0; h < v->oh; h++) {
            Taps rows = taps_of(h, v->sh, v->ph, v->ih, v->kh, v->dh), planes = taps_of(d, v->sd, v->pd, v->id, v->kd, v->dd);
            int64_t counted = counted_taps(planes, v->id, v->ed, v->kd, v->dd, v->include_pad) * counted_taps(rows, v->ih, v->eh, v->kh, v->dh, v->include_pad);
            for (int64_t w = 0; w < v->ow; w++, out++) {
                Taps columns = taps_of(w, v->sw, v->pw, v->iw, v->kw, v->dw);
                REAL divisor = (REAL)max_i64(1, counted * counted_taps(columns, v->iw, v->ew, v->kw, v->dw, v->include_pad));
                V sum[PARTS];
                EACH_PART(p) { sum[p] = (V){0}; if (backward) sum[p] = PART(y, out, p) / divisor; }
                for (int64_t i = planes.low; i < planes.high; i++)
                    for (int64_t j = rows.low; j < rows.high; j++) {
                        REAL *row = AT(x, ((planes.start + i * v->dd) * v->ih + rows.start + j * v->dh) * v->iw + columns.start);
                        for (int64_t l = columns.low; l < columns.high; l++)
                            EACH_PART(p) if (backward) PART(row, l * v->dw, p) += sum[p]; else sum[p] += PART(row, l * v->dw, p);
                    }
                EACH_PART(p) if (!backward) PART(y, out, p) = sum[p] / divisor;
            }
        }
}

/* A work item is one panel of PANEL_PLANES planes. */
static void NAMED(max_panel_item)(void *context, int64_t item, int64_t worker)
{
    const PoolPanels *s = context; const KernelArgs *a = s->args; int64_t first = item * PANEL_PLANES, n = min_i64(PANEL_PLANES, s->v->planes - first);
    REAL *x = panel_buffer(a->engine, worker, 0, PANEL_TENSORS), *y = panel_buffer(a->engine, worker, 1, PANEL_TENSORS);
    INTEGER *index = panel_buffer(a->engine, worker, 2, PANEL_TENSORS), *found = (INTEGER *)y;
    a->engine->transpose(x, (const REAL *)a->inputs[0].data + first * s->input, sizeof(REAL), s->input, n, PANEL_PLANES, s->input);
    NAMED(max_panel)(s->v, x, y, index);
    a->engine->transpose((REAL *)a->outputs[0].data + first * s->output, y, sizeof(REAL), n, s->output, s->output, PANEL_PLANES);
    if (a->n_outputs < 2 || !a->outputs[1].data) return;
    int64_t *indices = (int64_t *)a->outputs[1].data + first * s->output;
    a->engine->transpose(found, index, sizeof(INTEGER), n, s->output, s->output, PANEL_PLANES);
    for (int64_t plane = 0; plane < n; plane++)
        for (int64_t i = plane * s->output; i < (plane + 1) * s->output; i++) indices[i] = found[i] < 0 ? -1 : found[i] + (first + plane) * s->input;
}
static void NAMED(average_panel_item)(void *context, int64_t item, int64_t worker)
{
    const PoolPanels *s = context; const KernelArgs *a = s->args; int64_t first = item * PANEL_PLANES, n = min_i64(PANEL_PLANES, s->v->planes - first);
    REAL *x = panel_buffer(a->engine, worker, 0, PANEL_TENSORS), *y = panel_buffer(a->engine, worker, 1, PANEL_TENSORS);
    a->engine->transpose(x, (const REAL *)a->inputs[0].data + first * s->input, sizeof(REAL), s->input, n, PANEL_PLANES, s->input);
    NAMED(average_panel)(s->v, 0, x, y);
    a->engine->transpose((REAL *)a->outputs[0].data + first * s->output, y, sizeof(REAL), n, s->output, s->output, PANEL_PLANES);
}
static void NAMED(average_gradient_panel_item)(void *context, int64_t item, int64_t worker)
{
    const PoolPanels *s = context; const KernelArgs *a = s->args; int64_t first = item * PANEL_PLANES, n = min_i64(PANEL_PLANES, s->v->planes - first);
    REAL *x = panel_buffer(a->engine, worker, 0, PANEL_TENSORS), *y = panel_buffer(a->engine, worker, 1, PANEL_TENSORS);
    memset(x, 0, (size_t)(s->input * PANEL_PLANES) * sizeof(REAL));
    a->engine->transpose(y, (const REAL *)a->inputs[0].data + first * s->output, sizeof(REAL), s->output, n, PANEL_PLANES, s->output);
    NAMED(average_panel)(s->v, 1, x, y);
    a->engine->transpose((REAL *)a->outputs[0].data + first * s->input, x, sizeof(REAL), n, s->input, s->input, PANEL_PLANES);
}
#undef V
#undef M
#undef PARTS
#undef EACH_PART
#undef AT
#undef PART
