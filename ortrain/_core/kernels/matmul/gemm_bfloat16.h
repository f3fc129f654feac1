/* The GEMM of bfloat16 operands: gemm_parallel.h with panels of bfloat16 pairs, and on AMX tiles tiled_gemm.h, or amx_gemm.h in one part. Operands and results
 * are float32; operands are rounded to bfloat16 before or while they are packed, their products are added in float32. A module of its own, as
 * gemm_float64.h is. */
#ifndef ORTRAIN_GEMM_BFLOAT16_H
#define ORTRAIN_GEMM_BFLOAT16_H
#define BFLOAT16_PAIRS
#include "matmul/gemm_parallel.h"
#include "matmul/implicit_gemm_bfloat16.h"
#include "matmul/step_gemm.h"
#include "matmul/amx_gemm.h"

/* Engine's step_gemm: c [rows, columns] = a [rows, depth] times packed weights, or += if `accumulate`. The rows are rounded in the worker's workspace. */
static void step_gemm(const Engine *engine, int64_t worker, int64_t rows, int64_t columns, int64_t depth, const float *a, int64_t lda, const void *panels,
                      int accumulate, float *c, int64_t ldc)
{
    packed *rounded = workspace_of(engine, worker);
    for (int64_t i = 0; i < rows; i++) pack_adjacent_pairs(a + i * lda, depth, rounded + i * packed_depth(depth));
    multiply_time_step(rows, columns, depth, rounded, packed_depth(depth), panels, accumulate, c, ldc);
}

#include "matmul/tiled_gemm.h"
#include "matmul/tiled_windows.h"

/* Compute a GEMM with the arguments of parallel_gemm on AMX tiles and return 1, or return 0 if the shape does not suit them. */
static int gemm_on_tiles(const Engine *engine, int transposed_a, int transposed_b, int64_t m, int64_t n, int64_t k, float alpha, const float *a, int64_t lda,
                         const float *b, int64_t ldb, int accumulate, float *c, int64_t ldc, const float *bias, int relu)
{
    return tiled_gemm(engine, transposed_a, transposed_b, m, n, k, alpha, a, lda, b, ldb, accumulate, c, ldc, bias, relu)
        || amx_gemm(engine, transposed_a, transposed_b, m, n, k, alpha, a, lda, b, ldb, accumulate, c, ldc, bias, relu);
}

/* Compute the GEMM that *w describes, with operands rounded to bfloat16: on AMX tiles where the processor has them. */
static void implicit_gemm(const Engine *engine, const ImplicitGemm *w)
{
    if (implicit_gemm_of_tiles(engine, w)) return;
    if (suits_amx_windows(engine, w)) amx_implicit_gemm(engine, w);
    else implicit_gemm_of_pairs(engine, w);
}

#endif
