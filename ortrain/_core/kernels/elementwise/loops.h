/* The loops of elementwise kernels, whose definitions are one expression each: y = f(x), c = f(a, b) and d = f(a, b, c), the latter two with broadcasting.
 *
 * An expression can use x (or a, b, c), the floats p[] of the kernel call, and the functions EXP, LOG, ..., which select the function of the element type. */
#ifndef ORTRAIN_LOOPS_H
#define ORTRAIN_LOOPS_H
#include "kernel.h"
#include "common/vector_math.h"

enum { CHUNK = 16384 };       /* elements of a work item: 64 KiB of float32 stay in the L2 cache, and a second thread pays from two items on */

static inline double ot_sigmoid(double x) { return 1.0 / (1.0 + exp(-x)); }

#define F(name_f, name_d, x) _Generic((x), float: name_f, double: name_d)(x)
#define EXP(x) F(ot_expf, exp, x)
#define LOG(x) F(ot_logf, log, x)
#define TANH(x) F(ot_tanhf, tanh, x)
#define SIGMOID(x) F(ot_sigmoidf, ot_sigmoid, x)
#define ERF(x) F(ot_erff, erf, x)
#define SQRT(x) F(sqrtf, sqrt, x)
#define SIN(x) F(sinf, sin, x)
#define COS(x) F(cosf, cos, x)
#define FLOOR(x) F(floorf, floor, x)
#define CEIL(x) F(ceilf, ceil, x)
#define RINT(x) F(rintf, rint, x)
#define FABS(x) F(fabsf, fabs, x)
#define TAN(x) F(tanf, tan, x)
#define ASIN(x) F(asinf, asin, x)
#define ACOS(x) F(acosf, acos, x)
#define ATAN(x) F(atanf, atan, x)
#define SINH(x) F(sinhf, sinh, x)
#define COSH(x) F(coshf, cosh, x)
#define ASINH(x) F(asinhf, asinh, x)
#define ACOSH(x) F(acoshf, acosh, x)
#define ATANH(x) F(atanhf, atanh, x)
#define LOG1P(x) F(ot_log1pf, log1p, x)
#define POW(a, b) _Generic((a), float: powf, double: pow, default: pow)(a, b)

/* ---- y [n] = f(x [n]) */

static inline void for_each_chunk(const KernelArgs *args, WorkItem work, int64_t count)
{
    args->engine->parallel_for(args->engine, work, (void *)args, (count + CHUNK - 1) / CHUNK);
}

