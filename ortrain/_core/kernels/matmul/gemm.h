/* The packed float32 product, row-major: C [m, n] = op(A) op(B) (+ C), then a bias row and ReLU while a tile is in registers.
 *
 * 250 of 272 GFLOP/s with 64-byte vectors on 1024^3, one core. What moved the numbers, in order: few rows of A and many of B swap roles and the finished
 * tile is stored transposed; a B that fits is read in place; so is a row-major A; transposed packing by shuffles; dot products for few columns; packing
 * behind the tiles (gemm_parallel.h). */
#ifndef ORTRAIN_PRODUCTS_H
#define ORTRAIN_PRODUCTS_H
#include <string.h>
#include "matmul/gemm_packing.h"
#include "matmul/gemm_micro_kernels.h"
#include "matmul/gemv.h"

/* floats of packing space that a worker needs at most: a block of A (1.5 BLOCK_ROWS) and one of B, both 1.25 BLOCK_DEPTH deep */
#define PACKED_FLOATS ((size_t)(BLOCK_DEPTH + BLOCK_DEPTH / 4) * (BLOCK_ROWS + BLOCK_ROWS / 2 + TILE_ROWS + BLOCK_COLUMNS + TILE_COLUMNS) + 128)

/* One product and how it is blocked. When `swapped`, A and B (and m and n) have changed places and tiles are stored transposed. */
typedef struct Product {
    int transposed_a, transposed_b, accumulate, relu, swapped, a_in_place, b_in_place, stream;
    int64_t m, n, k, lda, ldb, ldc;
    const float *a, *b, *bias;
    float *c;
    int64_t depth, rows, columns;                   /* of a block */
    float *packed_a, *packed_b;
} Product;

/* bias [columns] and ReLU on a finished tile that could not have them in registers */
static void finish_tile(const float *bias, int relu, float *c, int64_t ldc, int64_t rows, int64_t columns)
{
    for (int64_t i = 0; i < rows; i++, c += ldc) {
        if (bias) for (int64_t j = 0; j < columns; j++) c[j] += bias[j];
        if (relu) for (int64_t j = 0; j < columns; j++) c[j] = c[j] < 0 ? 0 : c[j];
    }
}

/* ---- few columns of a transposed B: lanes run along k, nothing is packed, as many sums as lanes are reduced together by interleave and add */
#if VECTOR_BYTES >= 32
#if VECTOR_BYTES == 64
#define DOT_LOW INTERLEAVE_LOW
#define DOT_HIGH INTERLEAVE_HIGH
#else
#define DOT_LOW (int_vector){0,8,1,9,2,10,3,11}
#define DOT_HIGH (int_vector){4,12,5,13,6,14,7,15}
#endif
#define DOT(ROWS, COLUMNS)                                                                                                              \
static __attribute__((noinline)) void dot_##ROWS##_##COLUMNS(int64_t k, const float *restrict a, int64_t lda, const float *restrict b,  \
                                                             int64_t ldb, float *restrict out)                                          \
{                                                                                                                                       \
    vector sum[LANES];                                                                                                                    \
    int64_t p = 0;                                                                                                                      \
    _Pragma("GCC unroll 16") for (int i = 0; i < LANES; i++) sum[i] = (vector){0};                                                         \
    for (; p + LANES <= k; p += LANES) {                                                                                                \
        vector y[COLUMNS];                                                                                                              \
        _Pragma("GCC unroll 16") for (int j = 0; j < COLUMNS; j++) y[j] = *(const loose_vector *)(b + j * ldb + p);                     \
        _Pragma("GCC unroll 16") for (int i = 0; i < ROWS; i++) {                                                                       \
            vector x = *(const loose_vector *)(a + i * lda + p);                                                                        \
            _Pragma("GCC unroll 16") for (int j = 0; j < COLUMNS; j++) sum[i * COLUMNS + j] += x * y[j];                                \
        }                                                                                                                               \
    }                                                                                                                                   \
    if (p < k) {                /* the last vector overlaps; lanes already counted are masked */                                        \
        static const int32_t lanes[32] = {0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,-1,-1,-1,-1,-1,-1,-1,-1,-1,-1,-1,-1,-1,-1,-1,-1};               \
        int_vector mask; memcpy(&mask, lanes + 16 - LANES + (k - p), VECTOR_BYTES);                                                                \
        int64_t o = k - LANES;                                                                                                          \
        _Pragma("GCC unroll 16") for (int i = 0; i < ROWS; i++) {                                                                       \
            vector x = (vector)((int_vector)*(const loose_vector *)(a + i * lda + o) & mask);                                           \
            _Pragma("GCC unroll 16") for (int j = 0; j < COLUMNS; j++) {                                                                \
                vector y = (vector)((int_vector)*(const loose_vector *)(b + j * ldb + o) & mask);                                       \
                sum[i * COLUMNS + j] += x * y;                                                                                          \
            }                                                                                                                           \
        }                                                                                                                               \
    }                                                                                                                                   \
    _Pragma("GCC unroll 4") for (int half = LANES / 2; half >= 1; half /= 2)                                                                    \
        _Pragma("GCC unroll 8") for (int i = 0; i < half; i++)                                                                          \
            sum[i] = __builtin_shuffle(sum[i], sum[i + half], DOT_LOW) + __builtin_shuffle(sum[i], sum[i + half], DOT_HIGH); \
    *(loose_vector *)out = sum[0];                                                                                                      \
}
#if VECTOR_BYTES == 64
DOT(4, 4) DOT(8, 2) DOT(16, 1)
#define DOTS { dot_16_1, dot_8_2, dot_4_4 }
#else
DOT(2, 4) DOT(4, 2) DOT(8, 1)
#define DOTS { dot_8_1, dot_4_2, dot_2_4 }
#endif

