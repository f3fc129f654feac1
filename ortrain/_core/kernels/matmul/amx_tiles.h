/* One depth step of a GEMM on AMX tiles, C [32, 32] += A [32, 32] B [32, 32], interleaved with the packing of later operands, which are float32 in memory.
 *
 * AMX multiplies bfloat16 numbers. A float32 with its 24 significant bits is the sum of three bfloat16 parts of 8 bits, a = a1 + a2 + a3 (known as
 * bfloat16x3). Of the nine products of the parts of two numbers the six largest are added, the small ones first; each of the other three is at most 2^-25 of
 * the result. In the order chosen, consecutive products share one operand: 14 tile loads for 24 tile multiplications.
 *
 * A GEMM of bfloat16 operands (gemm_bfloat16.h) has one part: the number rounded as for pairs (bfloat16_pairs.h). As vdpbf16ps, tdpbf16ps takes subnormal
 * operands for 0, rounds sums to nearest even and subnormal ones to 0, and raises no exceptions. It adds in another order: the first numbers of 16 pairs to one
 * sum, the second ones to another, then both to the tile. So the bits of sums differ between the two; infinities and NaNs among operands spread alike.
 *
 * A tile multiplication occupies the AMX unit for 16 cycles, during which the vector units are idle. Packing costs little if its instructions are placed
 * between the multiplications, a few at a time: 4 ns for half a tile, against 40 ns as a function called between steps. */
#ifndef ORTRAIN_AMX_TILES_H
#define ORTRAIN_AMX_TILES_H
#include "matmul/gemm_packing.h"
#include "matmul/amx_eligibility.h"

#if defined(__AVX512BW__) && defined(__linux__) && defined(__x86_64__) && (defined(__clang__) ? __clang_major__ >= 12 : __GNUC__ >= 11)
#define HAVE_AMX 1
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Return whether the processor has AMX with bfloat16 and Linux permits this process to use it. Linux requires a request, because the tile registers add 8 KiB
 * to the state that a context switch saves. */
static inline int enable_amx(void)
{
    enum { LEAF = 7, BFLOAT16 = 1 << 22, TILES = 1 << 24, REQUEST_PERMISSION = 0x1023, TILE_DATA = 18 };
    unsigned a, b, c, d;
    return __get_cpuid_count(LEAF, 0, &a, &b, &c, &d) && (d & BFLOAT16) && (d & TILES) && !syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA);
}

#define STEP_DEPTH 32                               /* depth of a tile: 16 pairs of elements */
#define TILE_ELEMENTS 512                            /* elements of a tile of 16 rows */
#define STEP_ELEMENTS (BFLOAT16_PARTS * 2 * TILE_ELEMENTS)    /* elements of a panel of 32 rows or columns at one step: parts of two tiles each */
#define AMX __attribute__((target("amx-tile,amx-bf16"), noinline))

typedef uint16_t bfloat16;

/* The float32 source of a tile, or of its second half: vectors of 16 elements, `step` floats apart; the elements that they are paired with follow `pair` floats
 * after each vector. */
typedef struct TileSource { const float *from; int64_t step, pair; } TileSource;

/* One unit of packing: half of a tile of 16 rows or columns, in all parts.
 *
 * Without transposition, 8 vectors and those they are paired with are read from `source`. With transposition, a 16 x 16 square is read from `source` and
 * transposed to `square`, while 8 vectors of the previous tile, whose squares are complete, are read from `ready` and `ready` + 256. `next`: the same half of
 * the next tile, which is prefetched. */
typedef struct HalfTile {
    TileSource source, next;
    const float *ready;
    float *square;
    bfloat16 *to;
    __m512i *largest;                               /* running maximum of the bits of the first of three parts, shifted left by one to drop the sign */
} HalfTile;

