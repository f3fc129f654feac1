/* Convolution of stride 1 with kernels 5 wide by Winograd's F(4, 5) along rows alone: 8 products for 4 outputs instead of 20 in each row of the kernel.
 *
 * In both dimensions it would be 64 for 16 instead of 400, but errors 10 times those of direct sums; along rows they are twice those. Rows of the kernel
 * are added up in the planes: one tile's pixels of successive rows lie side by side there, so a product over kernel_y * c elements reads them in place.
 * Points 0, +-1/2, +-1, +-2, infinity. An item is a few images; the gradient of the data is the convolution of dy with filters turned by 180 degrees. */
#define V NAMED(Channels)
#define W NAMED(WIDTH)
#define C(x) ((REAL)(x))
#ifndef ROW_PLANES
#define ROW_PLANES 8
#define ROW_TAPS 5
#endif

/* ---- the transforms of one dimension */

INLINED void NAMED(row_points)(V *o, const V *d)                                              /* B^T d */
{
    V e = d[2] + d[6] - C(4.25) * d[4], f = d[1] + d[5] - C(4.25) * d[3];
    V g = C(4) * d[2] + d[6] - C(5) * d[4], h = C(2) * d[1] - C(2.5) * d[3] + C(0.5) * d[5];
    V i = C(0.25) * d[2] - C(1.25) * d[4] + d[6], j = C(0.5) * d[1] - C(2.5) * d[3] + C(2) * d[5];
    o[0] = d[6] - d[0] + C(5.25) * (d[2] - d[4]);
    o[1] = e + f; o[2] = e - f; o[3] = g + h; o[4] = g - h; o[5] = i + j; o[6] = i - j;
    o[7] = d[7] - d[1] + C(5.25) * (d[3] - d[5]);
}
INLINED void NAMED(row_values)(V *o, const V *m)                                              /* A^T m */
{
    V s = m[1] + m[2], d = m[1] - m[2], t = m[3] + m[4], e = m[3] - m[4], u = m[5] + m[6], f = m[5] - m[6];
    o[0] = m[0] + s + t + u; o[1] = d + C(0.5) * e + C(2) * f; o[2] = s + C(0.25) * t + C(4) * u; o[3] = m[7] + d + C(0.125) * e + C(8) * f;
}
INLINED void NAMED(row_gradient_points)(V *o, const V *y)                                     /* A y */
{
    V e = y[0] + y[2], f = y[1] + y[3], g = y[0] + C(0.25) * y[2], h = C(0.5) * y[1] + C(0.125) * y[3], i = y[0] + C(4) * y[2], j = C(2) * y[1] + C(8) * y[3];
    o[0] = y[0]; o[1] = e + f; o[2] = e - f; o[3] = g + h; o[4] = g - h; o[5] = i + j; o[6] = i - j; o[7] = y[3];
}
INLINED void NAMED(row_filter_points)(V *o, const V *w)                                       /* G w */
{
    V e = C(-1 / 4.5) * (w[0] + w[2] + w[4]), f = C(-1 / 4.5) * (w[1] + w[3]);
    V g = C(1 / 1.40625) * (w[0] + C(0.25) * w[2] + C(0.0625) * w[4]), h = C(1 / 1.40625) * (C(0.5) * w[1] + C(0.125) * w[3]);
    V i = C(1 / 90.) * (w[0] + C(4) * w[2] + C(16) * w[4]), j = C(1 / 90.) * (C(2) * w[1] + C(8) * w[3]);
    o[0] = -w[0]; o[1] = e + f; o[2] = e - f; o[3] = g + h; o[4] = g - h; o[5] = i + j; o[6] = i - j; o[7] = w[4];
}
INLINED void NAMED(row_filter_values)(V *o, const V *u)                                       /* G^T u */
{
    V s = C(-1 / 4.5) * (u[1] + u[2]), d = C(-1 / 4.5) * (u[1] - u[2]), t = C(1 / 1.40625) * (u[3] + u[4]), e = C(1 / 1.40625) * (u[3] - u[4]);
    V v = C(1 / 90.) * (u[5] + u[6]), f = C(1 / 90.) * (u[5] - u[6]);
    o[0] = s + t + v - u[0]; o[1] = d + C(0.5) * e + C(2) * f; o[2] = s + C(0.25) * t + C(4) * v; o[3] = d + C(0.125) * e + C(8) * f;
    o[4] = s + C(0.0625) * t + C(16) * v + u[7];
}

/* ---- forward and data gradient */

