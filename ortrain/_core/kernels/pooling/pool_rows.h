/* The inner loops of pooling along one row, in C because GCC only vectorizes them with `restrict` and constant strides. */
#ifndef ORTRAIN_POOL_ROWS_H
#define ORTRAIN_POOL_ROWS_H
#include <stdint.h>

#if defined(_MSC_VER)
#define RESTRICT __restrict
#define ALWAYS_INLINE static __forceinline
#else
#define RESTRICT restrict
#define ALWAYS_INLINE static inline __attribute__((always_inline))
#endif

/* best [n] = max(best, x[0], x[stride], ...). index [n]: position + the offset of the first maximum, -1 before there is one. */
#define UPDATE_MAX(NAME, REAL)                                                                                                                   \
    ALWAYS_INLINE void NAME##_strided(const REAL *RESTRICT x, int32_t stride, int32_t position, REAL *RESTRICT best,                             \
                                    int32_t *RESTRICT index, int32_t n) {                                                                        \
        for (int32_t i = 0; i < n; i++) {                                                                                                        \
            REAL value = x[(int64_t)i * stride], old = best[i];                                                                                  \
            int32_t at = position + i * stride, better = (value > old) | (value != value), mask = -(better | (index[i] < 0));  /* NaN is kept */ \
            best[i] = better ? value : old;                                                                                                      \
            index[i] = (at & mask) | (index[i] & ~mask);                                                                                         \
        }                                                                                                                                        \
    }                                                                                                                                            \
    static void NAME(const REAL *x, int64_t stride, int32_t position, REAL *best, int32_t *index, int64_t n) {                                   \
        if (stride == 1)                                                                                                                         \
            NAME##_strided(x, 1, position, best, index, (int32_t)n);                                                                             \
        else if (stride == 2)                                                                                                                    \
            NAME##_strided(x, 2, position, best, index, (int32_t)n);                                                                             \
        else                                                                                                                                     \
            NAME##_strided(x, (int32_t)stride, position, best, index, (int32_t)n);                                                               \
    }

/* sums [n] += x[0], x[stride], ... */
#define ADD_ROW(NAME, REAL)                                                                                     \
    ALWAYS_INLINE void NAME##_strided(const REAL *RESTRICT x, int64_t stride, REAL *RESTRICT sums, int64_t n) { \
        for (int64_t i = 0; i < n; i++) sums[i] += x[i * stride];                                               \
    }                                                                                                           \
    static void NAME(const REAL *x, int64_t stride, REAL *sums, int64_t n) {                                    \
        if (stride == 1)                                                                                        \
            NAME##_strided(x, 1, sums, n);                                                                      \
        else if (stride == 2)                                                                                   \
            NAME##_strided(x, 2, sums, n);                                                                      \
        else                                                                                                    \
            NAME##_strided(x, stride, sums, n);                                                                 \
    }

UPDATE_MAX(update_max_float32, float)
UPDATE_MAX(update_max_float64, double)
ADD_ROW(add_row_float32, float)
ADD_ROW(add_row_float64, double)

#endif
