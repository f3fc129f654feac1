/* Trigonometric functions and their inverses in float32; vector_math.h says what the comments state. sin, cos and tan are without branches for
 * |x| < TRIGONOMETRIC_LIMIT; ot_sinf_large and so on take all x, infinities (which give NaN) included, and are not vectorized. */
#ifndef ORTRAIN_TRIGONOMETRY_H
#define ORTRAIN_TRIGONOMETRY_H
#include "common/vector_math.h"

#define TRIGONOMETRIC_LIMIT 67108864.0f

/* Return r = x - k pi / 2 with |r| <= pi / 4 and store k, for |x| < TRIGONOMETRIC_LIMIT. In double, pi / 2 has two parts, of 25 and 53 bits, and multiples of
 * the former are exact. */
ALWAYS_INLINE float ot_reduce_angle(float x, int32_t *k)
{
    double f = ((double)x * 0.63661977236758134 + 6755399441055744.0) - 6755399441055744.0;       /* 1.5 * 2^52: rounds to an integer */
    double r = (double)x - f * 1.57079631090164184570;
    *k = (int32_t)f;
    return (float)(r - f * 1.58932547735281966916e-8);
}

/* The same for |x| >= TRIGONOMETRIC_LIMIT (Payne and Hanek, 1983): x = m 2^e with an integer m of 24 bits. Of 2^e (2 / pi), only bits of weight 2 and below
 * matter modulo 4; m times 96 of them leaves an error of 2^-70. NaN for infinities and NaN. */
static inline float ot_reduce_large_angle(float x, int32_t *k)
{
    static const uint32_t two_over_pi[] = {0xA2F9836Eu, 0x4E441529u, 0xFC2757D1u, 0xF534DDC0u, 0xDB629599u, 0x3C439041u, 0xFE5163ABu};
    int32_t bits = ot_to_bits(x) & 0x7FFFFFFF, first = (bits >> 23) - 150 - 2, word = first >> 5, shift = first & 31;     /* bit `first` has weight 2 */
    *k = 0;
    if (bits >= 0x7F800000) return NAN;
    uint64_t m = (uint64_t)(bits & 0x007FFFFF) | 0x00800000, window[3];
    for (int i = 0; i < 3; i++)
        window[i] = (uint32_t)(((((uint64_t)two_over_pi[word + i] << 32) | two_over_pi[word + i + 1]) << shift) >> 32);
    uint64_t product = m * ((window[0] << 32) | window[1]) + ((m * window[2]) >> 32);              /* 2 bits before the point, 62 behind it */
    uint64_t quadrant = (product + ((uint64_t)1 << 61)) >> 62;
    double r = (double)(int64_t)(product - (quadrant << 62)) * (1.57079632679489661923 / 4611686018427387904.0);
    *k = x < 0 ? -(int32_t)quadrant : (int32_t)quadrant;
    return (float)(x < 0 ? -r : r);
}

/* sin(r + k pi / 2) for |r| <= pi / 4 */
ALWAYS_INLINE float ot_sin_of_quadrant(float r, int32_t k)
{
    float q = r * r;
    float s = r + r * q * ((-1.9514958e-4f * q + 8.33215844e-3f) * q - 1.66666552e-1f);
    float c = (1.0f - 0.5f * q) + q * q * ((2.44327857e-5f * q - 1.3887313e-3f) * q + 4.16666456e-2f);
    return ot_from_bits(ot_to_bits(ot_select(k & 1, c, s)) ^ ((int32_t)((uint32_t)k << 30) & INT32_MIN));
}

/* tan(r + k pi / 2) for |r| <= pi / 4 */
ALWAYS_INLINE float ot_tan_of_quadrant(float r, int32_t k)
{
    float q = r * r, p = 4.38167853e-3f;
    p = p * q + 7.88631733e-5f; p = p * q + 1.08440025e-2f; p = p * q + 2.1279119e-2f; p = p * q + 5.40604927e-2f; p = p * q + 1.3332659e-1f;
    p = p * q + 3.33333492e-1f;
    float t = r + r * q * p;
    return ot_select(k & 1, -1.0f, t) / ot_select(k & 1, t, 1.0f);
}

