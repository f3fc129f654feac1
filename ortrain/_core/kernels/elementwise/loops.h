/* The loops of elementwise kernels, whose definitions are one expression each: y = f(x), c = f(a, b) and d = f(a, b, c), the latter two with broadcasting.
 *
 * An expression can use x (or a, b, c), the floats p[] of the kernel call, and the functions EXP, LOG, ..., which select the function of the element type. */
#ifndef ORTRAIN_LOOPS_H
#define ORTRAIN_LOOPS_H
#include "kernel.h"
#include "common/compiler.h"
#include "common/hyperbolic.h"
#include "common/integers.h"
#include "common/trigonometry.h"

enum { CHUNK = 16384 };       /* elements of a work item: 64 KiB of float32 stay in the L2 cache, and a second thread pays from two items on */
enum { CHECKED_BLOCK = 512 }; /* elements that are examined for rare ones before they are computed */

ALWAYS_INLINE double ot_sigmoid(double x) { return 1.0 / (1.0 + exp(-x)); }

#define F(name_f, name_d, x) _Generic((x), float: name_f, double: name_d)(x)
#define EXP(x) F(ot_expf, exp, x)
#define EXPM1(x) F(ot_expm1f, expm1, x)
#define LOG(x) F(ot_logf, log, x)
#define EXP_OF_NEGATIVE(x) F(ot_expf_of_negative, exp, x)
#define LOG1P_OF_FRACTION(x) F(ot_log1pf_of_fraction, log1p, x)
#define TANH(x) F(ot_tanhf, tanh, x)
#define SIGMOID(x) F(ot_sigmoidf, ot_sigmoid, x)
#define ERF(x) F(ot_erff, erf, x)
#define SQRT(x) F(sqrtf, sqrt, x)
#define FLOOR(x) F(floorf, floor, x)
#define CEIL(x) F(ceilf, ceil, x)
#define RINT(x) F(rintf, rint, x)
#define FABS(x) F(fabsf, fabs, x)
#define ASIN(x) F(ot_asinf, asin, x)
#define ACOS(x) F(ot_acosf, acos, x)
#define ATAN(x) F(ot_atanf, atan, x)
#define SINH(x) F(ot_sinhf, sinh, x)
#define COSH(x) F(ot_coshf, cosh, x)
#define ASINH(x) F(ot_asinhf, asinh, x)
#define ACOSH(x) F(ot_acoshf, acosh, x)
#define ATANH(x) F(ot_atanhf, atanh, x)
/* condition ? a : b, for numbers a of the element type. Both are computed: a branch would keep the loop from being vectorized and be mispredicted. */
#define SELECT(condition, a, b) _Generic((a), float: ot_select, double: ot_select_double)(condition, a, b)
#define R_CONST(v) ((__typeof__(a))(v))
#define X_CONST(v) ((__typeof__(x))(v))

/* ---- y [n] = f(x [n]) */

static inline void for_each_chunk(const KernelArgs *args, WorkItem work, int64_t count)
{
    if (count > 0 && count <= CHUNK) work((void *)args, 0, 0);
    else args->engine->parallel_for(args->engine, work, (void *)args, (count + CHUNK - 1) / CHUNK);
}

