/* Convolution of stride 1 with kernels 3, 5 or 7 wide by Winograd's F(6, 3), F(4, 5) or F(2, 7) along the width: 8 multiplications per tile of outputs and
 * kernel row instead of 18, 20 or 14. Kernels 1 wide and 3, 5 or 7 high are computed along the height: rows and columns change places.
 *
 * F(4, 5) in both dimensions would take 64 per 16 outputs instead of 400, but with 10 times the error of a direct convolution; along the width the error is
 * doubled. The rows of the kernel are summed by the GEMM: in a plane, the rows of a tile are contiguous, so a GEMM over kernel_y * c elements reads them in
 * place. Interpolation points are 0, +-1/2, +-1, +-2 and infinity for all widths, which therefore share the transform of the input. A work item is a few
 * images, or a part of the tiles of an image. The data gradient is the convolution of dy with rotated filters. */
#define V NAMED(Vector)
#define W NAMED(WIDTH)
#define C(x) ((REAL)(x))
#ifndef ORTRAIN_CHANNELS_LAST_WINOGRAD_1D_H
#define ORTRAIN_CHANNELS_LAST_WINOGRAD_1D_H
#define WINOGRAD_1D_PLANES 8
#define WINOGRAD_1D_MAX 7                /* taps of a kernel row; a tile has 9 - taps outputs */
/* The powers of the points 2 and 1/2, and the factors of the filters at the points +-1, +-1/2 and +-2. */
static const double powers_of_two[WINOGRAD_1D_MAX] = { 1, 2, 4, 8, 16, 32, 64 };
static const double powers_of_half[WINOGRAD_1D_MAX] = { 1, 0.5, 0.25, 0.125, 0.0625, 0.03125, 0.015625 };
#define FACTOR_1 (-1 / 4.5)
#define FACTOR_HALF (1 / 1.40625)
#define FACTOR_2 (1 / 90.)
#endif

/* ---- the transforms along the width, on vectors of channels; `count` is a constant in every call */

ALWAYS_INLINE void NAMED(transform_pixels)(V *o, const V *d)                                /* B^T d */
{
    V e = d[2] + d[6] - C(4.25) * d[4], f = d[1] + d[5] - C(4.25) * d[3];
    V g = C(4) * d[2] + d[6] - C(5) * d[4], h = C(2) * d[1] - C(2.5) * d[3] + C(0.5) * d[5];
    V i = C(0.25) * d[2] - C(1.25) * d[4] + d[6], j = C(0.5) * d[1] - C(2.5) * d[3] + C(2) * d[5];
    o[0] = d[6] - d[0] + C(5.25) * (d[2] - d[4]);
    o[1] = e + f; o[2] = e - f; o[3] = g + h; o[4] = g - h; o[5] = i + j; o[6] = i - j;
    o[7] = d[7] - d[1] + C(5.25) * (d[3] - d[5]);
}

/* Evaluate the polynomial with the coefficients w [count] at all points, scaled by the factors; at 0 and infinity by `first` and 1. */
ALWAYS_INLINE void NAMED(evaluate)(V *o, const V *w, int count, REAL first, REAL one, REAL half, REAL two)
{
    V even[3] = {{0}}, odd[3] = {{0}};
    _Pragma("GCC unroll 7") for (int i = 0; i < count; i++) {
        V *sum = i % 2 ? odd : even;
        sum[0] += w[i]; sum[1] += C(powers_of_half[i]) * w[i]; sum[2] += C(powers_of_two[i]) * w[i];
    }
    const REAL factor[3] = { one, half, two };
    o[0] = first * w[0];
    _Pragma("GCC unroll 3") for (int p = 0; p < 3; p++) { o[1 + 2 * p] = factor[p] * (even[p] + odd[p]); o[2 + 2 * p] = factor[p] * (even[p] - odd[p]); }
    o[7] = w[count - 1];
}

