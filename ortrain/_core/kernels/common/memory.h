/* Parallel memory operations: contiguous copies, fills, and strided copies (transpose, slice, pad, tile, expand).
 *
 * Elements are moved by their size (1, 4 or 8 bytes) and never interpreted. A work item moves about MEMORY_PIECE bytes; the split into items depends on the
 * sizes only, never on the number of threads. */
#ifndef ORTRAIN_MEMORY_H
#define ORTRAIN_MEMORY_H
#include <stdint.h>
#include <string.h>
#include "kernel.h"
#include "common/compiler.h"
#include "common/integers.h"
#include "common/tuning.h"

#define MEMORY_PIECE 131072        /* bytes that one work item moves */
#define COPIED_ROW_BYTES 4096      /* rows up to this are copied in vectors: 36 bytes took 3.5 ns by memcpy and 1.9 so, 2 KiB in no cache 360 and 300 */
#define SHORT_ROW_BYTES 256        /* rows shorter than this that repeat are copied by doubling: rows of 3 elements took 0.8 ns per element one by one */
#define ORDERED_ROW_BYTES 128      /* rows from this size on are copied in the order of `from`: heads of 128 elements took 1.2 times as long otherwise */
#define FEW_ROWS 8                 /* fewer short rows are not worth a loop of their own: 3 heads of 16 elements took twice the time of 16 rows of 3 heads */
#define STRIDED_MAX_RANK 16        /* Tile splits each of 8 dimensions in two */

/* Return the size in bytes of an element of a DTYPE_ number. */
static inline int64_t element_size(int32_t dtype) {
    switch (dtype) {
        case DTYPE_FLOAT32: case DTYPE_INT32: return 4;
        case DTYPE_FLOAT64: case DTYPE_INT64: return 8;
        default: return 1;
    }
}

/* parallel_for that calls a single item directly and accepts 0 items. */
static inline void run_items(const Engine *engine, WorkItem work, void *context, int64_t items) {
    if (items == 1) work(context, 0, 0);
    else if (items > 1) engine->parallel_for(engine, work, context, items);
}

/* ---- contiguous blocks ---- */

/* Copy n bytes; few whole words without a call of memcpy (rows of 12 and 16 bytes took twice as long with it). */
static inline void copy_bytes(char *to, const char *from, int64_t n) {
    uint32_t word;
    if (n % 4 || n > 32) { memcpy(to, from, (size_t)n); return; }
    for (; n > 0; n -= 4, to += 4, from += 4) { memcpy(&word, from, 4); memcpy(to, &word, 4); }
}

/* Copy VECTOR_BYTES bytes, in a loop that GCC does not replace by a call of memcpy. */
#if defined(__GNUC__)
typedef char copied_vector __attribute__((vector_size(VECTOR_BYTES), aligned(1), may_alias));
#define COPY_VECTOR(to, from) { *(copied_vector *)(to) = *(const copied_vector *)(from); __asm__ volatile(""); }
#else
#define COPY_VECTOR(to, from) memcpy(to, from, VECTOR_BYTES);
#endif

/* Copy 64 bytes. */
static inline void copy_line(char *to, const char *from) { for (int64_t i = 0; i < 64; i += VECTOR_BYTES) COPY_VECTOR(to + i, from + i) }

/* Copy n >= 128 bytes, whole cache lines of `to` at a time: calls of memcpy took a fifth more for 8192 rows of 512 bytes. */
static inline void copy_lines(char *to, const char *from, int64_t n)
{
    int64_t i = 64 - (int64_t)((uintptr_t)to & 63);
    copy_line(to, from);
    for (; i + 64 <= n; i += 64) copy_line(to + i, from + i);
    copy_line(to + n - 64, from + n - 64);
}

