/* Convolution as products on bfloat16 tiles whose rows are windows (matmul/implicit_gemm.h), where those of the gemm are taken: what else would go by windows or rows,
 * or by Winograd's phases, if the plan says so (suits_tiles in ops/shared/conv_algorithms.py). float32 alone.
 *
 *   forward   y [pixels, filters] = windows of x times w
 *   data      the pixels of dx by their remainders by the stride: each class sees the same taps of dy, and is a product of its own
 *   weights   dw [filters, windows] = dy^T windows of x
 * Filters are turned from [k, c, taps], as ONNX has them, to [k, taps, c]. */

#define V NAMED(Channels)
#define W NAMED(WIDTH)

/* w [channels, taps] of a filter -> turned [taps, channels]. Rows of taps are read with the beginning of the row after, the last ones from copies. */
static void NAMED(turn)(const REAL *w, int64_t channels, int64_t taps, REAL *turned)
{
    for (int64_t c = 0; c < channels; c += W)
        for (int64_t t = 0; t < taps; t += W) {
            V r[W];
            REAL rows[W * W];
            int64_t count = least(W, taps - t), last = c + W == channels;
            if (last) for (int i = 0; i < W; i++) memcpy(rows + i * W, w + (c + i) * taps + t, (size_t)count * sizeof(REAL));
            for (int i = 0; i < W; i++) r[i] = LOAD(last ? rows + i * W : w + (c + i) * taps + t);
            NAMED(transpose)(r);
            for (int i = 0; i < count; i++) STORE(turned + (t + i) * channels + c, r[i]);
        }
}

/* and back. Where a vector holds all taps, rows of them are stored over the beginning of rows that are yet to come. */
static void NAMED(turn_back)(const REAL *turned, int64_t channels, int64_t taps, REAL *w)
{
    for (int64_t c = 0; c < channels; c += W)
        for (int64_t t = 0; t < taps; t += W) {
            V r[W];
            REAL rows[W * W];
            int64_t count = least(W, taps - t), over = taps <= W && c + W < channels;
            for (int i = 0; i < W; i++) r[i] = i < count ? LOAD(turned + (t + i) * channels + c) : (V){0};
            NAMED(transpose)(r);
            for (int i = 0; i < W; i++) STORE(over ? w + (c + i) * taps : rows + i * W, r[i]);
            if (!over) for (int i = 0; i < W; i++) memcpy(w + (c + i) * taps + t, rows + i * W, (size_t)count * sizeof(REAL));
        }
}

/* an item is a filter */
typedef struct NAMED(Turning) { const REAL *from; REAL *to; int64_t taps, channels; int back; } NAMED(Turning);

static void NAMED(turn_item)(void *context, int64_t filter, int64_t worker)
{
    const NAMED(Turning) *s = context; (void)worker;
    int64_t start = filter * s->channels * s->taps;
    (s->back ? NAMED(turn_back) : NAMED(turn))(s->from + start, s->channels, s->taps, s->to + start);
}

/* the windows of x */
static ImplicitGemm NAMED(window_product_of)(const Geometry *g, const REAL *x)
{
    ImplicitGemm p = { .outputs = g->filters };
    p.windows = (Windows){ .pixels = (const float *)x, .images = g->images, .rows = g->rows, .columns = g->columns, .channels = g->channels, .out_rows = g->out_rows,
                           .out_columns = g->out_columns, .stride_y = g->stride_y, .stride_x = g->stride_x, .taps = g->kernel_y * g->kernel_x };
    for (int64_t t = 0; t < p.windows.taps; t++) {
        p.windows.offsets[t][0] = t / g->kernel_x * g->step_y - g->pad_y;
        p.windows.offsets[t][1] = t % g->kernel_x * g->step_x - g->pad_x;
    }
    return p;
}

