/* Layer and RMS normalization of rows of one to MAX_ROW_VECTORS vectors (common/row_vectors.h) for one element type (common/float_types.h). */

#define V NAMED(RowVector)
#define AT(k) ROW_VECTOR_AT(k)

ALWAYS_INLINE void NAMED(normalize_vectors)(const KernelArgs *args, int64_t first, int64_t last, const int K, const int is_centered)
{
    int64_t n = args->ints[1];
    const REAL *scale = args->inputs[1].data, *bias = is_centered && args->n_inputs > 2 ? args->inputs[2].data : NULL, epsilon = (REAL)args->floats[0];
    REAL *means = is_centered ? norm_output(args, 1) : NULL, *inverses = norm_output(args, is_centered ? 2 : 1), one_of_n = 1 / (REAL)n;
    const NAMED(RowMask) end = NAMED(lanes_of_end)(n, K);
    for (int64_t r = first; r < last; r++) {
        const REAL *x = (const REAL *)args->inputs[0].data + r * n; REAL *y = (REAL *)args->outputs[0].data + r * n, mean = 0;
        V row[MAX_ROW_VECTORS];
        EACH_ROW_VECTOR row[k] = NAMED(row_load)(x + AT(k));
        if (is_centered) {
#define ELEMENTS(k) row[k]
            ROW_VECTOR_SUM(sum, ELEMENTS)
            mean = NAMED(lane_sum)(sum) * one_of_n;
            EACH_ROW_VECTOR row[k] -= mean;
        }
#define SQUARES(k) (row[k] * row[k])
        ROW_VECTOR_SUM(squares, SQUARES)
        REAL inverse = 1 / NORM_SQRT(NAMED(lane_sum)(squares) * one_of_n + epsilon);
        if (bias) EACH_ROW_VECTOR NAMED(row_store)(y + AT(k), row[k] * inverse * NAMED(row_load)(scale + AT(k)) + NAMED(row_load)(bias + AT(k)));
        else EACH_ROW_VECTOR NAMED(row_store)(y + AT(k), row[k] * inverse * NAMED(row_load)(scale + AT(k)));
        if (means) means[r] = mean;
        if (inverses) inverses[r] = inverse;
    }
}

/* Adds the rows' parts of dscale and dbias to ds and db. */
ALWAYS_INLINE void NAMED(normalize_vectors_grad)(const KernelArgs *args, int64_t first, int64_t last, REAL *ds, REAL *db, const int K, const int is_centered)
{
    int64_t n = args->ints[1];
    const REAL *scale = args->inputs[2].data, *means = is_centered ? args->inputs[3].data : NULL, *inverses = args->inputs[is_centered ? 4 : 3].data;
    REAL *dx = norm_output(args, 0), one_of_n = 1 / (REAL)n;
    const NAMED(RowMask) end = NAMED(lanes_of_end)(n, K);
    for (int64_t r = first; r < last; r++) {
        const REAL *dy = (const REAL *)args->inputs[0].data + r * n, *x = (const REAL *)args->inputs[1].data + r * n;
        REAL mean = is_centered ? means[r] : 0, inverse = inverses[r], offset = 0;
        V slope[MAX_ROW_VECTORS], row[MAX_ROW_VECTORS];
        EACH_ROW_VECTOR { slope[k] = NAMED(row_load)(dy + AT(k)); row[k] = (NAMED(row_load)(x + AT(k)) - mean) * inverse; }
        EACH_ROW_VECTOR {
            V counted = slope[k];
            if (k == K - 1) counted = NAMED(row_masked)(counted, end);
            NAMED(row_store)(ds + AT(k), NAMED(row_load)(ds + AT(k)) + counted * row[k]);
            if (is_centered) NAMED(row_store)(db + AT(k), NAMED(row_load)(db + AT(k)) + counted);
            slope[k] *= NAMED(row_load)(scale + AT(k));
        }
        if (!dx) continue;
#define SLOPES(k) slope[k]
        if (is_centered) { ROW_VECTOR_SUM(sum, SLOPES) offset = NAMED(lane_sum)(sum) * one_of_n; }
#define PRODUCTS(k) (slope[k] * row[k])
        ROW_VECTOR_SUM(products, PRODUCTS)
        REAL factor = NAMED(lane_sum)(products) * one_of_n;
        EACH_ROW_VECTOR NAMED(row_store)(dx + r * n + AT(k), inverse * (slope[k] - offset - row[k] * factor));
    }
}
#undef ELEMENTS
#undef SQUARES
#undef SLOPES
#undef PRODUCTS

/* The functions by the number of vectors: a row of n elements has the same number in every call. */
#define OF_VECTORS(K)                                                                                                              \
    case K:                                                                                                                        \
        if (is_centered) NAMED(layer_norm_##K)(args, first, last);                                                                 \
        else NAMED(rms_norm_##K)(args, first, last);                                                                               \
        return;
#define GRAD_OF_VECTORS(K)                                                                                                         \
    case K:                                                                                                                        \
        if (is_centered) NAMED(layer_norm_grad_##K)(args, first, last, ds, db);                                                    \
        else NAMED(rms_norm_grad_##K)(args, first, last, ds, db);                                                                  \
        return;
#define DEFINED_FOR(K)                                                                                                             \
OUT_OF_LINE void NAMED(layer_norm_##K)(const KernelArgs *args, int64_t first, int64_t last) { NAMED(normalize_vectors)(args, first, last, K, 1); } \
OUT_OF_LINE void NAMED(rms_norm_##K)(const KernelArgs *args, int64_t first, int64_t last) { NAMED(normalize_vectors)(args, first, last, K, 0); }   \
OUT_OF_LINE void NAMED(layer_norm_grad_##K)(const KernelArgs *args, int64_t first, int64_t last, REAL *ds, REAL *db)              \
{ NAMED(normalize_vectors_grad)(args, first, last, ds, db, K, 1); }                                                               \
OUT_OF_LINE void NAMED(rms_norm_grad_##K)(const KernelArgs *args, int64_t first, int64_t last, REAL *ds, REAL *db)                \
{ NAMED(normalize_vectors_grad)(args, first, last, ds, db, K, 0); }
FOR_ROW_VECTORS(DEFINED_FOR)

static inline void NAMED(normalize_rows_of_vectors)(const KernelArgs *args, int64_t first, int64_t last, int is_centered)
{ switch (ceil_div(args->ints[1], NAMED(ROW_WIDTH))) { FOR_ROW_VECTORS(OF_VECTORS) } }
static inline void NAMED(grad_of_rows_of_vectors)(const KernelArgs *args, int64_t first, int64_t last, REAL *ds, REAL *db, int is_centered)
{ switch (ceil_div(args->ints[1], NAMED(ROW_WIDTH))) { FOR_ROW_VECTORS(GRAD_OF_VECTORS) } }
#undef OF_VECTORS
#undef GRAD_OF_VECTORS
#undef DEFINED_FOR
#undef AT
#undef V
