/* The GEMM of one time step, C [rows, columns] (+)= A [rows, depth] weights [depth, columns], on the calling thread, for float32 and float64. In float32 it
 * is matmul/step_gemm.h, here or, where vectors take bfloat16 operands, in the engine. In float64, which is used to verify gradients, packed weights are
 * row-major for the engine's GEMM.
 *
 * Packed weights take at most depth * (columns + PANEL_PADDING) elements: see `panels` in ops/recurrent.py. */
#ifndef ORTRAIN_STEP_GEMM_H
#define ORTRAIN_STEP_GEMM_H
#include "kernel.h"
#include "matmul/step_gemm.h"

/* Return the number of elements of packed weights. */
static inline int64_t panels_float(int64_t depth, int64_t columns) { return depth * round_to_lanes(columns); }
static inline int64_t panels_double(int64_t depth, int64_t columns) { return depth * columns; }

/* Pack weights [depth, columns], or [columns, depth] if `transposed`, both contiguous. */
static void pack_weights_float(const Engine *engine, const float *weights, int transposed, int64_t depth, int64_t columns, float *panels)
{
    if (engine->rounds) engine->pack_step_weights(weights, transposed, depth, columns, panels);
    else pack_step_weights(weights, transposed, depth, columns, panels);
}

/* c [rows, columns] = a [rows, depth] times packed weights, or += if `accumulate` */
static void step_gemm_float(const Engine *engine, int64_t worker, int64_t rows, int64_t columns, int64_t depth, const float *a, int64_t lda,
                            const float *panels, int accumulate, float *c, int64_t ldc)
{
    if (engine->rounds) engine->step_gemm(engine, worker, rows, columns, depth, a, lda, panels, accumulate, c, ldc);
    else multiply_time_step(rows, columns, depth, a, lda, panels, accumulate, c, ldc);
}

static void pack_weights_double(const Engine *engine, const double *weights, int transposed, int64_t depth, int64_t columns, double *panels)
{
    (void)engine;
    for (int64_t p = 0; p < depth; p++)
        for (int64_t j = 0; j < columns; j++) panels[p * columns + j] = transposed ? weights[j * depth + p] : weights[p * columns + j];
}

static void step_gemm_double(const Engine *engine, int64_t worker, int64_t rows, int64_t columns, int64_t depth, const double *a, int64_t lda,
                                const double *panels, int accumulate, double *c, int64_t ldc)
{
    engine->gemm_float64_serial(engine, worker, 0, 0, rows, columns, depth, 1, a, lda, panels, columns, accumulate, c, ldc, NULL, 0);
}
#endif
