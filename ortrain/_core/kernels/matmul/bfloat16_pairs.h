/* Pairs of bfloat16 numbers of adjacent depths in 32 bits, the first in the lower half: the elements of panels of a bfloat16 GEMM.
 *
 * AVX512-BF16 has an instruction for each function. Elsewhere integer operations and two multiplications do the same, bit for bit: numbers are rounded to
 * nearest even, subnormal ones become zero, NaNs stay NaNs, the product of two bfloat16 numbers is exact in float32, and the product of the second numbers of a
 * pair is added before that of the first.
 *
 * ARM's instructions round operands alike, but sums in a way of their own: BFDOT adds the two products of a pair to each other and then to the sum, rounds both
 * times to odd instead of to nearest even, and takes subnormal numbers for zero. Results differ from those of emulated pairs by the rounding of sums. */
#ifndef ORTRAIN_BFLOAT16_PAIRS_H
#define ORTRAIN_BFLOAT16_PAIRS_H
#include <stdint.h>

typedef int32_t pair;

#if defined(__AVX512BF16__) && VECTOR_BYTES == 64
static inline __attribute__((always_inline)) vector add_dot_product(vector sum, int_vector x, int_vector y)
{ return (vector)_mm512_dpbf16_ps((__m512)sum, (__m512bh)x, (__m512bh)y); }

static inline __attribute__((always_inline)) int_vector pairs_of(vector first, vector second)
{
    static const uint16_t interleaved[32] = {0,16,1,17,2,18,3,19,4,20,5,21,6,22,7,23,8,24,9,25,10,26,11,27,12,28,13,29,14,30,15,31};
    return (int_vector)_mm512_permutexvar_epi16(_mm512_loadu_si512(interleaved), (__m512i)_mm512_cvtne2ps_pbh((__m512)second, (__m512)first));
}

static inline __attribute__((always_inline)) int_vector adjacent_pairs(vector front, vector back)
{ return (int_vector)_mm512_cvtne2ps_pbh((__m512)back, (__m512)front); }
#elif defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
/* sum + x . y for the pairs in each lane of y, and the pair in one lane of x: the instruction names it, a constant once loops are unrolled. */
static inline __attribute__((always_inline)) vector add_dot_product_by_lane(vector sum, int_vector x, int lane, int_vector y)
{
    switch (lane) {
    case 0: return (vector)vbfdotq_laneq_f32((float32x4_t)sum, (bfloat16x8_t)y, (bfloat16x8_t)x, 0);
    case 1: return (vector)vbfdotq_laneq_f32((float32x4_t)sum, (bfloat16x8_t)y, (bfloat16x8_t)x, 1);
    case 2: return (vector)vbfdotq_laneq_f32((float32x4_t)sum, (bfloat16x8_t)y, (bfloat16x8_t)x, 2);
    default: return (vector)vbfdotq_laneq_f32((float32x4_t)sum, (bfloat16x8_t)y, (bfloat16x8_t)x, 3);
    }
}

/* sum + x . y for the pairs in each lane of y, and one pair x from memory, which is loaded without being copied into all lanes */
static inline __attribute__((always_inline)) vector add_dot_product_of_pair(vector sum, pair x, int_vector y)
{
    const int32x2_t only = {x};
    return (vector)vbfdotq_lane_f32((float32x4_t)sum, (bfloat16x8_t)y, (bfloat16x4_t)only, 0);
}

/* Inside of a tile's step: `lanes` are the first `adjacent` pairs of the column of A (common/tile_columns.h), x is pair i in all lanes. */
#define ADD_PRODUCT(sum, x, y) \
    sum = i < adjacent ? add_dot_product_by_lane(sum, lanes[i / LANES], i % LANES, y) : add_dot_product_of_pair(sum, (x)[0], y)

static inline __attribute__((always_inline)) int_vector pairs_of(vector first, vector second)
{ return (int_vector)vzip1q_u16((uint16x8_t)vcvtq_low_bf16_f32((float32x4_t)first), (uint16x8_t)vcvtq_low_bf16_f32((float32x4_t)second)); }

static inline __attribute__((always_inline)) int_vector adjacent_pairs(vector front, vector back)
{ return (int_vector)vcvtq_high_bf16_f32(vcvtq_low_bf16_f32((float32x4_t)front), (float32x4_t)back); }
#else
#define EMULATES_PAIRS
/* sum + x . y for the pairs in each lane */
static inline __attribute__((always_inline)) vector add_dot_product(vector sum, int_vector x, int_vector y)
{
    const int_vector upper = (int_vector){0} - 0x10000;
    sum += (vector)(x & upper) * (vector)(y & upper);
    return sum + (vector)(x << 16) * (vector)(y << 16);
}

/* Return the numbers rounded to bfloat16, in the upper halves of 32 bits whose lower halves are 0. */
static inline __attribute__((always_inline)) int_vector rounded(vector x)
{
    typedef uint32_t bits_vector __attribute__((vector_size(VECTOR_BYTES)));
    const bits_vector bits = (bits_vector)x, magnitude = bits & 0x7fffffff, upper = (bits_vector){0} + 0xffff0000u;
    const bits_vector nearest = bits + 0x7fff + (bits >> 16 & 1), quiet = bits | 0x400000;
    const bits_vector is_nan = (bits_vector)(magnitude > 0x7f800000), is_subnormal = (bits_vector)(magnitude < 0x00800000);
    return (int_vector)(((is_nan & quiet) | (~is_nan & nearest)) & (upper & ~(is_subnormal & 0x7fffffff)));
}

/* Return the pairs (first[l], second[l]). */
static inline __attribute__((always_inline)) int_vector pairs_of(vector first, vector second)
{
    typedef uint32_t bits_vector __attribute__((vector_size(VECTOR_BYTES)));
    return (int_vector)((bits_vector)rounded(first) >> 16) | rounded(second);
}

/* Return the pairs of adjacent elements of `front` and `back` side by side. */
static inline __attribute__((always_inline)) int_vector adjacent_pairs(vector front, vector back)
{
#if LANES == 16
    const int_vector even = {0,2,4,6,8,10,12,14,16,18,20,22,24,26,28,30}, odd = {1,3,5,7,9,11,13,15,17,19,21,23,25,27,29,31};
#elif LANES == 8
    const int_vector even = {0,2,4,6,8,10,12,14}, odd = {1,3,5,7,9,11,13,15};
#else
    const int_vector even = {0,2,4,6}, odd = {1,3,5,7};
#endif
    return pairs_of(SHUFFLE_PAIR(front, back, even), SHUFFLE_PAIR(front, back, odd));
}
#endif
#endif
