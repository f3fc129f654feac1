/* Convolution whose windows are read where they lie: row r of a window is kernel_x * c elements side by side, and that of the next pixel starts
 * stride * c elements later, so a product needs no gathered rows. For one group and no dilation along a row.
 *
 * Tiles are 4 pixels (8 with 64-byte vectors) by up to 3 vectors of filters: maps are multiples of 4 more often than of 6. The last vector of filters
 * starts at filters - WIDTH: some are computed twice, none is padded. Only where windows reach over the left or right edge are an image's rows copied
 * between zeros first; rows above and below the image are left out of the sums. */
#define V NAMED(Channels)
#define W NAMED(WIDTH)
#ifndef DIRECT_PIECES
#define DIRECT_PIECES

/* Where a tile reads: piece i is `length` steps over a from a_at[i] and over b from b_at[i]. */
typedef struct Pieces { int64_t count, length, a_at[MAX_PIECES], b_at[MAX_PIECES]; } Pieces;
/* What a tile begins with: zero, what c holds, or zero with c added at last, which cuts long chains of sums into short ones. */
typedef enum Start { FROM_ZERO, FROM_C, ADDED_LAST } Start;
/* How n things are dealt to parts of at most `most`, as evenly as can be: the first `extra` parts have one more than `base`. */
typedef struct Deal { int64_t parts, base, extra; } Deal;
static inline Deal dealt(int64_t n, int64_t most) { int64_t parts = blocks_of(n, most); return (Deal){ parts, n / parts, n % parts }; }
static inline int64_t part_size(Deal d, int64_t part) { return d.base + (part < d.extra); }
static inline int64_t part_start(Deal d, int64_t part) { return part * d.base + least(part, d.extra); }

static inline int reaches_over(const Geometry *g) { return g->pad_x > 0 || (g->out_columns - 1) * g->stride_x + g->kernel_x > g->columns; }
/* elements of a row that windows of a whole row of outputs see, zeros included */
static inline int64_t wide_row(const Geometry *g) { return ((g->out_columns - 1) * g->stride_x + g->kernel_x) * g->channels; }
#endif

typedef struct NAMED(Tile) {
    const Pieces *pieces;
    int64_t a_row, a_step, b_step, c_row;
    Start start;
    const NAMED(Finish) *finish;         /* NULL for none */
} NAMED(Tile);

