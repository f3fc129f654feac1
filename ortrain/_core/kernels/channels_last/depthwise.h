/* Depthwise convolution of images of one plane with one filter per channel: x [n, h, w, c], w [c, 1, taps], y [n, oh, ow, c], where c is at least WIDTH.
 *
 * w is transposed to [taps, c] first. The last vector of channels starts at c - WIDTH, so some channels are computed twice. */
#define V NAMED(Vector)
#define W NAMED(WIDTH)

/* Rows are prefetched where x has this size or more, so that the L2 cache did not keep it: processors do not follow as many streams as taps have (16 images of
 * 96 channels, 56 x 56: 3.6 to 2.5 ms, with stride 2 1.9 to 1.2; 8 images of 64 channels, which fit into the L3 cache: 0.52 to 0.63). */
#define PREFETCHED_BYTES (8 << 20)

typedef struct NAMED(Depthwise) {
    const Engine *engine;
    const Geometry *g;
    const REAL *x, *w, *dy;
    REAL *y, *dx, *dw, *taps, *sums;
    int64_t slices;
    int64_t padded;                      /* channels rounded up to whole vectors: the length of a row of sums */
    NAMED(Epilogue) epilogue;
} NAMED(Depthwise);

/* s->taps [taps, c] = w [c, taps] transposed, with the order of taps reversed if `rotated`. */
static void NAMED(transpose_taps)(NAMED(Depthwise) *s, REAL *scratch, int rotated)
{
    int64_t taps = s->g->kernel_y * s->g->kernel_x, channels = s->g->channels;
    s->taps = scratch;
    for (int64_t t = 0; t < taps; t++)
        for (int64_t c = 0; c < channels; c++) s->taps[t * channels + c] = s->w[c * taps + (rotated ? taps - 1 - t : t)];
}

/* out [channels] = epilogue(sum over i < count of values[i] [channels] * w[taps[i] + channel]) */
ALWAYS_INLINE void NAMED(multiply_taps)(int count, const REAL **values, const REAL *w, const int64_t *taps, int64_t channels, REAL *out,
                                        const NAMED(Epilogue) *epilogue)
{
    for (int64_t at = 0; at < channels; at += W) {
        int64_t c = min_i64(at, channels - W);
        V sum = {0};
        _Pragma("GCC unroll 9") for (int i = 0; i < count; i++) sum += LOAD(values[i] + c) * LOAD(w + taps[i] + c);
        STORE(out + c, epilogue ? NAMED(apply_epilogue)(epilogue, sum, c) : sum);
    }
}

NOINLINE void NAMED(depthwise_pixel)(int count, const REAL **values, const REAL *w, const int64_t *taps, int64_t channels, REAL *out,
                                     const NAMED(Epilogue) *epilogue)
{
    if (count == 9) NAMED(multiply_taps)(9, values, w, taps, channels, out, epilogue);
    else if (count == 6) NAMED(multiply_taps)(6, values, w, taps, channels, out, epilogue);
    else if (count == 4) NAMED(multiply_taps)(4, values, w, taps, channels, out, epilogue);
    else if (count == 2) NAMED(multiply_taps)(2, values, w, taps, channels, out, epilogue);
    else if (count == 1) NAMED(multiply_taps)(1, values, w, taps, channels, out, epilogue);
    else NAMED(multiply_taps)(count, values, w, taps, channels, out, epilogue);
}

/* The rows of taps of a row of outputs: tap t of output i multiplies the channels of pixel i * stride + t * dilation of x[row] and of tap t of w[row]. */
typedef struct NAMED(TapRows) {
    int64_t rows, taps, stride, dilation, channels;
    const REAL *x[MAX_TAPS], *w[MAX_TAPS];
    const REAL *ahead;                   /* the rows below, which the next row of outputs reads, row_step elements apart */
    int64_t row_step;
} NAMED(TapRows);

/* COLUMN_BLOCK outputs from output `first` on, whose taps are all there; channels innermost, because a row of one vector of channels after the
 * other falls into few sets of the L1 cache, with its results among them (3 x 3 on 64 channels, 32 x 32, with AVX2: 41 to 33 µs). Neighbouring outputs share what they
 * read where `taps` and `stride` are constants. ahead: the rows below of which as many columns are prefetched, spread over the products: all at once they
 * gained nothing. */
