/* Convolution of stride 1 with kernels 5 wide by Winograd's F(4, 5) along the width: 8 multiplications per 4 outputs and kernel row instead of 20.
 *
 * In both dimensions it would be 64 per 16 outputs instead of 400, but with 10 times the error of a direct convolution; along the width the error is doubled.
 * The rows of the kernel are summed by the GEMM: in a plane, the rows of a tile are contiguous, so a GEMM over kernel_y * c elements reads them in place.
 * Interpolation points are 0, +-1/2, +-1, +-2 and infinity. A work item is a few images. The data gradient is the convolution of dy with rotated filters. */
#define V NAMED(Vector)
#define W NAMED(WIDTH)
#define C(x) ((REAL)(x))
#ifndef ORTRAIN_CHANNELS_LAST_WINOGRAD_1D_H
#define ORTRAIN_CHANNELS_LAST_WINOGRAD_1D_H
#define WINOGRAD_1D_PLANES 8
#define WINOGRAD_1D_TAPS 5
#endif

/* ---- the transforms of F(4, 5) along the width, on vectors of channels */

ALWAYS_INLINE void NAMED(f45_input)(V *o, const V *d)                                       /* B^T d */
{
    V e = d[2] + d[6] - C(4.25) * d[4], f = d[1] + d[5] - C(4.25) * d[3];
    V g = C(4) * d[2] + d[6] - C(5) * d[4], h = C(2) * d[1] - C(2.5) * d[3] + C(0.5) * d[5];
    V i = C(0.25) * d[2] - C(1.25) * d[4] + d[6], j = C(0.5) * d[1] - C(2.5) * d[3] + C(2) * d[5];
    o[0] = d[6] - d[0] + C(5.25) * (d[2] - d[4]);
    o[1] = e + f; o[2] = e - f; o[3] = g + h; o[4] = g - h; o[5] = i + j; o[6] = i - j;
    o[7] = d[7] - d[1] + C(5.25) * (d[3] - d[5]);
}
ALWAYS_INLINE void NAMED(f45_output)(V *o, const V *m)                                      /* A^T m */
{
    V s = m[1] + m[2], d = m[1] - m[2], t = m[3] + m[4], e = m[3] - m[4], u = m[5] + m[6], f = m[5] - m[6];
    o[0] = m[0] + s + t + u; o[1] = d + C(0.5) * e + C(2) * f; o[2] = s + C(0.25) * t + C(4) * u; o[3] = m[7] + d + C(0.125) * e + C(8) * f;
}
ALWAYS_INLINE void NAMED(f45_gradient)(V *o, const V *y)                                    /* A y */
{
    V e = y[0] + y[2], f = y[1] + y[3], g = y[0] + C(0.25) * y[2], h = C(0.5) * y[1] + C(0.125) * y[3], i = y[0] + C(4) * y[2], j = C(2) * y[1] + C(8) * y[3];
    o[0] = y[0]; o[1] = e + f; o[2] = e - f; o[3] = g + h; o[4] = g - h; o[5] = i + j; o[6] = i - j; o[7] = y[3];
}
ALWAYS_INLINE void NAMED(f45_filter)(V *o, const V *w)                                      /* G w */
{
    V e = C(-1 / 4.5) * (w[0] + w[2] + w[4]), f = C(-1 / 4.5) * (w[1] + w[3]);
    V g = C(1 / 1.40625) * (w[0] + C(0.25) * w[2] + C(0.0625) * w[4]), h = C(1 / 1.40625) * (C(0.5) * w[1] + C(0.125) * w[3]);
    V i = C(1 / 90.) * (w[0] + C(4) * w[2] + C(16) * w[4]), j = C(1 / 90.) * (C(2) * w[1] + C(8) * w[3]);
    o[0] = -w[0]; o[1] = e + f; o[2] = e - f; o[3] = g + h; o[4] = g - h; o[5] = i + j; o[6] = i - j; o[7] = w[4];
}
ALWAYS_INLINE void NAMED(f45_filter_adjoint)(V *o, const V *u)                              /* G^T u */
{
    V s = C(-1 / 4.5) * (u[1] + u[2]), d = C(-1 / 4.5) * (u[1] - u[2]), t = C(1 / 1.40625) * (u[3] + u[4]), e = C(1 / 1.40625) * (u[3] - u[4]);
    V v = C(1 / 90.) * (u[5] + u[6]), f = C(1 / 90.) * (u[5] - u[6]);
    o[0] = s + t + v - u[0]; o[1] = d + C(0.5) * e + C(2) * f; o[2] = s + C(0.25) * t + C(4) * v; o[3] = d + C(0.125) * e + C(8) * f;
    o[4] = s + C(0.0625) * t + C(16) * v + u[7];
}

