/* Short rows in registers for one element type (common/float_types.h); included by row_vectors.h. */

typedef REAL NAMED(RowVector) __attribute__((vector_size(VECTOR_BYTES), aligned(sizeof(REAL)), may_alias));
typedef __typeof__((NAMED(RowVector)){0} < (NAMED(RowVector)){0}) NAMED(RowMask);      /* integers of the same size */
enum { NAMED(ROW_WIDTH) = VECTOR_BYTES / sizeof(REAL) };

static inline int NAMED(is_row_of_vectors)(int64_t n) { return n >= NAMED(ROW_WIDTH) && n <= MAX_ROW_VECTORS * NAMED(ROW_WIDTH); }

ALWAYS_INLINE NAMED(RowVector) NAMED(row_load)(const REAL *x) { return *(const NAMED(RowVector) *)x; }
ALWAYS_INLINE void NAMED(row_store)(REAL *y, NAMED(RowVector) v) { *(NAMED(RowVector) *)y = v; }

/* Return -1 in the lanes of the last vector that the one before does not have, 0 in the others. */
static inline NAMED(RowMask) NAMED(lanes_of_end)(int64_t n, int64_t vectors)
{
    NAMED(RowMask) lanes;
    for (int l = 0; l < NAMED(ROW_WIDTH); l++) lanes[l] = l >= vectors * NAMED(ROW_WIDTH) - n ? -1 : 0;
    return lanes;
}

/* Return v with zeros where `lanes` is 0; a product would turn infinities there into NaN. */
ALWAYS_INLINE NAMED(RowVector) NAMED(row_masked)(NAMED(RowVector) v, NAMED(RowMask) lanes) { return (NAMED(RowVector))((NAMED(RowMask))v & lanes); }

/* Return the larger of the elements; `b` where either is NaN. */
ALWAYS_INLINE NAMED(RowVector) NAMED(row_larger)(NAMED(RowVector) a, NAMED(RowVector) b)
{
    NAMED(RowMask) is_larger = a > b;
    return (NAMED(RowVector))(((NAMED(RowMask))a & is_larger) | ((NAMED(RowMask))b & ~is_larger));
}

#if !defined(__AVX2__)       /* which has them in row_vectors.h */
ALWAYS_INLINE REAL NAMED(lane_sum)(NAMED(RowVector) v)
{
    REAL lanes[NAMED(ROW_WIDTH)];
    memcpy(lanes, &v, sizeof(v));
    _Pragma("GCC unroll 4") for (int half = NAMED(ROW_WIDTH) / 2; half > 0; half /= 2)
        _Pragma("GCC unroll 8") for (int l = 0; l < half; l++) lanes[l] += lanes[l + half];
    return lanes[0];
}
ALWAYS_INLINE REAL NAMED(lane_max)(NAMED(RowVector) v)
{
    REAL lanes[NAMED(ROW_WIDTH)];
    memcpy(lanes, &v, sizeof(v));
    _Pragma("GCC unroll 4") for (int half = NAMED(ROW_WIDTH) / 2; half > 0; half /= 2)
        _Pragma("GCC unroll 8") for (int l = 0; l < half; l++) lanes[l] = lanes[l + half] > lanes[l] ? lanes[l + half] : lanes[l];
    return lanes[0];
}
#endif