/* Copy n bytes of a row: up to COPIED_ROW_BYTES in vectors, of which the last one overlaps the one before. */
static inline void copy_row(char *to, const char *from, int64_t n) {
    if (n > COPIED_ROW_BYTES) memcpy(to, from, (size_t)n);
    else if (n >= 128) copy_lines(to, from, n);
    else if (n >= VECTOR_BYTES) {
        int64_t i = 0;
        for (; i + VECTOR_BYTES <= n; i += VECTOR_BYTES) COPY_VECTOR(to + i, from + i)
        if (i < n) COPY_VECTOR(to + n - VECTOR_BYTES, from + n - VECTOR_BYTES)
    }
    else if (n >= 32) { memcpy(to, from, 32); memcpy(to + n - 32, from + n - 32, 32); }
    else if (n >= 16) { memcpy(to, from, 16); memcpy(to + n - 16, from + n - 16, 16); }
    else if (n >= 8) { memcpy(to, from, 8); memcpy(to + n - 8, from + n - 8, 8); }
    else if (n >= 4) { memcpy(to, from, 4); memcpy(to + n - 4, from + n - 4, 4); }
    else for (; n > 0; n--) *to++ = *from++;
}

/* to [rows, width bytes], `to_step` bytes apart, = from [rows, width bytes], `from_step` apart. */
#define COPY_COLUMNS(words)                                                                                                    \
    case 4 * (words): for (; rows > 0; rows--, to += to_step, from += from_step) memcpy(to, from, 4 * (words)); return;
static inline void copy_columns(char *to, int64_t to_step, const char *from, int64_t from_step, int64_t rows, int64_t width)
{
    switch (width) {               /* few whole words without a call of memcpy: rows of 12 and 16 bytes took 4 ns with it */
        COPY_COLUMNS(1) COPY_COLUMNS(2) COPY_COLUMNS(3) COPY_COLUMNS(4) COPY_COLUMNS(5) COPY_COLUMNS(6) COPY_COLUMNS(7) COPY_COLUMNS(8)
        COPY_COLUMNS(12) COPY_COLUMNS(16) COPY_COLUMNS(24) COPY_COLUMNS(32)
        COPY_COLUMNS(48) COPY_COLUMNS(64)
    }
    for (; rows > 0; rows--, to += to_step, from += from_step) copy_row(to, from, width);
}

/* Pairs of words: block [n, 2] = (a [n], b [n]), or back. Loops of GCC's that it vectorizes. */
static inline void interleave_words(uint32_t *restrict block, const uint32_t *restrict a, const uint32_t *restrict b, int64_t n)
{ for (int64_t i = 0; i < n; i++) { block[2 * i] = a[i]; block[2 * i + 1] = b[i]; } }
static inline void separate_words(const uint32_t *restrict block, uint32_t *restrict a, uint32_t *restrict b, int64_t n)
{ for (int64_t i = 0; i < n; i++) { a[i] = block[2 * i]; b[i] = block[2 * i + 1]; } }

/* A copy of `bytes` bytes, or a fill of them with the element of `size` bytes at `from`. */
typedef struct { char *to; const char *from; int64_t bytes; int64_t size; } Block;

static void copy_piece(void *context, int64_t item, int64_t worker) {
    const Block *b = (const Block *)context;
    int64_t at = item * MEMORY_PIECE;
    (void)worker;
    memcpy(b->to + at, b->from + at, (size_t)min_i64(MEMORY_PIECE, b->bytes - at));
}

/* Copy `bytes` bytes; nothing happens in place. */
static inline void copy_block(const Engine *engine, void *to, const void *from, int64_t bytes) {
    Block b = {(char *)to, (const char *)from, bytes, 1};
    if (bytes > 0 && to != from) run_items(engine, copy_piece, &b, (bytes + MEMORY_PIECE - 1) / MEMORY_PIECE);
}

/* Set n elements of `size` bytes to the one at `value`. */
static inline void fill_elements(char *to, const void *value, int64_t size, int64_t n) {
    int64_t i;
    if (size == 4) { uint32_t v; memcpy(&v, value, 4); for (i = 0; i < n; i++) ((uint32_t *)to)[i] = v; }
    else if (size == 8) { uint64_t v; memcpy(&v, value, 8); for (i = 0; i < n; i++) ((uint64_t *)to)[i] = v; }
    else memset(to, *(const uint8_t *)value, (size_t)n);
}

static void fill_piece(void *context, int64_t item, int64_t worker) {
    const Block *b = (const Block *)context;
    int64_t at = item * MEMORY_PIECE;
    (void)worker;
    fill_elements(b->to + at, b->from, b->size, min_i64(MEMORY_PIECE, b->bytes - at) / b->size);
}

