/* ONNX GRU and its gradient for one element type REAL; included by recurrent.h, which documents shapes and ints. Gates in the order z, r, h (h is the
 * candidate u):
 *
 *   z = sigmoid(x Wz^T + h_previous Rz^T + Wbz + Rbz), and r likewise
 *   u = tanh(x Wh^T + Wbh + r (h_previous Rh^T + Rbh)) with the option linear_before_reset, else tanh(x Wh^T + (r h_previous) Rh^T + Wbh + Rbh)
 *   h = (1 - z) u + z h_previous */

typedef struct NAMED(Gru) {
    Recurrence r;
    const REAL *panels, *candidates, *b;                /* packed R^T per direction: of z and r [hidden, 2 * hidden], and of u [hidden, hidden]; B or NULL */
    REAL *gates, *y, *h, *work;                         /* h [directions, rows, hidden]: current state; work [directions, rows, 3 * hidden] */
} NAMED(Gru);

/* One step of one sequence with linear_before_reset. g [3 * n] becomes the gates and h [n] the new state; rec [3 * n] = h_previous R^T; rb: Rbh or NULL. */
static void NAMED(gru_cell_linear)(int64_t n, REAL *restrict g, const REAL *restrict rec, const REAL *restrict rb, REAL *restrict h)
{
    REAL *restrict z = g, *restrict r = g + n, *restrict u = g + 2 * n;
    for (int64_t j = 0; j < n; j++) {
        z[j] = SIGMOID(z[j] + rec[j]); r[j] = SIGMOID(r[j] + rec[n + j]);
        u[j] = TANH(u[j] + r[j] * (rec[2 * n + j] + (rb ? rb[j] : 0)));
        h[j] = (1 - z[j]) * u[j] + z[j] * h[j];
    }
}

/* All steps of a block of rows in one direction. */
static void NAMED(gru_item)(void *context, int64_t item, int64_t worker)
{
    const NAMED(Gru) *s = context; const Recurrence *r = &s->r; const Engine *e = r->args->engine;
    RowBlock block = rows_of_item(r, item);
    int64_t n = r->hidden, d = block.direction, first = block.first, count = block.count;
    REAL *h = s->h + (d * r->rows + first) * n, *work = s->work + (d * r->rows + first) * 3 * n;
    const REAL *panels = s->panels + d * NAMED(panels)(n, 2 * n), *candidates = s->candidates + d * NAMED(panels)(n, n), *rb = s->b ? s->b + d * 6 * n + 5 * n : NULL;
    for (int64_t k = 0; k < r->steps; k++) {
        int64_t time = time_of(r, d, k);
        REAL *gates = s->gates + ((d * r->steps + time) * r->rows + first) * 3 * n;
        if (r->option) {
            NAMED(step_gemm)(e, worker, count, 2 * n, n, h, n, panels, 0, work, 3 * n);
            NAMED(step_gemm)(e, worker, count, n, n, h, n, candidates, 0, work + 2 * n, 3 * n);
        } else {
            NAMED(step_gemm)(e, worker, count, 2 * n, n, h, n, panels, 1, gates, 3 * n);
            for (int64_t row = 0; row < count; row++)
                for (int64_t j = 0; j < n; j++) {
                    REAL *g = gates + row * 3 * n;
                    g[j] = SIGMOID(g[j]); g[n + j] = SIGMOID(g[n + j]);
                    work[row * n + j] = g[n + j] * h[row * n + j];
                }
            NAMED(step_gemm)(e, worker, count, n, n, work, n, candidates, 1, gates + 2 * n, 3 * n);
        }
        for (int64_t row = 0; row < count; row++) {
            REAL *g = gates + row * 3 * n, *u = g + 2 * n, *to = h + row * n;
            REAL *y = s->y ? s->y + output_row(r->y_strides, d, time, first + row) : NULL;
            int active = is_active(r, first + row, time);
            if (active && r->option) NAMED(gru_cell_linear)(n, g, work + row * 3 * n, rb, to);
            else if (active)
                for (int64_t j = 0; j < n; j++) { u[j] = TANH(u[j]); to[j] = (1 - g[j]) * u[j] + g[j] * to[j]; }
            if (y) NAMED(copy_or_zero)(y, active ? to : NULL, n);
        }
    }
}

