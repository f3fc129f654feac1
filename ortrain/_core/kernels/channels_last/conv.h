/* Convolution and its gradients on channels-last tensors, by the algorithm that the plan has chosen.
 *
 * x [n, d, h, w, c], w [k, c / group, kd, kh, kw] as in ONNX, y [n, od, oh, ow, k]. The algorithms are described, and chosen, in
 * ops/shared/conv_algorithms.py. */
#ifndef ORTRAIN_CHANNELS_LAST_CONV_H
#define ORTRAIN_CHANNELS_LAST_CONV_H
/* Same names and values as Method in ops/shared/conv_algorithms.py. TAP_GEMM is only for weight gradients. */
enum { POINTWISE_GEMM = 1, WINOGRAD = 2, IM2COL = 3, GROUPED = 4, TAP_GEMM = 5, DIRECT = 6, WINOGRAD_1D = 7, IMPLICIT_GEMM = 8, DEPTHWISE = 9 };
enum { CONV_METHOD = GEOMETRY_INTS, CONV_BLOCK_PIXELS, CONV_CLAMPED, CONV_READS_PLANES, CONV_WRITES_PLANES };
enum { DATA_METHOD = GEOMETRY_INTS, DATA_BLOCK_PIXELS, WEIGHT_METHOD, WEIGHT_BLOCK, WEIGHT_SLICES, BIAS_BLOCKS };
#endif

static NAMED(Winograd) NAMED(winograd_from_args)(const KernelArgs *args, const REAL *w)
{
    const Geometry *g = (const Geometry *)args->ints;
    return (NAMED(Winograd)){ .engine = args->engine, .g = g, .w = w, .channels = g->channels, .images = g->images * g->out_planes, .rows = g->rows,
                              .columns = g->columns, .depth = g->kernel_z * g->channels, .in_channels = g->channels, .out_rows = g->out_rows,
                              .out_columns = g->out_columns, .outputs = g->filters, .pad_y = g->pad_y, .pad_x = g->pad_x, .strided = g->stride_y == 2 };
}

/* The convolution, or if `rotated` its data gradient, along the width, or along the height if the kernel is 1 wide. */
static NAMED(Winograd1d) NAMED(winograd_1d_from_args)(const KernelArgs *args, const REAL *w, int rotated)
{
    Geometry g = *(const Geometry *)args->ints, old = g;
    NAMED(Winograd1d) s = { .engine = args->engine, .w = w, .channels = g.channels, .images = g.images, .rotated = rotated, .swapped = g.kernel_x == 1 };
    if (rotated) {
        g.rows = old.out_rows; g.columns = old.out_columns; g.channels = old.filters;
        g.out_rows = old.rows; g.out_columns = old.columns; g.filters = old.channels;
        g.pad_y = g.kernel_y - 1 - old.pad_y; g.pad_x = g.kernel_x - 1 - old.pad_x;
    }
    s.depth = g.channels; s.outputs = g.filters;
    s.rows = s.swapped ? g.columns : g.rows; s.columns = s.swapped ? g.rows : g.columns;
    s.out_rows = s.swapped ? g.out_columns : g.out_rows; s.out_columns = s.swapped ? g.out_rows : g.out_columns;
    s.pad_y = s.swapped ? g.pad_x : g.pad_y; s.pad_x = s.swapped ? g.pad_y : g.pad_x;
    s.kernel_y = s.swapped ? g.kernel_x : g.kernel_y; s.taps = s.swapped ? g.kernel_y : g.kernel_x;
    return s;
}

static NAMED(Depthwise) NAMED(depthwise_from_args)(const KernelArgs *args, const REAL *w)
{
    const Geometry *g = (const Geometry *)args->ints;
    return (NAMED(Depthwise)){ .engine = args->engine, .g = g, .w = w, .padded = round_up(g->channels, NAMED(WIDTH)) };
}

/* Return the epilogue of args: + bias, or with frozen batch normalization scale (conv + bias - mean) / sqrt(variance + epsilon) + shift, then the clamp.
 * vectors: scratch of 2 * filters elements. */