/* Set `count` elements of `size` bytes to the one at `value`. */
static inline void fill_block(const Engine *engine, void *to, const void *value, int64_t size, int64_t count) {
    Block b = {(char *)to, (const char *)value, count * size, size};
    run_items(engine, fill_piece, &b, (b.bytes + MEMORY_PIECE - 1) / MEMORY_PIECE);
}

static inline void zero_block(const Engine *engine, void *to, int64_t bytes) {
    static const uint8_t zero = 0;
    fill_block(engine, to, &zero, 1, bytes);
}

/* ---- strided copies ----
 *
 * to[to_at + sum i_d to_stride_d] = from[from_at + sum i_d from_stride_d] for every index i within dims; offsets and strides in elements.
 *
 * The innermost dimension is copied row by row; short rows that repeat in the next dimension are copied once and doubled. Where it is contiguous in `to` but
 * not in `from`, and another dimension is contiguous in `from`, the two form a plane that is transposed in tiles. Rows and planes longer than MEMORY_PIECE
 * bytes are cut into pieces. A unit is one piece of one row or plane, a work item `per_item` consecutive units. */

typedef struct {
    char *to;
    const char *from;
    int64_t size;                  /* bytes per element */
    int64_t rank;                  /* number of outer dimensions: all but the innermost and the plane's other one */
    int64_t dims[STRIDED_MAX_RANK], to_strides[STRIDED_MAX_RANK], from_strides[STRIDED_MAX_RANK];
    int64_t n, to_n, from_n;       /* the innermost dimension and its strides */
    int64_t m, to_m, from_m;       /* the plane's other dimension and its strides; m is 1 where rows are copied */
    int64_t repeats;               /* how often a short row follows itself in `to` */
    int64_t piece, pieces;         /* length and number of the pieces: of n where rows are copied, of m in a plane */
    int64_t units, per_item;
} StridedCopy;

#define MOVE_LOOP(T)                                                                                              \
    { T *to = (T *)to_; const T *from = (const T *)from_;                                                         \
      if (to_stride == 1 && from_stride == 1) for (i = 0; i < n; i++) to[i] = from[i];                            \
      else if (to_stride == 1 && from_stride == 0) { T v = from[0]; for (i = 0; i < n; i++) to[i] = v; }          \
      else for (i = 0; i < n; i++) to[i * to_stride] = from[i * from_stride]; }

/* to[i * to_stride] = from[i * from_stride], i < n */
static inline void move_row(char *to_, const char *from_, int64_t size, int64_t n, int64_t to_stride, int64_t from_stride) {
    int64_t i;
    if (to_stride == 1 && from_stride == 1 && n * size >= 32) copy_row(to_, from_, n * size);
    else if (size == 4) MOVE_LOOP(uint32_t)
    else if (size == 8) MOVE_LOOP(uint64_t)
    else MOVE_LOOP(uint8_t)
}

/* to [rows, n], rows of it to_step apart, = n times the element of each row of `from`, from_step apart, in elements of 4 bytes. A call for every row took 10 ns
 * (65536 rows of 16: 538 and 88 µs). */
#define SPREAD(count)                                                                                                          \
    case count: for (; rows > 0; rows--, to += to_step, from += from_step) { uint32_t v = *from; for (int k = 0; k < count; k++) to[k] = v; } return;
static inline void spread_words(uint32_t *to, int64_t to_step, const uint32_t *from, int64_t from_step, int64_t rows, int64_t n) {
    switch (n) { SPREAD(2) SPREAD(3) SPREAD(4) SPREAD(5) SPREAD(6) SPREAD(7) }
    for (; rows > 0; rows--, to += to_step, from += from_step) {
        uint32_t v = *from;
        if (n < 8) { for (int64_t k = 0; k < n; k++) to[k] = v; continue; }
        for (int64_t k = 0; k + 8 <= n; k += 8) for (int l = 0; l < 8; l++) to[k + l] = v;
        for (int l = 0; l < 8; l++) to[n - 8 + l] = v;             /* may overlap */
    }
}

#define TILE 16
#define PLANE_TILE 64

/* Return whether a plane is transposed in tiles of PLANE_TILE x PLANE_TILE elements, which are copied first: many rows a multiple of 1 KiB apart share sets of
 * the caches, so that cache lines are evicted before all of their elements are read (1024 x 1024: 0.80 ms in blocks of 8, 0.42 in tiles; 512 x 512: 94 and
 * 59 µs; but 300 x 900: 50 and 65). */
