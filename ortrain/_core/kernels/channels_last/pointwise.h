/* 1 x 1 convolution of stride 1 as a GEMM of its own: y [pixels, outputs] = x [pixels, depth] b, for many pixels, where x and y exceed the L2 cache.
 *
 * It differs from engine->gemm_float32 in prefetching. The rows of x are contiguous, so each step of a tile prefetches a part of the next block of rows (12544
 * pixels, 256 to 64 channels: 3.9 to 2.5 ms), and the lines of y are prefetched before the sums of a tile are complete (64 to 256 channels: 3.1 to 2.7 ms).
 * Non-temporal stores of y were faster still by themselves, but the normalization after them, and then the next convolution, lost more than they gained.
 * Measured with 64-byte vectors; other instruction sets use the engine's GEMM. */
#define V NAMED(Vector)
#define W NAMED(WIDTH)

typedef struct NAMED(Pointwise) {
    const Engine *engine;
    int64_t pixels, outputs, depth, rows;             /* rows: pixels of a work item */
    const REAL *x, *w;
    REAL *y, *packed;                                 /* [depth block, panel, depth, PANEL] */
    int accumulate;                                   /* add to y instead of overwriting it */
    int transposed;                                   /* w is [outputs, depth], else [depth, outputs] */
    NAMED(Epilogue) epilogue;
} NAMED(Pointwise);

ALWAYS_INLINE int64_t NAMED(has_wide_rows)(int64_t outputs, int64_t depth)
{ return outputs * (int64_t)sizeof(REAL) >= WIDE_ROW_BYTES && depth <= WIDE_ROW_DEPTH; }

static int NAMED(suits_pointwise)(const Engine *e, int64_t pixels, int64_t outputs, int64_t depth, int transposed)
{
    int whole = outputs % NAMED(PANEL) == 0 && depth % W == 0;
    return VECTOR_BYTES == 64 && sizeof(REAL) == 4 && pixels >= POINTWISE_PIXELS && whole && (transposed || !NAMED(has_wide_rows)(outputs, depth))
        && !e->bfloat16 && !runs_on_tiles(e, pixels, outputs, depth);
}

/* Pack one panel of w for all blocks of the depth. */
static void NAMED(pack_pointwise_item)(void *context, int64_t item, int64_t worker)
{
    const NAMED(Pointwise) *s = context; (void)worker;
    int64_t first = item * NAMED(PANEL);
    for (int64_t k0 = 0; k0 < s->depth; k0 += POINTWISE_DEPTH) {
        int64_t depth = min_i64(POINTWISE_DEPTH, s->depth - k0);
        REAL *to = s->packed + k0 * s->outputs + first * depth;
        for (int64_t p = 0; p < depth; p += W)
            for (int64_t j = 0; j < NAMED(PANEL); j += W) {
                V r[W];
                for (int i = 0; i < W; i++)
                    r[i] = LOAD(s->transposed ? s->w + (first + j + i) * s->depth + k0 + p : s->w + (k0 + p + i) * s->outputs + first + j);
                if (s->transposed) NAMED(transpose)(r);
                for (int i = 0; i < W; i++) STORE(to + (p + i) * NAMED(PANEL) + j, r[i]);
            }
    }
}

/* A full tile of gemm_nn: c [FULL_ROWS, PANEL] = a b (+ c). Each of its `depth` steps prefetches one line, `ahead` elements after the one before. */
NOINLINE void NAMED(pointwise_tile)(int64_t depth, const REAL *restrict a, int64_t a_step, const REAL *restrict b, REAL *restrict c, int64_t ldc,
                                    int accumulate, const REAL *next, int64_t ahead)
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

/* y of one block of pixels, while the next block of x is prefetched. */
static void NAMED(pointwise_item)(void *context, int64_t item, int64_t worker)
{
    const NAMED(Pointwise) *s = context; (void)worker;
    int64_t first = item * s->rows, rows = min_i64(s->rows, s->pixels - first), tiled = rows / FULL_ROWS * FULL_ROWS, n = s->outputs;
    int64_t steps = tiled / FULL_ROWS * (n / NAMED(PANEL)) * s->depth, remaining = (s->pixels - first - rows) * s->depth;
    int64_t ahead = tiled ? min_i64(rows * s->depth, remaining) / steps : 0, wide = NAMED(has_wide_rows)(n, s->depth);
    const REAL *x = s->x + first * s->depth, *next = x + (remaining ? rows * s->depth : 0);
    REAL *y = s->y + first * n;
    for (int64_t k0 = 0; k0 < s->depth; k0 += POINTWISE_DEPTH) {
        int64_t depth = min_i64(POINTWISE_DEPTH, s->depth - k0), tiles = tiled / FULL_ROWS, panels = n / NAMED(PANEL);
        const REAL *packed = s->packed + k0 * n;
        for (int64_t at = 0; at < tiles * panels; at++, next += ahead * depth) {
            int64_t i = (wide ? at / panels : at % tiles) * FULL_ROWS, j = (wide ? at % panels : at / tiles) * NAMED(PANEL);
            NAMED(pointwise_tile)(depth, x + i * s->depth + k0, s->depth, packed + j * depth, y + i * n + j, n, s->accumulate || k0 > 0, next, ahead);
        }
        NAMED(gemm_nn)(rows - tiled, n, depth, x + tiled * s->depth + k0, s->depth, packed, NAMED(PANEL), depth * NAMED(PANEL), y + tiled * n, n,
                       s->accumulate || k0 > 0);
    }
    NAMED(epilogue_rows)(&s->epilogue, y, rows, n);
}

/* s->y (+)= s->x w with the epilogue. scratch: the packed weights. */
static void NAMED(pointwise_gemm)(NAMED(Pointwise) *s, REAL *scratch)
{
    s->packed = scratch;
    s->rows = max_i64(2, min_i64(POINTWISE_ROWS, POINTWISE_BYTES / (int64_t)sizeof(REAL) / s->depth) / FULL_ROWS) * FULL_ROWS;
    s->engine->parallel_for(s->engine, NAMED(pack_pointwise_item), s, s->outputs / NAMED(PANEL));
    s->engine->parallel_for(s->engine, NAMED(pointwise_item), s, ceil_div(s->pixels, s->rows));
}
#undef V
#undef W