/* (x, W, R, B, lengths, h0) -> (y, h, gates), each output optional. Scratch: bias, packed R, h, work, then the gates unless they are an output. */
static int NAMED(gru)(const KernelArgs *args)
{
    NAMED(Gru) s = { .r = recurrence_of(args, 3, 4), .b = NAMED(in)(args, 3), .y = NAMED(out)(args, 0) };
    Recurrence *r = &s.r;
    int64_t n = r->hidden, states = r->directions * r->rows * n;
    REAL *bias = args->scratch, *panels = bias + 3 * n, *candidates = panels + r->directions * NAMED(panels)(n, 2 * n), *gates = NAMED(out)(args, 2);
    s.h = candidates + r->directions * NAMED(panels)(n, n); s.work = s.h + states;
    s.gates = gates ? gates : s.work + 3 * states;
    s.panels = panels; s.candidates = candidates;
    NAMED(copy_or_zero)(s.h, NAMED(in)(args, 5), states);
    for (int64_t d = 0; d < r->directions; d++) {
        const REAL *weights = (const REAL *)NAMED(in)(args, 2) + d * 3 * n * n;
        NAMED(pack_weights)(args->engine, weights, 1, n, 2 * n, panels + d * NAMED(panels)(n, 2 * n));
        NAMED(pack_weights)(args->engine, weights + 2 * n * n, 1, n, n, candidates + d * NAMED(panels)(n, n));
        NAMED(project_inputs)(r, d, NAMED(in)(args, 0), NAMED(in)(args, 1), s.b, r->option ? 2 : 3, bias, s.gates + d * r->steps * r->rows * 3 * n);
    }
    args->engine->parallel_for(args->engine, NAMED(gru_item), &s, r->directions * r->blocks);
    if (NAMED(out)(args, 1)) memcpy(NAMED(out)(args, 1), s.h, states * sizeof(REAL));
    return STATUS_OK;
}

/* previous [directions, steps, rows, hidden]: the state before each step; linear, like it: h_previous Rh^T + Rbh (linear_before_reset only); dcandidate, like
 * it: the factor of dRh, which is r du with linear_before_reset and r h_previous without. */
typedef struct NAMED(GruGrad) {
    Recurrence r;
    const REAL *w_recurrent, *panels, *candidates, *gates, *dy, *previous, *linear;   
    REAL *dgates, *dcandidate, *dh, *work;
} NAMED(GruGrad);

/* The elementwise part of the gradient of one step of one sequence: dg [3 * n] and dcandidate [n] from dh [n], which becomes the part of the gradient of
 * h_previous that needs no GEMM. lin: h_previous Rh^T + Rbh, with linear_before_reset only; without it, dr is computed by the caller. */
static void NAMED(gru_cell_grad)(int64_t n, int linear, const REAL *restrict g, const REAL *restrict before, const REAL *restrict lin, REAL *restrict dh,
                                 REAL *restrict dg, REAL *restrict dcandidate)
{
    const REAL *z = g, *r = g + n, *u = g + 2 * n;
    for (int64_t j = 0; j < n; j++) {
        REAL du = dh[j] * (1 - z[j]) * (1 - u[j] * u[j]);
        dg[j] = dh[j] * (before[j] - u[j]) * z[j] * (1 - z[j]);
        dg[2 * n + j] = du;
        if (linear) dg[n + j] = du * lin[j] * r[j] * (1 - r[j]);
        dcandidate[j] = r[j] * (linear ? du : before[j]);
        dh[j] *= z[j];
    }
}

/* All steps of a block of rows in one direction, in reverse. */
static void NAMED(gru_grad_item)(void *context, int64_t item, int64_t worker)
{
    const NAMED(GruGrad) *s = context; const Recurrence *r = &s->r; const Engine *e = r->args->engine;
    RowBlock block = rows_of_item(r, item);
    int64_t n = r->hidden, d = block.direction, first = block.first, count = block.count;
    REAL *dh = s->dh + (d * r->rows + first) * n, *work = s->work + (d * r->rows + first) * n;
    const REAL *panels = s->panels + d * NAMED(panels)(2 * n, n), *candidates = s->candidates + d * NAMED(panels)(n, n);
    for (int64_t k = r->steps - 1; k >= 0; k--) {
        int64_t time = time_of(r, d, k), at = (d * r->steps + time) * r->rows + first;
        REAL *dgates = s->dgates + at * 3 * n, *dcandidate = s->dcandidate + at * n;
        for (int64_t row = 0; row < count; row++) {
            if (!is_active(r, first + row, time)) {
                memset(dgates + row * 3 * n, 0, 3 * n * sizeof(REAL)); memset(dcandidate + row * n, 0, n * sizeof(REAL));
                continue;
            }
            NAMED(add_output_gradient)(r, d, time, first + row, s->dy, dh + row * n);
            NAMED(gru_cell_grad)(n, r->option != 0, s->gates + (at + row) * 3 * n, s->previous + (at + row) * n, s->linear ? s->linear + (at + row) * n : NULL,
                                 dh + row * n, dgates + row * 3 * n, dcandidate + row * n);
        }
        if (r->option) {
            NAMED(step_gemm)(e, worker, count, n, n, dcandidate, n, candidates, 1, dh, n);
        } else {
            NAMED(step_gemm)(e, worker, count, n, n, dgates + 2 * n, 3 * n, candidates, 0, work, n);
            for (int64_t row = 0; row < count; row++)
                for (int64_t j = 0; j < n && is_active(r, first + row, time); j++) {
                    REAL reset = s->gates[(at + row) * 3 * n + n + j], drh = work[row * n + j];
                    dgates[row * 3 * n + n + j] = drh * s->previous[(at + row) * n + j] * reset * (1 - reset);
                    dh[row * n + j] += drh * reset;
                }
        }
        NAMED(step_gemm)(e, worker, count, n, 2 * n, dgates, 3 * n, panels, 1, dh, n);
    }
}

