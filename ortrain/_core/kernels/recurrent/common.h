/* Parts shared by LSTM, GRU and RNN, for one element type REAL. Included by recurrent.h once per type, therefore without include guard. */

/* Return the data of an input or output, NULL if it is absent. */
static inline REAL *NAMED(in)(const KernelArgs *args, int i) { return i < args->n_inputs ? args->inputs[i].data : NULL; }
static inline REAL *NAMED(out)(const KernelArgs *args, int i) { return i < args->n_outputs ? args->outputs[i].data : NULL; }

/* gates [steps * rows, gates * hidden] of direction d = x W^T + Wb + Rb. Rb is added for the first `rb_gates` gates only. bias: scratch [gates * hidden]. */
static void NAMED(project_inputs)(const Recurrence *r, int64_t d, const REAL *x, const REAL *w, const REAL *b, int64_t rb_gates, REAL *bias, REAL *gates)
{
    int64_t width = r->gates * r->hidden;
    for (int64_t j = 0; b && j < width; j++) bias[j] = b[d * 2 * width + j] + (j < rb_gates * r->hidden ? b[d * 2 * width + width + j] : 0);
    r->args->engine->GEMM(r->args->engine, 0, 1, r->steps * r->rows, width, r->inputs, 1, x, r->inputs, w + d * width * r->inputs, r->inputs, 0, gates, width,
                          b ? bias : NULL, 0);
}

/* to [n] = from [n], or 0 where from is NULL */
static void NAMED(copy_or_zero)(REAL *to, const REAL *from, int64_t n)
{
    if (from) memcpy(to, from, n * sizeof(REAL));
    else memset(to, 0, n * sizeof(REAL));
}

typedef struct NAMED(Joined) {
    const Recurrence *r;
    int64_t direction, inputs, hidden;                  /* elements of x and of the state in a row of `joined`; either may be 0 */
    const REAL *x, *y, *initial;
    REAL *joined;
} NAMED(Joined);

/* Fill the rows of the k-th step. */
static void NAMED(join_item)(void *context, int64_t k, int64_t worker)
{
    const NAMED(Joined) *j = context; const Recurrence *r = j->r; (void)worker;
    int64_t d = j->direction, h = r->hidden, time = time_of(r, d, k), previous = k > 0 ? time_of(r, d, k - 1) : 0;
    for (int64_t row = 0; row < r->rows; row++) {
        REAL *to = j->joined + (time * r->rows + row) * (j->inputs + j->hidden);
        if (j->inputs) memcpy(to, j->x + (time * r->rows + row) * j->inputs, j->inputs * sizeof(REAL));
        to += j->inputs;
        if (!j->hidden) continue;
        if (!is_active(r, row, time)) memset(to, 0, h * sizeof(REAL));
        else if (k > 0 && is_active(r, row, previous)) memcpy(to, j->y + output_row(r->y_strides, d, previous, row), h * sizeof(REAL));
        else NAMED(copy_or_zero)(to, j->initial ? j->initial + (d * r->rows + row) * h : NULL, h);
    }
}

/* joined [steps, rows, inputs + hidden] = x concatenated with the state of direction d before each step, taken from y and the initial state (NULL: 0). The
 * state is 0 where a sequence has ended. inputs or hidden is 0 to leave out x or the states. A work item is one step. */
static void NAMED(join)(const Recurrence *r, int64_t d, const REAL *x, int64_t inputs, const REAL *y, const REAL *initial, int64_t hidden, REAL *joined)
{
    NAMED(Joined) j = { r, d, inputs, hidden, x, y, initial, joined };
    r->args->engine->parallel_for(r->args->engine, NAMED(join_item), &j, r->steps);
}