static NAMED(Epilogue) NAMED(epilogue_from_args)(const KernelArgs *args, REAL *vectors)
{
    const Geometry *g = (const Geometry *)args->ints;
    const REAL *bias = INPUT(2), *gain = INPUT(3), *shift = INPUT(4), *mean = INPUT(5), *variance = INPUT(6);
    NAMED(Epilogue) f = { .shift = bias, .clamped = (int)args->ints[CONV_CLAMPED], .low = (REAL)args->floats[1], .high = (REAL)args->floats[2] };
    if (!gain) return f;
    for (int64_t k = 0; k < g->filters; k++) {
        REAL scale = (REAL)(gain[k] / sqrt((double)variance[k] + args->floats[0]));
        vectors[k] = scale;
        vectors[g->filters + k] = shift[k] + ((bias ? bias[k] : 0) - mean[k]) * scale;
    }
    f.scale = vectors; f.shift = vectors + g->filters;
    return f;
}

/* Strided 1 x 1 convolution: y [block pixels, channels] = the pixels of x at the strides. A work item is a block of pixels. */
static void NAMED(gather_strided_item)(void *context, int64_t item, int64_t worker)
{
    const NAMED(Im2col) *s = context; (void)worker;
    int64_t first = item * s->rows;
    NAMED(im2col)(s, 0, first, min_i64(s->rows, s->pixels - first), s->y + first * s->g->channels);
}
static const REAL *NAMED(pointwise_input)(const KernelArgs *args, const REAL *x, REAL *scratch)
{
    const Geometry *g = (const Geometry *)args->ints;
    NAMED(Im2col) s = NAMED(im2col_from_args)(args, max_i64(1, 16384 / g->channels));
    if (g->stride_z == 1 && g->stride_y == 1 && g->stride_x == 1) return x;
    s.x = x; s.y = scratch;
    s.engine->parallel_for(s.engine, NAMED(gather_strided_item), &s, ceil_div(s.pixels, s.rows));
    return scratch;
}
/* Add dy [pixels, channels] to the pixels of dx at the strides, the adjoint of gather_strided_item. A work item is an image. */
static void NAMED(scatter_strided_item)(void *context, int64_t image, int64_t worker)
{
    const NAMED(Im2col) *s = context; (void)worker;
    int64_t inside = s->g->out_planes * s->g->out_rows * s->g->out_columns;
    NAMED(col2im)(s, 0, image * inside, inside, s->dy + image * inside * s->g->channels, s->g->channels, 0, 1);
}

/* A work item is a block of pixels of y. */
typedef struct NAMED(EpilogueTask) { const NAMED(Epilogue) *epilogue; REAL *y; int64_t pixels, channels; } NAMED(EpilogueTask);
static void NAMED(epilogue_item)(void *context, int64_t item, int64_t worker)
{
    const NAMED(EpilogueTask) *s = context; (void)worker;
    int64_t rows = max_i64(1, 16384 / s->channels), first = item * rows;
    NAMED(epilogue_rows)(s->epilogue, s->y + first * s->channels, min_i64(rows, s->pixels - first), s->channels);
}

/* (x, w, bias, then scale, shift, mean, variance of a frozen batch normalization) -> y; all but x and w may be absent.
 *
 * ints: Geometry, method, pixels of an im2col block, whether the result is clamped, whether x and y are [n, c, d, h, w], which DIRECT supports; floats:
 * epsilon, lower limit, upper limit. */
