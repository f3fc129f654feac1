/* Elementary functions in float32 without branches, which the compiler vectorizes: exponentials, logarithms, sigmoid, tanh, erf and the normal
 * distribution. trigonometry.h, hyperbolic.h and power.h have the others. The double versions call libm.
 *
 * A comment states the largest error in ulp (units in the last place of the exact result), which tests/ops/test_vector_math.py measures against float64 on
 * every instruction set. NaN gives NaN, infinities and zeros of both signs what C99 says, and subnormal results of exponentials are 0 unless stated
 * otherwise. Polynomials are minimax approximations, with the lowest coefficient last.
 *
 * x = n ln 2 + r with |r| <= ln 2 / 2: x / ln 2 is rounded by adding and subtracting 1.5 * 2^23 = 12582912, and n ln 2 is subtracted in two parts
 * (0.693359375, of 10 bits, and -2.12194440e-4). */
#ifndef ORTRAIN_VECTOR_MATH_H
#define ORTRAIN_VECTOR_MATH_H
#include <math.h>
#include <stdint.h>
#include <string.h>
#include "common/compiler.h"

ALWAYS_INLINE float ot_from_bits(int32_t bits) { float x; memcpy(&x, &bits, 4); return x; }
ALWAYS_INLINE int32_t ot_to_bits(float x) { int32_t bits; memcpy(&bits, &x, 4); return bits; }

/* the bits of x counted from those of sqrt(1/2), which wrap around: for x = 2^e m with m in [sqrt(1/2), sqrt(2)), e is bits >> 23 */
ALWAYS_INLINE int32_t ot_bits_from_root_half(float x) { return (int32_t)((uint32_t)ot_to_bits(x) - 0x3F3504F3u); }

/* condition ? a : b without a branch in any form that the compiler might keep: loops with branches are not vectorized. */
ALWAYS_INLINE float ot_select(int condition, float a, float b)
{ int32_t mask = -(int32_t)(condition != 0), low = ot_to_bits(b); return ot_from_bits(low ^ ((ot_to_bits(a) ^ low) & mask)); }
ALWAYS_INLINE double ot_select_double(int condition, double a, double b)
{
    int64_t mask = -(int64_t)(condition != 0), low, high;
    memcpy(&low, &b, 8);
    memcpy(&high, &a, 8);
    low ^= (high ^ low) & mask;
    memcpy(&b, &low, 8);
    return b;
}
ALWAYS_INLINE float ot_minf(float a, float bound) { return a > bound ? bound : a; }      /* NaN stays */
ALWAYS_INLINE float ot_maxf(float a, float bound) { return a < bound ? bound : a; }

/* 2^n for n in [-126, 127]; 0 for -127 */
ALWAYS_INLINE float ot_power_of_two(int32_t n) { return ot_from_bits((int32_t)(((uint32_t)n + 127u) << 23)); }

/* n and r for |z| < 2^21, of numbers and vectors: OT_SHIFTED holds n in its low bits, from 0x4B400000 on, and OT_REMAINDER is r. */
#define OT_SHIFTED(z) ((z) * 1.44269504f + 12582912.0f)
#define OT_REMAINDER(z, shifted) ((z) - ((shifted) - 12582912.0f) * 0.693359375f - ((shifted) - 12582912.0f) * -2.12194440e-4f)
/* exp(r) - 1 for |r| <= ln 2 / 2, where q = r^2 */
#define OT_EXPM1_REDUCED(r, q)                                                                                                      \
    ((((1.98458802e-4f * (r) + 1.39406545e-3f) * (q) + (8.33338965e-3f * (r) + 4.16663624e-2f)) * (q) + (1.66666657e-1f * (r) + 0.5f)) * (q) + (r))

