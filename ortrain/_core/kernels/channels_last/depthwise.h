/* Depthwise convolution, one filter per channel: x [n, h, w, c], w [c, 1, taps], y [n, oh, ow, c], c at least one vector wide.
 *
 * Taps are turned into [taps, c] first. The last vector of a row of channels starts at c - WIDTH: some channels are computed twice. */
#define V NAMED(Channels)
#define W NAMED(WIDTH)

typedef struct NAMED(Depthwise) {
    const Engine *engine;
    const Geometry *g;
    const REAL *x, *w, *dy;
    REAL *y, *dx, *dw, *taps, *sums;
    int64_t slices;
    int64_t padded;                      /* channels rounded up to whole vectors: a row of sums */
    NAMED(Finish) finish;
} NAMED(Depthwise);

/* taps [taps, c] of w [c, taps]; backwards where `turned` */
static void NAMED(turn_taps)(NAMED(Depthwise) *s, REAL *scratch, int turned)
{
    int64_t taps = s->g->kernel_y * s->g->kernel_x, channels = s->g->channels;
    s->taps = scratch;
    for (int64_t t = 0; t < taps; t++)
        for (int64_t c = 0; c < channels; c++) s->taps[t * channels + c] = s->w[c * taps + (turned ? taps - 1 - t : t)];
}

/* out[c] = sum over i of values[i][c] * w[taps[i] + c] */
INLINED void NAMED(sum_taps)(int count, const REAL **values, const REAL *w, const int64_t *taps, int64_t channels, REAL *out, const NAMED(Finish) *finish)
{
    for (int64_t at = 0; at < channels; at += W) {
        int64_t c = least(at, channels - W);
        V sum = {0};
        _Pragma("GCC unroll 9") for (int i = 0; i < count; i++) sum += LOAD(values[i] + c) * LOAD(w + taps[i] + c);
        STORE(out + c, finish ? NAMED(finished)(finish, sum, c) : sum);
    }
}

APART void NAMED(depthwise_pixel)(int count, const REAL **values, const REAL *w, const int64_t *taps, int64_t channels, REAL *out, const NAMED(Finish) *finish)
{
    if (count == 9) NAMED(sum_taps)(9, values, w, taps, channels, out, finish);
    else if (count == 6) NAMED(sum_taps)(6, values, w, taps, channels, out, finish);
    else if (count == 4) NAMED(sum_taps)(4, values, w, taps, channels, out, finish);
    else if (count == 2) NAMED(sum_taps)(2, values, w, taps, channels, out, finish);
    else if (count == 1) NAMED(sum_taps)(1, values, w, taps, channels, out, finish);
    else NAMED(sum_taps)(count, values, w, taps, channels, out, finish);
}

/* one vector of channels of a row of outputs, from `rows` rows of 3 taps: the taps stay in registers */
INLINED void NAMED(run_of_taps)(int rows, const REAL *x, int64_t row, int64_t x_step, const REAL *w, int64_t channels, REAL *out, int64_t count, int64_t c,
                                const NAMED(Finish) *finish)
{
    V tap[9];
    _Pragma("GCC unroll 9") for (int i = 0; i < 3 * rows; i++) tap[i] = LOAD(w + i * channels);
    for (int64_t o = 0; o < count; o++, x += x_step, out += channels) {
        V sum = LOAD(x) * tap[0];
        _Pragma("GCC unroll 9") for (int i = 1; i < 3 * rows; i++) sum += LOAD(x + i / 3 * row + i % 3 * channels) * tap[i];
        STORE(out, finish ? NAMED(finished)(finish, sum, c) : sum);
    }
}

