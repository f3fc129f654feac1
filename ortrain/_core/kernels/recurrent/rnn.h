/* ONNX RNN and its gradient for one element type REAL; included by recurrent.h, which documents shapes and ints.
 *
 *   h = tanh(x W^T + h_previous R^T + Wb + Rb), or ReLU instead of tanh with the option */

typedef struct NAMED(Rnn) {
    Recurrence r;
    const REAL *panels;                                 /* packed R^T [hidden, hidden] per direction */
    REAL *gates, *y, *h;
} NAMED(Rnn);

/* All steps of a block of rows in one direction. */
static void NAMED(rnn_item)(void *context, int64_t item, int64_t worker)
{
    const NAMED(Rnn) *s = context; const Recurrence *r = &s->r; const Engine *e = r->args->engine;
    RowBlock block = rows_of_item(r, item);
    int64_t n = r->hidden, d = block.direction, first = block.first, count = block.count;
    REAL *h = s->h + (d * r->rows + first) * n;
    for (int64_t k = 0; k < r->steps; k++) {
        int64_t time = time_of(r, d, k);
        REAL *gates = s->gates + ((d * r->steps + time) * r->rows + first) * n;
        NAMED(step_gemm)(e, worker, count, n, n, h, n, s->panels + d * NAMED(panels)(n, n), 1, gates, n);
        for (int64_t row = 0; row < count; row++) {
            REAL *g = gates + row * n, *y = s->y ? s->y + output_row(r->y_strides, d, time, first + row) : NULL;
            int active = is_active(r, first + row, time);
            if (active) {
                for (int64_t j = 0; j < n; j++) g[j] = r->option ? (g[j] < 0 ? 0 : g[j]) : TANH(g[j]);
                memcpy(h + row * n, g, n * sizeof(REAL));
            }
            if (y) NAMED(copy_or_zero)(y, active ? g : NULL, n);
        }
    }
}

/* (x, W, R, B, lengths, h0) -> (y, h), each output optional. Scratch: bias, packed R, h, gates. */
static int NAMED(rnn)(const KernelArgs *args)
{
    NAMED(Rnn) s = { .r = recurrence_of(args, 1, 4), .y = NAMED(out)(args, 0) };
    Recurrence *r = &s.r;
    int64_t n = r->hidden, states = r->directions * r->rows * n;
    REAL *bias = args->scratch, *panels = bias + n;
    s.h = panels + r->directions * NAMED(panels)(n, n); s.gates = s.h + states;
    s.panels = panels;
    NAMED(copy_or_zero)(s.h, NAMED(in)(args, 5), states);
    for (int64_t d = 0; d < r->directions; d++) {
        NAMED(pack_weights)(args->engine, NAMED(in)(args, 2) + d * n * n, 1, n, n, panels + d * NAMED(panels)(n, n));
        NAMED(project_inputs)(r, d, NAMED(in)(args, 0), NAMED(in)(args, 1), NAMED(in)(args, 3), 1, bias, s.gates + d * r->steps * r->rows * n);
    }
    args->engine->parallel_for(args->engine, NAMED(rnn_item), &s, r->directions * r->blocks);
    if (NAMED(out)(args, 1)) memcpy(NAMED(out)(args, 1), s.h, states * sizeof(REAL));
    return STATUS_OK;
}

typedef struct NAMED(RnnGrad) {
    Recurrence r;
    const REAL *panels, *y, *dy;
    REAL *dgates, *dh;
} NAMED(RnnGrad);

/* All steps of a block of rows in one direction, in reverse. */
static void NAMED(rnn_grad_item)(void *context, int64_t item, int64_t worker)
{
    const NAMED(RnnGrad) *s = context; const Recurrence *r = &s->r; const Engine *e = r->args->engine;
    RowBlock block = rows_of_item(r, item);
    int64_t n = r->hidden, d = block.direction, first = block.first, count = block.count;
    REAL *dh = s->dh + (d * r->rows + first) * n;
    for (int64_t k = r->steps - 1; k >= 0; k--) {
        int64_t time = time_of(r, d, k);
        REAL *dgates = s->dgates + ((d * r->steps + time) * r->rows + first) * n;
        for (int64_t row = 0; row < count; row++) {
            REAL *dg = dgates + row * n, *dh_row = dh + row * n;
            const REAL *y = s->y + output_row(r->y_strides, d, time, first + row);
            if (!is_active(r, first + row, time)) { memset(dg, 0, n * sizeof(REAL)); continue; }
            NAMED(add_output_gradient)(r, d, time, first + row, s->dy, dh_row);
            for (int64_t j = 0; j < n; j++) { dg[j] = dh_row[j] * (r->option ? (y[j] > 0) : 1 - y[j] * y[j]); dh_row[j] = 0; }
        }
        NAMED(step_gemm)(e, worker, count, n, n, dgates, n, s->panels + d * NAMED(panels)(n, n), 1, dh, n);
    }
}

/* (x, W, R, lengths, h0, y, dy, dh) -> (dx, dW, dR, dB, dh0, dgates), each output optional. Scratch: dgates, dh, packed R, then `both`
 * and `joined` of weight_gradients. */
static int NAMED(rnn_grad)(const KernelArgs *args)
{
    NAMED(RnnGrad) s = { .r = recurrence_of(args, 1, 3), .y = NAMED(in)(args, 5), .dy = NAMED(in)(args, 6) };
    Recurrence *r = &s.r; const Engine *e = args->engine;
    int64_t n = r->hidden, states = r->directions * r->rows * n, all = r->steps * r->rows;
    s.dgates = args->scratch;
    s.dh = s.dgates + r->directions * all * n;
    REAL *panels = s.dh + states, *both = panels + r->directions * NAMED(panels)(n, n), *joined = both + n * (r->inputs + n);
    s.panels = panels;
    for (int64_t d = 0; d < r->directions; d++) NAMED(pack_weights)(args->engine, NAMED(in)(args, 2) + d * n * n, 0, n, n, panels + d * NAMED(panels)(n, n));
    NAMED(copy_or_zero)(s.dh, NAMED(in)(args, 7), states);
    e->parallel_for(e, NAMED(rnn_grad_item), &s, r->directions * r->blocks);
    for (int64_t d = 0; d < r->directions; d++) {
        const REAL *dgates = s.dgates + d * all * n;
        REAL *db = NAMED(out)(args, 3);
        NAMED(input_gradient)(r, d, dgates, NAMED(in)(args, 1), NAMED(out)(args, 0));
        NAMED(weight_gradients)(r, d, dgates, NAMED(in)(args, 0), s.y, NAMED(in)(args, 4), joined, both, NAMED(out)(args, 1), NAMED(out)(args, 2));
        NAMED(copy_gate_gradients)(r, d, dgates, NAMED(out)(args, 5));
        if (db) {
            NAMED(sum_columns)(r, dgates, all, n, db + d * 2 * n);
            memcpy(db + d * 2 * n + n, db + d * 2 * n, n * sizeof(REAL));
        }
    }
    if (NAMED(out)(args, 4)) memcpy(NAMED(out)(args, 4), s.dh, states * sizeof(REAL));
    return STATUS_OK;
}