/* Return r and store n, for |z| < 2^21. */
ALWAYS_INLINE float ot_reduce_exponent(float z, int32_t *n)
{
    float shifted = OT_SHIFTED(z);
    *n = (int32_t)((uint32_t)ot_to_bits(shifted) - 0x4B400000u);
    return OT_REMAINDER(z, shifted);
}
ALWAYS_INLINE float ot_expm1_reduced(float r) { float q = r * r; return OT_EXPM1_REDUCED(r, q); }

/* exp(x): 0 below -87.33; 1 ulp */
ALWAYS_INLINE float ot_expf(float x)
{
    int32_t n;
    float y = ot_expm1_reduced(ot_reduce_exponent(ot_minf(ot_maxf(x, -87.33f), 88.722839f), &n)) + 1.0f;
    int32_t half = n >> 1;                                /* 2^n as two factors, since 2^128 alone would overflow */
    y = y * ot_power_of_two(half) * ot_power_of_two(n - half);
    return ot_select(x < -87.33f, 0.0f, ot_select(x > 88.722839f, INFINITY, y));
}

/* exp(z) for z in [-87.33, 87.33], unspecified for others; 1 ulp */
ALWAYS_INLINE float ot_expf_inside(float z)
{
    int32_t n;
    float y = ot_expm1_reduced(ot_reduce_exponent(z, &n)) + 1.0f;
    return y * ot_power_of_two(n);
}

/* exp(x) for x <= 0, as in a softmax, where nothing can overflow; 0 below -87.33; 1 ulp */
ALWAYS_INLINE float ot_expf_of_negative(float x)
{
    return ot_select(x < -87.33f, 0.0f, ot_expf_inside(x));  /* NaN fails the comparison and is kept */
}

/* exp(x) - 1 = 2 (2^(n-1) (exp(r) - 1) + (2^(n-1) - 1/2)), which stays accurate for small arguments; 2 ulp */
ALWAYS_INLINE float ot_expm1f(float x)
{
    int32_t n;
    float y = ot_expm1_reduced(ot_reduce_exponent(ot_minf(ot_maxf(x, -30.0f), 88.722839f), &n)), h = ot_power_of_two(n - 1);
    y = 2.0f * (h * y + (h - 0.5f));
    return ot_select(x > 88.722839f, INFINITY, copysignf(y, x));
}

/* log(1 + f) + n ln 2 for f in [sqrt(1/2) - 1, sqrt(2) - 1) and an integer n, as log(w) of w = 2^n (1 + f), infinite or NaN where w says so */
ALWAYS_INLINE float ot_log_reduced(float f, float n, float w)
{
    float q = f * f;
    float high = (6.74663857e-2f * q + (-1.16756514e-1f * f + 1.18881628e-1f)) * q + (-1.24055892e-1f * f + 1.42195523e-1f);
    float p = high * (q * q) + ((-1.66679963e-1f * f + 2.00021192e-1f) * q + (-2.50000089e-1f * f + 3.33333135e-1f));
    float y = p * (q * f) + n * -2.12194440e-4f;
    y = y - 0.5f * q + f + n * 0.693359375f;
    y = ot_select(w == 0.0f, -INFINITY, ot_select(w == INFINITY, INFINITY, y));
    return ot_select((w < 0.0f) | (w != w), NAN, y);
}

/* log(x), also of subnormal x; 1 ulp */
ALWAYS_INLINE float ot_logf(float x)
{
    int tiny = x < 1.17549435e-38f;
    float scaled = ot_select(tiny, x * 8388608.0f, x), extra = ot_select(tiny, -23.0f, 0.0f);     /* normalizes subnormal numbers */
    int32_t bits = ot_bits_from_root_half(scaled);
    return ot_log_reduced(ot_from_bits((bits & 0x007FFFFF) + 0x3F3504F3) - 1.0f, (float)(bits >> 23) + extra, x);
}

/* log(2^extra (w + c)), where w is not subnormal and c not larger than its rounding error */
ALWAYS_INLINE float ot_log_of_sum(float w, float c, float extra)
{
    int32_t bits = ot_bits_from_root_half(w), n = bits >> 23;
    float f = ot_from_bits((bits & 0x007FFFFF) + 0x3F3504F3) - 1.0f;
    float low = c * ot_power_of_two(-n);
    return ot_log_reduced(f + ot_select(n < 64, low, 0.0f), (float)n + extra, w);
}