/* ---- forward and data gradient */

/* A convolution in one direction, as in winograd.h: `depth` input channels are summed over, `outputs` channels result. */
typedef struct NAMED(Winograd1d) {
    const Engine *engine;
    const REAL *in, *w, *dy;
    REAL *out, *dw, *filters, *planes, *gradients;
    int64_t images, rows, columns, depth, out_rows, out_columns, outputs, pad_y, pad_x, kernel_y;
    int64_t channels;                  /* of w [k, channels, kernel_y, 5] */
    int rotated;
    int64_t tiles, length, vectors;    /* tiles of a row, elements of a window in a plane, vectors of outputs */
    Partition panels;                  /* of the vectors */
    int64_t block, first, count;       /* images of a block; the images at work, [first, first + count) */
    NAMED(Epilogue) epilogue;
} NAMED(Winograd1d);

static void NAMED(winograd_1d_sizes)(NAMED(Winograd1d) *s)
{
    s->tiles = ceil_div(s->out_columns, 4);
    s->length = s->kernel_y * s->depth;
    s->vectors = ceil_div(s->outputs, W);
    s->panels = partition(s->vectors, DIRECT_TILE_VECTORS);
}
/* Return the elements of a plane of the input [image, tile, row, depth], and of a plane of the output or of dy [image, tile, row, outputs]. */
ALWAYS_INLINE int64_t NAMED(input_plane_size)(const NAMED(Winograd1d) *s, int64_t images) { return images * s->tiles * s->rows * s->depth + WINOGRAD_1D_PAD; }
ALWAYS_INLINE int64_t NAMED(output_plane_size)(const NAMED(Winograd1d) *s, int64_t images)
{ return images * s->tiles * s->out_rows * s->outputs + WINOGRAD_1D_PAD; }
ALWAYS_INLINE int64_t NAMED(filter_plane_size)(const NAMED(Winograd1d) *s) { return s->length * s->vectors * W + WINOGRAD_1D_PAD; }
ALWAYS_INLINE int64_t NAMED(first_output)(const NAMED(Winograd1d) *s, int64_t vector) { return min_i64(vector * W, s->outputs - W); }

/* planes [8, tile, row, depth] of one image = B^T x. */
static void NAMED(transform_input_1d)(const NAMED(Winograd1d) *s, int64_t image, REAL *planes, int64_t plane_step)
{
    for (int64_t y = 0; y < s->rows; y++)
        for (int64_t t = 0; t < s->tiles; t++) {
            const REAL *pixel[WINOGRAD_1D_PLANES], *row = s->in + (image * s->rows + y) * s->columns * s->depth;
            REAL *to = planes + (t * s->rows + y) * s->depth;
            for (int i = 0; i < WINOGRAD_1D_PLANES; i++) {
                int64_t x = t * 4 - s->pad_x + i;
                pixel[i] = x >= 0 && x < s->columns ? row + x * s->depth : (const REAL *)zero_channels;
            }
            for (int64_t at = 0; at < s->depth; at += W) {
                int64_t c = min_i64(at, s->depth - W);
                V d[WINOGRAD_1D_PLANES], o[WINOGRAD_1D_PLANES];
                _Pragma("GCC unroll 8") for (int i = 0; i < WINOGRAD_1D_PLANES; i++) d[i] = LOAD(pixel[i] + c);
                NAMED(f45_input)(o, d);
                _Pragma("GCC unroll 8") for (int i = 0; i < WINOGRAD_1D_PLANES; i++) STORE(to + i * plane_step + c, o[i]);
            }
        }
}

