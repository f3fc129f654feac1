/* Softmax for one element type; included by softmax.h once per type, therefore without an include guard.
 *
 * Contiguous rows of some vectors are computed in registers (softmax_vectors.h), longer ones one at a time, all others in panels. Sums along columns are of
 * blocks of SUMMED_ROWS, added in order. */

#define V NAMED(RowVector)
#define W NAMED(ROW_WIDTH)

static inline REAL NAMED(row_max)(const REAL *x, int64_t n)
{
    V largest[2] = { NAMED(row_load)(x), NAMED(row_load)(x + n - W) };
    int64_t k = 0;
    for (; k + 2 * W <= n; k += 2 * W)
        _Pragma("GCC unroll 2") for (int u = 0; u < 2; u++) largest[u] = NAMED(row_larger)(NAMED(row_load)(x + k + u * W), largest[u]);
    if (k + W <= n) largest[0] = NAMED(row_larger)(NAMED(row_load)(x + k), largest[0]);
    return NAMED(lane_max)(NAMED(row_larger)(largest[1], largest[0]));
}

/* Return the sum of exp(a - largest) of a row of at least a vector, and store them in y, which may be a, unless it is NULL. */
ALWAYS_INLINE REAL NAMED(sum_of_exponentials)(const REAL *a, REAL largest, REAL *y, int64_t n)
{
    V sum[2] = {{0}}, last = NAMED(row_load)(a + n - W), e;
    int64_t i = 0;
    for (; i + 2 * W <= n; i += 2 * W)
        _Pragma("GCC unroll 2") for (int u = 0; u < 2; u++) {
            e = NAMED(row_exp_of_negative)(NAMED(row_load)(a + i + u * W) - largest);
            if (y) NAMED(row_store)(y + i + u * W, e);
            sum[u] += e;
        }
    if (i + W < n) {
        e = NAMED(row_exp_of_negative)(NAMED(row_load)(a + i) - largest);
        if (y) NAMED(row_store)(y + i, e);
        sum[0] += e;
    }
    if (i < n) {
        e = NAMED(row_exp_of_negative)(last - largest);
        if (y) NAMED(row_store)(y + n - W, e);
        sum[1] += NAMED(row_masked)(e, NAMED(lanes_of_end)(n, ceil_div(n, W)));
    }
    return NAMED(lane_sum)(sum[0] + sum[1]);
}

static void NAMED(softmax_row)(const REAL *a, const REAL *b, REAL *y, int64_t n)
{
    REAL scale = 1 / NAMED(sum_of_exponentials)(a, NAMED(row_max)(a, n), y, n); (void)b;
    for (int64_t i = 0; i < n; i++) y[i] *= scale;
}
static void NAMED(log_softmax_row)(const REAL *a, const REAL *b, REAL *y, int64_t n)
{
    REAL largest = NAMED(row_max)(a, n), shift = largest + SOFT_LOG(NAMED(sum_of_exponentials)(a, largest, NULL, n)); (void)b;
    for (int64_t i = 0; i < n; i++) y[i] = a[i] - shift;
}
#define PRODUCTS_AT(i) (NAMED(row_load)(a + (i)) * NAMED(row_load)(b + (i)))
#define ELEMENTS_AT(i) NAMED(row_load)(a + (i))
static void NAMED(softmax_grad_row)(const REAL *a, const REAL *b, REAL *y, int64_t n)
{
    const NAMED(RowMask) end = NAMED(lanes_of_end)(n, ceil_div(n, W));
    LONG_ROW_SUM(dot, PRODUCTS_AT)
    for (int64_t i = 0; i < n; i++) y[i] = b[i] * (a[i] - dot);
}
static void NAMED(log_softmax_grad_row)(const REAL *a, const REAL *b, REAL *y, int64_t n)
{
    const NAMED(RowMask) end = NAMED(lanes_of_end)(n, ceil_div(n, W));
    LONG_ROW_SUM(sum, ELEMENTS_AT)
    for (int64_t i = 0; i < n; i++) y[i] = a[i] - SOFT_EXP(b[i]) * sum;
}
#undef PRODUCTS_AT
#undef ELEMENTS_AT
#undef V
#undef W

