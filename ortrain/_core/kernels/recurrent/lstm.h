/* ONNX LSTM and its gradient for one element type REAL; included by recurrent.h, which documents shapes and ints. With a = x W^T + h_previous R^T + Wb + Rb,
 * and gates in the order i, o, f, c:
 *
 *   i = sigmoid(a_i + P_i c_previous), f = sigmoid(a_f + P_f c_previous), u = tanh(a_c)
 *   c = f c_previous + i u
 *   o = sigmoid(a_o + P_o c), h = o tanh(c)
 *
 * P [directions, 3 * hidden], in the order i, o, f: peephole weights, may be absent. */

typedef struct NAMED(Lstm) {
    Recurrence r;
    const REAL *panels, *peepholes;                     /* packed R^T [hidden, 4 * hidden] per direction; P or NULL */
    REAL *gates, *y, *cells, *h, *c;                    /* cells [directions, steps, rows, hidden] or NULL; h, c [directions, rows, hidden]: current states */
} NAMED(Lstm);

/* One step of one sequence: g [4 * n] holds a and becomes the gates; c and h [n] become the new states. p: peepholes [3 * n] or NULL. */
static void NAMED(lstm_cell)(int64_t n, REAL *restrict g, const REAL *restrict p, REAL *restrict c, REAL *restrict h)
{
    REAL *restrict i = g, *restrict o = g + n, *restrict f = g + 2 * n, *restrict u = g + 3 * n;
    if (p)
        for (int64_t j = 0; j < n; j++) { i[j] += p[j] * c[j]; f[j] += p[2 * n + j] * c[j]; }
    for (int64_t j = 0; j < n; j++) {
        i[j] = SIGMOID(i[j]); f[j] = SIGMOID(f[j]); u[j] = TANH(u[j]);
        c[j] = f[j] * c[j] + i[j] * u[j];
    }
    if (p)
        for (int64_t j = 0; j < n; j++) o[j] += p[n + j] * c[j];
    for (int64_t j = 0; j < n; j++) { o[j] = SIGMOID(o[j]); h[j] = o[j] * TANH(c[j]); }
}

/* All steps of a block of rows in one direction. */
static void NAMED(lstm_item)(void *context, int64_t item, int64_t worker)
{
    const NAMED(Lstm) *s = context; const Recurrence *r = &s->r; const Engine *e = r->args->engine;
    RowBlock block = rows_of_item(r, item);
    int64_t n = r->hidden, d = block.direction, first = block.first, count = block.count;
    REAL *h = s->h + (d * r->rows + first) * n, *c = s->c + (d * r->rows + first) * n;
    for (int64_t k = 0; k < r->steps; k++) {
        int64_t time = time_of(r, d, k);
        REAL *gates = s->gates + ((d * r->steps + time) * r->rows + first) * 4 * n;
        NAMED(step_gemm)(e, worker, count, 4 * n, n, h, n, s->panels + d * NAMED(panels)(n, 4 * n), 1, gates, 4 * n);
        for (int64_t row = 0; row < count; row++) {
            REAL *y = s->y ? s->y + output_row(r->y_strides, d, time, first + row) : NULL;
            int active = is_active(r, first + row, time);
            if (active) NAMED(lstm_cell)(n, gates + row * 4 * n, s->peepholes ? s->peepholes + d * 3 * n : NULL, c + row * n, h + row * n);
            if (y) NAMED(copy_or_zero)(y, active ? h + row * n : NULL, n);
            if (s->cells) memcpy(s->cells + ((d * r->steps + time) * r->rows + first + row) * n, c + row * n, n * sizeof(REAL));
        }
    }
}

/* (x, W, R, B, lengths, h0, c0, P) -> (y, h, c, cells, gates), each output optional; cells [directions, steps, rows, hidden]: the cell state after each step.
 * Scratch: bias, packed R, h, c, then the gates unless they are an output. */