ALWAYS_INLINE void NAMED(multiply_columns)(const NAMED(TapRows) *s, int64_t taps, int64_t stride, int64_t dilation, int ahead, int64_t first, REAL *out,
                                           const NAMED(Epilogue) *epilogue)
{
    int64_t channels = s->channels, rows = s->rows, from = first * stride * channels;
    for (int64_t at = 0; at < channels; at += W) {
        int64_t c = min_i64(at, channels - W);
        V sum[COLUMN_BLOCK] = {{0}};
        _Pragma("GCC unroll 16") for (int64_t i = 0; i < ahead * COLUMN_BLOCK * stride; i++)
            __builtin_prefetch(s->ahead + i / (COLUMN_BLOCK * stride) * s->row_step + from + i % (COLUMN_BLOCK * stride) * channels + c, 0, 2);
        for (int64_t r = 0; r < rows; r++) {
            const REAL *x = s->x[r] + from + c, *w = s->w[r] + c;
            _Pragma("GCC unroll 3") for (int64_t t = 0; t < taps; t++) {
                V tap = LOAD(w + t * channels);
                _Pragma("GCC unroll 4") for (int i = 0; i < COLUMN_BLOCK; i++) sum[i] += LOAD(x + (i * stride + t * dilation) * channels) * tap;
            }
        }
        if (epilogue) NAMED(apply_epilogue_to)(epilogue, sum, COLUMN_BLOCK, c);
        _Pragma("GCC unroll 4") for (int i = 0; i < COLUMN_BLOCK; i++) STORE(out + (first + i) * channels + c, sum[i]);
    }
}

/* `count` outputs, at least COLUMN_BLOCK; the last block overlaps the one before. */
#define DEPTHWISE_COLUMNS(NAME, TAPS, STRIDE, DILATION, AHEAD)                                                             \
    NOINLINE void NAME(const NAMED(TapRows) *s, int64_t count, REAL *out, const NAMED(Epilogue) *e)                        \
    {                                                                                                                      \
        for (int64_t o = 0; o < count; o += COLUMN_BLOCK)                                                                  \
            NAMED(multiply_columns)(s, TAPS, STRIDE, DILATION, AHEAD, min_i64(o, count - COLUMN_BLOCK), out, e);           \
    }
DEPTHWISE_COLUMNS(NAMED(depthwise_columns), s->taps, s->stride, s->dilation, 0)
DEPTHWISE_COLUMNS(NAMED(depthwise_columns_3_1), 3, 1, 1, 0)
DEPTHWISE_COLUMNS(NAMED(depthwise_columns_3_2), 3, 2, 1, 0)
DEPTHWISE_COLUMNS(NAMED(depthwise_columns_3_1_ahead), 3, 1, 1, 1)
DEPTHWISE_COLUMNS(NAMED(depthwise_columns_3_2_ahead), 3, 2, 1, 2)

typedef void (*NAMED(DepthwiseColumns))(const NAMED(TapRows) *, int64_t, REAL *, const NAMED(Epilogue) *);
static inline NAMED(DepthwiseColumns) NAMED(depthwise_columns_for)(int64_t taps, int64_t stride, int64_t dilation, int ahead)
{
    if (taps != 3 || dilation != 1 || stride > 2) return NAMED(depthwise_columns);
    if (ahead) return stride == 1 ? NAMED(depthwise_columns_3_1_ahead) : NAMED(depthwise_columns_3_2_ahead);
    return stride == 1 ? NAMED(depthwise_columns_3_1) : NAMED(depthwise_columns_3_2);
}

/* One row of outputs: the columns whose windows are inside the image in blocks, the others one by one. */
static void NAMED(depthwise_row_item)(void *context, int64_t item, int64_t worker)
{
    const NAMED(Depthwise) *s = context; (void)worker;
    const Geometry *g = s->g;
    int64_t oy = item % g->out_rows, image = item / g->out_rows, channels = g->channels, taps[MAX_TAPS], low, high;
    const REAL *values[MAX_TAPS];
    const NAMED(Epilogue) *epilogue = s->epilogue.scale || s->epilogue.shift || s->epilogue.clamped ? &s->epilogue : 0;
    int ahead = g->images * g->rows * g->columns * channels * (int64_t)sizeof(REAL) >= PREFETCHED_BYTES;
    REAL *out = s->y + item * g->out_columns * channels;
    interior_columns(g, &low, &high);
    if (high - low >= COLUMN_BLOCK) {
        NAMED(TapRows) rows;                        /* without an initializer, which would write 2 KiB of zeros */
        int64_t below = oy * g->stride_y - g->pad_y + (g->kernel_y - 1) * g->dilation_y + 1, from = low * g->stride_x - g->pad_x;
        rows.rows = 0; rows.taps = g->kernel_x; rows.stride = g->stride_x; rows.dilation = g->dilation_x; rows.channels = channels;
        rows.row_step = g->columns * channels;
        rows.ahead = s->x + ((image * g->rows + below) * g->columns + from) * channels;
        for (int64_t r = 0; r < g->kernel_y; r++) {
            int64_t y = oy * g->stride_y - g->pad_y + r * g->dilation_y;
            if (y < 0 || y >= g->rows) continue;
            rows.x[rows.rows] = s->x + ((image * g->rows + y) * g->columns + from) * channels;
            rows.w[rows.rows++] = s->taps + r * g->kernel_x * channels;
        }
        NAMED(depthwise_columns_for)(g->kernel_x, g->stride_x, g->dilation_x, ahead)(&rows, high - low, out + low * channels, epilogue);
    } else high = low;
    for (int64_t ox = low == 0 ? high : 0; ox < g->out_columns; ox = ox + 1 == low ? high : ox + 1) {
        int count = NAMED(window_inputs)(g, s->x, image, 0, oy, ox, channels, values, taps);
        NAMED(depthwise_pixel)(count, values, s->taps, taps, channels, out + ox * channels, epilogue);
    }
}