/* The adjoint of `evaluate`: o [count] from values m at all points. */
ALWAYS_INLINE void NAMED(interpolate)(V *o, const V *m, int count, REAL first, REAL one, REAL half, REAL two)
{
    V s[2] = { one * (m[1] + m[2]), one * (m[1] - m[2]) }, t[2] = { half * (m[3] + m[4]), half * (m[3] - m[4]) };
    V u[2] = { two * (m[5] + m[6]), two * (m[5] - m[6]) };
    _Pragma("GCC unroll 7") for (int i = 0; i < count; i++) o[i] = s[i % 2] + C(powers_of_half[i]) * t[i % 2] + C(powers_of_two[i]) * u[i % 2];
    o[0] += first * m[0]; o[count - 1] += m[7];
}
ALWAYS_INLINE void NAMED(transform_taps)(V *o, const V *w, int taps)                        /* G w */
{ NAMED(evaluate)(o, w, taps, -1, C(FACTOR_1), C(FACTOR_HALF), C(FACTOR_2)); }
ALWAYS_INLINE void NAMED(transform_taps_back)(V *o, const V *u, int taps)                   /* G^T u */
{ NAMED(interpolate)(o, u, taps, -1, C(FACTOR_1), C(FACTOR_HALF), C(FACTOR_2)); }
#define BY_TAPS(TRANSFORM, o, w, taps) \
    do { if ((taps) == 3) TRANSFORM(o, w, 3); else if ((taps) == 5) TRANSFORM(o, w, 5); else TRANSFORM(o, w, 7); } while (0)

/* ---- forward and data gradient */

/* A convolution in one direction, as in winograd.h: `depth` input channels are summed over, `outputs` channels result. */
typedef struct NAMED(Winograd1d) {
    const Engine *engine;
    const REAL *in, *w, *dy;
    REAL *out, *dw, *filters, *planes, *gradients;
    int64_t images, rows, columns, depth, out_rows, out_columns, outputs, pad_y, pad_x, kernel_y;
    int64_t channels, taps;            /* of w [k, channels, kernel_y, taps] */
    int rotated, swapped;              /* swapped: rows and columns have changed places, also in the sizes here */
    int64_t step;                      /* outputs of a tile */
    int64_t parts, tiles;              /* of an image, by tiles of a row; tiles of a row of a part, of which the last ones may be beyond the image */
    int64_t length, vectors;           /* elements of a window in a plane, vectors of outputs */
    Partition panels;                  /* of the vectors */
    int64_t block, first, count;       /* parts of a block; the parts at work, [first, first + count) of all images */
    NAMED(Epilogue) epilogue;
} NAMED(Winograd1d);

static void NAMED(winograd_1d_sizes)(NAMED(Winograd1d) *s)
{
    s->step = WINOGRAD_1D_PLANES + 1 - s->taps;
    s->length = s->kernel_y * s->depth;
    int64_t tiles = ceil_div(s->out_columns, s->step), size = WINOGRAD_1D_PLANES * tiles * (s->rows * s->depth + s->out_rows * s->outputs);
    s->parts = max_i64(1, min_i64(tiles / WINOGRAD_1D_TILES, ceil_div(size, WINOGRAD_1D_PART)));
    s->tiles = ceil_div(tiles, s->parts);
    s->parts = ceil_div(tiles, s->tiles);
    s->vectors = ceil_div(s->outputs, W);
    s->panels = partition(s->vectors, DIRECT_TILE_VECTORS);
}
/* Return the elements of a plane of the input [part, tile, row, depth], and of a plane of the output or of dy [part, tile, row, outputs]. */
ALWAYS_INLINE int64_t NAMED(input_plane_size)(const NAMED(Winograd1d) *s, int64_t parts) { return parts * s->tiles * s->rows * s->depth + WINOGRAD_1D_PAD; }
ALWAYS_INLINE int64_t NAMED(output_plane_size)(const NAMED(Winograd1d) *s, int64_t parts)
{ return parts * s->tiles * s->out_rows * s->outputs + WINOGRAD_1D_PAD; }
ALWAYS_INLINE int64_t NAMED(filter_plane_size)(const NAMED(Winograd1d) *s) { return s->length * s->vectors * W + WINOGRAD_1D_PAD; }
ALWAYS_INLINE int64_t NAMED(first_output)(const NAMED(Winograd1d) *s, int64_t vector) { return min_i64(vector * W, s->outputs - W); }

/* Return the pixel (y, x) of an image of these sizes with `channels` channels. */
ALWAYS_INLINE int64_t NAMED(pixel_of)(const NAMED(Winograd1d) *s, int64_t image, int64_t rows, int64_t columns, int64_t channels, int64_t y, int64_t x)
{ return (image * rows * columns + (s->swapped ? x * rows + y : y * columns + x)) * channels; }

