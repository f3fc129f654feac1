/* Addition and multiplication of int64 with overflow checks: they return 1 on overflow, else 0 and store the result. */
#ifndef ORTRAIN_OVERFLOW_H
#define ORTRAIN_OVERFLOW_H
#include <stdint.h>

#if defined(__GNUC__) || defined(__clang__)
static inline int multiply_overflows(int64_t a, int64_t b, int64_t *result) { return __builtin_mul_overflow(a, b, result); }
static inline int add_overflows(int64_t a, int64_t b, int64_t *result) { return __builtin_add_overflow(a, b, result); }
#else
static inline int add_overflows(int64_t a, int64_t b, int64_t *result)
{
    if (b > 0 ? a > INT64_MAX - b : a < INT64_MIN - b) return 1;
    *result = a + b;
    return 0;
}
static inline int multiply_overflows(int64_t a, int64_t b, int64_t *result)
{
    if (a != 0 && b != 0) {
        if ((a == -1 && b == INT64_MIN) || (b == -1 && a == INT64_MIN)) return 1;
        if (a != -1 && b != -1 && (a > 0 ? b > INT64_MAX / a || b < INT64_MIN / a : b > INT64_MIN / a || b < INT64_MAX / a)) return 1;
    }
    *result = a * b;
    return 0;
}
#endif

#endif
