/* Elementary functions in float32 without branches, which the compiler vectorizes: exp, log, log1p, sigmoid, tanh, erf and the normal distribution.
 *
 * The number at the end of a comment is the largest relative error over the whole range, measured against float64. NaN inputs give NaN. exp is computed as
 * 2^n exp(r) with n = round(x / ln 2), |r| <= ln 2 / 2, and a polynomial of degree 7 for exp(r); x / ln 2 is rounded by adding and subtracting
 * 1.5 * 2^23 = 12582912, and n ln 2 is subtracted in two parts (0.693359375 and -2.12194440e-4). The double versions call libm. */
#ifndef ORTRAIN_VECTOR_MATH_H
#define ORTRAIN_VECTOR_MATH_H
#include <math.h>
#include <stdint.h>
#include <string.h>

static inline float ot_from_bits(int32_t bits) { float x; memcpy(&x, &bits, 4); return x; }
static inline int32_t ot_to_bits(float x) { int32_t bits; memcpy(&bits, &x, 4); return bits; }

/* exp(x): 0 below -87.33, infinity above 88.72; 2e-7 */
static inline float ot_expf(float x)
{
    float low = x < -87.33f ? -87.33f : x, z = low > 88.72f ? 88.72f : low;
    float t = z * 1.44269504f + 12582912.0f;            /* the low bits of t hold n */
    int32_t n = ot_to_bits(t) - 0x4B400000;
    float f = t - 12582912.0f, r = z - f * 0.693359375f;
    r = r - f * -2.12194440e-4f;
    float y = 1.0f / 5040.0f;
    y = y * r + 1.0f / 720.0f; y = y * r + 1.0f / 120.0f; y = y * r + 1.0f / 24.0f;
    y = y * r + 1.0f / 6.0f; y = y * r + 0.5f; y = y * r * r + r + 1.0f;
    int32_t half = n >> 1;                                /* 2^n as two factors, since 2^128 alone would overflow */
    y = y * ot_from_bits((half + 127) << 23) * ot_from_bits((n - half + 127) << 23);
    y = x > 88.72f ? INFINITY : y;
    y = x < -87.33f ? 0.0f : y;
    return x != x ? x : y;
}

/* exp(z) for z in [-87.33, 87.33], which the caller guarantees; 2e-7 */
static inline float ot_expf_inside(float z)
{
    float t = z * 1.44269504f + 12582912.0f, f = t - 12582912.0f;
    float r = z - f * 0.693359375f;
    r = r - f * -2.12194440e-4f;
    float y = 1.0f / 5040.0f;
    y = y * r + 1.0f / 720.0f; y = y * r + 1.0f / 120.0f; y = y * r + 1.0f / 24.0f;
    y = y * r + 1.0f / 6.0f; y = y * r + 0.5f; y = y * r * r + r + 1.0f;
    return y * ot_from_bits((ot_to_bits(t) - 0x4B400000 + 127) << 23);
}

/* exp(x) for x <= 0, as in a softmax, where nothing can overflow; 0 below -87.33; 2e-7 */
static inline float ot_expf_of_negative(float x)
{
    float y = ot_expf_inside(x < -87.33f ? -87.33f : x);
    return x < -87.33f ? 0.0f : y;                        /* NaN fails the comparison and is kept */
}

/* log(x) = e ln 2 + log(m) with m in [sqrt(1/2), sqrt(2)), and an odd series in (m - 1) / (m + 1) for log(m); 2e-7 */
static inline float ot_logf(float x)
{
    float scaled = x < 1.17549435e-38f ? x * 8388608.0f : x;     /* normalizes subnormal numbers */
    float extra = x < 1.17549435e-38f ? -23.0f : 0.0f;
    int32_t bits = ot_to_bits(scaled) - 0x3F3504F3;
    float e = (float)(bits >> 23) + extra;
    float m = ot_from_bits((bits & 0x007FFFFF) + 0x3F3504F3);
    float s = (m - 1.0f) / (m + 1.0f), q = s * s;
    float p = 1.0f / 11.0f;
    p = p * q + 1.0f / 9.0f; p = p * q + 1.0f / 7.0f; p = p * q + 0.2f; p = p * q + 1.0f / 3.0f;
    float y = 2.0f * s * q * p + e * -2.12194440e-4f + 2.0f * s + e * 0.693359375f;
    y = x == 0.0f ? -INFINITY : y;
    y = x == INFINITY ? INFINITY : y;
    return x < 0.0f || x != x ? NAN : y;
}