/* Data gradient with strides, one row of dx: each pixel sums over the outputs whose windows cover it. */
static void NAMED(depthwise_data_gradient_item)(void *context, int64_t item, int64_t worker)
{
    const NAMED(Depthwise) *s = context; (void)worker;
    const Geometry *g = s->g;
    int64_t y = item % g->rows, image = item / g->rows, outputs[MAX_TAPS], taps[MAX_TAPS];
    const REAL *values[MAX_TAPS];
    for (int64_t x = 0; x < g->columns; x++) {
        int count = NAMED(covering_outputs)(g, image, 0, y, x, g->channels, outputs, taps);
        for (int i = 0; i < count; i++) values[i] = s->dy + outputs[i];
        NAMED(depthwise_pixel)(count, values, s->taps, taps, g->channels, s->dx + (item * g->columns + x) * g->channels, 0);
    }
}

/* Data gradient. Without strides it is the convolution of dy with rotated filters. */
static void NAMED(depthwise_data_gradient)(NAMED(Depthwise) *s, REAL *scratch)
{
    const Geometry *g = s->g;
    int64_t pad_y = (g->kernel_y - 1) * g->dilation_y - g->pad_y, pad_x = (g->kernel_x - 1) * g->dilation_x - g->pad_x;
    int plain = g->stride_y == 1 && g->stride_x == 1 && pad_y >= 0 && pad_x >= 0;
    NAMED(transpose_taps)(s, scratch, plain);
    if (!plain) { s->engine->parallel_for(s->engine, NAMED(depthwise_data_gradient_item), s, g->images * g->rows); return; }
    Geometry rotated = *g;
    rotated.rows = g->out_rows; rotated.columns = g->out_columns; rotated.out_rows = g->rows; rotated.out_columns = g->columns;
    rotated.pad_y = pad_y; rotated.pad_x = pad_x;
    s->x = s->dy; s->y = s->dx; s->g = &rotated;
    s->engine->parallel_for(s->engine, NAMED(depthwise_row_item), s, g->images * g->rows);
}

/* sums[t] += x[column of tap t] * dy over a row of outputs, for one kernel row and one vector of channels; low <= output < high, where all taps are inside. */
ALWAYS_INLINE void NAMED(weight_gradient_row)(int64_t kernel_x, const REAL *x, int64_t x_step, int64_t tap_step, const REAL *dy, int64_t dy_step, int64_t low,
                                              int64_t high, V *sums)
{
    for (int64_t o = low; o < high; o++) {
        V d = LOAD(dy + o * dy_step);
        for (int64_t t = 0; t < kernel_x; t++) sums[t] += LOAD(x + o * x_step + t * tap_step) * d;
    }
}

/* weight_gradient_row for 3 x 3 filters with all three rows inside: nine independent sums hide the latency of the additions. */
ALWAYS_INLINE void NAMED(weight_gradient_3x3)(const REAL *x, int64_t row, int64_t x_step, int64_t tap_step, const REAL *dy, int64_t dy_step, int64_t low,
                                              int64_t high, REAL *sums, int64_t padded)
{
    V sum[9];
    _Pragma("GCC unroll 9") for (int t = 0; t < 9; t++) sum[t] = LOAD(sums + t * padded);
    for (int64_t o = low; o < high; o++) {
        V d = LOAD(dy + o * dy_step);
        _Pragma("GCC unroll 9") for (int t = 0; t < 9; t++) sum[t] += LOAD(x + t / 3 * row + o * x_step + t % 3 * tap_step) * d;
    }
    _Pragma("GCC unroll 9") for (int t = 0; t < 9; t++) STORE(sums + t * padded, sum[t]);
}

