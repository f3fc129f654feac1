/* Which products in float32 bfloat16 tiles take (amx_gemm.h). Convolutions ask as well: where tiles would, they leave it to them. */
#ifndef ORTRAIN_TILE_RULE_H
#define ORTRAIN_TILE_RULE_H
#include "kernel.h"
#include "common/tuning.h"


static inline int64_t panels_of(int64_t size) { return (size + PANEL_SIZE - 1) / PANEL_SIZE; }

static inline int on_tiles(const Engine *e, int64_t m, int64_t n, int64_t k)
{
    return e->amx && m >= MIN_TILED_SIDE && n >= MIN_TILED_SIDE && k >= MIN_TILED_DEPTH && m * n * k >= MIN_TILED_PRODUCTS
        && m * n * 100 >= panels_of(m) * panels_of(n) * PANEL_SIZE * PANEL_SIZE * MIN_FILLED;
}
#endif
