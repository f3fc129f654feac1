/* 3 x 3 convolution of stride 1 by Winograd's F(4 x 4, 3 x 3): 36 products for each 4 x 4 outputs instead of 144 (Lavin and Gray, arXiv 1509.09308).
 *
 * Interpolation points 0, +-sqrt(1/2), +-sqrt(2), infinity: errors are 2 to 3 times those of the direct sum in float32, those of the textbook's
 * 0, +-1, +-2, infinity 10 times. x [n, h, w, c], w [k, c, 3, 3] as ONNX has it, y [n, oh, ow, k]; c and k are multiples of 16.
 *   forward     y  = A^T [(G g G^T) . (B^T d B)] A, . a product over channels in each of 36 planes
 *   data        the forward of dy with filters rotated by 180 degrees and c, k exchanged
 *   weights     dw = G^T [sum over tiles (B^T d B) . (A dy A^T)] G
 * Planes lie PLANE_PAD elements further apart than they must, else all 36 stores of a tile fall into one set of the first cache. */

/* ---- the transforms of one dimension, on vectors of channels */

#ifndef WINOGRAD_POINTS
#define WINOGRAD_POINTS
#define PA 0.70710678118654752440
#define PB 1.41421356237309504880
#define A2 0.5
#define B2 2.0
#define SS (A2 + B2)                     /* A2 * B2 is 1 */
#define NA (1 / (2 * A2 * (A2 - B2)))
#define NB (1 / (2 * B2 * (B2 - A2)))
enum { PLANES = 36, PLANE_PAD = 16, FEW_TILES = 128, FILTER_BLOCK = 64, DEPTH_BLOCK = 128, FEW_FILTER_BLOCK = 32, FEW_DEPTH_BLOCK = 64, TILE_BLOCK = 48,
       WHOLE_PANEL = 32, GRADIENT_DEPTH_BLOCK = 32 };
static const double zero_channels[4096];
#endif
#define V NAMED(Channels)
#define W NAMED(WIDTH)
#define C(x) ((REAL)(x))

INLINED void NAMED(input_points)(V *o, V d0, V d1, V d2, V d3, V d4, V d5)                    /* B^T d */
{
    V e = d4 - C(B2) * d2, f = C(PA) * d3 - C(PA * B2) * d1, g = d4 - C(A2) * d2, h = C(PB) * d3 - C(PB * A2) * d1;
    o[0] = d4 + (d0 - C(SS) * d2);
    o[1] = e + f; o[2] = e - f; o[3] = g + h; o[4] = g - h;
    o[5] = d5 + (d1 - C(SS) * d3);
}
INLINED void NAMED(output_values)(V *o, V m0, V m1, V m2, V m3, V m4, V m5)                   /* A^T m */
{
    V s = m1 + m2, d = m1 - m2, t = m3 + m4, e = m3 - m4;
    o[0] = m0 + s + t; o[1] = C(PA) * d + C(PB) * e; o[2] = C(A2) * s + C(B2) * t;
    o[3] = m5 + (C(PA * A2) * d + C(PB * B2) * e);
}
INLINED void NAMED(output_points)(V *o, V y0, V y1, V y2, V y3)                               /* A y */
{
    V e = y0 + C(A2) * y2, f = C(PA) * y1 + C(PA * A2) * y3, g = y0 + C(B2) * y2, h = C(PB) * y1 + C(PB * B2) * y3;
    o[0] = y0; o[1] = e + f; o[2] = e - f; o[3] = g + h; o[4] = g - h; o[5] = y3;
}
INLINED void NAMED(filter_points)(V *o, V g0, V g1, V g2)                                     /* G g */
{
    V e = C(NA) * g0 + C(NA * A2) * g2, f = C(NA * PA) * g1, h = C(NB) * g0 + C(NB * B2) * g2, i = C(NB * PB) * g1;
    o[0] = g0; o[1] = e + f; o[2] = e - f; o[3] = h + i; o[4] = h - i; o[5] = g2;
}
INLINED void NAMED(filter_values)(V *o, V u0, V u1, V u2, V u3, V u4, V u5)                   /* G^T u */
{
    V s = u1 + u2, d = u1 - u2, t = u3 + u4, e = u3 - u4;
    o[0] = u0 + C(NA) * s + C(NB) * t; o[1] = C(NA * PA) * d + C(NB * PB) * e; o[2] = u5 + (C(NA * A2) * s + C(NB * B2) * t);
}

