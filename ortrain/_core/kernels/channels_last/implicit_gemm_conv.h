/* Convolution as an implicit GEMM (matmul/implicit_gemm.h) on AMX tiles or bfloat16 pairs, float32 only: the im2col matrix is an operand that is never built.
 *
 *   forward          y [pixels, filters] = im2col(x) w
 *   data gradient    dx is divided into one phase per remainder of (row, column) by the strides. All pixels of a phase are covered by the same taps, so each
 *                    phase is a GEMM of an im2col matrix of dy with the filters of these taps.
 *   weight gradient  dw [filters, taps * channels] = dy^T im2col(x)
 * Filters are transposed from ONNX's [k, c, taps] to [k, taps, c] where the GEMM asks for that, and gradients of weights back. The planner chooses these
 * kernels instead of direct, im2col and strided Winograd convolutions, and on bfloat16 tiles of others, too (method_of in ops/shared/conv_algorithms.py). */

#define V NAMED(Vector)
#define W NAMED(WIDTH)

/* transposed [taps, channels] = w [channels, taps] of one filter.
 *
 * A vector load of a row of taps also reads the beginning of the next row. Rows of the last whole vector of channels are copied first, so that nothing beyond
 * the filter is read. */
static void NAMED(transpose_filter)(const REAL *w, int64_t channels, int64_t taps, REAL *transposed)
{
    int64_t c = 0;
    for (; c + W <= channels; c += W)
        for (int64_t t = 0; t < taps; t += W) {
            V r[W];
            REAL rows[W * W];
            int64_t count = min_i64(W, taps - t), last = c + 2 * W > channels;
            if (last) for (int i = 0; i < W; i++) memcpy(rows + i * W, w + (c + i) * taps + t, (size_t)count * sizeof(REAL));
            for (int i = 0; i < W; i++) r[i] = LOAD(last ? rows + i * W : w + (c + i) * taps + t);
            NAMED(transpose)(r);
            for (int i = 0; i < count; i++) STORE(transposed + (t + i) * channels + c, r[i]);
        }
    for (; c < channels; c++)
        for (int64_t t = 0; t < taps; t++) transposed[t * channels + c] = w[c * taps + t];
}

/* w [channels, taps] = transposed [taps, channels] of one filter.
 *
 * Where one vector holds all taps, a vector store of a row also overwrites the beginning of the next row, which is stored afterwards. */
static void NAMED(transpose_filter_back)(const REAL *transposed, int64_t channels, int64_t taps, REAL *w)
{
    int64_t c = 0;
    for (; c + W <= channels; c += W)
        for (int64_t t = 0; t < taps; t += W) {
            V r[W];
            REAL rows[W * W];
            int64_t count = min_i64(W, taps - t), overlaps = taps <= W && c + 2 * W <= channels;
            for (int i = 0; i < W; i++) r[i] = i < count ? LOAD(transposed + (t + i) * channels + c) : (V){0};
            NAMED(transpose)(r);
            for (int i = 0; i < W; i++) STORE(overlaps ? w + (c + i) * taps : rows + i * W, r[i]);
            if (!overlaps) for (int i = 0; i < W; i++) memcpy(w + (c + i) * taps + t, rows + i * W, (size_t)count * sizeof(REAL));
        }
    for (; c < channels; c++)
        for (int64_t t = 0; t < taps; t++) w[c * taps + t] = transposed[t * channels + c];
}

/* A work item is one filter. done: whether it has been transposed, of those whose transpose is asked for. */
typedef struct NAMED(FilterTranspose) { const REAL *from; REAL *to; int64_t filters, taps, channels; int inverse, done; } NAMED(FilterTranspose);

static void NAMED(transpose_filter_item)(void *context, int64_t filter, int64_t worker)
{
    const NAMED(FilterTranspose) *s = context; (void)worker;
    int64_t start = filter * s->channels * s->taps;
    (s->inverse ? NAMED(transpose_filter_back) : NAMED(transpose_filter))(s->from + start, s->channels, s->taps, s->to + start);
}

/* ImplicitGemm's fill_b */
static void NAMED(transpose_filters)(const Engine *e, const ImplicitGemm *p)
{
    NAMED(FilterTranspose) *s = p->filling;
    if (!s->done) e->parallel_for(e, NAMED(transpose_filter_item), s, s->filters);
    s->done = 1;
}

/* Return the implicit GEMM over im2col(x), without its other operand. */
static ImplicitGemm NAMED(implicit_gemm_of_input)(const Geometry *g, const REAL *x)
{
    ImplicitGemm p = { .outputs = g->filters };
    p.windows = (Windows){ .pixels = (const float *)x, .images = g->images, .rows = g->rows, .columns = g->columns, .channels = g->channels,
                           .out_rows = g->out_rows,
                           .out_columns = g->out_columns, .stride_y = g->stride_y, .stride_x = g->stride_x, .taps = g->kernel_y * g->kernel_x };
    for (int64_t t = 0; t < p.windows.taps; t++) {
        p.windows.offsets[t][0] = t / g->kernel_x * g->dilation_y - g->pad_y;
        p.windows.offsets[t][1] = t % g->kernel_x * g->dilation_x - g->pad_x;
    }
    return p;
}