/* dh [hidden] += dy [time, d, row]; nothing where dy is NULL */
static inline void NAMED(add_output_gradient)(const Recurrence *r, int64_t d, int64_t time, int64_t row, const REAL *dy, REAL *dh)
{
    if (!dy) return;
    const REAL *from = dy + output_row(r->dy_strides, d, time, row);
    for (int64_t j = 0; j < r->hidden; j++) dh[j] += from[j];
}

typedef struct NAMED(Sums) { const REAL *values; REAL *sums; int64_t rows, columns; } NAMED(Sums);

/* Sum COLUMNS_PER_SUM columns. */
static void NAMED(sum_columns_item)(void *context, int64_t item, int64_t worker)
{
    const NAMED(Sums) *s = context; (void)worker;
    int64_t first = item * COLUMNS_PER_SUM, n = s->columns - first < COLUMNS_PER_SUM ? s->columns - first : COLUMNS_PER_SUM;
    REAL sums[COLUMNS_PER_SUM] = {0};
    for (int64_t i = 0; i < s->rows; i++)
        for (int64_t j = 0; j < n; j++) sums[j] += s->values[i * s->columns + first + j];
    memcpy(s->sums + first, sums, n * sizeof(REAL));
}

/* sums [columns] = the sums of values [rows, columns] over the rows */
static void NAMED(sum_columns)(const Recurrence *r, const REAL *values, int64_t rows, int64_t columns, REAL *sums)
{
    NAMED(Sums) s = { values, sums, rows, columns };
    r->args->engine->parallel_for(r->args->engine, NAMED(sum_columns_item), &s, (columns + COLUMNS_PER_SUM - 1) / COLUMNS_PER_SUM);
}

/* dx = dgates W for direction 0, += for direction 1; nothing where dx is NULL */
static void NAMED(input_gradient)(const Recurrence *r, int64_t d, const REAL *dgates, const REAL *w, REAL *dx)
{
    const Engine *e = r->args->engine;
    int64_t width = r->gates * r->hidden;
    if (dx) e->GEMM(e, 0, 0, r->steps * r->rows, r->inputs, width, 1, dgates, width, w + d * width * r->inputs, r->inputs, d > 0, dx, r->inputs, NULL, 0);
}

/* to [steps, rows, directions * gates * hidden]: dgates of direction d beside those of the other direction; nothing where `to` is NULL */
static void NAMED(copy_gate_gradients)(const Recurrence *r, int64_t d, const REAL *dgates, REAL *to)
{
    int64_t width = r->gates * r->hidden;
    for (int64_t i = 0; to && i < r->steps * r->rows; i++) memcpy(to + (i * r->directions + d) * width, dgates + i * width, width * sizeof(REAL));
}

/* dW = dgates^T x and dR = dgates^T h_previous of direction d, each unless it is NULL.
 *
 * Both are one GEMM with the concatenation of x and h_previous, because packing dgates takes a tenth of the time of a GEMM. Scratch: joined
 * [steps, rows, inputs + hidden] and both [gates * hidden, inputs + hidden], the result before it is separated. */
static void NAMED(weight_gradients)(const Recurrence *r, int64_t d, const REAL *dgates, const REAL *x, const REAL *y, const REAL *initial, REAL *joined,
                                    REAL *both, REAL *dw, REAL *dr)
{
    const Engine *e = r->args->engine;
    int64_t width = r->gates * r->hidden, all = r->steps * r->rows, inputs = dw ? r->inputs : 0, hidden = dr ? r->hidden : 0, columns = inputs + hidden;
    if (!columns) return;
    NAMED(join)(r, d, x, inputs, y, initial, hidden, joined);
    e->GEMM(e, 1, 0, width, columns, all, 1, dgates, width, joined, columns, 0, both, columns, NULL, 0);
    for (int64_t i = 0; i < width; i++) {
        if (dw) memcpy(dw + (d * width + i) * inputs, both + i * columns, inputs * sizeof(REAL));
        if (dr) memcpy(dr + (d * width + i) * hidden, both + i * columns + inputs, hidden * sizeof(REAL));
    }
}
