/* The inner loops of pooling along one row. In C for `restrict` and constant strides, without which gcc does not vectorize them. */
#ifndef ORTRAIN_POOL_ROWS_H
#define ORTRAIN_POOL_ROWS_H
#include <stdint.h>

#if defined(_MSC_VER)
#define ROWS_RESTRICT __restrict
#define ROWS_INLINE static __forceinline
#else
#define ROWS_RESTRICT restrict
#define ROWS_INLINE static inline __attribute__((always_inline))
#endif

/* best[n] = max(best, x[0], x[stride], …); index the position of the maximum, the first of equals, -1 while there is none */
#define KEEP_LARGER(NAME, REAL)                                                                                                           \
    ROWS_INLINE void NAME##_strided(const REAL *ROWS_RESTRICT x, int32_t stride, int32_t where, REAL *ROWS_RESTRICT best,                 \
                                    int32_t *ROWS_RESTRICT index, int32_t n) {                                                            \
        for (int32_t i = 0; i < n; i++) {                                                                                                 \
            REAL value = x[(int64_t)i * stride], old = best[i];                                                                           \
            int32_t at = where + i * stride, better = (value > old) | (value != value), mask = -(better | (index[i] < 0));  /* NaN stays */ \
            best[i] = better ? value : old;                                                                                               \
            index[i] = (at & mask) | (index[i] & ~mask);                                                                                  \
        }                                                                                                                                 \
    }                                                                                                                                     \
    static void NAME(const REAL *x, int64_t stride, int32_t where, REAL *best, int32_t *index, int64_t n) {                               \
        if (stride == 1)                                                                                                                  \
            NAME##_strided(x, 1, where, best, index, (int32_t)n);                                                                         \
        else if (stride == 2)                                                                                                             \
            NAME##_strided(x, 2, where, best, index, (int32_t)n);                                                                         \
        else                                                                                                                              \
            NAME##_strided(x, (int32_t)stride, where, best, index, (int32_t)n);                                                           \
    }

/* sums[n] += x[0], x[stride], … */
#define ADD_ROW(NAME, REAL)                                                                                                               \
    ROWS_INLINE void NAME##_strided(const REAL *ROWS_RESTRICT x, int64_t stride, REAL *ROWS_RESTRICT sums, int64_t n) {                   \
        for (int64_t i = 0; i < n; i++) sums[i] += x[i * stride];                                                                         \
    }                                                                                                                                     \
    static void NAME(const REAL *x, int64_t stride, REAL *sums, int64_t n) {                                                              \
        if (stride == 1)                                                                                                                  \
            NAME##_strided(x, 1, sums, n);                                                                                                \
        else if (stride == 2)                                                                                                             \
            NAME##_strided(x, 2, sums, n);                                                                                                \
        else                                                                                                                              \
            NAME##_strided(x, stride, sums, n);                                                                                           \
    }

KEEP_LARGER(keep_larger_float32, float)
KEEP_LARGER(keep_larger_float64, double)
ADD_ROW(add_row_float32, float)
ADD_ROW(add_row_float64, double)

#endif