/* an item is a row of outputs */
static void NAMED(depthwise_row_item)(void *context, int64_t item, int64_t worker)
{
    const NAMED(Depthwise) *s = context; (void)worker;
    const Geometry *g = s->g;
    int64_t oy = item % g->out_rows, image = item / g->out_rows, channels = g->channels, taps[MAX_TAPS], low, high;
    int64_t top = oy * g->stride_y - g->pad_y, first = most(0, -top), rows = least(3, g->rows - top) - first;
    const REAL *values[MAX_TAPS];
    const NAMED(Finish) *finish = s->finish.scale || s->finish.shift || s->finish.limited ? &s->finish : 0;
    REAL *out = s->y + item * g->out_columns * channels;
    whole_columns(g, &low, &high);
    if (g->kernel_y == 3 && g->kernel_x == 3 && g->step_y == 1 && g->step_x == 1 && rows >= 2) {
        const REAL *x = s->x + (((image * g->rows + top + first) * g->columns) + low * g->stride_x - g->pad_x) * channels, *w = s->taps + first * 3 * channels;
        for (int64_t at = 0; at < channels; at += W) {
            int64_t c = least(at, channels - W), row = g->columns * channels, step = g->stride_x * channels;
            if (rows == 3) NAMED(run_of_taps)(3, x + c, row, step, w + c, channels, out + low * channels + c, high - low, c, finish);
            else NAMED(run_of_taps)(2, x + c, row, step, w + c, channels, out + low * channels + c, high - low, c, finish);
        }
    } else high = low;
    for (int64_t ox = low == 0 ? high : 0; ox < g->out_columns; ox = ox + 1 == low ? high : ox + 1) {
        int count = NAMED(pixels_seen)(g, s->x, image, oy, ox, channels, values, taps);
        NAMED(depthwise_pixel)(count, values, s->taps, taps, channels, out + ox * channels, finish);
    }
}

/* the data's gradient with strides: an item is a row of inputs, each of which gathers the outputs that saw it */
static void NAMED(depthwise_data_item)(void *context, int64_t item, int64_t worker)
{
    const NAMED(Depthwise) *s = context; (void)worker;
    const Geometry *g = s->g;
    int64_t y = item % g->rows, image = item / g->rows, outputs[MAX_TAPS], taps[MAX_TAPS];
    const REAL *values[MAX_TAPS];
    for (int64_t x = 0; x < g->columns; x++) {
        int count = NAMED(outputs_seeing)(g, image, y, x, g->channels, outputs, taps);
        for (int i = 0; i < count; i++) values[i] = s->dy + outputs[i];
        NAMED(depthwise_pixel)(count, values, s->taps, taps, g->channels, s->dx + (item * g->columns + x) * g->channels, 0);
    }
}

/* the data's gradient; without strides it is the convolution of dy with the taps backwards */
static void NAMED(depthwise_data)(NAMED(Depthwise) *s, REAL *scratch)
{
    const Geometry *g = s->g;
    int64_t pad_y = (g->kernel_y - 1) * g->step_y - g->pad_y, pad_x = (g->kernel_x - 1) * g->step_x - g->pad_x;
    int plain = g->stride_y == 1 && g->stride_x == 1 && pad_y >= 0 && pad_x >= 0;
    NAMED(turn_taps)(s, scratch, plain);
    if (!plain) { s->engine->parallel_for(s->engine, NAMED(depthwise_data_item), s, g->images * g->rows); return; }
    Geometry turned = *g;
    turned.rows = g->out_rows; turned.columns = g->out_columns; turned.out_rows = g->rows; turned.out_columns = g->columns;
    turned.pad_y = pad_y; turned.pad_x = pad_x;
    s->x = s->dy; s->y = s->dx; s->g = &turned;
    s->engine->parallel_for(s->engine, NAMED(depthwise_row_item), s, g->images * g->rows);
}

/* sums[kernel_x] += x dy along one row of outputs for one kernel row and one vector of channels; columns low … high of every tap lie inside */
INLINED void NAMED(row_sums)(int64_t kernel_x, const REAL *x, int64_t x_step, int64_t tap_step, const REAL *dy, int64_t dy_step, int64_t low, int64_t high, V *sums)
{
    for (int64_t o = low; o < high; o++) {
        V d = LOAD(dy + o * dy_step);
        for (int64_t t = 0; t < kernel_x; t++) sums[t] += LOAD(x + o * x_step + t * tap_step) * d;
    }
}

/* the same for 3 x 3 with all three rows inside: nine sums, so that additions need not wait for each other */
INLINED void NAMED(nine_sums)(const REAL *x, int64_t row, int64_t x_step, int64_t tap_step, const REAL *dy, int64_t dy_step, int64_t low, int64_t high, REAL *sums, int64_t padded)
{
    V sum[9];
    _Pragma("GCC unroll 9") for (int t = 0; t < 9; t++) sum[t] = LOAD(sums + t * padded);
    for (int64_t o = low; o < high; o++) {
        V d = LOAD(dy + o * dy_step);
        _Pragma("GCC unroll 9") for (int t = 0; t < 9; t++) sum[t] += LOAD(x + t / 3 * row + o * x_step + t % 3 * tap_step) * d;
    }
    _Pragma("GCC unroll 9") for (int t = 0; t < 9; t++) STORE(sums + t * padded, sum[t]);
}

