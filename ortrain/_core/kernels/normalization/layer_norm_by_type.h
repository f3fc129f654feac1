/* Layer and RMS normalization of rows for one element type (common/float_types.h). */

/* Sums over a row of n elements, in ROW_LANES lanes. Of a long row, the part WHOLE, a multiple of 4 ROW_LANES elements, has four times as many lanes, which hide the
 * latency of additions, and the part REST follows. The functions are small and not inlined: in others, GCC keeps the lanes in memory, which takes three times
 * as long. */
#define ADD_TO(LANES_OF_SUM, VALUE) for (int l = 0; l < ROW_LANES; l++, k++) LANES_OF_SUM[l] += VALUE;
#define ROW_SUM_FUNCTION(NAME, PARAMETERS, WHOLE, REST, VALUE)                                                                     \
OUT_OF_LINE REAL NAMED(NAME##_short) PARAMETERS                                                                                    \
{                                                                                                                                  \
    REAL result = 0, lanes[ROW_LANES] = {0}; int64_t k = 0;                                                                            \
    for (; k + ROW_LANES <= n; ) ADD_TO(lanes, VALUE)                                                                                  \
    for (; k < n; k++) result += VALUE;                                                                                            \
    for (int l = 0; l < ROW_LANES; l++) result += lanes[l];                                                                            \
    return result;                                                                                                                 \
}                                                                                                                                  \
OUT_OF_LINE REAL NAMED(NAME##_long) PARAMETERS                                                                                     \
{                                                                                                                                  \
    REAL first[ROW_LANES] = {0}, second[ROW_LANES] = {0}, third[ROW_LANES] = {0}, fourth[ROW_LANES] = {0}, result = 0;                             \
    for (int64_t k = 0; k < n; ) { ADD_TO(first, VALUE) ADD_TO(second, VALUE) ADD_TO(third, VALUE) ADD_TO(fourth, VALUE) }         \
    for (int l = 0; l < ROW_LANES; l++) result += (first[l] + second[l]) + (third[l] + fourth[l]);                                     \
    return result;                                                                                                                 \
}                                                                                                                                  \
static inline REAL NAMED(NAME) PARAMETERS                                                                                          \
{                                                                                                                                  \
    int64_t whole = n / (4 * ROW_LANES) * (4 * ROW_LANES);                                                                                 \
    if (n < LONG_NORM_ROW) return NAMED(NAME##_short) REST(0);                                                                     \
    return NAMED(NAME##_long) WHOLE(whole) + (whole < n ? NAMED(NAME##_short) REST(whole) : 0);                                    \
}
#define ONE_TO(m) (x, m)
#define ONE_FROM(m) (x + (m), n - (m))
#define CENTERED_TO(m) (x, mean, m)
#define CENTERED_FROM(m) (x + (m), mean, n - (m))
#define TWO_TO(m) (a, b, m)
#define TWO_FROM(m) (a + (m), b + (m), n - (m))
#define THREE_TO(m) (a, b, x, mean, m)
#define THREE_FROM(m) (a + (m), b + (m), x + (m), mean, n - (m))
ROW_SUM_FUNCTION(norm_sum, (const REAL *x, int64_t n), ONE_TO, ONE_FROM, x[k])
ROW_SUM_FUNCTION(norm_squares, (const REAL *x, REAL mean, int64_t n), CENTERED_TO, CENTERED_FROM, (x[k] - mean) * (x[k] - mean))
ROW_SUM_FUNCTION(norm_product, (const REAL *a, const REAL *b, int64_t n), TWO_TO, TWO_FROM, a[k] * b[k])
ROW_SUM_FUNCTION(norm_triple_product, (const REAL *a, const REAL *b, const REAL *x, REAL mean, int64_t n), THREE_TO, THREE_FROM, a[k] * b[k] * (x[k] - mean))

/* Rows of work item `item`. is_centered: whether the mean is subtracted; a constant. */
ALWAYS_INLINE void NAMED(normalize_rows)(const KernelArgs *args, int64_t item, int64_t worker, const int is_centered)
{
    int64_t rows = args->ints[0], n = args->ints[1], per_item = norm_rows_per_item(n), end = min_i64((item + 1) * per_item, rows);
    const REAL *scale = args->inputs[1].data, *bias = is_centered && args->n_inputs > 2 ? args->inputs[2].data : NULL;
    REAL *means = is_centered ? norm_output(args, 1) : NULL, *inverses = norm_output(args, is_centered ? 2 : 1);
    if (NAMED(is_row_of_vectors)(n)) { NAMED(normalize_rows_of_vectors)(args, item * per_item, end, is_centered); return; }
    if (n < NAMED(ROW_WIDTH)) { NAMED(normalize_short_rows)(args, item * per_item, end, worker, is_centered); return; }
    for (int64_t r = item * per_item; r < end; r++) {
        const REAL *x = (const REAL *)args->inputs[0].data + r * n; REAL *y = (REAL *)args->outputs[0].data + r * n, mean = 0;
        if (is_centered) mean = NAMED(norm_sum)(x, n) / n;
        REAL inverse = 1 / NORM_SQRT(NAMED(norm_squares)(x, mean, n) / n + (REAL)args->floats[0]);
        if (bias) NORM_INDEPENDENT for (int64_t k = 0; k < n; k++) y[k] = (x[k] - mean) * inverse * scale[k] + bias[k];
        else NORM_INDEPENDENT for (int64_t k = 0; k < n; k++) y[k] = (x[k] - mean) * inverse * scale[k];
        if (means) means[r] = mean;
        if (inverses) inverses[r] = inverse;
    }
}
static void NAMED(layer_norm)(void *args, int64_t item, int64_t worker) { NAMED(normalize_rows)(args, item, worker, 1); }
static void NAMED(rms_norm)(void *args, int64_t item, int64_t worker) { NAMED(normalize_rows)(args, item, worker, 0); }

/* Gradients of the rows of block `item`; its parts of dscale and dbias go to scratch. */
ALWAYS_INLINE void NAMED(normalize_rows_grad)(const KernelArgs *args, int64_t item, int64_t worker, const int is_centered)
{
    int64_t rows = args->ints[0], n = args->ints[1], per_item = args->ints[2], end = min_i64((item + 1) * per_item, rows), parts = is_centered ? 2 : 1;
    const REAL *scale = args->inputs[2].data, *means = is_centered ? args->inputs[3].data : NULL, *inverses = args->inputs[is_centered ? 4 : 3].data;
    REAL *ds = (REAL *)args->scratch + parts * n * item, *db = ds + n;
    for (int64_t k = 0; k < parts * n; k++) ds[k] = 0;
    if (NAMED(is_row_of_vectors)(n)) { NAMED(grad_of_rows_of_vectors)(args, item * per_item, end, ds, db, is_centered); return; }
    if (n < NAMED(ROW_WIDTH)) { NAMED(short_rows_grad)(args, item * per_item, end, worker, ds, db, is_centered); return; }
    for (int64_t r = item * per_item; r < end; r++) {
        const REAL *dy = (const REAL *)args->inputs[0].data + r * n, *x = (const REAL *)args->inputs[1].data + r * n;
        REAL mean = is_centered ? means[r] : 0, inverse = inverses[r], offset = 0, *dx = norm_output(args, 0);
        if (dx) {
            if (is_centered) offset = NAMED(norm_product)(dy, scale, n) / n;
            REAL factor = NAMED(norm_triple_product)(dy, scale, x, mean, n) * inverse * inverse / n;
            dx += r * n;
            NORM_INDEPENDENT for (int64_t k = 0; k < n; k++) {
                REAL slope = dy[k], deviation = x[k] - mean;
                ds[k] += slope * deviation * inverse;
                if (is_centered) db[k] += slope;
                dx[k] = inverse * (slope * scale[k] - offset - deviation * factor);
            }
        } else NORM_INDEPENDENT for (int64_t k = 0; k < n; k++) { ds[k] += dy[k] * (x[k] - mean) * inverse; if (is_centered) db[k] += dy[k]; }
    }
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
#undef ROW_SUM_FUNCTION
#undef ADD_TO
#undef ONE_TO
#undef ONE_FROM
#undef CENTERED_TO
#undef CENTERED_FROM
#undef TWO_TO
#undef TWO_FROM
#undef THREE_TO
#undef THREE_FROM