static inline int is_tiled(int64_t m, int64_t n, int64_t from_n) { return m >= PLANE_TILE && n > 256 && from_n % 256 == 0; }

/* to[i * to_m + j] = from[i + j * from_n], i < m, j < n, in tiles that fit in registers or the L1 cache. Expands to a braced block. */
#define TRANSPOSE_LOOP(T)                                                                                         \
    { T *to = (T *)to_; const T *from = (const T *)from_; T tile[TILE * TILE]; int64_t i, j, a, b;                \
      for (i = 0; i < m; i += TILE) for (j = 0; j < n; j += TILE) {                                               \
          if (i + TILE <= m && j + TILE <= n) {                                                                   \
              for (b = 0; b < TILE; b++) memcpy(tile + b * TILE, from + i + (j + b) * from_n, sizeof(T) * TILE);  \
              for (a = 0; a < TILE; a++) { T *row = to + (i + a) * to_m + j;                                      \
                  for (b = 0; b < TILE; b++) row[b] = tile[b * TILE + a]; }                                       \
          } else {                                                                                                \
              for (a = i; a < min_i64(i + TILE, m); a++) for (b = j; b < min_i64(j + TILE, n); b++)               \
                  to[a * to_m + b] = from[a + b * from_n]; } } }

#if defined(__GNUC__)
#if defined(__AVX512F__)
#include <immintrin.h>
#define WORDS 16
#elif defined(__AVX2__)
#define WORDS 8
#else
#define WORDS 4
#endif

/* Distance of prefetching along the rows of `from` in words; the rows up to which the first-level cache keeps what was prefetched, and their least distance:
 * processors prefetch nearer ones by themselves (16 images of 96 channels, 56 x 56, to channels-last: 1.19 to 1.05 ms). */
#define TRANSPOSE_AHEAD 32
#define TRANSPOSE_ROWS 256
#define TRANSPOSE_STEP 1024

/* The indices of a shuffle of two vectors of SIDE words that exchanges blocks of S words, literally: GCC computed those of loops at run time. */
#define LOW(l, S, SIDE) (l) & (S) ? SIDE + (l) - (S) : (l)
#define HIGH(l, S, SIDE) (l) & (S) ? SIDE + (l) : (l) + (S)
#define INDICES_4(F, S, SIDE) F(0, S, SIDE), F(1, S, SIDE), F(2, S, SIDE), F(3, S, SIDE)
#define INDICES_8(F, S, SIDE) INDICES_4(F, S, SIDE), F(4, S, SIDE), F(5, S, SIDE), F(6, S, SIDE), F(7, S, SIDE)
#define INDICES_16(F, S, SIDE) INDICES_8(F, S, SIDE), F(8, S, SIDE), F(9, S, SIDE), F(10, S, SIDE), F(11, S, SIDE), \
    F(12, S, SIDE), F(13, S, SIDE), F(14, S, SIDE), F(15, S, SIDE)
