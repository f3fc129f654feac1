/* ONNX's Mod: the result has the sign of the divisor, or with p[0] set that of the dividend, as C's fmod. Integers modulo 0 give 0, and so do those modulo -1,
 * for which the smallest integer would trap. */
#ifndef ORTRAIN_MODULO_H
#define ORTRAIN_MODULO_H
#include "elementwise/loops.h"

#define FLOOR_MODULO(T) ALWAYS_INLINE T modulo_##T(T a, T b, int truncated) \
{ if (b == 0 || b == -1) return 0; T m = a % b; return !truncated && m != 0 && (m < 0) != (b < 0) ? (T)(m + b) : m; }
FLOOR_MODULO(int64_t) FLOOR_MODULO(int32_t) FLOOR_MODULO(uint8_t)
BINARY_LOOP(ot_mod_int64, int64_t, int64_t, int64_t, modulo_int64_t(a, b, p[0] != 0))
BINARY_LOOP(ot_mod_int32, int32_t, int32_t, int32_t, modulo_int32_t(a, b, p[0] != 0))
BINARY_LOOP(ot_mod_byte, uint8_t, uint8_t, uint8_t, modulo_uint8_t(a, b, p[0] != 0))

/* m = fmod(a, b), with the sign of b unless truncated */
ALWAYS_INLINE float with_sign_of_divisor(float m, float b, int truncated)
{ return ot_select((truncated == 0) & (m != 0) & ((m < 0) != (b < 0)), m + b, m); }
ALWAYS_INLINE double modulo_double(double a, double b, int truncated)
{ double m = fmod(a, b); return !truncated && m != 0 && (m < 0) != (b < 0) ? m + b : m; }
BINARY_LOOP(ot_mod_double, double, double, double, modulo_double(a, b, p[0] != 0))

/* fmod(a, b) = a - trunc(a / b) b for quotients below 2^28, all exact in double: the product has at most 52 bits, and a quotient of two numbers of 24 bits
 * that is not an integer is farther from the next integer than rounding moves it. */
ALWAYS_INLINE float fmod_of_small_quotient(float a, float b)
{ double q = (double)(int32_t)((double)a / (double)b); return copysignf((float)((double)a - q * (double)b), a); }
ALWAYS_INLINE int has_small_quotient(float a, float b) { return (fabsf(a) < 268435456.0f * fabsf(b)) & (fabsf(b) < INFINITY); }

static void ot_mod_float_row(const void *const *in, const int64_t *steps, void *to, int64_t n, const double *p)
{
    const float *x = in[0], *y = in[1];
    float *out = to, a[CHECKED_BLOCK], b[CHECKED_BLOCK];
    int truncated = p[0] != 0;
    for (int64_t start = 0, block; start < n; start += block) {
        int all_small = 1;
        block = min_i64(CHECKED_BLOCK, n - start);
        for (int64_t i = 0; i < block; i++) { a[i] = x[steps[0] ? start + i : 0]; b[i] = y[steps[1] ? start + i : 0]; }
        for (int64_t i = 0; i < block; i++) all_small &= has_small_quotient(a[i], b[i]);
        if (all_small) for (int64_t i = 0; i < block; i++) a[i] = fmod_of_small_quotient(a[i], b[i]);
        else for (int64_t i = 0; i < block; i++) a[i] = fmodf(a[i], b[i]);
        for (int64_t i = 0; i < block; i++) out[start + i] = with_sign_of_divisor(a[i], b[i], truncated);
    }
}
BINARY_ITEM(ot_mod_float, float, float)
NUMBER_KERNEL(ot_mod)
#endif