/* ---- the transforms of a tile */

/* One convolution, as its direction has it: `depth` channels of the input are summed over, `filters` channels come out. */
typedef struct NAMED(Winograd) {
    const Engine *engine;
    const REAL *in, *w, *dy;
    REAL *out, *planes, *gradients, *filters, *dw;
    int64_t images, rows, columns, depth, out_rows, out_columns, outputs, pad_y, pad_x;
    int64_t channels;                    /* of w [k, channels, 3, 3] */
    int64_t tiles_y, tiles_x, tiles;
    int64_t first, count, block;         /* the tiles at work, and how many an item takes */
    int rotated, few;
    NAMED(Finish) finish;
} NAMED(Winograd);

typedef struct NAMED(Place) { int64_t image, y, x; } NAMED(Place);

INLINED NAMED(Place) NAMED(place_of)(const NAMED(Winograd) *s, int64_t tile)
{ return (NAMED(Place)){ tile / (s->tiles_x * s->tiles_y), tile / s->tiles_x % s->tiles_y * 4, tile % s->tiles_x * 4 }; }

/* planes[p][c] of one tile = B^T d B; pixels outside the image are read from a row of zeros */
APART void NAMED(transform_input)(const NAMED(Winograd) *s, int64_t tile, REAL *planes, int64_t plane_step)
{
    NAMED(Place) at = NAMED(place_of)(s, tile);
    const REAL *pixel[36];
    for (int i = 0; i < 6; i++)
        for (int j = 0; j < 6; j++) {
            int64_t y = at.y - s->pad_y + i, x = at.x - s->pad_x + j;
            pixel[i * 6 + j] = y >= 0 && y < s->rows && x >= 0 && x < s->columns ? s->in + ((at.image * s->rows + y) * s->columns + x) * s->depth
                                                                               : (const REAL *)zero_channels;
        }
    for (int64_t c = 0; c < s->depth; c += W) {
        V m[6][6], o[6];
        _Pragma("GCC unroll 6") for (int j = 0; j < 6; j++) {
            NAMED(input_points)(o, LOAD(pixel[j] + c), LOAD(pixel[6 + j] + c), LOAD(pixel[12 + j] + c), LOAD(pixel[18 + j] + c), LOAD(pixel[24 + j] + c),
                                LOAD(pixel[30 + j] + c));
            for (int i = 0; i < 6; i++) m[i][j] = o[i];
        }
        _Pragma("GCC unroll 6") for (int i = 0; i < 6; i++) {
            NAMED(input_points)(o, m[i][0], m[i][1], m[i][2], m[i][3], m[i][4], m[i][5]);
            for (int j = 0; j < 6; j++) STORE(planes + (i * 6 + j) * plane_step + c, o[j]);
        }
    }
}

/* planes[p][k] of one tile = A dy A^T */
APART void NAMED(transform_gradient)(const NAMED(Winograd) *s, int64_t tile, REAL *planes, int64_t plane_step)
{
    NAMED(Place) at = NAMED(place_of)(s, tile);
    const REAL *pixel[16];
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < 4; j++)
            pixel[i * 4 + j] = at.y + i < s->out_rows && at.x + j < s->out_columns
                                   ? s->dy + ((at.image * s->out_rows + at.y + i) * s->out_columns + at.x + j) * s->outputs : (const REAL *)zero_channels;
    for (int64_t c = 0; c < s->outputs; c += W) {
        V m[6][4], o[6];
        _Pragma("GCC unroll 4") for (int j = 0; j < 4; j++) {
            NAMED(output_points)(o, LOAD(pixel[j] + c), LOAD(pixel[4 + j] + c), LOAD(pixel[8 + j] + c), LOAD(pixel[12 + j] + c));
            for (int i = 0; i < 6; i++) m[i][j] = o[i];
        }
        _Pragma("GCC unroll 6") for (int i = 0; i < 6; i++) {
            NAMED(output_points)(o, m[i][0], m[i][1], m[i][2], m[i][3]);
            for (int j = 0; j < 6; j++) STORE(planes + (i * 6 + j) * plane_step + c, o[j]);
        }
    }
}