#define UNARY_LOOP(NAME, R, IN, OUT, EXPRESSION)                                             \
static void NAME##_item(void *context, int64_t item, int64_t worker)                         \
{                                                                                            \
    const KernelArgs *args = context; const double *p = args->floats; (void)p; (void)worker; \
    int64_t start = item * CHUNK, end = start + CHUNK, count = args->inputs[0].count;        \
    const IN *in = args->inputs[0].data; OUT *out = args->outputs[0].data;                   \
    if (end > count) end = count;                                                            \
    for (int64_t i = start; i < end; i++) { const R x = in[i]; out[i] = (OUT)(EXPRESSION); } \
}
#define UNARY_REAL(NAME, EXPRESSION)                                                                  \
UNARY_LOOP(NAME##_float, float, float, float, EXPRESSION)                                             \
UNARY_LOOP(NAME##_double, double, double, double, EXPRESSION)                                         \
static int NAME(const KernelArgs *args)                                                               \
{                                                                                                     \
    int is_float32 = args->inputs[0].dtype == DTYPE_FLOAT32;                                          \
    for_each_chunk(args, is_float32 ? NAME##_float_item : NAME##_double_item, args->inputs[0].count); \
    return STATUS_OK;                                                                                 \
}
#define UNARY_NUMBER(NAME, EXPRESSION)                                                                    \
UNARY_LOOP(NAME##_float, float, float, float, EXPRESSION)                                                 \
UNARY_LOOP(NAME##_double, double, double, double, EXPRESSION)                                             \
UNARY_LOOP(NAME##_int64, int64_t, int64_t, int64_t, EXPRESSION)                                           \
UNARY_LOOP(NAME##_int32, int32_t, int32_t, int32_t, EXPRESSION)                                           \
static int NAME(const KernelArgs *args)                                                                   \
{                                                                                                         \
    int32_t d = args->inputs[0].dtype;                                                                    \
    for_each_chunk(args, d == DTYPE_FLOAT32 ? NAME##_float_item : d == DTYPE_FLOAT64 ? NAME##_double_item \
        : d == DTYPE_INT64 ? NAME##_int64_item : NAME##_int32_item, args->inputs[0].count);               \
    return STATUS_OK;                                                                                     \
}

/* ---- c = f(a, b), broadcast; ints: rank, dims, strides of a, strides of b, in elements and with adjacent axes merged */

typedef struct { int64_t outer, inner, rows; } RowSplit;

static inline RowSplit split_rows(const int64_t *ints)
{
    RowSplit s = { 1, ints[ints[0]], 1 };
    for (int64_t d = 1; d < ints[0]; d++) s.outer *= ints[d];
    if (s.inner < CHUNK) s.rows = CHUNK / (s.inner > 0 ? s.inner : 1);
    return s;
}
static inline int64_t offset_of(const int64_t *ints, int64_t row, const int64_t *strides)
{
    int64_t offset = 0;
    for (int64_t d = ints[0] - 2; d >= 0; d--) { offset += row % ints[1 + d] * strides[d]; row /= ints[1 + d]; }
    return offset;
}
static inline void for_each_row_block(const KernelArgs *args, WorkItem work)
{
    RowSplit s = split_rows(args->ints);
    int64_t items = s.rows > 1 ? (s.outer + s.rows - 1) / s.rows : s.outer * ((s.inner + CHUNK - 1) / CHUNK);
    if (s.inner > 0 && s.outer > 0) args->engine->parallel_for(args->engine, work, (void *)args, items);
}

#define BINARY_LOOP(NAME, R, IN, OUT, EXPRESSION)                                                                                        \
static inline void NAME##_row(const IN *x, int64_t sx, const IN *y, int64_t sy, OUT *out, int64_t n, const double *p)                    \
{                                                                                                                                        \
    (void)p;                                                                                                                             \
    if (sx == 1 && sy == 1) for (int64_t i = 0; i < n; i++) { const R a = x[i], b = y[i]; out[i] = (OUT)(EXPRESSION); }                  \
    else if (sx == 1 && sy == 0) { const R b = y[0]; for (int64_t i = 0; i < n; i++) { const R a = x[i]; out[i] = (OUT)(EXPRESSION); } } \
    else if (sx == 0 && sy == 1) { const R a = x[0]; for (int64_t i = 0; i < n; i++) { const R b = y[i]; out[i] = (OUT)(EXPRESSION); } } \
    else for (int64_t i = 0; i < n; i++) { const R a = x[i * sx], b = y[i * sy]; out[i] = (OUT)(EXPRESSION); }                           \
}                                                                                                                                        \
static void NAME##_item(void *context, int64_t item, int64_t worker)                                                                     \
{                                                                                                                                        \
    const KernelArgs *args = context; const int64_t *ints = args->ints, rank = ints[0]; (void)worker;                                    \
    const int64_t *sa = ints + 1 + rank, *sb = sa + rank;                                                                                \
    const IN *a = args->inputs[0].data, *b = args->inputs[1].data; OUT *out = args->outputs[0].data;                                     \
    RowSplit s = split_rows(ints);                                                                                                       \
    int64_t pieces = s.rows > 1 ? 1 : (s.inner + CHUNK - 1) / CHUNK;                                                                     \
    int64_t row = s.rows > 1 ? item * s.rows : item / pieces, end = s.rows > 1 ? row + s.rows : row + 1;                                 \
    int64_t from = s.rows > 1 ? 0 : item % pieces * CHUNK, n = s.inner - from;                                                           \
    if (s.rows == 1 && n > CHUNK) n = CHUNK;                                                                                             \
    for (; row < end && row < s.outer; row++)                                                                                            \
        NAME##_row(a + offset_of(ints, row, sa) + from * sa[rank - 1], sa[rank - 1],                                                     \
                   b + offset_of(ints, row, sb) + from * sb[rank - 1], sb[rank - 1], out + row * s.inner + from, n, args->floats);       \
}
#define BINARY_REAL(NAME, EXPRESSION)                          \
BINARY_LOOP(NAME##_float, float, float, float, EXPRESSION)     \
BINARY_LOOP(NAME##_double, double, double, double, EXPRESSION) \
static int NAME(const KernelArgs *args)                        \
{ for_each_row_block(args, args->inputs[0].dtype == DTYPE_FLOAT32 ? NAME##_float_item : NAME##_double_item); return STATUS_OK; }
#define BINARY_NUMBER_OUT(NAME, FLOAT_OUT, DOUBLE_OUT, INT64_OUT, INT32_OUT, BYTE_OUT, EXPRESSION)            \
BINARY_LOOP(NAME##_float, float, float, FLOAT_OUT, EXPRESSION)                                                \
BINARY_LOOP(NAME##_double, double, double, DOUBLE_OUT, EXPRESSION)                                            \
BINARY_LOOP(NAME##_int64, int64_t, int64_t, INT64_OUT, EXPRESSION)                                            \
BINARY_LOOP(NAME##_int32, int32_t, int32_t, INT32_OUT, EXPRESSION)                                            \
BINARY_LOOP(NAME##_byte, uint8_t, uint8_t, BYTE_OUT, EXPRESSION)                                              \
static int NAME(const KernelArgs *args)                                                                       \
{                                                                                                             \
    int32_t d = args->inputs[0].dtype;                                                                        \
    for_each_row_block(args, d == DTYPE_FLOAT32 ? NAME##_float_item : d == DTYPE_FLOAT64 ? NAME##_double_item \
        : d == DTYPE_INT64 ? NAME##_int64_item : d == DTYPE_INT32 ? NAME##_int32_item : NAME##_byte_item);    \
    return STATUS_OK;                                                                                         \
}
#define BINARY_NUMBER(NAME, EXPRESSION) BINARY_NUMBER_OUT(NAME, float, double, int64_t, int32_t, uint8_t, EXPRESSION)
#define COMPARISON(NAME, EXPRESSION) BINARY_NUMBER_OUT(NAME, uint8_t, uint8_t, uint8_t, uint8_t, uint8_t, EXPRESSION)

#define R_CONST(v) ((__typeof__(a))(v))
#define X_CONST(v) ((__typeof__(x))(v))

/* d = f(a, b, c), broadcast; ints: rank, dims, strides of a, b and c */
#define TERNARY_LOOP(NAME, R, EXPRESSION)                                                                                                   \
static void NAME##_item(void *context, int64_t item, int64_t worker)                                                                        \
{                                                                                                                                           \
    const KernelArgs *args = context; const int64_t *ints = args->ints, rank = ints[0]; (void)worker;                                       \
    const int64_t *sa = ints + 1 + rank, *sb = sa + rank, *sc = sb + rank, l = rank - 1;                                                    \
    RowSplit s = split_rows(ints); int64_t pieces = s.rows > 1 ? 1 : (s.inner + CHUNK - 1) / CHUNK;                                         \
    int64_t row = s.rows > 1 ? item * s.rows : item / pieces, end = s.rows > 1 ? row + s.rows : row + 1;                                    \
    int64_t from = s.rows > 1 ? 0 : item % pieces * CHUNK, to = s.inner;                                                                    \
    if (s.rows == 1 && to > from + CHUNK) to = from + CHUNK;                                                                                \
    for (; row < end && row < s.outer; row++) {                                                                                             \
        const R *pa = (const R *)args->inputs[0].data + offset_of(ints, row, sa);                                                           \
        const R *pb = (const R *)args->inputs[1].data + offset_of(ints, row, sb);                                                           \
        const R *pc = (const R *)args->inputs[2].data + offset_of(ints, row, sc);                                                           \
        R *out = (R *)args->outputs[0].data + row * s.inner;                                                                                \
        if (sa[l] == 1 && sb[l] == 1 && sc[l] == 1)                                                                                         \
            for (int64_t i = from; i < to; i++) { const R a = pa[i], b = pb[i], c = pc[i]; out[i] = (EXPRESSION); }                         \
        else                                                                                                                                \
            for (int64_t i = from; i < to; i++) { const R a = pa[i * sa[l]], b = pb[i * sb[l]], c = pc[i * sc[l]]; out[i] = (EXPRESSION); } \
    }                                                                                                                                       \
}
#define TERNARY_REAL(NAME, EXPRESSION)          \
TERNARY_LOOP(NAME##_float, float, EXPRESSION)   \
TERNARY_LOOP(NAME##_double, double, EXPRESSION) \
static int NAME(const KernelArgs *args)         \
{ for_each_row_block(args, args->inputs[0].dtype == DTYPE_FLOAT32 ? NAME##_float_item : NAME##_double_item); return STATUS_OK; }
#endif
