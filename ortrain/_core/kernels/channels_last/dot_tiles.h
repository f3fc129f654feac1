/* Direct convolution with lanes in windows: a vector holds elements of a row of a window, which are contiguous in x, and its lanes are added up at the end.
 *
 * With few filters, or some more than fill their vectors, vectors of filters are mostly padding (32 to 3 channels on 96 x 96, 3 x 3: 15 GFLOP/s). A tile is as
 * many outputs by up to 4 filters as there are registers for their sums. Of a row of a window whose elements fill no whole number of vectors, the last vector
 * ends with the row, and the elements that the one before has are zeros in it, in x as in the packed filters: infinity times zero would be NaN. */
#define V NAMED(Vector)
#define W NAMED(WIDTH)
#ifndef ORTRAIN_CHANNELS_LAST_DOT_TILES_H
#define ORTRAIN_CHANNELS_LAST_DOT_TILES_H
enum { DOT_FILTERS = 4 };                /* of a tile at most */
#if VECTOR_REGISTERS == 32
#define DOT_TILES(TILE) TILE(8, 1) TILE(8, 2) TILE(8, 3) TILE(6, 4) TILE(1, 1) TILE(1, 2) TILE(1, 3) TILE(1, 4)
#else
#define DOT_TILES(TILE) TILE(8, 1) TILE(6, 2) TILE(4, 3) TILE(3, 4) TILE(1, 1) TILE(1, 2) TILE(1, 3) TILE(1, 4)
#endif

/* Return the element of a row of a window that element i of a packed row of `padded` elements multiplies, or -1. */
static inline int64_t dot_element(int64_t i, int64_t length, int64_t padded, int64_t width)
{
    int64_t whole = length / width * width, element = i < whole ? i : i - (padded - length);
    return element < whole && i >= whole ? -1 : element;
}
#endif

/* Return whether lanes in windows of `segments` rows of `length` elements compute fewer products than vectors of filters, with padding, and with additions of
 * lanes in terms of products. */
static int NAMED(has_faster_dots)(int64_t segments, int64_t length, int64_t filters)
{
    int64_t products = filters * (segments * round_up(length, W) + LANE_SUM_PRODUCTS * W);
    return length >= W && products < segments * length * round_up(filters, W);
}

/* Windows and filters of a row of outputs: window i starts at x + i * x_step, filter k at w + k * w_step, each with its segments; y has y_step elements per pixel. */
typedef struct NAMED(DotRow) { const Segments *segments; int64_t x_step, w_step, y_step; } NAMED(DotRow);

/* Keeping the fewer operands in registers leaves room for 12 sums in 16 registers. */
#define DOT_STEP(ROWS, FILTERS, X, AT) {                                                                                                          \
        V kept[ROWS < FILTERS ? ROWS : FILTERS];                                                                                                  \
        if (ROWS < FILTERS) {                                                                                                                     \
            _Pragma("GCC unroll 8") for (int i = 0; i < ROWS; i++) kept[i] = X(a + i * x_step);                                                   \
            _Pragma("GCC unroll 4") for (int k = 0; k < FILTERS; k++) {                                                                           \
                V weights = LOAD(b + k * w_step + (AT));                                                                                          \
                _Pragma("GCC unroll 8") for (int i = 0; i < ROWS; i++) NAMED(ADD_PRODUCT)(sum[i][k], kept[i], weights);                \
            }                                                                                                                                     \
        } else {                                                                                                                                  \
            _Pragma("GCC unroll 4") for (int k = 0; k < FILTERS; k++) kept[k] = LOAD(b + k * w_step + (AT));                                      \
            _Pragma("GCC unroll 8") for (int i = 0; i < ROWS; i++) {                                                                              \
                V elements = X(a + i * x_step);                                                                                                   \
                _Pragma("GCC unroll 4") for (int k = 0; k < FILTERS; k++) NAMED(ADD_PRODUCT)(sum[i][k], elements, kept[k]);            \
            }                                                                                                                                     \
        }                                                                                                                                         \
    }
#define FOR_SUMS(ROWS, FILTERS) \
    _Pragma("GCC unroll 8") for (int i = 0; i < ROWS; i++) _Pragma("GCC unroll 4") for (int j = 0; j < FILTERS; j++)
#define WHOLE_ELEMENTS(from) LOAD((from) + p)
#define LAST_ELEMENTS(from) ((V)((NAMED(Mask))LOAD((from) + length - W) & last))

