/* y [m, n] = alpha x op(w) + bias, then ReLU, with x [m, k] of float32 or float64 and weights stored as int8 with scales, float16 or bfloat16, of which one
 * block at a time has the type of x: the columns of op(w) that a block of y has, in scratch. Blocks are as wide as the plan makes them, for any number of
 * threads.
 *
 * ints: m, n, k, whether w is transposed, steps of the scales along rows and columns of w as stored (0 for both: one scale), ReLU, columns of a block.
 * floats: alpha, 1 with a bias or ReLU. Inputs: x, w, scales or absent, bias or absent. */
#ifndef ORTRAIN_DEQUANTIZED_GEMM_H
#define ORTRAIN_DEQUANTIZED_GEMM_H
#include "kernel.h"
#include "common/half_precision.h"
#include "common/integers.h"

enum { DEQUANTIZED_ROWS = 32 };                     /* of a work item */

#define REAL float
#define NAMED(name) name##_float
#define GEMM gemm_float32
#include "matmul/dequantized_gemm_by_type.h"
#undef REAL
#undef NAMED
#undef GEMM

#define REAL double
#define NAMED(name) name##_double
#define GEMM gemm_float64
#include "matmul/dequantized_gemm_by_type.h"
#undef REAL
#undef NAMED
#undef GEMM

static int dequantized_gemm(const KernelArgs *args)
{ return args->inputs[0].dtype == DTYPE_FLOAT32 ? dequantized_gemm_float(args) : dequantized_gemm_double(args); }
#endif
