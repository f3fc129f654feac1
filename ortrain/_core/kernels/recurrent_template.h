/* What the three layers share, for one element type (REAL); included by recurrent.h once per type, hence without a guard. */

static inline REAL *NAMED(in)(const KernelArgs *args, int i) { return i < args->n_inputs ? args->inputs[i].data : NULL; }
static inline REAL *NAMED(out)(const KernelArgs *args, int i) { return i < args->n_outputs ? args->outputs[i].data : NULL; }

/* gates [rows steps, gates hidden] of direction d = x W^T + (Wb + Rb), of which Rb is left out from gate `last` on */
static void NAMED(project_inputs)(const Recurrence *r, int64_t d, const REAL *x, const REAL *w, const REAL *b, int64_t last, REAL *bias, REAL *gates)
{
    int64_t width = r->gates * r->hidden;
    for (int64_t j = 0; b && j < width; j++) bias[j] = b[d * 2 * width + j] + (j < last * r->hidden ? b[d * 2 * width + width + j] : 0);
    r->args->engine->GEMM(r->args->engine, 0, 1, r->steps * r->rows, width, r->inputs, 1, x, r->inputs, w + d * width * r->inputs, r->inputs, 0, gates, width,
                          b ? bias : NULL, 0);
}

/* to [columns, rows] = from [rows, columns] transposed */
static void NAMED(transpose)(const REAL *from, int64_t rows, int64_t columns, REAL *to)
{
    for (int64_t i = 0; i < rows; i += 16)
        for (int64_t j = 0; j < columns; j++)
            for (int64_t k = i; k < rows && k < i + 16; k++) to[j * rows + k] = from[k * columns + j];
}

static void NAMED(copy_or_zero)(REAL *to, const REAL *from, int64_t n)
{
    if (from) memcpy(to, from, n * sizeof(REAL));
    else memset(to, 0, n * sizeof(REAL));
}

/* previous [steps, rows, hidden]: the state that direction d had before each step, from y and the initial state; 0 where a row does not run */
static void NAMED(previous_states)(const Recurrence *r, int64_t d, const REAL *y, const REAL *initial, REAL *previous)
{
    int64_t h = r->hidden;
    for (int64_t k = 0; k < r->steps; k++) {
        int64_t time = time_of(r, d, k), before = k > 0 ? time_of(r, d, k - 1) : 0;
        for (int64_t row = 0; row < r->rows; row++) {
            REAL *to = previous + (time * r->rows + row) * h;
            if (!runs_at(r, row, time)) memset(to, 0, h * sizeof(REAL));
            else if (k > 0 && runs_at(r, row, before)) memcpy(to, y + ((before * r->directions + d) * r->rows + row) * h, h * sizeof(REAL));
            else NAMED(copy_or_zero)(to, initial ? initial + (d * r->rows + row) * h : NULL, h);
        }
    }
}

/* dh [block, hidden] += dy at this time, where a row runs */
static inline void NAMED(add_output_gradient)(const Recurrence *r, int64_t d, int64_t time, int64_t row, const REAL *dy, REAL *dh)
{
    if (!dy) return;
    const REAL *from = dy + ((time * r->directions + d) * r->rows + row) * r->hidden;
    for (int64_t j = 0; j < r->hidden; j++) dh[j] += from[j];
}

typedef struct NAMED(Sums) { const REAL *values; REAL *sums; int64_t rows, columns; } NAMED(Sums);

static void NAMED(sum_columns_item)(void *context, int64_t item, int64_t worker)
{
    const NAMED(Sums) *s = context; (void)worker;
    int64_t first = item * COLUMNS_PER_SUM, n = s->columns - first < COLUMNS_PER_SUM ? s->columns - first : COLUMNS_PER_SUM;
    REAL sums[COLUMNS_PER_SUM] = {0};
    for (int64_t i = 0; i < s->rows; i++)
        for (int64_t j = 0; j < n; j++) sums[j] += s->values[i * s->columns + first + j];
    memcpy(s->sums + first, sums, n * sizeof(REAL));
}

/* sums [columns] of values [rows, columns] over the rows */
static void NAMED(sum_columns)(const Recurrence *r, const REAL *values, int64_t rows, int64_t columns, REAL *sums)
{
    NAMED(Sums) s = { values, sums, rows, columns };
    r->args->engine->parallel_for(r->args->engine, NAMED(sum_columns_item), &s, (columns + COLUMNS_PER_SUM - 1) / COLUMNS_PER_SUM);
}

/* dx (+)= dgates W and dW = dgates^T x of direction d, where they are asked for */
static void NAMED(input_gradients)(const Recurrence *r, int64_t d, const REAL *dgates, const REAL *x, const REAL *w, REAL *dx, REAL *dw)
{
    const Engine *e = r->args->engine;
    int64_t width = r->gates * r->hidden, all = r->steps * r->rows;
    if (dx) e->GEMM(e, 0, 0, all, r->inputs, width, 1, dgates, width, w + d * width * r->inputs, r->inputs, d > 0, dx, r->inputs, NULL, 0);
    if (dw) e->GEMM(e, 1, 0, width, r->inputs, all, 1, dgates, width, x, r->inputs, 0, dw + d * width * r->inputs, r->inputs, NULL, 0);
}