static int NAMED(channels_last_conv)(const KernelArgs *args)
{
    const Geometry *g = (const Geometry *)args->ints;
    const Engine *e = args->engine;
    int64_t pixels = output_pixels(g);
    REAL *y = OUTPUT(0), *vectors = args->scratch, *scratch = vectors + round_up(2 * g->filters, 16);
    NAMED(Epilogue) epilogue = NAMED(epilogue_from_args)(args, vectors);
    if (is_empty(g)) {
        memset(y, 0, (size_t)(pixels * g->filters) * sizeof(REAL));
        NAMED(epilogue_rows)(&epilogue, y, pixels, g->filters);
    } else if (args->ints[CONV_METHOD] == IMPLICIT_GEMM) {
        int fused = !epilogue.scale && !epilogue.clamped;
        NAMED(implicit_gemm_forward)(e, g, INPUT(0), INPUT(1), fused ? epilogue.shift : NULL, y, scratch);
        NAMED(EpilogueTask) task = { &epilogue, y, pixels, g->filters };
        if (!fused) e->parallel_for(e, NAMED(epilogue_item), &task, ceil_div(pixels, max_i64(1, 16384 / g->filters)));
    } else if (args->ints[CONV_METHOD] == POINTWISE_GEMM) {
        const REAL *x = NAMED(pointwise_input)(args, INPUT(0), scratch);
        NAMED(PointwiseDots) dots = { e, x, y, INPUT(1), x == scratch ? scratch + pixels * g->channels : scratch, pixels, g->channels, g->filters, &epilogue };
        if (NAMED(suits_pointwise_dots)(&dots)) {
            NAMED(pointwise_dots)(&dots);
            return STATUS_OK;
        }
        if (NAMED(suits_pointwise)(e, pixels, g->filters, g->channels, 1)) {
            NAMED(Pointwise) s = { .engine = e, .pixels = pixels, .outputs = g->filters, .depth = g->channels, .x = x, .w = INPUT(1), .y = y, .transposed = 1,
                                   .epilogue = epilogue };
            NAMED(pointwise_gemm)(&s, x == scratch ? scratch + pixels * g->channels : scratch);
            return STATUS_OK;
        }
        int relu = epilogue.clamped && epilogue.low == 0 && epilogue.high == (REAL)INFINITY, fused = !epilogue.scale && (!epilogue.clamped || relu);
        GEMM(e, 0, 1, pixels, g->filters, g->channels, 1, x, g->channels, INPUT(1), g->channels, 0, y, g->filters,
             fused ? epilogue.shift : NULL, fused && relu);
        NAMED(EpilogueTask) task = { &epilogue, y, pixels, g->filters };
        if (!fused) e->parallel_for(e, NAMED(epilogue_item), &task, ceil_div(pixels, max_i64(1, 16384 / g->filters)));
    } else if (args->ints[CONV_METHOD] == WINOGRAD) {
        NAMED(Winograd) s = NAMED(winograd_from_args)(args, INPUT(1));
        s.in = INPUT(0); s.out = y; s.epilogue = epilogue;
        NAMED(winograd)(&s, scratch);
    } else if (args->ints[CONV_METHOD] == DEPTHWISE) {
        NAMED(Depthwise) s = NAMED(depthwise_from_args)(args, INPUT(1));
        s.x = INPUT(0); s.y = y; s.epilogue = epilogue;
        NAMED(transpose_taps)(&s, scratch, 0);
        e->parallel_for(e, NAMED(depthwise_row_item), &s, g->images * g->out_rows);
    } else if (args->ints[CONV_METHOD] == GROUPED) {
        NAMED(Grouped) s = NAMED(grouped_from_args)(args, 0, 0);
        s.in = INPUT(0); s.w = INPUT(1); s.out = y; s.epilogue = epilogue;
        NAMED(grouped_convolution)(&s, scratch);
    } else if (args->ints[CONV_METHOD] == WINOGRAD_1D) {
        NAMED(Winograd1d) s = NAMED(winograd_1d_from_args)(args, INPUT(1), 0);
        s.in = INPUT(0); s.out = y; s.epilogue = epilogue;
        NAMED(winograd_1d)(&s, scratch);
    } else if (args->ints[CONV_METHOD] == DIRECT) {
        NAMED(DirectConv) s = NAMED(direct_from_args)(args, 0);
        s.x = INPUT(0); s.w = INPUT(1); s.y = y; s.epilogue = epilogue;
        s.reads_planes = (int)args->ints[CONV_READS_PLANES]; s.writes_planes = (int)args->ints[CONV_WRITES_PLANES];
        NAMED(direct_forward)(&s, scratch);
    } else {
        NAMED(Im2col) s = NAMED(im2col_from_args)(args, args->ints[CONV_BLOCK_PIXELS]);
        s.x = INPUT(0); s.w = INPUT(1); s.y = y; s.epilogue = epilogue;
        NAMED(im2col_forward)(&s, scratch);
    }
    return STATUS_OK;
}

/* Initial value of dx before GEMMs accumulate into it: another gradient, or zeros if `from` is NULL. A work item is INIT_ELEMENTS elements. */
typedef struct NAMED(InitialGradient) { const REAL *from; REAL *to; int64_t count; } NAMED(InitialGradient);
enum { NAMED(INIT_ELEMENTS) = 1 << 15 };
static void NAMED(init_gradient_item)(void *context, int64_t item, int64_t worker)
{
    const NAMED(InitialGradient) *s = context; (void)worker;
    int64_t first = item * NAMED(INIT_ELEMENTS), count = min_i64(NAMED(INIT_ELEMENTS), s->count - first);
    if (s->from) memcpy(s->to + first, s->from + first, (size_t)count * sizeof(REAL));
    else memset(s->to + first, 0, (size_t)count * sizeof(REAL));
}
static void NAMED(init_gradient)(const Engine *e, const REAL *addend, REAL *dx, int64_t count)
{
    NAMED(InitialGradient) s = { addend, dx, count };
    if (addend != dx) e->parallel_for(e, NAMED(init_gradient_item), &s, ceil_div(count, NAMED(INIT_ELEMENTS)));
}

