/* The parts of dequantized_gemm.h for one type REAL; included once per type, therefore without include guard. */

/* A block of stored weights [rows, columns], whose rows are `step` elements apart from element `first` on, and which `to` [rows, columns] receives. scales: of
 * the block's first element, NULL for none. */
typedef struct NAMED(StoredBlock) {
    const Tensor *weights;
    const REAL *scales;
    int64_t first, rows, columns, step, row_scale, column_scale;
    REAL *to;
} NAMED(StoredBlock);

/* to [n] = n stored numbers, times a scale or one of n scales */
#define WIDEN(NAME, FROM, EXPRESSION) \
static void NAMED(NAME)(const FROM *restrict from, const REAL *restrict scales, int64_t n, REAL *restrict to) \
{ (void)scales; for (int64_t j = 0; j < n; j++) to[j] = EXPRESSION; }
WIDEN(widen_float16, uint16_t, float32_from_float16(from[j]))
WIDEN(widen_bfloat16, uint16_t, float32_from_bfloat16(from[j]))
WIDEN(widen_int8, int8_t, (REAL)from[j])
WIDEN(scale_int8, int8_t, (REAL)from[j] * *scales)
WIDEN(scale_int8_each, int8_t, (REAL)from[j] * scales[j])
#undef WIDEN

static void NAMED(dequantize_item)(void *context, int64_t item, int64_t worker)
{
    const NAMED(StoredBlock) *b = context; (void)worker;
    int64_t begin = item * DEQUANTIZED_ROWS, end = min_i64(b->rows, begin + DEQUANTIZED_ROWS);
    for (int64_t i = begin; i < end; i++) {
        const void *from = (const char *)b->weights->data + (b->first + i * b->step) * (b->weights->dtype == DTYPE_INT8 ? 1 : 2);
        const REAL *scales = b->scales ? b->scales + i * b->row_scale : NULL;
        REAL *to = b->to + i * b->columns;
        if (b->weights->dtype == DTYPE_FLOAT16) NAMED(widen_float16)(from, NULL, b->columns, to);
        else if (b->weights->dtype == DTYPE_BFLOAT16) NAMED(widen_bfloat16)(from, NULL, b->columns, to);
        else if (!scales) NAMED(widen_int8)(from, NULL, b->columns, to);
        else (b->column_scale ? NAMED(scale_int8_each) : NAMED(scale_int8))(from, scales, b->columns, to);
    }
}

static int NAMED(dequantized_gemm)(const KernelArgs *args)
{
    const int64_t *s = args->ints; const Engine *e = args->engine;
    const int64_t m = s[0], n = s[1], k = s[2], row_scale = s[4], column_scale = s[5];
    const int transposed = (int)s[3], relu = (int)s[6];
    const REAL *x = args->inputs[0].data, *scales = args->n_inputs > 2 ? args->inputs[2].data : NULL, *bias = args->n_inputs > 3 ? args->inputs[3].data : NULL;
    REAL *y = args->outputs[0].data;
    for (int64_t j = 0, count; m && j < n; j += count) {
        count = min_i64(s[7], n - j);
        NAMED(StoredBlock) block = { args->inputs + 1, scales ? scales + j * (transposed ? row_scale : column_scale) : NULL, transposed ? j * k : j,
                                     transposed ? count : k, transposed ? k : count, transposed ? k : n, row_scale, column_scale, args->scratch };
        e->parallel_for(e, NAMED(dequantize_item), &block, ceil_div(block.rows, DEQUANTIZED_ROWS));
        e->GEMM(e, 0, transposed, m, count, k, (REAL)args->floats[0], x, k, block.to, block.columns, 0, y + j, n, bias ? bias + j : NULL, relu);
    }
    return STATUS_OK;
}
