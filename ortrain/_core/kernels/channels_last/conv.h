/* Convolution and its gradient on channels-last tensors: which of the ways the record has chosen. */
#ifndef CHANNELS_LAST_METHODS
#define CHANNELS_LAST_METHODS
/* as Method in ops/shared/conv_algorithms.py */
enum { NOTHING = 0, PRODUCT = 1, WINOGRAD = 2, ROWS = 3, DEPTHWISE = 4, BLOCKS = 5, WINDOWS = 6, WINOGRAD_ROWS = 7, TILES = 8 };
enum { CONV_METHOD = GEOMETRY_INTS, CONV_ROWS, CONV_LIMITED };
enum { DATA_METHOD = GEOMETRY_INTS, DATA_ROWS, WEIGHT_METHOD, WEIGHT_BLOCK, WEIGHT_SLICES, BIAS_BLOCKS };
#endif

static NAMED(Winograd) NAMED(winograd_of)(const KernelArgs *args, const REAL *w)
{
    const Geometry *g = (const Geometry *)args->ints;
    return (NAMED(Winograd)){ .engine = args->engine, .w = w, .channels = g->channels, .images = g->images, .rows = g->rows, .columns = g->columns,
                              .depth = g->channels, .out_rows = g->out_rows, .out_columns = g->out_columns, .outputs = g->filters, .pad_y = g->pad_y, .pad_x = g->pad_x,
                              .strided = g->stride_y == 2 };
}

static NAMED(RowWinograd) NAMED(row_winograd_of)(const KernelArgs *args, const REAL *w)
{
    const Geometry *g = (const Geometry *)args->ints;
    return (NAMED(RowWinograd)){ .engine = args->engine, .w = w, .channels = g->channels, .images = g->images, .rows = g->rows, .columns = g->columns,
                                 .depth = g->channels, .out_rows = g->out_rows, .out_columns = g->out_columns, .outputs = g->filters, .pad_y = g->pad_y,
                                 .pad_x = g->pad_x, .kernel_y = g->kernel_y };
}

static NAMED(Depthwise) NAMED(depthwise_of)(const KernelArgs *args, const REAL *w)
{
    const Geometry *g = (const Geometry *)args->ints;
    return (NAMED(Depthwise)){ .engine = args->engine, .g = g, .w = w, .padded = rounded(g->channels, NAMED(WIDTH)) };
}

/* y = conv(x, w) + bias, or of frozen normalization: scale (conv + bias - mean) / sqrt(variance + epsilon) + shift; vectors: 2 * filters elements */
static NAMED(Finish) NAMED(finish_of)(const KernelArgs *args, REAL *vectors)
{
    const Geometry *g = (const Geometry *)args->ints;
    const REAL *bias = INPUT(2), *gain = INPUT(3), *shift = INPUT(4), *mean = INPUT(5), *variance = INPUT(6);
    NAMED(Finish) f = { .shift = bias, .limited = (int)args->ints[CONV_LIMITED], .low = (REAL)args->floats[1], .high = (REAL)args->floats[2] };
    if (!gain) return f;
    for (int64_t k = 0; k < g->filters; k++) {
        REAL scale = (REAL)(gain[k] / sqrt((double)variance[k] + args->floats[0]));
        vectors[k] = scale;
        vectors[g->filters + k] = shift[k] + ((bias ? bias[k] : 0) - mean[k]) * scale;
    }
    f.scale = vectors; f.shift = vectors + g->filters;
    return f;
}

/* 1 x 1 with strides: the pixels that are seen, side by side; an item is a block of them */
static void NAMED(gather_item)(void *context, int64_t item, int64_t worker)
{
    const NAMED(Rows) *s = context; (void)worker;
    int64_t first = item * s->rows;
    NAMED(gather)(s, 0, first, least(s->rows, s->pixels - first), s->y + first * s->g->channels);
}
static const REAL *NAMED(product_data)(const KernelArgs *args, const REAL *x, REAL *scratch)
{
    const Geometry *g = (const Geometry *)args->ints;
    NAMED(Rows) s = NAMED(rows_of)(args, most(1, 16384 / g->channels));
    if (g->stride_y == 1 && g->stride_x == 1) return x;
    s.x = x; s.y = scratch;
    s.engine->parallel_for(s.engine, NAMED(gather_item), &s, blocks_of(s.pixels, s.rows));
    return scratch;
}
/* the adjoint, added to what is in dx; an item is an image */
static void NAMED(spread_item)(void *context, int64_t image, int64_t worker)
{
    const NAMED(Rows) *s = context; (void)worker;
    int64_t inside = s->g->out_rows * s->g->out_columns;
    NAMED(scatter)(s, 0, image * inside, inside, s->dy + image * inside * s->g->channels, s->g->channels, 0, 1);
}

