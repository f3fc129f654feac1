/* The softmax cross entropy of scores = x op(w) + bias and its gradients, for one element type; included by loss.h once per type, therefore without include
 * guard.
 *
 * x [n, k], classes c: scores are computed for a chunk of rows at a time, in scratch, and become their gradient there, so that all n of them never exist at once.
 * Gradients of w and of the bias are sums over the chunks, in order. dx may be x: a chunk of it is the last to be written that reads this chunk of x.
 *
 * ints: n, c, 1, reduction (1 mean, 2 sum), ignored label, k, whether w is [c, k], whether dw is, rows of a chunk, a multiple of LOSS_ROWS. floats: dloss.
 * Inputs: x, w, labels, bias or absent, weights of the classes or absent. Outputs: loss, dx, dw, dbias; all but the loss may be absent.
 * scratch: a chunk of scores, then the sums of losses and of weights of each LOSS_ROWS rows, as double. */

typedef struct NAMED(ColumnSums) { const REAL *x; REAL *sums; int64_t rows, columns; int adds; } NAMED(ColumnSums);

/* sums [columns] = the sum of the rows of x [rows, columns], or that added to them */
static void NAMED(column_sums_item)(void *context, int64_t item, int64_t worker)
{
    const NAMED(ColumnSums) *c = context; (void)worker;
    int64_t first = item * BIAS_COLUMNS, count = min_i64(BIAS_COLUMNS, c->columns - first); REAL *restrict sums = c->sums + first;
    if (!c->adds) for (int64_t j = 0; j < count; j++) sums[j] = 0;
    for (int64_t i = 0; i < c->rows; i++) {
        const REAL *restrict x = c->x + i * c->columns + first;
        for (int64_t j = 0; j < count; j++) sums[j] += x[j];
    }
}

static int NAMED(linear_cross_entropy)(const KernelArgs *args)
{
    const int64_t *s = args->ints, n = s[0], classes = s[1], k = s[5], most = s[8]; const Engine *e = args->engine;
    const int transposed = (int)s[6]; const int64_t ldw = transposed ? k : classes;
    REAL *x = args->inputs[0].data, *w = args->inputs[1].data, *bias = args->n_inputs > 3 ? args->inputs[3].data : NULL, *scores = args->scratch;
    REAL *gradients[3] = {0};
    for (int i = 0; i < 3 && i + 1 < args->n_outputs; i++) gradients[i] = args->outputs[i + 1].data;
    REAL *dx = gradients[0], *dw = gradients[1], *dbias = gradients[2];
    KernelArgs whole = *args, part = *args;
    int64_t ints[5] = { 0, classes, 1, s[3], s[4] };
    Tensor inputs[3] = { {0}, args->inputs[2], {0} }, outputs[2] = { args->outputs[0], {0} };
    if (args->n_inputs > 4) inputs[2] = args->inputs[4];
    outputs[1].data = inputs[0].data = scores;
    whole.scratch = scores + most * classes;
    part.ints = ints; part.inputs = inputs; part.outputs = outputs; part.n_inputs = 3; part.n_outputs = 2;
    NAMED(LossGrad) grad = { &part, NAMED(loss_scale)(args, 2, 4) };
    for (int64_t first = 0; first == 0 || first < n; first += most) {
        const int64_t rows = ints[0] = min_i64(most, n - first); REAL *chunk = x + first * k; const int adds = first > 0;
        inputs[1].data = (char *)args->inputs[2].data + first * (inputs[1].dtype == DTYPE_INT32 ? 4 : 8);
        part.scratch = (double *)whole.scratch + 2 * (first / LOSS_ROWS);
        LOSS_GEMM(e, 0, transposed, rows, classes, k, 1, chunk, k, w, ldw, 0, scores, classes, bias, 0);
        e->parallel_for(e, NAMED(loss_and_gradient_item), &grad, loss_items(&part));
        if (dw && s[7]) LOSS_GEMM(e, 1, 0, classes, k, rows, 1, scores, classes, chunk, k, adds, dw, k, NULL, 0);
        else if (dw) LOSS_GEMM(e, 1, 0, k, classes, rows, 1, chunk, k, scores, classes, adds, dw, classes, NULL, 0);
        if (dbias) {
            NAMED(ColumnSums) sums = { scores, dbias, rows, classes, adds };
            e->parallel_for(e, NAMED(column_sums_item), &sums, ceil_div(classes, BIAS_COLUMNS));
        }
        if (dx) LOSS_GEMM(e, 0, !transposed, rows, k, classes, 1, scores, classes, w, ldw, 0, dx + first * k, k, NULL, 0);
    }
    NAMED(reduce_losses)(&whole);
    return STATUS_OK;
}
