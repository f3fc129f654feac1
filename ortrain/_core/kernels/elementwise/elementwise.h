/* Elementwise kernels, one line each; the loops are in loops.h. */
#ifndef ORTRAIN_ELEMENTWISE_H
#define ORTRAIN_ELEMENTWISE_H
#include "elementwise/gelu.h"
#include "elementwise/modulo.h"
#include "elementwise/power.h"
#include "common/half_precision.h"

#define R_INFINITY ((__typeof__(x))INFINITY)
UNARY_REAL(ot_relu, x < 0 ? 0 : x)          /* not x > 0, so that NaN is kept and divergence is visible */
UNARY_REAL(ot_leaky_relu, SELECT(x > 0, x, X_CONST(p[0]) * x))
UNARY_REAL(ot_sigmoid_kernel, SIGMOID(x))
UNARY_REAL(ot_tanh, TANH(x))
UNARY_REAL(ot_erf, ERF(x))
UNARY_REAL(ot_exp, EXP(x))
UNARY_REAL(ot_log, LOG(x))
UNARY_REAL(ot_sqrt, SQRT(x))
UNARY_REAL(ot_reciprocal, X_CONST(1) / x)
UNARY_ANGLE(ot_sin, ot_sinf, sin)
UNARY_ANGLE(ot_cos, ot_cosf, cos)
UNARY_ANGLE(ot_tan, ot_tanf, tan)
UNARY_REAL(ot_asin, ASIN(x))
UNARY_REAL(ot_acos, ACOS(x))
UNARY_REAL(ot_atan, ATAN(x))
UNARY_REAL(ot_sinh, SINH(x))
UNARY_REAL(ot_cosh, COSH(x))
UNARY_REAL(ot_asinh, ASINH(x))
UNARY_REAL(ot_acosh, ACOSH(x))
UNARY_REAL(ot_atanh, ATANH(x))
UNARY_REAL(ot_floor, FLOOR(x))
UNARY_REAL(ot_ceil, CEIL(x))
UNARY_REAL(ot_round, RINT(x))
/* x (1 + tanh z) / 2 is x sigmoid(2 z), which is exact where tanh is near -1, and takes 0.6 of the time */
UNARY_REAL(ot_fast_gelu, x * SIGMOID(x * (X_CONST(1.5957691216057308) + X_CONST(0.07135481627260025) * x * x)))
UNARY_REAL(ot_quick_gelu, x * SIGMOID(X_CONST(p[0]) * x))
UNARY_REAL(ot_clip, SELECT(x < X_CONST(p[0]), X_CONST(p[0]), SELECT(x > X_CONST(p[1]), X_CONST(p[1]), x)))
UNARY_NUMBER(ot_neg, -x)
UNARY_NUMBER(ot_abs, x < 0 ? -x : x)
UNARY_NUMBER(ot_sign, x != x ? x : (x > 0) - (x < 0))
UNARY_LOOP(ot_not, uint8_t, uint8_t, uint8_t, !x)
static int ot_not(const KernelArgs *args) { for_each_chunk(args, ot_not_item, args->inputs[0].count); return STATUS_OK; }

