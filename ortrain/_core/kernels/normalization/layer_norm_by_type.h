/* Layer and RMS normalization of rows for one element type (common/float_types.h). Rows of up to MAX_ROW_VECTORS vectors are in layer_norm_vectors.h, those of less
 * than one in layer_norm_panels.h. */

#define V NAMED(RowVector)
#define W NAMED(ROW_WIDTH)

#define ELEMENTS_AT(at) NAMED(row_load)(x + (at))
#define DEVIATION_AT(at) (NAMED(row_load)(x + (at)) - mean)
#define SQUARES_AT(at) (DEVIATION_AT(at) * DEVIATION_AT(at))
#define SLOPES_AT(at) (NAMED(row_load)(dy + (at)) * NAMED(row_load)(scale + (at)))
#define PRODUCTS_AT(at) (SLOPES_AT(at) * DEVIATION_AT(at))

ALWAYS_INLINE void NAMED(store_normal)(REAL *y, V normal, const REAL *scale, const REAL *bias, int64_t at)
{
    normal *= NAMED(row_load)(scale + at);
    if (bias) normal += NAMED(row_load)(bias + at);
    NAMED(row_store)(y + at, normal);
}

/* Rows begin..stop-1. is_centered: whether the mean is subtracted; a constant. */
ALWAYS_INLINE void NAMED(normalize_long_rows)(const KernelArgs *args, int64_t begin, int64_t stop, const int is_centered)
{
    int64_t n = args->ints[1];
    const REAL *scale = args->inputs[1].data, *bias = is_centered && args->n_inputs > 2 ? args->inputs[2].data : NULL;
    REAL *means = is_centered ? norm_output(args, 1) : NULL, *inverses = norm_output(args, is_centered ? 2 : 1);
    const NAMED(RowMask) end = NAMED(lanes_of_end)(n, ceil_div(n, W));
    for (int64_t r = begin; r < stop; r++) {
        const REAL *x = (const REAL *)args->inputs[0].data + r * n; REAL *y = (REAL *)args->outputs[0].data + r * n, mean = 0;
        if (is_centered) { LONG_ROW_SUM(sum, ELEMENTS_AT) mean = sum / n; }
        LONG_ROW_SUM(squares, SQUARES_AT)
        REAL inverse = 1 / NORM_SQRT(squares / n + (REAL)args->floats[0]);
        V rest = DEVIATION_AT(n - W);                           /* before y overwrites x */
        for (int64_t at = 0; at < n - W; at += W) NAMED(store_normal)(y, DEVIATION_AT(at) * inverse, scale, bias, at);
        NAMED(store_normal)(y, rest * inverse, scale, bias, n - W);
        if (means) means[r] = mean;
        if (inverses) inverses[r] = inverse;
    }
}

/* A group of rows of x and dx, NULL for none, what their gradients consist of, and the sums of dscale and dbias. */
typedef struct NAMED(NormRows) {
    const REAL *x, *scale; REAL *dx, *ds, *db, mean[GROUP_ROWS], inverse[GROUP_ROWS], offset[GROUP_ROWS], factor[GROUP_ROWS]; int64_t n;
} NAMED(NormRows);

/* The vectors `dy` of the rows at `at`: their parts of dscale and dbias, in the lanes `counted`, and dx. count: rows, a constant. */
ALWAYS_INLINE void NAMED(norm_grad_vectors)(const NAMED(NormRows) *g, const V *dy, int64_t at, NAMED(RowMask) counted, const int count, const int is_centered)
{
    V scale = NAMED(row_load)(g->scale + at), ds = {0}, db = {0};
    _Pragma("GCC unroll 4") for (int i = 0; i < count; i++) {
        V deviation = (NAMED(row_load)(g->x + i * g->n + at) - g->mean[i]) * g->inverse[i];
        ds += dy[i] * deviation;
        db += dy[i];
        if (g->dx) NAMED(row_store)(g->dx + i * g->n + at, g->inverse[i] * (dy[i] * scale - g->offset[i] - deviation * g->factor[i]));
    }
    NAMED(row_store)(g->ds + at, NAMED(row_load)(g->ds + at) + NAMED(row_masked)(ds, counted));
    if (is_centered) NAMED(row_store)(g->db + at, NAMED(row_load)(g->db + at) + NAMED(row_masked)(db, counted));
}