/* an item is a block of pixels */
typedef struct NAMED(Finishing) { const NAMED(Finish) *finish; REAL *y; int64_t pixels, channels; } NAMED(Finishing);
static void NAMED(finish_item)(void *context, int64_t item, int64_t worker)
{
    const NAMED(Finishing) *s = context; (void)worker;
    int64_t rows = most(1, 16384 / s->channels), first = item * rows;
    NAMED(finish_rows)(s->finish, s->y + first * s->channels, least(rows, s->pixels - first), s->channels);
}

/* ints: Geometry, method, rows, limited; floats: epsilon, low, high; inputs: x, w, bias, and of a frozen normalization scale, shift, mean, variance */
static int NAMED(channels_last_conv)(const KernelArgs *args)
{
    const Geometry *g = (const Geometry *)args->ints;
    const Engine *e = args->engine;
    int64_t pixels = g->images * g->out_rows * g->out_columns;
    REAL *y = OUTPUT(0), *vectors = args->scratch, *scratch = vectors + rounded(2 * g->filters, 16);
    NAMED(Finish) finish = NAMED(finish_of)(args, vectors);
    if (args->ints[CONV_METHOD] == TILES) {
        int plain = !finish.scale && !finish.limited;
        NAMED(tiled_forward)(e, g, INPUT(0), INPUT(1), plain ? finish.shift : NULL, y, scratch);
        NAMED(Finishing) rest = { &finish, y, pixels, g->filters };
        if (!plain) e->parallel_for(e, NAMED(finish_item), &rest, blocks_of(pixels, most(1, 16384 / g->filters)));
    } else if (args->ints[CONV_METHOD] == PRODUCT) {
        const REAL *x = NAMED(product_data)(args, INPUT(0), scratch);
        if (NAMED(suits_points)(e, pixels, g->filters, g->channels, 1)) {
            NAMED(Points) s = { .engine = e, .pixels = pixels, .outputs = g->filters, .depth = g->channels, .x = x, .w = INPUT(1), .y = y, .turned = 1, .finish = finish };
            NAMED(points)(&s, x == scratch ? scratch + pixels * g->channels : scratch);
            return STATUS_OK;
        }
        int relu = finish.limited && finish.low == 0 && finish.high == (REAL)INFINITY, plain = !finish.scale && (!finish.limited || relu);
        GEMM(e, 0, 1, pixels, g->filters, g->channels, 1, x, g->channels, INPUT(1), g->channels, 0, y, g->filters, plain ? finish.shift : NULL, plain && relu);
        NAMED(Finishing) rest = { &finish, y, pixels, g->filters };
        if (!plain) e->parallel_for(e, NAMED(finish_item), &rest, blocks_of(pixels, most(1, 16384 / g->filters)));
    } else if (args->ints[CONV_METHOD] == WINOGRAD) {
        NAMED(Winograd) s = NAMED(winograd_of)(args, INPUT(1));
        s.in = INPUT(0); s.out = y; s.finish = finish;
        NAMED(winograd)(&s, scratch);
    } else if (args->ints[CONV_METHOD] == DEPTHWISE) {
        NAMED(Depthwise) s = NAMED(depthwise_of)(args, INPUT(1));
        s.x = INPUT(0); s.y = y; s.finish = finish;
        NAMED(turn_taps)(&s, scratch, 0);
        e->parallel_for(e, NAMED(depthwise_row_item), &s, g->images * g->out_rows);
    } else if (args->ints[CONV_METHOD] == WINOGRAD_ROWS) {
        NAMED(RowWinograd) s = NAMED(row_winograd_of)(args, INPUT(1));
        s.in = INPUT(0); s.out = y; s.finish = finish;
        NAMED(row_winograd)(&s, scratch);
    } else if (args->ints[CONV_METHOD] == WINDOWS) {
        NAMED(Windows) s = NAMED(windows_of)(args);
        s.x = INPUT(0); s.w = INPUT(1); s.y = y; s.finish = finish;
        NAMED(windows_forward)(&s, scratch);
    } else {
        NAMED(Rows) s = NAMED(rows_of)(args, args->ints[CONV_ROWS]);
        s.x = INPUT(0); s.w = INPUT(1); s.y = y; s.finish = finish;
        NAMED(rows_forward)(&s, scratch);
    }
    return STATUS_OK;
}