/* A panel: rows of a, b and y are as, bs and ys apart; t [size, columns], rows ts apart, is working memory that may be a or y. */
typedef struct NAMED(Columns) { const REAL *a, *b; REAL *t, *y; int64_t as, bs, ts, ys, size, n; } NAMED(Columns);

#define FOR_COLUMNS INDEPENDENT for (int64_t i = 0; i < c->n; i++)

/* Set largest [n] to the maxima of the columns. */
static void NAMED(column_max)(const NAMED(Columns) *c, REAL *restrict largest)
{
    for (int64_t i = 0; i < c->n; i++) largest[i] = c->a[i];
    for (int64_t j = 1; j < c->size; j++) {
        const REAL *a = c->a + j * c->as;
        FOR_COLUMNS largest[i] = a[i] > largest[i] ? a[i] : largest[i];
    }
}

/* sum [n] = the sums of VALUE along the columns, in blocks */
#define COLUMN_SUM(VALUE, STORE)                                                                                                             \
    REAL sum[PANEL_COLUMNS], partial[PANEL_COLUMNS];                                                                                         \
    for (int64_t i = 0; i < c->n; i++) sum[i] = 0;                                                                                           \
    for (int64_t from = 0; from < c->size; from += SUMMED_ROWS) {                                                                            \
        int64_t to = min_i64(from + SUMMED_ROWS, c->size);                                                                                   \
        for (int64_t i = 0; i < c->n; i++) partial[i] = 0;                                                                                   \
        for (int64_t j = from; j < to; j++) {                                                                                                \
            const REAL *a = c->a + j * c->as, *b = c->b + j * c->bs; REAL *t = c->t + j * c->ts; (void)a; (void)b; (void)t;                  \
            FOR_COLUMNS { REAL value = VALUE; STORE; partial[i] += value; }                                                                  \
        }                                                                                                                                    \
        for (int64_t i = 0; i < c->n; i++) sum[i] += partial[i];                                                                             \
    }
#define COLUMN_RESULTS(VALUE)                                                                                                                \
    for (int64_t j = 0; j < c->size; j++) {                                                                                                  \
        const REAL *a = c->a + j * c->as, *b = c->b + j * c->bs, *t = c->t + j * c->ts; REAL *y = c->y + j * c->ys; (void)a; (void)b; (void)t; \
        FOR_COLUMNS y[i] = VALUE;                                                                                                            \
    }

static void NAMED(softmax_columns)(const NAMED(Columns) *c)
{
    REAL largest[PANEL_COLUMNS];
    NAMED(column_max)(c, largest);
    COLUMN_SUM(EXP_OF_NEGATIVE(a[i] - largest[i]), t[i] = value)
    for (int64_t i = 0; i < c->n; i++) sum[i] = 1 / sum[i];
    COLUMN_RESULTS(t[i] * sum[i])
}
static void NAMED(log_softmax_columns)(const NAMED(Columns) *c)
{
    REAL largest[PANEL_COLUMNS];
    NAMED(column_max)(c, largest);
    COLUMN_SUM(EXP_OF_NEGATIVE(a[i] - largest[i]), )
    for (int64_t i = 0; i < c->n; i++) sum[i] = largest[i] + SOFT_LOG(sum[i]);
    COLUMN_RESULTS(a[i] - sum[i])
}
static void NAMED(softmax_grad_columns)(const NAMED(Columns) *c)
{
    COLUMN_SUM(a[i] * b[i], )
    COLUMN_RESULTS(b[i] * (a[i] - sum[i]))
}
static void NAMED(log_softmax_grad_columns)(const NAMED(Columns) *c)
{
    COLUMN_SUM(a[i], )
    COLUMN_RESULTS(a[i] - SOFT_EXP(b[i]) * sum[i])
}
#undef COLUMN_SUM
#undef COLUMN_RESULTS
#undef FOR_COLUMNS