/* c [m, n] (+)= a b^T, m >= LANES; c[i, j] at c + i * row_step + j * column_step */
static void dot_product(int64_t m, int64_t n, int64_t k, const float *a, int64_t lda, const float *b, int64_t ldb, int accumulate, float *c, int64_t row_step,
                        int64_t column_step)
{
    static void (*const dots[3])(int64_t, const float *restrict, int64_t, const float *restrict, int64_t, float *restrict) = DOTS;
    float tile[LANES] __attribute__((aligned(64)));
    const int one_group = n == 1 || n == 2 || n == 4;
    const int64_t block = one_group ? m : (DOT_BLOCK / k / LANES + 1) * LANES;      /* rows that stay in the second cache for all groups of columns */
    for (int64_t start = 0; start < m; start += block) {
        int64_t end = smaller(start + block, m);
        for (int64_t j = 0, columns; j < n; j += columns) {
            columns = n - j >= 4 ? 4 : n - j >= 2 ? 2 : 1;
            int64_t rows = LANES / columns;
            for (int64_t i = start, first; i < end; i = first + rows) {
                first = i + rows <= m ? i : m - rows;       /* the last tile overlaps: no rest of rows */
                dots[columns / 2](k, a + first * lda, lda, b + j * ldb, ldb, tile);
                for (int64_t y = i - first; y < rows; y++)
                    for (int64_t x = 0; x < columns; x++) {
                        float *to = c + (first + y) * row_step + (j + x) * column_step;
                        *to = tile[y * columns + x] + (accumulate ? *to : 0);
                    }
            }
        }
    }
}

static inline int has_few_columns(const Product *s) { return s->n <= DOT_COLUMNS && s->m >= LANES; }
static inline int has_few_rows(const Product *s) { return s->m <= DOT_ROWS && s->n >= LANES; }
static inline int suits_dot_product(const Product *s)
{ return !s->transposed_a && s->transposed_b && s->k >= DOT_DEPTH && (has_few_columns(s) || has_few_rows(s)); }

/* a product of few columns, or of few rows: then rows of B, the weights of a layer, are what passes (2 x 784 x 512: 89 to 34 µs) */
static void take_dot_product(const Product *s)
{
    if (has_few_columns(s)) dot_product(s->m, s->n, s->k, s->a, s->lda, s->b, s->ldb, s->accumulate, s->c, s->ldc, 1);
    else dot_product(s->n, s->m, s->k, s->b, s->ldb, s->a, s->lda, s->accumulate, s->c, 1, s->ldc);
    if (s->bias || s->relu) finish_tile(s->bias, s->relu, s->c, s->ldc, s->m, s->n);
}
#else
static inline int suits_dot_product(const Product *s) { (void)s; return 0; }
static void take_dot_product(const Product *s) { (void)s; }
#endif

/* ---- the blocked product */