/* planes [8, tile, row, depth] of one part = B^T x. */
static void NAMED(transform_input_1d)(const NAMED(Winograd1d) *s, int64_t part, REAL *planes, int64_t plane_step)
{
    int64_t image = part / s->parts, left = part % s->parts * s->tiles * s->step - s->pad_x;
    for (int64_t y = 0; y < s->rows; y++)
        for (int64_t t = 0; t < s->tiles; t++) {
            const REAL *pixel[WINOGRAD_1D_PLANES];
            REAL *to = planes + (t * s->rows + y) * s->depth;
            for (int i = 0; i < WINOGRAD_1D_PLANES; i++) {
                int64_t x = left + t * s->step + i;
                pixel[i] = x >= 0 && x < s->columns ? s->in + NAMED(pixel_of)(s, image, s->rows, s->columns, s->depth, y, x) : (const REAL *)zero_channels;
            }
            for (int64_t at = 0; at < s->depth; at += W) {
                int64_t c = min_i64(at, s->depth - W);
                V d[WINOGRAD_1D_PLANES], o[WINOGRAD_1D_PLANES];
                _Pragma("GCC unroll 8") for (int i = 0; i < WINOGRAD_1D_PLANES; i++) d[i] = LOAD(pixel[i] + c);
                NAMED(transform_pixels)(o, d);
                _Pragma("GCC unroll 8") for (int i = 0; i < WINOGRAD_1D_PLANES; i++) STORE(to + i * plane_step + c, o[i]);
            }
        }
}

/* planes [8, tile, row, outputs] of one part = A dy. */
ALWAYS_INLINE void NAMED(transform_gradient_1d_by)(const NAMED(Winograd1d) *s, int64_t part, const int step, REAL *planes, int64_t plane_step)
{
    int64_t image = part / s->parts, left = part % s->parts * s->tiles * step;
    for (int64_t y = 0; y < s->out_rows; y++)
        for (int64_t t = 0; t < s->tiles; t++) {
            const REAL *pixel[6];
            REAL *to = planes + (t * s->out_rows + y) * s->outputs;
            for (int i = 0; i < step; i++) {
                int64_t x = left + t * step + i;
                pixel[i] = x < s->out_columns ? s->dy + NAMED(pixel_of)(s, image, s->out_rows, s->out_columns, s->outputs, y, x) : (const REAL *)zero_channels;
            }
            for (int64_t at = 0; at < s->outputs; at += W) {
                int64_t c = min_i64(at, s->outputs - W);
                V d[6], o[WINOGRAD_1D_PLANES];
                _Pragma("GCC unroll 6") for (int i = 0; i < step; i++) d[i] = LOAD(pixel[i] + c);
                NAMED(evaluate)(o, d, step, 1, 1, 1, 1);
                _Pragma("GCC unroll 8") for (int i = 0; i < WINOGRAD_1D_PLANES; i++) STORE(to + i * plane_step + c, o[i]);
            }
        }
}

/* Store the outputs of one part from results [8, tile, row, outputs]: epilogue(A^T m). */
ALWAYS_INLINE void NAMED(transform_output_1d_by)(const NAMED(Winograd1d) *s, int64_t part, const int step, const REAL *results, int64_t plane_step)
{
    int64_t image = part / s->parts, left = part % s->parts * s->tiles * step, pixel_step = (s->swapped ? s->out_rows : 1) * s->outputs;
    for (int64_t y = 0; y < s->out_rows; y++)
        for (int64_t t = 0; t < s->tiles; t++) {
            const REAL *from = results + (t * s->out_rows + y) * s->outputs;
            REAL *to = s->out + NAMED(pixel_of)(s, image, s->out_rows, s->out_columns, s->outputs, y, left + t * step);
            int64_t width = min_i64(step, s->out_columns - left - t * step);
            for (int64_t at = 0; at < s->outputs; at += W) {
                int64_t c = min_i64(at, s->outputs - W);
                V m[WINOGRAD_1D_PLANES], o[6];
                _Pragma("GCC unroll 8") for (int i = 0; i < WINOGRAD_1D_PLANES; i++) m[i] = LOAD(from + i * plane_step + c);
                NAMED(interpolate)(o, m, step, 1, 1, 1, 1);
                _Pragma("GCC unroll 6") for (int i = 0; i < step; i++)
                    if (i < width) STORE(to + i * pixel_step + c, NAMED(apply_epilogue)(&s->epilogue, o[i], c));
            }
        }
}