/* y, and nothing of its finish but a bias that is all of it; turned: filters * taps * channels elements */
static void NAMED(tiled_forward)(const Engine *e, const Geometry *g, const REAL *x, const REAL *w, const REAL *bias, REAL *y, REAL *turned)
{
    ImplicitGemm p = NAMED(window_product_of)(g, x);
    NAMED(Turning) turning = { w, turned, p.windows.taps, g->channels, 0 };
    e->parallel_for(e, NAMED(turn_item), &turning, g->filters);
    p.b = (const float *)turned; p.channel_step = 1; p.output_step = p.windows.taps * g->channels;
    for (int64_t t = 0; t < p.windows.taps; t++) p.starts[t] = t * g->channels;
    p.bias = (const float *)bias;
    p.c = (float *)y; p.column_step = g->filters; p.row_step = g->out_columns * g->filters; p.image_step = g->out_rows * p.row_step;
    e->implicit_gemm(e, &p);
}

/* pixels of dx that no window sees */
static void NAMED(clear_class)(const Geometry *g, REAL *dx, int64_t y, int64_t x)
{
    for (int64_t i = 0; i < g->images; i++)
        for (int64_t row = y; row < g->rows; row += g->stride_y)
            for (int64_t column = x; column < g->columns; column += g->stride_x)
                memset(dx + ((i * g->rows + row) * g->columns + column) * g->channels, 0, (size_t)g->channels * sizeof(REAL));
}

/* the pixels (y, x) + multiples of the stride */
static void NAMED(tiled_class)(const Engine *e, const Geometry *g, const REAL *dy, const REAL *turned, REAL *dx, int64_t y, int64_t x)
{
    int64_t taps = g->kernel_y * g->kernel_x;
    ImplicitGemm p = { .outputs = g->channels, .b = (const float *)turned, .channel_step = taps * g->channels, .output_step = 1 };
    p.windows = (Windows){ .pixels = (const float *)dy, .images = g->images, .rows = g->out_rows, .columns = g->out_columns, .channels = g->filters,
                           .out_rows = blocks_of(g->rows - y, g->stride_y), .out_columns = blocks_of(g->columns - x, g->stride_x), .stride_y = 1, .stride_x = 1 };
    for (int64_t t = 0; t < taps; t++) {
        int64_t down = y + g->pad_y - t / g->kernel_x * g->step_y, right = x + g->pad_x - t % g->kernel_x * g->step_x;
        if (down % g->stride_y || right % g->stride_x) continue;
        p.windows.offsets[p.windows.taps][0] = down / g->stride_y;
        p.windows.offsets[p.windows.taps][1] = right / g->stride_x;
        p.starts[p.windows.taps++] = t * g->channels;
    }
    p.c = (float *)dx + (y * g->columns + x) * g->channels;
    p.column_step = g->stride_x * g->channels; p.row_step = g->stride_y * g->columns * g->channels; p.image_step = g->rows * g->columns * g->channels;
    if (p.windows.taps) e->implicit_gemm(e, &p);
    else NAMED(clear_class)(g, dx, y, x);
}

static void NAMED(tiled_data)(const Engine *e, const Geometry *g, const REAL *dy, const REAL *w, REAL *dx, REAL *turned)
{
    NAMED(Turning) turning = { w, turned, g->kernel_y * g->kernel_x, g->channels, 0 };
    e->parallel_for(e, NAMED(turn_item), &turning, g->filters);
    for (int64_t y = 0; y < least(g->stride_y, g->rows); y++)
        for (int64_t x = 0; x < least(g->stride_x, g->columns); x++) NAMED(tiled_class)(e, g, dy, turned, dx, y, x);
}

static void NAMED(tiled_weights)(const Engine *e, const Geometry *g, const REAL *dy, const REAL *x, REAL *dw, REAL *turned)
{
    ImplicitGemm p = NAMED(window_product_of)(g, x);
    NAMED(Turning) turning = { turned, dw, p.windows.taps, g->channels, 1 };
    p.filters = (const float *)dy;
    p.c = (float *)turned;
    e->implicit_gemm(e, &p);
    e->parallel_for(e, NAMED(turn_item), &turning, g->filters);
}
#undef V
#undef W