/* planes [8, tile, row, outputs] of one image = A dy. */
static void NAMED(transform_gradient_1d)(const NAMED(Winograd1d) *s, int64_t image, REAL *planes, int64_t plane_step)
{
    for (int64_t y = 0; y < s->out_rows; y++)
        for (int64_t t = 0; t < s->tiles; t++) {
            const REAL *pixel[4], *row = s->dy + (image * s->out_rows + y) * s->out_columns * s->outputs;
            REAL *to = planes + (t * s->out_rows + y) * s->outputs;
            for (int i = 0; i < 4; i++) pixel[i] = t * 4 + i < s->out_columns ? row + (t * 4 + i) * s->outputs : (const REAL *)zero_channels;
            for (int64_t at = 0; at < s->outputs; at += W) {
                int64_t c = min_i64(at, s->outputs - W);
                V d[4], o[WINOGRAD_1D_PLANES];
                _Pragma("GCC unroll 4") for (int i = 0; i < 4; i++) d[i] = LOAD(pixel[i] + c);
                NAMED(f45_gradient)(o, d);
                _Pragma("GCC unroll 8") for (int i = 0; i < WINOGRAD_1D_PLANES; i++) STORE(to + i * plane_step + c, o[i]);
            }
        }
}

/* Store the outputs of one image from results [8, tile, row, outputs]: epilogue(A^T m). */
static void NAMED(transform_output_1d)(const NAMED(Winograd1d) *s, int64_t image, const REAL *results, int64_t plane_step)
{
    for (int64_t y = 0; y < s->out_rows; y++)
        for (int64_t t = 0; t < s->tiles; t++) {
            const REAL *from = results + (t * s->out_rows + y) * s->outputs;
            REAL *to = s->out + ((image * s->out_rows + y) * s->out_columns + t * 4) * s->outputs;
            int64_t width = min_i64(4, s->out_columns - t * 4);
            for (int64_t at = 0; at < s->outputs; at += W) {
                int64_t c = min_i64(at, s->outputs - W);
                V m[WINOGRAD_1D_PLANES], o[4];
                _Pragma("GCC unroll 8") for (int i = 0; i < WINOGRAD_1D_PLANES; i++) m[i] = LOAD(from + i * plane_step + c);
                NAMED(f45_output)(o, m);
                _Pragma("GCC unroll 4") for (int i = 0; i < 4; i++)
                    if (i < width) STORE(to + i * s->outputs + c, NAMED(apply_epilogue)(&s->epilogue, o[i], c));
            }
        }
}

/* filters [8, panel, kernel row, depth, vectors of the panel] = G w. A work item is a kernel row. */
static void NAMED(winograd_1d_filter_item)(void *context, int64_t r, int64_t worker)
{
    const NAMED(Winograd1d) *s = context; (void)worker;
    int64_t size = s->kernel_y * WINOGRAD_1D_TAPS, tap_offset = s->rotated ? size - 1 : 0, sign = s->rotated ? -1 : 1;
    int64_t output_step = s->rotated ? size : s->channels * size, depth_step = s->rotated ? s->channels * size : size;
    for (int64_t panel = 0; panel < s->panels.parts; panel++) {
        int64_t first = part_start(s->panels, panel), count = part_size(s->panels, panel);
        for (int64_t c = 0; c < s->depth; c++)
            for (int64_t j = 0; j < count; j++) {
                const REAL *from = s->w + NAMED(first_output)(s, first + j) * output_step + c * depth_step + tap_offset + sign * r * WINOGRAD_1D_TAPS;
                REAL *to = s->filters + first * W * s->length + ((r * s->depth + c) * count + j) * W;
                REAL taps[WINOGRAD_1D_TAPS][W];
                V w[WINOGRAD_1D_TAPS], o[WINOGRAD_1D_PLANES];
                for (int t = 0; t < WINOGRAD_1D_TAPS; t++) {
                    for (int k = 0; k < W; k++) taps[t][k] = from[k * output_step + sign * t];
                    w[t] = LOAD(taps[t]);
                }
                NAMED(f45_filter)(o, w);
                for (int i = 0; i < WINOGRAD_1D_PLANES; i++) STORE(to + i * NAMED(filter_plane_size)(s), o[i]);
            }
    }
}

