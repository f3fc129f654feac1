/* The tile instructions of AMX that the kernels use (matmul/amx_tiles.h), computed in C as Intel documents them, for tests on processors without AMX:
 * Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2; TDPBF16PS is also at https://www.felixcloutier.com/x86/tdpbf16ps.
 *
 * Included before everything else (-include), this replaces the compiler's intrinsics, and tells the kernels that the processor has AMX and that Linux permits
 * its use. What the processor would refuse ends the process: tiles that are not configured, rows that end at another place than their tile. */
#ifndef EMULATED_TILES_H
#define EMULATED_TILES_H
#include <cpuid.h>
#include <immintrin.h>
#include <stdint.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { TILES = 8, TILE_ROWS_LIMIT = 16, TILE_ROW_BYTES_LIMIT = 64 };

/* The tile registers of a thread; those that are not configured have 0 rows. */
static _Thread_local struct { int32_t tile[TILES][TILE_ROWS_LIMIT][TILE_ROW_BYTES_LIMIT / 4]; uint16_t row_bytes[TILES]; uint8_t rows[TILES]; } tiles;

static inline void refuse_unless(int allowed) { if (!allowed) __builtin_trap(); }

static inline void emulated_loadconfig(const void *memory)
{
    const uint8_t *config = memory;
    memset(&tiles, 0, sizeof(tiles));
    refuse_unless(config[0] == 1);
    for (int i = 1; i < 16; i++) refuse_unless(config[i] == 0);         /* start row, and what is reserved */
    memcpy(tiles.row_bytes, config + 16, sizeof(tiles.row_bytes));
    memcpy(tiles.rows, config + 48, sizeof(tiles.rows));
    for (int i = 0; i < TILES; i++) refuse_unless(tiles.rows[i] <= TILE_ROWS_LIMIT && tiles.row_bytes[i] <= TILE_ROW_BYTES_LIMIT);
}

static inline void emulated_release(void) { memset(&tiles, 0, sizeof(tiles)); }

static inline void emulated_zero(int tile)
{
    refuse_unless(tiles.rows[tile] > 0);
    memset(tiles.tile[tile], 0, sizeof(tiles.tile[tile]));
}

static inline void emulated_loadd(int tile, const void *memory, int64_t step)
{
    emulated_zero(tile);
    for (int i = 0; i < tiles.rows[tile]; i++) memcpy(tiles.tile[tile][i], (const uint8_t *)memory + i * step, tiles.row_bytes[tile]);
}

static inline void emulated_stored(int tile, void *memory, int64_t step)
{
    refuse_unless(tiles.rows[tile] > 0);
    for (int i = 0; i < tiles.rows[tile]; i++) memcpy((uint8_t *)memory + i * step, tiles.tile[tile][i], tiles.row_bytes[tile]);
}

/* sums [16] += x y, for the first or the second numbers of pairs: x is one pair, y has 16. */
static inline __m512 add_products(__m512 sums, __m512i x, __m512i y, int second)
{
    const __m512i upper = _mm512_set1_epi32((int)0xffff0000u);
    x = second ? _mm512_and_si512(x, upper) : _mm512_slli_epi32(x, 16);
    y = second ? _mm512_and_si512(y, upper) : _mm512_slli_epi32(y, 16);
    return _mm512_fmadd_ps(_mm512_castsi512_ps(x), _mm512_castsi512_ps(y), sums);
}

/* The first numbers of pairs and the second ones are summed apart, each sum from 0 on by fused multiplications and additions, and both sums together are added
 * to the tile; rounding to nearest even, subnormal operands and results being 0, whatever the mode of the thread. Only for sums in whole tiles. */
static __attribute__((noinline)) void emulated_dpbf16ps(int c, int a, int b)
{
    enum { MASKED_EXCEPTIONS = 0x1f80, FLUSHED_RESULTS = 0x8000, FLUSHED_OPERANDS = 0x40 };
    int pairs = tiles.row_bytes[a] / 4;
    refuse_unless(a != b && a != c && b != c && pairs > 0 && tiles.row_bytes[a] % 4 == 0 && tiles.rows[b] == pairs);
    refuse_unless(tiles.rows[c] == TILE_ROWS_LIMIT && tiles.rows[a] == TILE_ROWS_LIMIT && tiles.row_bytes[b] == TILE_ROW_BYTES_LIMIT
                  && tiles.row_bytes[c] == TILE_ROW_BYTES_LIMIT);
    unsigned mode = _mm_getcsr();
    _mm_setcsr(MASKED_EXCEPTIONS | FLUSHED_RESULTS | FLUSHED_OPERANDS);
    __asm__ volatile ("" ::: "memory");
    for (int row = 0; row < TILE_ROWS_LIMIT; row++) {
        __m512 first = _mm512_setzero_ps(), second = _mm512_setzero_ps();
        for (int pair = 0; pair < pairs; pair++) {
            __m512i x = _mm512_set1_epi32(tiles.tile[a][row][pair]), y = _mm512_loadu_si512(tiles.tile[b][pair]);
            first = add_products(first, x, y, 0);
            second = add_products(second, x, y, 1);
        }
        _mm512_storeu_ps(tiles.tile[c][row], _mm512_add_ps(_mm512_loadu_ps(tiles.tile[c][row]), _mm512_add_ps(first, second)));
    }
    __asm__ volatile ("" ::: "memory");
    _mm_setcsr(mode);
}

#undef _tile_loadd
#undef _tile_stream_loadd
#undef _tile_stored
#undef _tile_zero
#undef _tile_dpbf16ps
#undef __get_cpuid_count
#define _tile_loadconfig emulated_loadconfig
#define _tile_release emulated_release
#define _tile_zero emulated_zero
#define _tile_loadd emulated_loadd
#define _tile_stream_loadd emulated_loadd
#define _tile_stored emulated_stored
#define _tile_dpbf16ps emulated_dpbf16ps
#define __get_cpuid_count(LEAF, SUBLEAF, A, B, C, D) ((void)(LEAF), (void)(SUBLEAF), *(A) = *(B) = *(C) = 0, *(D) = ~0u, 1)
#define syscall(NUMBER, ...) 0                      /* success */
#endif