static int NAMED(lstm)(const KernelArgs *args)
{
    NAMED(Lstm) s = { .r = recurrence_of(args, 4, 4), .peepholes = NAMED(in)(args, 7), .y = NAMED(out)(args, 0), .cells = NAMED(out)(args, 3) };
    Recurrence *r = &s.r;
    int64_t n = r->hidden, states = r->directions * r->rows * n;
    REAL *bias = args->scratch, *panels = bias + 4 * n, *gates = NAMED(out)(args, 4);
    s.h = panels + r->directions * NAMED(panels)(n, 4 * n); s.c = s.h + states;
    s.gates = gates ? gates : s.c + states;
    s.panels = panels;
    NAMED(copy_or_zero)(s.h, NAMED(in)(args, 5), states);
    NAMED(copy_or_zero)(s.c, NAMED(in)(args, 6), states);
    for (int64_t d = 0; d < r->directions; d++) {
        NAMED(pack_weights)(args->engine, NAMED(in)(args, 2) + d * 4 * n * n, 1, n, 4 * n, panels + d * NAMED(panels)(n, 4 * n));
        NAMED(project_inputs)(r, d, NAMED(in)(args, 0), NAMED(in)(args, 1), NAMED(in)(args, 3), 4, bias, s.gates + d * r->steps * r->rows * 4 * n);
    }
    args->engine->parallel_for(args->engine, NAMED(lstm_item), &s, r->directions * r->blocks);
    if (NAMED(out)(args, 1)) memcpy(NAMED(out)(args, 1), s.h, states * sizeof(REAL));
    if (NAMED(out)(args, 2)) memcpy(NAMED(out)(args, 2), s.c, states * sizeof(REAL));
    return STATUS_OK;
}

typedef struct NAMED(LstmGrad) {
    Recurrence r;
    const REAL *panels, *peepholes, *gates, *cells, *c0, *dy;
    REAL *dgates, *dh, *dc;                             /* dgates: like gates; dh, dc [directions, rows, hidden]: of the current states */
} NAMED(LstmGrad);

/* The gradient of one step of one sequence: dg [4 * n] from dh [n]; dc [n] becomes the gradient of c_previous. previous: c_previous or NULL for 0.
 *
 * `previous` and the peepholes p are tested outside the loops: inside they prevented vectorization, which took a fifth of a step of 128 units. */
static void NAMED(lstm_cell_grad)(int64_t n, const REAL *restrict g, const REAL *restrict p, const REAL *restrict c, const REAL *restrict previous,
                                  const REAL *restrict dh, REAL *restrict dc, REAL *restrict dg)
{
    const REAL *restrict i = g, *restrict o = g + n, *restrict f = g + 2 * n, *restrict u = g + 3 * n;
    REAL *restrict di = dg, *restrict do_ = dg + n, *restrict df = dg + 2 * n, *restrict du = dg + 3 * n;
    for (int64_t j = 0; j < n; j++) {
        REAL t = TANH(c[j]);
        do_[j] = dh[j] * t * o[j] * (1 - o[j]);
        dc[j] += dh[j] * o[j] * (1 - t * t);
    }
    if (p)
        for (int64_t j = 0; j < n; j++) dc[j] += do_[j] * p[n + j];
    if (previous)
        for (int64_t j = 0; j < n; j++) df[j] = dc[j] * previous[j] * f[j] * (1 - f[j]);
    else
        memset(df, 0, n * sizeof(REAL));
    for (int64_t j = 0; j < n; j++) {
        REAL d = dc[j];
        di[j] = d * u[j] * i[j] * (1 - i[j]);
        du[j] = d * i[j] * (1 - u[j] * u[j]);
        dc[j] = d * f[j];
    }
    if (p)
        for (int64_t j = 0; j < n; j++) dc[j] += di[j] * p[j] + df[j] * p[2 * n + j];
}

/* Return the cell state of a row previous step k: c0 (or NULL for 0) at its first step. */
static inline const REAL *NAMED(previous_cell)(const NAMED(LstmGrad) *s, int64_t d, int64_t k, int64_t row)
{
    const Recurrence *r = &s->r;
    if (k > 0 && is_active(r, row, time_of(r, d, k - 1))) return s->cells + ((d * r->steps + time_of(r, d, k - 1)) * r->rows + row) * r->hidden;
    return s->c0 ? s->c0 + (d * r->rows + row) * r->hidden : NULL;
}

/* All steps of a block of rows in one direction, in reverse. */
static void NAMED(lstm_grad_item)(void *context, int64_t item, int64_t worker)
{
    const NAMED(LstmGrad) *s = context; const Recurrence *r = &s->r; const Engine *e = r->args->engine;
    RowBlock block = rows_of_item(r, item);
    int64_t n = r->hidden, d = block.direction, first = block.first, count = block.count;
    REAL *dh = s->dh + (d * r->rows + first) * n, *dc = s->dc + (d * r->rows + first) * n;
    for (int64_t k = r->steps - 1; k >= 0; k--) {
        int64_t time = time_of(r, d, k), at = (d * r->steps + time) * r->rows + first;
        REAL *dgates = s->dgates + at * 4 * n;
        for (int64_t row = 0; row < count; row++) {
            if (!is_active(r, first + row, time)) { memset(dgates + row * 4 * n, 0, 4 * n * sizeof(REAL)); continue; }
            NAMED(add_output_gradient)(r, d, time, first + row, s->dy, dh + row * n);
            NAMED(lstm_cell_grad)(n, s->gates + (at + row) * 4 * n, s->peepholes ? s->peepholes + d * 3 * n : NULL, s->cells + (at + row) * n,
                                  NAMED(previous_cell)(s, d, k, first + row), dh + row * n, dc + row * n, dgates + row * 4 * n);
            memset(dh + row * n, 0, n * sizeof(REAL));
        }
        NAMED(step_gemm)(e, worker, count, n, 4 * n, dgates, 4 * n, s->panels + d * NAMED(panels)(4 * n, n), 1, dh, n);
    }
}