/* Transform a block of images, multiply each plane by its filters, and transform the results back. */
static void NAMED(winograd_1d_item)(void *context, int64_t item, int64_t worker)
{
    const NAMED(Winograd1d) *s = context;
    int64_t capacity, image = item * s->block, images = min_i64(s->block, s->images - image);
    int64_t plane = NAMED(input_plane_size)(s, s->block), result = NAMED(output_plane_size)(s, s->block);
    REAL *planes = NAMED(workspace)(s->engine, worker, &capacity), *results = planes + WINOGRAD_1D_PLANES * plane;
    for (int64_t i = 0; i < images; i++) NAMED(transform_input_1d)(s, image + i, planes + i * s->tiles * s->rows * s->depth, plane);
    Partition tiles = partition(images * s->tiles, DIRECT_TILE_ROWS);
    for (int64_t p = 0; p < WINOGRAD_1D_PLANES; p++)
        for (int64_t panel = 0; panel < s->panels.parts; panel++) {
            int64_t first = part_start(s->panels, panel), count = part_size(s->panels, panel), last = NAMED(first_output)(s, first + count - 1) - first * W;
            const REAL *filters = s->filters + p * NAMED(filter_plane_size)(s) + first * W * s->length;
            for (int64_t y = 0; y < s->out_rows; y++) {
                int64_t low = max_i64(0, s->pad_y - y), high = max_i64(low, min_i64(s->kernel_y, s->rows + s->pad_y - y));
                Segments segments = { 1, (high - low) * s->depth, { 0 }, { low * s->depth * count * W } };
                NAMED(DirectTile) tile = { &segments, s->rows * s->depth, 1, count * W, s->out_rows * s->outputs, OVERWRITE_C, 0 };
                const REAL *a = planes + p * plane + (y - s->pad_y + low) * s->depth;
                REAL *to = results + p * result + y * s->outputs + first * W;
                for (int64_t t = 0, at = 0, rows; t < tiles.parts; t++, at += rows) {
                    rows = part_size(tiles, t);
                    NAMED(direct_tiles)[rows - 1][count - 1](&tile, a + at * tile.a_row, filters, (count - 1) * W, to + at * tile.c_row, last, 0);
                }
            }
        }
    for (int64_t i = 0; i < images; i++) NAMED(transform_output_1d)(s, image + i, results + i * s->tiles * s->out_rows * s->outputs, result);
}

/* s->out = epilogue(conv(s->in, w)). scratch: the transformed filters. */
static void NAMED(winograd_1d)(NAMED(Winograd1d) *s, REAL *scratch)
{
    int64_t capacity, image;
    NAMED(winograd_1d_sizes)(s);
    NAMED(workspace)(s->engine, 0, &capacity);
    image = WINOGRAD_1D_PLANES * (NAMED(input_plane_size)(s, 1) + NAMED(output_plane_size)(s, 1));
    s->filters = scratch;
    s->block = max_i64(1, min_i64(s->images, min_i64(capacity, WINOGRAD_1D_ITEM_BYTES / (int64_t)sizeof(REAL)) / image));
    s->engine->parallel_for(s->engine, NAMED(winograd_1d_filter_item), s, s->kernel_y);
    s->engine->parallel_for(s->engine, NAMED(winograd_1d_item), s, ceil_div(s->images, s->block));
}

/* ---- weight gradient */

static void NAMED(winograd_1d_transform_item)(void *context, int64_t item, int64_t worker)
{
    const NAMED(Winograd1d) *s = context; (void)worker;
    NAMED(transform_input_1d)(s, s->first + item, s->planes + item * s->tiles * s->rows * s->depth, NAMED(input_plane_size)(s, s->block));
    NAMED(transform_gradient_1d)(s, s->first + item, s->gradients + item * s->tiles * s->out_rows * s->outputs, NAMED(output_plane_size)(s, s->block));
}

