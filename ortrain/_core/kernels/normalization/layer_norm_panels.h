/* Layer and RMS normalization of rows shorter than a vector for one element type (common/float_types.h): rows of x [rows, n] are the columns of transposed panels
 * [n, columns], so that sums along a row are over vectors of rows. The results of a row do not depend on the others. */

#define FOR_ROWS INDEPENDENT for (int64_t i = 0; i < columns; i++)

static inline REAL *NAMED(norm_buffer)(const Engine *engine, int64_t worker) { return (REAL *)(engine->workspaces + worker * engine->workspace_floats); }

static inline void NAMED(transpose_rows)(const Engine *engine, REAL *to, const REAL *from, int64_t rows, int64_t columns)
{ engine->transpose(to, from, sizeof(REAL), columns, rows, rows, columns); }

/* Normalize a panel in place; sets the means, zeros where the mean is not subtracted, and the inverses of the deviations. */
ALWAYS_INLINE void NAMED(normalize_panel)(REAL *x, int64_t n, int64_t columns, const REAL *scale, const REAL *bias, REAL epsilon, REAL *mean, REAL *inverse,
                                          const int is_centered)
{
    FOR_ROWS mean[i] = inverse[i] = 0;
    if (is_centered) {
        for (int64_t j = 0; j < n; j++) FOR_ROWS mean[i] += x[j * columns + i];
        FOR_ROWS mean[i] /= n;
    }
    for (int64_t j = 0; j < n; j++) FOR_ROWS { REAL deviation = x[j * columns + i] - mean[i]; inverse[i] += deviation * deviation; }
    FOR_ROWS inverse[i] = 1 / NORM_SQRT(inverse[i] / n + epsilon);
    for (int64_t j = 0; j < n; j++) {
        REAL factor = scale[j], shift = bias ? bias[j] : 0, *row = x + j * columns;
        FOR_ROWS row[i] = (row[i] - mean[i]) * inverse[i] * factor + shift;
    }
}

/* Rows first..end-1 in panels. */
ALWAYS_INLINE void NAMED(normalize_short_rows)(const KernelArgs *args, int64_t first, int64_t end, int64_t worker, const int is_centered)
{
    int64_t n = args->ints[1];
    const REAL *scale = args->inputs[1].data, *bias = is_centered && args->n_inputs > 2 ? args->inputs[2].data : NULL;
    REAL *means = is_centered ? norm_output(args, 1) : NULL, *inverses = norm_output(args, is_centered ? 2 : 1);
    REAL *panel = NAMED(norm_buffer)(args->engine, worker), mean[NORM_PANEL_ROWS], inverse[NORM_PANEL_ROWS];
    for (int64_t r = first; r < end; r += NORM_PANEL_ROWS) {
        int64_t rows = min_i64(NORM_PANEL_ROWS, end - r);
        NAMED(transpose_rows)(args->engine, panel, (const REAL *)args->inputs[0].data + r * n, rows, n);
        NAMED(normalize_panel)(panel, n, rows, scale, bias, (REAL)args->floats[0], mean, inverse, is_centered);
        NAMED(transpose_rows)(args->engine, (REAL *)args->outputs[0].data + r * n, panel, n, rows);
        if (means) memcpy(means + r, mean, (size_t)rows * sizeof(REAL));
        if (inverses) memcpy(inverses + r, inverse, (size_t)rows * sizeof(REAL));
    }
}

/* Add a panel's parts of dscale and, where the mean is subtracted, dbias. */
ALWAYS_INLINE void NAMED(add_panel_parts)(const REAL *dy, const REAL *x, int64_t n, int64_t columns, const REAL *mean, const REAL *inverse, REAL *ds, REAL *db,
                                          const int is_centered)
{
    for (int64_t j = 0; j < n; j++, dy += columns, x += columns) {
        REAL scales[ROW_LANES] = {0}, shifts[ROW_LANES] = {0}; int64_t i = 0;
        for (; i + ROW_LANES <= columns; i += ROW_LANES)
            for (int l = 0; l < ROW_LANES; l++) {
                scales[l] += dy[i + l] * (x[i + l] - (is_centered ? mean[i + l] : 0)) * inverse[i + l];
                if (is_centered) shifts[l] += dy[i + l];
            }
        for (; i < columns; i++) {
            ds[j] += dy[i] * (x[i] - (is_centered ? mean[i] : 0)) * inverse[i];
            if (is_centered) db[j] += dy[i];
        }
        for (int l = 0; l < ROW_LANES; l++) { ds[j] += scales[l]; if (is_centered) db[j] += shifts[l]; }
    }
}

/* Overwrite a panel of dy with dx. */
ALWAYS_INLINE void NAMED(panel_grad)(REAL *dy, const REAL *x, int64_t n, int64_t columns, const REAL *scale, const REAL *mean, const REAL *inverse,
                                     const int is_centered)
{
    REAL offset[NORM_PANEL_ROWS], factor[NORM_PANEL_ROWS];
    FOR_ROWS offset[i] = factor[i] = 0;
    for (int64_t j = 0; j < n; j++) {
        REAL by = scale[j]; const REAL *slope = dy + j * columns, *row = x + j * columns;
        FOR_ROWS {
            REAL scaled = slope[i] * by;
            if (is_centered) offset[i] += scaled;
            factor[i] += scaled * (row[i] - (is_centered ? mean[i] : 0));
        }
    }
    FOR_ROWS { offset[i] /= n; factor[i] *= inverse[i] * inverse[i] / n; }
    for (int64_t j = 0; j < n; j++) {
        REAL by = scale[j], *slope = dy + j * columns; const REAL *row = x + j * columns;
        FOR_ROWS slope[i] = inverse[i] * (slope[i] * by - offset[i] - (row[i] - (is_centered ? mean[i] : 0)) * factor[i]);
    }
}

/* Gradients of rows first..end-1 in panels; adds their parts of dscale and dbias to ds and db. */
ALWAYS_INLINE void NAMED(short_rows_grad)(const KernelArgs *args, int64_t first, int64_t end, int64_t worker, REAL *ds, REAL *db, const int is_centered)
{
    int64_t n = args->ints[1];
    const REAL *scale = args->inputs[2].data, *means = is_centered ? args->inputs[3].data : NULL, *inverses = args->inputs[is_centered ? 4 : 3].data;
    REAL *dx = norm_output(args, 0), *dy = NAMED(norm_buffer)(args->engine, worker), *x = dy + NORM_PANEL_ROWS * n;
    for (int64_t r = first; r < end; r += NORM_PANEL_ROWS) {
        int64_t rows = min_i64(NORM_PANEL_ROWS, end - r); const REAL *mean = is_centered ? means + r : NULL;
        NAMED(transpose_rows)(args->engine, dy, (const REAL *)args->inputs[0].data + r * n, rows, n);
        NAMED(transpose_rows)(args->engine, x, (const REAL *)args->inputs[1].data + r * n, rows, n);
        NAMED(add_panel_parts)(dy, x, n, rows, mean, inverses + r, ds, db, is_centered);
        if (!dx) continue;
        NAMED(panel_grad)(dy, x, n, rows, scale, mean, inverses + r, is_centered);
        NAMED(transpose_rows)(args->engine, dx + r * n, dy, n, rows);
    }
}
#undef FOR_ROWS