#define UNARY_LOOP(NAME, R, IN, OUT, EXPRESSION)                                                         \
static void NAME##_item(void *context, int64_t item, int64_t worker)                                     \
{                                                                                                        \
    const KernelArgs *args = context; const double *p = args->floats; (void)p; (void)worker;             \
    int64_t start = item * CHUNK, end = start + CHUNK, count = args->inputs[0].count;                    \
    const IN *in = args->inputs[0].data; OUT *out = args->outputs[0].data;                               \
    if (end > count) end = count;                                                                        \
    INDEPENDENT for (int64_t i = start; i < end; i++) { const R x = in[i]; out[i] = (OUT)(EXPRESSION); } \
}
#define UNARY_REAL(NAME, EXPRESSION)                          \
UNARY_LOOP(NAME##_float, float, float, float, EXPRESSION)     \
UNARY_LOOP(NAME##_double, double, double, double, EXPRESSION) \
UNARY_REAL_KERNEL(NAME)
#define UNARY_REAL_KERNEL(NAME)                                                                       \
static int NAME(const KernelArgs *args)                                                               \
{                                                                                                     \
    int is_float32 = args->inputs[0].dtype == DTYPE_FLOAT32;                                          \
    for_each_chunk(args, is_float32 ? NAME##_float_item : NAME##_double_item, args->inputs[0].count); \
    return STATUS_OK;                                                                                 \
}
/* y = f(x) of an angle x: in float32 FUNCTION(x), or for each block with a large angle the slower FUNCTION_large(x) */
#define UNARY_ANGLE(NAME, FUNCTION, DOUBLE_FUNCTION)                                                        \
static void NAME##_float_item(void *context, int64_t item, int64_t worker)                                  \
{                                                                                                           \
    const KernelArgs *args = context; (void)worker;                                                         \
    const float *in = args->inputs[0].data; float *out = args->outputs[0].data;                             \
    int64_t end = min_i64((item + 1) * CHUNK, args->inputs[0].count);                                       \
    for (int64_t start = item * CHUNK, stop; start < end; start = stop) {                                   \
        int any_large = 0;                                                                                  \
        stop = min_i64(start + CHECKED_BLOCK, end);                                                         \
        for (int64_t i = start; i < stop; i++) any_large |= ot_is_large_angle(in[i]);                       \
        if (any_large) INDEPENDENT for (int64_t i = start; i < stop; i++) out[i] = FUNCTION##_large(in[i]); \
        else INDEPENDENT for (int64_t i = start; i < stop; i++) out[i] = FUNCTION(in[i]);                   \
    }                                                                                                       \
}                                                                                                           \
UNARY_LOOP(NAME##_double, double, double, double, DOUBLE_FUNCTION(x))                                       \
UNARY_REAL_KERNEL(NAME)
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

/* ---- c = f(a, b) and d = f(a, b, c), broadcast; ints: rank, dims, strides of each input, in elements and with adjacent axes merged */

enum { MAX_OPERANDS = 3 };

/* Computes n elements of out from operand i at in[i][0], in[i][steps[i]], ...; a step is 0 or 1. */
typedef void (*RowFunction)(const void *const *in, const int64_t *steps, void *out, int64_t n, const double *p);

typedef struct { int64_t outer, inner, rows; } RowSplit;

static inline RowSplit split_rows(const int64_t *ints)
{
    RowSplit s = { 1, ints[ints[0]], 1 };
    for (int64_t d = 1; d < ints[0]; d++) s.outer *= ints[d];
    if (s.inner < CHUNK) s.rows = s.outer > 1 ? CHUNK / (s.inner > 0 ? s.inner : 1) : CHUNK;      /* a division takes as long as 100 additions */
    return s;
}
static inline int64_t offset_of(const int64_t *ints, int64_t row, const int64_t *strides)
{
    int64_t offset = 0, d = ints[0] - 2;
    for (; d > 0; d--) { offset += row % ints[1 + d] * strides[d]; row /= ints[1 + d]; }
    return d == 0 ? offset + row * strides[0] : 0;
}
/* Whether all elements are one row of one work item: small tensors, for which dividing the work would take longer than the work. */
static inline int is_small_row(const int64_t *ints) { return ints[0] == 1 && ints[1] > 0 && ints[1] <= CHUNK; }
static inline void for_each_row_block(const KernelArgs *args, WorkItem work)
{
    if (is_small_row(args->ints)) { work((void *)args, 0, 0); return; }
    RowSplit s = split_rows(args->ints);
    int64_t items = s.rows > 1 ? (s.outer + s.rows - 1) / s.rows : s.outer * ((s.inner + CHUNK - 1) / CHUNK);
    if (s.inner > 0 && s.outer > 0) args->engine->parallel_for(args->engine, work, (void *)args, items);
}

/* Rows shorter than SHORT_ROW are computed ROW_BUFFER elements at a time, from copies of the operands that are broadcast. */
enum { SHORT_ROW = 64, ROW_BUFFER = 512 };
/* A row of one repeated element is written in vectors, past its end: the next row follows, or SPLAT unused elements do. */
enum { SPLAT = 16 };
typedef struct { int64_t elements[ROW_BUFFER + SPLAT]; } OperandBuffer;
#define COPY_ROW(T)                                                                                                  \
{                                                                                                                    \
    const T *source = (const T *)from; T *target = (T *)to, first = *source;                                         \
    if (step == 0) for (int64_t j = 0; j < inner; j += SPLAT) for (int k = 0; k < SPLAT; k++) target[j + k] = first; \
    else for (int64_t j = 0; j < inner; j++) target[j] = source[j];                                                  \
}

static inline void copy_rows(const int64_t *ints, const int64_t *strides, const char *base, int64_t row, int64_t rows, int64_t size, char *to)
{
    int64_t inner = ints[ints[0]], step = strides[ints[0] - 1];
    for (int64_t end = row + rows; row < end; row++, to += inner * size) {
        const char *from = base + offset_of(ints, row, strides) * size;
        if (size == 4) COPY_ROW(uint32_t) else if (size == 8) COPY_ROW(uint64_t) else COPY_ROW(uint8_t)
    }
}
static void run_short_rows(const KernelArgs *args, int64_t row, int64_t end, int operands, const int64_t *sizes, int64_t out_size, RowFunction function)
{
    OperandBuffer copies[MAX_OPERANDS];
    const int64_t *ints = args->ints, rank = ints[0], inner = ints[rank], block = ROW_BUFFER / inner, steps[MAX_OPERANDS] = { 1, 1, 1 };
    int contiguous[MAX_OPERANDS], periodic[MAX_OPERANDS];
    for (int i = 0; i < operands; i++) {
        const int64_t *strides = ints + 1 + rank * (i + 1);
        contiguous[i] = strides[rank - 1] == 1;
        periodic[i] = 1;
        for (int64_t d = rank - 2; d >= 0; d--) { contiguous[i] &= strides[d] == strides[d + 1] * ints[2 + d]; periodic[i] &= strides[d] == 0; }
        if (periodic[i]) copy_rows(ints, strides, args->inputs[i].data, row, row + block < end ? block : end - row, sizes[i], (char *)&copies[i]);
    }
    for (; row < end; row += block) {
        const void *in[MAX_OPERANDS];
        int64_t rows = row + block < end ? block : end - row;
        for (int i = 0; i < operands; i++) {
            const char *base = args->inputs[i].data;
            in[i] = contiguous[i] ? (const void *)(base + row * inner * sizes[i]) : &copies[i];
            if (!contiguous[i] && !periodic[i]) copy_rows(ints, ints + 1 + rank * (i + 1), base, row, rows, sizes[i], (char *)&copies[i]);
        }
        function(in, steps, (char *)args->outputs[0].data + row * inner * out_size, rows * inner, args->floats);
    }
}

/* Computes the rows, or the part of a row, of a work item. sizes: bytes of an element of each operand. */
static inline void run_rows(const KernelArgs *args, int64_t item, int operands, const int64_t *sizes, int64_t out_size, RowFunction function)
{
    const int64_t *ints = args->ints, rank = ints[0];
    if (is_small_row(ints)) {
        const void *in[MAX_OPERANDS];
        for (int i = 0; i < operands; i++) in[i] = args->inputs[i].data;
        function(in, ints + 2, args->outputs[0].data, ints[1], args->floats);                          /* strides follow the only axis */
        return;
    }
    RowSplit s = split_rows(ints);
    int64_t pieces = s.rows > 1 ? 1 : (s.inner + CHUNK - 1) / CHUNK;
    int64_t row = s.rows > 1 ? item * s.rows : item / pieces, end = s.rows > 1 ? row + s.rows : row + 1;
    int64_t from = s.rows > 1 ? 0 : item % pieces * CHUNK, n = s.inner - from;
    if (s.rows == 1 && n > CHUNK) n = CHUNK;
    if (end > s.outer) end = s.outer;
    if (s.inner < SHORT_ROW && s.outer > 1) { run_short_rows(args, row, end, operands, sizes, out_size, function); return; }
    for (; row < end; row++) {
        const void *in[MAX_OPERANDS];
        int64_t steps[MAX_OPERANDS] = { 0 };
        for (int i = 0; i < operands; i++) {
            const int64_t *strides = ints + 1 + rank * (i + 1);
            steps[i] = strides[rank - 1];
            in[i] = (const char *)args->inputs[i].data + (offset_of(ints, row, strides) + from * steps[i]) * sizes[i];
        }
        function(in, steps, (char *)args->outputs[0].data + (row * s.inner + from) * out_size, n, args->floats);
    }
}

#define BINARY_ITEM(NAME, IN, OUT)                                   \
static void NAME##_item(void *context, int64_t item, int64_t worker) \
{                                                                    \
    const int64_t sizes[] = { sizeof(IN), sizeof(IN) };              \
    (void)worker;                                                    \
    run_rows(context, item, 2, sizes, sizeof(OUT), NAME##_row);      \
}
#define BINARY_ROW(NAME, R, IN, OUT, EXPRESSION)                                                                                           \
static void NAME##_row(const void *const *in, const int64_t *steps, void *to, int64_t n, const double *p)                                  \
{                                                                                                                                          \
    const IN *x = in[0], *y = in[1]; OUT *out = to; (void)p;                                                                               \
    if (steps[0] && steps[1]) INDEPENDENT for (int64_t i = 0; i < n; i++) { const R a = x[i], b = y[i]; out[i] = (OUT)(EXPRESSION); }      \
    else if (steps[0]) { const R b = y[0]; INDEPENDENT for (int64_t i = 0; i < n; i++) { const R a = x[i]; out[i] = (OUT)(EXPRESSION); } } \
    else if (steps[1]) { const R a = x[0]; INDEPENDENT for (int64_t i = 0; i < n; i++) { const R b = y[i]; out[i] = (OUT)(EXPRESSION); } } \
    else { const R a = x[0], b = y[0]; const OUT c = (OUT)(EXPRESSION); for (int64_t i = 0; i < n; i++) out[i] = c; }                      \
}
#define BINARY_LOOP(NAME, R, IN, OUT, EXPRESSION) \
BINARY_ROW(NAME, R, IN, OUT, EXPRESSION)          \
BINARY_ITEM(NAME, IN, OUT)
#define BINARY_REAL(NAME, EXPRESSION)                          \
BINARY_LOOP(NAME##_float, float, float, float, EXPRESSION)     \
BINARY_LOOP(NAME##_double, double, double, double, EXPRESSION) \
REAL_KERNEL(NAME)
#define REAL_KERNEL(NAME)               \
static int NAME(const KernelArgs *args) \
{ for_each_row_block(args, args->inputs[0].dtype == DTYPE_FLOAT32 ? NAME##_float_item : NAME##_double_item); return STATUS_OK; }
#define BINARY_NUMBER_OUT(NAME, FLOAT_OUT, DOUBLE_OUT, INT64_OUT, INT32_OUT, BYTE_OUT, EXPRESSION) \
BINARY_LOOP(NAME##_float, float, float, FLOAT_OUT, EXPRESSION)                                     \
BINARY_LOOP(NAME##_double, double, double, DOUBLE_OUT, EXPRESSION)                                 \
BINARY_LOOP(NAME##_int64, int64_t, int64_t, INT64_OUT, EXPRESSION)                                 \
BINARY_LOOP(NAME##_int32, int32_t, int32_t, INT32_OUT, EXPRESSION)                                 \
BINARY_LOOP(NAME##_byte, uint8_t, uint8_t, BYTE_OUT, EXPRESSION)                                   \
NUMBER_KERNEL(NAME)
#define NUMBER_KERNEL(NAME)                                                                                   \
static int NAME(const KernelArgs *args)                                                                       \
{                                                                                                             \
    int32_t d = args->inputs[0].dtype;                                                                        \
    for_each_row_block(args, d == DTYPE_FLOAT32 ? NAME##_float_item : d == DTYPE_FLOAT64 ? NAME##_double_item \
        : d == DTYPE_INT64 ? NAME##_int64_item : d == DTYPE_INT32 ? NAME##_int32_item : NAME##_byte_item);    \
    return STATUS_OK;                                                                                         \
}
#define BINARY_NUMBER(NAME, EXPRESSION) BINARY_NUMBER_OUT(NAME, float, double, int64_t, int32_t, uint8_t, EXPRESSION)
#define COMPARISON(NAME, EXPRESSION) BINARY_NUMBER_OUT(NAME, uint8_t, uint8_t, uint8_t, uint8_t, uint8_t, EXPRESSION)

/* d = f(a, b, c), where a is not broadcast */
#define TERNARY_CASE(R, SB, SC, EXPRESSION)                                            \
{                                                                                      \
    const R b0 = y[0], c0 = z[0];                                                      \
    INDEPENDENT for (int64_t i = 0; i < n; i++)                                        \
    { const R a = x[i], b = SB ? y[i] : b0, c = SC ? z[i] : c0; out[i] = EXPRESSION; } \
}
#define TERNARY_ITEM(NAME, A, R)                                     \
static void NAME##_item(void *context, int64_t item, int64_t worker) \
{                                                                    \
    const int64_t sizes[] = { sizeof(A), sizeof(R), sizeof(R) };     \
    (void)worker;                                                    \
    run_rows(context, item, 3, sizes, sizeof(R), NAME##_row);        \
}
#define TERNARY_LOOP(NAME, R, EXPRESSION)                                                                 \
static void NAME##_row(const void *const *in, const int64_t *steps, void *to, int64_t n, const double *p) \
{                                                                                                         \
    const R *x = in[0], *y = in[1], *z = in[2]; R *out = to; (void)p;                                     \
    if (steps[1] && steps[2]) TERNARY_CASE(R, 1, 1, (EXPRESSION))                                         \
    else if (steps[1]) TERNARY_CASE(R, 1, 0, (EXPRESSION))                                                \
    else if (steps[2]) TERNARY_CASE(R, 0, 1, (EXPRESSION))                                                \
    else TERNARY_CASE(R, 0, 0, (EXPRESSION))                                                              \
}                                                                                                         \
TERNARY_ITEM(NAME, R, R)
#define TERNARY_REAL(NAME, EXPRESSION)          \
TERNARY_LOOP(NAME##_float, float, EXPRESSION)   \
TERNARY_LOOP(NAME##_double, double, EXPRESSION) \
REAL_KERNEL(NAME)
#endif