#define BY_STEP(NAME, POINTER)                                                                                                \
NOINLINE void NAMED(NAME)(const NAMED(Winograd1d) *s, int64_t part, POINTER planes, int64_t plane_step)                       \
{                                                                                                                             \
    if (s->step == 6) NAMED(NAME##_by)(s, part, 6, planes, plane_step);                                                       \
    else if (s->step == 4) NAMED(NAME##_by)(s, part, 4, planes, plane_step);                                                  \
    else NAMED(NAME##_by)(s, part, 2, planes, plane_step);                                                                    \
}
BY_STEP(transform_gradient_1d, REAL *)
BY_STEP(transform_output_1d, const REAL *)
#undef BY_STEP

/* filters [8, panel, kernel row, depth, vectors of the panel] = G w. A work item is a kernel row. */
static void NAMED(winograd_1d_filter_item)(void *context, int64_t r, int64_t worker)
{
    const NAMED(Winograd1d) *s = context; (void)worker;
    int64_t size = s->kernel_y * s->taps, tap_offset = s->rotated ? size - 1 : 0, sign = s->rotated ? -1 : 1;
    int64_t output_step = s->rotated ? size : s->channels * size, depth_step = s->rotated ? s->channels * size : size;
    for (int64_t panel = 0; panel < s->panels.parts; panel++) {
        int64_t first = part_start(s->panels, panel), count = part_size(s->panels, panel);
        for (int64_t c = 0; c < s->depth; c++)
            for (int64_t j = 0; j < count; j++) {
                const REAL *from = s->w + NAMED(first_output)(s, first + j) * output_step + c * depth_step + tap_offset + sign * r * s->taps;
                REAL *to = s->filters + first * W * s->length + ((r * s->depth + c) * count + j) * W;
                REAL taps[WINOGRAD_1D_MAX][W];
                V w[WINOGRAD_1D_MAX], o[WINOGRAD_1D_PLANES];
                for (int t = 0; t < s->taps; t++) {
                    for (int k = 0; k < W; k++) taps[t][k] = from[k * output_step + sign * t];
                    w[t] = LOAD(taps[t]);
                }
                BY_TAPS(NAMED(transform_taps), o, w, s->taps);
                for (int i = 0; i < WINOGRAD_1D_PLANES; i++) STORE(to + i * NAMED(filter_plane_size)(s), o[i]);
            }
    }
}

/* Transform a block of parts, multiply each plane by its filters, and transform the results back. */
static void NAMED(winograd_1d_item)(void *context, int64_t item, int64_t worker)
{
    const NAMED(Winograd1d) *s = context;
    int64_t capacity, part = item * s->block, parts = min_i64(s->block, s->images * s->parts - part);
    int64_t plane = NAMED(input_plane_size)(s, s->block), result = NAMED(output_plane_size)(s, s->block);
    REAL *planes = NAMED(workspace)(s->engine, worker, &capacity), *results = planes + WINOGRAD_1D_PLANES * plane;
    for (int64_t i = 0; i < parts; i++) NAMED(transform_input_1d)(s, part + i, planes + i * s->tiles * s->rows * s->depth, plane);
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
                NAMED(direct_tiles)(&tile, parts * s->tiles, count, a, filters, (count - 1) * W, to, last, 0);
            }
        }
    for (int64_t i = 0; i < parts; i++) NAMED(transform_output_1d)(s, part + i, results + i * s->tiles * s->out_rows * s->outputs, result);
}

/* s->out = epilogue(conv(s->in, w)). scratch: the transformed filters. */
static void NAMED(winograd_1d)(NAMED(Winograd1d) *s, REAL *scratch)
{
    int64_t capacity, size;
    NAMED(winograd_1d_sizes)(s);
    NAMED(workspace)(s->engine, 0, &capacity);
    size = WINOGRAD_1D_PLANES * (NAMED(input_plane_size)(s, 1) + NAMED(output_plane_size)(s, 1));
    s->filters = scratch;
    s->block = max_i64(1, min_i64(s->images * s->parts, min_i64(capacity, WINOGRAD_1D_ITEM_BYTES / (int64_t)sizeof(REAL)) / size));
    s->engine->parallel_for(s->engine, NAMED(winograd_1d_filter_item), s, s->kernel_y);
    s->engine->parallel_for(s->engine, NAMED(winograd_1d_item), s, ceil_div(s->images * s->parts, s->block));
}

/* ---- weight gradient */

static void NAMED(winograd_1d_transform_item)(void *context, int64_t item, int64_t worker)
{
    const NAMED(Winograd1d) *s = context; (void)worker;
    NAMED(transform_input_1d)(s, s->first + item, s->planes + item * s->tiles * s->rows * s->depth, NAMED(input_plane_size)(s, s->block));
    NAMED(transform_gradient_1d)(s, s->first + item, s->gradients + item * s->tiles * s->out_rows * s->outputs, NAMED(output_plane_size)(s, s->block));
}

/* filters [8, window elements, outputs] (+)= planes^T gradients over the parts at work. A work item is a panel of one plane. */
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
        for (int64_t first = 0; first < tiles_at_work; first += per_pass) {
            Segments segments = { min_i64(per_pass, tiles_at_work - first), high - low, { 0 }, { 0 } };
            for (int64_t i = 0; i < segments.count; i++) {
                segments.a_offset[i] = ((first + i) * s->rows + low - s->pad_y + r) * s->depth;
                segments.b_offset[i] = ((first + i) * s->out_rows + low) * s->outputs;
            }
            NAMED(DirectTile) tile = { &segments, 1, s->depth, s->outputs, row, s->first > 0 || first > 0 ? ADD_C_LAST : OVERWRITE_C, 0 };
            NAMED(direct_tiles)(&tile, s->depth, count, planes, dy, last, sums + r * s->depth * row, (count - 1) * W, 0);
        }
    }
}

