/* Operands of a product on their way into tiles of bfloat16 parts: panels of 32 rows of A or 32 columns of B, half a tile at a time. */
#ifndef ORTRAIN_BFLOAT16_PACKING_H
#define ORTRAIN_BFLOAT16_PACKING_H
#include "matmul/amx_tiles.h"
#include "matmul/implicit_gemm.h"
#if HAVE_TILES


/* One operand: `size` rows of A, or columns of B, `depth` deep. A row in memory runs along the depth, or across it. With `starts` each `segment` of the depth
 * begins at a place of its own. With `windows` the rows of A, or the depth of B, are points and the other side is (tap, channel). */
typedef struct Operand {
    const float *values;
    int64_t step, size, depth;
    int along, is_b;
    int64_t segment;
    const int64_t *starts;
    const Windows *windows;
} Operand;

/* that of a row or column, at a depth; not of windows */
static inline const float *number_at(const Operand *o, int64_t index, int64_t depth)
{
    const float *values = o->values;
    if (o->starts) { values += o->starts[depth / o->segment]; depth %= o->segment; }
    return values + (o->along ? index * o->step + depth : depth * o->step + index);
}

typedef struct Point { int64_t image, y, x; } Point;

static inline Point point_at(const Windows *w, int64_t number)
{ return (Point){ number / (w->out_rows * w->out_columns), number / w->out_columns % w->out_rows, number % w->out_columns }; }

static inline void next_point(const Windows *w, Point *p)
{
    if (++p->x < w->out_columns) return;
    p->x = 0;
    if (++p->y < w->out_rows) return;
    p->y = 0;
    p->image++;
}

/* `count` windows from point `first`, `width` channels from number `column` of a window on, which have one tap; zeros beyond the last point. to [all, width] */
static __attribute__((noinline)) void copy_windows(const Windows *w, int64_t first, int64_t count, int64_t all, int64_t column, int64_t width, float *to)
{
    int64_t tap = column / w->channels, channel = column % w->channels;
    Point at = point_at(w, first);
    for (int64_t i = 0; i < all; i++, to += width) {
        int64_t y = w->stride_y * at.y + w->offsets[tap][0], x = w->stride_x * at.x + w->offsets[tap][1];
        int seen = i < count && y >= 0 && y < w->rows && x >= 0 && x < w->columns;
        const float *from = w->pixels + (seen ? ((at.image * w->rows + y) * w->columns + x) * w->channels + channel : 0);
        __mmask16 mask = seen ? 0xffff : 0;
        for (int64_t j = 0; j < width; j += 16) {
            __builtin_prefetch(from + width + j, 0, 3);     /* the channels of the next step, or the next tap's */
            _mm512_store_ps(to + j, _mm512_maskz_loadu_ps(mask, from + j));
        }
        next_point(w, &at);
    }
}

/* 16 rows of A, or columns of B, from `index`, STEP_DEPTH deep from `deep`, in rows as they are in memory; zeros beyond the operand */
static __attribute__((noinline)) void copy_tile(const Operand *o, int64_t index, int64_t deep, float *to)
{
    int64_t count = o->size - index, depth = smaller(o->depth - deep, STEP_DEPTH), width = o->along ? STEP_DEPTH : 16;
    count = count < 0 ? 0 : smaller(count, 16);
    if (o->windows) {
        if (o->is_b) copy_windows(o->windows, deep, depth, STEP_DEPTH, index, 16, to);
        else copy_windows(o->windows, index, count, 16, deep, STEP_DEPTH, to);
        return;
    }
    const float *from = number_at(o, index, deep);
    memset(to, 0, TILE_NUMBERS * sizeof(float));
    for (int64_t i = 0; i < (o->along ? count : depth); i++) memcpy(to + i * width, from + i * o->step, (size_t)(o->along ? depth : count) * sizeof(float));
}