#define EXCHANGE(ROW, SIDE, S)                                                                                    \
    _Pragma("GCC unroll 16") for (int i = 0; i < SIDE && S < SIDE; i++)                                           \
        if (!(i & S)) {                                                                                           \
            ROW x = r[i], y = r[i + S < SIDE ? i + S : 0];                                                        \
            r[i] = SHUFFLE_PAIR(x, y, (ROW){ INDICES_##SIDE(LOW, S, SIDE) });                                \
            r[i + S < SIDE ? i + S : 0] = SHUFFLE_PAIR(x, y, (ROW){ INDICES_##SIDE(HIGH, S, SIDE) });        \
        }

/* NAME transposes a SIDE x SIDE block in registers: to[i * to_m + j] = from[i + j * from_n]. Rounds of shuffles exchange blocks of 1, 2, 4, ... words.
 * LOAD and STORE move row b of `from` and row a of `to`. */
#define TRANSPOSE_BLOCK(NAME, SIDE, LOAD, STORE) TRANSPOSE_BLOCK_(NAME, SIDE, LOAD, STORE)
#define TRANSPOSE_BLOCK_(NAME, SIDE, LOAD, STORE)                                                                 \
typedef uint32_t NAME##_row __attribute__((vector_size(4 * SIDE), aligned(4), may_alias));                        \
static inline __attribute__((always_inline)) void NAME(uint32_t *to, int64_t to_m, const uint32_t *from, int64_t from_n, int64_t m, int64_t n) { \
    NAME##_row r[SIDE];                                                                                           \
    (void)m; (void)n;                                                                                             \
    _Pragma("GCC unroll 16") for (int b = 0; b < SIDE; b++) { LOAD(NAME##_row, SIDE) }                            \
    EXCHANGE(NAME##_row, SIDE, 1) EXCHANGE(NAME##_row, SIDE, 2) EXCHANGE(NAME##_row, SIDE, 4) EXCHANGE(NAME##_row, SIDE, 8) \
    _Pragma("GCC unroll 16") for (int a = 0; a < SIDE; a++) { STORE(NAME##_row, SIDE) }                           \
}
#define LOAD_ROW(ROW, SIDE) r[b] = *(const ROW *)(from + b * from_n);
#define LOAD_ROW_AHEAD(ROW, SIDE) __builtin_prefetch(from + b * from_n + TRANSPOSE_AHEAD, 0, 3); LOAD_ROW(ROW, SIDE)
#define STORE_ROW(ROW, SIDE) *(ROW *)(to + a * to_m) = r[a];
TRANSPOSE_BLOCK(transpose_4x4, 4, LOAD_ROW, STORE_ROW)
TRANSPOSE_BLOCK(transpose_whole, WORDS, LOAD_ROW, STORE_ROW)
TRANSPOSE_BLOCK(transpose_ahead, WORDS, LOAD_ROW_AHEAD, STORE_ROW)

#if defined(__AVX512F__) && defined(__AVX512VL__)
/* The same for a part [m, n] of a block, by masks: rows of 13 channels took 0.2 ns per element in blocks of 4 and single elements. */
#define MASK(SIDE, count) ((uint32_t)((1u << (count)) - 1))
#define MASKED_LOAD_16(p, count) _mm512_maskz_loadu_epi32((__mmask16)MASK(16, count), p)
#define MASKED_LOAD_8(p, count) _mm256_maskz_loadu_epi32((__mmask8)MASK(8, count), p)
#define MASKED_STORE_16(p, v, count) _mm512_mask_storeu_epi32(p, (__mmask16)MASK(16, count), (__m512i)(v))
#define MASKED_STORE_8(p, v, count) _mm256_mask_storeu_epi32(p, (__mmask8)MASK(8, count), (__m256i)(v))
#define LOAD_PART(ROW, SIDE) if (b < n) r[b] = (ROW)MASKED_LOAD_##SIDE(from + b * from_n, m); else r[b] = (ROW){0};
#define STORE_PART(ROW, SIDE) if (a < m) MASKED_STORE_##SIDE(to + a * to_m, r[a], n);
TRANSPOSE_BLOCK(transpose_part_16, 16, LOAD_PART, STORE_PART)
TRANSPOSE_BLOCK(transpose_part_8, 8, LOAD_PART, STORE_PART)

/* A block of less than WORDS rows or columns. */
static inline void transpose_edge(uint32_t *to, int64_t to_m, const uint32_t *from, int64_t from_n, int64_t m, int64_t n) {
    if (m > 8 && n > 8) { transpose_part_16(to, to_m, from, from_n, m, n); return; }
    for (int64_t i = 0; i < m; i += 8)
        for (int64_t j = 0; j < n; j += 8)
            transpose_part_8(to + i * to_m + j, to_m, from + i + j * from_n, from_n, min_i64(8, m - i), min_i64(8, n - j));
}
#else
/* A block of less than WORDS rows or columns: in blocks of 4, of which the last may overlap the one before. */
static inline void transpose_edge(uint32_t *to, int64_t to_m, const uint32_t *from, int64_t from_n, int64_t m, int64_t n) {
    if (m < 4 || n < 4) {
        for (int64_t i = 0; i < m; i++) for (int64_t j = 0; j < n; j++) to[i * to_m + j] = from[i + j * from_n];
        return;
    }
    for (int64_t i = 0; i < m; i += 4)
        for (int64_t j = 0; j < n; j += 4) {
            int64_t a = min_i64(i, m - 4), b = min_i64(j, n - 4);
            transpose_4x4(to + a * to_m + b, to_m, from + a + b * from_n, from_n, 4, 4);
        }
}
#endif

/* to [m, COUNT] = from [COUNT, m], rows of it from_n apart: images of three colors took 0.4 ns per element with a variable count. Returns. */
#define INTERLEAVE(COUNT)                                                                                         \
    { uint32_t *restrict pixel = to; const uint32_t *restrict part = from;                                        \
      for (int64_t k = 0; k < m; k++) for (int c = 0; c < COUNT; c++) pixel[k * COUNT + c] = part[k + c * from_n]; \
      return; }
/* to [COUNT, n], rows of it to_m apart, = from [n, COUNT]. Returns. */
#define SEPARATE(COUNT)                                                                                           \
    { uint32_t *restrict part = to; const uint32_t *restrict pixel = from;                                        \
      for (int64_t k = 0; k < n; k++) for (int c = 0; c < COUNT; c++) part[k + c * to_m] = pixel[k * COUNT + c];  \
      return; }

/* to [WORDS, n] = from [n, WORDS], in functions of their own: in one loop, GCC keeps too many vectors of indices in registers. The last block
 * overlaps the one before. */
#define TRANSPOSE_BAND(NAME, BLOCK)                                                                                                     \
static __attribute__((noinline)) void NAME(uint32_t *to, int64_t to_m, const uint32_t *from, int64_t from_n, int64_t n) {               \
    int64_t j = 0;                                                                                                                      \
    for (; j + WORDS <= n; j += WORDS) BLOCK(to + j, to_m, from + j * from_n, from_n, WORDS, WORDS);                                    \
    if (j < n) BLOCK(to + n - WORDS, to_m, from + (n - WORDS) * from_n, from_n, WORDS, WORDS);                                          \
}
TRANSPOSE_BAND(transpose_band, transpose_whole)
TRANSPOSE_BAND(transpose_band_ahead, transpose_ahead)

/* TRANSPOSE_LOOP for elements of 4 bytes through a copy of PLANE_TILE x PLANE_TILE of them. The last tile overlaps the one before. */
static __attribute__((noinline)) void transpose_tiled(uint32_t *to, const uint32_t *from, int64_t m, int64_t n, int64_t to_m, int64_t from_n) {
    uint32_t tile[PLANE_TILE * PLANE_TILE];
    for (int64_t j = 0; j < n; j += PLANE_TILE)
        for (int64_t i = 0; i < m; i += PLANE_TILE) {
            int64_t a = min_i64(i, m - PLANE_TILE), b = min_i64(j, n - PLANE_TILE);
            for (int64_t k = 0; k < PLANE_TILE; k++) memcpy(tile + k * PLANE_TILE, from + a + (b + k) * from_n, PLANE_TILE * 4);
            for (int64_t k = 0; k < PLANE_TILE; k += WORDS)
                transpose_band(to + (a + k) * to_m + b, to_m, tile + k, PLANE_TILE, PLANE_TILE);
        }
}

/* TRANSPOSE_LOOP for elements of 4 bytes: in blocks of WORDS, which write whole cache lines with AVX-512. The last block overlaps the one before. */
static inline void transpose_words(uint32_t *to, const uint32_t *from, int64_t m, int64_t n, int64_t to_m, int64_t from_n) {
    if (n == 2 && to_m == 2) INTERLEAVE(2)
    if (n == 3 && to_m == 3) INTERLEAVE(3)
    if (m == 2 && from_n == 2) SEPARATE(2)
    if (m == 3 && from_n == 3) SEPARATE(3)
    if (n == 2) {                  /* pixels interleaved by DepthToSpace: 0.9 ns per element in the loops below */
        for (int64_t i = 0; i < m; i++) { to[i * to_m] = from[i]; to[i * to_m + 1] = from[i + from_n]; }
        return;
    }
    if (m < WORDS || n < WORDS) {
        for (int64_t i = 0; i < m; i += WORDS)
            for (int64_t j = 0; j < n; j += WORDS) {
                int64_t a = m < WORDS ? 0 : min_i64(i, m - WORDS), b = n < WORDS ? 0 : min_i64(j, n - WORDS);
                transpose_edge(to + a * to_m + b, to_m, from + a + b * from_n, from_n, min_i64(m, WORDS), min_i64(n, WORDS));
            }
        return;
    }
    if (is_tiled(m, n, from_n)) { transpose_tiled(to, from, m, n, to_m, from_n); return; }
    int prefetches = n <= TRANSPOSE_ROWS && from_n >= TRANSPOSE_STEP;
    for (int64_t i = 0; i < m; i += WORDS) {
        int64_t a = min_i64(i, m - WORDS);
        (prefetches && a + TRANSPOSE_AHEAD < m ? transpose_band_ahead : transpose_band)(to + a * to_m, to_m, from + a, from_n, n);
    }
}
#else
static inline void transpose_words(uint32_t *to_, const uint32_t *from_, int64_t m, int64_t n, int64_t to_m, int64_t from_n)
    TRANSPOSE_LOOP(uint32_t)
#endif

/* TRANSPOSE_LOOP for elements of `size` bytes */
static inline void move_plane(char *to_, const char *from_, int64_t size, int64_t m, int64_t n, int64_t to_m, int64_t from_n) {
    if (size == 4) transpose_words((uint32_t *)to_, (const uint32_t *)from_, m, n, to_m, from_n);
    else if (size == 8) TRANSPOSE_LOOP(uint64_t)
    else TRANSPOSE_LOOP(uint8_t)
}

/* Copy a contiguous row of n elements to `to`, where it follows itself `repeats` times, by doubling. */
static inline void repeat_row(char *to, const char *from, int64_t bytes, int64_t repeats) {
    int64_t done = bytes, all = bytes * repeats, next;
    memcpy(to, from, (size_t)bytes);
    for (; done < all; done += next) {
        next = min_i64(done, all - done);
        memcpy(to + done, to, (size_t)next);
    }
}

static void move_units(void *context, int64_t item, int64_t worker) {
    const StridedCopy *s = (const StridedCopy *)context;
    int64_t unit = item * s->per_item, end = min_i64(unit + s->per_item, s->units);
    int64_t index[STRIDED_MAX_RANK], piece = unit % s->pieces, rest = unit / s->pieces, to = 0, from = 0, d;
    (void)worker;
    for (d = s->rank - 1; d >= 0; d--) {
        index[d] = rest % s->dims[d];
        rest /= s->dims[d];
        to += index[d] * s->to_strides[d];
        from += index[d] * s->from_strides[d];
    }
    for (int64_t rows; unit < end; unit += rows) {
        int64_t at = piece * s->piece;
        rows = 1;
        if (s->repeats > 1)
            repeat_row(s->to + (to + at * s->n) * s->size, s->from + from * s->size, s->n * s->size, min_i64(s->piece, s->repeats - at));
        else if (s->m > 1)
            move_plane(s->to + (to + at * s->to_m) * s->size, s->from + (from + at) * s->size, s->size, min_i64(s->piece, s->m - at), s->n,
                       s->to_m, s->from_n);
        else if (s->rank > 0 && s->to_n == 1 && s->from_n == 1 && s->n * s->size <= COPIED_ROW_BYTES) {     /* along the last outer dimension */
            d = s->rank - 1;
            rows = min_i64(s->dims[d] - index[d], end - unit);
            copy_columns(s->to + to * s->size, s->to_strides[d] * s->size, s->from + from * s->size, s->from_strides[d] * s->size, rows, s->n * s->size);
        } else if (s->rank > 0 && s->to_n == 1 && s->from_n == 0 && s->size == 4 && s->n * 4 <= SHORT_ROW_BYTES) {
            d = s->rank - 1;
            rows = min_i64(s->dims[d] - index[d], end - unit);
            spread_words((uint32_t *)s->to + to, s->to_strides[d], (const uint32_t *)s->from + from, s->from_strides[d], rows, s->n);
        } else
            move_row(s->to + (to + at * s->to_n) * s->size, s->from + (from + at * s->from_n) * s->size, s->size,
                     min_i64(s->piece, s->n - at), s->to_n, s->from_n);
        if (++piece < s->pieces) continue;
        piece = 0;
        for (d = s->rank - 1; d >= 0; d--) {
            int64_t moved = d == s->rank - 1 ? rows : 1;
            to += moved * s->to_strides[d];
            from += moved * s->from_strides[d];
            index[d] += moved;
            if (index[d] < s->dims[d]) break;
            index[d] = 0;
            to -= s->dims[d] * s->to_strides[d];
            from -= s->dims[d] * s->from_strides[d];
        }
    }
}

/* Exchange outer dimensions d and e. */
static inline void exchange_outer(StridedCopy *s, int64_t d, int64_t e) {
    int64_t *lists[] = { s->dims, s->to_strides, s->from_strides };
    for (int i = 0; i < 3; i++) { int64_t kept = lists[i][d]; lists[i][d] = lists[i][e]; lists[i][e] = kept; }
}

/* Copy between strided boxes of elements of `size` bytes.
 *
 * ints: rank, to_at, from_at, dims[rank], to_strides[rank], from_strides[rank]. The lowering merges adjacent dimensions; rank is 1 to STRIDED_MAX_RANK. */
static inline void copy_strided(const Engine *engine, void *to, const void *from, int64_t size, const int64_t *ints) {
    int64_t rank = ints[0], d, k, plane = -1, repeated = -1, outer = 1, unit;
    const int64_t *dims = ints + 3, *to_strides = dims + rank, *from_strides = to_strides + rank;
    StridedCopy s;
    for (d = 0; d < rank; d++) if (dims[d] == 0) return;
    s.size = size;
    s.to = (char *)to + ints[1] * size;
    s.from = (const char *)from + ints[2] * size;
    s.n = dims[rank - 1];
    s.to_n = to_strides[rank - 1];
    s.from_n = from_strides[rank - 1];
    s.m = 1;
    s.to_m = s.from_m = 0;
    if (s.to_n == 1 && s.from_n > 1 && s.n >= 2)
        for (d = 0; d < rank - 1; d++)
            if (from_strides[d] == 1 && dims[d] >= 2) plane = d;
    s.repeats = 1;
    d = rank - 2;
    if (plane < 0 && d >= 0 && s.to_n == 1 && s.from_n == 1 && from_strides[d] == 0 && to_strides[d] == s.n && s.n * size < SHORT_ROW_BYTES) {
        repeated = d;
        s.repeats = dims[d];
    }
    for (d = 0, k = 0; d < rank - 1; d++) {
        if (d == repeated) continue;
        if (d == plane) {
            s.m = dims[d];
            s.to_m = to_strides[d];
            s.from_m = 1;
            continue;
        }
        s.dims[k] = dims[d];
        s.to_strides[k] = to_strides[d];
        s.from_strides[k] = from_strides[d];
        outer *= dims[d];
        k++;
    }
    s.rank = k;
    if (k > 1 && s.m == 1 && s.repeats == 1 && s.n * size <= SHORT_ROW_BYTES && s.dims[k - 1] < FEW_ROWS && s.dims[k - 2] > s.dims[k - 1])
        exchange_outer(&s, k - 2, k - 1);
    if (s.m == 1 && s.repeats == 1 && s.to_n == 1 && s.from_n == 1 && s.n * size >= ORDERED_ROW_BYTES && s.n * size <= COPIED_ROW_BYTES)
        for (d = 0; d < k - 1; d++)
            if (s.from_strides[d] == s.n && s.dims[d] > 1) { exchange_outer(&s, d, k - 1); break; }
    if (s.repeats > 1) {           /* a piece is a number of copies of the row */
        s.piece = MEMORY_PIECE / size / s.n;
        s.pieces = (s.repeats + s.piece - 1) / s.piece;
        unit = min_i64(s.piece, s.repeats) * s.n;
    } else if (s.m > 1) {          /* a piece of a plane is a band of whole rows of `to`, a multiple of TILE of them */
        s.piece = MEMORY_PIECE / size / s.n / TILE * TILE;
        if (s.piece < TILE) s.piece = TILE;
        if (size == 4 && is_tiled(s.m, s.n, s.from_n)) s.piece = round_up(s.piece, PLANE_TILE);
        s.pieces = (s.m + s.piece - 1) / s.piece;
        unit = min_i64(s.piece, s.m) * s.n;
    } else {
        s.piece = MEMORY_PIECE / size;
        s.pieces = (s.n + s.piece - 1) / s.piece;
        unit = min_i64(s.piece, s.n);
    }
    s.units = outer * s.pieces;
    s.per_item = MEMORY_PIECE / size / unit;
    if (s.per_item < 1) s.per_item = 1;
    run_items(engine, move_units, &s, (s.units + s.per_item - 1) / s.per_item);
}

#endif