/* One convolution, as its direction has it: `depth` channels of the input are summed over, `outputs` come out. */
typedef struct NAMED(RowWinograd) {
    const Engine *engine;
    const REAL *in, *w, *dy;
    REAL *out, *dw, *filters, *planes, *gradients;
    int64_t images, rows, columns, depth, out_rows, out_columns, outputs, pad_y, pad_x, kernel_y;
    int64_t channels;                    /* of w [k, channels, kernel_y, 5] */
    int rotated;
    int64_t tiles, length, vectors;      /* tiles of a row, elements of a window in a plane, vectors of outputs */
    Deal panels;                         /* of the vectors */
    int64_t at_once, first, count;       /* images of an item, or at work */
    NAMED(Finish) finish;
} NAMED(RowWinograd);

static void NAMED(row_sizes)(NAMED(RowWinograd) *s)
{
    s->tiles = blocks_of(s->out_columns, 4);
    s->length = s->kernel_y * s->depth;
    s->vectors = blocks_of(s->outputs, W);
    s->panels = dealt(s->vectors, WINDOW_VECTORS);
}
/* elements of the planes of one image, and of what their products or dy give: [image][tile][row][channel] in every plane */
INLINED int64_t NAMED(row_plane)(const NAMED(RowWinograd) *s, int64_t images) { return images * s->tiles * s->rows * s->depth + ROW_PAD; }
INLINED int64_t NAMED(row_result)(const NAMED(RowWinograd) *s, int64_t images) { return images * s->tiles * s->out_rows * s->outputs + ROW_PAD; }
INLINED int64_t NAMED(row_filter_plane)(const NAMED(RowWinograd) *s) { return s->length * s->vectors * W + ROW_PAD; }
INLINED int64_t NAMED(output_column)(const NAMED(RowWinograd) *s, int64_t vector) { return least(vector * W, s->outputs - W); }

/* planes[p][tile][row][c] of one image */
static void NAMED(row_input)(const NAMED(RowWinograd) *s, int64_t image, REAL *planes, int64_t plane_step)
{
    for (int64_t y = 0; y < s->rows; y++)
        for (int64_t t = 0; t < s->tiles; t++) {
            const REAL *pixel[ROW_PLANES], *row = s->in + (image * s->rows + y) * s->columns * s->depth;
            REAL *to = planes + (t * s->rows + y) * s->depth;
            for (int i = 0; i < ROW_PLANES; i++) {
                int64_t x = t * 4 - s->pad_x + i;
                pixel[i] = x >= 0 && x < s->columns ? row + x * s->depth : (const REAL *)zero_channels;
            }
            for (int64_t at = 0; at < s->depth; at += W) {
                int64_t c = least(at, s->depth - W);
                V d[ROW_PLANES], o[ROW_PLANES];
                _Pragma("GCC unroll 8") for (int i = 0; i < ROW_PLANES; i++) d[i] = LOAD(pixel[i] + c);
                NAMED(row_points)(o, d);
                _Pragma("GCC unroll 8") for (int i = 0; i < ROW_PLANES; i++) STORE(to + i * plane_step + c, o[i]);
            }
        }
}

/* planes[p][tile][row][k] of one image's dy */
static void NAMED(row_gradient)(const NAMED(RowWinograd) *s, int64_t image, REAL *planes, int64_t plane_step)
{
    for (int64_t y = 0; y < s->out_rows; y++)
        for (int64_t t = 0; t < s->tiles; t++) {
            const REAL *pixel[4], *row = s->dy + (image * s->out_rows + y) * s->out_columns * s->outputs;
            REAL *to = planes + (t * s->out_rows + y) * s->outputs;
            for (int i = 0; i < 4; i++) pixel[i] = t * 4 + i < s->out_columns ? row + (t * 4 + i) * s->outputs : (const REAL *)zero_channels;
            for (int64_t at = 0; at < s->outputs; at += W) {
                int64_t c = least(at, s->outputs - W);
                V d[4], o[ROW_PLANES];
                _Pragma("GCC unroll 4") for (int i = 0; i < 4; i++) d[i] = LOAD(pixel[i] + c);
                NAMED(row_gradient_points)(o, d);
                _Pragma("GCC unroll 8") for (int i = 0; i < ROW_PLANES; i++) STORE(to + i * plane_step + c, o[i]);
            }
        }
}

/* the outputs of one image from results[p][tile][row][output] */
static void NAMED(row_output)(const NAMED(RowWinograd) *s, int64_t image, const REAL *results, int64_t plane_step)
{
    for (int64_t y = 0; y < s->out_rows; y++)
        for (int64_t t = 0; t < s->tiles; t++) {
            const REAL *from = results + (t * s->out_rows + y) * s->outputs;
            REAL *to = s->out + ((image * s->out_rows + y) * s->out_columns + t * 4) * s->outputs;
            int64_t width = least(4, s->out_columns - t * 4);
            for (int64_t at = 0; at < s->outputs; at += W) {
                int64_t c = least(at, s->outputs - W);
                V m[ROW_PLANES], o[4];
                _Pragma("GCC unroll 8") for (int i = 0; i < ROW_PLANES; i++) m[i] = LOAD(from + i * plane_step + c);
                NAMED(row_values)(o, m);
                _Pragma("GCC unroll 4") for (int i = 0; i < 4; i++)
                    if (i < width) STORE(to + i * s->outputs + c, NAMED(finished)(&s->finish, o[i], c));
            }
        }
}

