/* Incremental packing of an operand of the AMX GEMM: panels of 32 rows of A, or 32 columns of B, as tiles of bfloat16 parts, half a tile at a time.
 *
 * The GEMM calls next_half, performs the packing inside a multiplication (amx_tiles.h), and calls advance_packing. */
#ifndef ORTRAIN_AMX_PACKING_H
#define ORTRAIN_AMX_PACKING_H
#include "matmul/amx_tiles.h"
#include "matmul/implicit_gemm.h"
#if HAVE_AMX

/* An operand: `size` rows of A, or columns of B, with `depth` elements each; `step` floats between rows in memory.
 *
 * k_contiguous: rows in memory run along the depth (A row-major, or B transposed), else across it. starts: or NULL; the offset at which each `segment`
 * of the depth starts in memory. windows: or NULL; the operand is an im2col matrix, whose points are the rows of A or the depth of B, and (tap, channel) the
 * other dimension. */
typedef struct Operand {
    const float *values;
    int64_t step, size, depth;
    int k_contiguous, is_b;
    int64_t segment;
    const int64_t *starts;
    const Windows *windows;
} Operand;

/* Return the element at a row of A or column of B and a depth; not for windows. */
static inline const float *element_at(const Operand *o, int64_t index, int64_t depth)
{
    const float *values = o->values;
    if (o->starts) { values += o->starts[depth / o->segment]; depth %= o->segment; }
    return values + (o->k_contiguous ? index * o->step + depth : depth * o->step + index);
}

/* to [all, width] = rows [first, first + count) and columns [column, column + width) of an im2col matrix, 0 in the rows beyond `count`. The columns belong to
 * one tap. */
static __attribute__((noinline)) void copy_windows(const Windows *w, int64_t first, int64_t count, int64_t all, int64_t column, int64_t width, float *to)
{
    int64_t tap = column / w->channels, channel = column % w->channels;
    Point at = point_at(w, first);
    for (int64_t i = 0; i < all; i++, to += width) {
        int64_t y = w->stride_y * at.y + w->offsets[tap][0], x = w->stride_x * at.x + w->offsets[tap][1];
        int inside = i < count && y >= 0 && y < w->rows && x >= 0 && x < w->columns;
        const float *from = w->pixels + (inside ? ((at.image * w->rows + y) * w->columns + x) * w->channels + channel : 0);
        __mmask16 mask = inside ? 0xffff : 0;
        for (int64_t j = 0; j < width; j += 16) {
            __builtin_prefetch(from + width + j, 0, 3);     /* channels of the next step, or of the next tap */
            _mm512_store_ps(to + j, _mm512_maskz_loadu_ps(mask, from + j));
        }
        next_point(w, &at);
    }
}

/* Copy a tile, 16 rows of A or columns of B from `index` and depths [k0, k0 + STEP_DEPTH), without transposition: to [16, STEP_DEPTH] if the operand is
 * `k_contiguous`, else [STEP_DEPTH, 16]; 0 beyond the operand. */
static __attribute__((noinline)) void copy_tile(const Operand *o, int64_t index, int64_t k0, float *to)
{
    int64_t count = o->size - index, depth = min_i64(o->depth - k0, STEP_DEPTH), width = o->k_contiguous ? STEP_DEPTH : 16;
    count = count < 0 ? 0 : min_i64(count, 16);
    if (o->windows) {
        if (o->is_b) copy_windows(o->windows, k0, depth, STEP_DEPTH, index, 16, to);
        else copy_windows(o->windows, index, count, 16, k0, STEP_DEPTH, to);
        return;
    }
    const float *from = element_at(o, index, k0);
    memset(to, 0, TILE_ELEMENTS * sizeof(float));
    for (int64_t i = 0; i < (o->k_contiguous ? count : depth); i++)
        memcpy(to + i * width, from + i * o->step, (size_t)(o->k_contiguous ? depth : count) * sizeof(float));
}

/* A tile of a panel at a step of the depth; half: which 16 of the panel's 32 rows or columns. */
typedef struct TilePosition { int64_t panel, step, half; } TilePosition;

/* The packing of `panels` panels from panel `first` at `steps` steps of the depth from `first_step`.
 *
 * A tile of A has rows of A in its rows and the pairs (p, p + 16) of the depth in its columns; a tile of B has the pairs in its rows and columns of B in its
 * columns. Therefore B is transposed if its rows in memory run along the depth, and A if they run across it. */
typedef struct BlockPacking {
    Operand from;
    int64_t first, panels, first_step, steps;
    bfloat16 *to;                                   /* [panels][steps][parts][2 tiles] */
    uint8_t *out_of_range;                          /* [panels], written when the packing is complete, for three parts */
    int64_t halves, done;                           /* number of half tiles to pack, and packed */
    int transposed;
    TilePosition previous, current, following;                    /* of the tile in progress and its neighbors */
    TileSource source, next;                        /* of the tile in progress and the following one */
    __m512i largest[MAX_PANELS + 1];                /* per panel; the last entry is a dummy */
    float copied[TILE_ELEMENTS] __attribute__((aligned(64)));     /* copy of a tile that extends beyond the operand, or of one of windows */
    float squares[2][2][256] __attribute__((aligned(64)));       /* transposed halves of the tile in progress and the previous one */
} BlockPacking;