/* sin(x), cos(x) and tan(x): 2, 2 and 3 ulp */
ALWAYS_INLINE float ot_sinf(float x) { int32_t k; float r = ot_reduce_angle(x, &k), y = ot_sin_of_quadrant(r, k); return ot_select(x == 0.0f, x, y); }
ALWAYS_INLINE float ot_cosf(float x) { int32_t k; float r = ot_reduce_angle(x, &k); return ot_sin_of_quadrant(r, k + 1); }
ALWAYS_INLINE float ot_tanf(float x) { int32_t k; float r = ot_reduce_angle(x, &k), y = ot_tan_of_quadrant(r, k); return ot_select(x == 0.0f, x, y); }

/* whether x is infinite, NaN or too large for the functions above */
ALWAYS_INLINE int ot_is_large_angle(float x) { return !(fabsf(x) < TRIGONOMETRIC_LIMIT); }
#define LARGE_ANGLES(NAME, FUNCTION_OF_QUADRANT, QUARTERS)              \
static inline float ot_##NAME##f_large(float x)                         \
{                                                                       \
    if (!ot_is_large_angle(x)) return ot_##NAME##f(x);                  \
    int32_t k;                                                          \
    float r = ot_reduce_large_angle(x, &k);                             \
    return FUNCTION_OF_QUADRANT(r, k + (QUARTERS));                     \
}
LARGE_ANGLES(sin, ot_sin_of_quadrant, 0)
LARGE_ANGLES(cos, ot_sin_of_quadrant, 1)
LARGE_ANGLES(tan, ot_tan_of_quadrant, 0)

/* arcsin of s, where q = s^2 <= 1/4 */
ALWAYS_INLINE float ot_asin_polynomial(float s, float q)
{
    float p = 4.21663076e-2f;
    p = p * q + 2.41795164e-2f; p = p * q + 4.54703756e-2f; p = p * q + 7.49529749e-2f; p = p * q + 1.66667521e-1f;
    return s + s * q * p;
}

/* arcsin(x), by arcsin x = pi / 2 - 2 arcsin sqrt((1 - x) / 2) above 1/2; NaN outside of [-1, 1]; 3 ulp */
ALWAYS_INLINE float ot_asinf(float x)
{
    float a = fabsf(x), q = ot_select(a > 0.5f, 0.5f - 0.5f * a, a * a);
    float root = sqrtf(q), p = ot_asin_polynomial(ot_select(a > 0.5f, root, a), q);
    return copysignf(ot_select(a > 0.5f, 1.57079637f - (2.0f * p - -4.37113883e-8f), p), x);
}

/* arccos(x), by the same formulas; NaN outside of [-1, 1]; 2 ulp */
ALWAYS_INLINE float ot_acosf(float x)
{
    float a = fabsf(x), q = ot_select(a > 0.5f, 0.5f - 0.5f * a, a * a);
    float root = sqrtf(q), v = copysignf(ot_asin_polynomial(ot_select(a > 0.5f, root, a), q), x);
    float far = ot_select(x < 0.0f, 3.14159274f + (2.0f * v - 8.74227766e-8f), 2.0f * v), near = 1.57079637f - (v - -4.37113883e-8f);
    return ot_select(a > 0.5f, far, near);
}

/* arctan(x), by arctan x = pi / 2 - arctan(1 / x) above 1; 2 ulp */
ALWAYS_INLINE float ot_atanf(float x)
{
    float a = fabsf(x), t = ot_select(a > 1.0f, 1.0f, a) / ot_select(a > 1.0f, a, 1.0f), q = t * t;
    float p = 2.9206886e-3f;
    p = p * q - 1.63679142e-2f; p = p * q + 4.32118364e-2f; p = p * q - 7.55221248e-2f; p = p * q + 1.06660038e-1f; p = p * q - 1.42110556e-1f;
    p = p * q + 1.99937731e-1f; p = p * q - 3.33331525e-1f;
    p = t + t * q * p;
    return copysignf(ot_select(a > 1.0f, 1.57079637f - (p - -4.37113883e-8f), p), x);
}
#endif