/* c[i, j] = (c +) sum over pieces and steps p of a[i * a_row + p * a_step] * b[p * b_step], vector j. The last vector lies b_last and c_last elements on. */
#define WINDOW_TILE(ROWS, VECTORS)                                                                                                          \
APART void NAMED(window_tile_##ROWS##_##VECTORS)(const NAMED(Tile) *s, const REAL *a, const REAL *b, int64_t b_last, REAL *c, int64_t c_last, \
                                                 int64_t channel)                                                                           \
{                                                                                                                                           \
    V sum[ROWS][VECTORS];                                                                                                                   \
    const int64_t a_row = s->a_row, a_step = s->a_step, b_step = s->b_step, c_row = s->c_row, length = s->pieces->length;                   \
    _Pragma("GCC unroll 8") for (int i = 0; i < ROWS; i++)                                                                                  \
        _Pragma("GCC unroll 3") for (int j = 0; j < VECTORS; j++)                                                                           \
            sum[i][j] = s->start == FROM_C ? LOAD(c + i * c_row + (j + 1 < VECTORS ? j * W : c_last)) : (V){0};                             \
    for (int64_t piece = 0; piece < s->pieces->count; piece++) {                                                                            \
        const REAL *x = a + s->pieces->a_at[piece], *y = b + s->pieces->b_at[piece];                                                        \
        for (int64_t p = 0; p < length; p++, x += a_step, y += b_step) {                                                                    \
            V row[VECTORS];                                                                                                                 \
            _Pragma("GCC unroll 3") for (int j = 0; j < VECTORS; j++) row[j] = LOAD(y + (j + 1 < VECTORS ? j * W : b_last));                \
            _Pragma("GCC unroll 8") for (int i = 0; i < ROWS; i++) {                                                                        \
                V element = x[i * a_row] - (V){0};                                                                                          \
                _Pragma("GCC unroll 3") for (int j = 0; j < VECTORS; j++) sum[i][j] += element * row[j];                                    \
            }                                                                                                                               \
        }                                                                                                                                   \
    }                                                                                                                                       \
    if (s->start == ADDED_LAST)                                                                                                             \
        _Pragma("GCC unroll 8") for (int i = 0; i < ROWS; i++)                                                                              \
            _Pragma("GCC unroll 3") for (int j = 0; j < VECTORS; j++) sum[i][j] += LOAD(c + i * c_row + (j + 1 < VECTORS ? j * W : c_last)); \
    if (s->finish)                                                                                                                          \
        _Pragma("GCC unroll 8") for (int i = 0; i < ROWS; i++)                                                                              \
            _Pragma("GCC unroll 3") for (int j = 0; j < VECTORS; j++)                                                                       \
                sum[i][j] = NAMED(finished)(s->finish, sum[i][j], channel + (j + 1 < VECTORS ? j * W : c_last));                            \
    _Pragma("GCC unroll 8") for (int i = 0; i < ROWS; i++)                                                                                  \
        _Pragma("GCC unroll 3") for (int j = 0; j < VECTORS; j++) STORE(c + i * c_row + (j + 1 < VECTORS ? j * W : c_last), sum[i][j]);     \
}
#define WINDOW_TILES(ROWS) WINDOW_TILE(ROWS, 1) WINDOW_TILE(ROWS, 2) WINDOW_TILE(ROWS, 3)
#define TILES_NAMED(ROWS) { NAMED(window_tile_##ROWS##_1), NAMED(window_tile_##ROWS##_2), NAMED(window_tile_##ROWS##_3) }
typedef void (*NAMED(TileKernel))(const NAMED(Tile) *, const REAL *, const REAL *, int64_t, REAL *, int64_t, int64_t);
WINDOW_TILES(1) WINDOW_TILES(2) WINDOW_TILES(3) WINDOW_TILES(4)
#if VECTOR_BYTES == 64
WINDOW_TILES(5) WINDOW_TILES(6) WINDOW_TILES(7) WINDOW_TILES(8)
#endif
static const NAMED(TileKernel) NAMED(window_tiles)[WINDOW_ROWS][WINDOW_VECTORS] = {
    TILES_NAMED(1), TILES_NAMED(2), TILES_NAMED(3), TILES_NAMED(4),
#if VECTOR_BYTES == 64
    TILES_NAMED(5), TILES_NAMED(6), TILES_NAMED(7), TILES_NAMED(8),
#endif
};
#undef WINDOW_TILE
#undef WINDOW_TILES
#undef TILES_NAMED

typedef struct NAMED(Windows) {
    const Engine *engine;
    const Geometry *g;
    const REAL *x, *w, *dy;
    REAL *y, *dw, *packed, *sums;
    int64_t length, depth, vectors;      /* of a row of a window and of all of it, in elements; vectors of filters */
    Deal panels;                         /* of the vectors */
    int64_t rows, blocks;                /* rows of outputs of an item, and how many items an image has */
    int64_t slices;
    NAMED(Finish) finish;
} NAMED(Windows);

static NAMED(Windows) NAMED(windows_of)(const KernelArgs *args)
{
    const Geometry *g = (const Geometry *)args->ints;
    NAMED(Windows) s = { .engine = args->engine, .g = g, .length = g->kernel_x * g->channels, .vectors = blocks_of(g->filters, W) };
    s.depth = g->kernel_y * s.length;
    s.panels = dealt(s.vectors, WINDOW_VECTORS);
    return s;
}

INLINED int64_t NAMED(column_of)(const NAMED(Windows) *s, int64_t vector) { return least(vector * W, s->g->filters - W); }
/* the last vector of a panel, from the first */
INLINED int64_t NAMED(last_of)(const NAMED(Windows) *s, int64_t first, int64_t count) { return NAMED(column_of)(s, first + count - 1) - first * W; }

/* row y of an image between zeros */
static void NAMED(copy_wide_row)(const NAMED(Windows) *s, int64_t image, int64_t y, REAL *to)
{
    const Geometry *g = s->g;
    int64_t before = g->pad_x * g->channels, inside = least(g->columns * g->channels, wide_row(g) - before);
    memset(to, 0, (size_t)before * sizeof(REAL));
    memcpy(to + before, s->x + (image * g->rows + y) * g->columns * g->channels, (size_t)inside * sizeof(REAL));
    memset(to + before + inside, 0, (size_t)(wide_row(g) - before - inside) * sizeof(REAL));
}