/* the outputs of one tile, channels first … first + count, from planes[p][count] */
APART void NAMED(transform_output)(const NAMED(Winograd) *s, int64_t tile, const REAL *planes, int64_t plane_step, int64_t first, int64_t count)
{
    NAMED(Place) at = NAMED(place_of)(s, tile);
    int64_t height = least(4, s->out_rows - at.y), width = least(4, s->out_columns - at.x);
    REAL *out = s->out + ((at.image * s->out_rows + at.y) * s->out_columns + at.x) * s->outputs + first;
    for (int64_t c = 0; c < count; c += W) {
        V m[4][6], o[4];
        _Pragma("GCC unroll 6") for (int j = 0; j < 6; j++) {
            const REAL *p = planes + j * plane_step + c;
            NAMED(output_values)(o, LOAD(p), LOAD(p + 6 * plane_step), LOAD(p + 12 * plane_step), LOAD(p + 18 * plane_step), LOAD(p + 24 * plane_step),
                                 LOAD(p + 30 * plane_step));
            for (int i = 0; i < 4; i++) m[i][j] = o[i];
        }
        _Pragma("GCC unroll 4") for (int i = 0; i < 4; i++) {
            if (i >= height) break;
            NAMED(output_values)(o, m[i][0], m[i][1], m[i][2], m[i][3], m[i][4], m[i][5]);
            for (int j = 0; j < 4; j++)
                if (j < width) STORE(out + (i * s->out_columns + j) * s->outputs + c, NAMED(finished)(&s->finish, o[j], first + c));
        }
    }
}

/* 9 taps -> 36 planes */
INLINED void NAMED(transform_taps)(const V *taps, REAL *planes, int64_t plane_step)
{
    V m[6][3], o[6];
    _Pragma("GCC unroll 3") for (int j = 0; j < 3; j++) {
        NAMED(filter_points)(o, taps[j], taps[3 + j], taps[6 + j]);
        for (int i = 0; i < 6; i++) m[i][j] = o[i];
    }
    _Pragma("GCC unroll 6") for (int i = 0; i < 6; i++) {
        NAMED(filter_points)(o, m[i][0], m[i][1], m[i][2]);
        for (int j = 0; j < 6; j++) STORE(planes + (i * 6 + j) * plane_step, o[j]);
    }
}

/* WIDTH filters from k, WIDTH channels from c: taps[c * 9 + tap] with one filter per lane */
INLINED void NAMED(load_taps)(const REAL *w, int64_t channels, int64_t k, int64_t c, V *taps)
{
    _Pragma("GCC unroll 1") for (int q = 0; q < 9; q++) {
        for (int i = 0; i < W; i++) taps[q * W + i] = LOAD(w + ((k + i) * channels + c) * 9 + q * W);
        NAMED(transpose)(taps + q * W);
    }
}

/* filters[p][panel][depth][PANEL] for outputs first … first + count and input channels from … from + depth */
APART void NAMED(transform_filters)(const NAMED(Winograd) *s, int64_t from, int64_t depth, int64_t first, int64_t count, REAL *filters, int64_t plane_step)
{
    V taps[9 * W], turned[9 * W];
    for (int64_t k = 0; k < count; k += W) {
        REAL *panel = filters + k / NAMED(PANEL) * depth * NAMED(PANEL) + k % NAMED(PANEL);
        for (int64_t c = 0; c < depth; c += W) {
            if (!s->rotated) {
                NAMED(load_taps)(s->w, s->channels, first + k, from + c, taps);
                for (int i = 0; i < W; i++) NAMED(transform_taps)(taps + 9 * i, panel + (c + i) * NAMED(PANEL), plane_step);
                continue;
            }
            NAMED(load_taps)(s->w, s->channels, from + c, first + k, taps);
            _Pragma("GCC unroll 1") for (int q = 0; q < 9; q++) {
                V one[W];
                for (int i = 0; i < W; i++) one[i] = taps[i * 9 + 8 - q];
                NAMED(transpose)(one);
                for (int i = 0; i < W; i++) turned[i * 9 + q] = one[i];
            }
            for (int i = 0; i < W; i++) NAMED(transform_taps)(turned + 9 * i, panel + (c + i) * NAMED(PANEL), plane_step);
        }
    }
}

