/* One step of a float32 product on a processor's bfloat16 tiles (AMX), and what is packed for later ones meanwhile.
 *
 * a = a1 + a2 + a3, each part a bfloat16 of 8 bits: all 24 of a float32. Of the nine products of two numbers' parts the six largest are summed, small ones
 * first; each of the others is at most 2^-25 of the whole. In that order the six change one operand each: 14 loads of tiles for 24 products.
 *
 * The tiles' unit takes 16 cycles for a product and leaves the vector units idle; what they do is hidden if it lies between the products, a few instructions at
 * a time (packing half a tile: 4 ns; as a function called between steps: 40). */
#ifndef ORTRAIN_BFLOAT16_TILES_H
#define ORTRAIN_BFLOAT16_TILES_H
#include "matmul/gemm_packing.h"
#include "matmul/amx_eligibility.h"

#if defined(__AVX512BW__) && defined(__linux__) && defined(__x86_64__) && (defined(__clang__) ? __clang_major__ >= 12 : __GNUC__ >= 11)
#define HAVE_TILES 1
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Whether this processor has the tiles, and the system lets this process use them, which it wants to be asked: their registers are 8 KiB. */
static int allow_tiles(void)
{
    enum { LEAF = 7, BFLOAT16 = 1 << 22, TILES = 1 << 24, REQUEST_PERMISSION = 0x1023, TILE_DATA = 18 };
    unsigned a, b, c, d;
    return __get_cpuid_count(LEAF, 0, &a, &b, &c, &d) && (d & BFLOAT16) && (d & TILES) && !syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA);
}

#define STEP_DEPTH 32                               /* of a tile: 16 pairs */
#define TILE_NUMBERS 512
#define STEP_NUMBERS (3 * 2 * TILE_NUMBERS)         /* of a panel: three parts, two tiles each */
#define AMX __attribute__((target("amx-tile,amx-bf16"), noinline))

typedef uint16_t bfloat16;

/* Where the numbers of a tile, or from a half on, lie: vectors of 16 numbers `step` floats apart, and `pair` floats from each those that they are paired with */
typedef struct TileSource { const float *from; int64_t step, pair; } TileSource;

/* Half of the tiles (one of each part) of 16 rows or columns, on its way. Direct, 8 vectors and what they are paired with are read. Transposed, a square of
 * 16 x 16 is transposed to `square`, and 8 vectors of a tile whose squares are complete are taken from `ready` and `ready` + 256. The same half of the next
 * tile is fetched meanwhile. */
typedef struct HalfTile {
    TileSource source, next;
    const float *ready;
    float *square;
    bfloat16 *to;
    __m512i *largest;                               /* of the first parts, as twice the bits without the sign */
} HalfTile;

/* x and y in three parts, a part of x beside one of y */
static inline __attribute__((always_inline)) __m512i store_parts(__m512 x, __m512 y, bfloat16 *to, __m512i largest)
{
    const __m512i half = _mm512_set1_epi32(0x8000), high = _mm512_set1_epi32((int)0xffff0000u);
#pragma GCC unroll 3
    for (int part = 0; part < 3; part++) {
        __m512i u = _mm512_castps_si512(x), v = _mm512_castps_si512(y);
        if (part < 2) {                             /* rounded; the third part is exact */
            u = _mm512_add_epi32(u, half);
            v = _mm512_add_epi32(v, half);
        }
        __m512i pair = _mm512_mask_blend_epi16(0xaaaaaaaa, _mm512_srli_epi32(u, 16), v);
        _mm512_store_si512((void *)(to + part * 2 * TILE_NUMBERS), pair);
        if (part == 0) largest = _mm512_max_epu16(largest, _mm512_add_epi16(pair, pair));
        x = _mm512_sub_ps(x, _mm512_castsi512_ps(_mm512_and_si512(u, high)));
        y = _mm512_sub_ps(y, _mm512_castsi512_ps(_mm512_and_si512(v, high)));
    }
    return largest;
}

/* keeps what the vector units do between these products there */
#define FENCE __asm__ volatile ("" ::: "memory")
#define LOAD_A(PART) _tile_stream_loadd(4, a + (PART) * 2 * TILE_NUMBERS, 64); _tile_stream_loadd(5, a + ((PART) * 2 + 1) * TILE_NUMBERS, 64)
#define LOAD_B(PART) _tile_loadd(6, b + (PART) * 2 * TILE_NUMBERS, 64); _tile_loadd(7, b + ((PART) * 2 + 1) * TILE_NUMBERS, 64)
#define MULTIPLY FENCE; _tile_dpbf16ps(0, 4, 6); _tile_dpbf16ps(1, 4, 7); _tile_dpbf16ps(2, 5, 6); _tile_dpbf16ps(3, 5, 7); FENCE

/* 32 x 32 results, 32 deep */
AMX static void multiply_step(const bfloat16 *a, const bfloat16 *b)
{
    LOAD_A(0); LOAD_B(2); MULTIPLY;
    LOAD_B(1); MULTIPLY;
    LOAD_A(1); MULTIPLY;
    LOAD_B(0); MULTIPLY;
    LOAD_A(2); MULTIPLY;
    LOAD_A(0); MULTIPLY;
}

/* Fetched two halves ahead, into the first cache: what waits for a vector fills the processor's queue before it sees so far itself. resnet50's 1 x 1 products
 * with nothing in the caches: 242 to 226 ms; further ahead, or into the second cache alone, gained half of it at most. */
