/* Hyperbolic functions and their inverses in float32 without branches; tanh is in vector_math.h, which also says what the comments state. */
#ifndef ORTRAIN_HYPERBOLIC_H
#define ORTRAIN_HYPERBOLIC_H
#include "common/vector_math.h"

/* Return 2^(n-2) +- 2^(-n-2) in *sum and *difference, and cosh(r), sinh(r) in *c, *s, where |x| = n ln 2 + r. Then
 * sinh |x| = 2 (difference cosh r + sum sinh r), which is sinh r for n = 0, and cosh x = 2 (sum cosh r + difference sinh r). Both are infinite at 89.5. */
ALWAYS_INLINE void ot_hyperbolic_parts(float x, float *sum, float *difference, float *c, float *s)
{
    float a = fabsf(x);
    int32_t n;
    float r = ot_reduce_exponent(ot_minf(a, 89.5f), &n), q = r * r;
    float large = ot_power_of_two(n - 2), small = ot_power_of_two(n > 125 ? -127 : -n - 2);
    *sum = large + small;
    *difference = large - small;
    *s = r + r * q * ((1.99049187e-4f * q + 8.33328906e-3f) * q + 1.66666672e-1f);
    *c = 1.0f + q * ((1.39460585e-3f * q + 4.16662693e-2f) * q + 0.5f);
}

/* sinh(x); 4 ulp */
ALWAYS_INLINE float ot_sinhf(float x)
{
    float sum, difference, c, s;
    ot_hyperbolic_parts(x, &sum, &difference, &c, &s);
    return copysignf(2.0f * (difference * c + sum * s), x);
}

/* cosh(x); 4 ulp */
ALWAYS_INLINE float ot_coshf(float x)
{
    float sum, difference, c, s;
    ot_hyperbolic_parts(x, &sum, &difference, &c, &s);
    return 2.0f * (sum * c + difference * s);
}

/* log(1 + u), or log(2 a) if `large` is set */
ALWAYS_INLINE float ot_log_of_sum_or_double(float u, float a, int large)
{
    float w = 1.0f + u, c = ot_select(u < 1.0f, u - (w - 1.0f), 1.0f - (w - u));
    return ot_log_of_sum(ot_select(large, a, w), ot_select(large, 0.0f, c), ot_select(large, 1.0f, 0.0f));
}

/* arsinh(x) = log(1 + |x| + x^2 / (1 + sqrt(1 + x^2))), and log(2 |x|) above 4096, with the sign of x; 2 ulp */
ALWAYS_INLINE float ot_asinhf(float x)
{
    float a = fabsf(x), q = a * a;
    return copysignf(ot_log_of_sum_or_double(a + q / (1.0f + sqrtf(1.0f + q)), a, a > 4096.0f), x);
}

/* arcosh(x) = log(1 + t + sqrt(t (t + 2))) with t = x - 1, and log(2 x) above 4096; NaN below 1; 2 ulp */
ALWAYS_INLINE float ot_acoshf(float x)
{
    float t = x - 1.0f, y = ot_log_of_sum_or_double(t + sqrtf(t * (t + 2.0f)), x, x > 4096.0f);
    return ot_select(x < 1.0f, NAN, y);
}

/* artanh(x) = log(1 + 2 |x| / (1 - |x|)) / 2 with the sign of x; infinite at 1, NaN beyond, as the logarithm of -1; 2 ulp */
ALWAYS_INLINE float ot_atanhf(float x)
{
    float a = fabsf(x), twice = 2.0f * a, u = twice + twice * (a / (1.0f - a));
    return copysignf(0.5f * ot_log1pf(ot_select(a < 1.0f, u, ot_select(a == 1.0f, INFINITY, -2.0f))), x);
}
#endif