/* log(1 + x); 2 ulp */
ALWAYS_INLINE float ot_log1pf(float x)
{
    float w = 1.0f + x, c = ot_select(fabsf(x) < 1.0f, x - (w - 1.0f), 1.0f - (w - x));
    return copysignf(ot_log_of_sum(w, c, 0.0f), x);
}

/* log(1 + u) for u in [0, 1], as the series of 2 artanh(s) with s = u / (2 + u); 2 ulp */
ALWAYS_INLINE float ot_log1pf_of_fraction(float u)
{
    float s = u / (2.0f + u), q = s * s, p = 1.21447787e-1f;
    p = p * q + 1.07153706e-1f; p = p * q + 1.43082976e-1f; p = p * q + 1.99994445e-1f; p = p * q + 3.33333373e-1f;
    return 2.0f * (s + s * q * p);
}

/* 1 / (1 + exp(-x)); never below 1.2e-38; 3 ulp */
ALWAYS_INLINE float ot_sigmoidf(float x)
{
    return 1.0f / (1.0f + ot_expf_inside(-ot_minf(ot_maxf(x, -87.33f), 87.33f)));
}

/* tanh(x) = e / (e + 2) with e = exp(2 |x|) - 1, computed as in expm1; 3 ulp */
ALWAYS_INLINE float ot_tanhf(float x)
{
    float a = fabsf(x), z = 2.0f * ot_minf(a, 10.0f);
    int32_t n;
    float y = ot_expm1_reduced(ot_reduce_exponent(z, &n)), power = ot_power_of_two(n), e = power * y + (power - 1.0f);
    return copysignf(e / (e + 2.0f), x);
}

/* erf(x): an odd polynomial below 1; 1 - exp(p(|x|)) above, with a polynomial p for the logarithm of the complement; 2 ulp */
ALWAYS_INLINE float ot_erff(float x)
{
    float a = fabsf(x), q = a * a;
    float near = 7.85351876e-5f;
    near = near * q - 8.01008136e-4f; near = near * q + 5.18831331e-3f; near = near * q - 2.68538035e-2f; near = near * q + 1.12835847e-1f;
    near = near * q - 3.7612626e-1f; near = near * q + 1.28379147e-1f; near = near * x + x;
    float t = ot_minf(a, 4.0f);
    float p = -2.16975895e-5f;
    p = p * t + 4.41472337e-4f; p = p * t - 4.20528278e-3f; p = p * t + 2.5210334e-2f; p = p * t - 1.08422093e-1f; p = p * t - 6.33216381e-1f;
    p = p * t - 1.12958026f; p = p * t + 1.88466613e-4f;
    float far = copysignf(1.0f - ot_expf_inside(p), x);
    return ot_select(a < 1.0f, near, far);
}

/* Return the cumulative normal distribution at x, (1 + erf(x / sqrt 2)) / 2, by Abramowitz and Stegun 7.1.26, and store the density, which has the same
 * exponential; 3e-7 absolute. */
ALWAYS_INLINE float ot_normalf(float x, float *density)
{
    float e = ot_expf_of_negative(-0.5f * x * x), t = 1.0f / (1.0f + 0.23164189f * fabsf(x));
    float tail = 0.5f * e * (((((1.061405429f * t - 1.453152027f) * t + 1.421413741f) * t - 0.284496736f) * t + 0.254829592f) * t);
    *density = 0.3989422804f * e;
    return ot_select(x < 0.0f, tail, 1.0f - tail);
}
ALWAYS_INLINE double ot_normal(double x, double *density)
{
    *density = 0.3989422804014327 * exp(-0.5 * x * x);
    return 0.5 * (1 + erf(x * 0.7071067811865476));
}
#endif
