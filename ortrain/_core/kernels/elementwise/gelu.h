/* Gelu, y = x cdf(x) with the cumulative normal distribution cdf, and its gradient, dx = dy (cdf(x) + x density(x)).
 *
 * With AVX-512 a table of polynomials takes the place of an exponential and a division, 1.9 times as fast: x is in one of GELU_INTERVALS intervals of |x|, whose
 * coefficients one permutation each fetches from a register. Other instruction sets have no permutation of 16 numbers. */
#ifndef ORTRAIN_GELU_H
#define ORTRAIN_GELU_H
#include "elementwise/loops.h"

#if defined(__AVX512F__)
#include <immintrin.h>
enum { GELU_INTERVALS = 16, GELU_DEGREE = 5 };
#define GELU_INTERVALS_PER_UNIT 2.6666667f
#define GELU_LIMIT 5.9999995f        /* below 6, where the last interval ends: beyond, both functions are 0 or 1 to 1e-7 */

/* cdf(a) - 1/2 of a = (interval + r) 3/8, as a polynomial of r in [0, 1): for each degree, the coefficients of all intervals; minimax, 3e-8 absolute */
static const float normal_table[GELU_DEGREE + 1][GELU_INTERVALS] = {
    { 2.02161399e-09f, 0.146169767f, 0.27337265f, 0.369705468f, 0.43319279f, 0.469603628f, 0.487775534f, 0.495667547f,
      0.498650104f, 0.499630928f, 0.499911577f, 0.499981463f, 0.499996603f, 0.499999464f, 0.499999911f, 0.5f },
    { 0.149603218f, 0.13944535f, 0.112926304f, 0.0794537142f, 0.0485692136f, 0.0257949792f, 0.0119024329f, 0.00477157393f,
      0.00166192569f, 0.00050290284f, 0.000132213987f, 3.01988021e-05f, 5.99265377e-06f, 1.03315097e-06f, 1.54746772e-07f, 2.01368096e-08f },
    { 1.5327405e-06f, -0.00980121177f, -0.0158775449f, -0.0167593826f, -0.0136613753f, -0.00906998478f, -0.0050220741f, -0.00234858808f,
      -0.000934642449f, -0.000318056671f, -9.28578011e-05f, -2.33135634e-05f, -5.04229683e-06f, -9.4069469e-07f, -1.51535076e-07f, -2.1094694e-08f },
    { -0.00351240882f, -0.00282374676f, -0.00116993766f, 0.000492655206f, 0.00142839784f, 0.0015272426f, 0.00113664835f, 0.00065918878f,
      0.000310774747f, 0.000121625548f, 3.99918281e-05f, 1.11326735e-05f, 2.63730112e-06f, 5.33653065e-07f, 9.24892021e-08f, 1.37584415e-08f },
    { 1.03751181e-05f, 0.000357273675f, 0.000477496127f, 0.000345444598f, 0.000109939021f, -6.72484821e-05f, -0.000128192711f, -0.000108096996f,
      -6.41645747e-05f, -2.96263879e-05f, -1.10751962e-05f, -3.42212707e-06f, -8.84827955e-07f, -1.92986022e-07f, -3.57044883e-08f, -5.62620395e-09f },
    { 6.70510781e-05f, 2.52121827e-05f, -2.34847557e-05f, -4.511515e-05f, -3.5335499e-05f, -1.30996314e-05f, 3.20976937e-06f, 8.47258707e-06f,
      6.92610911e-06f, 3.81584823e-06f, 1.607728e-06f, 5.43279725e-07f, 1.50800901e-07f, 3.48693554e-08f, 6.77779299e-09f, 1.11445897e-09f },
};
/* cdf(a) + a density(a) - 1/2, likewise; 7e-8 absolute. The last interval ends at 1/2, so that nothing passes where x is far below zero. */
static const float gelu_slope_table[GELU_DEGREE + 1][GELU_INTERVALS] = {
    { 1.59678049e-08f, 0.285615444f, 0.499225736f, 0.608066678f, 0.627469182f, 0.598577917f, 0.559189737f, 0.52906853f,
      0.511945665f, 0.504157186f, 0.501233816f, 0.500313699f, 0.500068545f, 0.500012875f, 0.500002086f, 0.500000298f },
    { 0.299205601f, 0.259279579f, 0.162330702f, 0.0583493374f, -0.0121411374f, -0.0390946679f, -0.0364510156f, -0.0233362149f,
      -0.011633792f, -0.0047227866f, -0.00159493648f, -0.000453493994f, -0.000109378212f, -2.24902687e-05f, -3.95636198e-06f, -5.96981351e-07f },
    { 1.21257572e-05f, -0.0378145538f, -0.0545741357f, -0.0458328649f, -0.0239183698f, -0.00440043863f, 0.0053350646f, 0.00679171272f,
      0.00467647007f, 0.00235279719f, 0.000935422548f, 0.000303833018f, 8.20568457e-05f, 1.8623392e-05f, 3.57680642e-06f, 5.84168902e-07f },
    { -0.0140734604f, -0.0100300647f, -0.00106689322f, 0.00608675415f, 0.00766915828f, 0.00502233626f, 0.00162157894f, -0.000376000098f,
      -0.000866783259f, -0.000639825768f, -0.000319876854f, -0.00012256729f, -3.77072101e-05f, -9.53344534e-06f, -2.00807085e-06f, -3.90974151e-07f },
    { 8.22520014e-05f, 0.00210289797f, 0.00238835136f, 0.00108298322f, -0.000378634315f, -0.000953864714f, -0.000714459515f, -0.000259350199f,
      1.96230139e-05f, 9.03925611e-05f, 6.61337908e-05f, 3.1200696e-05f, 1.10712426e-05f, 3.12024031e-06f, 7.17364628e-07f, 1.36642669e-07f },
    { 0.000388895103f, 7.24489073e-05f, -0.000237042812f, -0.000283727277f, -0.000122303929f, 3.8473343e-05f, 8.76146296e-05f, 5.69706972e-05f,
      1.60327272e-05f, -3.95849247e-06f, -6.86693647e-06f, -4.13589169e-06f, -1.68064992e-06f, -5.19699086e-07f, -1.28167088e-07f, -2.58249901e-08f },
};