/* ---- forward and data gradient */

/* products of one block of outputs with the planes of `count` tiles, and the transform of the results */
static void NAMED(multiply_tiles)(const NAMED(Winograd) *s, const REAL *planes, int64_t plane_step, int64_t tile, int64_t count, int64_t first, int64_t outputs,
                                  const REAL *filters, int64_t filter_step, int64_t from, int64_t depth, REAL *results, int64_t result_step)
{
    for (int p = 0; p < PLANES; p++)
        NAMED(product)(count, outputs, depth, planes + p * plane_step + from, s->depth, filters + p * filter_step, NAMED(PANEL), depth * NAMED(PANEL),
                       results + p * result_step, outputs, from > 0);
    if (from + depth < s->depth) return;
    for (int64_t t = 0; t < count; t++) NAMED(transform_output)(s, tile + t, results + t * outputs, result_step, first, outputs);
}

INLINED int64_t NAMED(filter_step)(const NAMED(Winograd) *s) { return least(DEPTH_BLOCK, s->depth) * blocks_of(least(FILTER_BLOCK, s->outputs), WHOLE_PANEL) * WHOLE_PANEL + PLANE_PAD; }

/* many tiles: filters are transformed once, an item is a block of them … */
static void NAMED(filter_item)(void *context, int64_t item, int64_t worker)
{
    const NAMED(Winograd) *s = context; (void)worker;
    int64_t depths = blocks_of(s->depth, DEPTH_BLOCK), first = item / depths * FILTER_BLOCK, from = item % depths * DEPTH_BLOCK, step = NAMED(filter_step)(s);
    NAMED(transform_filters)(s, from, least(DEPTH_BLOCK, s->depth - from), first, least(FILTER_BLOCK, s->outputs - first), s->filters + item * PLANES * step, step);
}

/* … then an item is a block of tiles */
static void NAMED(tile_item)(void *context, int64_t item, int64_t worker)
{
    const NAMED(Winograd) *s = context;
    int64_t room, tile = item * s->block, count = least(s->block, s->tiles - tile), plane_step = s->block * s->depth + PLANE_PAD;
    int64_t result_step = s->block * least(FILTER_BLOCK, s->outputs) + PLANE_PAD, filter_step = NAMED(filter_step)(s);
    REAL *planes = NAMED(workspace)(s->engine, worker, &room), *results = planes + PLANES * plane_step;
    const REAL *filters = s->filters;
    for (int64_t t = 0; t < count; t++) NAMED(transform_input)(s, tile + t, planes + t * s->depth, plane_step);
    for (int64_t first = 0; first < s->outputs; first += FILTER_BLOCK)
        for (int64_t from = 0; from < s->depth; from += DEPTH_BLOCK, filters += PLANES * filter_step)
            NAMED(multiply_tiles)(s, planes, plane_step, tile, count, first, least(FILTER_BLOCK, s->outputs - first), filters, filter_step, from,
                                  least(DEPTH_BLOCK, s->depth - from), results, result_step);
}

/* few tiles: all are transformed first … */
static void NAMED(few_input_item)(void *context, int64_t tile, int64_t worker)
{
    const NAMED(Winograd) *s = context; (void)worker;
    NAMED(transform_input)(s, tile, s->planes + tile * s->depth, s->tiles * s->depth + PLANE_PAD);
}

/* … then an item is a block of outputs, whose filters are transformed right before their products and never kept */
static void NAMED(few_output_item)(void *context, int64_t item, int64_t worker)
{
    const NAMED(Winograd) *s = context;
    int64_t room, first = item * FEW_FILTER_BLOCK, outputs = least(FEW_FILTER_BLOCK, s->outputs - first), plane_step = s->tiles * s->depth + PLANE_PAD;
    int64_t filter_step = FEW_DEPTH_BLOCK * FEW_FILTER_BLOCK + PLANE_PAD, result_step = s->tiles * outputs + PLANE_PAD;
    REAL *filters = NAMED(workspace)(s->engine, worker, &room), *results = filters + PLANES * filter_step;
    for (int64_t from = 0; from < s->depth; from += FEW_DEPTH_BLOCK) {
        int64_t depth = least(FEW_DEPTH_BLOCK, s->depth - from);
        NAMED(transform_filters)(s, from, depth, first, outputs, filters, filter_step);
        NAMED(multiply_tiles)(s, s->planes, plane_step, 0, s->tiles, first, outputs, filters, filter_step, from, depth, results, result_step);
    }
}

