/* Transposed planes of elements of 1, 4 or 8 bytes.
 *
 * One module of an instruction set has them, and offers them to the kernels of others as Engine.transpose: with a copy in each of them, wheels were 0.2 MB
 * larger. */
#ifndef ORTRAIN_TRANSPOSES_H
#define ORTRAIN_TRANSPOSES_H
#include <stdint.h>
#include <string.h>
#include "common/compiler.h"
#include "common/integers.h"

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
/* STREAM_ROW stores a row of a block without reading its cache lines first. */
#if defined(__AVX512F__)
#include <immintrin.h>
#define WORDS 16
#define STREAM_ROW(ROW, SIDE) _mm512_stream_si512((void *)(to + a * to_m), (__m512i)r[a]);
#elif defined(__AVX2__)
#include <immintrin.h>
#define WORDS 8
#define STREAM_ROW(ROW, SIDE) _mm256_stream_si256((__m256i *)(to + a * to_m), (__m256i)r[a]);
#else
#define WORDS 4
#if defined(__SSE2__)
#include <emmintrin.h>
#define STREAM_ROW(ROW, SIDE) _mm_stream_si128((__m128i *)(to + a * to_m), (__m128i)r[a]);
#endif
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

/* Transpose a 4 x 4 block in registers whose rows are anywhere: word j of to[i] = word i of from[j]. */
typedef uint32_t PlacedRow __attribute__((vector_size(16), aligned(4), may_alias));
ALWAYS_INLINE void transpose_placed(uint32_t *const *to, const uint32_t *const *from) {
    PlacedRow r[4];
    _Pragma("GCC unroll 4") for (int b = 0; b < 4; b++) r[b] = *(const PlacedRow *)from[b];
    EXCHANGE(PlacedRow, 4, 1) EXCHANGE(PlacedRow, 4, 2)
    _Pragma("GCC unroll 4") for (int a = 0; a < 4; a++) *(PlacedRow *)to[a] = r[a];
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
#if defined(STREAM_ROW)
TRANSPOSE_BLOCK(transpose_streamed, WORDS, LOAD_ROW_AHEAD, STREAM_ROW)
#endif

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
#if defined(STREAM_ROW)
TRANSPOSE_BAND(transpose_band_streamed, transpose_streamed)
#endif

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

/* to[places[i] + j] = from[i + j * from_n], i < count, j < n, for elements of 4 bytes; count and n are at least 4. The last blocks overlap those before. */
static void transpose_to_places(uint32_t *to, const int64_t *places, const uint32_t *from, int64_t count, int64_t n, int64_t from_n) {
    for (int64_t j = 0; j < n; j += 4)
        for (int64_t i = 0; i < count; i += 4) {
            int64_t a = min_i64(i, count - 4), b = min_i64(j, n - 4);
#if defined(__GNUC__)
            const uint32_t *row = from + a + b * from_n;
            transpose_placed((uint32_t *[]){ to + places[a] + b, to + places[a + 1] + b, to + places[a + 2] + b, to + places[a + 3] + b },
                             (const uint32_t *[]){ row, row + from_n, row + 2 * from_n, row + 3 * from_n });
#else
            for (int64_t k = 0; k < 16; k++) to[places[a + k / 4] + b + k % 4] = from[a + k / 4 + (b + k % 4) * from_n];
#endif
        }
}

/* to[i * to_m + j] = from[i + places[j]], i < m, j < count, for elements of 4 bytes; m and count are at least 4. */
static void transpose_from_places(uint32_t *to, int64_t to_m, const uint32_t *from, const int64_t *places, int64_t m, int64_t count) {
    for (int64_t i = 0; i < m; i += 4)
        for (int64_t j = 0; j < count; j += 4) {
            int64_t a = min_i64(i, m - 4), b = min_i64(j, count - 4);
#if defined(__GNUC__)
            uint32_t *row = to + a * to_m + b;
            transpose_placed((uint32_t *[]){ row, row + to_m, row + 2 * to_m, row + 3 * to_m },
                             (const uint32_t *[]){ from + places[b] + a, from + places[b + 1] + a, from + places[b + 2] + a, from + places[b + 3] + a });
#else
            for (int64_t k = 0; k < 16; k++) to[(a + k / 4) * to_m + b + k % 4] = from[a + k / 4 + places[b + k % 4]];
#endif
        }
}

/* Return whether transpose_streaming can transpose a plane of elements of `size` bytes: whether its rows are whole aligned vectors. */
static inline int is_streamable(const void *to, int64_t size, int64_t n, int64_t to_m)
{
#if defined(STREAM_ROW)
    return size == 4 && n % WORDS == 0 && to_m % WORDS == 0 && (uintptr_t)to % (4 * WORDS) == 0;
#else
    (void)to; (void)size; (void)n; (void)to_m;
    return 0;
#endif
}

/* Compute transpose_plane for a result that is larger than the caches, with non-temporal stores, and without tiles (4 images of 64 channels, 112 x 112, to
 * channels-last: 1.41 to 0.47 ms; 16 of 96, 56 x 56: 3.09 to 0.76). Other threads see the result after end_streaming(). */
static inline void transpose_streaming(void *to, const void *from, int64_t m, int64_t n, int64_t to_m, int64_t from_n)
{
#if defined(STREAM_ROW)
    if (m < WORDS) { transpose_words((uint32_t *)to, (const uint32_t *)from, m, n, to_m, from_n); return; }
    for (int64_t i = 0; i < m; i += WORDS) {
        int64_t a = min_i64(i, m - WORDS);
        transpose_band_streamed((uint32_t *)to + a * to_m, to_m, (const uint32_t *)from + a, from_n, n);
    }
#else
    (void)to; (void)from; (void)m; (void)n; (void)to_m; (void)from_n;
#endif
}

static inline void end_streaming(void)
{
#if defined(STREAM_ROW)
    _mm_sfence();
#endif
}

/* to[i * to_m + j] = from[i + j * from_n], i < m, j < n, for elements of `size` bytes. */
static void transpose_plane(void *to_, const void *from_, int64_t size, int64_t m, int64_t n, int64_t to_m, int64_t from_n) {
    if (size == 4) transpose_words((uint32_t *)to_, (const uint32_t *)from_, m, n, to_m, from_n);
    else if (size == 8) TRANSPOSE_LOOP(uint64_t)
    else TRANSPOSE_LOOP(uint8_t)
}

#endif