/* y [ROWS, FILTERS] of `tiles` tiles, each of which starts `ROWS` outputs after the one before. */
#define DOT_TILE(ROWS, FILTERS)                                                                                                                   \
NOINLINE void NAMED(dot_tile_##ROWS##_##FILTERS)(const NAMED(DotRow) *s, int64_t tiles, const REAL *x, const REAL *w, REAL *y)                    \
{                                                                                                                                                 \
    const int64_t x_step = s->x_step, w_step = s->w_step, length = s->segments->length, whole = length / W * W;                                   \
    NAMED(Mask) last;                                                                                                                             \
    for (int l = 0; l < W; l++) last[l] = l < W - (length - whole) ? 0 : -1;                                                                      \
    for (; tiles > 0; tiles--, x += ROWS * x_step, y += ROWS * s->y_step) {                                                                       \
        V sum[ROWS][FILTERS];                                                                                                                     \
        FOR_SUMS(ROWS, FILTERS) sum[i][j] = (V){0};                                                                                               \
        for (int64_t segment = 0; segment < s->segments->count; segment++) {                                                                      \
            const REAL *a = x + s->segments->a_offset[segment], *b = w + s->segments->b_offset[segment];                                          \
            for (int64_t p = 0; p < whole; p += W) DOT_STEP(ROWS, FILTERS, WHOLE_ELEMENTS, p)                                                     \
            if (whole < length) DOT_STEP(ROWS, FILTERS, LAST_ELEMENTS, whole)                                                                     \
        }                                                                                                                                         \
        FOR_SUMS(ROWS, FILTERS) y[i * s->y_step + j] = NAMED(lane_sum)(sum[i][j]);                                                                \
    }                                                                                                                                             \
}
DOT_TILES(DOT_TILE)
typedef struct NAMED(DotKernel) { void (*run)(const NAMED(DotRow) *, int64_t, const REAL *, const REAL *, REAL *); int rows; } NAMED(DotKernel);
#define DOT_ENTRY(ROWS, FILTERS) [ROWS > 1][FILTERS - 1] = { NAMED(dot_tile_##ROWS##_##FILTERS), ROWS },
static const NAMED(DotKernel) NAMED(dot_kernels)[2][DOT_FILTERS] = { DOT_TILES(DOT_ENTRY) };

/* y [columns, filters] of a row of outputs. Of a number of outputs that is no multiple of a tile, the last tile computes some twice. */
static void NAMED(dot_row)(const NAMED(DotRow) *s, int64_t columns, int64_t filters, const REAL *x, const REAL *w, REAL *y)
{
    const Partition blocks = partition(filters, DOT_FILTERS);
    for (int64_t block = 0; block < blocks.parts; block++) {
        int64_t first = part_start(blocks, block), count = part_size(blocks, block), rows = NAMED(dot_kernels)[1][count - 1].rows;
        const NAMED(DotKernel) *kernel = &NAMED(dot_kernels)[columns >= rows][count - 1];
        int64_t tiles = columns / kernel->rows, rest = columns - kernel->rows;
        kernel->run(s, tiles, x, w + first * s->w_step, y + first);
        if (tiles * kernel->rows < columns) kernel->run(s, 1, x + rest * s->x_step, w + first * s->w_step, y + rest * s->y_step + first);
    }
}

/* 1 x 1 convolution of x [pixels, depth] with w [outputs, depth]. packed: room for the padded w. */
typedef struct NAMED(PointwiseDots) {
    const Engine *engine;
    const REAL *x; REAL *y; const REAL *w; REAL *packed;
    int64_t pixels, depth, outputs;
    const NAMED(Epilogue) *epilogue;
} NAMED(PointwiseDots);
static int NAMED(suits_pointwise_dots)(const NAMED(PointwiseDots) *s)
{ return s->outputs <= POINTWISE_DOT_FILTERS && NAMED(has_faster_dots)(1, s->depth, s->outputs); }

/* A work item is a block of pixels. */
static void NAMED(pointwise_dots_item)(void *context, int64_t item, int64_t worker)
{
    const NAMED(PointwiseDots) *s = context; (void)worker;
    int64_t first = item * POINTWISE_DOT_PIXELS, pixels = min_i64(POINTWISE_DOT_PIXELS, s->pixels - first);
    Segments segment = { 1, s->depth, { 0 }, { 0 } };
    NAMED(DotRow) row = { &segment, s->depth, round_up(s->depth, W), s->outputs };
    REAL *y = s->y + first * s->outputs;
    NAMED(dot_row)(&row, pixels, s->outputs, s->x + first * s->depth, s->packed, y);
    NAMED(epilogue_rows)(s->epilogue, y, pixels, s->outputs);
}
static void NAMED(pointwise_dots)(const NAMED(PointwiseDots) *s)
{
    int64_t padded = round_up(s->depth, W);
    for (int64_t k = 0; k < s->outputs; k++)
        for (int64_t i = 0; i < padded; i++) {
            int64_t element = dot_element(i, s->depth, padded, W);
            s->packed[k * padded + i] = element < 0 ? 0 : s->w[k * s->depth + element];
        }
    s->engine->parallel_for(s->engine, NAMED(pointwise_dots_item), (void *)s, ceil_div(s->pixels, POINTWISE_DOT_PIXELS));
}
#undef DOT_TILE
#undef DOT_STEP
#undef FOR_SUMS
#undef DOT_ENTRY
#undef WHOLE_ELEMENTS
#undef LAST_ELEMENTS
#undef V
#undef W