#define FETCH_LINES(FROM, APART) do { const float *line = FROM; __builtin_prefetch(line, 0, 3); __builtin_prefetch(line + (APART), 0, 3); } while (0)
#define FETCH(H, I) FETCH_LINES((H)->next.from + (I) * (H)->next.step, (H)->next.pair)
#define VECTOR(H, I) _mm512_loadu_ps((H)->source.from + (I) * (H)->source.step)
#define PARTNER(H, I) _mm512_loadu_ps((H)->source.from + (I) * (H)->source.step + (H)->source.pair)
#define DIRECT(I) do { FETCH(h, I); most = store_parts(VECTOR(h, I), PARTNER(h, I), h->to + (I) * 32, most); } while (0)

AMX static void multiply_step_and_pack(const bfloat16 *a, const bfloat16 *b, const HalfTile *h)
{
    __m512i most = *h->largest;
    LOAD_A(0); LOAD_B(2); MULTIPLY; DIRECT(0);
    LOAD_B(1); MULTIPLY; DIRECT(1); DIRECT(2);
    LOAD_A(1); MULTIPLY; DIRECT(3);
    LOAD_B(0); MULTIPLY; DIRECT(4); DIRECT(5);
    LOAD_A(2); MULTIPLY; DIRECT(6);
    LOAD_A(0); MULTIPLY; DIRECT(7);
    *h->largest = most;
}

/* both halves of a tile, in one step */
#define SECOND(I) do { FETCH(h + 1, I); more = store_parts(VECTOR(h + 1, I), PARTNER(h + 1, I), h[1].to + (I) * 32, more); } while (0)

AMX static void multiply_step_and_pack_tile(const bfloat16 *a, const bfloat16 *b, const HalfTile *h)
{
    __m512i most = *h[0].largest, more = _mm512_setzero_si512();
    LOAD_A(0); LOAD_B(2); MULTIPLY; DIRECT(0); DIRECT(1); DIRECT(2);
    LOAD_B(1); MULTIPLY; DIRECT(3); DIRECT(4); DIRECT(5);
    LOAD_A(1); MULTIPLY; DIRECT(6); DIRECT(7); SECOND(0);
    LOAD_B(0); MULTIPLY; SECOND(1); SECOND(2); SECOND(3);
    LOAD_A(2); MULTIPLY; SECOND(4); SECOND(5);
    LOAD_A(0); MULTIPLY; SECOND(6); SECOND(7);
    *h[0].largest = most;
    *h[1].largest = _mm512_max_epu16(*h[1].largest, more);
}

#define FETCH_ROWS(I) FETCH_LINES(h->next.from + 2 * (I) * h->next.step, h->next.step)
#define COMPLETE(I) _mm512_load_ps(h->ready + (I) * 16)
#define READY(I) do { FETCH_ROWS(I); most = store_parts(COMPLETE(I), COMPLETE((I) + 16), h->to + (I) * 32, most); } while (0)
#define ROUND(TO, FROM) do {                                                                        \
    _Pragma("GCC unroll 8") for (int i = 0; i < 8; i++) {                                           \
        TO[2 * i] = __builtin_shuffle(FROM[i], FROM[i + 8], INTERLEAVE_LOW);                        \
        TO[2 * i + 1] = __builtin_shuffle(FROM[i], FROM[i + 8], INTERLEAVE_HIGH);                   \
        __asm__ volatile ("" : "+v"(TO[2 * i]), "+v"(TO[2 * i + 1]));                               \
    } } while (0)

AMX static void multiply_step_and_transpose(const bfloat16 *a, const bfloat16 *b, const HalfTile *h)
{
    vector r[16], q[16];
    __m512i most = *h->largest;
    LOAD_A(0); LOAD_B(2); MULTIPLY; READY(0); READY(1);
#pragma GCC unroll 16
    for (int i = 0; i < 16; i++) r[i] = *(const loose_vector *)(h->source.from + i * h->source.step);
    LOAD_B(1); MULTIPLY; READY(2); ROUND(q, r);
    LOAD_A(1); MULTIPLY; READY(3); ROUND(r, q);
    LOAD_B(0); MULTIPLY; READY(4); ROUND(q, r);
    LOAD_A(2); MULTIPLY; READY(5); ROUND(r, q);
    LOAD_A(0); MULTIPLY; READY(6); READY(7);
#pragma GCC unroll 16
    for (int i = 0; i < 16; i++) *(vector *)(h->square + i * 16) = r[i];
    *h->largest = most;
}

/* the same two without a product */
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

typedef struct __attribute__((packed)) TileShapes { uint8_t palette, start, reserved[14]; uint16_t bytes[16]; uint8_t rows[16]; } TileShapes;

/* tiles of 16 rows of 64 bytes, until end_tiles() */
AMX static void begin_tiles(void)
{
    TileShapes shapes = { .palette = 1 };
    for (int i = 0; i < 8; i++) { shapes.bytes[i] = 64; shapes.rows[i] = 16; }
    __asm__ volatile ("" :: "r"(&shapes) : "memory");   /* the compiler thinks that only 8 bytes are read */
    _tile_loadconfig(&shapes);
}
AMX static void end_tiles(void) { _tile_release(); }
AMX static void clear_block(void) { _tile_zero(0); _tile_zero(1); _tile_zero(2); _tile_zero(3); }
/* block [32, 32] */
AMX static void store_block(float *block)
{ _tile_stored(0, block, 128); _tile_stored(1, block + 16, 128); _tile_stored(2, block + 512, 128); _tile_stored(3, block + 528, 128); }
#else
#define HAVE_TILES 0
static int allow_tiles(void) { return 0; }
#endif
#endif
