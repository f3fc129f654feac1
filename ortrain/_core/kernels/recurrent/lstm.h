/* LSTM, for one element type; included by recurrent.h. Gates in the order i, o, f, c:
 * i, f = sigmoid(… + P c_before), c~ = tanh(…), c = f c_before + i c~, o = sigmoid(… + P c), h = o tanh(c). */

typedef struct NAMED(Lstm) {
    Recurrence r;
    const REAL *panels, *peepholes;                     /* of R^T [hidden, 4 hidden], per direction; P [directions, 3 hidden] or NULL */
    REAL *gates, *y, *cells, *h, *c;                    /* cells [directions, steps, rows, hidden] or NULL; h, c: the running states */
} NAMED(Lstm);

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

static void NAMED(lstm_item)(void *context, int64_t item, int64_t worker)
{
    const NAMED(Lstm) *s = context; const Recurrence *r = &s->r; const Engine *e = r->args->engine;
    RowBlock block = rows_of_item(r, item);
    int64_t n = r->hidden, d = block.direction, first = block.first, count = block.count;
    REAL *h = s->h + (d * r->rows + first) * n, *c = s->c + (d * r->rows + first) * n;
    for (int64_t k = 0; k < r->steps; k++) {
        int64_t time = time_of(r, d, k);
        REAL *gates = s->gates + ((d * r->steps + time) * r->rows + first) * 4 * n;
        NAMED(step_product)(e, worker, count, 4 * n, n, h, n, s->panels + d * NAMED(panels)(n, 4 * n), 1, gates, 4 * n);
        for (int64_t row = 0; row < count; row++) {
            REAL *y = s->y ? s->y + ((time * r->directions + d) * r->rows + first + row) * n : NULL;
            int runs = runs_at(r, first + row, time);
            if (runs) NAMED(lstm_cell)(n, gates + row * 4 * n, s->peepholes ? s->peepholes + d * 3 * n : NULL, c + row * n, h + row * n);
            if (y) NAMED(copy_or_zero)(y, runs ? h + row * n : NULL, n);
            if (s->cells) memcpy(s->cells + ((d * r->steps + time) * r->rows + first + row) * n, c + row * n, n * sizeof(REAL));
        }
    }
}

/* (x, W, R, B, lengths, h0, c0, P) -> (y, h, c, cells, gates), each output optional; scratch: bias, panels, h, c, then the gates if they are not an output */
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
        NAMED(lay_out)(NAMED(in)(args, 2) + d * 4 * n * n, 1, n, 4 * n, panels + d * NAMED(panels)(n, 4 * n));
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
    REAL *dgates, *dh, *dc;                             /* dgates as the gates; dh, dc [directions, rows, hidden]: of the running states */
} NAMED(LstmGrad);

/* dg of one row; dh comes in, dc is carried on; before: the cell state before the step, or NULL for 0.
 * Whether there is one, and peepholes, is asked outside of the loops: inside them it kept the loop scalar, a fifth of a step of 128 units. */
static void NAMED(lstm_cell_grad)(int64_t n, const REAL *restrict g, const REAL *restrict p, const REAL *restrict c, const REAL *restrict before,
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
    if (before)
        for (int64_t j = 0; j < n; j++) df[j] = dc[j] * before[j] * f[j] * (1 - f[j]);
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

/* the cell state before step k of a row: c0 at its first step */
static inline const REAL *NAMED(cell_before)(const NAMED(LstmGrad) *s, int64_t d, int64_t k, int64_t row)
{
    const Recurrence *r = &s->r;
    if (k > 0 && runs_at(r, row, time_of(r, d, k - 1))) return s->cells + ((d * r->steps + time_of(r, d, k - 1)) * r->rows + row) * r->hidden;
    return s->c0 ? s->c0 + (d * r->rows + row) * r->hidden : NULL;
}

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
            if (!runs_at(r, first + row, time)) { memset(dgates + row * 4 * n, 0, 4 * n * sizeof(REAL)); continue; }
            NAMED(add_output_gradient)(r, d, time, first + row, s->dy, dh + row * n);
            NAMED(lstm_cell_grad)(n, s->gates + (at + row) * 4 * n, s->peepholes ? s->peepholes + d * 3 * n : NULL, s->cells + (at + row) * n,
                                  NAMED(cell_before)(s, d, k, first + row), dh + row * n, dc + row * n, dgates + row * 4 * n);
            memset(dh + row * n, 0, n * sizeof(REAL));
        }
        NAMED(step_product)(e, worker, count, n, 4 * n, dgates, 4 * n, s->panels + d * NAMED(panels)(4 * n, n), 1, dh, n);
    }
}

/* dP [3 hidden] of direction d: sums of di c_before, do c, df c_before */
static void NAMED(peephole_gradient)(const NAMED(LstmGrad) *s, int64_t d, REAL *dp)
{
    const Recurrence *r = &s->r;
    int64_t n = r->hidden;
    memset(dp, 0, 3 * n * sizeof(REAL));
    for (int64_t k = 0; k < r->steps; k++)
        for (int64_t row = 0; row < r->rows; row++) {
            int64_t time = time_of(r, d, k), at = (d * r->steps + time) * r->rows + row;
            if (!runs_at(r, row, time)) continue;
            const REAL *dg = s->dgates + at * 4 * n, *c = s->cells + at * n, *before = NAMED(cell_before)(s, d, k, row);
            for (int64_t j = 0; j < n; j++) {
                dp[n + j] += dg[n + j] * c[j];
                if (before) { dp[j] += dg[j] * before[j]; dp[2 * n + j] += dg[2 * n + j] * before[j]; }
            }
        }
}

/* (x, W, R, lengths, h0, c0, y, cells, gates, dy, dh, dc, P) -> (dx, dW, dR, dB, dh0, dc0, dP), each output optional;
 * scratch: dgates, dh, dc, panels of R, then those of weight_gradients */
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
    for (int64_t d = 0; d < r->directions; d++) NAMED(lay_out)(NAMED(in)(args, 2) + d * 4 * n * n, 0, 4 * n, n, panels + d * NAMED(panels)(4 * n, n));
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
        if (dp) NAMED(peephole_gradient)(&s, d, dp + d * 3 * n);
    }
    if (NAMED(out)(args, 4)) memcpy(NAMED(out)(args, 4), s.dh, states * sizeof(REAL));
    if (NAMED(out)(args, 5)) memcpy(NAMED(out)(args, 5), s.dc, states * sizeof(REAL));
    return STATUS_OK;
}
