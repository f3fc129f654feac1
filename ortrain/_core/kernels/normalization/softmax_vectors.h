/* Softmax of rows of one to MAX_ROW_VECTORS vectors (common/row_vectors.h) for one element type (common/float_types.h). */

#define V NAMED(RowVector)
#define AT(k) ROW_VECTOR_AT(k)
#define READ(row, from) V row[MAX_ROW_VECTORS]; EACH_ROW_VECTOR row[k] = NAMED(row_load)((from) + AT(k));
#define WRITE(value) EACH_ROW_VECTOR NAMED(row_store)(y + AT(k), value);

/* Replace the vectors of a row by the exponentials of their elements, of any sign, in memory and at least two of them: GCC takes loops over the lanes of one
 * vector apart. */
ALWAYS_INLINE void NAMED(exp_of_vectors)(V *row, const int K)
{
    REAL elements[MAX_ROW_VECTORS * NAMED(ROW_WIDTH)];
    NAMED(row_store)(elements + NAMED(ROW_WIDTH), row[0]);
    EACH_ROW_VECTOR NAMED(row_store)(elements + k * NAMED(ROW_WIDTH), row[k]);
    for (int i = 0; i < (K > 1 ? K : 2) * NAMED(ROW_WIDTH); i++) elements[i] = SOFT_EXP(elements[i]);
    EACH_ROW_VECTOR row[k] = NAMED(row_load)(elements + k * NAMED(ROW_WIDTH));
}

ALWAYS_INLINE REAL NAMED(max_of_vectors)(const V *row, const int K)
{
    V largest = row[0];
    _Pragma("GCC unroll 8") for (int k = 1; k < K; k++) largest = NAMED(row_larger)(row[k], largest);
    return NAMED(lane_max)(largest);
}

#define FIRST(k) a_row[k]
#define PRODUCT(k) (a_row[k] * b_row[k])

ALWAYS_INLINE void NAMED(softmax_vectors)(const REAL *a, const REAL *b, REAL *y, int64_t n, NAMED(RowMask) end, const int K)
{
    READ(a_row, a) (void)b;
    REAL largest = NAMED(max_of_vectors)(a_row, K);
    EACH_ROW_VECTOR a_row[k] = NAMED(row_exp_of_negative)(a_row[k] - largest);
    ROW_VECTOR_SUM(sum, FIRST)
    REAL scale = 1 / NAMED(lane_sum)(sum);
    WRITE(a_row[k] * scale)
}
ALWAYS_INLINE void NAMED(log_softmax_vectors)(const REAL *a, const REAL *b, REAL *y, int64_t n, NAMED(RowMask) end, const int K)
{
    READ(a_row, a) READ(b_row, a) (void)b;
    REAL largest = NAMED(max_of_vectors)(b_row, K);
    EACH_ROW_VECTOR a_row[k] = NAMED(row_exp_of_negative)(a_row[k] - largest);
    ROW_VECTOR_SUM(sum, FIRST)
    REAL shift = largest + SOFT_LOG(NAMED(lane_sum)(sum));
    WRITE(b_row[k] - shift)
}
ALWAYS_INLINE void NAMED(softmax_grad_vectors)(const REAL *a, const REAL *b, REAL *y, int64_t n, NAMED(RowMask) end, const int K)
{
    READ(a_row, a) READ(b_row, b)
    ROW_VECTOR_SUM(sum, PRODUCT)
    REAL dot = NAMED(lane_sum)(sum);
    WRITE(b_row[k] * (a_row[k] - dot))
}
ALWAYS_INLINE void NAMED(log_softmax_grad_vectors)(const REAL *a, const REAL *b, REAL *y, int64_t n, NAMED(RowMask) end, const int K)
{
    READ(a_row, a) READ(b_row, b)
    ROW_VECTOR_SUM(total, FIRST)
    REAL sum = NAMED(lane_sum)(total);
    NAMED(exp_of_vectors)(b_row, K);
    WRITE(a_row[k] - b_row[k] * sum)
}
#undef FIRST
#undef PRODUCT
#undef READ
#undef WRITE
#undef AT
#undef V

/* `rows` rows of n elements, by the number of their vectors */
#define CASE_OF(NAME, K) case K: for (int64_t r = 0; r < rows; r++) NAMED(NAME##_vectors)(a + r * n, b + r * n, y + r * n, n, end, K); return;
#define ROWS_OF_VECTORS(NAME)                                                                                                       \
static void NAMED(NAME##_rows_of_vectors)(const REAL *a, const REAL *b, REAL *y, int64_t rows, int64_t n)                                      \
{                                                                                                                                   \
    int64_t vectors = ceil_div(n, NAMED(ROW_WIDTH));                                                                                \
    const NAMED(RowMask) end = NAMED(lanes_of_end)(n, vectors);                                                                     \
    switch (vectors) {                                                                                                              \
        CASE_OF(NAME, 1) CASE_OF(NAME, 2) CASE_OF(NAME, 3) CASE_OF(NAME, 4) CASE_OF(NAME, 5) CASE_OF(NAME, 6) CASE_OF(NAME, 7) CASE_OF(NAME, 8) \
    }                                                                                                                               \
}
ROWS_OF_VECTORS(softmax) ROWS_OF_VECTORS(log_softmax) ROWS_OF_VECTORS(softmax_grad) ROWS_OF_VECTORS(log_softmax_grad)
#undef ROWS_OF_VECTORS
#undef CASE_OF