static void NAMED(winograd_tiles)(NAMED(Winograd) *s)
{
    s->tiles_y = blocks_of(s->out_rows, 4);
    s->tiles_x = blocks_of(s->out_columns, 4);
    s->tiles = s->images * s->tiles_y * s->tiles_x;
    s->few = s->tiles <= FEW_TILES;
}

/* scratch: planes of all tiles where they are few, else the transformed filters (winograd_scratch in ops/channels_last_conv.py) */
static void NAMED(winograd)(NAMED(Winograd) *s, REAL *scratch)
{
    int64_t room;
    NAMED(winograd_tiles)(s);
    s->planes = s->filters = scratch;
    if (s->few) {
        s->engine->parallel_for(s->engine, NAMED(few_input_item), s, s->tiles);
        s->engine->parallel_for(s->engine, NAMED(few_output_item), s, blocks_of(s->outputs, FEW_FILTER_BLOCK));
        return;
    }
    NAMED(workspace)(s->engine, 0, &room);
    s->block = least(TILE_BLOCK, most(1, (room / PLANES - 2 * PLANE_PAD) / (s->depth + least(FILTER_BLOCK, s->outputs))));
    s->engine->parallel_for(s->engine, NAMED(filter_item), s, blocks_of(s->outputs, FILTER_BLOCK) * blocks_of(s->depth, DEPTH_BLOCK));
    s->engine->parallel_for(s->engine, NAMED(tile_item), s, blocks_of(s->tiles, s->block));
}

/* ---- gradient of the weights */

/* rows of planes are PLANE_PAD elements longer than they must be, so that the columns that a product walks down are spread over the first cache */
static void NAMED(gradient_transform_item)(void *context, int64_t item, int64_t worker)
{
    const NAMED(Winograd) *s = context; (void)worker;
    int64_t input_row = s->depth + PLANE_PAD, output_row = s->outputs + PLANE_PAD;
    NAMED(transform_input)(s, s->first + item, s->planes + item * input_row, s->block * input_row + PLANE_PAD);
    NAMED(transform_gradient)(s, s->first + item, s->gradients + item * output_row, s->block * output_row + PLANE_PAD);
}

/* sums[p][depth][outputs] (+)= planes^T gradients over the tiles at work */
static void NAMED(gradient_products)(const NAMED(Winograd) *s, int p, int64_t from, int64_t depth, int64_t first, int64_t outputs, REAL *sums, int64_t sums_row,
                                     int accumulate)
{
    int64_t input_row = s->depth + PLANE_PAD, output_row = s->outputs + PLANE_PAD;
    NAMED(turned_product)(depth, outputs, s->count, s->planes + p * (s->block * input_row + PLANE_PAD) + from, input_row,
                          s->gradients + p * (s->block * output_row + PLANE_PAD) + first, output_row, NAMED(PANEL), sums, sums_row, accumulate);
}

