/* Gelu, y = x cdf(x) with the cumulative normal distribution cdf, and its gradient, dx = dy (cdf(x) + x density(x)).
 *
 * Where the processor has an instruction that fetches an element of a vector per lane, a table of polynomials takes the place of an exponential and a division:
 * |x| is in one of GELU_INTERVALS intervals, whose coefficients are fetched for each degree. Tables have the tail 1 - cdf(|x|), so that results far below zero
 * keep their relative accuracy. */
#ifndef ORTRAIN_GELU_H
#define ORTRAIN_GELU_H
#include "common/row_vectors.h"
#include "elementwise/loops.h"

#if defined(__AVX2__) || defined(__aarch64__)
#include "elementwise/gelu_tables.h"

/* Return of_all[bits % GELU_INTERVALS] for each lane. */
#if defined(__AVX512F__)
ALWAYS_INLINE RowVector_float coefficients_at(RowMask_float bits, const float *of_all) { return _mm512_permutexvar_ps((__m512i)bits, _mm512_loadu_ps(of_all)); }
#elif defined(__AVX2__)         /* within 16 bytes: a permutation of eight elements takes twice as long on Zen 3 */
ALWAYS_INLINE RowVector_float coefficients_at(RowMask_float bits, const float *of_all)
{ return _mm256_permutevar_ps(_mm256_broadcast_ps((const __m128 *)of_all), (__m256i)bits); }
#else
#include <arm_neon.h>
ALWAYS_INLINE RowVector_float coefficients_at(RowMask_float bits, const float *of_all)
{
    const RowMask_float bytes = (bits & (GELU_INTERVALS - 1)) * 0x04040404 + 0x03020100;
    return (RowVector_float)vqtbl1q_u8((uint8x16_t)vld1q_f32(of_all), (uint8x16_t)bytes);
}
#endif

/* The tail that a table describes at a = |x|, unspecified beyond GELU_LIMIT */
ALWAYS_INLINE RowVector_float tail_of_table(RowVector_float a, const float table[GELU_DEGREE + 1][GELU_INTERVALS])
{
    const RowVector_float from_center = a * (GELU_INTERVALS / GELU_LIMIT) - 0.5f, rounded = from_center + 12582912.0f;  /* the low bits hold the interval */
    const RowVector_float r = from_center - (rounded - 12582912.0f), square = r * r;
#define COEFFICIENT(d) coefficients_at((RowMask_float)rounded, table[d])
    RowVector_float odd = COEFFICIENT(GELU_DEGREE), even = COEFFICIENT(GELU_DEGREE - 1);         /* two chains of additions take less time than one */
    _Pragma("GCC unroll 8") for (int d = GELU_DEGREE - 2; d > 0; d -= 2) {
        odd = odd * square + COEFFICIENT(d);
        even = even * square + COEFFICIENT(d - 1);
    }
#undef COEFFICIENT
    return odd * r + even;
}
ALWAYS_INLINE RowVector_float magnitude(RowVector_float x) { return (RowVector_float)((RowMask_float)x & INT32_MAX); }
/* a < GELU_LIMIT ? v : 0, and v where a is NaN */
ALWAYS_INLINE RowVector_float within_limit(RowVector_float a, RowVector_float v) { return row_masked_float(v, ~(a >= GELU_LIMIT)); }

/* max(x, 0) - |x| tail(|x|) */
ALWAYS_INLINE RowVector_float gelu_vector(RowVector_float x)
{
    const RowVector_float a = magnitude(x);
    return row_masked_float(x, ~(x < 0)) - within_limit(a, a * tail_of_table(a, normal_tail));
}
/* dy (x < 0 ? tail : 1 - tail) */
ALWAYS_INLINE RowVector_float gelu_grad_vector(RowVector_float dy, RowVector_float x)
{
    const RowVector_float a = magnitude(x), tail = within_limit(a, tail_of_table(a, slope_tail)), complement = 1 - tail;
    const RowMask_float is_below = x < 0;
    return dy * (RowVector_float)(((RowMask_float)tail & is_below) | ((RowMask_float)complement & ~is_below));
}

static void gelu_float_row(const float *x, float *y, int64_t n)
{
    RowVector_float end = {0};
    int64_t i = 0;
    for (; i + ROW_WIDTH_float <= n; i += ROW_WIDTH_float) row_store_float(y + i, gelu_vector(row_load_float(x + i)));
    if (i == n) return;
    memcpy(&end, x + i, (size_t)(n - i) * sizeof(float));
    end = gelu_vector(end);
    memcpy(y + i, &end, (size_t)(n - i) * sizeof(float));
}

/* Elements i.. of a row of n elements; a step of 0 repeats the first. */
ALWAYS_INLINE RowVector_float vector_of_row(const float *row, int64_t step, int64_t i)
{
    if (step) return row_load_float(row + i);
    return row[0] + (RowVector_float){0};
}
ALWAYS_INLINE RowVector_float end_of_row(const float *row, int64_t step, int64_t i, int64_t n)
{
    RowVector_float end = {0};
    if (!step) return vector_of_row(row, 0, i);
    memcpy(&end, row + i, (size_t)(n - i) * sizeof(float));
    return end;
}
static void ot_gelu_grad_float_row(const void *const *in, const int64_t *steps, void *dx, int64_t n, const double *p)
{
    const float *dy = in[0], *x = in[1];
    int64_t i = 0;
    (void)p;
    for (; i + ROW_WIDTH_float <= n; i += ROW_WIDTH_float)
        row_store_float((float *)dx + i, gelu_grad_vector(vector_of_row(dy, steps[0], i), vector_of_row(x, steps[1], i)));
    if (i == n) return;
    const RowVector_float end = gelu_grad_vector(end_of_row(dy, steps[0], i, n), end_of_row(x, steps[1], i, n));
    memcpy((float *)dx + i, &end, (size_t)(n - i) * sizeof(float));
}
BINARY_ITEM(ot_gelu_grad_float, float, float)
#else
ALWAYS_INLINE float gelu_float(float x) { float density; return x * ot_normalf(x, &density); }
ALWAYS_INLINE float gelu_slope_float(float x) { float density, cdf = ot_normalf(x, &density); return cdf + x * density; }
static void gelu_float_row(const float *x, float *y, int64_t n) { INDEPENDENT for (int64_t i = 0; i < n; i++) y[i] = gelu_float(x[i]); }
BINARY_LOOP(ot_gelu_grad_float, float, float, float, a * gelu_slope_float(b))
#endif

static void ot_gelu_float_item(void *context, int64_t item, int64_t worker)
{
    const KernelArgs *args = context; (void)worker;
    const int64_t start = item * CHUNK, n = min_i64(CHUNK, args->inputs[0].count - start);
    gelu_float_row((const float *)args->inputs[0].data + start, (float *)args->outputs[0].data + start, n);
}

ALWAYS_INLINE double gelu_double(double x) { double density; return x * ot_normal(x, &density); }
ALWAYS_INLINE double gelu_slope_double(double x) { double density, cdf = ot_normal(x, &density); return cdf + x * density; }
UNARY_LOOP(ot_gelu_double, double, double, double, gelu_double(x))
BINARY_LOOP(ot_gelu_grad_double, double, double, double, a * gelu_slope_double(b))
UNARY_REAL_KERNEL(ot_gelu)
REAL_KERNEL(ot_gelu_grad)
#endif