/* ---- forward */

/* packed[panel][column of a window][vectors of the panel]; an item is a panel */
static void NAMED(pack_windows_item)(void *context, int64_t panel, int64_t worker)
{
    const NAMED(Windows) *s = context; (void)worker;
    const Geometry *g = s->g;
    int64_t taps = g->kernel_y * g->kernel_x, first = part_start(s->panels, panel), count = part_size(s->panels, panel);
    REAL *packed = s->packed + first * W * s->depth;
    for (int64_t c = 0; c < g->channels; c++)                    /* in the order in which w lies: its rows are far apart */
        for (int64_t tap = 0; tap < taps; tap++)
            for (int64_t j = 0; j < count; j++) {
                const REAL *from = s->w + NAMED(column_of)(s, first + j) * s->depth + c * taps + tap;
                REAL *to = packed + ((tap * g->channels + c) * count + j) * W;
                for (int64_t k = 0; k < W; k++) to[k] = from[k * s->depth];
            }
}

/* an item is a block of rows of outputs */
static void NAMED(windows_item)(void *context, int64_t item, int64_t worker)
{
    const NAMED(Windows) *s = context;
    const Geometry *g = s->g;
    int64_t image = item / s->blocks, begin = item % s->blocks * s->rows, end = least(begin + s->rows, g->out_rows), wide = reaches_over(g);
    int64_t top = begin * g->stride_y - g->pad_y, bottom = (end - 1) * g->stride_y - g->pad_y + (g->kernel_y - 1) * g->step_y;
    int64_t room, row_step = wide ? wide_row(g) : g->columns * g->channels;
    REAL *copied = NAMED(workspace)(s->engine, worker, &room);
    const REAL *x = wide ? copied : s->x + (image * g->rows + top) * row_step;
    if (wide)
        for (int64_t y = most(top, 0); y <= least(bottom, g->rows - 1); y++) NAMED(copy_wide_row)(s, image, y, copied + (y - top) * row_step);
    Deal tiles = dealt(g->out_columns, WINDOW_ROWS);
    for (int64_t panel = 0; panel < s->panels.parts; panel++) {
        int64_t first = part_start(s->panels, panel), count = part_size(s->panels, panel), last = NAMED(last_of)(s, first, count);
        int64_t at_once = most(1, least(MAX_PIECES, PANEL_BYTES / (int64_t)sizeof(REAL) / (s->length * count * W)));
        const REAL *packed = s->packed + first * W * s->depth;
        for (int64_t low = 0; low < g->kernel_y; low += at_once)
            for (int64_t oy = begin; oy < end; oy++) {
                Pieces pieces = { .length = s->length };
                int64_t over = oy * g->stride_y - g->pad_y, high = least(low + at_once, g->kernel_y);
                for (int64_t r = low; r < high; r++) {
                    int64_t y = over + r * g->step_y;
                    if (y < 0 || y >= g->rows) continue;
                    pieces.a_at[pieces.count] = (y - top) * row_step;
                    pieces.b_at[pieces.count++] = r * s->length * count * W;
                }
                NAMED(Tile) tile = { &pieces, g->stride_x * g->channels, 1, count * W, g->filters, low > 0 ? FROM_C : FROM_ZERO,
                                     high == g->kernel_y ? &s->finish : 0 };
                REAL *y = s->y + (image * g->out_rows + oy) * g->out_columns * g->filters + first * W;
                for (int64_t t = 0, at = 0, rows; t < tiles.parts; t++, at += rows) {
                    rows = part_size(tiles, t);
                    NAMED(window_tiles)[rows - 1][count - 1](&tile, x + at * tile.a_row, packed, (count - 1) * W, y + at * g->filters, last, first * W);
                }
            }
    }
}

/* scratch: the packed filters */
static void NAMED(windows_forward)(NAMED(Windows) *s, REAL *scratch)
{
    const Geometry *g = s->g;
    int64_t copied = COPIED_BYTES / (int64_t)sizeof(REAL) / wide_row(g), kernel = (g->kernel_y - 1) * g->step_y + 1;
    s->packed = scratch;
    s->rows = most(1, least(g->out_rows, (copied - kernel) / g->stride_y + 1));
    s->blocks = blocks_of(g->out_rows, s->rows);
    s->rows = blocks_of(g->out_rows, s->blocks);
    s->engine->parallel_for(s->engine, NAMED(pack_windows_item), s, s->panels.parts);
    s->engine->parallel_for(s->engine, NAMED(windows_item), s, g->images * s->blocks);
}

