/* x^y in float32 without branches, which the compiler vectorizes. */
#ifndef ORTRAIN_POWER_H
#define ORTRAIN_POWER_H
#include "common/vector_math.h"

/* log2(a) for a >= 0, in double with a relative error of 2^-37: a = 2^e m with m in [sqrt(1/2), sqrt(2)), and an odd polynomial in (m - 1) / (m + 1) */
ALWAYS_INLINE double ot_log2_in_double(float a)
{
    int tiny = a < 1.17549435e-38f;
    float scaled = ot_select(tiny, a * 8388608.0f, a), extra = ot_select(tiny, -23.0f, 0.0f);
    int32_t bits = ot_bits_from_root_half(scaled);
    float e = (float)(bits >> 23) + extra;
    e = ot_select(a < INFINITY, ot_select(a == 0.0f, -INFINITY, e), a);        /* infinity and NaN */
    double m = (double)ot_from_bits((bits & 0x007FFFFF) + 0x3F3504F3), s = (m - 1.0) / (m + 1.0), q = s * s;
    double p = 0.34072873817468285;
    p = p * q + 0.41167277902063576; p = p * q + 0.57708358431654549; p = p * q + 0.96179667334157359; p = p * q + 2.8853900817900979;
    return (double)e + p * s;
}

/* x^y, computed as sign 2^(y log2 |x|) in double, with the special cases of C99 and IEEE 754; 1 ulp, and exact where the result is a small integer */
ALWAYS_INLINE float ot_powf(float x, float y)
{
    double t = (double)y * ot_log2_in_double(fabsf(x));
    t = t > 200.0 ? 200.0 : t;
    t = t < -200.0 ? -200.0 : t;
    double n = (t + 6755399441055744.0) - 6755399441055744.0, f = t - n;                           /* 1.5 * 2^52: rounds to an integer */
    double p = 1.5345811429372117e-4;
    p = p * f + 1.3399931213552083e-3; p = p * f + 9.6184889592625476e-3; p = p * f + 5.550328776981342e-2; p = p * f + 0.24022646890614313;
    p = p * f + 0.69314720573726074; p = p * f + 1.0000000005541698;
    int32_t exponent = (int32_t)n, half = exponent >> 1;
    float result = (float)p * ot_power_of_two(half) * ot_power_of_two(exponent - half);
    float z = ot_select(fabsf(y) < 16777216.0f, y, 0.0f);          /* beyond, every number is an even integer */
    int32_t integer = (int32_t)z;
    int negative = ot_to_bits(x) < 0, finite = (x < 0.0f) & (x > -INFINITY), is_integer = (float)integer == z;
    result = ot_select(negative & is_integer & integer, -result, result);
    result = ot_select((finite & !is_integer) | (x != x) | (y != y), NAN, result);
    return ot_select((y == 0.0f) | (x == 1.0f) | ((x == -1.0f) & (fabsf(y) == INFINITY)), 1.0f, result);
}
#endif