/* Data gradient of a 1 x 1 convolution: dx = addend + dy w at the pixels that it reads, addend elsewhere. addend [as dx] may be NULL for zeros. */
static void NAMED(pointwise_data_gradient)(const KernelArgs *args, const REAL *dy, const REAL *w, const REAL *addend, REAL *dx)
{
    const Geometry *g = (const Geometry *)args->ints;
    const Engine *e = args->engine;
    int64_t pixels = output_pixels(g);
    int strided = g->stride_z != 1 || g->stride_y != 1 || g->stride_x != 1, accumulate = addend && !strided;
    REAL *to = strided ? args->scratch : dx;
    NAMED(Pointwise) gemm = { .engine = e, .pixels = pixels, .outputs = g->channels, .depth = g->filters, .x = dy, .w = w, .y = to, .accumulate = accumulate };
    NAMED(Im2col) s = NAMED(im2col_from_args)(args, 0);
    if (strided || accumulate) NAMED(init_gradient)(e, addend, dx, g->images * image_pixels(g) * g->channels);
    if (NAMED(suits_pointwise)(e, pixels, g->channels, g->filters, 0))
        NAMED(pointwise_gemm)(&gemm, (REAL *)args->scratch + (strided ? pixels * g->channels : 0));
    else GEMM(e, 0, 0, pixels, g->channels, g->filters, 1, dy, g->filters, w, g->channels, (REAL)accumulate, to, g->channels, NULL, 0);
    s.dy = args->scratch; s.dx = dx;
    if (strided) e->parallel_for(e, NAMED(scatter_strided_item), &s, g->images);
}

static void NAMED(conv_data_gradient)(const KernelArgs *args, const REAL *dy, const REAL *w, const REAL *addend, REAL *dx)
{
    const Geometry *g = (const Geometry *)args->ints;
    const Engine *e = args->engine;
    int64_t method = args->ints[DATA_METHOD];
    if (method == IMPLICIT_GEMM) {
        NAMED(implicit_gemm_data_gradient)(e, g, dy, w, dx, args->scratch);
    } else if (method == POINTWISE_GEMM) {
        NAMED(pointwise_data_gradient)(args, dy, w, addend, dx);
    } else if (method == WINOGRAD) {
        NAMED(Winograd) s = NAMED(winograd_from_args)(args, w);
        s.in = dy; s.out = dx; s.rotated = 1; s.images = g->images * g->planes;
        s.rows = g->out_rows; s.columns = g->out_columns; s.depth = g->kernel_z * g->filters; s.in_channels = g->filters;
        s.out_rows = g->rows; s.out_columns = g->columns; s.outputs = g->channels;
        s.pad_y = 2 - g->pad_y; s.pad_x = 2 - g->pad_x;
        NAMED(winograd)(&s, args->scratch);
    } else if (method == WINOGRAD_1D) {
        NAMED(Winograd1d) s = NAMED(winograd_1d_from_args)(args, w, 1);
        s.in = dy; s.out = dx;
        NAMED(winograd_1d)(&s, args->scratch);
    } else if (method == DEPTHWISE) {
        NAMED(Depthwise) s = NAMED(depthwise_from_args)(args, w);
        s.dy = dy; s.dx = dx;
        NAMED(depthwise_data_gradient)(&s, args->scratch);
    } else if (method == GROUPED) {
        NAMED(Grouped) s = NAMED(grouped_from_args)(args, 1, 0);
        s.in = dy; s.w = w; s.out = dx;
        NAMED(grouped_convolution)(&s, args->scratch);
    } else if (method == DIRECT) {
        NAMED(DirectConv) s = NAMED(direct_from_args)(args, 1);
        s.x = dy; s.w = w; s.y = dx;
        NAMED(direct_forward)(&s, args->scratch);
    } else {
        NAMED(Im2col) s = NAMED(im2col_from_args)(args, args->ints[DATA_BLOCK_PIXELS]);
        s.dy = dy; s.w = w; s.dx = dx;
        NAMED(im2col_data_gradient)(&s, args->scratch);
    }
}