typedef struct TilePlace { int64_t panel, step, half; } TilePlace;

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
    TilePlace before, at, after;                    /* the tile at work, and those around it */
    TileSource source, next;                        /* of the one at work and the one after it */
    __m512i largest[MAX_PANELS + 1];               /* of each panel, and of none */
    float copied[TILE_NUMBERS] __attribute__((aligned(64)));     /* a tile that reaches beyond the operand, or one of windows */
    float squares[2][2][256] __attribute__((aligned(64)));
} BlockPacking;

static inline int packs(const BlockPacking *p) { return p->done < p->halves; }

/* Rows in memory that run along the depth are read to their end, those that run across it to the end of the panels. Beyond the last tile come those of the next
 * panel, or of the next step: they are fetched, for they are likely to be packed next. */
static inline TilePlace place_of(const BlockPacking *p, int64_t tile)
{
    int64_t inner = p->from.along ? p->steps : p->panels, pair = tile / 2, slow = pair / inner, fast = pair - slow * inner;
    return p->from.along ? (TilePlace){ slow, fast, tile & 1 } : (TilePlace){ fast, slow, tile & 1 };
}

static inline bfloat16 *target_of(const BlockPacking *p, TilePlace at)
{ return p->to + (at.panel * p->steps + at.step) * STEP_NUMBERS + at.half * TILE_NUMBERS; }

/* that of a tile in memory, or of its copy where it is copied */
static inline TileSource source_of(const BlockPacking *p, TilePlace at)
{
    const Operand *o = &p->from;
    int64_t index = (p->first + at.panel) * PANEL_SIZE + at.half * 16, deep = (p->deep + at.step) * STEP_DEPTH;
    if (o->windows || index + 16 > o->size || deep + STEP_DEPTH > o->depth)
        return o->along ? (TileSource){ p->copied, STEP_DEPTH, 16 } : (TileSource){ p->copied, 16, 256 };
    return (TileSource){ number_at(o, index, deep), o->step, o->along ? 16 : 16 * o->step };
}

static inline void go_to_tile(BlockPacking *p, int64_t tile)
{
    p->before = p->at;
    p->at = p->after;
    p->source = p->next;
    p->after = place_of(p, tile + 1);
    p->next = source_of(p, p->after);
}

static void start_packing(BlockPacking *p, const Operand *from, int64_t first, int64_t panels, int64_t deep, int64_t steps, bfloat16 *to,
                          uint8_t *out_of_range)
{
    p->from = *from; p->first = first; p->panels = panels; p->deep = deep; p->steps = steps; p->to = to; p->out_of_range = out_of_range;
    p->transposed = from->along == from->is_b;
    p->halves = (panels * steps * 2 + p->transposed) * 2;       /* transposed, a tile is stored while the next one is transposed */
    p->done = 0;
    p->after = place_of(p, 0);
    p->next = source_of(p, p->after);
    p->at = p->after;
    go_to_tile(p, 0);
    for (int i = 0; i <= MAX_PANELS; i++) p->largest[i] = _mm512_setzero_si512();
}

static inline HalfTile next_half(BlockPacking *p)
{
    int64_t second = p->done & 1;
    int64_t index = (p->first + p->at.panel) * PANEL_SIZE + p->at.half * 16, deep = (p->deep + p->at.step) * STEP_DEPTH;
    HalfTile h = { .source = p->source, .next = p->next };
    if (!second && h.source.from == p->copied) copy_tile(&p->from, index, deep, p->copied);
    if (p->transposed) {
        int64_t tile = p->done / 2;
        h.source.from += second * h.source.pair;
        h.next.from += second * h.next.pair;
        h.square = p->squares[tile & 1][second];
        h.ready = p->squares[~tile & 1][0] + second * 8 * 16;
        h.to = target_of(p, p->before) + second * 8 * 32;
        h.largest = p->largest + (tile ? p->before.panel : MAX_PANELS);
    } else {
        h.source.from += second * 8 * h.source.step;
        h.next.from += second * 8 * h.next.step;
        h.to = target_of(p, p->at) + second * 8 * 32;
        h.largest = p->largest + p->at.panel;
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

static inline void half_done(BlockPacking *p)
{
    if (++p->done == p->halves) finish_packing(p);
    else if (!(p->done & 1)) go_to_tile(p, p->done / 2);
}

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
