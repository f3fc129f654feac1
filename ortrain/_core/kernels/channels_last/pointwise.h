/* 1 x 1 convolution of stride 1 as a product of its own: y [pixels, outputs] = x [pixels, depth] b, where pixels are many and x and y pass the second cache.
 *
 * What engine->gemm_float32 lacks is known here: rows of x lie side by side, so that the next block of them is fetched while one is at work, a slice with
 * each step of a tile (12544 pixels, 256 to 64 channels: 3.9 to 2.5 ms), and lines of y are fetched before a tile's sums are ready (64 to 256 channels: 3.1
 * to 2.7 ms). Storing y past the caches was faster still by itself, but what normalization stored that way slowed the convolutions after it by more than it
 * gained. Measured with 64-byte vectors; others take the gemm. */
#define V NAMED(Channels)
#define W NAMED(WIDTH)

typedef struct NAMED(Points) {
    const Engine *engine;
    int64_t pixels, outputs, depth, rows;             /* rows: pixels of an item */
    const REAL *x, *w;
    REAL *y, *packed;                                 /* packed[depth block][panel][depth][PANEL] */
    int adds;                                         /* to what is in y */
    int turned;                                       /* w is [outputs, depth], else [depth, outputs] */
    NAMED(Finish) finish;
} NAMED(Points);

INLINED int64_t NAMED(wide_rows)(int64_t outputs, int64_t depth) { return outputs * (int64_t)sizeof(REAL) >= WIDE_ROW && depth <= WIDE_DEPTH; }

static int NAMED(suits_points)(const Engine *e, int64_t pixels, int64_t outputs, int64_t depth, int turned)
{
    int whole = outputs % NAMED(PANEL) == 0 && depth % W == 0;
    return VECTOR_BYTES == 64 && sizeof(REAL) == 4 && pixels >= POINT_PIXELS && whole && (turned || !NAMED(wide_rows)(outputs, depth))
        && !suits_amx(e, pixels, outputs, depth);
}

/* an item is a panel */
static void NAMED(pack_points_item)(void *context, int64_t item, int64_t worker)
{
    const NAMED(Points) *s = context; (void)worker;
    int64_t first = item * NAMED(PANEL);
    for (int64_t deep = 0; deep < s->depth; deep += POINT_DEPTH) {
        int64_t depth = least(POINT_DEPTH, s->depth - deep);
        REAL *to = s->packed + deep * s->outputs + first * depth;
        for (int64_t p = 0; p < depth; p += W)
            for (int64_t j = 0; j < NAMED(PANEL); j += W) {
                V r[W];
                for (int i = 0; i < W; i++) r[i] = LOAD(s->turned ? s->w + (first + j + i) * s->depth + deep + p : s->w + (deep + p + i) * s->outputs + first + j);
                if (s->turned) NAMED(transpose)(r);
                for (int i = 0; i < W; i++) STORE(to + (p + i) * NAMED(PANEL) + j, r[i]);
            }
    }
}

/* as a tile of NAMED(product), and each step fetches a line `ahead` elements after the one before */
APART void NAMED(point_tile)(int64_t depth, const REAL *restrict a, int64_t a_step, const REAL *restrict b, REAL *restrict c, int64_t ldc, int accumulate,
                             const REAL *next, int64_t ahead)
{
    V sum[FULL_ROWS][2];
    _Pragma("GCC unroll 16") for (int i = 0; i < FULL_ROWS; i++)
        _Pragma("GCC unroll 2") for (int j = 0; j < 2; j++) sum[i][j] = accumulate ? LOAD(c + i * ldc + j * W) : (V){0};
    if (!accumulate)
        _Pragma("GCC unroll 16") for (int i = 0; i < FULL_ROWS; i++)
            _Pragma("GCC unroll 2") for (int j = 0; j < 2; j++) __builtin_prefetch(c + i * ldc + j * W, 1, 3);
    for (int64_t p = 0; p < depth; p++) {
        V low = LOAD(b), high = LOAD(b + W);
        __builtin_prefetch(next, 0, 2);
        _Pragma("GCC unroll 16") for (int i = 0; i < FULL_ROWS; i++) {
            V element = a[i * a_step] - (V){0};
            sum[i][0] += element * low; sum[i][1] += element * high;
        }
        a++; b += 2 * W; next += ahead;
    }
    _Pragma("GCC unroll 16") for (int i = 0; i < FULL_ROWS; i++)
        _Pragma("GCC unroll 2") for (int j = 0; j < 2; j++) STORE(c + i * ldc + j * W, sum[i][j]);
}

/* an item is a block of pixels */
static void NAMED(points_item)(void *context, int64_t item, int64_t worker)
{
    const NAMED(Points) *s = context; (void)worker;
    int64_t first = item * s->rows, rows = least(s->rows, s->pixels - first), tiled = rows / FULL_ROWS * FULL_ROWS, n = s->outputs;
    int64_t steps = tiled / FULL_ROWS * (n / NAMED(PANEL)) * s->depth, left = (s->pixels - first - rows) * s->depth;
    int64_t ahead = tiled ? least(rows * s->depth, left) / steps : 0, wide = NAMED(wide_rows)(n, s->depth);
    const REAL *x = s->x + first * s->depth, *next = x + (left ? rows * s->depth : 0);
    REAL *y = s->y + first * n;
    for (int64_t deep = 0; deep < s->depth; deep += POINT_DEPTH) {
        int64_t depth = least(POINT_DEPTH, s->depth - deep), tiles = tiled / FULL_ROWS, panels = n / NAMED(PANEL);
        const REAL *packed = s->packed + deep * n;
        for (int64_t at = 0; at < tiles * panels; at++, next += ahead * depth) {
            int64_t i = (wide ? at / panels : at % tiles) * FULL_ROWS, j = (wide ? at % panels : at / tiles) * NAMED(PANEL);
            NAMED(point_tile)(depth, x + i * s->depth + deep, s->depth, packed + j * depth, y + i * n + j, n, s->adds || deep > 0, next, ahead);
        }
        NAMED(product)(rows - tiled, n, depth, x + tiled * s->depth + deep, s->depth, packed, NAMED(PANEL), depth * NAMED(PANEL), y + tiled * n, n, s->adds || deep > 0);
    }
    NAMED(finish_rows)(&s->finish, y, rows, n);
}

/* scratch: b in panels */
static void NAMED(points)(NAMED(Points) *s, REAL *scratch)
{
    s->packed = scratch;
    s->rows = most(2, least(POINT_ROWS, POINT_BYTES / (int64_t)sizeof(REAL) / s->depth) / FULL_ROWS) * FULL_ROWS;
    s->engine->parallel_for(s->engine, NAMED(pack_points_item), s, s->outputs / NAMED(PANEL));
    s->engine->parallel_for(s->engine, NAMED(points_item), s, blocks_of(s->pixels, s->rows));
}
#undef V
#undef W