/* few columns: the long side goes on the lanes, and tiles are stored transposed; with 8-row tiles so are weights' gradients of many rows and few columns,
 * whose longer side is then packed behind the tiles and the shorter one once for all (512 x 128 x 3136: 133 against 144 GFLOP/s) */
static void choose_roles(Product *s)
{
    int thin = padded(s->n) * s->m * 2 > padded(s->m) * s->n * 3;
    int few_rows = s->transposed_b && !s->transposed_a && s->m <= SWAP_ROWS && s->ldb <= SWAP_STEP && s->n >= 2 * s->m && s->k >= 32;
    int few_columns = TILE_ROWS == 8 && s->transposed_a && !s->transposed_b && s->n <= MAX_SHARED_ROWS && s->n < s->m;
    if (!thin && !few_rows && !few_columns) return;
    Product old = *s;
    s->a = old.b; s->lda = old.ldb; s->transposed_a = !old.transposed_b; s->m = old.n;
    s->b = old.a; s->ldb = old.lda; s->transposed_b = !old.transposed_a; s->n = old.m;
    s->swapped = 1;
}

/* sizes of blocks, and which operand is read where it lies */
static void choose_blocks(Product *s, float *workspace)
{
    int64_t most = s->swapped && s->n <= SWAP_ROWS ? SWAPPED_DEPTH : BLOCK_DEPTH, parts = (s->k + most - 1) / most;
    s->depth = s->k <= most + most / 4 ? s->k : (s->k + parts - 1) / parts;
    s->rows = s->m <= MAX_SHARED_ROWS ? s->m : BLOCK_ROWS;
    s->columns = smaller(s->n, BLOCK_COLUMNS);
    s->a_in_place = !s->transposed_a || s->m * s->depth * 4 <= DIRECT_A_BYTES || s->n <= DIRECT_TRANSPOSED_A_COLUMNS;
    s->b_in_place = !s->transposed_b && (s->m <= DIRECT_B_ROWS || s->k * s->ldb * 4 <= DIRECT_B_BYTES);
    s->stream = !s->swapped && !s->accumulate && s->k <= s->depth && s->m * s->n >= STREAM_FROM && s->ldc % LANES == 0 && (uintptr_t)s->c % VECTOR_BYTES == 0;
    s->packed_a = workspace;
    s->packed_b = workspace + (s->a_in_place ? 0 : ((s->rows + TILE_ROWS) * s->depth + 15) / 16 * 16);
}

static void pack_block_of_a(const Product *s, int64_t row, int64_t deep, int64_t depth, Tiles tiles)
{
    if (s->transposed_a) {
        pack_tiles(s->a + deep * s->lda + row, s->lda, depth, tiles, s->packed_a);
        return;
    }
    const float *from = s->a + row * s->lda + deep;
    float *panel = s->packed_a;
    for (int64_t t = 0; t < tiles.count; t++) {
        int64_t rows = rows_of_tile(tiles, t);
        pack_transposed(from, s->lda, rows, depth, panel, rows);
        from += rows * s->lda; panel += rows * depth;
    }
}

/* One panel of B: `columns` columns from `column` of its `width` are real; `depth` rows, `step` floats apart, from row `deep` of B. */
typedef struct Panel { const float *rows; int64_t step, column, columns, width, deep, depth; } Panel;

/* rows [row + i, row + i + rows) of A, of a block that starts at `row`, times a panel */
static __attribute__((noinline)) void multiply_tile(const Product *s, int64_t row, int64_t i, int64_t rows, const Panel *panel, const Ahead *ahead)
{
    float edge[TILE_ROWS * TILE_COLUMNS] __attribute__((aligned(64)));
    const int64_t deep = panel->deep, depth = panel->depth, width = panel->width, columns = panel->columns;
    const int accumulate = s->accumulate || deep > 0, last = deep + depth == s->k;
    const float *bias = last && s->bias ? s->bias + panel->column : 0;
    const int relu = last && s->relu;
    const float *a = !s->a_in_place ? s->packed_a + i * depth : s->transposed_a ? s->a + deep * s->lda + row + i : s->a + (row + i) * s->lda + deep;
    TileKernel multiply = (s->a_in_place && !s->transposed_a ? in_place_tiles : packed_tiles)[rows][width / LANES - 1];
    int64_t a_step = s->a_in_place ? s->lda : rows;
    if (s->swapped) {
        multiply(depth, a, a_step, panel->rows, panel->step, edge, width, STORE_TILE, 0, 0, ahead);
        store_transposed(edge, width, s->c + panel->column * s->ldc + row + i, s->ldc, rows, columns, accumulate);
        return;
    }
    float *c = s->c + (row + i) * s->ldc + panel->column;
    if (columns == width) {
        multiply(depth, a, a_step, panel->rows, panel->step, c, s->ldc, accumulate ? ADD_TILE : s->stream ? STREAM_TILE : STORE_TILE, bias, relu, ahead);
        return;
    }
    multiply(depth, a, a_step, panel->rows, panel->step, edge, width, STORE_TILE, 0, 0, ahead);
    for (int64_t y = 0; y < rows; y++)
        for (int64_t x = 0; x < columns; x++) c[y * s->ldc + x] = edge[y * width + x] + (accumulate ? c[y * s->ldc + x] : 0.0f);
    if (bias || relu) finish_tile(bias, relu, c, s->ldc, rows, columns);
}

