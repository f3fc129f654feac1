/* The GEMM of bfloat16 operands: gemm_parallel.h with panels of bfloat16 pairs. Operands and results are float32; operands are rounded to bfloat16 while they
 * are packed, their products are added in float32. A module of its own, as gemm_float64.h is. */
#ifndef ORTRAIN_GEMM_BFLOAT16_H
#define ORTRAIN_GEMM_BFLOAT16_H
#define BFLOAT16_PAIRS
#include "matmul/gemm_parallel.h"
#include "matmul/implicit_gemm_bfloat16.h"
#endif