/* dP [3 * hidden] of direction d: the sums of di c_previous, do c and df c_previous over steps and rows */
static void NAMED(peephole_gradient)(const NAMED(LstmGrad) *s, int64_t d, REAL *dp)
{
    const Recurrence *r = &s->r;
    int64_t n = r->hidden;
    memset(dp, 0, 3 * n * sizeof(REAL));
    for (int64_t k = 0; k < r->steps; k++)
        for (int64_t row = 0; row < r->rows; row++) {
            int64_t time = time_of(r, d, k), at = (d * r->steps + time) * r->rows + row;
            if (!is_active(r, row, time)) continue;
            const REAL *dg = s->dgates + at * 4 * n, *c = s->cells + at * n, *previous = NAMED(previous_cell)(s, d, k, row);
            for (int64_t j = 0; j < n; j++) {
                dp[n + j] += dg[n + j] * c[j];
                if (previous) { dp[j] += dg[j] * previous[j]; dp[2 * n + j] += dg[2 * n + j] * previous[j]; }
            }
        }
}

/* (x, W, R, lengths, h0, c0, y, cells, gates, dy, dh, dc, P) -> (dx, dW, dR, dB, dh0, dc0, dP, dgates), each output optional. Scratch:
 * dgates, dh, dc, packed R, then `both` and `joined` of weight_gradients. */
static int NAMED(lstm_grad)(const KernelArgs *args)
{
    NAMED(LstmGrad) s = { .r = recurrence_of(args, 4, 3), .c0 = NAMED(in)(args, 5), .cells = NAMED(in)(args, 7),
                          .gates = NAMED(in)(args, 8), .dy = NAMED(in)(args, 9), .peepholes = NAMED(in)(args, 12) };
    Recurrence *r = &s.r; const Engine *e = args->engine;
    int64_t n = r->hidden, states = r->directions * r->rows * n, all = r->steps * r->rows;
    s.dgates = args->scratch;
    s.dh = s.dgates + r->directions * all * 4 * n; s.dc = s.dh + states;
    REAL *panels = s.dc + states, *both = panels + r->directions * NAMED(panels)(4 * n, n), *joined = both + 4 * n * (r->inputs + n);
    s.panels = panels;
    for (int64_t d = 0; d < r->directions; d++)
        NAMED(pack_weights)(e, NAMED(in)(args, 2) + d * 4 * n * n, 0, 4 * n, n, panels + d * NAMED(panels)(4 * n, n));
    NAMED(copy_or_zero)(s.dh, NAMED(in)(args, 10), states);
    NAMED(copy_or_zero)(s.dc, NAMED(in)(args, 11), states);
    e->parallel_for(e, NAMED(lstm_grad_item), &s, r->directions * r->blocks);
    for (int64_t d = 0; d < r->directions; d++) {
        const REAL *dgates = s.dgates + d * all * 4 * n;
        REAL *db = NAMED(out)(args, 3), *dp = NAMED(out)(args, 6);
        NAMED(input_gradient)(r, d, dgates, NAMED(in)(args, 1), NAMED(out)(args, 0));
        NAMED(weight_gradients)(r, d, dgates, NAMED(in)(args, 0), NAMED(in)(args, 6), NAMED(in)(args, 4), joined, both, NAMED(out)(args, 1), NAMED(out)(args, 2));
        if (db) {
            NAMED(sum_columns)(r, dgates, all, 4 * n, db + d * 8 * n);
            memcpy(db + d * 8 * n + 4 * n, db + d * 8 * n, 4 * n * sizeof(REAL));
        }
        NAMED(copy_gate_gradients)(r, d, dgates, NAMED(out)(args, 7));
        if (dp) NAMED(peephole_gradient)(&s, d, dp + d * 3 * n);
    }
    if (NAMED(out)(args, 4)) memcpy(NAMED(out)(args, 4), s.dh, states * sizeof(REAL));
    if (NAMED(out)(args, 5)) memcpy(NAMED(out)(args, 5), s.dc, states * sizeof(REAL));
    return STATUS_OK;
}