static inline int is_packing(const BlockPacking *p) { return p->done < p->halves; }

/* Return the position of the tile with this number. Tiles are numbered in the order of memory: panel by panel where rows run along the depth, else
 * step by step. The numbers after the last tile are those of the next panel or step, which are prefetched since they are likely to be packed next. */
static inline TilePosition position_of(const BlockPacking *p, int64_t tile)
{
    int64_t inner = p->from.k_contiguous ? p->steps : p->panels, pair = tile / 2, slow = pair / inner, fast = pair - slow * inner;
    return p->from.k_contiguous ? (TilePosition){ slow, fast, tile & 1 } : (TilePosition){ fast, slow, tile & 1 };
}

/* Return where the first part of a tile is stored. */
static inline bfloat16 *target_of(const BlockPacking *p, TilePosition at)
{ return p->to + (at.panel * p->steps + at.step) * STEP_ELEMENTS + at.half * TILE_ELEMENTS; }

/* Return the source of a tile: in the operand, or in `copied` where a copy is needed. */
static inline TileSource source_of(const BlockPacking *p, TilePosition at)
{
    const Operand *o = &p->from;
    int64_t index = (p->first + at.panel) * PANEL_SIZE + at.half * 16, k0 = (p->first_step + at.step) * STEP_DEPTH;
    if (o->windows || index + 16 > o->size || k0 + STEP_DEPTH > o->depth)
        return o->k_contiguous ? (TileSource){ p->copied, STEP_DEPTH, 16 } : (TileSource){ p->copied, 16, 256 };
    return (TileSource){ element_at(o, index, k0), o->step, o->k_contiguous ? 16 : 16 * o->step };
}

/* Make the following tile, number `tile`, the one in progress. */
static inline void advance_to_tile(BlockPacking *p, int64_t tile)
{
    p->previous = p->current;
    p->current = p->following;
    p->source = p->next;
    p->following = position_of(p, tile + 1);
    p->next = source_of(p, p->following);
}

static void start_packing(BlockPacking *p, const Operand *from, int64_t first, int64_t panels, int64_t first_step, int64_t steps, bfloat16 *to,
                          uint8_t *out_of_range)
{
    p->from = *from; p->first = first; p->panels = panels; p->first_step = first_step; p->steps = steps; p->to = to; p->out_of_range = out_of_range;
    p->transposed = from->k_contiguous == from->is_b;
    p->halves = (panels * steps * 2 + p->transposed) * 2;       /* with transposition, a tile is stored while the next one is transposed */
    p->done = 0;
    p->following = position_of(p, 0);
    p->next = source_of(p, p->following);
    p->current = p->following;
    advance_to_tile(p, 0);
    for (int i = 0; i <= MAX_PANELS; i++) p->largest[i] = _mm512_setzero_si512();
}

/* Return the next half tile to pack. */
static inline HalfTile next_half(BlockPacking *p)
{
    int64_t second = p->done & 1;
    int64_t index = (p->first + p->current.panel) * PANEL_SIZE + p->current.half * 16, k0 = (p->first_step + p->current.step) * STEP_DEPTH;
    HalfTile h = { .source = p->source, .next = p->next };
    if (!second && h.source.from == p->copied) copy_tile(&p->from, index, k0, p->copied);
    if (p->transposed) {
        int64_t tile = p->done / 2;
        h.source.from += second * h.source.pair;
        h.next.from += second * h.next.pair;
        h.square = p->squares[tile & 1][second];
        h.ready = p->squares[~tile & 1][0] + second * 8 * 16;
        h.to = target_of(p, p->previous) + second * 8 * 32;
        h.largest = p->largest + (tile ? p->previous.panel : MAX_PANELS);
    } else {
        h.source.from += second * 8 * h.source.step;
        h.next.from += second * 8 * h.next.step;
        h.to = target_of(p, p->current) + second * 8 * 32;
        h.largest = p->largest + p->current.panel;
    }
    return h;
}

/* Mark the panels that tiles cannot multiply in three parts: those with an element that is not finite or rounds to infinity as bfloat16, and those whose
 * largest element is below 2^-100, where the third part would underflow. */
static __attribute__((noinline)) void mark_out_of_range_panels(BlockPacking *p)
{
    for (int64_t i = 0; i < p->panels; i++) {
        uint16_t words[32] __attribute__((aligned(64))), largest = 0;
        _mm512_store_si512((void *)words, p->largest[i]);
        for (int w = 0; w < 32; w++) largest = words[w] > largest ? words[w] : largest;
        p->out_of_range[i] = largest >= 0xff00 || (largest && largest < (127 - 100) << 8);
    }
}

/* Proceed after a half tile was packed. */
static inline void advance_packing(BlockPacking *p)
{
    if (++p->done < p->halves) {
        if (!(p->done & 1)) advance_to_tile(p, p->done / 2);
    } else if (BFLOAT16_PARTS == 3) {
        mark_out_of_range_panels(p);
    }
}

/* Pack all remaining half tiles at once. */
static void pack_remaining(BlockPacking *p)
{
    while (is_packing(p)) {
        HalfTile h = next_half(p);
        if (p->transposed) transpose_half_tile(&h);
        else pack_half_tile(&h);
        advance_packing(p);
    }
}
#endif
#endif