#ifdef BFLOAT16_PAIRS
/* Round x and y, store them interleaved as pairs, and return `largest`: no number is out of range. */
static inline __attribute__((always_inline)) __m512i split_and_store(__m512 x, __m512 y, bfloat16 *to, __m512i largest)
{
    _mm512_store_si512((void *)to, (__m512i)pairs_of((vector)x, (vector)y));
    return largest;
}
#else
/* Split x and y into three parts, store each part with the elements of x and y interleaved as pairs, and return the updated maximum `largest`. */
static inline __attribute__((always_inline)) __m512i split_and_store(__m512 x, __m512 y, bfloat16 *to, __m512i largest)
{
    const __m512i half = _mm512_set1_epi32(0x8000), high = _mm512_set1_epi32((int)0xffff0000u);
#pragma GCC unroll 3
    for (int part = 0; part < 3; part++) {
        __m512i u = _mm512_castps_si512(x), v = _mm512_castps_si512(y);
        if (part < 2) {                             /* rounded to nearest; the third part is exact */
            u = _mm512_add_epi32(u, half);
            v = _mm512_add_epi32(v, half);
        }
        __m512i pair = _mm512_mask_blend_epi16(0xaaaaaaaa, _mm512_srli_epi32(u, 16), v);
        _mm512_store_si512((void *)(to + part * 2 * TILE_ELEMENTS), pair);
        if (part == 0) largest = _mm512_max_epu16(largest, _mm512_add_epi16(pair, pair));
        x = _mm512_sub_ps(x, _mm512_castsi512_ps(_mm512_and_si512(u, high)));
        y = _mm512_sub_ps(y, _mm512_castsi512_ps(_mm512_and_si512(v, high)));
    }
    return largest;
}
#endif

/* keeps the compiler from moving vector instructions across tile multiplications */
#define COMPILER_FENCE __asm__ volatile ("" ::: "memory")
#define LOAD_A(PART) _tile_stream_loadd(4, a + (PART) * 2 * TILE_ELEMENTS, 64); _tile_stream_loadd(5, a + ((PART) * 2 + 1) * TILE_ELEMENTS, 64)
#define LOAD_B(PART) _tile_loadd(6, b + (PART) * 2 * TILE_ELEMENTS, 64); _tile_loadd(7, b + ((PART) * 2 + 1) * TILE_ELEMENTS, 64)

/* sums [32, 32] += a [32, 32] b [32, 32], both packed, with other work in six places behind multiplications */
#ifdef BFLOAT16_PAIRS
#define MULTIPLY(SUMS, A_TILE, B_TILE) COMPILER_FENCE; _tile_dpbf16ps(SUMS, A_TILE, B_TILE); COMPILER_FENCE
#define STEP(WORK_1, WORK_2, WORK_3, WORK_4, WORK_5, WORK_6) \
    LOAD_A(0); LOAD_B(0);                                    \
    MULTIPLY(0, 4, 6); WORK_1;                               \
    MULTIPLY(1, 4, 7); WORK_2; WORK_3;                       \
    MULTIPLY(2, 5, 6); WORK_4;                               \
    MULTIPLY(3, 5, 7); WORK_5; WORK_6
#else
#define MULTIPLY COMPILER_FENCE; _tile_dpbf16ps(0, 4, 6); _tile_dpbf16ps(1, 4, 7); _tile_dpbf16ps(2, 5, 6); _tile_dpbf16ps(3, 5, 7); COMPILER_FENCE
#define STEP(WORK_1, WORK_2, WORK_3, WORK_4, WORK_5, WORK_6) \
    LOAD_A(0); LOAD_B(2); MULTIPLY; WORK_1;                  \
    LOAD_B(1); MULTIPLY; WORK_2;                             \
    LOAD_A(1); MULTIPLY; WORK_3;                             \
    LOAD_B(0); MULTIPLY; WORK_4;                             \
    LOAD_A(2); MULTIPLY; WORK_5;                             \
    LOAD_A(0); MULTIPLY; WORK_6
#endif

/* sums [32, 32] += a [32, 32] b [32, 32], both packed */
AMX static void multiply_step(const bfloat16 *a, const bfloat16 *b) { STEP(,,,,,); }

/* Sources are prefetched into the L1 cache two halves ahead: instructions that wait for a load fill the reorder buffer before the processor reaches later
 * loads. The 1 x 1 convolutions of resnet50 with cold caches: 242 to 226 ms. A longer distance, or the L2 cache only, gained at most half of that. */
#define FETCH_LINES(FROM, APART) do { const float *line = FROM; __builtin_prefetch(line, 0, 3); __builtin_prefetch(line + (APART), 0, 3); } while (0)
#define FETCH(H, I) FETCH_LINES((H)->next.from + (I) * (H)->next.step, (H)->next.pair)
#define VECTOR(H, I) _mm512_loadu_ps((H)->source.from + (I) * (H)->source.step)
#define PARTNER(H, I) _mm512_loadu_ps((H)->source.from + (I) * (H)->source.step + (H)->source.pair)
#define DIRECT(I) do { FETCH(h, I); most = split_and_store(VECTOR(h, I), PARTNER(h, I), h->to + (I) * 32, most); } while (0)

/* multiply_step, and pack half a tile. */
AMX static void multiply_step_and_pack(const bfloat16 *a, const bfloat16 *b, const HalfTile *h)
{
    __m512i most = *h->largest;
    STEP(DIRECT(0), DIRECT(1); DIRECT(2), DIRECT(3), DIRECT(4); DIRECT(5), DIRECT(6), DIRECT(7));
    *h->largest = most;
}