/* floats: detect_negative, detect_positive */
#define UNARY_TEST(NAME, EXPRESSION)                                                                                              \
UNARY_LOOP(NAME##_float, float, float, uint8_t, EXPRESSION)                                                                       \
UNARY_LOOP(NAME##_double, double, double, uint8_t, EXPRESSION)                                                                    \
static int NAME(const KernelArgs *args)                                                                                           \
{                                                                                                                                 \
    for_each_chunk(args, args->inputs[0].dtype == DTYPE_FLOAT32 ? NAME##_float_item : NAME##_double_item, args->inputs[0].count); \
    return STATUS_OK;                                                                                                             \
}
UNARY_TEST(ot_is_nan, x != x)
UNARY_TEST(ot_is_inf, ((x == (R_INFINITY)) & (p[1] != 0)) | ((x == -(R_INFINITY)) & (p[0] != 0)))      /* branches took 1.5 ns per element, 0.2 without */

BINARY_NUMBER(ot_add, a + b)
BINARY_NUMBER(ot_max, a != a || a > b ? a : b)     /* NaN of either is kept */
BINARY_NUMBER(ot_min, a != a || a < b ? a : b)
TERNARY_REAL(ot_max_grad, SELECT(b > c, a, SELECT(b == c, a / 2, R_CONST(0))))
TERNARY_REAL(ot_min_grad, SELECT(b < c, a, SELECT(b == c, a / 2, R_CONST(0))))
BINARY_NUMBER(ot_sub, a - b)
BINARY_NUMBER(ot_mul, a * b)
COMPARISON(ot_equal, a == b)
COMPARISON(ot_less, a < b)
COMPARISON(ot_less_or_equal, a <= b)
COMPARISON(ot_greater, a > b)
COMPARISON(ot_greater_or_equal, a >= b)
COMPARISON(ot_and, (a != 0) & (b != 0))
COMPARISON(ot_or, (a != 0) | (b != 0))
COMPARISON(ot_xor, (a != 0) ^ (b != 0))
BINARY_REAL(ot_div_real, a / b)
/* Integer division by 0 gives 0. The smallest integer divided by -1 is itself, as in NumPy, where the processor would trap. */
BINARY_LOOP(ot_div_int64, int64_t, int64_t, int64_t, b == -1 ? (int64_t)(0 - (uint64_t)a) : b ? a / b : 0)
BINARY_LOOP(ot_div_int32, int32_t, int32_t, int32_t, b == -1 ? (int32_t)(0 - (uint32_t)a) : b ? a / b : 0)
static int ot_div(const KernelArgs *args)
{
    int32_t d = args->inputs[0].dtype;
    if (d == DTYPE_FLOAT32 || d == DTYPE_FLOAT64) return ot_div_real(args);
    for_each_row_block(args, d == DTYPE_INT64 ? ot_div_int64_item : ot_div_int32_item);
    return STATUS_OK;
}
BINARY_REAL(ot_relu_grad, SELECT(b > 0, a, R_CONST(0)))
BINARY_REAL(ot_leaky_relu_grad, SELECT(b > 0, a, R_CONST(p[0]) * a))
BINARY_REAL(ot_sigmoid_grad, a * b * (R_CONST(1) - b))
BINARY_REAL(ot_tanh_grad, a * (R_CONST(1) - b * b))
#define FAST_GELU_DERIVATIVES(R)                                                                 \
ALWAYS_INLINE R fast_gelu_derivative_##R(R x)                                                    \
{                                                                                                \
    R c = (R)1.5957691216057308, d = (R)0.07135481627260025 * x * x, s = SIGMOID(x * (c + d));   \
    return s * ((R)1 + x * ((R)1 - s) * (c + (R)3 * d));                                         \
}                                                                                                \
ALWAYS_INLINE R quick_gelu_derivative_##R(R x, R alpha)                                          \
{ R s = SIGMOID(alpha * x); return s * ((R)1 + alpha * x * ((R)1 - s)); }
FAST_GELU_DERIVATIVES(float)
FAST_GELU_DERIVATIVES(double)
BINARY_REAL(ot_fast_gelu_grad, a * _Generic((b), float: fast_gelu_derivative_float, double: fast_gelu_derivative_double)(b))
BINARY_REAL(ot_quick_gelu_grad, a * _Generic((b), float: quick_gelu_derivative_float, double: quick_gelu_derivative_double)(b, R_CONST(p[0])))

/* ---- y = x0 + x1 + ...; ints: per input, those of a binary kernel of (y, x) */

BINARY_REAL(sum_first, ((void)a, b))
static int ot_sum(const KernelArgs *args)
{
    Tensor pair[2];
    KernelArgs step = *args;
    step.inputs = pair; step.n_inputs = 2; pair[0] = args->outputs[0];
    for (int32_t i = 0; i < args->n_inputs; i++) {
        pair[1] = args->inputs[i];
        if (i) ot_add(&step);
        else if (pair[1].data != pair[0].data) sum_first(&step);
        step.ints += 1 + 3 * step.ints[0];
    }
    return STATUS_OK;
}

/* ---- y = x ? y : z, broadcast */

#define WHERE_CASE(T, SY, SZ)                                                                                                                \
{                                                                                                                                            \
    const T y0 = y[0], z0 = z[0];                                                                                                            \
    INDEPENDENT for (int64_t i = 0; i < n; i++) { const T chosen = SY ? y[i] : y0, other = SZ ? z[i] : z0; out[i] = x[i] ? chosen : other; } \
}
#define WHERE(T)                                                                                               \
static void where_##T##_row(const void *const *in, const int64_t *steps, void *to, int64_t n, const double *p) \
{                                                                                                              \
    const uint8_t *x = in[0]; const T *y = in[1], *z = in[2]; T *out = to; (void)p;                            \
    if (steps[0] == 0) {                                                                                       \
        const T *from = *x ? y : z; int64_t step = steps[*x ? 1 : 2];                                          \
        for (int64_t i = 0; i < n; i++) out[i] = from[i * step];                                               \
    }                                                                                                          \
    else if (steps[1] && steps[2]) WHERE_CASE(T, 1, 1)                                                         \
    else if (steps[1]) WHERE_CASE(T, 1, 0)                                                                     \
    else if (steps[2]) WHERE_CASE(T, 0, 1)                                                                     \
    else WHERE_CASE(T, 0, 0)                                                                                   \
}                                                                                                              \
TERNARY_ITEM(where_##T, uint8_t, T)
WHERE(uint8_t)
WHERE(uint32_t)
WHERE(uint64_t)
static int ot_where(const KernelArgs *args)
{
    int32_t d = args->outputs[0].dtype;
    int wide = d == DTYPE_FLOAT64 || d == DTYPE_INT64, narrow = d == DTYPE_BOOL || d == DTYPE_UINT8 || d == DTYPE_INT8;
    for_each_row_block(args, wide ? where_uint64_t_item : narrow ? where_uint8_t_item : where_uint32_t_item);
    return STATUS_OK;
}

/* ---- y [n] = (OUT)x [n] */

#define CAST(IN, OUT) UNARY_LOOP(cast_##IN##_##OUT, IN, IN, OUT, x)
#define CAST_BOOL(IN) UNARY_LOOP(cast_##IN##_bool, IN, IN, uint8_t, x != 0)
#define CASTS(IN) CAST(IN, int32_t) CAST(IN, uint8_t) CAST(IN, int8_t) CAST_BOOL(IN)
#define CASTS_WITHOUT_INT64(IN) CASTS(IN) CAST(IN, float) CAST(IN, double)
CASTS_WITHOUT_INT64(float) CASTS_WITHOUT_INT64(double) CASTS_WITHOUT_INT64(int32_t) CASTS_WITHOUT_INT64(uint8_t) CASTS_WITHOUT_INT64(int8_t)
CASTS(int64_t) CAST(int64_t, int64_t) CAST(int32_t, int64_t) CAST(uint8_t, int64_t) CAST(int8_t, int64_t)
#ifdef __AVX512DQ__
CAST(int64_t, float) CAST(int64_t, double) CAST(float, int64_t) CAST(double, int64_t)
#else
/* Other processors convert int64 one by one. Blocks whose numbers all fit int32 go by way of it, with the same results: with AVX2, labels took 0.85 ns each as
 * float32, and now 0.45. DOES_NOT_FIT is not 0 for a number x that does not fit. */
enum { CAST_BLOCK = 32 };
#define CAST_BY_INT32(IN, OUT, DOES_NOT_FIT)                                                                                        \
static void cast_##IN##_##OUT##_item(void *context, int64_t item, int64_t worker)                                                   \
{                                                                                                                                   \
    const KernelArgs *args = context; const IN *in = args->inputs[0].data; OUT *out = args->outputs[0].data; (void)worker;          \
    int64_t i = item * CHUNK, end = min_i64(i + CHUNK, args->inputs[0].count);                                                      \
    for (; i + CAST_BLOCK <= end; i += CAST_BLOCK) {                                                                                \
        int64_t outside = 0;                                                                                                        \
        for (int64_t k = i; k < i + CAST_BLOCK; k++) { const IN x = in[k]; outside |= DOES_NOT_FIT; }                               \
        if (outside) for (int64_t k = i; k < i + CAST_BLOCK; k++) out[k] = (OUT)in[k];                                              \
        else INDEPENDENT for (int64_t k = i; k < i + CAST_BLOCK; k++) out[k] = (OUT)(int32_t)in[k];                                 \
    }                                                                                                                               \
    for (; i < end; i++) out[i] = (OUT)in[i];                                                                                       \
}
CAST_BY_INT32(int64_t, float, x ^ (int64_t)(int32_t)x) CAST_BY_INT32(int64_t, double, x ^ (int64_t)(int32_t)x)
CAST_BY_INT32(float, int64_t, !(fabsf(x) < 2147483648.0f)) CAST_BY_INT32(double, int64_t, !(fabs(x) < 2147483648.0))
#endif
#define CAST_TO(IN, d) (d == DTYPE_FLOAT32 ? cast_##IN##_float_item : d == DTYPE_FLOAT64 ? cast_##IN##_double_item \
    : d == DTYPE_INT64 ? cast_##IN##_int64_t_item : d == DTYPE_INT32 ? cast_##IN##_int32_t_item                    \
    : d == DTYPE_UINT8 ? cast_##IN##_uint8_t_item : d == DTYPE_INT8 ? cast_##IN##_int8_t_item : cast_##IN##_bool_item)
UNARY_LOOP(widen_float16, uint16_t, uint16_t, float, float32_from_float16(x))
UNARY_LOOP(widen_bfloat16, uint16_t, uint16_t, float, float32_from_bfloat16(x))
UNARY_LOOP(round_float16, float, float, uint16_t, float16_from_float32(x))
UNARY_LOOP(round_bfloat16, float, float, uint16_t, bfloat16_from_float32(x))
static int ot_cast(const KernelArgs *args)         /* float16 and bfloat16 only from and to float32 */
{
    int32_t from = args->inputs[0].dtype, to = args->outputs[0].dtype;
    WorkItem work = from == DTYPE_FLOAT16 ? widen_float16_item : from == DTYPE_BFLOAT16 ? widen_bfloat16_item
        : to == DTYPE_FLOAT16 ? round_float16_item : to == DTYPE_BFLOAT16 ? round_bfloat16_item
        : from == DTYPE_FLOAT32 ? CAST_TO(float, to) : from == DTYPE_FLOAT64 ? CAST_TO(double, to)
        : from == DTYPE_INT64 ? CAST_TO(int64_t, to) : from == DTYPE_INT32 ? CAST_TO(int32_t, to)
        : from == DTYPE_INT8 ? CAST_TO(int8_t, to) : CAST_TO(uint8_t, to);
    for_each_chunk(args, work, args->inputs[0].count);
    return STATUS_OK;
}

/* ---- y [n] = x [n] * s, or x [n] / s if ints[0] is set; s: a scalar, float or int64 */

#define SCALE(R)                                                                                                               \
static void scale_##R##_item(void *context, int64_t item, int64_t worker)                                                      \
{                                                                                                                              \
    const KernelArgs *args = context; const Tensor *scale = &args->inputs[1]; (void)worker;                                    \
    int64_t start = item * CHUNK, end = start + CHUNK, count = args->inputs[0].count;                                          \
    const R *x = args->inputs[0].data; R *y = args->outputs[0].data;                                                           \
    R s = scale->dtype == DTYPE_INT64 ? (R)*(int64_t *)scale->data : scale->dtype == DTYPE_FLOAT64 ? (R)*(double *)scale->data \
        : (R)*(float *)scale->data;                                                                                            \
    if (end > count) end = count;                                                                                              \
    if (args->ints[0]) for (int64_t i = start; i < end; i++) y[i] = x[i] / s;                                                  \
    else for (int64_t i = start; i < end; i++) y[i] = x[i] * s;                                                                \
}
SCALE(float)
SCALE(double)
static int ot_scale(const KernelArgs *args)
{
    for_each_chunk(args, args->inputs[0].dtype == DTYPE_FLOAT32 ? scale_float_item : scale_double_item, args->inputs[0].count);
    return STATUS_OK;
}
#endif
