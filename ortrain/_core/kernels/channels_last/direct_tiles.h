/* Register tiles of direct convolution and one-dimensional Winograd: rows of one operand, read in segments, times vectors of the other. */
#define V NAMED(Vector)
#define W NAMED(WIDTH)
#ifndef ORTRAIN_CHANNELS_LAST_DIRECT_TILES_H
#define ORTRAIN_CHANNELS_LAST_DIRECT_TILES_H
/* The depth of a tile in segments: segment i is `length` steps over a, from a_offset[i] on, and over b, from b_offset[i] on. */
typedef struct Segments { int64_t count, length, a_offset[MAX_SEGMENTS], b_offset[MAX_SEGMENTS]; } Segments;
/* Whether a tile overwrites c, starts its sums from c, or adds its sums to c at the end; the latter forms shorter chains of additions. */
typedef enum Accumulation { OVERWRITE_C, START_FROM_C, ADD_C_LAST } Accumulation;
/* A partition of n elements into `parts` parts of nearly equal size: the first `extra` parts have base + 1 elements, the others `base`. */
typedef struct Partition { int64_t parts, base, extra; } Partition;
static inline Partition partition(int64_t n, int64_t limit) { int64_t parts = ceil_div(n, limit); return (Partition){ parts, n / parts, n % parts }; }
static inline int64_t part_size(Partition d, int64_t part) { return d.base + (part < d.extra); }
static inline int64_t part_start(Partition d, int64_t part) { return part * d.base + min_i64(part, d.extra); }
#endif

typedef struct NAMED(DirectTile) {
    const Segments *segments;
    int64_t a_row, a_step, b_step, c_row;    /* a_row or a_step is 1 */
    Accumulation accumulation;
    const NAMED(Epilogue) *epilogue;         /* or NULL */
} NAMED(DirectTile);

#define FOR_SUMS(ROWS, VECTORS) \
    _Pragma("GCC unroll 8") for (int i = 0; i < ROWS; i++) _Pragma("GCC unroll 3") for (int j = 0; j < VECTORS; j++)
/* Vector j of a row: the last one does not follow the one before it. */
#define AT_VECTOR(VECTORS, j, last) ((j) + 1 < VECTORS ? (j) * W : (last))

/* `tiles` tiles c[i, j] = (c +) sum over segments and steps p of a[i * ROW_STEP + p * DEPTH_STEP] * b[p * b_step + j], j in vectors, one below the other; a and
 * b are x and y at the segment. The last vector of b and of c is b_last and c_last elements after the first one. channel: the first filter of the tiles, for
 * the epilogue.
 *
 * One of the steps is a constant, lest each element of a have an address of its own: 91 instead of 85 instructions for four steps of 4 x 3. */
#define DIRECT_TILE(FLAVOUR, ROWS, VECTORS, ROW_STEP, DEPTH_STEP)                                                                                        \
NOINLINE void NAMED(FLAVOUR##_tile_##ROWS##_##VECTORS)(const NAMED(DirectTile) *s, int64_t tiles, const REAL *x, const REAL *y, int64_t b_last, REAL *c, \
                                               int64_t c_last, int64_t channel)                                                                          \
{                                                                                                                                                        \
    const int64_t a_row = s->a_row, a_step = s->a_step, b_step = s->b_step, c_row = s->c_row, length = s->segments->length;                              \
    (void)a_row; (void)a_step;                                                                                                                           \
    for (; tiles > 0; tiles--, x += ROWS * (ROW_STEP), c += ROWS * c_row) {                                                                              \
        V sum[ROWS][VECTORS];                                                                                                                            \
        FOR_SUMS(ROWS, VECTORS) sum[i][j] = s->accumulation == START_FROM_C ? LOAD(c + i * c_row + AT_VECTOR(VECTORS, j, c_last)) : (V){0};              \
        for (int64_t segment = 0; segment < s->segments->count; segment++) {                                                                             \
            const REAL *a = x + s->segments->a_offset[segment], *b = y + s->segments->b_offset[segment];                                                 \
            int64_t p = 0;                                                                                                                               \
            for (; p + UNROLLED_STEPS <= length; p += UNROLLED_STEPS)                                                                                    \
                _Pragma("GCC unroll 4") for (int q = 0; q < UNROLLED_STEPS; q++) GEMM_STEP(ROWS, VECTORS, ROW_STEP, DEPTH_STEP, b_last)                  \
            for (; UNROLLED_STEPS > 1 && p < length; p++) GEMM_STEP(ROWS, VECTORS, ROW_STEP, DEPTH_STEP, b_last)                                         \
        }                                                                                                                                                \
        if (s->accumulation == ADD_C_LAST) FOR_SUMS(ROWS, VECTORS) sum[i][j] += LOAD(c + i * c_row + AT_VECTOR(VECTORS, j, c_last));                     \
        if (s->epilogue)                                                                                                                                 \
            FOR_SUMS(ROWS, VECTORS) sum[i][j] = NAMED(apply_epilogue)(s->epilogue, sum[i][j], channel + AT_VECTOR(VECTORS, j, c_last));                  \
        FOR_SUMS(ROWS, VECTORS) STORE(c + i * c_row + AT_VECTOR(VECTORS, j, c_last), sum[i][j]);                                                         \
    }                                                                                                                                                    \
}
typedef void (*NAMED(DirectTileKernel))(const NAMED(DirectTile) *, int64_t, const REAL *, const REAL *, int64_t, REAL *, int64_t, int64_t);
/* TILE(FLAVOUR, ROWS, VECTORS) for all tiles whose sums fit the registers. */
#define NARROW_TILES(TILE, FLAVOUR, ROWS) TILE(FLAVOUR, ROWS, 1) TILE(FLAVOUR, ROWS, 2)
#define WIDE_TILES(TILE, FLAVOUR, ROWS) NARROW_TILES(TILE, FLAVOUR, ROWS) TILE(FLAVOUR, ROWS, 3)
#if VECTOR_REGISTERS == 32
#define DIRECT_TILES(TILE, FLAVOUR)                                                                                     \
    WIDE_TILES(TILE, FLAVOUR, 1) WIDE_TILES(TILE, FLAVOUR, 2) WIDE_TILES(TILE, FLAVOUR, 3) WIDE_TILES(TILE, FLAVOUR, 4) \
    WIDE_TILES(TILE, FLAVOUR, 5) WIDE_TILES(TILE, FLAVOUR, 6) WIDE_TILES(TILE, FLAVOUR, 7) WIDE_TILES(TILE, FLAVOUR, 8)