/* log(1 + x) for x in [0, 1]; two terms of its series below 3e-4, where 1 + x loses bits of x */
static inline float ot_log1pf(float x) { return x < 3e-4f ? x - 0.5f * x * x : ot_logf(1.0f + x); }

/* 1 / (1 + exp(-x)); never below 1.2e-38 */
static inline float ot_sigmoidf(float x)
{
    float low = x < -87.33f ? -87.33f : x;
    return 1.0f / (1.0f + ot_expf_inside(-(low > 87.33f ? 87.33f : low)));
}

/* tanh(x) = e / (e + 2) with e = exp(2 |x|) - 1, computed as 2^n (exp(r) - 1) + (2^n - 1), which stays accurate for small arguments; 3e-7 */
static inline float ot_tanhf(float x)
{
    float a = fabsf(x), z = a > 10.0f ? 20.0f : 2.0f * a;
    float t = z * 1.44269504f + 12582912.0f, f = t - 12582912.0f;
    float r = z - f * 0.693359375f;
    r = r - f * -2.12194440e-4f;
    float y = 1.0f / 5040.0f;
    y = y * r + 1.0f / 720.0f; y = y * r + 1.0f / 120.0f; y = y * r + 1.0f / 24.0f;
    y = y * r + 1.0f / 6.0f; y = y * r + 0.5f; y = y * r * r + r;
    float power = ot_from_bits((ot_to_bits(t) - 0x4B400000 + 127) << 23), e = power * y + (power - 1.0f);
    return copysignf(e / (e + 2.0f), x);
}

/* erf(x): its Taylor series below 0.5, Abramowitz and Stegun 7.1.26 above (1.5e-7 absolute); 3e-7 */
static inline float ot_erff(float x)
{
    float a = fabsf(x), q = x * x;
    float series = 1.0f / 9360.0f;
    series = series * q - 1.0f / 1320.0f; series = series * q + 1.0f / 216.0f; series = series * q - 1.0f / 42.0f;
    series = series * q + 0.1f; series = series * q - 1.0f / 3.0f; series = series * q + 1.0f;
    float t = 1.0f / (1.0f + 0.3275911f * a);
    float p = ((((1.061405429f * t - 1.453152027f) * t + 1.421413741f) * t - 0.284496736f) * t + 0.254829592f) * t;
    float far = copysignf(1.0f - p * ot_expf(-q), x);
    return a < 0.5f ? 1.12837917f * x * series : far;
}

/* Return the cumulative normal distribution at x, (1 + erf(x / sqrt 2)) / 2, by the same formula, and store the density, which has the same exponential;
 * 1e-7 absolute. */
static inline float ot_normalf(float x, float *density)
{
    float e = ot_expf_of_negative(-0.5f * x * x), t = 1.0f / (1.0f + 0.23164189f * fabsf(x));
    float tail = 0.5f * e * (((((1.061405429f * t - 1.453152027f) * t + 1.421413741f) * t - 0.284496736f) * t + 0.254829592f) * t);
    *density = 0.3989422804f * e;
    return x < 0.0f ? tail : 1.0f - tail;
}
static inline double ot_normal(double x, double *density)
{
    *density = 0.3989422804014327 * exp(-0.5 * x * x);
    return 0.5 * (1 + erf(x * 0.7071067811865476));
}
#endif
