/* y = a^b, broadcast. Exponents that are scalars and have a formula of a few operations use it. */
#ifndef ORTRAIN_ELEMENTWISE_POWER_H
#define ORTRAIN_ELEMENTWISE_POWER_H
#include "elementwise/loops.h"
#include "common/power.h"

/* a^(1/2): unlike the square root, infinite for -infinity, and 0 for -0 */
#define ROOT(a) SELECT((a) == -R_CONST(INFINITY), R_CONST(INFINITY), SQRT((a) + R_CONST(0)))
#define EACH_ELEMENT(R, EXPRESSION) INDEPENDENT for (int64_t i = 0; i < n; i++) { const R a = x[i]; out[i] = (EXPRESSION); }
#define POWER(R, FUNCTION)                                                                                      \
BINARY_ROW(power_##R, R, R, R, FUNCTION(a, b))                                                                  \
static void ot_pow_##R##_row(const void *const *in, const int64_t *steps, void *to, int64_t n, const double *p) \
{                                                                                                               \
    const R *x = in[0], *y = in[1], e = *y; R *out = to;                                                        \
    if (steps[0] == 0 || steps[1] == 1) power_##R##_row(in, steps, to, n, p);                                   \
    else if (e == (R)2) EACH_ELEMENT(R, a * a)                                                                  \
    else if (e == (R)3) EACH_ELEMENT(R, a * a * a)                                                              \
    else if (e == (R)1) EACH_ELEMENT(R, a)                                                                      \
    else if (e == (R)-1) EACH_ELEMENT(R, R_CONST(1) / a)                                                        \
    else if (e == (R)0.5) EACH_ELEMENT(R, ROOT(a))                                                              \
    else if (e == (R)-0.5) EACH_ELEMENT(R, R_CONST(1) / ROOT(a))                                                \
    else power_##R##_row(in, steps, to, n, p);                                                                  \
}                                                                                                               \
BINARY_ITEM(ot_pow_##R, R, R)
POWER(float, ot_powf)
POWER(double, pow)
REAL_KERNEL(ot_pow)
#endif