/* filters [8, window elements, outputs] (+)= planes^T gradients over the images at work. A work item is a panel of one plane. */
static void NAMED(winograd_1d_sums_item)(void *context, int64_t item, int64_t worker)
{
    const NAMED(Winograd1d) *s = context; (void)worker;
    int64_t p = item / s->panels.parts, panel = item % s->panels.parts, vector = part_start(s->panels, panel), count = part_size(s->panels, panel);
    int64_t last = NAMED(first_output)(s, vector + count - 1) - vector * W, row = s->vectors * W, tiles_at_work = s->count * s->tiles;
    const REAL *planes = s->planes + p * NAMED(input_plane_size)(s, s->block), *dy = s->gradients + p * NAMED(output_plane_size)(s, s->block) + vector * W;
    REAL *sums = s->filters + p * NAMED(filter_plane_size)(s) + vector * W;
    int64_t per_pass = max_i64(1, min_i64(MAX_SEGMENTS, SUMMED_POSITIONS / s->out_rows));
    for (int64_t r = 0; r < s->kernel_y; r++) {
        int64_t low = min_i64(s->out_rows, max_i64(0, s->pad_y - r)), high = max_i64(low, min_i64(s->out_rows, s->rows + s->pad_y - r));
        Partition tiles = partition(s->depth, DIRECT_TILE_ROWS);
        for (int64_t first = 0; first < tiles_at_work; first += per_pass) {
            Segments segments = { min_i64(per_pass, tiles_at_work - first), high - low, { 0 }, { 0 } };
            for (int64_t i = 0; i < segments.count; i++) {
                segments.a_offset[i] = ((first + i) * s->rows + low - s->pad_y + r) * s->depth;
                segments.b_offset[i] = ((first + i) * s->out_rows + low) * s->outputs;
            }
            NAMED(DirectTile) tile = { &segments, 1, s->depth, s->outputs, row, s->first > 0 || first > 0 ? ADD_C_LAST : OVERWRITE_C, 0 };
            for (int64_t t = 0, at = 0, rows; t < tiles.parts; t++, at += rows) {
                rows = part_size(tiles, t);
                NAMED(direct_tiles)[rows - 1][count - 1](&tile, planes + at, dy, last, sums + (r * s->depth + at) * row, (count - 1) * W, 0);
            }
        }
    }
}

/* dw of one vector of filters: G^T sums, transposed to ONNX's layout. */
static void NAMED(winograd_1d_weight_item)(void *context, int64_t vector, int64_t worker)
{
    const NAMED(Winograd1d) *s = context; (void)worker;
    int64_t first = NAMED(first_output)(s, vector), first_lane = vector * W - first, size = s->kernel_y * WINOGRAD_1D_TAPS;
    for (int64_t column = 0; column < s->length; column++) {
        const REAL *from = s->filters + (column * s->vectors + vector) * W;
        REAL *to = s->dw + (first * s->depth + column % s->depth) * size + column / s->depth * WINOGRAD_1D_TAPS;
        V u[WINOGRAD_1D_PLANES], o[WINOGRAD_1D_TAPS];
        for (int i = 0; i < WINOGRAD_1D_PLANES; i++) u[i] = LOAD(from + i * NAMED(filter_plane_size)(s));
        NAMED(f45_filter_adjoint)(o, u);
        for (int64_t k = first_lane; k < W; k++)
            for (int t = 0; t < WINOGRAD_1D_TAPS; t++) to[k * s->depth * size + t] = o[t][k];
    }
}

/* s->dw = the weight gradient. block: images that are transformed at a time; scratch: their planes and those of their gradients, then the sums. */
static void NAMED(winograd_1d_weight_gradient)(NAMED(Winograd1d) *s, int64_t block, REAL *scratch)
{
    NAMED(winograd_1d_sizes)(s);
    s->block = block;
    s->planes = scratch;
    s->gradients = s->planes + WINOGRAD_1D_PLANES * NAMED(input_plane_size)(s, block);
    s->filters = s->gradients + WINOGRAD_1D_PLANES * NAMED(output_plane_size)(s, block);
    for (s->first = 0; s->first < s->images; s->first += block) {
        s->count = min_i64(block, s->images - s->first);
        s->engine->parallel_for(s->engine, NAMED(winograd_1d_transform_item), s, s->count);
        s->engine->parallel_for(s->engine, NAMED(winograd_1d_sums_item), s, WINOGRAD_1D_PLANES * s->panels.parts);
    }
    s->engine->parallel_for(s->engine, NAMED(winograd_1d_weight_item), s, s->vectors);
}
#undef V
#undef W
#undef C
