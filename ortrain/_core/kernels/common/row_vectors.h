/* Short rows in registers: a row of n elements is K vectors, of which the last ends with the row and overlaps the one before where n is no multiple of a vector.
 * Functions take K as a constant, so that the vectors of a row are registers; FOR_ROW_VECTORS lists the numbers. */
#ifndef ORTRAIN_ROW_VECTORS_H
#define ORTRAIN_ROW_VECTORS_H
#include <string.h>
#include "common/integers.h"
#include "common/tuning.h"
#include "common/vector_math.h"

/* Rows of more vectors spill registers, and are long enough for sums in lanes. */
enum { MAX_ROW_VECTORS = 8 };
#define FOR_ROW_VECTORS(DO) DO(1) DO(2) DO(3) DO(4) DO(5) DO(6) DO(7) DO(8)

/* The statement that follows, for each of the K vectors k; the first element of vector k; SUM = the sum of the vectors of(k), of which the last counts in the lanes
 * `end` only. */
#define EACH_ROW_VECTOR _Pragma("GCC unroll 8") for (int k = 0; k < K; k++)
#define ROW_VECTOR_AT(k) ((k) < K - 1 ? (k) * NAMED(ROW_WIDTH) : n - NAMED(ROW_WIDTH))
#define ROW_VECTOR_SUM(SUM, of) \
    NAMED(RowVector) SUM = NAMED(row_masked)(of(K - 1), end); _Pragma("GCC unroll 8") for (int k = 0; k < K - 1; k++) SUM += of(k);
/* REAL SUM = the sum over a longer row of n elements of the vectors OF(at), in four accumulators, which hide the latency of additions; `end` as above. */
#define LONG_ROW_SUM(SUM, OF)                                                                                                                             \
    REAL SUM; {                                                                                                                                           \
        enum { STEP = NAMED(ROW_WIDTH) };                                                                                                                 \
        NAMED(RowVector) first = {0}, second = {0}, third = {0}, fourth = {0}; int64_t k = 0, last = n - STEP;                                            \
        for (; k + 4 * STEP <= last; k += 4 * STEP) { first += OF(k); second += OF(k + STEP); third += OF(k + 2 * STEP); fourth += OF(k + 3 * STEP); }    \
        for (; k < last; k += STEP) first += OF(k);                                                                                                       \
        second += NAMED(row_masked)(OF(last), end);                                                                                                       \
        SUM = NAMED(lane_sum)((first + second) + (third + fourth)); }

#if defined(__AVX2__)
#include <immintrin.h>

/* The sum and the maximum (the larger of two, the lower lane where either is NaN) of a vector, halved until one element is left, in the order of the loops in
 * row_vectors_by_type.h, from which GCC makes a shuffle per element: layer normalization of rows of 128 elements took 1.7 times as long. */
#define HALVED_FLOAT(NAME, OP)                                                            \
ALWAYS_INLINE float NAME##_of_8(__m256 v)                                                 \
{                                                                                         \
    __m128 four = _mm_##OP##_ps(_mm256_extractf128_ps(v, 1), _mm256_castps256_ps128(v));  \
    __m128 two = _mm_##OP##_ps(_mm_movehl_ps(four, four), four);                          \
    return _mm_cvtss_f32(_mm_##OP##_ss(_mm_movehdup_ps(two), two));                       \
}
#define HALVED_DOUBLE(NAME, OP)                                                           \
ALWAYS_INLINE double NAME##_of_4(__m256d v)                                               \
{                                                                                         \
    __m128d two = _mm_##OP##_pd(_mm256_extractf128_pd(v, 1), _mm256_castpd256_pd128(v));  \
    return _mm_cvtsd_f64(_mm_##OP##_sd(_mm_unpackhi_pd(two, two), two));                  \
}
HALVED_FLOAT(lane_sum, add)
HALVED_FLOAT(lane_max, max)
HALVED_DOUBLE(lane_sum, add)
HALVED_DOUBLE(lane_max, max)
#if defined(__AVX512F__)
#define OF_WHOLE(NAME, OP)                                                                                                                        \
ALWAYS_INLINE float NAME##_float(__m512 v)                                                                                                        \
{ return NAME##_of_8(_mm256_##OP##_ps(_mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(v), 1)), _mm512_castps512_ps256(v))); }            \
ALWAYS_INLINE double NAME##_double(__m512d v) { return NAME##_of_4(_mm256_##OP##_pd(_mm512_extractf64x4_pd(v, 1), _mm512_castpd512_pd256(v))); }
#else
#define OF_WHOLE(NAME, OP)                                           \
ALWAYS_INLINE float NAME##_float(__m256 v) { return NAME##_of_8(v); } \
ALWAYS_INLINE double NAME##_double(__m256d v) { return NAME##_of_4(v); }
#endif
OF_WHOLE(lane_sum, add)
OF_WHOLE(lane_max, max)
#undef HALVED_FLOAT
#undef HALVED_DOUBLE
#undef OF_WHOLE
#endif

#define TEMPLATE "common/row_vectors_by_type.h"
#include "common/float_types.h"

/* exp(x) of each element in [-87.33, 87.33], as ot_expf_inside: GCC takes loops over the lanes of one vector apart. */
typedef uint32_t RowBits_float __attribute__((vector_size(VECTOR_BYTES)));
ALWAYS_INLINE RowVector_float row_exp_inside(RowVector_float x)
{
    const RowVector_float shifted = OT_SHIFTED(x), r = OT_REMAINDER(x, shifted), q = r * r, y = OT_EXPM1_REDUCED(r, q) + 1.0f;
    const RowBits_float power = ((RowBits_float)shifted << 23) + (127u << 23);                       /* 2^n; the shift drops 0x4B400000 */
    return y * (RowVector_float)power;
}
/* exp(x) of each element x <= 0, as ot_expf_of_negative */
ALWAYS_INLINE RowVector_float row_exp_of_negative_float(RowVector_float x) { return row_masked_float(row_exp_inside(x), ~(x < -87.33f)); /* keeps NaN */ }
ALWAYS_INLINE RowVector_double row_exp_of_negative_double(RowVector_double x)
{
    for (int l = 0; l < ROW_WIDTH_double; l++) x[l] = exp(x[l]);
    return x;
}

/* 1 / (1 + exp(-x)) of each element, as ot_sigmoidf */
ALWAYS_INLINE RowVector_float row_sigmoid_float(RowVector_float x)
{
    const RowVector_float low = -87.33f - (RowVector_float){0};
    RowVector_float z = row_larger_float(low, -x);                                                   /* -x where it is NaN */
    z = -row_larger_float(low, -z);
    return 1.0f / (1.0f + row_exp_inside(z));
}
ALWAYS_INLINE RowVector_double row_sigmoid_double(RowVector_double x)
{
    for (int l = 0; l < ROW_WIDTH_double; l++) x[l] = 1 / (1 + exp(-x[l]));
    return x;
}
#endif