/* dx before the products are added to it: another gradient or zeros; an item is so many elements */
typedef struct NAMED(Beginning) { const REAL *from; REAL *to; int64_t count; } NAMED(Beginning);
enum { NAMED(BEGINNING) = 1 << 15 };
static void NAMED(begin_item)(void *context, int64_t item, int64_t worker)
{
    const NAMED(Beginning) *s = context; (void)worker;
    int64_t first = item * NAMED(BEGINNING), count = least(NAMED(BEGINNING), s->count - first);
    if (s->from) memcpy(s->to + first, s->from + first, (size_t)count * sizeof(REAL));
    else memset(s->to + first, 0, (size_t)count * sizeof(REAL));
}
static void NAMED(begin_with)(const Engine *e, const REAL *other, REAL *dx, int64_t count)
{
    NAMED(Beginning) s = { other, dx, count };
    if (other != dx) e->parallel_for(e, NAMED(begin_item), &s, blocks_of(count, NAMED(BEGINNING)));
}

/* of a 1 x 1 convolution: dx = other + dy w, on the pixels that are seen; other may be NULL */
static void NAMED(product_gradient)(const KernelArgs *args, const REAL *dy, const REAL *w, const REAL *other, REAL *dx)
{
    const Geometry *g = (const Geometry *)args->ints;
    const Engine *e = args->engine;
    int64_t pixels = g->images * g->out_rows * g->out_columns;
    int strided = g->stride_y != 1 || g->stride_x != 1, adds = other && !strided;
    REAL *to = strided ? args->scratch : dx;
    NAMED(Points) points = { .engine = e, .pixels = pixels, .outputs = g->channels, .depth = g->filters, .x = dy, .w = w, .y = to, .adds = adds };
    NAMED(Rows) s = NAMED(rows_of)(args, 0);
    if (strided || adds) NAMED(begin_with)(e, other, dx, g->images * g->rows * g->columns * g->channels);
    if (NAMED(suits_points)(e, pixels, g->channels, g->filters, 0)) NAMED(points)(&points, (REAL *)args->scratch + (strided ? pixels * g->channels : 0));
    else GEMM(e, 0, 0, pixels, g->channels, g->filters, 1, dy, g->filters, w, g->channels, (REAL)adds, to, g->channels, NULL, 0);
    s.dy = args->scratch; s.dx = dx;
    if (strided) e->parallel_for(e, NAMED(spread_item), &s, g->images);
}

static void NAMED(conv_data)(const KernelArgs *args, const REAL *dy, const REAL *w, const REAL *other, REAL *dx)
{
    const Geometry *g = (const Geometry *)args->ints;
    const Engine *e = args->engine;
    int64_t method = args->ints[DATA_METHOD];
    if (method == TILES) {
        NAMED(tiled_data)(e, g, dy, w, dx, args->scratch);
    } else if (method == PRODUCT) {
        NAMED(product_gradient)(args, dy, w, other, dx);
    } else if (method == WINOGRAD) {
        NAMED(Winograd) s = NAMED(winograd_of)(args, w);
        s.in = dy; s.out = dx; s.rotated = 1;
        s.rows = g->out_rows; s.columns = g->out_columns; s.depth = g->filters;
        s.out_rows = g->rows; s.out_columns = g->columns; s.outputs = g->channels;
        s.pad_y = 2 - g->pad_y; s.pad_x = 2 - g->pad_x;
        NAMED(winograd)(&s, args->scratch);
    } else if (method == WINOGRAD_ROWS) {
        NAMED(RowWinograd) s = NAMED(row_winograd_of)(args, w);
        s.in = dy; s.out = dx; s.rotated = 1;
        s.rows = g->out_rows; s.columns = g->out_columns; s.depth = g->filters;
        s.out_rows = g->rows; s.out_columns = g->columns; s.outputs = g->channels;
        s.pad_y = g->kernel_y - 1 - g->pad_y; s.pad_x = g->kernel_x - 1 - g->pad_x;
        NAMED(row_winograd)(&s, args->scratch);
    } else if (method == DEPTHWISE) {
        NAMED(Depthwise) s = NAMED(depthwise_of)(args, w);
        s.dy = dy; s.dx = dx;
        NAMED(depthwise_data)(&s, args->scratch);
    } else {
        NAMED(Rows) s = NAMED(rows_of)(args, args->ints[DATA_ROWS]);
        s.dy = dy; s.w = w; s.dx = dx;
        NAMED(rows_data_gradient)(&s, args->scratch);
    }
}

