/* float16 and bfloat16 from and to float32, rounded to nearest even, in integers: plain loops that vectorize on any processor, with or without
 * instructions of its own for them. */
#ifndef ORTRAIN_HALVES_H
#define ORTRAIN_HALVES_H
#include <stdint.h>
#include <string.h>

static inline float float_of_bits(uint32_t bits) { float x; memcpy(&x, &bits, 4); return x; }
static inline uint32_t bits_of_float(float x) { uint32_t bits; memcpy(&bits, &x, 4); return bits; }

static inline float widened_float16(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, magnitude = (uint32_t)(h & 0x7fff) << 13;
    /* the exponents' biases differ by 112; the product makes normal numbers of subnormal ones */
    uint32_t finite = bits_of_float(float_of_bits(magnitude) * 0x1p112f), special = magnitude | 0x7f800000u;
    return float_of_bits(sign | ((h & 0x7c00) == 0x7c00 ? special : finite));
}

static inline uint16_t rounded_float16(float x)
{
    uint32_t bits = bits_of_float(x), sign = bits >> 16 & 0x8000, magnitude = bits & 0x7fffffff;
    uint32_t normal = (magnitude + 0xfff + (magnitude >> 13 & 1) - (112u << 23)) >> 13;
    /* one unit in the last place of 0.5 is the smallest subnormal: the sum rounds to it */
    uint32_t subnormal = bits_of_float(float_of_bits(magnitude) + 0.5f) - bits_of_float(0.5f);
    uint32_t finite = magnitude < 0x38800000u ? subnormal : normal;               /* 2^-14 */
    uint32_t special = magnitude > 0x7f800000u ? 0x7e00 | (magnitude >> 13 & 0x1ff) : 0x7c00;
    return (uint16_t)(sign | (magnitude >= 0x477ff000u ? special : finite));      /* 65520 and above round to infinity */
}

static inline float widened_bfloat16(uint16_t h) { return float_of_bits((uint32_t)h << 16); }

static inline uint16_t rounded_bfloat16(float x)
{
    uint32_t bits = bits_of_float(x), rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    return (uint16_t)((bits & 0x7fffffff) > 0x7f800000u ? bits >> 16 | 0x40 : rounded);
}
#endif