/* filters[p][panel][row of the kernel][channel][vectors of the panel]; an item is a row of the kernel */
static void NAMED(row_filter_item)(void *context, int64_t r, int64_t worker)
{
    const NAMED(RowWinograd) *s = context; (void)worker;
    int64_t size = s->kernel_y * ROW_TAPS, turned = s->rotated ? size - 1 : 0, sign = s->rotated ? -1 : 1;
    int64_t output_step = s->rotated ? size : s->channels * size, depth_step = s->rotated ? s->channels * size : size;
    for (int64_t panel = 0; panel < s->panels.parts; panel++) {
        int64_t first = part_start(s->panels, panel), count = part_size(s->panels, panel);
        for (int64_t c = 0; c < s->depth; c++)
            for (int64_t j = 0; j < count; j++) {
                const REAL *from = s->w + NAMED(output_column)(s, first + j) * output_step + c * depth_step + turned + sign * r * ROW_TAPS;
                REAL *to = s->filters + first * W * s->length + ((r * s->depth + c) * count + j) * W;
                REAL taps[ROW_TAPS][W];
                V w[ROW_TAPS], o[ROW_PLANES];
                for (int t = 0; t < ROW_TAPS; t++) {
                    for (int k = 0; k < W; k++) taps[t][k] = from[k * output_step + sign * t];
                    w[t] = LOAD(taps[t]);
                }
                NAMED(row_filter_points)(o, w);
                for (int i = 0; i < ROW_PLANES; i++) STORE(to + i * NAMED(row_filter_plane)(s), o[i]);
            }
    }
}

/* an item is a few images */
static void NAMED(row_item)(void *context, int64_t item, int64_t worker)
{
    const NAMED(RowWinograd) *s = context;
    int64_t room, image = item * s->at_once, images = least(s->at_once, s->images - image);
    int64_t plane = NAMED(row_plane)(s, s->at_once), result = NAMED(row_result)(s, s->at_once);
    REAL *planes = NAMED(workspace)(s->engine, worker, &room), *results = planes + ROW_PLANES * plane;
    for (int64_t i = 0; i < images; i++) NAMED(row_input)(s, image + i, planes + i * s->tiles * s->rows * s->depth, plane);
    Deal tiles = dealt(images * s->tiles, WINDOW_ROWS);
    for (int64_t p = 0; p < ROW_PLANES; p++)
        for (int64_t panel = 0; panel < s->panels.parts; panel++) {
            int64_t first = part_start(s->panels, panel), count = part_size(s->panels, panel), last = NAMED(output_column)(s, first + count - 1) - first * W;
            const REAL *filters = s->filters + p * NAMED(row_filter_plane)(s) + first * W * s->length;
            for (int64_t y = 0; y < s->out_rows; y++) {
                int64_t low = most(0, s->pad_y - y), high = most(low, least(s->kernel_y, s->rows + s->pad_y - y));
                Pieces pieces = { 1, (high - low) * s->depth, { 0 }, { low * s->depth * count * W } };
                NAMED(Tile) tile = { &pieces, s->rows * s->depth, 1, count * W, s->out_rows * s->outputs, FROM_ZERO, 0 };
                const REAL *a = planes + p * plane + (y - s->pad_y + low) * s->depth;
                REAL *to = results + p * result + y * s->outputs + first * W;
                for (int64_t t = 0, at = 0, rows; t < tiles.parts; t++, at += rows) {
                    rows = part_size(tiles, t);
                    NAMED(window_tiles)[rows - 1][count - 1](&tile, a + at * tile.a_row, filters, (count - 1) * W, to + at * tile.c_row, last, 0);
                }
            }
        }
    for (int64_t i = 0; i < images; i++) NAMED(row_output)(s, image + i, results + i * s->tiles * s->out_rows * s->outputs, result);
}

/* scratch: the transformed filters */
static void NAMED(row_winograd)(NAMED(RowWinograd) *s, REAL *scratch)
{
    int64_t room, image;
    NAMED(row_sizes)(s);
    NAMED(workspace)(s->engine, 0, &room);
    image = ROW_PLANES * (NAMED(row_plane)(s, 1) + NAMED(row_result)(s, 1));
    s->filters = scratch;
    s->at_once = most(1, least(s->images, least(room, ROW_ITEM_BYTES / (int64_t)sizeof(REAL)) / image));
    s->engine->parallel_for(s->engine, NAMED(row_filter_item), s, s->kernel_y);
    s->engine->parallel_for(s->engine, NAMED(row_item), s, blocks_of(s->images, s->at_once));
}

