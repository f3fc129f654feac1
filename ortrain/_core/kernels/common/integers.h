/* Arithmetic of sizes and offsets, all int64_t. */
#ifndef ORTRAIN_INTEGERS_H
#define ORTRAIN_INTEGERS_H
#include <stdint.h>

static inline int64_t min_i64(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t max_i64(int64_t a, int64_t b) { return a > b ? a : b; }

/* Return n / d rounded up, for n >= 0 and d > 0. */
static inline int64_t ceil_div(int64_t n, int64_t d) { return (n + d - 1) / d; }

/* Return n rounded up to a multiple of `multiple`. */
static inline int64_t round_up(int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }
#endif