#define SECOND(I) do { FETCH(h + 1, I); more = split_and_store(VECTOR(h + 1, I), PARTNER(h + 1, I), h[1].to + (I) * 32, more); } while (0)

/* multiply_step, and pack both halves of a tile, h [2]. */
AMX static void multiply_step_and_pack_tile(const bfloat16 *a, const bfloat16 *b, const HalfTile *h)
{
    __m512i most = *h[0].largest, more = _mm512_setzero_si512();
    STEP(DIRECT(0); DIRECT(1); DIRECT(2), DIRECT(3); DIRECT(4); DIRECT(5), DIRECT(6); DIRECT(7); SECOND(0),
         SECOND(1); SECOND(2); SECOND(3), SECOND(4); SECOND(5), SECOND(6); SECOND(7));
    *h[0].largest = most;
    *h[1].largest = _mm512_max_epu16(*h[1].largest, more);
}

#define FETCH_ROWS(I) FETCH_LINES(h->next.from + 2 * (I) * h->next.step, h->next.step)
#define COMPLETE(I) _mm512_load_ps(h->ready + (I) * 16)
#define READY(I) do { FETCH_ROWS(I); most = split_and_store(COMPLETE(I), COMPLETE((I) + 16), h->to + (I) * 32, most); } while (0)
#define LOAD_ROWS do {                                                                                                            \
    _Pragma("GCC unroll 16") for (int i = 0; i < 16; i++) r[i] = *(const unaligned_vector *)(h->source.from + i * h->source.step); \
    } while (0)
#define ROUND(TO, FROM) do {                                                      \
    _Pragma("GCC unroll 8") for (int i = 0; i < 8; i++) {                         \
        TO[2 * i] = SHUFFLE_PAIR(FROM[i], FROM[i + 8], INTERLEAVED_LOW);      \
        TO[2 * i + 1] = SHUFFLE_PAIR(FROM[i], FROM[i + 8], INTERLEAVED_HIGH); \
        __asm__ volatile ("" : "+v"(TO[2 * i]), "+v"(TO[2 * i + 1]));             \
    } } while (0)

/* multiply_step, and pack half a tile with transposition. */
AMX static void multiply_step_and_transpose(const bfloat16 *a, const bfloat16 *b, const HalfTile *h)
{
    vector r[16], q[16];
    __m512i most = *h->largest;
    STEP(READY(0); READY(1); LOAD_ROWS, READY(2); ROUND(q, r), READY(3); ROUND(r, q), READY(4); ROUND(q, r), READY(5); ROUND(r, q), READY(6); READY(7));
#pragma GCC unroll 16
    for (int i = 0; i < 16; i++) *(vector *)(h->square + i * 16) = r[i];
    *h->largest = most;
}

/* The packing of half a tile without a multiplication. */
static __attribute__((noinline)) void pack_half_tile(const HalfTile *h)
{
    __m512i most = *h->largest;
    for (int i = 0; i < 8; i++) DIRECT(i);
    *h->largest = most;
}

static __attribute__((noinline)) void transpose_half_tile(const HalfTile *h)
{
    __m512i most = *h->largest;
    for (int i = 0; i < 8; i++) READY(i);
    transpose_square(h->source.from, h->source.step, h->square, 16);
    *h->largest = most;
}

typedef struct __attribute__((packed)) TileConfig { uint8_t palette, start, reserved[14]; uint16_t bytes[16]; uint8_t rows[16]; } TileConfig;

/* Configure all tile registers as 16 rows of 64 bytes. */
AMX static void configure_tiles(void)
{
    TileConfig shapes = { .palette = 1 };
    for (int i = 0; i < 8; i++) { shapes.bytes[i] = 64; shapes.rows[i] = 16; }
    __asm__ volatile ("" :: "r"(&shapes) : "memory");   /* the compiler assumes that _tile_loadconfig reads 8 bytes only */
    _tile_loadconfig(&shapes);
}
/* Return the tile registers to their initial state. */
AMX static void release_tiles(void) { _tile_release(); }
AMX static void clear_block(void) { _tile_zero(0); _tile_zero(1); _tile_zero(2); _tile_zero(3); }
/* block [32, 32] = sums */
AMX static void store_block(float *block)
{ _tile_stored(0, block, 128); _tile_stored(1, block + 16, 128); _tile_stored(2, block + 512, 128); _tile_stored(3, block + 528, 128); }
#else
#define HAVE_AMX 0
static inline int enable_amx(void) { return 0; }
#endif
#endif