/* Compute y without epilogue, except that bias [filters] is added unless it is NULL. transposed: scratch of filters * taps * channels elements. */
static void NAMED(implicit_gemm_forward)(const Engine *e, const Geometry *g, const REAL *x, const REAL *w, const REAL *bias, REAL *y, REAL *transposed)
{
    ImplicitGemm p = NAMED(implicit_gemm_of_input)(g, x);
    NAMED(FilterTranspose) filter_transpose = { w, transposed, g->filters, p.windows.taps, g->channels, 0, 0 };
    p.b = (const float *)transposed; p.channel_step = 1; p.output_step = p.windows.taps * g->channels;
    p.weights = (const float *)w; p.weight_channel_step = p.windows.taps; p.weight_output_step = p.output_step;
    for (int64_t t = 0; t < p.windows.taps; t++) { p.starts[t] = t * g->channels; p.numbers[t] = t; }
    p.fill_b = NAMED(transpose_filters); p.filling = &filter_transpose;
    p.bias = (const float *)bias;
    p.c = (float *)y; p.column_step = g->filters; p.row_step = g->out_columns * g->filters; p.image_step = g->out_rows * p.row_step;
    e->implicit_gemm(e, &p);
}

/* Set the pixels (y, x) + multiples of the strides of dx to zero: a phase that no tap covers. */
static void NAMED(clear_phase)(const Geometry *g, REAL *dx, int64_t y, int64_t x)
{
    for (int64_t i = 0; i < g->images; i++)
        for (int64_t row = y; row < g->rows; row += g->stride_y)
            for (int64_t column = x; column < g->columns; column += g->stride_x)
                memset(dx + ((i * g->rows + row) * g->columns + column) * g->channels, 0, (size_t)g->channels * sizeof(REAL));
}

/* Compute the pixels (y, x) + multiples of the strides of dx. */
static void NAMED(implicit_gemm_phase)(const Engine *e, const Geometry *g, const REAL *dy, NAMED(FilterTranspose) *filters, REAL *dx, int64_t y, int64_t x)
{
    int64_t taps = g->kernel_y * g->kernel_x;
    ImplicitGemm p = { .outputs = g->channels, .b = (const float *)filters->to, .channel_step = taps * g->channels, .output_step = 1,
                       .weights = (const float *)filters->from, .weight_channel_step = taps * g->channels, .weight_output_step = taps,
                       .fill_b = NAMED(transpose_filters), .filling = filters };
    p.windows = (Windows){ .pixels = (const float *)dy, .images = g->images, .rows = g->out_rows, .columns = g->out_columns, .channels = g->filters,
                           .out_rows = ceil_div(g->rows - y, g->stride_y), .out_columns = ceil_div(g->columns - x, g->stride_x), .stride_y = 1, .stride_x = 1 };
    for (int64_t t = taps - 1; t >= 0; t--) {       /* pixels of a row from left to right, side by side in memory */
        int64_t dy_row = y + g->pad_y - t / g->kernel_x * g->dilation_y, dy_column = x + g->pad_x - t % g->kernel_x * g->dilation_x;
        if (dy_row % g->stride_y || dy_column % g->stride_x) continue;
        p.windows.offsets[p.windows.taps][0] = dy_row / g->stride_y;
        p.windows.offsets[p.windows.taps][1] = dy_column / g->stride_x;
        p.numbers[p.windows.taps] = t;
        p.starts[p.windows.taps++] = t * g->channels;
    }
    p.c = (float *)dx + (y * g->columns + x) * g->channels;
    p.column_step = g->stride_x * g->channels; p.row_step = g->stride_y * g->columns * g->channels; p.image_step = g->rows * g->columns * g->channels;
    if (p.windows.taps) e->implicit_gemm(e, &p);
    else NAMED(clear_phase)(g, dx, y, x);
}

static void NAMED(implicit_gemm_data_gradient)(const Engine *e, const Geometry *g, const REAL *dy, const REAL *w, REAL *dx, REAL *transposed)
{
    NAMED(FilterTranspose) filter_transpose = { w, transposed, g->filters, g->kernel_y * g->kernel_x, g->channels, 0, 0 };
    for (int64_t y = 0; y < min_i64(g->stride_y, g->rows); y++)
        for (int64_t x = 0; x < min_i64(g->stride_x, g->columns); x++) NAMED(implicit_gemm_phase)(e, g, dy, &filter_transpose, dx, y, x);
}

static void NAMED(implicit_gemm_weight_gradient)(const Engine *e, const Geometry *g, const REAL *dy, const REAL *x, REAL *dw, REAL *transposed)
{
    ImplicitGemm p = NAMED(implicit_gemm_of_input)(g, x);
    NAMED(FilterTranspose) filter_transpose = { transposed, dw, g->filters, p.windows.taps, g->channels, 1, 0 };
    p.filters = (const float *)dy;
    p.c = (float *)transposed;
    e->implicit_gemm(e, &p);
    e->parallel_for(e, NAMED(transpose_filter_item), &filter_transpose, g->filters);
}
#undef V
#undef W