static void NAMED(conv_weights)(const KernelArgs *args, const REAL *dy, const REAL *x, REAL *dw)
{
    const Geometry *g = (const Geometry *)args->ints;
    int64_t pixels = g->images * g->out_rows * g->out_columns, method = args->ints[WEIGHT_METHOD];
    if (method == TILES) {
        NAMED(tiled_weights)(args->engine, g, dy, x, dw, args->scratch);
    } else if (method == PRODUCT) {
        x = NAMED(product_data)(args, x, args->scratch);
        GEMM(args->engine, 1, 0, g->filters, g->channels, pixels, 1, dy, g->filters, x, g->channels, 0, dw, g->channels, NULL, 0);
    } else if (method == WINOGRAD_ROWS) {
        NAMED(RowWinograd) s = NAMED(row_winograd_of)(args, NULL);
        s.in = x; s.dy = dy; s.dw = dw;
        NAMED(row_winograd_weights)(&s, args->ints[WEIGHT_BLOCK], args->scratch);
    } else if (method == WINDOWS) {
        NAMED(Windows) s = NAMED(windows_of)(args);
        s.x = x; s.dy = dy; s.dw = dw; s.slices = args->ints[WEIGHT_SLICES];
        NAMED(windows_weights)(&s, args->scratch);
    } else if (method == BLOCKS) {
        NAMED(block_weights)(args, dy, x, dw, args->ints[WEIGHT_SLICES]);
    } else if (method == WINOGRAD) {
        NAMED(Winograd) s = NAMED(winograd_of)(args, NULL);
        s.in = x; s.dy = dy; s.dw = dw;
        NAMED(winograd_weights)(&s, args->ints[WEIGHT_BLOCK], args->ints[WEIGHT_SLICES], args->scratch);
    } else if (method == DEPTHWISE) {
        NAMED(Depthwise) s = NAMED(depthwise_of)(args, NULL);
        s.x = x; s.dy = dy; s.dw = dw;
        NAMED(depthwise_weights)(&s, args->scratch);
    } else {
        NAMED(Rows) s = NAMED(rows_of)(args, 0);
        s.x = x; s.dy = dy; s.dw = dw; s.slices = args->ints[WEIGHT_SLICES];
        NAMED(rows_weight_gradient)(&s, args->scratch);
    }
}

/* (dy, x, w, a gradient that is added to dx where the convolution is 1 x 1) -> (dx, dw, db), each if wanted; ints: Geometry, then how each is computed */
static int NAMED(channels_last_conv_grad)(const KernelArgs *args)
{
    const REAL *dy = INPUT(0), *x = INPUT(1), *w = INPUT(2);
    if (OUTPUT(0)) NAMED(conv_data)(args, dy, w, INPUT(3), OUTPUT(0));
    if (OUTPUT(1)) NAMED(conv_weights)(args, dy, x, OUTPUT(1));
    if (OUTPUT(2)) {
        NAMED(Rows) s = NAMED(rows_of)(args, 0);
        s.dy = dy;
        NAMED(bias_gradient)(&s, args->ints[BIAS_BLOCKS], OUTPUT(2), args->scratch);
    }
    return STATUS_OK;
}