/* dw of one vector of filters: G^T sums, transposed to ONNX's layout. */
static void NAMED(winograd_1d_weight_item)(void *context, int64_t vector, int64_t worker)
{
    const NAMED(Winograd1d) *s = context; (void)worker;
    int64_t first = NAMED(first_output)(s, vector), first_lane = vector * W - first, size = s->kernel_y * s->taps;
    for (int64_t column = 0; column < s->length; column++) {
        const REAL *from = s->filters + (column * s->vectors + vector) * W;
        REAL *to = s->dw + (first * s->depth + column % s->depth) * size + column / s->depth * s->taps;
        V u[WINOGRAD_1D_PLANES], o[WINOGRAD_1D_MAX];
        for (int i = 0; i < WINOGRAD_1D_PLANES; i++) u[i] = LOAD(from + i * NAMED(filter_plane_size)(s));
        BY_TAPS(NAMED(transform_taps_back), o, u, s->taps);
        for (int64_t k = first_lane; k < W; k++)
            for (int t = 0; t < s->taps; t++) to[k * s->depth * size + t] = o[t][k];
    }
}

/* s->dw = the weight gradient. block: parts that are transformed at a time; scratch: their planes and those of their gradients, then the sums. */
static void NAMED(winograd_1d_weight_gradient)(NAMED(Winograd1d) *s, int64_t block, REAL *scratch)
{
    NAMED(winograd_1d_sizes)(s);
    s->block = block;
    s->planes = scratch;
    s->gradients = s->planes + WINOGRAD_1D_PLANES * NAMED(input_plane_size)(s, block);
    s->filters = s->gradients + WINOGRAD_1D_PLANES * NAMED(output_plane_size)(s, block);
    for (s->first = 0; s->first < s->images * s->parts; s->first += block) {
        s->count = min_i64(block, s->images * s->parts - s->first);
        s->engine->parallel_for(s->engine, NAMED(winograd_1d_transform_item), s, s->count);
        s->engine->parallel_for(s->engine, NAMED(winograd_1d_sums_item), s, WINOGRAD_1D_PLANES * s->panels.parts);
    }
    s->engine->parallel_for(s->engine, NAMED(winograd_1d_weight_item), s, s->vectors);
}
#undef BY_TAPS
#undef V
#undef W
#undef C
