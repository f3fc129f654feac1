/* Maximum pooling: x [n, h, w, c], y and the winning tap's number [n, oh, ow, c], c at least one vector wide.
 *
 * Backward each pixel looks at the windows that saw it: dx is written once, without zeroing or scattering. The last vector of a row of channels starts
 * at c - WIDTH: some channels are computed twice. */
#define V NAMED(Channels)
#define W NAMED(WIDTH)
typedef int32_t NAMED(Taps) __attribute__((vector_size(VECTOR_BYTES / sizeof(REAL) * 4), aligned(4), may_alias));
typedef struct NAMED(Pool) {
    const Geometry *g;
    const REAL *x, *dy;
    REAL *y, *dx;
    int32_t *taps;
} NAMED(Pool);

static void NAMED(pool_row_item)(void *context, int64_t item, int64_t worker)
{
    const NAMED(Pool) *s = context; (void)worker;
    const Geometry *g = s->g;
    int64_t oy = item % g->out_rows, image = item / g->out_rows;
    const REAL *seen[MAX_TAPS];
    int64_t tap[MAX_TAPS];
    for (int64_t ox = 0; ox < g->out_columns; ox++) {
        int count = NAMED(pixels_seen)(g, s->x, image, oy, ox, 1, seen, tap);
        REAL *out = s->y + (item * g->out_columns + ox) * g->channels;
        int32_t *where = s->taps ? s->taps + (item * g->out_columns + ox) * g->channels : 0;
        for (int64_t at = 0; at < g->channels; at += W) {
            int64_t c = least(at, g->channels - W);
            V best = LOAD(seen[0] + c);
            NAMED(Mask) winner = (INTEGER)tap[0] - (NAMED(Mask)){0};
            for (int i = 1; i < count; i++) {
                V v = LOAD(seen[i] + c);
                NAMED(Mask) better = (v > best) | (v != v);                        /* NaN stays */
                best = NAMED(select)(better, v, best);
                winner = (better & (INTEGER)tap[i]) | (~better & winner);
            }
            STORE(out + c, best);
            if (where) *(NAMED(Taps) *)(where + c) = __builtin_convertvector(winner, NAMED(Taps));
        }
    }
}

/* dy of a window, none where its maximum y is not above zero: the gradient of a ReLU before the pool */
INLINED V NAMED(pool_dy)(const NAMED(Pool) *s, int64_t at)
{
    V dy = LOAD(s->dy + at);
    return s->y ? (V)((LOAD(s->y + at) > (V){0}) & (NAMED(Mask))dy) : dy;
}
INLINED NAMED(Mask) NAMED(winners)(const NAMED(Pool) *s, int64_t at) { return __builtin_convertvector(*(const NAMED(Taps) *)(s->taps + at), NAMED(Mask)); }

static void NAMED(pool_gradient_item)(void *context, int64_t item, int64_t worker)
{
    const NAMED(Pool) *s = context; (void)worker;
    const Geometry *g = s->g;
    int64_t y = item % g->rows, image = item / g->rows, windows[MAX_TAPS], tap[MAX_TAPS];
    for (int64_t x = 0; x < g->columns; x++) {
        int count = NAMED(outputs_seeing)(g, image, y, x, 1, windows, tap);
        REAL *out = s->dx + (item * g->columns + x) * g->channels;
        for (int64_t at = 0; at < g->channels; at += W) {
            int64_t c = least(at, g->channels - W);
            V sum = {0};
            for (int i = 0; i < count; i++) {
                NAMED(Mask) won = NAMED(winners)(s, windows[i] + c) == (INTEGER)tap[i];
                sum += (V)(won & (NAMED(Mask))NAMED(pool_dy)(s, windows[i] + c));
            }
            STORE(out + c, sum);
        }
    }
}

/* the same where windows lie side by side and fill the image: each is read once; an item is a row of outputs */
static void NAMED(pool_apart_item)(void *context, int64_t item, int64_t worker)
{
    const NAMED(Pool) *s = context; (void)worker;
    const Geometry *g = s->g;
    REAL *rows = s->dx + item * g->kernel_y * g->columns * g->channels;
    for (int64_t ox = 0; ox < g->out_columns; ox++)
        for (int64_t at = 0; at < g->channels; at += W) {
            int64_t c = least(at, g->channels - W), window = (item * g->out_columns + ox) * g->channels + c;
            V dy = NAMED(pool_dy)(s, window);
            NAMED(Mask) winner = NAMED(winners)(s, window);
            INTEGER tap = 0;
            for (int64_t r = 0; r < g->kernel_y; r++)
                for (int64_t t = 0; t < g->kernel_x; t++, tap++)
                    STORE(rows + (r * g->columns + ox * g->kernel_x + t) * g->channels + c, (V)((winner == tap) & (NAMED(Mask))dy));
        }
}

/* x -> (y, taps) */
static int NAMED(channels_last_max_pool)(const KernelArgs *args)
{
    const Geometry *g = (const Geometry *)args->ints;
    NAMED(Pool) s = { .g = g, .x = INPUT(0), .y = OUTPUT(0), .taps = (int32_t *)OUTPUT(1) };
    args->engine->parallel_for(args->engine, NAMED(pool_row_item), &s, g->images * g->out_rows);
    return STATUS_OK;
}

/* (dy, taps, y or NULL) -> dx */
static int NAMED(channels_last_max_pool_grad)(const KernelArgs *args)
{
    const Geometry *g = (const Geometry *)args->ints;
    NAMED(Pool) s = { .g = g, .dy = INPUT(0), .dx = OUTPUT(0), .taps = (int32_t *)args->inputs[1].data, .y = (REAL *)INPUT(2) };
    int apart = g->pad_y == 0 && g->pad_x == 0 && g->stride_y == g->kernel_y && g->stride_x == g->kernel_x && g->out_rows * g->kernel_y == g->rows &&
                g->out_columns * g->kernel_x == g->columns;
    if (apart) args->engine->parallel_for(args->engine, NAMED(pool_apart_item), &s, g->images * g->out_rows);
    else args->engine->parallel_for(args->engine, NAMED(pool_gradient_item), &s, g->images * g->rows);
    return STATUS_OK;
}
#undef V
#undef W
