/* Operands of a product on their way into tiles of bfloat16 parts: panels of 32 rows of A or 32 columns of B, half a tile at a time. */
#ifndef ORTRAIN_BFLOAT16_PACKING_H
#define ORTRAIN_BFLOAT16_PACKING_H
#include "bfloat16_tiles.h"
#if HAVE_TILES

enum { MOST_PANELS = 8 };                           /* that are packed together */

/* One operand: `size` rows of A, or columns of B, `depth` deep. A row in memory runs along the depth, or across it. */
typedef struct Operand { const float *values; int64_t step, size, depth; int along, is_b; } Operand;

/* that of a row or column, at a depth */
static inline const float *number_at(const Operand *o, int64_t index, int64_t depth)
{ return o->values + (o->along ? index * o->step + depth : depth * o->step + index); }

/* `panels` panels from panel `first`, `steps` steps of depth from step `deep`. A tile of A has a row of A in each of its rows and the pairs (p, p + 16) of the
 * depth in its columns; a tile of B has the pairs in its rows and columns of B in its columns: what runs along the depth is transposed for B, what runs across
 * it for A. */
typedef struct BlockPacking {
    Operand from;
    int64_t first, panels, deep, steps;             /* deep: the first step */
    bfloat16 *to;                                   /* [panels][steps][3 parts][2 tiles] */
    uint8_t *out_of_range;                          /* [panels], when all is done */
    int64_t halves, done;
    int transposed;
    __m512i largest[MOST_PANELS + 1];               /* of each panel, and of none */
    float edge[TILE_NUMBERS] __attribute__((aligned(64)));
    float squares[2][2][256] __attribute__((aligned(64)));
} BlockPacking;

static void start_packing(BlockPacking *p, const Operand *from, int64_t first, int64_t panels, int64_t deep, int64_t steps, bfloat16 *to,
                          uint8_t *out_of_range)
{
    p->from = *from; p->first = first; p->panels = panels; p->deep = deep; p->steps = steps; p->to = to; p->out_of_range = out_of_range;
    p->transposed = from->along == from->is_b;
    p->halves = (panels * steps * 2 + p->transposed) * 2;       /* transposed, a tile is stored while the next one is transposed */
    p->done = 0;
    for (int i = 0; i <= MOST_PANELS; i++) p->largest[i] = _mm512_setzero_si512();
}

static inline int packs(const BlockPacking *p) { return p->done < p->halves; }

typedef struct TilePlace { int64_t panel, step, half; } TilePlace;

/* Rows in memory that run along the depth are read to their end, those that run across it to the end of the panels. */
static inline TilePlace place_of(const BlockPacking *p, int64_t tile)
{
    int64_t pair = tile / 2, inner = p->from.along ? p->steps : p->panels, slow = pair / inner, fast = pair - slow * inner;
    return p->from.along ? (TilePlace){ slow, fast, tile & 1 } : (TilePlace){ fast, slow, tile & 1 };
}

static inline const float *source_of(const BlockPacking *p, TilePlace at)
{
    return number_at(&p->from, (p->first + at.panel) * PANEL_SIZE + at.half * 16, (p->deep + at.step) * STEP_DEPTH);
}

static inline bfloat16 *target_of(const BlockPacking *p, TilePlace at)
{ return p->to + (at.panel * p->steps + at.step) * STEP_NUMBERS + at.half * TILE_NUMBERS; }

/* What of a tile lies beyond the operand is zero. Whether there is such a part. */
static inline int is_edge(const BlockPacking *p, TilePlace at, int64_t *count, int64_t *depth)
{
    *count = p->from.size - (p->first + at.panel) * PANEL_SIZE - at.half * 16;
    *depth = p->from.depth - (p->deep + at.step) * STEP_DEPTH;
    return *count < 16 || *depth < STEP_DEPTH;
}

static __attribute__((noinline)) void copy_edge(BlockPacking *p, const float *from, int64_t count, int64_t depth)
{
    int64_t along = p->from.along, width = along ? STEP_DEPTH : 16;
    count = count < 0 ? 0 : smaller(count, 16);
    depth = smaller(depth, STEP_DEPTH);
    memset(p->edge, 0, sizeof p->edge);
    for (int64_t i = 0; i < (along ? count : depth); i++) memcpy(p->edge + i * width, from + i * p->from.step, (size_t)(along ? depth : count) * sizeof(float));
}

static inline HalfTile next_half(BlockPacking *p)
{
    int64_t tiles = p->panels * p->steps * 2, tile = p->done / 2, second = p->done & 1, count, depth;
    TilePlace at = place_of(p, smaller(tile, tiles - 1));
    int64_t pair = p->from.along ? 16 : 16 * p->from.step;
    HalfTile h = { .from = source_of(p, at), .step = p->from.step, .pair = pair };
    if (is_edge(p, at, &count, &depth)) {
        if (!second) copy_edge(p, h.from, count, depth);
        h.from = p->edge;
        h.step = p->from.along ? STEP_DEPTH : 16;
        h.pair = p->from.along ? 16 : 256;
    }
    if (p->transposed) {
        TilePlace before = place_of(p, tile ? tile - 1 : 0);
        h.from += second * h.pair;
        h.square = p->squares[tile & 1][second];
        h.ready = p->squares[~tile & 1][0] + second * 8 * 16;
        h.to = target_of(p, before) + second * 8 * 32;
        h.largest = p->largest + (tile ? before.panel : MOST_PANELS);
    } else {
        h.from += second * 8 * h.step;
        h.to = target_of(p, at) + second * 8 * 32;
        h.largest = p->largest + at.panel;
    }
    return h;
}

/* Panels with numbers that are not finite, or round up to infinity, or panels of numbers so small (below 2^-100) that their parts would be cut off. */
static __attribute__((noinline)) void finish_packing(BlockPacking *p)
{
    for (int64_t i = 0; i < p->panels; i++) {
        uint16_t words[32] __attribute__((aligned(64))), most = 0;
        _mm512_store_si512((void *)words, p->largest[i]);
        for (int w = 0; w < 32; w++) most = words[w] > most ? words[w] : most;
        p->out_of_range[i] = most >= 0xff00 || (most && most < (127 - 100) << 8);
    }
}

static inline void half_done(BlockPacking *p) { if (++p->done == p->halves) finish_packing(p); }

static void pack_rest(BlockPacking *p)
{
    while (packs(p)) {
        HalfTile h = next_half(p);
        if (p->transposed) transpose_half_tile(&h);
        else pack_half_tile(&h);
        half_done(p);
    }
}
#endif
#endif