/* dR and dB of direction d, each unless it is NULL */
static void NAMED(gru_weight_gradients)(const NAMED(GruGrad) *s, int64_t d, REAL *dr, REAL *db)
{
    const Recurrence *r = &s->r; const Engine *e = r->args->engine;
    int64_t n = r->hidden, all = r->steps * r->rows;
    const REAL *dgates = s->dgates + d * all * 3 * n, *dcandidate = s->dcandidate + d * all * n, *previous = s->previous + d * all * n;
    if (dr) {
        e->GEMM(e, 1, 0, 2 * n, n, all, 1, dgates, 3 * n, previous, n, 0, dr + d * 3 * n * n, n, NULL, 0);
        if (r->option) e->GEMM(e, 1, 0, n, n, all, 1, dcandidate, n, previous, n, 0, dr + d * 3 * n * n + 2 * n * n, n, NULL, 0);
        else e->GEMM(e, 1, 0, n, n, all, 1, dgates + 2 * n, 3 * n, dcandidate, n, 0, dr + d * 3 * n * n + 2 * n * n, n, NULL, 0);
    }
    if (db) {
        REAL *to = db + d * 6 * n;
        NAMED(sum_columns)(r, dgates, all, 3 * n, to);
        memcpy(to + 3 * n, to, 3 * n * sizeof(REAL));
        if (r->option) NAMED(sum_columns)(r, dcandidate, all, n, to + 5 * n);
    }
}

/* (x, W, R, B, lengths, h0, y, gates, dy, dh) -> (dx, dW, dR, dB, dh0, dgates), each output optional. Scratch: dgates, dcandidate, previous, linear, dh,
 * work, packed R. */
static int NAMED(gru_grad)(const KernelArgs *args)
{
    NAMED(GruGrad) s = { .r = recurrence_of(args, 3, 4), .w_recurrent = NAMED(in)(args, 2), .gates = NAMED(in)(args, 7), .dy = NAMED(in)(args, 8) };
    Recurrence *r = &s.r; const Engine *e = args->engine;
    int64_t n = r->hidden, states = r->directions * r->rows * n, all = r->steps * r->rows, whole = r->directions * all * n;
    const REAL *b = NAMED(in)(args, 3);
    s.dgates = args->scratch; s.dcandidate = s.dgates + 3 * whole;
    REAL *previous = s.dcandidate + whole, *linear = previous + whole;
    s.dh = linear + whole; s.work = s.dh + states;
    REAL *panels = s.work + states, *candidates = panels + r->directions * NAMED(panels)(2 * n, n);
    s.panels = panels; s.candidates = candidates;
    s.previous = previous; s.linear = r->option ? linear : NULL;
    NAMED(copy_or_zero)(s.dh, NAMED(in)(args, 9), states);
    for (int64_t d = 0; d < r->directions; d++) {
        NAMED(join)(r, d, NULL, 0, NAMED(in)(args, 6), NAMED(in)(args, 5), n, previous + d * all * n);
        NAMED(pack_weights)(args->engine, s.w_recurrent + d * 3 * n * n, 0, 2 * n, n, panels + d * NAMED(panels)(2 * n, n));
        NAMED(pack_weights)(args->engine, s.w_recurrent + d * 3 * n * n + 2 * n * n, 0, n, n, candidates + d * NAMED(panels)(n, n));
        if (r->option) e->GEMM(e, 0, 1, all, n, n, 1, previous + d * all * n, n, s.w_recurrent + d * 3 * n * n + 2 * n * n, n, 0, linear + d * all * n, n,
                               b ? b + d * 6 * n + 5 * n : NULL, 0);
    }
    e->parallel_for(e, NAMED(gru_grad_item), &s, r->directions * r->blocks);
    for (int64_t d = 0; d < r->directions; d++) {
        const REAL *dgates = s.dgates + d * all * 3 * n;
        REAL *dw = NAMED(out)(args, 1);
        NAMED(input_gradient)(r, d, dgates, NAMED(in)(args, 1), NAMED(out)(args, 0));
        if (dw) e->GEMM(e, 1, 0, 3 * n, r->inputs, all, 1, dgates, 3 * n, NAMED(in)(args, 0), r->inputs, 0, dw + d * 3 * n * r->inputs, r->inputs, NULL, 0);
        NAMED(gru_weight_gradients)(&s, d, NAMED(out)(args, 2), NAMED(out)(args, 3));
        NAMED(copy_gate_gradients)(r, d, dgates, NAMED(out)(args, 5));
    }
    if (NAMED(out)(args, 4)) memcpy(NAMED(out)(args, 4), s.dh, states * sizeof(REAL));
    return STATUS_OK;
}