/* ---- gradient of the weights */

static void NAMED(row_transform_item)(void *context, int64_t item, int64_t worker)
{
    const NAMED(RowWinograd) *s = context; (void)worker;
    NAMED(row_input)(s, s->first + item, s->planes + item * s->tiles * s->rows * s->depth, NAMED(row_plane)(s, s->at_once));
    NAMED(row_gradient)(s, s->first + item, s->gradients + item * s->tiles * s->out_rows * s->outputs, NAMED(row_result)(s, s->at_once));
}

/* filters[p][column of a window][vector] (+)= over the images at work; an item is a panel of one plane */
static void NAMED(row_sums_item)(void *context, int64_t item, int64_t worker)
{
    const NAMED(RowWinograd) *s = context; (void)worker;
    int64_t p = item / s->panels.parts, panel = item % s->panels.parts, vector = part_start(s->panels, panel), count = part_size(s->panels, panel);
    int64_t last = NAMED(output_column)(s, vector + count - 1) - vector * W, row = s->vectors * W, lines = s->count * s->tiles;
    const REAL *planes = s->planes + p * NAMED(row_plane)(s, s->at_once), *dy = s->gradients + p * NAMED(row_result)(s, s->at_once) + vector * W;
    REAL *sums = s->filters + p * NAMED(row_filter_plane)(s) + vector * W;
    int64_t block = most(1, least(MAX_PIECES, SUMMED_PLACES / s->out_rows));
    for (int64_t r = 0; r < s->kernel_y; r++) {
        int64_t low = least(s->out_rows, most(0, s->pad_y - r)), high = most(low, least(s->out_rows, s->rows + s->pad_y - r));
        Deal tiles = dealt(s->depth, WINDOW_ROWS);
        for (int64_t first = 0; first < lines; first += block) {
            Pieces pieces = { least(block, lines - first), high - low, { 0 }, { 0 } };
            for (int64_t i = 0; i < pieces.count; i++) {
                pieces.a_at[i] = ((first + i) * s->rows + low - s->pad_y + r) * s->depth;
                pieces.b_at[i] = ((first + i) * s->out_rows + low) * s->outputs;
            }
            NAMED(Tile) tile = { &pieces, 1, s->depth, s->outputs, row, s->first > 0 || first > 0 ? ADDED_LAST : FROM_ZERO, 0 };
            for (int64_t t = 0, at = 0, rows; t < tiles.parts; t++, at += rows) {
                rows = part_size(tiles, t);
                NAMED(window_tiles)[rows - 1][count - 1](&tile, planes + at, dy, last, sums + (r * s->depth + at) * row, (count - 1) * W, 0);
            }
        }
    }
}

/* dw of one vector of filters: G^T sums, turned into ONNX's order */
static void NAMED(row_weights_item)(void *context, int64_t vector, int64_t worker)
{
    const NAMED(RowWinograd) *s = context; (void)worker;
    int64_t first = NAMED(output_column)(s, vector), again = vector * W - first, size = s->kernel_y * ROW_TAPS;
    for (int64_t column = 0; column < s->length; column++) {
        const REAL *from = s->filters + (column * s->vectors + vector) * W;
        REAL *to = s->dw + (first * s->depth + column % s->depth) * size + column / s->depth * ROW_TAPS;
        V u[ROW_PLANES], o[ROW_TAPS];
        for (int i = 0; i < ROW_PLANES; i++) u[i] = LOAD(from + i * NAMED(row_filter_plane)(s));
        NAMED(row_filter_values)(o, u);
        for (int64_t k = again; k < W; k++)
            for (int t = 0; t < ROW_TAPS; t++) to[k * s->depth * size + t] = o[t][k];
    }
}

/* at_once: images transformed at a time; scratch: their planes, then the sums */
static void NAMED(row_winograd_weights)(NAMED(RowWinograd) *s, int64_t at_once, REAL *scratch)
{
    NAMED(row_sizes)(s);
    s->at_once = at_once;
    s->planes = scratch;
    s->gradients = s->planes + ROW_PLANES * NAMED(row_plane)(s, at_once);
    s->filters = s->gradients + ROW_PLANES * NAMED(row_result)(s, at_once);
    for (s->first = 0; s->first < s->images; s->first += at_once) {
        s->count = least(at_once, s->images - s->first);
        s->engine->parallel_for(s->engine, NAMED(row_transform_item), s, s->count);
        s->engine->parallel_for(s->engine, NAMED(row_sums_item), s, ROW_PLANES * s->panels.parts);
    }
    s->engine->parallel_for(s->engine, NAMED(row_weights_item), s, s->vectors);
}
#undef V
#undef W
#undef C
