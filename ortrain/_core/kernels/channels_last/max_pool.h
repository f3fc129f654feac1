/* Max pooling: x [n, d, h, w, c]; y and the index of the winning tap [n, od, oh, ow, c], where c is at least WIDTH.
 *
 * The gradient is computed per pixel of dx from the outputs whose windows cover it, so dx is written once and needs no zeroing. The last vector of channels
 * starts at c - WIDTH, so some channels are computed twice. */
#define V NAMED(Vector)
#define W NAMED(WIDTH)
typedef int32_t NAMED(TapIndices) __attribute__((vector_size(VECTOR_BYTES / sizeof(REAL) * 4), aligned(4), may_alias));
typedef struct NAMED(MaxPool) {
    const Geometry *g;
    const REAL *x, *dy;
    REAL *y, *dx;
    int32_t *taps;
} NAMED(MaxPool);

static void NAMED(max_pool_item)(void *context, int64_t item, int64_t worker)
{
    const NAMED(MaxPool) *s = context; (void)worker;
    const Geometry *g = s->g;
    int64_t oy = item % g->out_rows, plane = item / g->out_rows, oz = plane % g->out_planes, image = plane / g->out_planes;
    const REAL *pixels[MAX_TAPS];
    int64_t tap[MAX_TAPS];
    for (int64_t ox = 0; ox < g->out_columns; ox++) {
        int count = NAMED(window_inputs)(g, s->x, image, oz, oy, ox, 1, pixels, tap);
        REAL *out = s->y + (item * g->out_columns + ox) * g->channels;
        int32_t *tap_out = s->taps ? s->taps + (item * g->out_columns + ox) * g->channels : 0;
        for (int64_t at = 0; at < g->channels; at += W) {
            int64_t c = min_i64(at, g->channels - W);
            V best = LOAD(pixels[0] + c);
            NAMED(Mask) winning_tap = (INTEGER)tap[0] - (NAMED(Mask)){0};
            for (int i = 1; i < count; i++) {
                V v = LOAD(pixels[i] + c);
                NAMED(Mask) better = (v > best) | (v != v);                        /* NaN is kept */
                best = NAMED(select)(better, v, best);
                winning_tap = (better & (INTEGER)tap[i]) | (~better & winning_tap);
            }
            STORE(out + c, best);
            if (tap_out) *(NAMED(TapIndices) *)(tap_out + c) = __builtin_convertvector(winning_tap, NAMED(TapIndices));
        }
    }
}

/* Return dy of an output, masked by y > 0 if y is given: the gradient of a ReLU before the pool. */
ALWAYS_INLINE V NAMED(masked_dy)(const NAMED(MaxPool) *s, int64_t at)
{
    V dy = LOAD(s->dy + at);
    return s->y ? (V)((LOAD(s->y + at) > (V){0}) & (NAMED(Mask))dy) : dy;
}
ALWAYS_INLINE NAMED(Mask) NAMED(winning_taps)(const NAMED(MaxPool) *s, int64_t at)
{ return __builtin_convertvector(*(const NAMED(TapIndices) *)(s->taps + at), NAMED(Mask)); }

static void NAMED(max_pool_gradient_item)(void *context, int64_t item, int64_t worker)
{
    const NAMED(MaxPool) *s = context; (void)worker;
    const Geometry *g = s->g;
    int64_t y = item % g->rows, plane = item / g->rows, z = plane % g->planes, image = plane / g->planes, windows[MAX_TAPS], tap[MAX_TAPS];
    for (int64_t x = 0; x < g->columns; x++) {
        int count = NAMED(covering_outputs)(g, image, z, y, x, 1, windows, tap);
        REAL *out = s->dx + (item * g->columns + x) * g->channels;
        for (int64_t at = 0; at < g->channels; at += W) {
            int64_t c = min_i64(at, g->channels - W);
            V sum = {0};
            for (int i = 0; i < count; i++) {
                NAMED(Mask) mask = NAMED(winning_taps)(s, windows[i] + c) == (INTEGER)tap[i];
                sum += (V)(mask & (NAMED(Mask))NAMED(masked_dy)(s, windows[i] + c));
            }
            STORE(out + c, sum);
        }
    }
}

/* The gradient where windows do not overlap and cover the whole image: each output is read once. A work item is a row of outputs. */
static void NAMED(max_pool_disjoint_gradient_item)(void *context, int64_t item, int64_t worker)
{
    const NAMED(MaxPool) *s = context; (void)worker;
    const Geometry *g = s->g;
    int64_t oy = item % g->out_rows, plane = item / g->out_rows;              /* of all images: windows cover kernel_z whole planes */
    REAL *rows = s->dx + (plane * g->kernel_z * g->rows + oy * g->kernel_y) * g->columns * g->channels;
    for (int64_t ox = 0; ox < g->out_columns; ox++)
        for (int64_t at = 0; at < g->channels; at += W) {
            int64_t c = min_i64(at, g->channels - W), window = (item * g->out_columns + ox) * g->channels + c;
            V dy = NAMED(masked_dy)(s, window);
            NAMED(Mask) winning_tap = NAMED(winning_taps)(s, window);
            INTEGER tap = 0;
            for (int64_t z = 0; z < g->kernel_z; z++)
                for (int64_t r = z * g->rows; r < z * g->rows + g->kernel_y; r++)
                    for (int64_t t = 0; t < g->kernel_x; t++, tap++)
                        STORE(rows + (r * g->columns + ox * g->kernel_x + t) * g->channels + c, (V)((winning_tap == tap) & (NAMED(Mask))dy));
        }
}

/* x -> (y, winning taps or absent) */
static int NAMED(channels_last_max_pool)(const KernelArgs *args)
{
    const Geometry *g = (const Geometry *)args->ints;
    NAMED(MaxPool) s = { .g = g, .x = INPUT(0), .y = OUTPUT(0), .taps = (int32_t *)OUTPUT(1) };
    args->engine->parallel_for(args->engine, NAMED(max_pool_item), &s, output_rows(g));
    return STATUS_OK;
}

/* (dy, winning taps, y or absent) -> dx */
static int NAMED(channels_last_max_pool_grad)(const KernelArgs *args)
{
    const Geometry *g = (const Geometry *)args->ints;
    NAMED(MaxPool) s = { .g = g, .dy = INPUT(0), .dx = OUTPUT(0), .taps = (int32_t *)args->inputs[1].data, .y = (REAL *)INPUT(2) };
    int unpadded = g->pad_z == 0 && g->pad_y == 0 && g->pad_x == 0;
    int disjoint = unpadded && g->stride_z == g->kernel_z && g->stride_y == g->kernel_y && g->stride_x == g->kernel_x;
    disjoint &= g->out_planes * g->kernel_z == g->planes && g->out_rows * g->kernel_y == g->rows && g->out_columns * g->kernel_x == g->columns;
    if (disjoint) args->engine->parallel_for(args->engine, NAMED(max_pool_disjoint_gradient_item), &s, output_rows(g));
    else args->engine->parallel_for(args->engine, NAMED(max_pool_gradient_item), &s, g->images * g->planes * g->rows);
    return STATUS_OK;
}
#undef V
#undef W