/* Gradients of `count` rows from r on. */
ALWAYS_INLINE void NAMED(norm_grad_of_rows)(const KernelArgs *args, int64_t r, REAL *ds, REAL *db, const int count, const int is_centered)
{
    int64_t n = args->ints[1]; REAL *dx = norm_output(args, 0);
    const REAL *scale = args->inputs[2].data, *slopes = (const REAL *)args->inputs[0].data + r * n, *inverses = args->inputs[is_centered ? 4 : 3].data;
    const NAMED(RowMask) end = NAMED(lanes_of_end)(n, ceil_div(n, W)), all = NAMED(lanes_of_end)(W, 1);
    NAMED(NormRows) g = { .x = (const REAL *)args->inputs[1].data + r * n, .scale = scale, .dx = dx ? dx + r * n : NULL, .ds = ds, .db = db, .n = n };
    V last[GROUP_ROWS], here[GROUP_ROWS];
    _Pragma("GCC unroll 4") for (int i = 0; i < count; i++) {
        const REAL *dy = slopes + i * n, *x = g.x + i * n, mean = is_centered ? ((const REAL *)args->inputs[3].data)[r + i] : 0;
        g.mean[i] = mean; g.inverse[i] = inverses[r + i]; g.offset[i] = 0;
        last[i] = NAMED(row_load)(dy + n - W);                  /* before dx overwrites dy */
        if (!dx) continue;
        if (is_centered) { LONG_ROW_SUM(sum, SLOPES_AT) g.offset[i] = sum / n; }
        LONG_ROW_SUM(products, PRODUCTS_AT)
        g.factor[i] = products * g.inverse[i] / n;
    }
    for (int64_t at = 0; at < n - W; at += W) {
        _Pragma("GCC unroll 4") for (int i = 0; i < count; i++) here[i] = NAMED(row_load)(slopes + i * n + at);
        NAMED(norm_grad_vectors)(&g, here, at, all, count, is_centered);
    }
    NAMED(norm_grad_vectors)(&g, last, n - W, end, count, is_centered);
}

ALWAYS_INLINE void NAMED(long_rows_grad)(const KernelArgs *args, int64_t first, int64_t stop, REAL *ds, REAL *db, const int is_centered)
{
    for (; first + GROUP_ROWS <= stop; first += GROUP_ROWS) NAMED(norm_grad_of_rows)(args, first, ds, db, GROUP_ROWS, is_centered);
    for (; first < stop; first++) NAMED(norm_grad_of_rows)(args, first, ds, db, 1, is_centered);
}
#undef ELEMENTS_AT
#undef DEVIATION_AT
#undef SQUARES_AT
#undef SLOPES_AT
#undef PRODUCTS_AT

/* Rows of work item `item`. is_centered: whether the mean is subtracted; a constant. */
ALWAYS_INLINE void NAMED(normalize_rows)(const KernelArgs *args, int64_t item, int64_t worker, const int is_centered)
{
    int64_t n = args->ints[1], per_item = norm_rows_per_item(n), first = item * per_item, end = min_i64(first + per_item, args->ints[0]);
    if (n < W) NAMED(normalize_short_rows)(args, first, end, worker, is_centered);
    else if (NAMED(is_row_of_vectors)(n)) NAMED(normalize_rows_of_vectors)(args, first, end, is_centered);
    else NAMED(normalize_long_rows)(args, first, end, is_centered);
}
static void NAMED(layer_norm)(void *args, int64_t item, int64_t worker) { NAMED(normalize_rows)(args, item, worker, 1); }
static void NAMED(rms_norm)(void *args, int64_t item, int64_t worker) { NAMED(normalize_rows)(args, item, worker, 0); }

/* Gradients of the rows of block `item`; its parts of dscale and dbias go to scratch. */
ALWAYS_INLINE void NAMED(normalize_rows_grad)(const KernelArgs *args, int64_t item, int64_t worker, const int is_centered)
{
    int64_t n = args->ints[1], first = item * args->ints[2], end = min_i64(first + args->ints[2], args->ints[0]), parts = is_centered ? 2 : 1;
    REAL *ds = (REAL *)args->scratch + parts * n * item, *db = ds + n;
    for (int64_t k = 0; k < parts * n; k++) ds[k] = 0;
    if (n < W) NAMED(short_rows_grad)(args, first, end, worker, ds, db, is_centered);
    else if (NAMED(is_row_of_vectors)(n)) NAMED(grad_of_rows_of_vectors)(args, first, end, ds, db, is_centered);
    else NAMED(long_rows_grad)(args, first, end, ds, db, is_centered);
}
static void NAMED(layer_norm_grad)(void *args, int64_t item, int64_t worker) { NAMED(normalize_rows_grad)(args, item, worker, 1); }
static void NAMED(rms_norm_grad)(void *args, int64_t item, int64_t worker) { NAMED(normalize_rows_grad)(args, item, worker, 0); }

/* Add up the parts of dscale and dbias in the order of the blocks. */
static void NAMED(add_norm_parts)(const KernelArgs *args, int64_t blocks, int64_t parts)
{
    int64_t n = args->ints[1];
    for (int64_t part = 0; part < parts; part++) {
        REAL *sum = norm_output(args, 1 + part); const REAL *from = (const REAL *)args->scratch + part * n;
        for (int64_t k = 0; sum && k < n; k++) sum[k] = 0;
        for (int64_t i = 0; sum && i < blocks; i++) for (int64_t k = 0; k < n; k++) sum[k] += from[parts * n * i + k];
    }
}
#undef V
#undef W
