/* Addition and multiplication of int64 with overflow checks: they return 1 on overflow, else 0 and store the result. */
#ifndef ORTRAIN_OVERFLOW_H
#define ORTRAIN_OVERFLOW_H
#include <stdint.h>

static inline int multiply_overflows(int64_t a, int64_t b, int64_t *result) { return __builtin_mul_overflow(a, b, result); }
static inline int add_overflows(int64_t a, int64_t b, int64_t *result) { return __builtin_add_overflow(a, b, result); }

#endif
