/* The plain RNN, for one element type; included by recurrent.h: h = tanh(x W + h_before R + b), or relu with the option. */

typedef struct NAMED(Rnn) {
    Recurrence r;
    const REAL *transposed;                             /* R^T [directions, hidden, hidden] */
    REAL *gates, *y, *h;
} NAMED(Rnn);

static void NAMED(rnn_item)(void *context, int64_t item, int64_t worker)
{
    const NAMED(Rnn) *s = context; const Recurrence *r = &s->r; const Engine *e = r->args->engine;
    int64_t n = r->hidden, d = item / r->blocks, first = item % r->blocks * BLOCK_OF_ROWS;
    int64_t count = r->rows - first < BLOCK_OF_ROWS ? r->rows - first : BLOCK_OF_ROWS;
    REAL *h = s->h + (d * r->rows + first) * n;
    for (int64_t k = 0; k < r->steps; k++) {
        int64_t time = time_of(r, d, k);
        REAL *gates = s->gates + ((d * r->steps + time) * r->rows + first) * n;
        e->GEMM_SERIAL(e, worker, 0, 0, count, n, n, 1, h, n, s->transposed + d * n * n, n, 1, gates, n, NULL, 0);
        for (int64_t row = 0; row < count; row++) {
            REAL *g = gates + row * n, *y = s->y ? s->y + ((time * r->directions + d) * r->rows + first + row) * n : NULL;
            int runs = runs_at(r, first + row, time);
            if (runs) {
                for (int64_t j = 0; j < n; j++) g[j] = r->option ? (g[j] < 0 ? 0 : g[j]) : TANH(g[j]);
                memcpy(h + row * n, g, n * sizeof(REAL));
            }
            if (y) NAMED(copy_or_zero)(y, runs ? g : NULL, n);
        }
    }
}

/* (x, W, R, B, lengths, h0) -> (y, h), each optional; scratch: bias, R^T, h, gates */
static int NAMED(rnn)(const KernelArgs *args)
{
    NAMED(Rnn) s = { .r = recurrence_of(args, 1, 4), .y = NAMED(out)(args, 0) };
    Recurrence *r = &s.r;
    int64_t n = r->hidden, states = r->directions * r->rows * n;
    REAL *bias = args->scratch, *transposed = bias + n;
    s.h = transposed + r->directions * n * n; s.gates = s.h + states;
    s.transposed = transposed;
    NAMED(copy_or_zero)(s.h, NAMED(in)(args, 5), states);
    for (int64_t d = 0; d < r->directions; d++) {
        NAMED(transpose)(NAMED(in)(args, 2) + d * n * n, n, n, transposed + d * n * n);
        NAMED(project_inputs)(r, d, NAMED(in)(args, 0), NAMED(in)(args, 1), NAMED(in)(args, 3), 1, bias, s.gates + d * r->steps * r->rows * n);
    }
    args->engine->parallel_for(args->engine, NAMED(rnn_item), &s, r->directions * r->blocks);
    if (NAMED(out)(args, 1)) memcpy(NAMED(out)(args, 1), s.h, states * sizeof(REAL));
    return STATUS_OK;
}

typedef struct NAMED(RnnGrad) {
    Recurrence r;
    const REAL *w_recurrent, *y, *dy;
    REAL *dgates, *dh;
} NAMED(RnnGrad);

static void NAMED(rnn_grad_item)(void *context, int64_t item, int64_t worker)
{
    const NAMED(RnnGrad) *s = context; const Recurrence *r = &s->r; const Engine *e = r->args->engine;
    int64_t n = r->hidden, d = item / r->blocks, first = item % r->blocks * BLOCK_OF_ROWS;
    int64_t count = r->rows - first < BLOCK_OF_ROWS ? r->rows - first : BLOCK_OF_ROWS;
    REAL *dh = s->dh + (d * r->rows + first) * n;
    for (int64_t k = r->steps - 1; k >= 0; k--) {
        int64_t time = time_of(r, d, k);
        REAL *dgates = s->dgates + ((d * r->steps + time) * r->rows + first) * n;
        for (int64_t row = 0; row < count; row++) {
            REAL *dg = dgates + row * n, *own = dh + row * n;
            const REAL *y = s->y + ((time * r->directions + d) * r->rows + first + row) * n;
            if (!runs_at(r, first + row, time)) { memset(dg, 0, n * sizeof(REAL)); continue; }
            NAMED(add_output_gradient)(r, d, time, first + row, s->dy, own);
            for (int64_t j = 0; j < n; j++) { dg[j] = own[j] * (r->option ? (y[j] > 0) : 1 - y[j] * y[j]); own[j] = 0; }
        }
        e->GEMM_SERIAL(e, worker, 0, 0, count, n, n, 1, dgates, n, s->w_recurrent + d * n * n, n, 1, dh, n, NULL, 0);
    }
}

/* (x, W, R, lengths, h0, y, dy, dh) -> (dx, dW, dR, dB, dh0), each output optional; scratch: dgates, states before, dh */
static int NAMED(rnn_grad)(const KernelArgs *args)
{
    NAMED(RnnGrad) s = { .r = recurrence_of(args, 1, 3), .w_recurrent = NAMED(in)(args, 2), .y = NAMED(in)(args, 5), .dy = NAMED(in)(args, 6) };
    Recurrence *r = &s.r; const Engine *e = args->engine;
    int64_t n = r->hidden, states = r->directions * r->rows * n, all = r->steps * r->rows;
    s.dgates = args->scratch;
    REAL *previous = s.dgates + r->directions * all * n;
    s.dh = previous + all * n;
    NAMED(copy_or_zero)(s.dh, NAMED(in)(args, 7), states);
    e->parallel_for(e, NAMED(rnn_grad_item), &s, r->directions * r->blocks);
    for (int64_t d = 0; d < r->directions; d++) {
        const REAL *dgates = s.dgates + d * all * n;
        REAL *dr = NAMED(out)(args, 2), *db = NAMED(out)(args, 3);
        NAMED(input_gradients)(r, d, dgates, NAMED(in)(args, 0), NAMED(in)(args, 1), NAMED(out)(args, 0), NAMED(out)(args, 1));
        if (dr) {
            NAMED(previous_states)(r, d, s.y, NAMED(in)(args, 4), previous);
            e->GEMM(e, 1, 0, n, n, all, 1, dgates, n, previous, n, 0, dr + d * n * n, n, NULL, 0);
        }
        if (db) {
            NAMED(sum_columns)(r, dgates, all, n, db + d * 2 * n);
            memcpy(db + d * 2 * n + n, db + d * 2 * n, n * sizeof(REAL));
        }
    }
    if (NAMED(out)(args, 4)) memcpy(NAMED(out)(args, 4), s.dh, states * sizeof(REAL));
    return STATUS_OK;
}