/* A block of A (rows from `row`) times one panel of B; meanwhile `next` is packed, unless it is NULL. */
static void multiply_panel(const Product *s, int64_t row, Tiles tiles, const Panel *panel, Packing *next)
{
    for (int64_t t = 0, i = 0, rows; t < tiles.count; t++, i += rows) {
        rows = rows_of_tile(tiles, t);
        if (next) {
            Ahead lines = ahead_of(next);
            multiply_tile(s, row, i, rows, panel, lines.rows > 0 ? &lines : NULL);
            pack_slice(next, next->slice);
        } else {
            multiply_tile(s, row, i, rows, panel, NULL);
        }
    }
}

/* all blocks of `columns` columns of B from `start`, at one depth */
static void multiply_columns(const Product *s, int64_t start, int64_t columns, int64_t deep, int64_t depth)
{
    for (int64_t row = 0; row < s->m; row += s->rows) {
        int64_t rows = smaller(s->rows, s->m - row);
        Tiles tiles = tiles_of(rows);
        if (!s->a_in_place) pack_block_of_a(s, row, deep, depth, tiles);
        float *packed = s->packed_b;
        for (int64_t j = 0, used; j < columns; j += used) {
            int64_t width = panel_width(columns, j), column = start + j;
            used = smaller(width, columns - j);
            Panel panel = { packed, width, column, used, width, deep, depth };
            if (s->b_in_place && used == width) {
                panel.rows = s->b + deep * s->ldb + column; panel.step = s->ldb;
            } else if (row == 0) {
                if (s->transposed_b) pack_transposed(s->b + column * s->ldb + deep, s->ldb, used, depth, packed, width);
                else pack_rows(s->b + deep * s->ldb + column, s->ldb, used, depth, packed, width);
            }
            multiply_panel(s, row, tiles, &panel, NULL);
            packed += width * depth;
        }
    }
}

/* c [m, n] = op(a) op(b) (+ c where accumulate), then bias [n] and ReLU; workspace: PACKED_FLOATS floats. m, n, k >= 1. */
static void packed_sgemm(int transposed_a, int transposed_b, int64_t m, int64_t n, int64_t k, const float *a, int64_t lda, const float *b, int64_t ldb,
                         int accumulate, float *c, int64_t ldc, const float *bias, int relu, float *workspace)
{
    if (thin_product(transposed_a, transposed_b, m, n, k, a, lda, b, ldb, accumulate, c, ldc, bias, relu)) return;
    Product s = { .transposed_a = transposed_a, .transposed_b = transposed_b, .accumulate = accumulate, .relu = relu, .m = m, .n = n, .k = k,
                  .lda = lda, .ldb = ldb, .ldc = ldc, .a = a, .b = b, .c = c, .bias = bias };
    if (suits_dot_product(&s)) { take_dot_product(&s); return; }
    choose_roles(&s);
    choose_blocks(&s, workspace);
    for (int64_t start = 0; start < s.n; start += s.columns)
        for (int64_t deep = 0; deep < s.k; deep += s.depth)
            multiply_columns(&s, start, smaller(s.columns, s.n - start), deep, smaller(s.depth, s.k - deep));
    if (s.stream) end_stream();
    if (s.swapped && (bias || relu)) finish_tile(bias, relu, c, ldc, m, n);
}
#endif