/* ---- gradient of the weights */

/* kernel row r over rows of outputs first … end, which reads copied rows from `copied` where windows reach over */
static void NAMED(window_row_sums)(const NAMED(Windows) *s, int64_t r, int64_t first, int64_t end, Start start, REAL *copied, REAL *sums)
{
    const Geometry *g = s->g;
    int64_t wide = reaches_over(g), row_step = g->columns * g->channels, line_step = g->out_columns * g->filters, padded = s->vectors * W;
    Pieces pieces = { .length = g->out_columns };
    for (int64_t line = first; line < end; line++) {
        int64_t image = line / g->out_rows, y = line % g->out_rows * g->stride_y - g->pad_y + r * g->step_y;
        if (y < 0 || y >= g->rows) continue;
        if (wide) NAMED(copy_wide_row)(s, image, y, copied + pieces.count * wide_row(g));
        pieces.a_at[pieces.count] = wide ? pieces.count * wide_row(g) : (image * g->rows + y) * row_step;
        pieces.b_at[pieces.count++] = line * line_step;
    }
    NAMED(Tile) tile = { &pieces, 1, g->stride_x * g->channels, g->filters, padded, start, 0 };
    Deal tiles = dealt(s->length, WINDOW_ROWS);
    for (int64_t panel = 0; panel < s->panels.parts; panel++) {
        int64_t vector = part_start(s->panels, panel), count = part_size(s->panels, panel), last = NAMED(last_of)(s, vector, count);
        for (int64_t t = 0, at = 0, rows; t < tiles.parts; t++, at += rows) {
            rows = part_size(tiles, t);
            NAMED(window_tiles)[rows - 1][count - 1](&tile, (wide ? copied : s->x) + at, s->dy + vector * W, last, sums + at * padded + vector * W,
                                                     (count - 1) * W, 0);
        }
    }
}

/* sums[slice][column of a window][vector]; an item is a slice of the rows of outputs, a few of which stay in the first cache for all rows of the kernel */
static void NAMED(window_sums_item)(void *context, int64_t slice, int64_t worker)
{
    const NAMED(Windows) *s = context;
    const Geometry *g = s->g;
    int64_t room, lines = g->images * g->out_rows, begin = slice * lines / s->slices, end = (slice + 1) * lines / s->slices;
    int64_t block = most(1, least(MAX_PIECES, SUMMED_PIXELS / g->out_columns)), padded = s->vectors * W;
    REAL *copied = NAMED(workspace)(s->engine, worker, &room), *sums = s->sums + slice * s->depth * padded;
    for (int64_t first = begin; first < end; first += block)
        for (int64_t r = 0; r < g->kernel_y; r++)
            NAMED(window_row_sums)(s, r, first, least(first + block, end), first > begin ? ADDED_LAST : FROM_ZERO, copied, sums + r * s->length * padded);
}

/* dw of one vector of filters: the slices added in order, turned into ONNX's order */
static void NAMED(window_weights_item)(void *context, int64_t vector, int64_t worker)
{
    const NAMED(Windows) *s = context; (void)worker;
    int64_t channels = s->g->channels, taps = s->depth / channels, padded = s->vectors * W, first = NAMED(column_of)(s, vector), again = vector * W - first;
    for (int64_t tap = 0; tap < taps; tap++)
        for (int64_t c = 0; c < channels; c++) {
            const REAL *from = s->sums + (tap * channels + c) * padded + vector * W;
            REAL *to = s->dw + first * s->depth + c * taps + tap;
            V total = LOAD(from);
            for (int64_t slice = 1; slice < s->slices; slice++) total += LOAD(from + slice * s->depth * padded);
            for (int64_t k = again; k < W; k++) to[k * s->depth] = total[k];
        }
}

/* scratch: the sums */
static void NAMED(windows_weights)(NAMED(Windows) *s, REAL *scratch)
{
    s->sums = scratch;
    s->engine->parallel_for(s->engine, NAMED(window_sums_item), s, s->slices);
    s->engine->parallel_for(s->engine, NAMED(window_weights_item), s, s->vectors);
}
#undef V
#undef W