/* The odd function of x that a table describes for positive x. NaN stays NaN. */
ALWAYS_INLINE __m512 odd_of_table(__m512 x, const float table[GELU_DEGREE + 1][GELU_INTERVALS])
{
    const __m512 sign = _mm512_castsi512_ps(_mm512_set1_epi32(INT32_MIN)), per_unit = _mm512_set1_ps(GELU_INTERVALS_PER_UNIT);
    __m512 a = _mm512_min_ps(_mm512_set1_ps(GELU_LIMIT), _mm512_abs_ps(x));
    __m512i interval = _mm512_cvttps_epi32(_mm512_mul_ps(a, per_unit));
    __m512 r = _mm512_fmsub_ps(a, per_unit, _mm512_cvtepi32_ps(interval)), p = _mm512_permutexvar_ps(interval, _mm512_loadu_ps(table[GELU_DEGREE]));
    _Pragma("GCC unroll 8") for (int d = GELU_DEGREE - 1; d >= 0; d--) p = _mm512_fmadd_ps(p, r, _mm512_permutexvar_ps(interval, _mm512_loadu_ps(table[d])));
    return _mm512_castsi512_ps(_mm512_ternarylogic_epi32(_mm512_castps_si512(sign), _mm512_castps_si512(x), _mm512_castps_si512(p), 0xCA));
}

/* Elements i.. of a row, of which `lanes` count; a step of 0 repeats the first. */
ALWAYS_INLINE __m512 lanes_of_row(const float *row, int64_t step, int64_t i, __mmask16 lanes)
{ return step ? _mm512_maskz_loadu_ps(lanes, row + i) : _mm512_set1_ps(row[0]); }
ALWAYS_INLINE void gelu_lanes(const float *in, float *out, __mmask16 lanes)
{
    const __m512 x = _mm512_maskz_loadu_ps(lanes, in), cdf = _mm512_add_ps(_mm512_set1_ps(0.5f), odd_of_table(x, normal_table));
    _mm512_mask_storeu_ps(out, lanes, _mm512_mul_ps(x, cdf));
}
ALWAYS_INLINE void gelu_grad_lanes(__m512 dy, __m512 x, float *dx, __mmask16 lanes)
{ _mm512_mask_storeu_ps(dx, lanes, _mm512_mul_ps(dy, _mm512_add_ps(_mm512_set1_ps(0.5f), odd_of_table(x, gelu_slope_table)))); }

/* FUNCTION(i, lanes) for each vector of n elements; whole ones without masks, by which stores are slow */
#define EACH_VECTOR(n, FUNCTION)                                             \
    int64_t i = 0;                                                           \
    for (; i + 16 <= (n); i += 16) FUNCTION(i, 0xFFFF);                      \
    if (i < (n)) { const __mmask16 rest = (1 << ((n) - i)) - 1; FUNCTION(i, rest); }

static void gelu_float_row(const float *x, float *y, int64_t n)
{
#define GELU(i, lanes) gelu_lanes(x + i, y + i, lanes)
    EACH_VECTOR(n, GELU)
}
static void ot_gelu_grad_float_row(const void *const *in, const int64_t *steps, void *dx, int64_t n, const double *p)
{
    (void)p;
    const float *dy = in[0], *x = in[1];
#define GELU_GRAD(i, lanes) gelu_grad_lanes(lanes_of_row(dy, steps[0], i, lanes), lanes_of_row(x, steps[1], i, lanes), (float *)dx + i, lanes)
    EACH_VECTOR(n, GELU_GRAD)
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