#else
#define DIRECT_TILES(TILE, FLAVOUR)                                                                                     \
    WIDE_TILES(TILE, FLAVOUR, 1) WIDE_TILES(TILE, FLAVOUR, 2) WIDE_TILES(TILE, FLAVOUR, 3) WIDE_TILES(TILE, FLAVOUR, 4) \
    NARROW_TILES(TILE, FLAVOUR, 5) NARROW_TILES(TILE, FLAVOUR, 6)
#endif
#define WINDOWS_TILE(FLAVOUR, ROWS, VECTORS) DIRECT_TILE(FLAVOUR, ROWS, VECTORS, a_row, 1)
#define TRANSPOSED_TILE(FLAVOUR, ROWS, VECTORS) DIRECT_TILE(FLAVOUR, ROWS, VECTORS, 1, a_step)
#define TABLE_ENTRY(FLAVOUR, ROWS, VECTORS) [ROWS - 1][VECTORS - 1] = NAMED(FLAVOUR##_tile_##ROWS##_##VECTORS),
DIRECT_TILES(WINDOWS_TILE, windows)
DIRECT_TILES(TRANSPOSED_TILE, transposed)
static const NAMED(DirectTileKernel) NAMED(windows_tiles)[][DIRECT_TILE_VECTORS] = { DIRECT_TILES(TABLE_ENTRY, windows) };
static const NAMED(DirectTileKernel) NAMED(transposed_tiles)[][DIRECT_TILE_VECTORS] = { DIRECT_TILES(TABLE_ENTRY, transposed) };

/* All n rows of c, of `vectors` vectors: first the tiles that have a row more, then the others. */
static void NAMED(direct_tiles)(const NAMED(DirectTile) *s, int64_t n, int64_t vectors, const REAL *a, const REAL *b, int64_t b_last, REAL *c, int64_t c_last,
                                int64_t channel)
{
    const NAMED(DirectTileKernel) (*kernels)[DIRECT_TILE_VECTORS] = s->a_step == 1 ? NAMED(windows_tiles) : NAMED(transposed_tiles);
    const Partition tiles = partition(n, vectors < DIRECT_TILE_VECTORS ? DIRECT_NARROW_ROWS : DIRECT_TILE_ROWS);
    const int64_t larger = tiles.extra * (tiles.base + 1);
    if (larger) kernels[tiles.base][vectors - 1](s, tiles.extra, a, b, b_last, c, c_last, channel);
    kernels[tiles.base - 1][vectors - 1](s, tiles.parts - tiles.extra, a + larger * s->a_row, b, b_last, c + larger * s->c_row, c_last, channel);
}
#undef FOR_SUMS
#undef AT_VECTOR
#undef DIRECT_TILE
#undef DIRECT_TILES
#undef NARROW_TILES
#undef WIDE_TILES
#undef WINDOWS_TILE
#undef TRANSPOSED_TILE
#undef TABLE_ENTRY
#undef V
#undef W