typedef struct NAMED(Softmax) {
    const KernelArgs *args; Panels panels; int64_t inputs;
    void (*row)(const REAL *a, const REAL *b, REAL *y, int64_t n); void (*vectors)(const REAL *a, const REAL *b, REAL *y, int64_t rows, int64_t n);
    void (*columns)(const NAMED(Columns) *c);
} NAMED(Softmax);

static void NAMED(softmax_rows_item)(void *context, int64_t item, int64_t worker)
{
    const NAMED(Softmax) *s = context; const KernelArgs *args = s->args; int64_t n = args->ints[1], per_item = ROWS_PER_ITEM(n);
    int64_t first = item * per_item, end = min_i64(first + per_item, args->ints[0]); (void)worker;
    const REAL *a = args->inputs[0].data, *b = args->inputs[s->inputs - 1].data; REAL *y = args->outputs[0].data;
    if (NAMED(is_row_of_vectors)(n)) s->vectors(a + first * n, b + first * n, y + first * n, end - first, n);
    else for (int64_t row = first; row < end; row++) s->row(a + row * n, b + row * n, y + row * n, n);
}
static void NAMED(softmax_panels_item)(void *context, int64_t item, int64_t worker)
{
    const NAMED(Softmax) *s = context; const KernelArgs *args = s->args; const Panels *p = &s->panels;
    void *first = panel_buffer(args->engine, worker, 0, s->inputs), *second = panel_buffer(args->engine, worker, s->inputs - 1, s->inputs);
    for (int64_t index = item * p->per_item; index < min_i64((item + 1) * p->per_item, p->count); index++) {
        Panel b = panel_at(p, index); NAMED(Columns) c = { .size = p->size, .n = b.columns };
        c.a = panel_input(p, &b, args->inputs[0].data, sizeof(REAL), first, &c.as);
        if (s->inputs > 1) c.b = panel_input(p, &b, args->inputs[1].data, sizeof(REAL), second, &c.bs);
        else { c.b = c.a; c.bs = c.as; }
        c.y = panel_output(p, &b, args->outputs[0].data, sizeof(REAL), first, &c.ys);
        c.t = p->copied ? first : c.y; c.ts = p->copied ? c.as : c.ys;
        s->columns(&c);
        panel_store(p, &b, args->outputs[0].data, sizeof(REAL), first);
    }
}
static void NAMED(run_softmax)(NAMED(Softmax) s)
{
    const int64_t *p = s.args->ints; const Engine *engine = s.args->engine;
    int is_gradient = s.inputs > 1, in_registers = NAMED(is_row_of_vectors)(p[1]) && (is_gradient || p[1] > PANEL_VECTORS * NAMED(ROW_WIDTH));
    if (p[2] == 1 && (in_registers || p[1] >= (is_gradient ? LONG_GRADIENT_ROW : LONG_ROW))) {
        engine->parallel_for(engine, NAMED(softmax_rows_item), &s, ceil_div(p[0], ROWS_PER_ITEM(p[1])));
        return;
    }
    s.panels = panels_of(engine, p[0], p[1], p[2], sizeof(REAL), s.inputs, 0);
    engine->parallel_for(engine, NAMED(softmax_panels_item), &s, panel_items(&s.panels));
}
#define SOFTMAX(NAME, INPUTS)                                                                                                              \
static int NAMED(NAME)(const KernelArgs *args)                                                                                             \
{                                                                                                                                          \
    NAMED(run_softmax)((NAMED(Softmax)){ .args = args, .inputs = INPUTS, .row = NAMED(NAME##_row), .vectors = NAMED(NAME##_rows_of_vectors), \
                                         .columns = NAMED(NAME##_columns) });                                                              \
    return STATUS_OK;                                                                                                                      \
}
SOFTMAX(softmax, 1) SOFTMAX(log_softmax, 1) SOFTMAX(softmax_grad, 2) SOFTMAX(log_softmax_grad, 2)
#undef SOFTMAX