static void NAMED(conv_weight_gradient)(const KernelArgs *args, const REAL *dy, const REAL *x, REAL *dw)
{
    const Geometry *g = (const Geometry *)args->ints;
    int64_t pixels = output_pixels(g), method = args->ints[WEIGHT_METHOD];
    if (method == IMPLICIT_GEMM) {
        NAMED(implicit_gemm_weight_gradient)(args->engine, g, dy, x, dw, args->scratch);
    } else if (method == POINTWISE_GEMM) {
        x = NAMED(pointwise_input)(args, x, args->scratch);
        GEMM(args->engine, 1, 0, g->filters, g->channels, pixels, 1, dy, g->filters, x, g->channels, 0, dw, g->channels, NULL, 0);
    } else if (method == WINOGRAD_1D) {
        NAMED(Winograd1d) s = NAMED(winograd_1d_from_args)(args, NULL, 0);
        s.in = x; s.dy = dy; s.dw = dw;
        NAMED(winograd_1d_weight_gradient)(&s, args->ints[WEIGHT_BLOCK], args->scratch);
    } else if (method == DIRECT) {
        NAMED(DirectConv) s = NAMED(direct_from_args)(args, 0);
        s.x = x; s.dy = dy; s.dw = dw; s.slices = args->ints[WEIGHT_SLICES];
        NAMED(direct_weight_gradient)(&s, args->scratch);
    } else if (method == TAP_GEMM) {
        NAMED(tap_gemm_weight_gradient)(args, dy, x, dw, args->ints[WEIGHT_SLICES]);
    } else if (method == WINOGRAD) {
        NAMED(Winograd) s = NAMED(winograd_from_args)(args, NULL);
        s.in = x; s.dy = dy; s.dw = dw;
        NAMED(winograd_weight_gradient)(&s, args->ints[WEIGHT_BLOCK], args->ints[WEIGHT_SLICES], args->scratch);
    } else if (method == DEPTHWISE) {
        NAMED(Depthwise) s = NAMED(depthwise_from_args)(args, NULL);
        s.x = x; s.dy = dy; s.dw = dw;
        NAMED(depthwise_weight_gradient)(&s, args->scratch);
    } else if (method == GROUPED) {
        NAMED(Grouped) s = NAMED(grouped_from_args)(args, 0, 1);
        s.in = x; s.dy = dy; s.dw = dw; s.slices = args->ints[WEIGHT_SLICES];
        NAMED(grouped_weight_gradient)(&s, args->scratch);
    } else {
        NAMED(Im2col) s = NAMED(im2col_from_args)(args, 0);
        s.x = x; s.dy = dy; s.dw = dw; s.slices = args->ints[WEIGHT_SLICES];
        NAMED(im2col_weight_gradient)(&s, args->scratch);
    }
}

/* (dy, x, w, addend or absent) -> (dx, dw, db), all optional. The addend [as x] is added to dx and present only for 1 x 1 convolutions.
 *
 * ints: Geometry, method of dx, pixels of an im2col block, method of dw, block size, number of partial sums of dw, blocks of pixels of db. */
static int NAMED(channels_last_conv_grad)(const KernelArgs *args)
{
    const REAL *dy = INPUT(0), *x = INPUT(1), *w = INPUT(2);
    const Geometry *g = (const Geometry *)args->ints;
    if (is_empty(g)) {
        if (OUTPUT(0)) NAMED(init_gradient)(args->engine, INPUT(3), OUTPUT(0), g->images * image_pixels(g) * g->channels);
        if (OUTPUT(1)) NAMED(init_gradient)(args->engine, NULL, OUTPUT(1), g->filters * (g->channels / g->group) * kernel_taps(g));
    } else {
        if (OUTPUT(0)) NAMED(conv_data_gradient)(args, dy, w, INPUT(3), OUTPUT(0));
        if (OUTPUT(1)) NAMED(conv_weight_gradient)(args, dy, x, OUTPUT(1));
    }
    if (!OUTPUT(2)) return STATUS_OK;
    if (output_pixels(g) == 0) NAMED(init_gradient)(args->engine, NULL, OUTPUT(2), g->filters);
    else {
        NAMED(Im2col) s = NAMED(im2col_from_args)(args, 0);
        s.dy = dy;
        NAMED(bias_gradient)(&s, args->ints[BIAS_BLOCKS], OUTPUT(2), args->scratch);
    }
    return STATUS_OK;
}