/* dw of WIDTH channels from c and `outputs` filters from `first`: G^T sums G, turned into ONNX's order */
static void NAMED(store_weights)(const NAMED(Winograd) *s, const REAL *sums, int64_t plane_step, int64_t row, int64_t c, int64_t first, int64_t outputs)
{
    V taps[9 * W], m[3][6], o[3];
    for (int64_t k = 0; k < outputs; k += W) {
        for (int i = 0; i < W; i++) {
            const REAL *p = sums + i * row + k;
            _Pragma("GCC unroll 6") for (int j = 0; j < 6; j++) {
                const REAL *q = p + j * plane_step;
                NAMED(filter_values)(o, LOAD(q), LOAD(q + 6 * plane_step), LOAD(q + 12 * plane_step), LOAD(q + 18 * plane_step), LOAD(q + 24 * plane_step),
                                     LOAD(q + 30 * plane_step));
                for (int r = 0; r < 3; r++) m[r][j] = o[r];
            }
            _Pragma("GCC unroll 3") for (int r = 0; r < 3; r++) {
                NAMED(filter_values)(o, m[r][0], m[r][1], m[r][2], m[r][3], m[r][4], m[r][5]);
                for (int j = 0; j < 3; j++) taps[i * 9 + r * 3 + j] = o[j];
            }
        }
        _Pragma("GCC unroll 1") for (int q = 0; q < 9; q++) {
            NAMED(transpose)(taps + q * W);
            for (int i = 0; i < W; i++) STORE(s->dw + ((first + k + i) * s->depth + c) * 9 + q * W, taps[q * W + i]);
        }
    }
}

/* few tiles: an item is a block of channels and filters, whose sums stay with the worker */
static void NAMED(few_gradient_item)(void *context, int64_t item, int64_t worker)
{
    const NAMED(Winograd) *s = context;
    int64_t room, depths = blocks_of(s->depth, GRADIENT_DEPTH_BLOCK), first = item / depths * FILTER_BLOCK, from = item % depths * GRADIENT_DEPTH_BLOCK;
    int64_t depth = least(GRADIENT_DEPTH_BLOCK, s->depth - from), outputs = least(FILTER_BLOCK, s->outputs - first), step = depth * outputs + PLANE_PAD;
    REAL *sums = NAMED(workspace)(s->engine, worker, &room);
    for (int p = 0; p < PLANES; p++) NAMED(gradient_products)(s, p, from, depth, first, outputs, sums + p * step, outputs, 0);
    for (int64_t c = 0; c < depth; c += W) NAMED(store_weights)(s, sums + c * outputs, step, outputs, from + c, first, outputs);
}

/* many tiles: an item is a plane and a block of filters; blocks of tiles come one after another */
static void NAMED(gradient_plane_item)(void *context, int64_t item, int64_t worker)
{
    const NAMED(Winograd) *s = context; (void)worker;
    int64_t p = item % PLANES, first = item / PLANES * FILTER_BLOCK;
    NAMED(gradient_products)(s, (int)p, 0, s->depth, first, least(FILTER_BLOCK, s->outputs - first), s->filters + p * (s->depth * s->outputs + PLANE_PAD) + first,
                             s->outputs, s->first > 0);
}

static void NAMED(gradient_store_item)(void *context, int64_t item, int64_t worker)
{
    const NAMED(Winograd) *s = context; (void)worker;
    NAMED(store_weights)(s, s->filters + item * W * s->outputs, s->depth * s->outputs + PLANE_PAD, s->outputs, item * W, 0, s->outputs);
}

/* block: tiles transformed at a time; scratch: their planes and, where tiles are many, the sums (as in ops/channels_last_conv.py) */
static void NAMED(winograd_weights)(NAMED(Winograd) *s, int64_t block, REAL *scratch)
{
    NAMED(winograd_tiles)(s);
    s->block = least(block, s->tiles);
    s->planes = scratch;
    s->gradients = s->planes + PLANES * (s->block * (s->depth + PLANE_PAD) + PLANE_PAD);
    s->filters = s->gradients + PLANES * (s->block * (s->outputs + PLANE_PAD) + PLANE_PAD);
    for (s->first = 0; s->first < s->tiles; s->first += s->block) {
        s->count = least(s->block, s->tiles - s->first);
        s->engine->parallel_for(s->engine, NAMED(gradient_transform_item), s, s->count);
        if (!s->few) s->engine->parallel_for(s->engine, NAMED(gradient_plane_item), s, PLANES * blocks_of(s->outputs, FILTER_BLOCK));
    }
    if (s->few) s->engine->parallel_for(s->engine, NAMED(few_gradient_item), s, blocks_of(s->depth, GRADIENT_DEPTH_BLOCK) * blocks_of(s->outputs, FILTER_BLOCK));
    else s->engine->parallel_for(s->engine, NAMED(gradient_store_item), s, s->depth / W);
}
#undef V
#undef W
#undef C
