/* The rule that sends a GEMM to AMX tiles (amx_gemm.h), in three parts and in one; also used by convolutions that choose between the GEMM and their own
 * kernels. The planner has the same rule in ops/shared/conv_algorithms.py; the limits are in common/tuning.h. */
#ifndef ORTRAIN_AMX_ELIGIBILITY_H
#define ORTRAIN_AMX_ELIGIBILITY_H
#include "kernel.h"
#include "common/integers.h"
#include "common/tuning.h"
#include "matmul/implicit_gemm.h"

/* Return the number of panels of 32 rows or columns. */
static inline int64_t panel_count(int64_t size) { return (size + PANEL_SIZE - 1) / PANEL_SIZE; }

/* Return whether a GEMM of this shape runs on AMX tiles: they are present, no side is too small, and C fills MIN_FILLED percent of its 32 x 32 blocks. */
static inline int suits_amx(const Engine *e, int64_t m, int64_t n, int64_t k)
{
    return e->amx && m >= MIN_TILED_SIDE && n >= MIN_TILED_SIDE && k >= MIN_TILED_DEPTH && m * n * k >= MIN_TILED_PRODUCTS
        && m * n * 100 >= panel_count(m) * panel_count(n) * PANEL_SIZE * PANEL_SIZE * MIN_FILLED;
}

/* Return whether a GEMM of bfloat16 operands that are rounded first (tiled_gemm.h) is faster on tiles than one of float32 vectors. */
static inline int suits_tiled_gemm(int transposed_a, int64_t m, int64_t n, int64_t k)
{
    return min_i64(m, n) >= LEAST_SIDE && k >= LEAST_DEPTH && m * n * k >= LEAST_PRODUCTS && (!transposed_a || m * n >= LEAST_WEIGHTS);
}

/* Return whether a GEMM of the engine's precision runs on AMX tiles. */
static inline int runs_on_tiles(const Engine *e, int64_t m, int64_t n, int64_t k)
{ return suits_amx(e, m, n, k) || (e->amx && e->rounds && suits_tiled_gemm(0, m, n, k)); }

/* Return whether a GEMM with an im2col matrix runs on AMX tiles: its shape suits them, and a tile belongs to one tap. */
static inline int suits_amx_windows(const Engine *e, const ImplicitGemm *w)
{
    const Windows *v = &w->windows;
    int64_t points = v->images * v->out_rows * v->out_columns, columns = v->taps * v->channels;
    return v->channels % PANEL_SIZE == 0 && (w->filters ? suits_amx(e, w->outputs, columns, points) : suits_amx(e, points, w->outputs, columns));
}
#endif