/* sums[slice][tap][padded] over a slice of the rows of outputs; an item is a slice */
static void NAMED(depthwise_weight_item)(void *context, int64_t slice, int64_t worker)
{
    const NAMED(Depthwise) *s = context; (void)worker;
    const Geometry *g = s->g;
    int64_t lines = g->images * g->out_rows, begin = slice * lines / s->slices, end = (slice + 1) * lines / s->slices;
    int64_t low, high;
    whole_columns(g, &low, &high);
    REAL *sums = s->sums + slice * g->kernel_y * g->kernel_x * s->padded;
    for (int64_t i = 0; i < g->kernel_y * g->kernel_x * s->padded; i++) sums[i] = 0;
    for (int64_t line = begin; line < end; line++)
        for (int64_t at = 0; at < g->channels; at += W) {
            int64_t c = least(at, g->channels - W), oy = line % g->out_rows, image = line / g->out_rows;
            const REAL *dy = s->dy + line * g->out_columns * g->channels + c;
            int64_t top = oy * g->stride_y - g->pad_y, nine = g->kernel_y == 3 && g->kernel_x == 3 && top >= 0 && top + 2 * g->step_y < g->rows;
            if (nine)
                NAMED(nine_sums)(s->x + ((image * g->rows + top) * g->columns - g->pad_x) * g->channels + c, g->step_y * g->columns * g->channels,
                                 g->stride_x * g->channels, g->step_x * g->channels, dy, g->channels, low, high, sums + at, s->padded);
            for (int64_t r = 0; r < g->kernel_y; r++) {
                int64_t y = oy * g->stride_y - g->pad_y + r * g->step_y;
                if (y < 0 || y >= g->rows) continue;
                const REAL *x = s->x + ((image * g->rows + y) * g->columns - g->pad_x) * g->channels + c;
                V sum[MAX_TAPS];
                for (int64_t t = 0; t < g->kernel_x; t++) sum[t] = LOAD(sums + (r * g->kernel_x + t) * s->padded + at);
                if (nine) {
                } else if (g->kernel_x == 3) {
                    V three[3] = { sum[0], sum[1], sum[2] };
                    NAMED(row_sums)(3, x, g->stride_x * g->channels, g->step_x * g->channels, dy, g->channels, low, high, three);
                    for (int t = 0; t < 3; t++) sum[t] = three[t];
                } else NAMED(row_sums)(g->kernel_x, x, g->stride_x * g->channels, g->step_x * g->channels, dy, g->channels, low, high, sum);
                for (int64_t o = 0; o < g->out_columns; o++) {
                    if (o == low) o = high;
                    if (o >= g->out_columns) break;
                    for (int64_t t = 0; t < g->kernel_x; t++) {
                        int64_t column = o * g->stride_x - g->pad_x + t * g->step_x;
                        if (column >= 0 && column < g->columns)
                            sum[t] += LOAD(x + (o * g->stride_x + t * g->step_x) * g->channels) * LOAD(dy + o * g->channels);
                    }
                }
                for (int64_t t = 0; t < g->kernel_x; t++) STORE(sums + (r * g->kernel_x + t) * s->padded + at, sum[t]);
            }
        }
}

static void NAMED(depthwise_weights)(NAMED(Depthwise) *s, REAL *scratch)
{
    int64_t taps = s->g->kernel_y * s->g->kernel_x, channels = s->g->channels, whole = channels / W * W, size = taps * s->padded;
    s->sums = scratch;
    s->slices = most(1, least(DEPTHWISE_SLICES, s->g->images * s->g->out_rows / DEPTHWISE_LINES));
    s->engine->parallel_for(s->engine, NAMED(depthwise_weight_item), s, s->slices);
    for (int64_t slice = 1; slice < s->slices; slice++) NAMED(add_elements)(s->sums, s->sums + slice * size, size);
    for (int64_t c = 0; c < channels; c++) {
        int64_t at = c < whole ? c : whole + c - (channels - W);
        for (int64_t t = 0; t < taps; t++) s->dw[c * taps + t] = s->sums[t * s->padded + at];
    }
}
#undef V
#undef W