/* sums [slice, taps, padded] = the weight gradient over a slice of the rows of outputs. A work item is a slice. */
static void NAMED(depthwise_weight_gradient_item)(void *context, int64_t slice, int64_t worker)
{
    const NAMED(Depthwise) *s = context; (void)worker;
    const Geometry *g = s->g;
    int64_t total_rows = g->images * g->out_rows, begin = slice * total_rows / s->slices, end = (slice + 1) * total_rows / s->slices;
    int64_t low, high;
    interior_columns(g, &low, &high);
    REAL *sums = s->sums + slice * g->kernel_y * g->kernel_x * s->padded;
    for (int64_t i = 0; i < g->kernel_y * g->kernel_x * s->padded; i++) sums[i] = 0;
    for (int64_t out_row = begin; out_row < end; out_row++)
        for (int64_t at = 0; at < g->channels; at += W) {
            int64_t c = min_i64(at, g->channels - W), oy = out_row % g->out_rows, image = out_row / g->out_rows;
            const REAL *dy = s->dy + out_row * g->out_columns * g->channels + c;
            int64_t top = oy * g->stride_y - g->pad_y, nine = g->kernel_y == 3 && g->kernel_x == 3 && top >= 0 && top + 2 * g->dilation_y < g->rows;
            if (nine)
                NAMED(weight_gradient_3x3)(s->x + ((image * g->rows + top) * g->columns - g->pad_x) * g->channels + c, g->dilation_y * g->columns * g->channels,
                                           g->stride_x * g->channels, g->dilation_x * g->channels, dy, g->channels, low, high, sums + at, s->padded);
            for (int64_t r = 0; r < g->kernel_y; r++) {
                int64_t y = oy * g->stride_y - g->pad_y + r * g->dilation_y;
                if (y < 0 || y >= g->rows) continue;
                const REAL *x = s->x + ((image * g->rows + y) * g->columns - g->pad_x) * g->channels + c;
                V sum[MAX_TAPS];
                for (int64_t t = 0; t < g->kernel_x; t++) sum[t] = LOAD(sums + (r * g->kernel_x + t) * s->padded + at);
                if (nine) {
                } else if (g->kernel_x == 3) {
                    V three[3] = { sum[0], sum[1], sum[2] };
                    NAMED(weight_gradient_row)(3, x, g->stride_x * g->channels, g->dilation_x * g->channels, dy, g->channels, low, high, three);
                    for (int t = 0; t < 3; t++) sum[t] = three[t];
                } else NAMED(weight_gradient_row)(g->kernel_x, x, g->stride_x * g->channels, g->dilation_x * g->channels, dy, g->channels, low, high, sum);
                for (int64_t o = 0; o < g->out_columns; o++) {
                    if (o == low) o = high;
                    if (o >= g->out_columns) break;
                    for (int64_t t = 0; t < g->kernel_x; t++) {
                        int64_t column = o * g->stride_x - g->pad_x + t * g->dilation_x;
                        if (column >= 0 && column < g->columns)
                            sum[t] += LOAD(x + (o * g->stride_x + t * g->dilation_x) * g->channels) * LOAD(dy + o * g->channels);
                    }
                }
                for (int64_t t = 0; t < g->kernel_x; t++) STORE(sums + (r * g->kernel_x + t) * s->padded + at, sum[t]);
            }
        }
}

static void NAMED(depthwise_weight_gradient)(NAMED(Depthwise) *s, REAL *scratch)
{
    int64_t taps = s->g->kernel_y * s->g->kernel_x, channels = s->g->channels, whole = channels / W * W, size = taps * s->padded;
    s->sums = scratch;
    s->slices = max_i64(1, min_i64(DEPTHWISE_SLICES, s->g->images * s->g->out_rows / DEPTHWISE_MIN_ROWS));
    s->engine->parallel_for(s->engine, NAMED(depthwise_weight_gradient_item), s, s->slices);
    for (int64_t slice = 1; slice < s->slices; slice++) NAMED(add_elements)(s->sums, s->sums + slice * size, size);
    for (int64_t c = 0; c < channels; c++) {
        int64_t at = c < whole ? c : whole + c - (channels - W);
        for (int64_t t = 0; t < taps; t++) s->dw[c * taps + t] = s->sums[t * s->padded + at];
    }
}
#undef V
#undef W
