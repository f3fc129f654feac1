/* Conversion of float16 and bfloat16 from and to float32, rounding to nearest even.
 *
 * Only integer operations and one float multiplication or addition: loops over these functions vectorize on any processor, also without F16C or AVX512-BF16.
 * Infinities, NaNs and subnormal numbers are preserved. */
#ifndef ORTRAIN_HALF_PRECISION_H
#define ORTRAIN_HALF_PRECISION_H
#include <stdint.h>
#include <string.h>

static inline float float_of_bits(uint32_t bits) { float x; memcpy(&x, &bits, 4); return x; }
static inline uint32_t bits_of_float(float x) { uint32_t bits; memcpy(&bits, &x, 4); return bits; }

static inline float float32_from_float16(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, magnitude = (uint32_t)(h & 0x7fff) << 13;
    /* The exponent biases differ by 112; the multiplication also normalizes subnormal numbers. */
    uint32_t finite = bits_of_float(float_of_bits(magnitude) * 0x1p112f), special = magnitude | 0x7f800000u;
    return float_of_bits(sign | ((h & 0x7c00) == 0x7c00 ? special : finite));
}

static inline uint16_t float16_from_float32(float x)
{
    uint32_t bits = bits_of_float(x), sign = bits >> 16 & 0x8000, magnitude = bits & 0x7fffffff;
    uint32_t normal = (magnitude + 0xfff + (magnitude >> 13 & 1) - (112u << 23)) >> 13;
    /* The last bit of 0.5f weighs 2^-24, as the smallest float16 subnormal does: adding 0.5 rounds to a multiple of it. */
    uint32_t subnormal = bits_of_float(float_of_bits(magnitude) + 0.5f) - bits_of_float(0.5f);
    uint32_t finite = magnitude < 0x38800000u ? subnormal : normal;               /* below 2^-14 */
    uint32_t special = magnitude > 0x7f800000u ? 0x7e00 | (magnitude >> 13 & 0x1ff) : 0x7c00;
    return (uint16_t)(sign | (magnitude >= 0x477ff000u ? special : finite));      /* 65520 and above round to infinity */
}

static inline float float32_from_bfloat16(uint16_t h) { return float_of_bits((uint32_t)h << 16); }

static inline uint16_t bfloat16_from_float32(float x)
{
    uint32_t bits = bits_of_float(x), rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    return (uint16_t)((bits & 0x7fffffff) > 0x7f800000u ? bits >> 16 | 0x40 : rounded);
}
#endif
